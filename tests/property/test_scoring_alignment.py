import kaldialign
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.edit_distance import cost, least_cost

from latflow.lattice.edit_distance import align_words, count_errors

words = st.lists(st.sampled_from("abcd"), max_size=12)
short = st.lists(st.sampled_from("abc"), max_size=5)
rules = pytest.mark.parametrize(
    ("rule", "substitution", "gap"), [("kaldi", 1, 1), ("sclite", 4, 3)]
)


@pytest.mark.parametrize("rule", ["kaldi", "sclite"])
@given(ref=words)
def test_identity_has_no_errors(rule, ref):
    counts = count_errors(ref, ref, rule=rule)
    assert (counts.errors, counts.correct, counts.words) == (0, len(ref), len(ref))


@pytest.mark.parametrize("rule", ["kaldi", "sclite"])
@given(ref=words, hyp=words)
def test_distance_is_symmetric_under_swap(rule, ref, hyp):
    def weighted(c):
        return c.sub * (4 if rule == "sclite" else 1) + (c.ins + c.del_) * (
            3 if rule == "sclite" else 1
        )

    there, back = count_errors(ref, hyp, rule=rule), count_errors(hyp, ref, rule=rule)
    assert weighted(there) == weighted(back)


@pytest.mark.parametrize("rule", ["kaldi", "sclite"])
@given(ref=words, hyp=words)
def test_insertions_less_deletions_is_the_length_difference(rule, ref, hyp):
    counts = count_errors(ref, hyp, rule=rule)
    assert counts.ins - counts.del_ == len(hyp) - len(ref)
    assert counts.correct + counts.sub + counts.ins == len(hyp)


@rules
@given(ref=short, hyp=short)
def test_matches_trying_every_alignment(rule, substitution, gap, ref, hyp):
    aligned = align_words(ref, hyp, rule=rule)
    price = cost(aligned.pairs, substitution=substitution, gap=gap)
    assert price == least_cost(ref, hyp, substitution=substitution, gap=gap)


@given(ref=words, hyp=words)
def test_pairs_spell_both_sides_and_give_the_counts(ref, hyp):
    aligned = align_words(ref, hyp)
    assert [a for a, _ in aligned.pairs if a is not None] == ref
    assert [b for _, b in aligned.pairs if b is not None] == hyp
    assert aligned.counts == count_errors(ref, hyp)
    assert aligned.counts.errors == sum(a != b for a, b in aligned.pairs)


@given(ref=words, hyp=words)
def test_agrees_with_kaldialign(ref, hyp):
    assert count_errors(ref, hyp).errors == kaldialign.edit_distance(ref, hyp)["total"]


@given(ref=words, hyp=words)
def test_ids_and_words_give_the_same(ref, hyp):
    ids = [np.array([ord(w) for w in s], dtype=np.int32) for s in (ref, hyp)]
    assert count_errors(*ids) == count_errors(ref, hyp)


@given(ref=words, hyp=words, more=words)
def test_appending_the_same_words_never_adds_errors(ref, hyp, more):
    longer = count_errors(ref + more, hyp + more)
    assert longer.errors <= count_errors(ref, hyp).errors
