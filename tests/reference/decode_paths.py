"""All paths through a small graph, one by one: the obvious twin of the search."""

from dataclasses import dataclass

import numpy as np

from latflow.fst.graph import Graph
from latflow.lattice.lattice import Lattice


@dataclass(frozen=True)
class Path:
    """A path: its total scaled cost and its labels, epsilons left out.

    `final_cost` is the part of the cost that ending there takes.
    """

    cost: float
    transition_ids: tuple[int, ...]
    words: tuple[int, ...]
    is_final: bool
    final_cost: float = 0.0


def graph_paths(graph, tid_to_pdf, log_likes, acoustic_scale):
    """Paths that consume all frames; none comes twice to a state at the same frame."""
    num_frames = len(log_likes)
    found = []

    def walk(state, frame, cost, ids, words, here):
        if frame == num_frames:
            final = float(graph.final[state])
            is_final = bool(np.isfinite(final))
            end = final if is_final else 0.0
            found.append(Path(cost + end, ids, words, is_final, end))
        for arc in range(graph.arc_begin[state], graph.arc_begin[state + 1]):
            tid, word = int(graph.ilabel[arc]), int(graph.olabel[arc])
            then, weight = int(graph.next_state[arc]), float(graph.weight[arc])
            said = (*words, word) if word else words
            if tid == 0 and then not in here:
                walk(then, frame, cost + weight, ids, said, here | {then})
            elif tid and frame < num_frames:
                score = float(log_likes[frame, tid_to_pdf[tid]])
                if score > -np.inf:
                    total = cost + weight - acoustic_scale * score
                    walk(then, frame + 1, total, (*ids, tid), said, {then})

    walk(graph.start, 0, 0.0, (), (), {graph.start})
    return found


def lattice_paths(lattice: Lattice, lm_scale, acoustic_scale, penalty=0.0):
    """All paths of a lattice to its final states."""
    found = []

    def walk(state, cost, ids, words):
        graph = float(lattice.final_graph_cost[state])
        acoustic = float(lattice.final_acoustic_cost[state])
        if np.isfinite(graph + acoustic):
            total = cost + lm_scale * graph + acoustic_scale * acoustic
            found.append(Path(total, ids, words, is_final=True))
        for arc in range(lattice.arc_begin[state], lattice.arc_begin[state + 1]):
            tid, word = int(lattice.transition_id[arc]), int(lattice.word[arc])
            walk(
                lattice.next_state[arc],
                cost
                + lm_scale * float(lattice.graph_cost[arc])
                + acoustic_scale * float(lattice.acoustic_cost[arc])
                + (penalty if word else 0.0),
                (*ids, tid) if tid else ids,
                (*words, word) if word else words,
            )

    walk(0, 0.0, (), ())
    return found


def arc_extra_costs(lattice: Lattice, acoustic_scale):
    """How much the best path over each arc costs more than the best of all."""
    source = lattice.source()
    weight = lattice.graph_cost.astype(float) + acoustic_scale * lattice.acoustic_cost
    forward = np.full(lattice.num_states, np.inf)
    forward[0] = 0.0
    for arc in range(lattice.num_arcs):
        target = lattice.next_state[arc]
        forward[target] = min(forward[target], forward[source[arc]] + weight[arc])
    backward = lattice.final_graph_cost + acoustic_scale * lattice.final_acoustic_cost
    backward = backward.astype(float)
    for arc in range(lattice.num_arcs - 1, -1, -1):
        through = weight[arc] + backward[lattice.next_state[arc]]
        backward[source[arc]] = min(backward[source[arc]], through)
    return forward[source] + weight + backward[lattice.next_state] - backward[0]


def random_graph(
    generator: np.random.Generator, num_states: int, *, has_cycles: bool
) -> Graph:
    """A graph over transition-ids 1 ... 4 and words 1 ... 3, every third arc epsilon.

    Epsilon arcs lead to higher states, or, with cycles, anywhere at cost 0.
    """
    rows = []
    for state in range(num_states):
        for _ in range(generator.integers(0, 5)):
            target = int(generator.integers(num_states))
            weight = float(np.round(generator.random() * 3, 2))
            tid = int(generator.integers(1, 5))
            if generator.random() < 0.35:
                tid = 0
                if has_cycles:
                    weight = float(generator.choice([0.0, 0.5]))
                elif target <= state:
                    continue
            word = int(generator.integers(0, 4))
            rows.append((state, tid, word, weight, target))
    begin = np.searchsorted([row[0] for row in rows], np.arange(num_states + 1))
    final = np.where(generator.random(num_states) < 0.5, generator.random(), np.inf)
    _, tids, words, weights, targets = (
        zip(*rows, strict=True) if rows else ((), (), (), (), ())
    )
    return Graph.from_arrays(
        0,
        begin.astype(np.int64),
        np.array(tids, np.int32),
        np.array(words, np.int32),
        np.array(weights, np.float32),
        np.array(targets, np.int32),
        final.astype(np.float32),
    )


def endless_graph(generator: np.random.Generator, num_states: int) -> Graph:
    """A graph where every state goes on by three arcs and is final; some epsilons."""
    shape = (num_states, 4)
    target = generator.integers(num_states, size=shape)
    target[:, 0] = np.minimum(np.arange(num_states) + 1, num_states - 1)
    ilabel = generator.integers(1, 5, size=shape)
    ilabel[:-1, 0] = 0
    return Graph.from_arrays(
        0,
        np.arange(num_states + 1) * 4,
        ilabel.reshape(-1).astype(np.int32),
        generator.integers(0, 4, size=4 * num_states).astype(np.int32),
        (generator.random(4 * num_states) * 3).astype(np.float32),
        target.reshape(-1).astype(np.int32),
        generator.random(num_states).astype(np.float32),
    )


def random_lattice(generator: np.random.Generator, num_frames: int) -> Lattice:
    """A lattice with one to three states a frame, some epsilon arcs, one final."""
    sizes = [1, *generator.integers(1, 4, num_frames - 1).tolist(), 1]
    first = np.concatenate([[0], np.cumsum(sizes)])
    arcs = []
    for frame in range(num_frames):
        for state in range(first[frame], first[frame + 1]):
            targets = {int(generator.integers(first[frame + 1], first[frame + 2]))}
            if frame + 1 < num_frames:
                targets |= set(range(first[frame + 1], first[frame + 2]))
            arcs += [
                (state, t, int(generator.integers(1, 9)), int(generator.integers(0, 3)))
                for t in sorted(targets)
            ]
            if state + 1 < first[frame + 1] and generator.random() < 0.3:
                arcs.append((state, state + 1, 0, int(generator.integers(0, 2))))
    costs = generator.normal(size=(len(arcs), 2)).astype(np.float32) * 10
    finals = np.full((first[-1], 2), np.inf, np.float32)
    finals[-1] = generator.random(2)
    return Lattice.from_arcs(np.array(arcs, np.int32), costs, finals)
