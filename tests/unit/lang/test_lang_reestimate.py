"""Pronunciation and silence probabilities from alignments: formulas, L, whole stage."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latflow.align.reestimate import (
    estimate_pronunciations,
    estimate_silence,
    reestimate_lexicon,
)
from latflow.errors import UserError
from latflow.features.frames import FrameWriter
from latflow.fst.graph import Graph
from latflow.graphs.hclg import load_model
from latflow.graphs.training import TrainingGraphCompiler
from latflow.kaldi.io import write_int_vectors
from latflow.lang.directory import Lang
from latflow.lang.lexicon import Pronunciation
from latflow.lang.lexicon_fst import silence_lexicon_fst
from latflow.lang.silence import SilenceModel, WordSilence

PHONES = {"<eps>": 0, "SIL": 1, "A": 2, "B": 3, "#1": 4, "#2": 5}
WORDS = {"<eps>": 0, "a": 1, "ab": 2}
ENTRIES = [Pronunciation("a", ("A",), 0.5), Pronunciation("ab", ("A", "B"))]
MODEL = SilenceModel(
    0.3, 0.6, 1.2, 0.7, (WordSilence(0.2, 1.5, 0.9), WordSilence(0.4, 0.8, 1.1))
)


def paths(graph, max_arcs=9):
    """(cost, input labels, output labels) of every path of few arcs."""
    source = np.repeat(np.arange(graph.num_states), np.diff(graph.arc_begin))
    found, stack = [], [(graph.start, 0.0, (), ())]
    while stack:
        state, cost, phones, words = stack.pop()
        if np.isfinite(graph.final[state]):
            found.append((cost + float(graph.final[state]), phones, words))
        for arc in np.flatnonzero(source == state) if len(phones) < max_arcs else ():
            i, o = int(graph.ilabel[arc]), int(graph.olabel[arc])
            stack.append((
                int(graph.next_state[arc]),
                cost + float(graph.weight[arc]),
                phones + ((i,) if i else ()),
                words + ((o,) if o else ()),
            ))  # fmt: skip
    return found


def cost_by_hand(words, silences):
    """Cost of a sentence: entry numbers; whether silence precedes, follows each."""
    start = MODEL.at_start
    total = -math.log(start if silences[0] else 1 - start)
    for k, word in enumerate(words):
        silence = MODEL.words[word]
        total -= math.log(ENTRIES[word].probability)
        before, after = silences[k], silences[k + 1]
        factor = silence.correction_silence if before else silence.correction_none
        total -= math.log(factor) + math.log(
            silence.after if after else 1 - silence.after
        )
    end = MODEL.end_correction_silence if silences[-1] else MODEL.end_correction_none
    return total - math.log(end)


@pytest.mark.parametrize("disambig", [None, "#2"])
def test_every_path_of_the_lexicon_costs_what_the_formula_says(disambig):
    fst = silence_lexicon_fst(
        ENTRIES, MODEL, PHONES, WORDS, silence_phone="SIL", silence_disambig=disambig
    )
    graph = Graph.from_fst(fst)
    found = {phones: (cost, words) for cost, phones, words in paths(graph)}
    silence = (1,) if disambig is None else (1, 5)
    for words in [(), (0,), (1,), (0, 1), (1, 0)]:
        for silences in itertools.product((False, True), repeat=len(words) + 1):
            phones = silence if silences[0] else ()
            for word, follows in zip(words, silences[1:], strict=True):
                phones += tuple(PHONES[p] for p in ENTRIES[word].phones)
                phones += silence if follows else ()
            if len(phones) <= 9:
                cost, said = found[phones]
                assert said == tuple(word + 1 for word in words)
                assert cost == pytest.approx(cost_by_hand(words, silences), rel=1e-5)


sentences = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=6),
    min_size=1,
    max_size=8,
)


@given(sentences, st.lists(st.booleans(), min_size=8, max_size=8))
def test_silence_is_counted_as_the_paper_says(spoken, starts):
    tokens, silent, pairs = [], [], []
    for sentence, start in zip(spoken, starts, strict=False):
        left = [(0, start), *((word + 2, follows) for word, follows in sentence)]
        right = [*(word + 2 for word, _ in sentence), 1]
        pairs += [(v, s, w) for (v, s), w in zip(left, right, strict=True)]
        tokens += [v for v, _ in left] + [1]
        silent += [s for _, s in left] + [False]
    model = estimate_silence(np.array(tokens, np.int32), np.array(silent), 4)
    overall = (sum(s for _, s, _ in pairs) + 1) / (len(pairs) + 2)
    assert model.overall == pytest.approx(overall)

    def after(v):
        mine = [s for left, s, _ in pairs if left == v]
        return (sum(mine) + 2 * overall) / (len(mine) + 2)

    for entry, silence in enumerate(model.words):
        mine = [(v, s) for v, s, w in pairs if w == entry + 2]
        assert silence.after == pytest.approx(after(entry + 2))
        expected = sum(after(v) for v, _ in mine)
        assert silence.correction_silence == pytest.approx(
            (sum(s for _, s in mine) + 2) / (expected + 2)
        )
        assert silence.correction_none == pytest.approx(
            (sum(not s for _, s in mine) + 2) / (len(mine) - expected + 2)
        )


def test_the_most_frequent_pronunciation_costs_nothing():
    entries = [*ENTRIES, Pronunciation("a", ("B",), 1.0)]
    found = estimate_pronunciations(entries, np.array([1, 0, 7]))
    assert [e.probability for e in found] == [0.25, 1.0, 1.0]


@pytest.fixture
def aligned(golden, tmp_path):
    """Golden alignments and transcripts as the stage finds them."""
    texts = dict(
        line.split(maxsplit=1)
        for line in (golden / "align/text").read_text().splitlines()
    )
    alignments = [
        (utterance, np.array(ids, np.int32))
        for utterance, *ids in map(
            str.split, (golden / "align/ali_tri1.txt").read_text().splitlines()
        )
    ]
    write_int_vectors(tmp_path / "ali.ark", alignments)
    with FrameWriter(tmp_path / "frames", dim=1) as writer:
        for utterance, ids in sorted(alignments):
            frames = np.zeros((len(ids), 1), np.float32)
            writer.append(utterance, "s", texts[utterance], frames)
    return tmp_path


def test_stage_writes_a_language_directory_that_compiles(aligned, golden):
    reestimate_lexicon(
        golden / "lang", aligned / "ali.ark", golden / "gmm/tri1",
        aligned / "frames", aligned / "lang",
    )  # fmt: skip
    old, new = Lang.load(golden / "lang"), Lang.load(aligned / "lang")
    new.validate()
    assert new.word_ids == old.word_ids
    assert new.lexicon.keys() == old.lexicon.keys()
    rows = (aligned / "lang/lexiconp_silprob.txt").read_text().splitlines()
    assert len(rows) == sum(map(len, new.lexicon.values()))
    tree, model = load_model(golden / "gmm/tri1")
    words = new.words_to_ids("ONE TWO")
    graphs = [
        TrainingGraphCompiler(lang, tree, model).compile(words) for lang in (old, new)
    ]
    assert graphs[0].num_final_states > 0
    assert graphs[1].num_final_states > 0
    assert not np.array_equal(graphs[0].weight, graphs[1].weight)


def test_alignments_of_other_words_are_refused(aligned, golden):
    with FrameWriter(aligned / "other", dim=1) as writer:
        writer.append("nobody", "s", "one", np.zeros((3, 1), np.float32))
    with pytest.raises(UserError, match="no utterance is aligned"):
        reestimate_lexicon(
            golden / "lang", aligned / "ali.ark", golden / "gmm/tri1",
            aligned / "other", aligned / "lang",
        )  # fmt: skip
