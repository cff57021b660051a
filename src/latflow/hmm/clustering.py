"""Merging and splitting of diagonal Gaussians by likelihood.

A set of frames is summed up by its *moments*: count, sum and sum of squares of each
dimension, float64[1 + 2 D]. Its objective is the log-likelihood of its frames under
their own Gaussian of maximum likelihood, variances floored:

    L = -1/2 count * sum_d (log(2 pi) + log max(variance_d, floor))

Merging sets loses likelihood, splitting gains it; everything here maximizes it: merges
of clusters, splits of clusters in two, and the question that splits a leaf of a tree.

Source: Kaldi `tree/clusterable-classes.cc` (`GaussClusterable`),
`tree/cluster-utils.cc` (`BottomUpClusterer`, `ClusterKMeans`, `TreeClusterer`),
`tree/build-tree-utils.cc` (`FindBestSplitForKey`, `ComputeInitialSplit`); float64
throughout, where Kaldi rounds each objective to float32.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from latflow.jit import njit

_LOG_2PI = math.log(2.0 * math.pi)
_PASSES = 2000  # Kaldi: 20 iterations of k-means, each with up to 100 passes
_TRIES = 10  # random starts of k-means
_TOLERANCE = 1e-9  # relative; distances this close to the threshold are equal to it
_EQUAL = 1e-11  # gains this close, relative to the leaf's log-likelihood, are equal


@njit(cache=True, nogil=True)
def log_likelihood(moments: np.ndarray, floor: float) -> float:
    """Return the log-likelihood of frames under their own Gaussian; 0 for no frames.

    Args:
        moments: count, sums and sums of squares, float64[1 + 2 D].
        floor: least variance, > 0.
    """
    count = moments[0]
    if count <= 0.0:
        return 0.0
    dim = (len(moments) - 1) // 2
    scale = 1.0 / count
    total = dim * _LOG_2PI
    product = 1.0  # of variances: far fewer logarithms than one each
    for d in range(dim):
        mean = moments[1 + d] * scale
        variance = moments[1 + dim + d] * scale - mean * mean
        product *= max(variance, floor)
        if not 1e-100 < product < 1e100:
            total += math.log(product)
            product = 1.0
    return -0.5 * count * (total + math.log(product))


@njit(cache=True, nogil=True)
def sum_groups(moments: np.ndarray, group: np.ndarray, num_groups: int) -> np.ndarray:
    """Sum the moments [N, M] of each group, float64[num_groups, M].

    Args:
        moments: float64[N, M].
        group: int[N], the group of each row; rows of negative group are left out.
        num_groups: number of groups.
    """
    sums = np.zeros((num_groups, moments.shape[1]))
    for n in range(len(moments)):
        if group[n] >= 0:
            sums[group[n]] += moments[n]
    return sums


# -- bottom up ------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _loss(points: np.ndarray, objf: np.ndarray, i: int, j: int, floor: float) -> float:
    """Return the likelihood lost by merging clusters i and j."""
    return max(0.0, objf[i] + objf[j] - log_likelihood(points[i] + points[j], floor))


@njit(cache=True, nogil=True)
def _nearest(distance: np.ndarray, is_alive: np.ndarray, i: int) -> int:
    """Return the cluster j < i nearest to i, the first of equals; -1 for none."""
    best = -1
    for j in range(i):
        if is_alive[j] and (best < 0 or distance[i, j] < distance[i, best]):
            best = j
    return best


@njit(cache=True, nogil=True)
def cluster_bottom_up(points: np.ndarray, max_loss: float, floor: float) -> np.ndarray:
    """Merge the nearest two clusters again and again, while that costs at most a limit.

    Args:
        points: moments, float64[N, 1 + 2 D].
        max_loss: greatest loss of log-likelihood of a merge, in nats.
        floor: least variance.

    Returns:
        int32[N], the cluster of each point; clusters are numbered 0, 1, ... in the
        order of their highest point.

    Source: Kaldi `tree/cluster-utils.cc` (`ClusterBottomUp`). Kaldi takes a loss equal
    to the limit before the first merge but not after; here it is taken always, equality
    being meant up to rounding.
    """
    num_points = len(points)
    limit = max_loss * (1.0 + _TOLERANCE)
    clusters = points.copy()
    is_alive = np.ones(num_points, np.bool_)
    merged_to = np.arange(num_points)
    objf = np.array([log_likelihood(point, floor) for point in points])
    distance = np.full((num_points, num_points), np.inf)
    nearest = np.full(num_points, -1, np.int64)
    for i in range(num_points):
        for j in range(i):
            distance[i, j] = _loss(clusters, objf, i, j, floor)
        nearest[i] = _nearest(distance, is_alive, i)
    while True:
        best = _nearest_pair(distance, nearest, is_alive)
        if best < 0 or distance[best, nearest[best]] > limit:
            break
        gone = nearest[best]
        clusters[best] += clusters[gone]
        objf[best] = log_likelihood(clusters[best], floor)
        is_alive[gone] = False
        merged_to[gone] = best
        for k in range(num_points):
            if is_alive[k] and k != best:
                loss = _loss(clusters, objf, k, best, floor)
                distance[max(k, best), min(k, best)] = loss
        for k in range(num_points):
            if is_alive[k]:
                nearest[k] = _nearest(distance, is_alive, k)
    return _numbered(merged_to, is_alive)


@njit(cache=True, nogil=True)
def _nearest_pair(
    distance: np.ndarray, nearest: np.ndarray, is_alive: np.ndarray
) -> int:
    """Return the cluster whose nearest one is nearest of all; -1 for none."""
    best = -1
    for i in range(len(nearest)):
        if is_alive[i] and nearest[i] >= 0:
            here = distance[i, nearest[i]]
            if best < 0 or here < distance[best, nearest[best]]:
                best = i
    return best


@njit(cache=True, nogil=True)
def cheapest_merge(points: np.ndarray, floor: float) -> tuple[float, int, int]:
    """Find the two clusters whose merge loses least likelihood.

    Args:
        points: moments, float64[N, 1 + 2 D].
        floor: least variance.

    Returns:
        (loss in nats, i, j) with i > j; infinite, -1, -1 for less than two clusters.
    """
    objf = np.array([log_likelihood(point, floor) for point in points])
    least, best_i, best_j = np.inf, -1, -1
    for i in range(len(points)):
        for j in range(i):
            loss = _loss(points, objf, i, j, floor)
            if loss < least:
                least, best_i, best_j = loss, i, j
    return least, best_i, best_j


@njit(cache=True, nogil=True)
def _numbered(merged_to: np.ndarray, is_alive: np.ndarray) -> np.ndarray:
    """Follow each point to the cluster it ended in, and number those from 0."""
    number = np.cumsum(is_alive) - 1
    cluster = np.empty(len(merged_to), np.int32)
    for i in range(len(merged_to)):
        end = i
        while merged_to[end] != end:
            end = merged_to[end]
        cluster[i] = number[end]
    return cluster


# -- top down -------------------------------------------------------------------------


class GlibcRandom:
    """The numbers of the C library's `rand()`, which Kaldi's k-means starts from.

    An additive feedback generator: r[n] = r[n - 3] + r[n - 31] modulo 2^32, its lowest
    bit dropped. Each run of Kaldi's `cluster-phones` starts with seed 1.

    Args:
        seed: > 0.
    """

    def __init__(self, seed: int = 1) -> None:
        state = [seed]
        for _ in range(30):
            state.append(16807 * state[-1] % 2147483647)
        self._state = state + state[:3]
        for _ in range(310):
            self()

    def __call__(self) -> int:
        """Return the next number, 0 ... 2^31 - 1."""
        value = (self._state[-31] + self._state[-3]) & 0xFFFFFFFF
        self._state = [*self._state[-30:], value]
        return value >> 1


@njit(cache=True, nogil=True)
def _two_means(points: np.ndarray, skip: int, floor: float) -> tuple[float, np.ndarray]:
    """Split points in two: deal them out, then move single points while that helps.

    Args:
        points: moments, float64[N, 1 + 2 D], N >= 2.
        skip: step in which points are dealt out to the two clusters, coprime to N.
        floor: least variance.

    Returns:
        (gain in log-likelihood over one cluster, cluster of each point int32[N]).
    """
    num_points = len(points)
    cluster = np.empty(num_points, np.int32)
    clusters = np.zeros((2, points.shape[1]))
    i = 0
    for n in range(num_points):
        cluster[i] = n % 2
        clusters[n % 2] += points[i]
        i = (i + skip) % num_points
    whole = log_likelihood(clusters[0] + clusters[1], floor)
    objf = np.array(
        [log_likelihood(clusters[0], floor), log_likelihood(clusters[1], floor)]
    )
    for _ in range(_PASSES):
        num_moved = 0
        for i in range(num_points):
            mine = cluster[i]
            other = 1 - mine
            without = log_likelihood(clusters[mine] - points[i], floor)
            merged = log_likelihood(clusters[other] + points[i], floor)
            if merged + without - objf[other] - objf[mine] > 0.0:
                clusters[mine] -= points[i]
                clusters[other] += points[i]
                objf[mine], objf[other] = without, merged
                cluster[i] = other
                num_moved += 1
        if num_moved == 0:
            break
    return objf[0] + objf[1] - whole, cluster


def _best_halves(
    points: np.ndarray, floor: float, random: GlibcRandom
) -> tuple[float, np.ndarray]:
    """Return the best of several random starts of `_two_means`.

    Source: Kaldi `tree/cluster-utils.cc` (`ClusterKMeans`, `ClusterKMeansOnce`).
    """
    num_points = len(points)
    best_gain, best = 0.0, np.zeros(num_points, np.int32)
    for attempt in range(_TRIES):
        skip = 1 + random() % (num_points - 1)
        while math.gcd(skip, num_points) != 1:
            skip = skip % (num_points - 1) + 1
        gain, halves = _two_means(points, skip, floor)
        if attempt == 0 or gain > best_gain:
            best_gain, best = gain, halves
    return best_gain, best


@dataclass(order=True)
class _Leaf:
    """A cluster that may be split; ordered by what that gains, greatest first."""

    loss: float
    number: int
    members: np.ndarray = field(compare=False)
    halves: np.ndarray = field(compare=False)


def cluster_top_down(points: np.ndarray, floor: float) -> list[np.ndarray]:
    """Split a set of points in two, and the parts again, as long as likelihood is won.

    Args:
        points: moments, float64[N, 1 + 2 D].
        floor: least variance.

    Returns:
        Every cluster that occurred on the way down except the set of all points: sorted
        indices of its points.

    Source: Kaldi `tree/cluster-utils.cc` (`TreeCluster`), with its sequence of random
    numbers, so that equal statistics give Kaldi's clusters.
    """
    random = GlibcRandom()
    found: list[np.ndarray] = []
    queue: list[_Leaf] = []

    def consider(members: np.ndarray) -> None:
        if len(members) > 1:
            gain, halves = _best_halves(points[members], floor, random)
            if gain > 0.0:
                heapq.heappush(queue, _Leaf(-gain, len(found), members, halves))

    consider(np.arange(len(points)))
    while queue:
        leaf = heapq.heappop(queue)
        parts = [leaf.members[leaf.halves == half] for half in (0, 1)]
        for part in parts:
            found.append(part)
            consider(part)
    return found


# -- questions -------------------------------------------------------------------------


def question_table(
    sets: Sequence[Sequence[Sequence[int]]], highest: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return questions as arrays.

    Args:
        sets: for each column of the events, the sets of its questions.
        highest: the highest value that occurs; higher ones in questions are dropped.

    Returns:
        (uint8[K, Q, V], 1 where a value is in the set of a question; number of
        questions of each column, int64[K]).
    """
    num_questions = np.array([len(questions) for questions in sets])
    members = np.zeros((len(sets), num_questions.max(initial=0), highest + 1), np.uint8)
    for column, questions in enumerate(sets):
        for number, values in enumerate(questions):
            members[column, number, [v for v in values if v <= highest]] = 1
    return members, num_questions


@njit(cache=True, nogil=True)
def best_split(
    moments: np.ndarray,
    events: np.ndarray,
    rows: np.ndarray,
    members: np.ndarray,
    num_questions: np.ndarray,
    floor: float,
) -> tuple[float, int, int]:
    """Find the question that gains most likelihood in a leaf.

    A key that some event of the leaf leaves out is not asked for. Questions that differ
    in values only that do not occur here, or are complements here, are tried once.

    Args:
        moments: float64[N, 1 + 2 D] of all events.
        events: int32[N, K] values of the keys; negative: left out.
        rows: int64[n], the events of the leaf.
        members: uint8[K, Q, V], see `question_table`.
        num_questions: int64[K].
        floor: least variance.

    Returns:
        (gain in nats, column of the key, question); gain 0 if no question splits. The
        first of equal gains wins, equality being meant up to rounding.
    """
    best_gain, best_column, best_question = 0.0, -1, -1
    if len(rows) < 2:
        return best_gain, best_column, best_question
    for column in range(events.shape[1]):
        present, sums = _sums_by_value(moments, events, rows, column, members.shape[2])
        if len(present) < 2:
            continue
        gain, question, slack = _best_question(
            sums, present, members[column, : num_questions[column]], floor
        )
        if gain > best_gain + slack:
            best_gain, best_column, best_question = gain, column, question
    return best_gain, best_column, best_question


@njit(cache=True, nogil=True)
def _sums_by_value(
    moments: np.ndarray,
    events: np.ndarray,
    rows: np.ndarray,
    column: int,
    num_values: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Sum the moments of a leaf's events for each value of a key.

    Returns:
        (values that occur int64[n], sums float64[n, 1 + 2 D]); none if an event leaves
        the key out.
    """
    width = moments.shape[1]
    slot = np.full(num_values, -1, np.int64)
    present = np.empty(min(num_values, len(rows)), np.int64)
    count = 0
    for row in rows:
        value = events[row, column]
        if value < 0:
            return present[:0], np.empty((0, width))
        if slot[value] < 0:
            slot[value] = count
            present[count] = value
            count += 1
    sums = np.zeros((count, width))
    for row in rows:
        target = sums[slot[events[row, column]]]
        source = moments[row]
        for m in range(width):
            target[m] += source[m]
    return present[:count], sums


@njit(cache=True, nogil=True)
def _best_question(
    sums: np.ndarray, present: np.ndarray, members: np.ndarray, floor: float
) -> tuple[float, int, float]:
    """Find the question on one key with the greatest gain.

    Returns:
        (gain, question, difference up to which two gains are equal).
    """
    num_values, width = sums.shape
    total = np.zeros(width)
    for n in range(num_values):
        total += sums[n]
    whole = log_likelihood(total, floor)
    prints = _fingerprints(num_values)
    tried = np.empty(len(members), np.uint64)
    num_tried = 0
    part, rest = np.empty(width), np.empty(width)
    best_gain, best_question = 0.0, -1
    slack = _EQUAL * abs(whole)
    for question in range(len(members)):
        size, mark = 0, np.uint64(0)
        for n in range(num_values):
            if members[question, present[n]]:
                size += 1
                mark ^= prints[n]
        mark = min(mark, mark ^ prints[num_values])
        if size in (0, num_values) or _is_in(tried[:num_tried], mark):
            continue
        tried[num_tried] = mark
        num_tried += 1
        smaller = 1 if 2 * size <= num_values else 0
        part[:] = 0.0
        for n in range(num_values):
            if members[question, present[n]] == smaller:
                for m in range(width):
                    part[m] += sums[n, m]
        rest[:] = total - part
        gain = log_likelihood(part, floor) + log_likelihood(rest, floor) - whole
        if gain > best_gain + slack:
            best_gain, best_question = gain, question
    return best_gain, best_question, slack


@njit(cache=True, nogil=True)
def _is_in(marks: np.ndarray, mark: np.uint64) -> bool:
    """Return True if a fingerprint is among those given."""
    for known in marks:  # noqa: SIM110 - plain loops compile best
        if known == mark:
            return True
    return False


@njit(cache=True, nogil=True)
def _fingerprints(count: int) -> np.ndarray:
    """Return a 64-bit number for each value, and then the XOR of all, uint64[n + 1].

    The XOR over the values in a set stands for the set; two sets among a few hundred
    share it with a probability of some 1e-15. Numbers: splitmix64.
    """
    prints = np.zeros(count + 1, np.uint64)
    state = np.uint64(0)
    for n in range(count):
        state += np.uint64(0x9E3779B97F4A7C15)
        z = state
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        prints[n] = z ^ (z >> np.uint64(31))
        prints[count] ^= prints[n]
    return prints
