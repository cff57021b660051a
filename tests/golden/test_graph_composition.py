"""Decoding and training graphs against Kaldi's."""

import json

import numpy as np
import pytest
from reference.graphs import add_transition_probs, canonical, read_graphs
from reference.training_graph import compile_training_graph

from latflow.decode.decoder import LatticeDecoder, load_graph
from latflow.fst.graph import Graph
from latflow.graphs.hclg import build_hclg, load_model, make_graph
from latflow.graphs.options import GraphOptions
from latflow.graphs.sentences import let_sentences_follow
from latflow.graphs.training import TrainingGraphCompiler
from latflow.lang.directory import Lang
from latflow.lattice.best_path import best_path
from latflow.parallel import in_order, worker_pool

SYSTEMS = ["mono", "tri1"]


@pytest.fixture(scope="module", params=SYSTEMS)
def system(request, golden):
    tree, model = load_model(golden / f"gmm/{request.param}")
    return request.param, tree, model


@pytest.fixture(scope="module")
def transcripts(golden):
    lines = (golden / "align/text.int").read_text().splitlines()
    return {line.split()[0]: [int(w) for w in line.split()[1:]] for line in lines}


def test_hclg_is_that_of_mkgraph(golden, system):
    name, tree, model = system
    ours = build_hclg(
        golden / "lang", golden / "lang/G.fst", tree, model, GraphOptions()
    )
    kaldi = Graph.load(golden / f"graph/HCLG_{name}.fst")
    assert (ours.num_states, ours.num_arcs) == (kaldi.num_states, kaldi.num_arcs)
    assert canonical(ours) == canonical(kaldi)


def test_stage_writes_the_graph_and_its_counts(golden, tmp_path):
    make_graph(
        golden / "lang",
        golden / "lang/G.fst",
        golden / "gmm/tri1",
        tmp_path / "HCLG.fst",
        options=GraphOptions(),
    )
    kaldi = Graph.load(golden / "graph/HCLG_tri1.fst")
    ours = Graph.load(tmp_path / "HCLG.fst")
    assert canonical(ours) == canonical(kaldi)
    assert ours.weight.flags.aligned
    facts = json.loads((tmp_path / "HCLG.json").read_text())
    assert (facts["states"], facts["arcs"], facts["final_states"]) == (136, 307, 3)
    assert facts["sentences"] == "one"


def test_stage_lets_sentences_follow(golden, tmp_path):
    make_graph(
        golden / "lang",
        golden / "lang/G.fst",
        golden / "gmm/tri1",
        tmp_path / "HCLG.fst",
        options=GraphOptions(),
        sentences="several",
    )
    kaldi = Graph.load(golden / "graph/HCLG_tri1.fst")
    ours = Graph.load(tmp_path / "HCLG.fst")
    assert canonical(ours) == canonical(let_sentences_follow(kaldi))
    assert ours.num_arcs > kaldi.num_arcs
    assert json.loads((tmp_path / "HCLG.json").read_text())["sentences"] == "several"


@pytest.mark.parametrize("sentences", ["one", "several"])
@pytest.mark.parametrize("seed", range(5))
def test_hcl_and_g_have_the_costs_of_kaldis_graph(golden, tmp_path, seed, sentences):
    folder = golden / "gmm/tri1"
    make_graph(
        *(golden / "lang", golden / "lang/G.fst", folder, tmp_path / "HCLG.fst"),
        options=GraphOptions(),
        composition="lookahead",
        sentences=sentences,
    )
    facts = json.loads((tmp_path / "HCLG.json").read_text())
    assert facts["composition"] == "lookahead"
    parts = load_graph(tmp_path / "HCLG.fst", Lang.load(golden / "lang"))
    kaldi = Graph.load(golden / "graph/HCLG_tri1.fst")
    if sentences == "several":
        kaldi = let_sentences_follow(kaldi)
    pdfs = load_model(folder)[1].pdf
    rng = np.random.default_rng(seed)
    scores = rng.normal(scale=3.0, size=(80, pdfs.max() + 1)).astype(np.float32)
    found = []
    for graph in (parts, kaldi):
        decoder = LatticeDecoder(graph, pdfs, beam=60.0, max_active=10**6)
        lattice = decoder.decode(scores, acoustic_scale=1.0).lattice
        found.append(best_path(lattice))
    ours, theirs = found
    assert ours.words.tolist() == theirs.words.tolist()
    assert ours.graph_cost == pytest.approx(theirs.graph_cost, abs=2e-2)
    assert ours.acoustic_cost == pytest.approx(theirs.acoustic_cost, abs=2e-2)


def test_training_graphs_are_those_of_compile_train_graphs(
    golden, lang, system, transcripts
):
    name, tree, model = system
    compiler = TrainingGraphCompiler(
        lang, tree, model, self_loop_scale=0.0, transition_scale=0.0
    )
    kaldi = dict(read_graphs(golden / f"align/train_graphs_{name}.fsts.gz"))
    for utterance, words in transcripts.items():
        ours = compiler.compile(words, utterance=utterance)
        assert canonical(ours) == canonical(kaldi[utterance])


@pytest.mark.parametrize("threads", [1, 2])
def test_many_are_compiled_in_order(lang, system, transcripts, threads):
    _, tree, model = system
    compiler = TrainingGraphCompiler(lang, tree, model)
    items = [words for _ in range(20) for words in transcripts.values()]
    items.insert(7, [])
    with worker_pool(threads) as pool:
        found = list(in_order(pool, compiler.graph_or_reason, items))
    assert "transcript is empty" in found[7]
    for words, graph in zip(items, found, strict=True):
        if words:
            assert canonical(graph) == canonical(compiler.compile(words))


@pytest.mark.parametrize("scales", [(0.0, 0.0), (1.0, 0.1)])
def test_kernels_agree_with_general_operations(lang, system, transcripts, scales):
    _, tree, model = system
    compiler = TrainingGraphCompiler(
        lang, tree, model, transition_scale=scales[0], self_loop_scale=scales[1]
    )
    for words in transcripts.values():
        slow = compile_training_graph(lang, tree, model, words, scales=scales)
        assert canonical(compiler.compile(words), 3) == canonical(slow, 3)


def test_probabilities_added_later_are_close_to_those_compiled(
    lang, system, transcripts
):
    # Rounding to 1/1024 and the place of a cost differ, the structure does not.
    _, tree, model = system
    bare = TrainingGraphCompiler(
        lang, tree, model, self_loop_scale=0.0, transition_scale=0.0
    )
    (words, *_) = transcripts.values()
    graph = bare.compile(words)
    added = add_transition_probs(graph, model)
    np.testing.assert_array_equal(added.ilabel, graph.ilabel)
    np.testing.assert_array_equal(added.final, graph.final)
    costs = model.scaled_log_prob(1.0, 0.1)
    np.testing.assert_allclose(
        added.weight, graph.weight - costs[np.array(graph.ilabel)], atol=1e-6
    )
    assert (added.weight[np.array(graph.ilabel) == 0] == 0).all()
