"""Criteria on random lattices: path by path, and what must hold of any scores."""

import numpy as np
import pytest
import torch
from fixtures.small_model import SILENCE, small_model
from hypothesis import assume, given
from hypothesis import strategies as st
from reference.lattice_paths import lattices

from latflow.criteria import enumeration
from latflow.criteria.criterion import Utterance
from latflow.criteria.options import (
    MbrOptions,
    MmiOptions,
    MweOptions,
    PhoneMpeOptions,
    TeacherOptions,
)
from latflow.criteria.registry import make_criterion
from latflow.lattice.phone_arcs import expand, phones_of_alignment

MODEL = small_model()
random_lattices = lattices(4, impossible=0.1, num_ids=MODEL.num_transition_ids)
seeds = st.integers(0, 2**32 - 1)
scales = st.fixed_dictionaries(
    {
        "acoustic_scale": st.sampled_from([0.1, 1.0, 3.0]),
        "lm_scale": st.sampled_from([0.0, 0.5, 1.0]),
    }
)


def some_scores(lattice, seed):
    """Scores, and an alignment near some path of the lattice."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 2, (lattice.num_frames, MODEL.num_pdfs))
    # The acoustic costs of the file do not matter; those of inf become possible.
    paths = enumeration.list_paths(lattice)
    assume(paths)
    alignment = np.array(paths[int(rng.integers(len(paths)))].ids, np.int32)
    for t in np.flatnonzero(rng.random(len(alignment)) < rng.choice([0.0, 0.5])):
        alignment[t] = rng.integers(1, MODEL.num_transition_ids + 1)
    return torch.from_numpy(scores).requires_grad_(), alignment


NO_WORDS = np.zeros(0, np.int32)


def statistics_of(criterion, scores, lattice, alignment, teacher=None, words=NO_WORDS):
    """The statistics of a criterion."""
    scores = scores.detach().numpy()
    gradient = np.zeros_like(scores)
    utterance = Utterance(scores, lattice, alignment, words, teacher)
    return criterion.evaluate(utterance, gradient).statistics


def check(options, scores, lattice, alignment, words=NO_WORDS, teacher=None):
    """Values and gradients are those over paths; the criterion and its value."""
    criterion = make_criterion(options, MODEL, SILENCE)
    given = {} if teacher is None else {"teacher": teacher.detach().numpy()}
    ours = criterion(scores, lattice, alignment, words, **given)
    naive = enumeration.value_over_paths(
        criterion, scores, lattice, alignment, words, teacher=teacher
    )
    assert_same(ours, naive, scores)
    return criterion, ours.item()


def assert_same(ours, naive, scores):
    """Values and gradients are those over paths."""
    np.testing.assert_allclose(ours.item(), naive.item(), atol=1e-9)
    (found,) = torch.autograd.grad(ours, scores)
    (expected,) = torch.autograd.grad(naive, scores, allow_unused=True)
    if expected is None:
        expected = torch.zeros_like(found)
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.slow
@given(
    lattice=random_lattices,
    seed=seeds,
    scales=scales,
    absent=st.sampled_from(["keep", "drop", "add"]),
    drop_by=st.sampled_from(["pdf", "transition_id"]),
    boost=st.sampled_from([0.0, 0.7]),
    silence_error=st.sampled_from([0.0, 1.0]),
)
def test_mmi_over_paths(lattice, seed, scales, absent, drop_by, boost, silence_error):
    scores, alignment = some_scores(lattice, seed)
    options = MmiOptions(
        **scales,
        absent_numerator=absent,
        drop_by=drop_by,
        boost=boost,
        max_silence_error=silence_error,
    )
    _, value = check(options, scores, lattice, alignment)
    if absent == "add" and scales["lm_scale"] == 0.0:
        assert value <= 1e-9


@given(
    lattice=random_lattices,
    seed=seeds,
    scales=scales,
    absent=st.sampled_from(["keep", "drop", "add"]),
    boost=st.sampled_from([0.0, 0.7]),
    is_there=st.booleans(),
)
def test_mmi_of_words_over_paths(lattice, seed, scales, absent, boost, is_there):
    scores, alignment = some_scores(lattice, seed)
    said = enumeration.list_paths(lattice)[0].words if is_there else (3, 99)
    words = np.array(said, np.int32)
    given = {"numerator": "words", "absent_numerator": absent, "boost": boost}
    options = MmiOptions(**scales, **given)
    criterion, value = check(options, scores, lattice, alignment, words)
    found = statistics_of(criterion, scores, lattice, alignment, words=words)
    assert found["numerators_of_words"] == (lattice.num_frames if is_there else 0)
    if is_there:
        assert value <= 1e-9
        assert found["dropped_frames"] == 0


@given(
    lattice=random_lattices,
    seed=seeds,
    scales=scales,
    criterion=st.sampled_from(["smbr", "mpfe", "mpe"]),
    one_silence_class=st.booleans(),
)
def test_frame_risks_over_paths(lattice, seed, scales, criterion, one_silence_class):
    scores, alignment = some_scores(lattice, seed)
    options = MbrOptions(type=criterion, one_silence_class=one_silence_class, **scales)
    _, value = check(options, scores, lattice, alignment)
    assert -1e-9 <= value <= lattice.num_frames + 1e-9


@given(lattice=random_lattices, seed=seeds, scales=scales, ignores=st.booleans())
def test_phone_errors_over_paths(lattice, seed, scales, ignores):
    scores, alignment = some_scores(lattice, seed)
    options = PhoneMpeOptions(ignore_silence=ignores, **scales)
    criterion, _ = check(options, scores, lattice, alignment)
    said = [
        phone
        for phone, *_ in enumeration.phones_of(alignment.tolist(), MODEL)
        if phone not in SILENCE or not ignores
    ]
    statistics = statistics_of(criterion, scores, lattice, alignment)
    assert statistics["reference_phones"] == len(said)


@given(lattice=random_lattices, seed=seeds, scales=scales, n=st.integers(2, 6))
def test_word_errors_over_paths(lattice, seed, scales, n):
    # Without graph costs word sequences tie where their pdfs are the same.
    scales = {**scales, "lm_scale": scales["lm_scale"] or 0.5}
    scores, alignment = some_scores(lattice, seed)
    words = np.random.default_rng(seed).integers(1, 3, 2).astype(np.int32)
    options = MweOptions(num_paths=n, **scales)
    check(options, scores, lattice, alignment, words)


@given(lattice=random_lattices, seed=seeds, scales=scales)
def test_teacher_over_paths(lattice, seed, scales):
    scores, alignment = some_scores(lattice, seed)
    teacher = torch.from_numpy(
        np.random.default_rng(seed + 1).normal(size=scores.shape)
    )
    options = TeacherOptions(teacher="any", **scales, teacher_scale=0.7)
    given = scores, lattice, alignment
    criterion, value = check(options, *given, teacher=teacher)
    statistics = statistics_of(criterion, *given, teacher.numpy())
    assert value <= -statistics["teacher_entropy"] + 1e-9


@given(lattice=random_lattices, seed=seeds)
def test_a_teacher_teaches_itself_nothing(lattice, seed):
    scores, alignment = some_scores(lattice, seed)
    options = TeacherOptions(teacher="any", acoustic_scale=0.5, teacher_scale=0.5)
    criterion, teacher = make_criterion(options, MODEL, ()), scores.detach().numpy()
    value = criterion(scores, lattice, alignment, NO_WORDS, teacher=teacher)
    statistics = statistics_of(criterion, scores, lattice, alignment, teacher)
    assert value.item() == pytest.approx(-statistics["teacher_entropy"], abs=1e-9)
    (gradient,) = torch.autograd.grad(value, scores)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-12)


@given(lattice=random_lattices, seed=seeds)
def test_frames_have_no_scale_of_their_own(lattice, seed):
    """A constant added to a frame's scores changes nothing: gradients sum to 0."""
    scores, alignment = some_scores(lattice, seed)
    for options in (
        MmiOptions(absent_numerator="keep"),
        MbrOptions(type="smbr"),
        PhoneMpeOptions(),
        MweOptions(),
    ):
        criterion = make_criterion(options, MODEL, SILENCE)
        value = criterion(scores, lattice, alignment, alignment)
        (gradient,) = torch.autograd.grad(value, scores)
        np.testing.assert_allclose(gradient.sum(1), 0.0, atol=1e-9)


@given(ids=st.lists(st.integers(1, MODEL.num_transition_ids), min_size=1, max_size=12))
def test_phones_of_a_path(ids):
    found = phones_of_alignment(np.array(ids, np.int32), MODEL)
    expected = enumeration.phones_of(ids, MODEL)
    assert list(zip(*(part.tolist() for part in found), strict=True)) == expected


@given(lattice=random_lattices, seed=seeds)
def test_expansion_keeps_all_paths(lattice, seed):
    """Ways through the expansion are the ways through the lattice, arc by arc."""
    phones = expand(lattice, MODEL)
    end = len(phones.arc_begin) - 2

    def ways(state, arcs):
        if state == end:
            return [arcs]
        found = []
        for m in range(phones.arc_begin[state], phones.arc_begin[state + 1]):
            assert phones.next_state[m] > state
            found += ways(int(phones.next_state[m]), (*arcs, int(phones.arc[m])))
        return found

    def lattice_ways(state, arcs):
        found = []
        if np.isfinite(lattice.final_graph_cost[state]):
            found.append((*arcs, lattice.num_arcs + state))
        for arc in range(lattice.arc_begin[state], lattice.arc_begin[state + 1]):
            found += lattice_ways(int(lattice.next_state[arc]), (*arcs, arc))
        return found

    assert sorted(ways(0, ())) == sorted(lattice_ways(0, ()))
