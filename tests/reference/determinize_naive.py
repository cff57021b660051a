"""Determinization by listing all paths: the obvious twin, and lattices to try it on."""

from typing import NamedTuple

import numpy as np

from latflow.lattice.lattice import CompactLattice, Lattice


class Path(NamedTuple):
    """A path: its words and transition-ids, epsilons left out, and its costs."""

    words: tuple[int, ...]
    transition_ids: tuple[int, ...]
    graph_cost: float
    acoustic_cost: float

    def order(self, lm_scale, acoustic_scale):
        """A key by which better paths come first, as Kaldi orders their weights."""
        graph = lm_scale * self.graph_cost
        total = graph + acoustic_scale * self.acoustic_cost
        return total, graph, tuple(-i for i in self.transition_ids)


def compact_paths(lattice: CompactLattice):
    """All paths of a compact lattice."""
    found = []

    def walk(state, words, ids, graph, acoustic):
        if lattice.is_final[state]:
            end = tuple(lattice.state_string(state).tolist())
            costs = (
                graph + float(lattice.final_graph_cost[state]),
                acoustic + float(lattice.final_acoustic_cost[state]),
            )
            found.append(Path(words, ids + end, *costs))
        for arc in range(lattice.arc_begin[state], lattice.arc_begin[state + 1]):
            word = int(lattice.word[arc])
            walk(
                int(lattice.next_state[arc]),
                words + ((word,) if word else ()),
                ids + tuple(lattice.arc_string(arc).tolist()),
                graph + float(lattice.graph_cost[arc]),
                acoustic + float(lattice.acoustic_cost[arc]),
            )

    if lattice.num_states:
        walk(0, (), (), 0.0, 0.0)
    return found


def raw_paths(lattice: Lattice):
    """All paths of a state-level lattice."""
    found = []

    def walk(state, words, ids, graph, acoustic):
        end = float(lattice.final_graph_cost[state])
        if np.isfinite(end):
            last = float(lattice.final_acoustic_cost[state])
            found.append(Path(words, ids, graph + end, acoustic + last))
        for arc in range(lattice.arc_begin[state], lattice.arc_begin[state + 1]):
            word, tid = int(lattice.word[arc]), int(lattice.transition_id[arc])
            walk(
                int(lattice.next_state[arc]),
                words + ((word,) if word else ()),
                ids + ((tid,) if tid else ()),
                graph + float(lattice.graph_cost[arc]),
                acoustic + float(lattice.acoustic_cost[arc]),
            )

    walk(0, (), (), 0.0, 0.0)
    return found


def determinized(paths, lm_scale=1.0, acoustic_scale=1.0):
    """The best path of each word sequence."""
    best = {}
    for path in paths:
        old = best.get(path.words)
        key = path.order(lm_scale, acoustic_scale)
        if old is None or key < old.order(lm_scale, acoustic_scale):
            best[path.words] = path
    return best


def tangled_lattice(generator: np.random.Generator, num_frames: int) -> Lattice:
    """A lattice in which the same few words come again and again, at equal costs too.

    One to three states a frame; arcs without a frame between states of one frame; costs
    in quarters, so that sums are exact and ties real; some dead ends; several final
    states with costs, or none.
    """
    sizes = [1, *generator.integers(1, 4, num_frames).tolist()]
    first = np.concatenate([[0], np.cumsum(sizes)])
    rows = []
    for frame, size in enumerate(sizes):
        states = range(first[frame], first[frame] + size)
        for state in states:
            rows += [
                (state, other, 0, int(generator.choice([0, 0, 1, 2])))
                for other in states
                if other > state and generator.random() < 0.4
            ]
            if frame == num_frames:
                continue
            for target in range(first[frame + 1], first[frame + 2]):
                for _ in range(generator.integers(0, 3)):
                    tid, word = generator.integers(1, 4), generator.choice([0, 0, 1, 2])
                    rows.append((state, target, int(tid), int(word)))
    arcs = np.array(rows, np.int32).reshape(-1, 4)
    finals = np.full((first[-1], 2), np.inf, np.float32)
    last = np.arange(first[-2], first[-1])
    is_final = generator.random(len(last)) < 0.9
    finals[last[is_final]] = generator.integers(0, 3, (int(is_final.sum()), 2)) / 4
    costs = generator.integers(0, 5, (len(arcs), 2)).astype(np.float32) / 4
    return Lattice.from_arcs(arcs, costs, finals)


def dense_lattice(
    generator: np.random.Generator, num_frames: int, num_words: int, *, noise: float
) -> Lattice:
    """A lattice of few words and many paths: each arc has a word, sizes are random."""
    size, arcs_of_state = int(generator.integers(1, 4)), int(generator.integers(2, 4))
    rows = []
    for frame in range(num_frames):
        first = 1 + (frame - 1) * size
        states = range(first, first + size) if frame else [0]
        for state in states:
            for _ in range(arcs_of_state):
                target = 1 + frame * size + int(generator.integers(size))
                tid, word = generator.integers(1, 9), generator.integers(num_words) + 1
                rows.append((state, target, int(tid), int(word)))
    arcs = np.array(rows, np.int32)
    finals = np.full((1 + num_frames * size, 2), np.inf, np.float32)
    finals[-size:] = 0.0
    costs = noise * generator.normal(0, 1, (len(arcs), 2))
    return Lattice.from_arcs(arcs, costs.astype(np.float32), finals)
