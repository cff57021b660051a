"""Build the decision tree that ties the states of phones in context.

Each root (a set of phones) starts as one leaf. Again and again the leaf is split, by
the question, that gains most log-likelihood when each leaf is a Gaussian, until no
split gains more than a threshold or the tree has enough leaves. Then leaves of one root
are merged again if that costs no more than the least split gained: two branches may
have led to the same sound. Last, the cheapest merges make the number of leaves a
multiple of 8.

Source: Kaldi `bin/build-tree.cc`, `tree/build-tree.cc` (`BuildTree`),
`tree/build-tree-utils.cc` (`SplitDecisionTree`, `ClusterEventMapRestrictedByMap`,
`ClusterEventMapToNClustersRestrictedByMap`, `RenumberEventMap`). Likelihoods are in
float64, where Kaldi rounds them to float32, so that questions whose gains differ by
rounding only may be chosen differently: here the first of equal questions wins, a
question and its complement being equal.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latflow.errors import UserError
from latflow.hmm.clustering import (
    best_split,
    cheapest_merge,
    cluster_bottom_up,
    question_table,
    sum_groups,
)
from latflow.hmm.event_map import PDF_CLASS, Constant, EventMap, Split
from latflow.hmm.topology import Topology
from latflow.hmm.tree import ContextDependency, Root, stub_map
from latflow.hmm.tree_statistics import Questions, StatisticsArrays

logger = logging.getLogger(__name__)


def build_tree(
    statistics: StatisticsArrays,
    questions: Questions,
    roots: Sequence[tuple[bool, bool, Sequence[int]]],
    topology: Topology,
    *,
    max_leaves: int,
    threshold: float = 300.0,
    cluster_threshold: float = -1.0,
    leaf_multiple: int = 8,
) -> ContextDependency:
    """Build a tree.

    Args:
        statistics: of phones in context; their window is the tree's.
        questions: what may be asked.
        roots: (shared, split, phones) of each line of `phones/roots.int`.
        topology: determines the number of pdf-classes of each phone.
        max_leaves: number of leaves at which splitting ends; <= 0: no limit.
        threshold: least gain of a split, in nats over all frames.
        cluster_threshold: greatest loss of a merge of leaves, nats; negative takes the
            gain of the least split, 0 merges none.
        leaf_multiple: the number of leaves is brought down to a multiple of this, if
            the roots allow it; 1 leaves it unchanged. Kaldi's `round-num-leaves`.

    Returns:
        The tree; leaves are numbered 0, 1, ... without a gap.

    Raises:
        UserError: the roots are not a partition of the phones, a root is split but not
            shared, or a phone in the statistics has no root.
    """
    checked = _checked_roots(roots, statistics)
    stub = stub_map(checked, topology.pdf_class_counts(), statistics.central_position)
    root_of = stub.answers(statistics.columns)
    if root_of.min() < 0:
        raise UserError(
            "a pdf-class in the tree statistics that the topology does not have",
            remedy="use the alignment and language directory of one system",
        )
    fixed = [phone for root in checked if not root.split for phone in root.phones]
    is_split = ~np.isin(statistics.phones, fixed)
    splitter = _Splitter(statistics, questions, root_of, is_split, stub.num_leaves)
    least_gain = splitter.split(threshold, max_leaves)
    tree = stub.replaced(splitter.subtrees())
    logger.info(
        "tree: %d splits of %d roots gain %.4f nats per frame",
        tree.num_leaves - stub.num_leaves,
        stub.num_leaves,
        splitter.gain / statistics.moments[:, 0].sum(),
    )
    if cluster_threshold != 0.0:
        limit = least_gain if cluster_threshold < 0.0 else cluster_threshold
        tree = _merged(tree, statistics, root_of, limit)
    tree = _rounded(tree, statistics, root_of, stub.num_leaves, leaf_multiple)
    tree = _renumbered(tree)
    logger.info("tree: %d leaves", tree.num_leaves)
    width = statistics.events.shape[1] - 1
    return ContextDependency(width, statistics.central_position, tree)


def leaf_statistics(
    statistics: StatisticsArrays, tree: ContextDependency
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sum the statistics of each leaf of a tree.

    Args:
        statistics: of phones in context, with the tree's window.
        tree: the tree.

    Returns:
        (count float64[P], sum float64[P, D], sum of squares float64[P, D]); all 0 for
        pdfs without data.

    Raises:
        UserError: the tree has no leaf for some of the statistics.
    """
    width = statistics.events.shape[1] - 1
    if (width, statistics.central_position) != (
        tree.context_width,
        tree.central_position,
    ):
        raise UserError("the tree and its statistics have different context windows")
    leaf = tree.to_pdf.answers(statistics.columns)
    if leaf.min() < 0:
        raise UserError(
            "the tree has no pdf for some phones of its statistics",
            remedy="let context-independent phones share no root with others",
        )
    sums = sum_groups(statistics.moments, leaf, tree.num_pdfs)
    dim = statistics.dim
    return sums[:, 0], sums[:, 1 : 1 + dim], sums[:, 1 + dim :]


def _checked_roots(
    roots: Sequence[tuple[bool, bool, Sequence[int]]], statistics: StatisticsArrays
) -> list[Root]:
    """Return the roots, phones sorted, once they are known to make sense."""
    checked = [
        Root(tuple(sorted(phones)), shared=shared, split=split)
        for shared, split, phones in roots
    ]
    remedy = "fix phones/roots.int of the language directory"
    for root in checked:
        if root.split and not root.shared:
            raise UserError(
                f"the tree root of phone {root.phones[0]} is split but not shared",
                remedy=remedy,
            )
    rooted = {phone for root in checked for phone in root.phones}
    seen = set(np.unique(statistics.phones).tolist())
    if seen - rooted:
        raise UserError(
            f"phone {min(seen - rooted)} is in the data but has no tree root",
            remedy=remedy,
        )
    if rooted - seen:
        logger.warning("no tree statistics of phones %s", sorted(rooted - seen))
    return checked


@dataclass
class _Node:
    """A node of the tree while it grows: a leaf until it has children.

    Attributes:
        rows: indices of its events, int64[n].
        leaf: its number.
        gain: of its best split; 0 if it has none.
        key: asked about in the best split.
        values: the question.
        children: the yes and the no node, once split.
    """

    rows: np.ndarray
    leaf: int
    gain: float
    key: int
    values: tuple[int, ...]
    children: tuple[_Node, _Node] | None = None

    def event_map(self) -> EventMap:
        """Return the subtree below this node."""
        if self.children is None:
            return Constant(self.leaf)
        yes, no = (child.event_map() for child in self.children)
        return Split(self.key, self.values, yes, no)


class _Splitter:
    """Greedy splitting of all roots, best leaf first.

    Source: Kaldi `tree/build-tree-utils.cc` (`DecisionTreeSplitter`,
    `SplitDecisionTree`).
    """

    def __init__(
        self,
        statistics: StatisticsArrays,
        questions: Questions,
        root_of: np.ndarray,
        is_split: np.ndarray,
        num_roots: int,
    ) -> None:
        self._statistics = statistics
        keys = range(PDF_CLASS, statistics.events.shape[1] - 1)
        highest = int(statistics.events.max())
        self._sets = [questions.of_key(key) for key in keys]
        self._table = question_table(self._sets, highest)
        rows = np.flatnonzero(is_split)
        rows = rows[np.argsort(root_of[rows], kind="stable")]
        bounds = np.searchsorted(root_of[rows], np.arange(num_roots + 1))
        self._roots = [
            self._node(rows[bounds[n] : bounds[n + 1]], n) for n in range(num_roots)
        ]
        self.num_leaves = num_roots
        self.gain = 0.0

    def _node(self, rows: np.ndarray, leaf: int) -> _Node:
        """Return a leaf with its best split."""
        statistics = self._statistics
        gain, column, question = best_split(
            statistics.moments,
            statistics.events,
            rows,
            *self._table,
            statistics.variance_floor,
        )
        values = self._sets[column][question] if gain > 0.0 else ()
        return _Node(rows, leaf, gain, column + PDF_CLASS, values)

    def split(self, threshold: float, max_leaves: int) -> float:
        """Split until no split gains more than a threshold, or there are enough leaves.

        Of equal gains, Kaldi's order holds: the later root first, within a root the
        branch of `yes`.

        Returns:
            The gain of the least split; infinite if there was none.
        """
        queue: list[tuple[float, int, tuple[int, ...], int]] = []
        nodes: list[_Node] = []

        def offer(node: _Node, root: int, path: tuple[int, ...]) -> None:
            if node.gain > threshold:
                heapq.heappush(queue, (-node.gain, -root, path, len(nodes)))
                nodes.append(node)

        for number, node in enumerate(self._roots):
            offer(node, number, ())
        least = np.inf
        while queue and (max_leaves <= 0 or self.num_leaves < max_leaves):
            _, root, path, index = heapq.heappop(queue)
            node = nodes[index]
            least = min(least, node.gain)
            self.gain += node.gain
            node.children = self._children(node)
            for side, child in enumerate(node.children):
                offer(child, -root, (*path, side))
        return least

    def _children(self, node: _Node) -> tuple[_Node, _Node]:
        """Split a leaf: `yes` keeps its number, `no` gets the next one."""
        answers = self._statistics.events[node.rows, node.key - PDF_CLASS]
        is_yes = np.isin(answers, node.values)
        yes = self._node(node.rows[is_yes], node.leaf)
        no = self._node(node.rows[~is_yes], self.num_leaves)
        self.num_leaves += 1
        node.rows = node.rows[:0]
        return yes, no

    def subtrees(self) -> dict[int, EventMap]:
        """Return the subtree of each root."""
        return {n: root.event_map() for n, root in enumerate(self._roots)}


def _merged(
    tree: EventMap, statistics: StatisticsArrays, root_of: np.ndarray, limit: float
) -> EventMap:
    """Merge leaves of one root that are alike.

    Source: Kaldi `tree/build-tree-utils.cc` (`ClusterEventMapGetMapping`).
    """
    sums, leaves_of = _leaves_by_root(tree, statistics, root_of)
    target: dict[int, EventMap] = {}
    for leaves in leaves_of.values():
        clusters = cluster_bottom_up(sums[leaves], limit, statistics.variance_floor)
        target.update(_targets(leaves, clusters.tolist()))
    return tree.replaced(target)


def _rounded(
    tree: EventMap,
    statistics: StatisticsArrays,
    root_of: np.ndarray,
    num_roots: int,
    multiple: int,
) -> EventMap:
    """Merge the leaves whose merges cost least until their number is a multiple.

    Nothing is done if there would be fewer leaves than roots.

    Source: Kaldi `tree/build-tree-utils.cc`
    (`ClusterEventMapToNClustersRestrictedByMap`), as `BuildTree` calls it.
    """
    excess = len(tree.possible({})) % multiple
    if not excess or len(tree.possible({})) - excess < num_roots:
        return tree
    sums, leaves_of = _leaves_by_root(tree, statistics, root_of)
    floor = statistics.variance_floor
    owner = {root: list(range(len(leaves))) for root, leaves in leaves_of.items()}
    points = {root: sums[leaves] for root, leaves in leaves_of.items()}
    merges = {root: cheapest_merge(points[root], floor) for root in points}
    alive = {root: list(range(len(leaves))) for root, leaves in leaves_of.items()}
    for _ in range(excess):
        root = min(merges, key=lambda root: merges[root][0])
        loss, i, j = merges[root]
        if not np.isfinite(loss):
            return tree
        kept, gone = alive[root][i], alive[root].pop(j)
        owner[root] = [kept if o == gone else o for o in owner[root]]
        points[root][i] += points[root][j]
        points[root] = np.delete(points[root], j, axis=0)
        merges[root] = cheapest_merge(points[root], floor)
    target: dict[int, EventMap] = {}
    for root, leaves in leaves_of.items():
        number = {kept: n for n, kept in enumerate(alive[root])}
        target.update(_targets(leaves, [number[kept] for kept in owner[root]]))
    return tree.replaced(target)


def _leaves_by_root(
    tree: EventMap, statistics: StatisticsArrays, root_of: np.ndarray
) -> tuple[np.ndarray, dict[int, list[int]]]:
    """Return moments of each leaf [P, 1 + 2 D], and leaves with data of each root."""
    leaf = tree.answers(statistics.columns)
    sums = sum_groups(statistics.moments, leaf, tree.num_leaves)
    leaves_of: dict[int, list[int]] = {}
    for root, number in sorted(set(zip(root_of.tolist(), leaf.tolist(), strict=True))):
        leaves_of.setdefault(root, []).append(number)
    return sums, leaves_of


def _targets(leaves: list[int], clusters: list[int]) -> dict[int, EventMap]:
    """Return what replaces each leaf: cluster n takes the number of the n-th leaf."""
    return {
        number: Constant(leaves[cluster])
        for number, cluster in zip(leaves, clusters, strict=True)
    }


def _renumbered(tree: EventMap) -> EventMap:
    """Return the tree with leaves numbered from 0 without a gap, order kept."""
    kept = sorted(tree.possible({}))
    return tree.replaced({old: Constant(new) for new, old in enumerate(kept)})
