"""Labels of CTC, graphs of transcripts, and the HMMs that decode them."""

import itertools
import json

import numpy as np
import pytest
from reference.supervision_naive import total_cost

from latflow.align.ctc import (
    BLANK,
    CtcCompiler,
    CtcGraphs,
    build_ctc_tree,
    compile_ctc,
    ctc_system,
)
from latflow.criteria.numerator import numerator_posteriors
from latflow.features.frames import FrameWriter
from latflow.graphs.hclg import load_model
from latflow.graphs.training import TrainingGraphCompiler
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang
from latflow.ledger import read_ledger

LEXICON = "OX K S\nOX K\nSO S K\n<UNK> SPN\n"


@pytest.fixture(scope="module", params=[True, False], ids=["positions", "plain"])
def lang(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("ctc")
    (root / "lexicon.txt").write_text(LEXICON)
    options = LangOptions(position_dependent_phones=request.param)
    make_lang(root / "lexicon.txt", root / "lang", options=options)
    return Lang.load(root / "lang")


def label(lang, phone):
    """The label of a phone."""
    tree, _ = ctc_system(lang)
    [number] = {
        tree.pdf([n], 0) for n in lang.topology.phones if lang.base_phone(n) == phone
    }
    return number


def sequences(lang, text):
    """Label sequences of a text."""
    spelled = {"OX": ["KS", "K"], "SO": ["SK"]}
    return {
        tuple(label(lang, phone) for word in words for phone in word)
        for words in itertools.product(*(spelled[word] for word in text.split()))
    }


def read(frames):
    return tuple(label for label, _ in itertools.groupby(frames) if label != BLANK)


def accepts(graph, frames):
    scores = np.full((len(frames), graph.ilabel.max()), -1000.0)
    scores[np.arange(len(frames)), frames] = 0.0
    return numerator_posteriors(scores, graph) > -500.0


def test_all_variants_of_a_phone_are_a_label_and_silence_is_none(lang):
    tree, transitions = ctc_system(lang)
    assert {label(lang, phone) for phone in ("K", "S", "SPN")} == {1, 2, 3}
    assert label(lang, "SIL") == BLANK
    assert tree.num_pdfs == transitions.num_pdfs == 4


@pytest.mark.slow
@pytest.mark.parametrize("text", ["OX SO", "SO OX", "OX"])
@pytest.mark.parametrize("num_frames", [2, 4, 5])
def test_graph_has_each_frame_sequence_once(lang, text, num_frames):
    graph = CtcCompiler(lang).compile(lang.words_to_ids(text))
    wanted = [
        frames
        for frames in itertools.product(range(4), repeat=num_frames)
        if read(frames) in sequences(lang, text)
    ]
    for frames in wanted:
        assert accepts(graph, frames)
    cost = total_cost(graph, num_frames)
    assert cost == pytest.approx(-np.log(len(wanted)) if wanted else np.inf)


@pytest.mark.parametrize("text", ["OX SO", "SO OX"])
def test_hmms_read_what_ctc_does(lang, text):
    """But for equal labels in a row, which need no blank between them."""
    graphs = TrainingGraphCompiler(lang, *ctc_system(lang))
    _, model = ctc_system(lang)
    graph = graphs.compile(lang.words_to_ids(text))
    pdfs = np.where(graph.ilabel > 0, model.pdf[graph.ilabel] + 1, 0)
    strict = CtcCompiler(lang).compile(lang.words_to_ids(text))
    for frames in itertools.product(range(3), repeat=5):
        is_read = _is_path(graph, pdfs, frames)
        assert is_read or not accepts(strict, frames)
        if not is_read or accepts(strict, frames):
            continue
        shortened = {read(labels) for labels in sequences(lang, text)}
        assert read(frames) in shortened - sequences(lang, text)


def _is_path(graph, labels, frames):
    """Whether a graph with epsilons has a path of these pdfs."""
    sources = graph.sources()

    def closed(states):
        while True:
            more = set(graph.next_state[np.isin(sources, [*states]) & (labels == 0)])
            if more <= states:
                return states
            states |= more

    states = closed({graph.start})
    for pdf in frames:
        arcs = np.isin(sources, [*states]) & (labels == pdf + 1)
        states = closed(set(graph.next_state[arcs]))
    return bool(np.isfinite(graph.final[[*states]]).any()) if states else False


def test_stages(lang, tmp_path):
    with FrameWriter(tmp_path / "frames", dim=2) as writer:
        writer.append("empty", "s", "", np.zeros((9, 2), np.float32))
        writer.append("short", "s", "SO OX SO", np.zeros((15, 2), np.float32))
        writer.append("whole", "s", "SO OX SO", np.zeros((16, 2), np.float32))
    out = tmp_path / "graphs"
    compile_ctc(tmp_path / "frames", lang.folder, out, subsampling=3)
    store = CtcGraphs.load(out)
    assert store.utt_ids == ["whole"]
    assert (store.subsampling, store.num_classes) == (3, 4)
    assert store.num_frames.tolist() == [6]
    reasons = {e.utterance: e.reason for e in read_ledger(out / "ledger.jsonl")}
    assert reasons == {
        "empty": "the transcript is empty",
        "short": "has 5 frames, its labels need 6",
    }
    build_ctc_tree(lang.folder, tmp_path / "tree")
    tree, transitions = load_model(tmp_path / "tree")
    assert tree.num_pdfs == transitions.num_pdfs == 4
    info = json.loads((tmp_path / "tree/info.json").read_text())
    assert info["labels"][0] == "SIL"
    assert sorted(info["labels"][1:]) == ["K", "S", "SPN"]
