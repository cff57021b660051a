"""Expected accuracy on random lattices: path by path, and as a derivative."""

from dataclasses import replace

import numpy as np
import pytest
from fixtures.small_model import SILENCE, small_model
from hypothesis import given
from hypothesis import strategies as st
from reference.lattice_paths import (
    enumerate_paths,
    frame_sums,
    lattices_with_a_path,
    path_posteriors,
)

from latflow.lattice.discriminative import arc_accuracies, expected_accuracy
from latflow.lattice.path_sums import forward_backward
from latflow.lattice.posteriors import posteriors

MODEL = small_model()
small_lattices = lattices_with_a_path(impossible=0.1, num_ids=MODEL.num_transition_ids)
settings = st.fixed_dictionaries(
    {
        "criterion": st.sampled_from(["smbr", "mpfe"]),
        "one_silence_class": st.booleans(),
        "silence_phones": st.sampled_from([SILENCE, [], [1, 2], [2, 99]]),
    }
)
seeds = st.integers(0, 2**32 - 1)


def some_alignment(lattice, seed):
    ids = np.random.default_rng(seed).integers(
        1, MODEL.num_transition_ids + 1, lattice.num_frames
    )
    return ids.astype(np.int32)


def is_right(heard, said, criterion, one_silence_class, silence_phones):
    """Whether a frame counts as right, in Kaldi's words."""
    phone, ref_phone = MODEL.phone[heard], MODEL.phone[said]
    is_silence = phone in silence_phones
    both_silence = is_silence and ref_phone in silence_phones
    if criterion == "smbr":
        is_same = MODEL.pdf[heard] == MODEL.pdf[said]
    else:
        is_same = phone == ref_phone
    return is_same or both_silence if one_silence_class else is_same and not is_silence


@given(lattice=small_lattices, seed=seeds, setting=settings)
def test_accuracy_is_the_mean_over_all_paths(lattice, seed, setting):
    alignment = some_alignment(lattice, seed)
    paths = enumerate_paths(lattice)
    _, shares = path_posteriors(paths, 2.0, 0.5)
    right = np.array(
        [
            sum(
                is_right(heard, said, **setting)
                for heard, said in zip(path.transition_ids, alignment, strict=True)
            )
            for path in paths
        ]
    )
    mean = float(np.dot(shares, right))
    found, weights = expected_accuracy(
        lattice, alignment, MODEL, **setting, lm_scale=2.0, acoustic_scale=0.5
    )
    assert found == pytest.approx(mean, abs=1e-9)
    expected = np.zeros((lattice.num_frames, MODEL.num_transition_ids + 1))
    for path, share, count in zip(paths, shares, right, strict=True):
        for t, tid in enumerate(path.transition_ids):
            expected[t, tid] += share * (count - mean)
    np.testing.assert_allclose(
        weights.to_matrix(expected.shape[1]), expected, atol=1e-6
    )
    np.testing.assert_allclose(frame_sums(weights), 0.0, atol=1e-9)


@given(lattice=small_lattices, seed=seeds, setting=settings)
def test_weights_are_the_derivative_of_the_accuracy(lattice, seed, setting):
    """Change the log-likelihood of one transition-id at one frame."""
    alignment = some_alignment(lattice, seed)
    source, emits = lattice.source(), lattice.transition_id != 0
    arc = int(np.flatnonzero(emits)[seed % emits.sum()])
    frame, tid = lattice.frame[source[arc]], lattice.transition_id[arc]
    touched = emits & (lattice.frame[source] == frame) & (lattice.transition_id == tid)
    scale, step = 0.5, 1e-4

    def run(change):
        acoustic = lattice.acoustic_cost.astype(np.float64)
        acoustic[touched] -= change
        changed = replace(lattice, acoustic_cost=acoustic)
        return expected_accuracy(
            changed, alignment, MODEL, **setting, acoustic_scale=scale
        )

    slope = (run(step)[0] - run(-step)[0]) / (2.0 * step)
    weight = dict(run(0.0)[1].frame(int(frame))).get(int(tid), 0.0)
    assert slope == pytest.approx(scale * weight, abs=1e-5)


@given(lattice=small_lattices, seed=seeds)
def test_without_silence_mpfe_accuracy_sums_posteriors_of_the_said_phones(
    lattice, seed
):
    alignment = some_alignment(lattice, seed)
    options = {"criterion": "mpfe", "silence_phones": []}
    found, _ = expected_accuracy(lattice, alignment, MODEL, **options)
    result = forward_backward(lattice)
    by_arc = arc_accuracies(lattice, alignment, MODEL, **options)
    assert set(by_arc) <= {0.0, 1.0}
    assert found == pytest.approx(result.arc_posterior @ by_arc, abs=1e-9)
    held = posteriors(lattice, result)
    said = MODEL.phone[alignment][held.frame_of_entry()]
    right = held.weights[MODEL.phone[held.ids] == said].sum()
    assert found == pytest.approx(right, abs=1e-9)
