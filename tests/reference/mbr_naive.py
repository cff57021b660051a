"""Expected word errors by listing paths, and sausages by the plain recursion."""

import math
from collections import defaultdict
from functools import cache

from reference.edit_distance import least_cost
from reference.lattice_paths import enumerate_paths, path_posteriors

DELTA = 1e-5  # what an inserted word costs more than a replaced one
TIE = 1e-9


def word_posteriors(lattice, acoustic_scale=1.0):
    """Posterior of each word sequence."""
    paths = [path for path in enumerate_paths(lattice) if path.cost() < float("inf")]
    _, posteriors = path_posteriors(paths, 1.0, acoustic_scale)
    found = defaultdict(float)
    for path, posterior in zip(paths, posteriors, strict=True):
        found[path.words] += posterior
    return dict(found)


def expected_errors(sequences, words):
    """Mean edit distance of word sequences with posteriors from one sequence."""
    return sum(
        posterior * least_cost(tuple(words), sequence, substitution=1, gap=1)
        for sequence, posterior in sequences.items()
    )


def plain_sausage(graph, places):
    """Figures 4 and 5 of Xu et al. 2011, by memoized recursion over a `WordGraph`.

    Returns:
        (risk, {(place, word): (posterior, mean start, mean end)}); places from 0.
    """
    rows = list(
        zip(
            graph.source.tolist(),
            graph.target.tolist(),
            graph.word.tolist(),
            graph.cost.tolist(),
            strict=True,
        )
    )
    entering = defaultdict(list)
    for row in rows:
        if row[3] < float("inf"):
            entering[row[1]].append(row)
    frame = graph.frame.tolist()

    @cache
    def alpha(state):
        if state == 0:
            return 1.0
        return sum(alpha(s) * math.exp(-cost) for s, _, _, cost in entering[state])

    def loss(a, b, insertion=0.0):
        return 0.0 if a == b else 1.0 + insertion

    @cache
    def mean(state, q):
        if state == 0:
            return sum(loss(0, word) for word in places[:q])
        return sum(
            share(row) * arc_mean(row, q)[0] for row in entering[state] if share(row)
        )

    def share(row):
        before = alpha(row[0])
        return before * math.exp(-row[3]) / alpha(row[1]) if before else 0.0

    @cache
    def arc_mean(row, q):
        state, _, word, _ = row
        insert = mean(state, q) + loss(word, 0, DELTA)
        if q == 0:
            return insert, "insert"
        pair = mean(state, q - 1) + loss(word, places[q - 1])
        delete = arc_mean(row, q - 1)[0] + loss(0, places[q - 1])
        if pair <= insert + TIE and pair <= delete + TIE:
            return pair, "pair"
        return (insert, "insert") if insert <= delete + TIE else (delete, "delete")

    entries = defaultdict(lambda: [0.0, 0.0, 0.0])

    def add(q, word, mass, start, end):
        entry = entries[q - 1, word]
        entry[0] += mass
        entry[1] += mass * start
        entry[2] += mass * end

    mass = defaultdict(float)
    mass[len(frame) - 1, len(places)] = 1.0
    for state in range(len(frame) - 1, 0, -1):
        for row in entering[state]:
            carried = 0.0
            for q in range(len(places), -1, -1):
                part = carried + share(row) * mass[state, q]
                carried = 0.0
                by = arc_mean(row, q)[1]
                if part == 0.0:
                    continue
                if by == "insert":
                    mass[row[0], q] += part
                elif by == "pair":
                    mass[row[0], q - 1] += part
                    add(q, row[2], part, frame[row[0]], frame[state])
                else:
                    carried = part
                    add(q, 0, part, frame[state], frame[state])
    carried = 0.0
    for q in range(len(places), 0, -1):
        carried += mass[0, q]
        if carried:
            add(q, 0, carried, 0, 0)
    risk = mean(len(frame) - 1, len(places))
    return risk, {
        key: (m, start / m, end / m) for key, (m, start, end) in entries.items()
    }
