"""N-best lists with costs of a neural model mixed with an n-gram; its weight."""

import gzip
import json

import numpy as np
import pytest
import torch

from latflow.decode.rescore import RescoreJob
from latflow.decode.rescore_n_best import (
    linear_paths,
    mix_language_models,
    rescore_n_best,
)
from latflow.errors import UserError
from latflow.files import write_json
from latflow.fst.graph import Graph
from latflow.lang.arpa import read_arpa, write_arpa
from latflow.lang.lm_trie import LmTrie
from latflow.lang.ngram import estimate
from latflow.lang.options import LstmLmOptions
from latflow.lattice.determinize.pruned import determinize
from latflow.lattice.io.archives import read_compact_lattices, write_lattices
from latflow.lattice.lattice import Lattice
from latflow.lattice.n_best import n_best
from latflow.ledger import read_ledger
from latflow.nnet.language_model import Mixture, NeuralLm, WordLstm, weight_on

INF = np.inf
WORD_IDS = {"<eps>": 0, "a": 1, "b": 2, "#0": 3, "<s>": 4, "</s>": 5}
OLD = {1: 2.0, 2: 3.0}  # costs of words under the grammar; of the end 0.5
WEIGHT = 0.3


def neural(words=("</s>", "a")):
    """A model far from uniform, which by default lacks the word b."""
    options = LstmLmOptions(size=3)
    network = WordLstm(len(words), options, seed=2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(4.0)
    return NeuralLm(network.eval(), list(words), options, {})


def grammar(final=0.5):
    """One state, and an arc for each word."""
    words = np.array(list(OLD), np.int32)
    weights = np.array(list(OLD.values()), np.float32)
    zeros = np.zeros(len(words), np.int32)
    ends = np.array([final], np.float32)
    begin = np.array([0, len(words)])
    return Graph.from_arrays(0, begin, words, words, weights, zeros, ends)


def lattice():
    """`a b` costs 13, `a` 17, `b b` 25, all behind a frame without a word."""
    arcs = [(0, 1, 9, 0), (1, 2, 7, 1), (1, 3, 7, 2)]
    arcs += [(2, 4, 8, 2), (2, 4, 8, 0), (3, 4, 8, 2)]
    costs = np.concatenate([[[0, 0]], np.arange(10).reshape(5, 2)])
    finals = np.array([[INF, INF]] * 4 + [[1.0, 2.0]], np.float32)
    return Lattice.from_arcs(np.array(arcs, np.int32), costs.astype(np.float32), finals)


def mixture_cost(words):
    """-ln of the mixture, summed over words and end, one prefix after the other."""
    model = neural()
    total = 0.0
    for place, word in enumerate([*words, "</s>"]):
        ids = [0, *model.classes(words[:place]).tolist()]
        inputs = torch.tensor([[i if i >= 0 else len(model.words) for i in ids]])
        with torch.no_grad():
            probs = torch.softmax(model.network(inputs)[0, -1], 0).tolist()
        own = 0.0 if word == "b" else probs[model.words.index(word)]
        cost = 0.5 if word == "</s>" else OLD[WORD_IDS[word]]
        total -= np.log(WEIGHT * own + (1 - WEIGHT) * np.exp(-cost))
    return total


@pytest.fixture
def files(tmp_path):
    """Lattices, grammar, network, mixture and words of a stage's call."""
    (tmp_path / "lang").mkdir()
    words = "".join(f"{word} {number}\n" for word, number in WORD_IDS.items())
    (tmp_path / "lang" / "words.txt").write_text(words)
    grammar().save(tmp_path / "G.fst")
    neural().save(tmp_path / "lstm")
    (tmp_path / "mixture.json").write_text(json.dumps({"weight": WEIGHT}))
    bad = lattice()
    bad.final_graph_cost[:] = INF
    items = [("u1", lattice()), ("u2", bad), ("u3", lattice())]
    write_lattices(tmp_path / "lattices.ark", items)
    names = ("lattices.ark", "G.fst", "lstm", "mixture.json", "lang", "out")
    write_json(tmp_path / "scales.json", {"lmwt": 1, "wip": 0.0})
    return [tmp_path / name for name in names]


def run(files, *, scales, n_best, device, **options):
    lattices, grammar, network, mixture, lang, out = files
    job = RescoreJob(
        lattices=lattices, grammar=grammar, lang_dir=lang, out_dir=out, **options
    )
    how = {"scales": scales, "n_best": n_best, "device": device}
    rescore_n_best(job, network, mixture, **how)


def options_of(folder):
    return {"scales": folder / "scales.json", "threads": 1, "device": "cpu"}


def test_paths_have_the_costs_of_the_mixture_and_their_own_times(files, tmp_path):
    options = {
        **options_of(tmp_path),
        "n_best": 10,
        "beam": 30.0,
        "max_skipped_fraction": 0.5,
    }
    run(files, **options)
    found = dict(read_compact_lattices(tmp_path / "out" / "lattices.ark"))
    assert list(found) == ["u1", "u3"]
    small = determinize(lattice(), beam=30.0)
    before = {tuple(path.words): path for path in n_best(small, 10)}
    names = {number: word for word, number in WORD_IDS.items()}
    for one in found.values():
        paths = n_best(one, 10)
        assert {tuple(path.words) for path in paths} == {(1, 2), (1,), (2, 2)}
        for path in paths:
            old = before[tuple(path.words)]
            words = [names[word] for word in path.words.tolist()]
            taken = sum(OLD[word] for word in path.words.tolist()) + 0.5
            wanted = old.graph_cost - taken + mixture_cost(words)
            assert path.graph_cost == pytest.approx(wanted, abs=1e-4)
            assert path.acoustic_cost == pytest.approx(old.acoustic_cost)
            np.testing.assert_array_equal(path.word_begin, old.word_begin)
            np.testing.assert_array_equal(path.transition_ids, old.transition_ids)
    (entry,) = read_ledger(tmp_path / "out" / "ledger.jsonl")
    assert (entry.stage, entry.utterance) == ("rescore_n_best", "u2")
    summary = json.loads((tmp_path / "out" / "rescore.json").read_text())
    assert (summary["utterances"], summary["skipped"]) == (3, 1)
    assert (summary["frames"], summary["weight"]) == (6, WEIGHT)


@pytest.mark.parametrize(("count", "beam"), [(2, 30.0), (10, 8.0)])
def test_the_n_best_within_the_beam_are_taken(files, tmp_path, count, beam):
    options = {
        **options_of(tmp_path),
        "n_best": count,
        "beam": beam,
        "max_skipped_fraction": 0.5,
    }
    run(files, **options)
    for _, one in read_compact_lattices(tmp_path / "out" / "lattices.ark"):
        assert {tuple(path.words) for path in n_best(one, 10)} == {(1, 2), (1,)}


@pytest.mark.parametrize(("lmwt", "best"), [(1, [1, 2]), (50, [2, 2])])
def test_the_n_best_are_those_at_the_scale_chosen_on_dev(files, tmp_path, lmwt, best):
    write_json(tmp_path / "scales.json", {"lmwt": lmwt, "wip": 0.0})
    one = lattice()
    one.graph_cost[2] -= 12.0  # of `b b`, which the acoustics speak against
    one.acoustic_cost[2] += 10.0
    write_lattices(files[0], [("u1", one)])
    run(files, **options_of(tmp_path), n_best=1, beam=100.0)
    ((_, found),) = read_compact_lattices(tmp_path / "out" / "lattices.ark")
    assert [path.words.tolist() for path in n_best(found, 10)] == [best]


@pytest.mark.parametrize(("wip", "best"), [(0.0, [1, 2]), (6.0, [1])])
def test_the_n_best_are_those_with_the_penalty_chosen_on_dev(
    files, tmp_path, wip, best
):
    """`a b` costs 13 and two penalties, `a` 17 and one."""
    write_json(tmp_path / "scales.json", {"lmwt": 1, "wip": wip})
    write_lattices(files[0], [("u1", lattice())])
    run(files, **options_of(tmp_path), n_best=1, beam=30.0)
    ((_, found),) = read_compact_lattices(tmp_path / "out" / "lattices.ark")
    assert [path.words.tolist() for path in n_best(found, 10)] == [best]


def test_what_cannot_be_rescored_is_in_the_ledger_and_fails_the_stage(files, tmp_path):
    options = {**options_of(tmp_path), "n_best": 5, "beam": 30.0}
    with pytest.raises(UserError, match="rescore_n_best skipped 1 of 3"):
        run(files, **options)
    assert not (tmp_path / "out" / "lattices.ark").exists()
    grammar(final=INF).save(tmp_path / "G.fst")
    with pytest.raises(UserError, match="no path of the lattice is a sentence of its"):
        run(files, **options)


def test_sequences_of_a_skipped_lattice_are_not_scored(files, tmp_path, monkeypatch):
    """Else those of the next lattice would get their probabilities."""
    options = {**options_of(tmp_path), "n_best": 10, "beam": 30.0}
    write_lattices(files[0], [("u1", lattice())])
    run(files, **options)
    ((_, wanted),) = read_compact_lattices(tmp_path / "out" / "lattices.ark")
    found_costs, calls = LmTrie.sentence_costs, []

    def fails_at_the_second(trie, words):
        calls.append(words)
        if len(calls) == 2:
            raise UserError("a fault")
        return found_costs(trie, words)

    monkeypatch.setattr(LmTrie, "sentence_costs", fails_at_the_second)
    write_lattices(files[0], [("u0", lattice()), ("u1", lattice())])
    run(files, **options, max_skipped_fraction=0.5)
    ((name, found),) = read_compact_lattices(tmp_path / "out" / "lattices.ark")
    assert name == "u1"
    np.testing.assert_array_equal(found.graph_cost, wanted.graph_cost)


def test_linear_paths_may_have_no_word():
    arcs = np.array([(0, 1, 7, 0), (1, 2, 8, 0), (0, 3, 7, 1), (3, 2, 8, 0)], np.int32)
    finals = np.array([[INF, INF]] * 2 + [[0, 0], [INF, INF]], np.float32)
    costs = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32)
    paths = n_best(Lattice.from_arcs(arcs, costs, finals), 5)
    found = n_best(linear_paths(paths, [0.5, 0.25]), 5)
    assert [path.words.tolist() for path in found] == [[], [1]]
    assert [path.graph_cost for path in found] == [0.5, 0.25]
    assert [path.acoustic_cost for path in found] == [6.0, 14.0]
    for path in found:
        assert path.transition_ids.tolist() == [7, 8]


@pytest.fixture
def dev(tmp_path):
    """A manifest of transcripts, an n-gram model, and the folder of a network."""
    texts = ["a b", "b", "a a b", "c a"]
    lines = [json.dumps({"supervisions": [{"text": text}]}) for text in texts]
    (tmp_path / "cuts.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    write_arpa(estimate([["a", "b"], ["b", "a"]] * 3, 2), tmp_path / "lm.arpa")
    neural(("</s>", "a", "b", "c")).save(tmp_path / "lstm")
    names = ("lstm", "lm.arpa", "cuts.jsonl.gz", "mixture.json")
    return [tmp_path / name for name in names], [text.split() for text in texts]


def test_the_weight_is_chosen_on_dev_or_given(dev, tmp_path):
    files, texts = dev
    models = Mixture(neural(("</s>", "a", "b", "c")), read_arpa(tmp_path / "lm.arpa"))
    mix_language_models(*files, device="cpu")
    found = json.loads((tmp_path / "mixture.json").read_text())
    assert found["weight"] == pytest.approx(min(weight_on(models, texts), 0.99))
    assert found["chosen_on"] == "dev"
    assert (found["num_words"], found["num_oov"]) == (8, 1)
    at_best = found["perplexity"]
    mix_language_models(*files, weight=0.9, device="cpu")
    found = json.loads((tmp_path / "mixture.json").read_text())
    assert (found["weight"], found["chosen_on"]) == (0.9, "recipe")
    assert found["perplexity"]["neural"] == at_best["neural"]
    assert found["perplexity"]["mixture"] > at_best["mixture"]


def test_dev_without_words_is_refused(dev, tmp_path):
    files, _ = dev
    (tmp_path / "cuts.jsonl.gz").write_bytes(gzip.compress(b'{"supervisions": []}\n'))
    with pytest.raises(UserError, match=r"cuts\.jsonl\.gz: no sentence to choose"):
        mix_language_models(*files, device="cpu")
