"""Clustering of diagonal Gaussians by likelihood.

A set of frames is summed up by its *moments*: count, sum and sum of squares of each
dimension, float64[1 + 2 D]. Its objective is the log-likelihood of its frames under
their own Gaussian of maximum likelihood, variances floored:

    L = -1/2 count * sum_d (log(2 pi) + log max(variance_d, floor))

Joining sets loses likelihood, splitting gains it; all clustering here maximises it.

Public: `log_likelihood`, `sum_groups`, `cluster_bottom_up`, `cheapest_join`,
`cluster_top_down`.

Source: Kaldi `tree/clusterable-classes.cc` (`GaussClusterable`),
`tree/cluster-utils.cc` (`BottomUpClusterer`, `ClusterKMeans`, `TreeClusterer`); float64
throughout, where Kaldi rounds each objective to float32.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

import numpy as np
from numba import njit

_LOG_2PI = math.log(2.0 * math.pi)
_PASSES = 2000  # Kaldi: 20 iterations of k-means, each with up to 100 passes
_TRIES = 10  # random starts of k-means
_TOLERANCE = 1e-9  # relative; distances this close to the threshold are equal to it


@njit(cache=True, nogil=True)
def log_likelihood(moments: np.ndarray, floor: float) -> float:
    """Log-likelihood of a set of frames under its own Gaussian; 0 for an empty set.

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
    """Likelihood lost by joining clusters i and j."""
    return max(0.0, objf[i] + objf[j] - log_likelihood(points[i] + points[j], floor))


@njit(cache=True, nogil=True)
def _nearest(distance: np.ndarray, is_alive: np.ndarray, i: int) -> int:
    """The cluster j < i nearest to i, the first of equals; -1 if there is none."""
    best = -1
    for j in range(i):
        if is_alive[j] and (best < 0 or distance[i, j] < distance[i, best]):
            best = j
    return best


@njit(cache=True, nogil=True)
def cluster_bottom_up(points: np.ndarray, max_loss: float, floor: float) -> np.ndarray:
    """Join the nearest two clusters again and again, while that costs at most a limit.

    Args:
        points: moments, float64[N, 1 + 2 D].
        max_loss: greatest loss of log-likelihood of a join, in nats.
        floor: least variance.

    Returns:
        int32[N], the cluster of each point; clusters are numbered 0, 1, ... in the
        order of their highest point.

    Source: Kaldi `tree/cluster-utils.cc` (`ClusterBottomUp`). Kaldi takes a loss equal
    to the limit before the first join but not after; here it is taken always, equality
    being meant up to rounding.
    """
    num_points = len(points)
    limit = max_loss * (1.0 + _TOLERANCE)
    clusters = points.copy()
    is_alive = np.ones(num_points, np.bool_)
    joined_to = np.arange(num_points)
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
        joined_to[gone] = best
        for k in range(num_points):
            if is_alive[k] and k != best:
                loss = _loss(clusters, objf, k, best, floor)
                distance[max(k, best), min(k, best)] = loss
        for k in range(num_points):
            if is_alive[k]:
                nearest[k] = _nearest(distance, is_alive, k)
    return _numbered(joined_to, is_alive)


@njit(cache=True, nogil=True)
def _nearest_pair(
    distance: np.ndarray, nearest: np.ndarray, is_alive: np.ndarray
) -> int:
    """The cluster whose nearest one is nearest of all; -1 if only one is left."""
    best = -1
    for i in range(len(nearest)):
        if is_alive[i] and nearest[i] >= 0:
            here = distance[i, nearest[i]]
            if best < 0 or here < distance[best, nearest[best]]:
                best = i
    return best


@njit(cache=True, nogil=True)
def cheapest_join(points: np.ndarray, floor: float) -> tuple[float, int, int]:
    """The two clusters whose join loses least likelihood.

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
def _numbered(joined_to: np.ndarray, is_alive: np.ndarray) -> np.ndarray:
    """Follow each point to the cluster it ended in, and number those from 0."""
    number = np.cumsum(is_alive) - 1
    cluster = np.empty(len(joined_to), np.int32)
    for i in range(len(joined_to)):
        end = i
        while joined_to[end] != end:
            end = joined_to[end]
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
        """The next number, 0 ... 2^31 - 1."""
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
            joined = log_likelihood(clusters[other] + points[i], floor)
            if joined + without - objf[other] - objf[mine] > 0.0:
                clusters[mine] -= points[i]
                clusters[other] += points[i]
                objf[mine], objf[other] = without, joined
                cluster[i] = other
                num_moved += 1
        if num_moved == 0:
            break
    return objf[0] + objf[1] - whole, cluster


def _best_halves(
    points: np.ndarray, floor: float, random: GlibcRandom
) -> tuple[float, np.ndarray]:
    """The best of several random starts of `_two_means`.

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
