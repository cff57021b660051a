import io
import logging

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.hmm.clustering import GlibcRandom, cluster_top_down
from latflow.hmm.event_map import PDF_CLASS, Constant, Split, Table
from latflow.hmm.topology import Topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency, Root, stub_map
from latflow.hmm.tree_building import build_tree, leaf_statistics
from latflow.hmm.tree_statistics import (
    Questions,
    StatisticsArrays,
    TreeStatistics,
    phone_clusters,
)
from latflow.kaldi.io import KaldiReader

TOPOLOGY = Topology.standard([2, 3], [1], num_silence_states=3)


def gaussians(events, means, count=100.0):
    """Statistics of unit variance: one dimension, a mean for each event."""
    means = np.array(means, float)[:, None]
    moments = np.hstack([means * 0 + count, count * means, count * (means**2 + 1.0)])
    return StatisticsArrays(np.array(events, np.int32), moments, 1, 0.01)


def triphones():
    """Phone 2 sounds different after 3 than else; phone 3 differs by state alone."""
    events, means = [], []
    for left in (0, 2, 3):
        for state in range(3):
            events.append((state, left, 2, 0))
            means.append(5.0 * state + (3.0 if left == 3 and state == 0 else 0.0))
            events.append((state, left, 3, 0))
            means.append(2.0 * state)
    for state in range(3):
        events.append((state, -1, 1, -1))
        means.append(-20.0)
    return gaussians(events, means)


ROOTS = [(True, True, [1]), (True, True, [2]), (True, True, [3])]
QUESTIONS = Questions.compile([[1], [2], [3]], TOPOLOGY)


def test_what_sounds_different_is_split_and_the_rest_is_not():
    tree = build_tree(
        triphones(),
        QUESTIONS,
        ROOTS,
        TOPOLOGY,
        max_leaves=0,
        threshold=50.0,
        cluster_threshold=0.0,
        leaf_multiple=1,
    )
    # silence 1, phone 2: three states and a first one after 3, phone 3: three states
    assert tree.num_pdfs == 1 + 4 + 3
    after_3 = tree.pdf((3, 2, 1), 0)
    assert after_3 != tree.pdf((2, 2, 1), 0) == tree.pdf((0, 2, 3), 0)
    assert tree.pdf((3, 2, 1), 1) == tree.pdf((2, 2, 1), 1)
    assert len({tree.pdf((0, 1, 0), c) for c in range(3)}) == 1
    count, total, squares = leaf_statistics(triphones(), tree)
    assert count[after_3] == 100.0
    assert total[after_3] / 100 == pytest.approx(3.0)
    assert squares[after_3] / 100 == pytest.approx(10.0)


def test_roots_that_are_not_shared_have_a_leaf_for_each_class():
    roots = [(False, False, [1]), (True, True, [2, 3])]
    tree = build_tree(
        triphones(), QUESTIONS, roots, TOPOLOGY, max_leaves=5, threshold=1.0
    )
    assert [tree.pdf((0, 1, 0), c) for c in range(3)] == [0, 1, 2]


def test_roots_that_are_not_split_stay_leaves():
    roots = [(True, True, [1]), (True, False, [2]), (True, True, [3])]
    tree = build_tree(
        triphones(), QUESTIONS, roots, TOPOLOGY, max_leaves=0, threshold=1.0
    )
    assert tree.possible_pdfs(2, 0) == tree.possible_pdfs(2, 2) == [1]


def test_like_leaves_are_joined_across_branches():
    # state 0 sounds like state 2, and neither like state 1: [0] splits off nothing
    # that [0, 1] can take back, so two leaves of three are alike
    statistics = gaussians([(0, 0, 2, 0), (1, 0, 2, 0), (2, 0, 2, 0)], [0.0, 9.0, 0.0])
    roots = [(True, True, [1, 2, 3])]
    kept = build_tree(
        statistics,
        QUESTIONS,
        roots,
        TOPOLOGY,
        max_leaves=0,
        threshold=1.0,
        cluster_threshold=0.0,
        leaf_multiple=1,
    )
    assert kept.num_pdfs == 3
    joined = build_tree(
        statistics,
        QUESTIONS,
        roots,
        TOPOLOGY,
        max_leaves=0,
        threshold=1.0,
        cluster_threshold=1.0,
        leaf_multiple=1,
    )
    assert joined.num_pdfs == 2
    assert joined.pdf((0, 2, 0), 0) == joined.pdf((0, 2, 0), 2)


@pytest.mark.parametrize(
    ("roots", "fault"),
    [
        ([(False, True, [1]), (True, True, [2, 3])], "split but not shared"),
        ([(True, True, [1]), (True, True, [2])], "phone 3 is in the data"),
        ([(True, True, [1, 2]), (True, True, [2, 3])], "phone 2 is in two"),
        ([(True, True, [1, 2, 3]), (True, True, [])], "empty"),
    ],
)
def test_bad_roots_are_refused(roots, fault):
    with pytest.raises(UserError, match=fault):
        build_tree(triphones(), QUESTIONS, roots, TOPOLOGY, max_leaves=9)


def test_phones_without_data_are_warned_of(caplog):
    topology = Topology.standard([2, 3, 4], [1])
    roots = [*ROOTS, (True, True, [4])]
    with caplog.at_level(logging.WARNING):
        tree = build_tree(triphones(), QUESTIONS, roots, topology, max_leaves=9)
        phone_clusters(triphones(), [[1], [2], [3], [4]])
    assert "no tree statistics of phones [4]" in caplog.text
    assert "no statistics of phones (4,)" in caplog.text
    pdf = tree.pdf((0, 4, 0), 0)
    assert leaf_statistics(triphones(), tree)[0][pdf] == 0.0


def test_statistics_of_another_context_are_refused():
    tree = ContextDependency.monophone([[1, 2, 3]], TOPOLOGY.pdf_class_counts())
    with pytest.raises(UserError, match="different context windows"):
        leaf_statistics(triphones(), tree)
    with pytest.raises(UserError, match="different context windows or floors"):
        TreeStatistics().merge(TreeStatistics(context_width=2))


def test_context_free_phones_may_not_share_roots_with_others():
    tree = ContextDependency(3, 1, Split(0, [2], Constant(0), Constant(1)))
    with pytest.raises(UserError, match="share no root"):
        leaf_statistics(triphones(), tree)


def test_the_least_split_is_taken_back_by_default():
    # joining costs what that split has won, and the limit is just that
    trees = [
        build_tree(
            triphones(),
            QUESTIONS,
            ROOTS,
            TOPOLOGY,
            max_leaves=0,
            threshold=50.0,
            leaf_multiple=n,
        )
        for n in (1, 3, 5, 8)
    ]
    assert trees[0].num_pdfs == 1 + 4 + 3 - 1
    # down to a multiple, but not below the three roots
    assert [tree.num_pdfs for tree in trees[1:]] == [6, 5, 7]


def test_questions_on_unknown_phones_are_refused():
    with pytest.raises(UserError, match="phone 9"):
        Questions.compile([[1, 9], [2, 3]], TOPOLOGY)
    with pytest.raises(UserError, match="overlap"):
        phone_clusters(triphones(), [[1, 2], [2, 3]])


def test_questions_are_compiled_sorted_and_once(caplog):
    with caplog.at_level(logging.WARNING):
        questions = Questions.compile([[3, 2], [2], [2, 3], []], TOPOLOGY)
    assert questions.phones == ((2,), (2, 3))
    assert questions.of_key(PDF_CLASS) == ((0,), (0, 1))
    assert questions.of_key(0) == questions.phones
    assert "no tree question names phones [1]" in caplog.text


def test_statistics_refuse_what_does_not_fit():
    tree = ContextDependency.monophone([[1], [2], [3]], TOPOLOGY.pdf_class_counts())
    model = TransitionModel.from_tree(tree, TOPOLOGY)
    first = model.first_id[model.state_of(2, 0, tree.pdf([2], 0))]
    ali = np.array([first + 1, first + 3, first + 5])
    statistics = TreeStatistics()
    with pytest.raises(UserError, match="no statistics"):
        statistics.arrays()
    with pytest.raises(UserError, match="2 frames, but an alignment of 3"):
        statistics.accumulate(np.zeros((2, 4)), ali, model, [1])
    with pytest.raises(UserError, match="whole phones"):
        statistics.accumulate(np.zeros((2, 4)), ali[:2], model, [1])
    assert len(statistics) == 0
    statistics.accumulate(np.zeros((0, 4)), ali[:0], model, [1])
    statistics.accumulate(np.ones((3, 4)), ali, model, [1])
    assert statistics.arrays().events.tolist() == [[c, 0, 2, 0] for c in range(3)]
    with pytest.raises(UserError, match="5 dimensions among such of 4"):
        statistics.accumulate(np.ones((3, 5)), ali, model, [1])
    with pytest.raises(UserError, match="central position 3"):
        TreeStatistics(central_position=3)


def test_trees_answer_none_where_they_have_no_branch():
    table = Table(PDF_CLASS, [Constant(0), None, Constant(2)])
    tree = ContextDependency(1, 0, table)
    assert tree.num_pdfs == 3
    assert tree.pdf([5], 2) == 2
    for pdf_class in (1, 3):
        with pytest.raises(UserError, match=f"phones 5, pdf-class {pdf_class}"):
            tree.pdf([5], pdf_class)
    columns = {PDF_CLASS: np.array([0, 1, 2, 3]), 0: np.ones(4, int)}
    assert table.answers(columns).tolist() == [0, -1, 2, -1]
    with pytest.raises(UserError, match="central position 1"):
        ContextDependency(1, 1, table)


def test_stubs_halve_the_list_of_roots():
    roots = [Root((1, 4)), Root((3,), shared=False), Root((2, 5))]
    stub = stub_map(roots, {1: 3, 2: 3, 3: 2}, 1)
    assert isinstance(stub, Split)
    assert stub.values == (1, 4)
    assert stub.answer({1: 1}) == 0
    assert [stub.answer({1: 3, PDF_CLASS: c}) for c in (0, 1)] == [1, 2]
    assert stub.answer({1: 2}) == 3
    assert stub.answer({}) is None


def test_roots_of_single_phones_are_a_table():
    stub = stub_map([Root((2,)), Root((5,), shared=False)], {2: 3, 5: 2}, 1)
    assert isinstance(stub, Table)
    assert stub.answer({1: 2}) == 0
    assert [stub.answer({1: 5, PDF_CLASS: c}) for c in (0, 1, 2)] == [1, 2, None]
    assert stub.answer({1: 3}) is None


def test_full_biphones_have_pdfs_by_the_phone_before():
    """Phones that share pdfs count as one, before another phone too."""
    sets, classes = [[1], [2, 5], [3]], {1: 2, 2: 2, 3: 2, 5: 2}
    tree = ContextDependency.full_biphone(sets, classes, [1])
    windows = {
        (0 if phone == 1 else before, phone)
        for before in (0, 1, 2, 3)
        for phone in (1, 2, 3)
    }
    pdfs = {(w, c): tree.pdf(w, c) for w in windows for c in (0, 1)}
    assert sorted(pdfs.values()) == list(range(tree.num_pdfs))
    assert tree.num_pdfs == 2 * (1 + 4 * 2)
    for before in (0, 2, 3, 5):
        assert tree.pdf((before, 1), 1) == tree.pdf((1, 1), 1)
        assert tree.pdf((before, 2), 0) == tree.pdf((before, 5), 0)
    assert tree.pdf((5, 3), 0) == tree.pdf((2, 3), 0) != tree.pdf((3, 3), 0)


def test_pairs_of_pdfs_come_from_one_context():
    # after phone 2 both classes are 1 and 3, else 0 and 2: 0 and 3 never meet
    forward = Split(0, [2], Constant(1), Constant(0))
    loop = Split(0, [2], Constant(3), Constant(2))
    tree = ContextDependency(2, 1, Table(PDF_CLASS, [forward, loop]))
    assert tree.possible_pairs(5, (0, 1), [2, 5]) == [(0, 2), (1, 3)]
    assert tree.possible_pairs(5, (0, 0), [2, 5]) == [(0, 0), (1, 1)]


@pytest.mark.parametrize(
    "text",
    [
        "ContextDependency 3 1 ToPdf XX 1 ",
        "ContextDependency 3 1 ToPdf NULL ",
        "ContextDependency 3 1 ToPdf SE 1 [ 1 2 ] { CE 0 ",
        "ContextDependency 3 1 ToPdf TE -1 2 ( CE 0 ) ",
        "ContextDependency 3 1 ToPdf CE 0 End ",
    ],
)
def test_broken_trees_are_refused(text):
    with pytest.raises(UserError, match="byte"):
        ContextDependency.read(KaldiReader(io.BytesIO(text.encode())))


def test_random_numbers_are_those_of_the_c_library():
    random = GlibcRandom()
    first = [random() for _ in range(5)]
    assert first == [1804289383, 846930886, 1681692777, 1714636915, 1957747793]


def test_clustering_stops_where_nothing_is_won():
    same = gaussians([(1, 0, 2, 0), (1, 0, 3, 0)], [4.0, 4.0]).moments
    assert cluster_top_down(same, 0.01) == []
    assert cluster_top_down(same[:1], 0.01) == []
    apart = gaussians([(1, 0, 2, 0)] * 3, [0.0, 0.1, 9.0]).moments
    clusters = [c.tolist() for c in cluster_top_down(apart, 0.01)]
    assert sorted(clusters[:2]) == [[0, 1], [2]]
    assert sorted(clusters[2:]) == [[0], [1]]
