"""Criteria on random lattices: path by path, and what must hold of any scores."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from reference.lattice_paths import lattices
from reference.small_model import SILENCE, small_model

from latflow.criteria import enumeration
from latflow.criteria.mbr import MbrOptions, mbr
from latflow.criteria.mmi import MmiOptions, mmi
from latflow.criteria.mpe import MpeOptions, mpe
from latflow.criteria.mwe import MweOptions, mwe
from latflow.criteria.phone_arcs import expand, phones_of_alignment
from latflow.criteria.teacher import TeacherOptions, teacher_student

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


def assert_same(ours, naive, scores):
    """Values and gradients are those over paths."""
    np.testing.assert_allclose(ours.item(), naive.item(), atol=1e-9)
    (found,) = torch.autograd.grad(ours, scores)
    (expected,) = torch.autograd.grad(naive, scores, allow_unused=True)
    if expected is None:
        expected = torch.zeros_like(found)
    np.testing.assert_allclose(found, expected, atol=1e-9)


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
        absent=absent,
        drop_by=drop_by,
        boost=boost,
        max_silence_error=silence_error,
        silence_phones=SILENCE,
    )
    ours = mmi(scores, lattice, alignment, MODEL, options)
    naive = enumeration.naive_mmi(scores, lattice, alignment, MODEL, options)
    assert_same(ours.objective, naive, scores)
    if absent == "add" and scales["lm_scale"] == 0.0:
        assert ours.objective.item() <= 1e-9


@given(
    lattice=random_lattices,
    seed=seeds,
    scales=scales,
    criterion=st.sampled_from(["smbr", "mpfe", "mpe"]),
    one_silence_class=st.booleans(),
)
def test_frame_risks_over_paths(lattice, seed, scales, criterion, one_silence_class):
    scores, alignment = some_scores(lattice, seed)
    options = MbrOptions(criterion, SILENCE, one_silence_class, **scales)
    ours = mbr(scores, lattice, alignment, MODEL, options)
    naive = enumeration.naive_mbr(scores, lattice, alignment, MODEL, options)
    assert_same(ours.objective, naive, scores)
    assert -1e-9 <= ours.objective.item() <= lattice.num_frames + 1e-9


@given(lattice=random_lattices, seed=seeds, scales=scales, ignores=st.booleans())
def test_phone_errors_over_paths(lattice, seed, scales, ignores):
    scores, alignment = some_scores(lattice, seed)
    options = MpeOptions(SILENCE, ignore_silence=ignores, **scales)
    ours = mpe(scores, lattice, alignment, MODEL, options)
    naive = enumeration.naive_mpe(scores, lattice, alignment, MODEL, options)
    assert_same(ours.objective, naive, scores)
    said = [
        phone
        for phone, *_ in enumeration.phones_of(alignment.tolist(), MODEL)
        if phone not in SILENCE or not ignores
    ]
    assert ours.statistics["reference_phones"] == len(said)


@given(lattice=random_lattices, seed=seeds, scales=scales, n=st.integers(1, 6))
def test_word_errors_over_paths(lattice, seed, scales, n):
    # Without graph costs word sequences tie where their pdfs are the same.
    scales = {**scales, "lm_scale": scales["lm_scale"] or 0.5}
    scores, alignment = some_scores(lattice, seed)
    words = np.random.default_rng(seed).integers(1, 3, 2).astype(np.int32)
    options = MweOptions(num_paths=n, **scales)
    ours = mwe(scores, lattice, alignment, words, MODEL, options)
    naive = enumeration.naive_mwe(scores, lattice, words.tolist(), MODEL, options)
    assert_same(ours.objective, naive, scores)


@given(lattice=random_lattices, seed=seeds, scales=scales)
def test_teacher_over_paths(lattice, seed, scales):
    scores, _ = some_scores(lattice, seed)
    teacher = torch.from_numpy(
        np.random.default_rng(seed + 1).normal(size=scores.shape)
    )
    options = TeacherOptions(**scales, teacher_scale=0.7)
    ours = teacher_student(scores, teacher, lattice, MODEL, options)
    naive = enumeration.naive_teacher(scores, teacher, lattice, MODEL, options)
    assert_same(ours.objective, naive, scores)
    assert ours.objective.item() <= -ours.statistics["teacher_entropy"] + 1e-9


@given(lattice=random_lattices, seed=seeds)
def test_a_teacher_teaches_itself_nothing(lattice, seed):
    scores, _ = some_scores(lattice, seed)
    options = TeacherOptions(acoustic_scale=0.5, teacher_scale=0.5)
    result = teacher_student(scores, scores, lattice, MODEL, options)
    assert result.objective.item() == pytest.approx(
        -result.statistics["teacher_entropy"], abs=1e-9
    )
    (gradient,) = torch.autograd.grad(result.objective, scores)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-12)


@given(lattice=random_lattices, seed=seeds)
def test_frames_have_no_scale_of_their_own(lattice, seed):
    """A constant added to a frame's scores changes nothing: gradients sum to 0."""
    scores, alignment = some_scores(lattice, seed)
    for result in (
        mmi(scores, lattice, alignment, MODEL, MmiOptions(absent="keep")),
        mbr(scores, lattice, alignment, MODEL, MbrOptions("smbr", SILENCE)),
        mpe(scores, lattice, alignment, MODEL, MpeOptions(SILENCE)),
        mwe(scores, lattice, alignment, alignment, MODEL, MweOptions()),
    ):
        (gradient,) = torch.autograd.grad(result.objective, scores)
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
