"""Slow, obvious twins of tree building, clustering and splitting of alignments."""

import heapq
import math

import numpy as np

LOG_2PI = math.log(2 * math.pi)


def log_likelihood(moments, floor):
    """Sum over dimensions of the log-density of floored Gaussians, times the count."""
    count, dim = moments[0], (len(moments) - 1) // 2
    if count <= 0:
        return 0.0
    total = 0.0
    for d in range(dim):
        mean = moments[1 + d] / count
        variance = max(floor, moments[1 + dim + d] / count - mean * mean)
        total += LOG_2PI + math.log(variance)
    return -0.5 * count * total


def best_split(rows, questions, floor):
    """Try every question on every key that all events have.

    rows: list of (event dict, moments); questions: dict key -> list of sets.
    """
    best = (0.0, None, None)
    if len(rows) < 2:
        return best
    whole = log_likelihood(sum(m for _, m in rows), floor)
    for key in sorted(questions):
        if any(key not in event for event, _ in rows):
            continue
        for question in questions[key]:
            yes = [m for event, m in rows if event[key] in question]
            no = [m for event, m in rows if event[key] not in question]
            if not yes or not no:
                continue
            gain = log_likelihood(sum(yes), floor) + log_likelihood(sum(no), floor)
            # a question that only rounding makes better is not better
            if gain - whole > best[0] + 1e-11 * abs(whole):
                best = (gain - whole, key, question)
    return best


def grow(roots, questions, threshold, max_leaves, floor):
    """Greedy splitting; returns leaves as {leaf: rows} and nested tuples per root."""
    trees = [{"rows": rows, "leaf": n} for n, rows in enumerate(roots)]
    leaves = list(trees)
    num_leaves = len(trees)
    least = math.inf
    while max_leaves <= 0 or num_leaves < max_leaves:
        scored = [(best_split(x["rows"], questions, floor), x) for x in leaves]
        (gain, key, question), node = max(scored, key=lambda pair: pair[0][0])
        if gain <= threshold:
            break
        least = min(least, gain)
        sides = [
            [r for r in node["rows"] if (r[0][key] in question) == side]
            for side in (True, False)
        ]
        yes = {"rows": sides[0], "leaf": node["leaf"]}
        no = {"rows": sides[1], "leaf": num_leaves}
        num_leaves += 1
        node.update(key=key, question=question, yes=yes, no=no)
        leaves = [x for x in leaves if x is not node] + [yes, no]
    return trees, least


def leaf_of(node, event):
    """Walk down a tree of `grow`."""
    while "key" in node:
        node = node["yes"] if event[node["key"]] in node["question"] else node["no"]
    return node["leaf"]


def cluster_bottom_up(points, limit, floor):
    """Kaldi's queue of pairs, lowest loss first, with lazy deletion."""
    clusters = {i: p.copy() for i, p in enumerate(points)}
    owner = list(range(len(points)))

    def loss(i, j):
        return max(
            0.0,
            log_likelihood(clusters[i], floor)
            + log_likelihood(clusters[j], floor)
            - log_likelihood(clusters[i] + clusters[j], floor),
        )

    current, queue = {}, []

    def offer(i, j):
        current[i, j] = loss(i, j)
        heapq.heappush(queue, (current[i, j], i, j))

    for i in clusters:
        for j in range(i):
            offer(i, j)
    while queue:
        value, i, j = heapq.heappop(queue)
        if value > limit * (1 + 1e-9):
            break
        if i not in clusters or j not in clusters or current[i, j] != value:
            continue
        clusters[i] = clusters[i] + clusters.pop(j)
        owner = [i if o == j else o for o in owner]
        for k in clusters:
            if k != i:
                offer(max(i, k), min(i, k))
    order = {o: n for n, o in enumerate(sorted(set(owner)))}
    return np.array([order[o] for o in owner])
