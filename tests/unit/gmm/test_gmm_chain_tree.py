"""Tree and graphs of a network for lattice-free MMI, from made-up speech."""

import json
import shutil

import numpy as np
import pytest
from fixtures.adapted_system import (
    LEXICON,
    LIMITS,
    SHARED,
    system_options,
    write_frames,
)

from latflow.errors import UserError
from latflow.gmm.alignment import align_gmm
from latflow.gmm.chain_tree import build_chain_tree
from latflow.gmm.model import GmmSystem
from latflow.gmm.source import SpeakerTransforms
from latflow.gmm.train import MonoJob, train_mono
from latflow.graphs.chain import ChainGraphs
from latflow.graphs.hclg import load_model
from latflow.graphs.options import ChainTreeOptions, GraphOptions, PhoneLmOptions
from latflow.hmm.alignment import segments, subsampled_lengths
from latflow.hmm.topology import chain_topology
from latflow.kaldi.io import read_int_vectors, write_int_vectors
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang
from latflow.ledger import read_ledger
from latflow.parts import SetJob

OPTIONS = ChainTreeOptions(
    num_leaves=24, split_threshold=5.0, phone_lm=PhoneLmOptions(num_extra_lm_states=4)
)
FILES = ["tree", "final.mdl", "phone_lm.fst", "den.fst", "normalization.fst"]


@pytest.fixture(scope="module")
def systems(tmp_path_factory, repository):
    """A folder with frames, lang, a monophone system and its alignments."""
    root, options = tmp_path_factory.mktemp("systems"), system_options(repository)
    write_frames(root / "frames")
    (root / "lexicon.txt").write_text(LEXICON)
    make_lang(root / "lexicon.txt", root / "lang", options=LangOptions())
    frames, lang, mono = root / "frames", root / "lang", root / "mono"
    train_mono(
        MonoJob(
            frames_dir=frames,
            lang_dir=lang,
            out_dir=mono,
            options=options["mono"],
            shared=SHARED,
            threads=1,
        )
    )
    align_gmm(
        SetJob(
            frames_dir=frames,
            lang_dir=lang,
            model_dir=mono,
            out_dir=root / "ali",
            **LIMITS,
        ),
        options=options["align"],
        graph=GraphOptions(),
    )
    return root


def build(
    systems,
    out,
    *,
    options=OPTIONS,
    ali="ali",
    system="mono",
    transforms=None,
    threads=1,
):
    build_chain_tree(
        systems / "frames",
        systems / "lang",
        systems / ali / "ali.ark",
        systems / system,
        transforms,
        out,
        options=options,
        threads=threads,
    )


@pytest.fixture(scope="module")
def built(systems, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain") / "tdnn"
    build(systems, folder)
    return folder


def phones_of(systems, ali="ali", system="mono"):
    model = GmmSystem.load(systems / system).model.transitions
    for utterance, ids in read_int_vectors(systems / ali / "ali.ark"):
        phones, _, lengths = segments(ids, model)
        yield utterance, phones, lengths


def least_cost(graph, labels):
    scores = np.full(graph.num_states, np.inf)
    scores[graph.start] = 0.0
    for label in labels:
        after = np.full(graph.num_states, np.inf)
        arcs = np.flatnonzero(graph.ilabel == label)
        reached = scores[graph.sources()[arcs]] + graph.weight[arcs]
        np.minimum.at(after, graph.next_state[arcs], reached)
        scores = after
    return (scores + graph.final).min()


def test_tree_and_transitions_are_of_one_state_a_phone(systems, built):
    tree, transitions = load_model(built)
    lang = Lang.load(systems / "lang")
    assert transitions.topology == chain_topology(lang.topology.phones)
    assert (tree.context_width, tree.central_position) == (2, 1)
    assert tree.num_pdfs == transitions.num_pdfs
    names = {name: number for number, name in lang.phones.items()}
    aa, b = names["AA_B"], names["B_E"]
    assert tree.pdf((0, aa), 0) != tree.pdf((0, b), 0)


def test_the_denominator_holds_every_training_utterance(systems, built):
    tree, _ = load_model(built)
    graphs = ChainGraphs.read(built)
    for _, phones, lengths in phones_of(systems):
        kept = subsampled_lengths(lengths, np.ones_like(lengths), 3)
        labels, before = [], 0
        for phone, length in zip(phones.tolist(), kept.tolist(), strict=True):
            first, more = (tree.pdf((before, phone), c) + 1 for c in (0, 1))
            labels += [first, *[more] * (length - 1)]
            before = phone
        assert np.isfinite(least_cost(graphs.denominator, labels))
        assert np.isfinite(least_cost(graphs.normalization, labels[5:12]))


def test_sizes_are_those_of_the_files(systems, built):
    info = json.loads((built / "info.json").read_text())
    graphs = ChainGraphs.read(built)
    frames = sum(-(-lengths.sum() // 3) for _, _, lengths in phones_of(systems))
    assert info["tree_frames"] == frames
    assert info["num_pdfs"] == load_model(built)[0].num_pdfs
    assert info["denominator_states"] == graphs.denominator.num_states
    assert info["denominator_arcs"] == graphs.denominator.num_arcs
    assert info["options"] == OPTIONS.values()
    (entry,) = read_ledger(built / "ledger.jsonl")
    missing = info["num_pdfs"] - info["pdfs_in_denominator"]
    assert entry.action == "noted"
    assert entry.reason.startswith(f"{missing} of {info['num_pdfs']} pdfs are not in")


def test_threads_change_no_byte(systems, built, tmp_path):
    build(systems, tmp_path, threads=3)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (built / name).read_bytes()


def test_utterances_with_more_phones_than_frames_are_left_out(systems, tmp_path):
    sizes = {
        u: (lengths.sum(), len(phones)) for u, phones, lengths in phones_of(systems)
    }
    # where one frame in this many is left, half of the utterances have too few
    factor = int(np.median([frames / (count - 1) for frames, count in sizes.values()]))
    options = OPTIONS.model_copy(update={"frame_subsampling": factor})
    build(systems, tmp_path, options=options)
    entries = read_ledger(tmp_path / "ledger.jsonl")
    skipped = {entry.utterance for entry in entries if entry.action == "skipped"}
    wanted = {u for u, (frames, count) in sizes.items() if -(-frames // factor) < count}
    assert skipped == wanted
    assert 0 < len(wanted) < 24


def test_nothing_left_to_train_on_is_refused(systems, tmp_path):
    short = systems / "short"
    short.mkdir()
    frames = {u: lengths.sum() for u, _, lengths in phones_of(systems)}
    ids = dict(read_int_vectors(systems / "ali/ali.ark"))
    write_int_vectors(short / "ali.ark", [("unknown", ids[min(frames)])])
    with pytest.raises(UserError, match="no utterance of the training data is aligned"):
        build(systems, tmp_path / "tdnn", ali="short")
    assert not (tmp_path / "tdnn").exists()


def test_an_adapted_system_needs_its_transforms(systems, built, tmp_path):
    adapted = tmp_path / "sat"
    shutil.copytree(systems / "mono", adapted)
    shutil.copy(adapted / "final.mdl", adapted / "final.alimdl")
    with pytest.raises(UserError, match="no transforms are given"):
        build(systems, tmp_path / "tdnn", system=adapted)
    dim = GmmSystem.load(adapted).model.gmms.dim
    nothing = np.zeros((dim, dim + 1), np.float32)
    SpeakerTransforms({f"s{n}": nothing for n in range(3)}).save(tmp_path / "trans.ark")
    transforms = tmp_path / "trans.ark"
    build(systems, tmp_path / "tdnn", system=adapted, transforms=transforms)
    # frames that are all alike ask for no splits
    num_pdfs = load_model(tmp_path / "tdnn")[0].num_pdfs
    assert num_pdfs < load_model(built)[0].num_pdfs
