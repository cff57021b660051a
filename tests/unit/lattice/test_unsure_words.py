"""Words of a lattice that are left out because they are not sure."""

import math

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.lattice import Lattice
from latflow.lattice.unsure_words import without_unsure_words

NEW, OLD, LONG = 7, 3, 10


def lattice_of(paths):
    """A lattice of paths side by side: (frame behind which a word is, word, share)."""
    arcs, costs, finals = [], [], [(math.inf, math.inf)]
    for words, share in paths:
        state = 0
        for frame in range(LONG):
            target = len(finals)
            finals.append((math.inf, math.inf))
            arcs.append((state, target, 1, words.get(frame, 0)))
            costs.append((-math.log(share) if frame == 0 else 0.0, 0.0))
            state = target
        finals[state] = (0.0, 0.0)
    return Lattice.from_arcs(
        np.array(arcs, np.int32), np.array(costs, "f4"), np.array(finals, "f4")
    )


def best(lattice):
    return best_paths(lattice, [Scales()])[0].words.tolist()


@pytest.mark.parametrize(
    ("paths", "least", "words"),
    [
        ([({2: NEW}, 0.6), ({2: OLD}, 0.4)], 0.7, [OLD]),
        ([({2: NEW}, 0.6), ({2: OLD}, 0.4)], 0.5, [NEW]),
        # times that differ a little are one occurrence, others are not
        ([({2: NEW}, 0.4), ({4: NEW}, 0.3), ({2: OLD}, 0.3)], 0.6, [NEW]),
        ([({1: NEW}, 0.4), ({8: NEW}, 0.35), ({2: OLD}, 0.25)], 0.6, [OLD]),
        # each occurrence for itself
        ([({1: NEW, 8: NEW}, 0.6), ({1: NEW, 8: OLD}, 0.4)], 0.7, [NEW, OLD]),
        # other words stay, however unsure
        ([({2: OLD}, 0.6), ({2: 4}, 0.4)], 0.9, [OLD]),
        # and so does what there is nothing else in the place of
        ([({2: NEW}, 0.6), ({8: NEW}, 0.4)], 0.7, [NEW]),
    ],
)
def test_words_stay_where_they_are_sure(paths, least, words):
    assert best(without_unsure_words(lattice_of(paths), [NEW], least)) == words


def test_scales_decide_how_sure_words_are():
    lattice = lattice_of([({2: NEW}, 0.6), ({2: OLD}, 0.4)])
    assert best(without_unsure_words(lattice, [NEW], 0.7, lm_scale=5.0)) == [NEW]
    assert without_unsure_words(lattice, [5], 0.7) is lattice


def test_a_lattice_without_an_end_is_refused():
    arcs = np.array([(0, 1, 1, NEW)], np.int32)
    lattice = Lattice.from_arcs(
        arcs, np.zeros((1, 2), "f4"), np.full((2, 2), np.inf, "f4")
    )
    with pytest.raises(UserError, match="final"):
        without_unsure_words(lattice, [NEW], 0.5)
