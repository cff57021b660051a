"""Tree building against its slow twin, and what must hold of any tree."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import naive_tree

from latflow.hmm.clustering import (
    cluster_bottom_up,
    cluster_top_down,
    log_likelihood,
)
from latflow.hmm.event_map import PDF_CLASS
from latflow.hmm.topology import Topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.hmm.tree_building import build_tree, leaf_statistics
from latflow.hmm.tree_statistics import (
    Questions,
    StatisticsArrays,
    TreeStatistics,
    cluster_phones,
    phone_clusters,
)
from latflow.kaldi.io import KaldiReader, KaldiWriter

FLOOR = 0.01
PHONES = range(1, 7)  # 1, 2: silence, context-independent


def made_up(seed, size=60, dim=2):
    """Random statistics of triphones of 6 phones, the first two without context."""
    random = np.random.default_rng(seed)
    events = np.stack(
        [
            random.integers(0, 3, size),
            random.integers(0, 7, size),
            random.integers(1, 7, size),
            random.integers(0, 7, size),
        ],
        axis=1,
    ).astype(np.int32)
    events[events[:, 2] <= 2, 1] = events[events[:, 2] <= 2, 3] = -1
    events = np.unique(events, axis=0)
    count = random.integers(1, 30, (len(events), 1)).astype(float)
    mean = random.normal(0, 2, (len(events), dim))
    mean += events[:, :1] + np.maximum(events[:, 1:2], 0) * 0.5
    square = mean**2 + random.gamma(2.0, 0.5, mean.shape)
    moments = np.hstack([count, count * mean, count * square])
    return StatisticsArrays(events, moments, 1, FLOOR)


TOPOLOGY = Topology.standard([3, 4, 5, 6], [1, 2], num_silence_states=3)
SETS = ((1,), (2,), (3, 4), (3, 5), (3,), (4,), (4, 5, 6), (5,), (6,), (1, 2))
QUESTIONS = Questions.compile(SETS, TOPOLOGY)
ROOTS = [
    (True, True, [1, 2]),
    (True, True, [3, 4]),
    (True, True, [5]),
    (True, True, [6]),
]
seeds = st.integers(0, 10_000)


def as_events(statistics):
    """Rows of the naive twin."""
    keys = range(PDF_CLASS, 3)
    return [
        ({k: v for k, v in zip(keys, row, strict=True) if v >= 0}, moments)
        for row, moments in zip(
            statistics.events.tolist(), statistics.moments, strict=True
        )
    ]


@given(
    seed=seeds,
    threshold=st.sampled_from([0.5, 5.0, 20.0, 1e9]),
    max_leaves=st.sampled_from([0, 4, 6, 9]),
)
def test_greedy_splitting_is_that_of_the_slow_twin(seed, threshold, max_leaves):
    statistics = made_up(seed)
    rows = as_events(statistics)
    roots = [[r for r in rows if r[0][1] in phones] for _, _, phones in ROOTS]
    questions = {key: [set(q) for q in QUESTIONS.of_key(key)] for key in range(-1, 3)}
    naive, least = naive_tree.grow(roots, questions, threshold, max_leaves, FLOOR)
    tree = build_tree(
        statistics,
        QUESTIONS,
        ROOTS,
        TOPOLOGY,
        max_leaves=max_leaves,
        threshold=threshold,
        cluster_threshold=0.0,
        leaf_multiple=1,
    )
    leaves = tree.to_pdf.answers(statistics.columns)
    want = []
    for event, _ in rows:
        root = next(n for n, r in enumerate(ROOTS) if event[1] in r[2])
        want.append(naive_tree.leaf_of(naive[root], event))
    assert leaves.tolist() == want

    # and with the leaves joined: the partition is that of the twin
    joined = build_tree(
        statistics,
        QUESTIONS,
        ROOTS,
        TOPOLOGY,
        max_leaves=max_leaves,
        threshold=threshold,
        leaf_multiple=1,
    )
    got = joined.to_pdf.answers(statistics.columns)
    for _, _, phones in ROOTS:
        here = np.isin(statistics.phones, phones)
        present = np.unique(leaves[here])
        sums = [statistics.moments[leaves == leaf].sum(axis=0) for leaf in present]
        cluster = naive_tree.cluster_bottom_up(sums, least, FLOOR)
        of_row = cluster[np.searchsorted(present, leaves[here])]
        pairs = set(zip(of_row.tolist(), got[here].tolist(), strict=True))
        assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
    assert sorted(set(got.tolist())) == list(range(joined.num_pdfs))


@given(seed=seeds, multiple=st.integers(1, 9))
def test_rounding_takes_the_cheapest_merges_within_roots(seed, multiple):
    statistics = made_up(seed)
    built = [
        build_tree(
            statistics,
            QUESTIONS,
            ROOTS,
            TOPOLOGY,
            max_leaves=30,
            threshold=0.0,
            cluster_threshold=0.0,
            leaf_multiple=n,
        )
        for n in (1, multiple)
    ]
    before, after = (t.to_pdf.answers(statistics.columns) for t in built)
    num_leaves = built[0].num_pdfs
    excess = num_leaves % multiple
    if num_leaves - excess < len(ROOTS):
        excess = 0
    assert built[1].num_pdfs == num_leaves - excess
    sums = {n: statistics.moments[before == n].sum(axis=0) for n in set(before)}
    root = {n: naive_root(statistics.phones[before == n][0]) for n in sums}
    owner = {n: n for n in sums}
    for _ in range(excess):
        pairs = [(a, b) for a in sums for b in sums if a > b and root[a] == root[b]]

        def loss(pair):
            one, two = sums[pair[0]], sums[pair[1]]
            like = naive_tree.log_likelihood
            return like(one, FLOOR) + like(two, FLOOR) - like(one + two, FLOOR)

        a, b = min(pairs, key=loss)
        sums[a] = sums[a] + sums.pop(b)
        owner = {n: a if o == b else o for n, o in owner.items()}
    want = [owner[n] for n in before.tolist()]
    assert len(set(zip(want, after.tolist(), strict=True))) == built[1].num_pdfs


def naive_root(phone):
    return next(n for n, (_, _, phones) in enumerate(ROOTS) if phone in phones)


@given(seed=seeds, limit=st.floats(0.0, 50.0))
def test_bottom_up_clustering_is_that_of_the_slow_twin(seed, limit):
    points = made_up(seed, size=12).moments
    got = cluster_bottom_up(points, limit, FLOOR)
    want = naive_tree.cluster_bottom_up(points, limit, FLOOR)
    np.testing.assert_array_equal(got, want)


@given(seed=seeds, dim=st.integers(1, 90))
def test_log_likelihood_is_that_of_the_slow_twin(seed, dim):
    for row in made_up(seed, size=3, dim=dim).moments:
        want = naive_tree.log_likelihood(row, FLOOR)
        assert log_likelihood(row, FLOOR) == pytest.approx(want, rel=1e-12)
        tiny = row * np.array([1.0, *[0.0] * (2 * dim)])
        assert log_likelihood(tiny, 1e-30) == pytest.approx(
            naive_tree.log_likelihood(tiny, 1e-30), rel=1e-12
        )
    assert log_likelihood(np.zeros(1 + 2 * dim), FLOOR) == 0.0


@given(seed=seeds)
def test_splits_never_lower_the_likelihood(seed):
    statistics = made_up(seed)
    previous = -np.inf
    for max_leaves in range(4, 12):
        tree = build_tree(
            statistics,
            QUESTIONS,
            ROOTS,
            TOPOLOGY,
            max_leaves=max_leaves,
            threshold=0.0,
            cluster_threshold=0.0,
            leaf_multiple=1,
        )
        count, total, squares = leaf_statistics(statistics, tree)
        leaves = np.hstack([count[:, None], total, squares])
        now = sum(log_likelihood(row, FLOOR) for row in leaves)
        assert now >= previous - 1e-9 * abs(now)
        assert tree.num_pdfs <= max_leaves
        np.testing.assert_allclose(
            leaves.sum(axis=0), statistics.moments.sum(axis=0), rtol=1e-10
        )
        previous = now


@given(seed=seeds)
def test_trees_round_trip_and_answer_alike(seed):
    statistics = made_up(seed)
    tree = build_tree(
        statistics, QUESTIONS, ROOTS, TOPOLOGY, max_leaves=12, threshold=0.0
    )
    for binary in (True, False):
        stream = io.BytesIO()
        tree.write(KaldiWriter(stream, binary=binary))
        stream.seek(0)
        again = ContextDependency.read(KaldiReader(stream))
        for event, _ in as_events(statistics)[::5]:
            window = [event.get(place, 0) for place in range(3)]
            pdf = tree.pdf(window, event[PDF_CLASS])
            assert again.pdf(window, event[PDF_CLASS]) == pdf
            assert pdf in tree.possible_pdfs(event[1], event[PDF_CLASS])
    # the many-row evaluation agrees with the one of single events
    answers = tree.to_pdf.answers(statistics.columns)
    single = [tree.to_pdf.answer(event) for event, _ in as_events(statistics)]
    assert answers.tolist() == single


@given(seed=seeds)
def test_transition_ids_are_one_to_one_with_what_they_stand_for(seed):
    tree = build_tree(
        made_up(seed), QUESTIONS, ROOTS, TOPOLOGY, max_leaves=12, threshold=0.0
    )
    model = TransitionModel.from_tree(tree, TOPOLOGY)
    assert model.num_pdfs == tree.num_pdfs
    seen = set()
    for tid in range(1, model.num_transition_ids + 1):
        state = int(model.state[tid])
        phone, hmm_state, pdf, loop = model.tuples[state - 1].tolist()
        assert model.state_of(phone, hmm_state, pdf, loop) == state
        assert model.first_id[state] + model.arc[tid] == tid
        seen.add((phone, hmm_state, pdf, int(model.arc[tid])))
    assert len(seen) == model.num_transition_ids


@given(seed=seeds, data=st.data())
def test_updated_probabilities_sum_to_one(seed, data):
    tree = build_tree(
        made_up(seed), QUESTIONS, ROOTS, TOPOLOGY, max_leaves=9, threshold=0.0
    )
    model = TransitionModel.from_tree(tree, TOPOLOGY)
    random = np.random.default_rng(seed)
    counts = random.exponential(10.0, model.num_transition_ids + 1)
    counts *= random.random(len(counts)) < 0.7
    floor = data.draw(st.sampled_from([1e-6, 0.01]))
    gain, frames = model.update(counts, floor=floor, min_count=0.1)
    assert frames == pytest.approx(counts[1:].sum())
    probs = np.exp(model.log_prob[1:].astype(float))
    sums = np.bincount(model.state[1:], probs)[1:]
    # the third flooring is not followed by a normalization, as in Kaldi
    np.testing.assert_allclose(sums, 1.0, atol=2e-5)
    assert probs.min() >= floor * (1 - 1e-5)
    if floor < 1e-3:
        assert gain > -1e-2
        again = model.log_prob.copy()
        model.update(counts, floor=floor, min_count=0.1)
        np.testing.assert_allclose(model.log_prob, again, atol=1e-5)


@given(seed=seeds)
def test_merged_statistics_are_those_of_the_whole(seed):
    random = np.random.default_rng(seed)
    tree = ContextDependency.monophone(
        [[p] for p in PHONES], TOPOLOGY.pdf_class_counts()
    )
    model = TransitionModel.from_tree(tree, TOPOLOGY)
    parts = [TreeStatistics() for _ in range(3)]
    whole, brute = TreeStatistics(), {}
    for n in range(9):
        phones = random.integers(1, 7, random.integers(1, 6)).tolist()
        ali = []
        for phone in phones:
            for state in range(3):
                tid = model.first_id[
                    model.state_of(phone, state, *pdf(tree, phone, state))
                ]
                arcs = TOPOLOGY.states(phone)[state].transitions
                onward = next(i for i, (s, _) in enumerate(arcs) if s == state + 1)
                loop = next(i for i, (s, _) in enumerate(arcs) if s == state)
                ali += [tid + onward] + [tid + loop] * int(random.integers(0, 3))
        frames = random.normal(size=(len(ali), 4)).astype(np.float32)
        parts[n % 3].accumulate(frames, np.array(ali), model, [1, 2])
        whole.accumulate(frames, np.array(ali), model, [1, 2])
        add_brute(brute, ali, frames, model, phones)
    merged = TreeStatistics()
    for part in reversed(parts):
        merged.merge(part)
    one, other = whole.arrays(), merged.arrays()
    np.testing.assert_array_equal(one.events, other.events)
    np.testing.assert_allclose(one.moments, other.moments, rtol=1e-12, atol=1e-12)
    assert [tuple(row) for row in one.events.tolist()] == sorted(brute)
    for row, moments in zip(one.events.tolist(), one.moments, strict=True):
        np.testing.assert_allclose(moments, brute[tuple(row)], rtol=1e-9, atol=1e-9)


def pdf(tree, phone, state):
    return (tree.pdf([phone], state),)


def add_brute(brute, ali, frames, model, phones):
    """Statistics frame by frame; a phone ends where its number of states is through."""
    index, last_state, position = -1, 3, []
    for tid in ali:
        state = int(model.hmm_state[tid])
        if state < last_state or (state == 0 and not model.is_self_loop[tid]):
            index += 1
        last_state = state
        position.append(index)
    for n, tid, frame in zip(position, ali, frames.astype(float), strict=True):
        phone = phones[n]
        around = [phones[m] if 0 <= m < len(phones) else 0 for m in (n - 1, n + 1)]
        left, right = (-1, -1) if phone <= 2 else around
        key = (int(model.hmm_state[tid]), left, phone, right)
        add = np.concatenate([[1.0], frame, frame**2])
        brute[key] = brute.get(key, 0.0) + add


@given(seed=seeds)
def test_top_down_clusters_are_nested_and_reach_every_separable_point(seed):
    points = made_up(seed, size=8, dim=3).moments
    clusters = [frozenset(c.tolist()) for c in cluster_top_down(points, FLOOR)]
    assert len(clusters) == 2 * len(points) - 2
    assert {frozenset([n]) for n in range(len(points))} <= set(clusters)
    for a in clusters:
        for b in clusters:
            assert a <= b or b <= a or not a & b


@given(seed=seeds)
def test_questions_hold_the_sets_given_and_are_sorted(seed):
    statistics = made_up(seed, size=200)
    sets = [[1], [2], [4, 3], [5], [6]]
    clusters = phone_clusters(statistics, sets)
    assert clusters == sorted(set(clusters))
    assert {(1,), (2,), (3, 4), (5,), (6,)} <= set(clusters)
    assert all((3 in c) == (4 in c) for c in clusters)
    assert tuple(PHONES) not in clusters
    questions = cluster_phones(statistics, sets, TOPOLOGY, extra_questions=[[3, 5, 1]])
    assert (1, 3, 5) in questions.phones
    assert questions.pdf_classes == ((0,), (0, 1))
