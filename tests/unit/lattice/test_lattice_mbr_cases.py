"""Minimum Bayes risk worked out by hand; sausages; CTM lines."""

from dataclasses import replace

import numpy as np
import pytest

from latflow.corpus.ctm import ctm_line
from latflow.errors import UserError
from latflow.lattice.lattice import CompactLattice, Strings
from latflow.lattice.mbr import minimum_bayes_risk
from latflow.scoring.transcripts import timed_words


def compact(rows, num_states, frames=2):
    """A compact lattice of (source, target, word, probability) with equal strings."""
    arcs = np.array([row[:3] for row in rows], np.int32)
    costs = np.array([(-np.log(row[3]), 0) for row in rows], np.float32)
    ids = np.ones(frames * len(rows), np.int32)
    strings = Strings(np.arange(len(rows) + 1) * frames, ids)
    finals = np.full((num_states, 2), np.inf, np.float32)
    finals[-1] = 0.0
    return CompactLattice.from_arcs(arcs, costs, strings, finals)


@pytest.fixture
def lattice():
    # Three sentences: "1 4" 0.4, "2 3" 0.3, "2 5" 0.3, each word two frames.
    return compact(
        [
            (0, 1, 1, 0.4),
            (0, 2, 2, 0.6),
            (1, 3, 4, 1.0),
            (2, 3, 3, 0.5),
            (2, 3, 5, 0.5),
        ],
        4,
    )


def test_the_best_sentence_need_not_have_the_fewest_word_errors(lattice):
    # "1 4": expected errors 1.2; "2 4": 0.4 * 1 + 0.6 * 1 = 1.0
    kept = minimum_bayes_risk(lattice, decode_mbr=False)
    assert kept.words.tolist() == [1, 4]
    assert kept.risk == pytest.approx(1.2, abs=1e-6)
    assert kept.confidence == pytest.approx([0.4, 0.4])
    found = minimum_bayes_risk(lattice)
    assert found.words.tolist() == [2, 4]
    assert found.risk == pytest.approx(1.0, abs=1e-6)
    assert found.confidence == pytest.approx([0.6, 0.4])
    assert found.begin.tolist() == [0.0, 2.0]
    assert found.end.tolist() == [2.0, 4.0]
    assert len(found.risks) == 2


def test_bins(lattice):
    sausage = minimum_bayes_risk(lattice).sausage
    assert sausage.num_bins == 5
    assert sausage.bin(1) == [(2, pytest.approx(0.6)), (1, pytest.approx(0.4))]
    assert sausage.bin(3) == [
        (4, pytest.approx(0.4)),
        (5, pytest.approx(0.3)),  # of equally likely ones the higher id, as in Kaldi
        (3, pytest.approx(0.3)),
    ]
    assert sausage.bin(0) == [(0, pytest.approx(1.0))]
    words = np.array([0, 1, 0, 9, 0], np.int32)
    assert (sausage.entries_of(words) >= 0).tolist() == [True, True, True, False, True]


def test_given_words_get_confidences(lattice):
    found = minimum_bayes_risk(lattice, words=[1, 9], decode_mbr=False)
    assert found.words.tolist() == [1, 9]
    assert found.confidence == pytest.approx([0.4, 0.0])
    assert found.end.tolist() == [2.0, 4.0]
    with pytest.raises(UserError, match="word 0"):
        minimum_bayes_risk(lattice, words=[1, 0])


def test_silence_is_listed_when_asked_for():
    lattice = compact([(0, 1, 0, 1.0), (1, 2, 7, 1.0)], 3)
    found = minimum_bayes_risk(lattice, print_silence=True)
    assert found.words.tolist() == [0, 7, 0]
    assert found.confidence == pytest.approx([1.0, 1.0, 1.0])
    assert found.begin.tolist() == [0.0, 2.0, 4.0]
    assert found.end.tolist() == [2.0, 4.0, 4.0]
    assert minimum_bayes_risk(lattice).words.tolist() == [7]


def test_scales_sharpen_the_posteriors(lattice):
    costs = lattice.graph_cost
    lattice = replace(lattice, graph_cost=0 * costs, acoustic_cost=costs)
    flat = minimum_bayes_risk(lattice, acoustic_scale=0.0, decode_mbr=False)
    sharp = minimum_bayes_risk(lattice, acoustic_scale=20.0, words=[2, 3])
    assert flat.sausage.posterior.max() == pytest.approx(1.0)
    assert sorted(flat.confidence) == pytest.approx([1 / 3, 1 / 3])
    assert sharp.confidence.max() > 0.99


def test_a_lattice_of_silence_has_no_words():
    found = minimum_bayes_risk(compact([(0, 1, 0, 1.0)], 2))
    assert len(found.words) == len(found.confidence) == 0
    assert found.risk == 0.0
    assert found.sausage.num_bins == 1


def test_no_path(lattice):
    lost = replace(lattice, final_graph_cost=np.full(4, np.inf, np.float32))
    with pytest.raises(UserError, match="without a path to a final state"):
        minimum_bayes_risk(lost)


def test_ctm_lines_have_confidences(lattice):
    found = minimum_bayes_risk(lattice)
    names = {0: "<eps>", 2: "two", 4: "four"}
    words = timed_words("utt", found, names, frame_shift=0.01)
    assert [ctm_line(word) for word in words] == [
        "utt 1 0.000 0.020 two 0.600\n",
        "utt 1 0.020 0.020 four 0.400\n",
    ]
    with pytest.raises(UserError, match=r"utt: word id 4 is not in words\.txt"):
        timed_words("utt", found, {2: "two"}, frame_shift=0.01)
