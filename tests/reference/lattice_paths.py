"""All paths of a small lattice, one by one; small random lattices to try them on."""

import math
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from latflow.lattice.lattice import Lattice


class LatticePath(NamedTuple):
    """One way from the start to a final state, final costs included."""

    graph_cost: float
    acoustic_cost: float
    transition_ids: tuple[int, ...]
    words: tuple[int, ...]
    arcs: tuple[int, ...]
    end: int

    def cost(self, lm_scale=1.0, acoustic_scale=1.0):
        """The scaled cost; a cost of inf stays inf at scale 0."""
        if math.inf in (self.graph_cost, self.acoustic_cost):
            return math.inf
        return lm_scale * self.graph_cost + acoustic_scale * self.acoustic_cost


def enumerate_paths(lattice: Lattice) -> list[LatticePath]:
    """All paths to final states in depth-first order, impossible ones included."""
    found = []

    def walk(state, graph, acoustic, arcs):
        final = lattice.final_graph_cost[state], lattice.final_acoustic_cost[state]
        if np.isfinite(final).all():
            ids = [int(lattice.transition_id[arc]) for arc in arcs]
            words = [int(lattice.word[arc]) for arc in arcs]
            found.append(
                LatticePath(
                    graph + float(final[0]),
                    acoustic + float(final[1]),
                    tuple(tid for tid in ids if tid),
                    tuple(word for word in words if word),
                    arcs,
                    state,
                )
            )
        for arc in range(lattice.arc_begin[state], lattice.arc_begin[state + 1]):
            walk(
                int(lattice.next_state[arc]),
                graph + float(lattice.graph_cost[arc]),
                acoustic + float(lattice.acoustic_cost[arc]),
                (*arcs, arc),
            )

    if lattice.num_states:
        walk(0, 0.0, 0.0, ())
    return found


def log_sum(values):
    """Logarithm of the sum of exponentials; -inf for none."""
    top = max(values, default=-math.inf)
    if top == -math.inf:
        return top
    return top + math.log(sum(math.exp(value - top) for value in values))


def path_posteriors(paths, lm_scale=1.0, acoustic_scale=1.0):
    """(log of the summed likelihood, posterior of each path)."""
    logs = [-path.cost(lm_scale, acoustic_scale) for path in paths]
    total = log_sum(logs)
    return total, [math.exp(log - total) for log in logs]


def _layer_arcs(generator, first, frame, num_ids, num_words):
    """Arcs out of the states of a frame: to the next one, and epsilons within it."""
    arcs = []
    here, there = range(*first[frame : frame + 2]), range(*first[frame + 1 : frame + 3])
    for state in here:
        if frame + 2 < len(first):
            count = int(generator.integers(0, 4)) if state else 2
            for target in generator.choice(there, size=count):  # parallel arcs too
                tid = int(generator.integers(1, num_ids + 1))
                arcs.append(
                    (state, int(target), tid, int(generator.integers(num_words)))
                )
        if state + 1 < here[-1] + 1 and generator.random() < 0.4:
            target = int(generator.integers(state + 1, here[-1] + 1))
            arcs.append((state, target, 0, int(generator.integers(num_words))))
    return arcs


def random_lattice(
    generator: np.random.Generator,
    num_frames: int,
    *,
    num_ids: int = 6,
    num_words: int = 3,
    width: int = 3,
    spread: float = 3.0,
    impossible: float = 0.0,
) -> Lattice:
    """A lattice with parallel arcs, epsilon arcs, dead ends and several final states.

    A path to a final state is not guaranteed: arcs are drawn at random, some of them
    (a fraction `impossible`) with a cost of inf.

    Args:
        generator: where randomness comes from.
        num_frames: T >= 1.
        num_ids: transition-ids are 1 ... num_ids.
        num_words: words are 0 (none) ... num_words - 1.
        width: greatest number of states at a frame.
        spread: standard deviation of costs.
        impossible: fraction of arcs of infinite cost.
    """
    sizes = [1, *generator.integers(1, width + 1, num_frames).tolist()]
    first = np.concatenate([[0], np.cumsum(sizes)])
    arcs = []
    for frame in range(num_frames + 1):
        arcs += _layer_arcs(generator, first, frame, num_ids, num_words)
    costs = (generator.normal(size=(len(arcs), 2)) * spread).astype(np.float32)
    costs[generator.random(len(arcs)) < impossible] = (1.0, np.inf)
    finals = np.full((first[-1], 2), np.inf, np.float32)
    ends = first[-2] + np.flatnonzero(generator.random(sizes[-1]) < 0.8)
    finals[ends] = generator.normal(size=(len(ends), 2)) * spread
    table = np.array(arcs, np.int32).reshape(-1, 4)
    return Lattice.from_arcs(table, costs, finals)


def lattices(max_frames=5, **options):
    """Hypothesis strategy: random lattices of one to `max_frames` frames."""
    return st.builds(
        lambda seed, frames: random_lattice(
            np.random.default_rng(seed), frames, **options
        ),
        seed=st.integers(0, 2**32 - 1),
        frames=st.integers(1, max_frames),
    )


def lattices_with_a_path(max_frames=5, **options):
    """Hypothesis strategy: as `lattices`, with a possible path to a final state."""
    return lattices(max_frames, **options).filter(
        lambda lattice: any(path.cost() < math.inf for path in enumerate_paths(lattice))
    )


def frame_sums(posteriors):
    """Sum of the weights of each frame, [T]."""
    entries = posteriors.frame_of_entry()
    return np.bincount(entries, posteriors.weights, posteriors.num_frames)
