import math

import pytest

from latflow.lattice.edit_distance import ErrorCounts, align_words, count_errors


def test_pairs_by_hand():
    # ref: one two --- three
    # hyp: one --- too three      (Levenshtein: one substitution is cheaper)
    aligned = align_words(["one", "two", "three"], ["one", "too", "three"])
    assert aligned.pairs == (("one", "one"), ("two", "too"), ("three", "three"))
    assert aligned.counts == ErrorCounts(ins=0, del_=0, sub=1, words=3)


@pytest.mark.parametrize(
    ("ref", "hyp", "expected"),
    [
        ("", "", (0, 0, 0, 0)),
        ("a", "", (0, 1, 0, 1)),
        ("", "a b", (2, 0, 0, 0)),
        ("a b c", "a c", (0, 1, 0, 3)),
        ("a c", "a b c", (1, 0, 0, 2)),
    ],
)
def test_counts_by_hand(ref, hyp, expected):
    assert count_errors(ref.split(), hyp.split()) == ErrorCounts(*expected)


def test_ties_go_as_in_compute_wer():
    # "ab" against "ba" costs 2 as two substitutions or as one insertion and one
    # deletion; Kaldi takes a pair only where it is strictly cheapest.
    assert count_errors("ab", "ba") == ErrorCounts(ins=1, del_=1, sub=0, words=2)
    assert count_errors("ab", "cd") == ErrorCounts(ins=0, del_=0, sub=2, words=2)


def test_sclite_prefers_gaps_to_many_substitutions():
    # Four substitutions cost 16; two deletions, two matches, two insertions 12.
    assert count_errors("aabc", "bcdd", rule="sclite").sub == 0


def test_rate_and_sum():
    counts = ErrorCounts(1, 2, 3, 12) + ErrorCounts(0, 0, 0, 8)
    assert counts.wer == 30.0
    assert counts.correct == 15
    assert math.isnan(ErrorCounts(ins=2).wer)
