"""Alignments of which every n-th frame is left, and of one state a phone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latflow.hmm.alignment import segments, subsampled_lengths
from latflow.hmm.topology import chain_topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency

lengths_of = st.lists(st.integers(1, 9), min_size=1, max_size=20)


def frames_kept(lengths, factor):
    """Frames of each phone among frames 0, factor, 2 factor ..."""
    owner = np.repeat(np.arange(len(lengths)), lengths)[::factor]
    return np.bincount(owner, minlength=len(lengths)).tolist()


def borrowed(lengths, least):
    """Lengths after each short phone has borrowed from the nearest, one at a time."""
    lengths = list(lengths)
    while any(a < b for a, b in zip(lengths, least, strict=True)):
        for n in range(len(lengths)):
            if lengths[n] >= least[n]:
                continue
            offers = []
            for other in range(len(lengths)):
                if other != n and lengths[other] > least[other]:
                    low, high = sorted((n, other))
                    # of those on one side the inner ones come first
                    offers.append(
                        (sum(lengths[low + 1 : high]), other > n, high - low, other)
                    )
            left = [o for o in offers if not o[1]]
            right = [o for o in offers if o[1]]
            best = [min(side, key=lambda o: o[2]) for side in (left, right) if side]
            lengths[min(best)[3]] -= 1
            lengths[n] += 1
    return lengths


@given(lengths_of, st.integers(1, 4))
def test_lengths_are_those_of_the_frames_left(lengths, factor):
    kept = subsampled_lengths(np.array(lengths), np.zeros(len(lengths), int), factor)
    assert kept.tolist() == frames_kept(lengths, factor)


@given(lengths_of, st.integers(1, 4), st.integers(1, 2))
def test_short_phones_borrow_from_the_nearest(lengths, factor, least):
    wanted = np.full(len(lengths), least)
    kept = subsampled_lengths(np.array(lengths), wanted, factor)
    plain = frames_kept(lengths, factor)
    if sum(plain) < least * len(lengths):
        assert kept is None
    else:
        assert kept.tolist() == borrowed(plain, wanted.tolist())


@pytest.mark.parametrize(
    "durations",
    [[(1, 2), (1, 1)], [(1, 1), (1, 1)], [(1, 3)], [(1, 2), (1, 1), (2, 1)]],
)
def test_phones_of_one_state_are_told_apart(durations):
    topology = chain_topology([1, 2])
    tree = ContextDependency.monophone([[1], [2]], topology.pdf_class_counts())
    model = TransitionModel.from_tree(tree, topology)
    ids = []
    for phone, length in durations:
        mine = np.flatnonzero(model.phone == phone)
        first, more = mine[~model.is_self_loop[mine]], mine[model.is_self_loop[mine]]
        ids += [int(first[0]), *[int(more[0])] * (length - 1)]
    phones, _, lengths = segments(np.array(ids), model)
    assert list(zip(phones.tolist(), lengths.tolist(), strict=True)) == durations
