"""Supervision of LF-MMI by trying everything, for chain topologies of one state."""

from itertools import combinations

import numpy as np

from latflow.hmm.event_map import PDF_CLASS, Constant, Table
from latflow.hmm.topology import NO_PDF, HmmState, Topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency


def chain_system(pdfs):
    """Left-biphone tree and model of phones 1 ... P.

    Args:
        pdfs: [P + 1, P, 2], pdf by left phone (0: none), phone, and pdf-class (first
            frame, self-loop).
    """
    num_phones = len(pdfs[0])
    topology = Topology(
        [
            (
                list(range(1, num_phones + 1)),
                [HmmState(0, ((0, 0.5), (1, 0.5)), 1), HmmState(NO_PDF)],
            )
        ]
    )
    to_pdf = Table(
        0,
        [
            Table(1, [None, *(Table(PDF_CLASS, [*map(Constant, row)]) for row in rows)])
            for rows in pdfs
        ],
    )
    tree = ContextDependency(2, 1, to_pdf)
    return tree, TransitionModel.from_tree(tree, topology)


def phone_paths(lattice):
    """All paths of a phone lattice, as tuples of phones."""
    found = set()

    def visit(state, phones):
        if lattice.is_final[state]:
            found.add(phones)
        for n in np.flatnonzero(lattice.source == state):
            visit(lattice.target[n], (*phones, int(lattice.phone[n])))

    visit(0, ())
    return found


def label_sequences(lattice, tree, options, subsampling):
    """All label sequences (pdf-id + 1) that a supervision allows."""
    num_frames = -(-lattice.num_frames // subsampling)

    def is_allowed(phone, t):
        frame = t * subsampling
        low = lattice.begin - options.left_tolerance
        high = np.minimum(lattice.num_frames, lattice.end + options.right_tolerance)
        return ((lattice.phone == phone) & (low <= frame) & (frame < high)).any()

    found = set()
    for phones in phone_paths(lattice):
        for cuts in combinations(range(1, num_frames), len(phones) - 1):
            bounds = [0, *cuts, num_frames]
            labels, fits = [], True
            for n, phone in enumerate(phones):
                fits &= all(
                    is_allowed(phone, t) for t in range(bounds[n], bounds[n + 1])
                )
                window = (phones[n - 1] if n else 0, phone)
                length = bounds[n + 1] - bounds[n]
                labels += [tree.pdf(window, 0) + 1]
                labels += [tree.pdf(window, 1) + 1] * (length - 1)
            if fits:
                found.add(tuple(labels))
    return found


def least_cost(graph, labels):
    """Cost of the best path of an acceptor with these labels, inf if there is none."""
    costs = {graph.start: 0.0}
    for label in labels:
        after: dict[int, float] = {}
        for state, cost in costs.items():
            for a in range(graph.arc_begin[state], graph.arc_begin[state + 1]):
                if graph.ilabel[a] == label:
                    target = int(graph.next_state[a])
                    total = cost + float(graph.weight[a])
                    after[target] = min(after.get(target, np.inf), total)
        costs = after
    return min((c + float(graph.final[s]) for s, c in costs.items()), default=np.inf)


def log_sum(graph, labels):
    """Summed cost of all paths of an acceptor with these labels."""
    costs = {graph.start: 0.0}
    for label in labels:
        costs = _step(graph, costs, label)
    return _ends(graph, costs)


def total_cost(graph, num_frames):
    """Summed cost of all paths of an acceptor with so many arcs."""
    costs = {graph.start: 0.0}
    for _ in range(num_frames):
        costs = _step(graph, costs, None)
    return _ends(graph, costs)


def _step(graph, costs, label):
    """Summed costs of the states behind one more arc; None for any label."""
    after: dict[int, float] = {}
    for state, cost in costs.items():
        for a in range(graph.arc_begin[state], graph.arc_begin[state + 1]):
            if label is None or graph.ilabel[a] == label:
                target, total = int(graph.next_state[a]), cost + float(graph.weight[a])
                after[target] = -np.logaddexp(-after.get(target, np.inf), -total)
    return after


def _ends(graph, costs):
    """Summed cost of ending."""
    ends = [cost + float(graph.final[state]) for state, cost in costs.items()]
    return -np.logaddexp.reduce(-np.array(ends)) if ends else np.inf
