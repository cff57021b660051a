import io

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.hmm.alignment import PhoneDurations, convert, segments
from latflow.hmm.topology import NO_PDF, HmmState, Topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import KaldiReader, KaldiWriter


@pytest.fixture
def topology():
    """Phone 1: silence of two states; phones 2 and 3: one state each.

    phone 1   0 -> 0 | 1,  1 -> 1 | final     phones 2, 3   0 -> 0 | final
    """
    two = (
        HmmState(0, ((0, 0.5), (1, 0.5))),
        HmmState(1, ((1, 0.75), (2, 0.25))),
        HmmState(NO_PDF),
    )
    one = (HmmState(0, ((0, 0.75), (1, 0.25))), HmmState(NO_PDF))
    return Topology([([1], two), ([2, 3], one)])


@pytest.fixture
def model(topology):
    tree = ContextDependency.monophone([[1], [2], [3]], topology.pdf_class_counts())
    return TransitionModel.from_tree(tree, topology)


def test_transition_ids_are_arcs_of_sorted_states(model):
    # states: (1,0,pdf 0) (1,1,pdf 1) (2,0,pdf 2) (3,0,pdf 3); two arcs each
    assert model.num_states == 4
    assert model.num_transition_ids == 8
    assert model.phone[1:].tolist() == [1, 1, 1, 1, 2, 2, 3, 3]
    assert model.pdf[1:].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert model.is_self_loop[1:].tolist() == [True, False] * 4
    final = [False, False, False, True, False, True, False, True]
    assert model.is_final[1:].tolist() == final
    assert model.self_loop.tolist() == [0, 1, 3, 5, 7]
    assert model.next_state[1:].tolist() == [0, 1, 1, 2, 0, 1, 0, 1]
    assert np.exp(model.log_prob[1:3]).tolist() == [0.5, 0.5]
    assert np.exp(model.non_self_loop_log_prob[3]) == pytest.approx(0.25)


def test_entry_zero_is_unused(model):
    assert model.phone[0] == model.pdf[0] == -1
    assert not model.is_final[0]
    assert model.state[0] == 0


def test_scales_weigh_staying_and_choosing(model):
    stay, leave = np.log(0.75), np.log(0.25)
    whole = model.scaled_log_prob(0.5, 0.5)
    np.testing.assert_allclose(whole[1:], 0.5 * model.log_prob[1:], rtol=1e-6)
    mixed = model.scaled_log_prob(1.0, 0.1)
    # the only arc that leaves has probability 1 among those that leave
    np.testing.assert_allclose(mixed[5:7], [0.1 * stay, 0.1 * leave], rtol=1e-5)
    assert mixed[0] == whole[0] == 0.0


def test_update_counts_floors_and_leaves_rare_states(model):
    occupancy = np.array([0, 30, 10, 1, 2, 1000, 0, 4, 1.0])
    before = model.log_prob.copy()
    gain, count = model.update(occupancy)
    assert count == 1048.0
    p = np.exp(model.log_prob.astype(float))
    np.testing.assert_allclose(p[1:3], [0.75, 0.25], rtol=1e-6)
    np.testing.assert_array_equal(model.log_prob[3:5], before[3:5])  # 3 frames < 5
    np.testing.assert_allclose(p[5:7], [0.99, 0.01], atol=2e-4)
    old = np.exp(before.astype(float))
    want = sum(occupancy[i] * np.log(p[i] / old[i]) for i in (1, 2, 5, 6, 7, 8))
    assert gain == pytest.approx(want, rel=1e-5)
    assert np.exp(model.non_self_loop_log_prob[1]) == pytest.approx(0.25)


def test_pdfs_of_phones_tell_whether_others_use_them(topology):
    tree = ContextDependency.monophone([[1], [2, 3]], topology.pdf_class_counts())
    model = TransitionModel.from_tree(tree, topology)
    pdfs, alone = model.pdfs_of_phones([1])
    assert (pdfs.tolist(), alone) == ([0, 1], True)
    pdfs, alone = model.pdfs_of_phones([2])
    assert (pdfs.tolist(), alone) == ([2], False)


def test_states_are_found_by_what_they_are(model):
    assert model.state_of(1, 1, 1) == 2
    with pytest.raises(UserError, match="no state of phone 1, HMM state 1, pdf 7"):
        model.state_of(1, 1, 7)


def test_a_tree_without_a_phone_is_refused(topology):
    tree = ContextDependency(1, 0, TransitionlessTree.make())
    with pytest.raises(UserError, match="no pdf for phone 2"):
        TransitionModel.from_tree(tree, topology)


class TransitionlessTree:
    """A table that knows phone 1 only."""

    @staticmethod
    def make():
        from latflow.hmm.event_map import PDF_CLASS, Constant, Table

        return Table(0, [None, Table(PDF_CLASS, [Constant(0), Constant(1)])])


@pytest.mark.parametrize(
    ("log_prob", "fault"),
    [
        (np.zeros(3), "2 probabilities for 8"),
        (np.full(9, 0.1), "above 0"),
        (np.full(9, -np.inf), "not finite"),
    ],
)
def test_bad_probabilities_are_refused(model, log_prob, fault):
    with pytest.raises(UserError, match=fault):
        TransitionModel(model.topology, model.tuples, log_prob)


def test_unsorted_states_are_refused(model):
    with pytest.raises(UserError, match="not sorted"):
        TransitionModel(model.topology, model.tuples[::-1])
    with pytest.raises(UserError, match="twice"):
        TransitionModel(model.topology, model.tuples[[0, 0, 1, 2, 3]])
    with pytest.raises(UserError, match="emitting state 2"):
        TransitionModel(model.topology, [[1, 2, 0, 0]])


@pytest.mark.parametrize("binary", [True, False])
def test_a_cut_file_is_refused_wherever_it_ends(model, binary):
    out = io.BytesIO()
    model.write(KaldiWriter(out, binary=binary))
    whole = out.getvalue()
    for size in range(4, len(whole) - 20, 7):
        with pytest.raises(UserError, match="byte"):
            TransitionModel.read(KaldiReader(io.BytesIO(whole[:size]), binary=binary))


# ids of the model: phone 1: 1 loop, 2 on; 3 loop, 4 out; phone 2: 5 loop, 6 out;
# phone 3: 7 loop, 8 out


@pytest.mark.parametrize(
    "alignment",
    [
        [2, 1, 1, 4, 3, 6, 5, 6],  # reordered: leaving arc first
        [1, 1, 2, 3, 4, 5, 6, 6],  # plain order: self-loops first
    ],
)
def test_segments_of_both_orders(model, alignment):
    phone, start, length = segments(np.array(alignment), model)
    assert phone.tolist() == [1, 2, 2]
    assert start.tolist() == [0, 5, 7]
    assert length.tolist() == [5, 2, 1]


def test_one_state_may_be_in_either_order(model):
    assert segments(np.array([6, 5, 5]), model)[2].tolist() == [3]
    assert segments(np.array([5, 5, 6]), model)[2].tolist() == [3]
    assert segments(np.array([6, 6]), model)[2].tolist() == [1, 1]


def test_an_empty_alignment_has_no_segments(model):
    assert [len(part) for part in segments(np.zeros(0, np.int32), model)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("alignment", "fault"),
    [
        ([2, 1], "not a row of whole phones"),  # ends inside phone 1
        ([4, 3, 6], "not a row of whole phones"),  # starts inside phone 1
        ([2, 6], "not a row of whole phones"),  # phone 1 is left early
        ([0, 6], "transition-ids 0 to 6"),
        ([6, 9], "transition-ids 6 to 9"),
    ],
)
def test_alignments_that_are_none_are_refused(model, alignment, fault):
    with pytest.raises(UserError, match=fault):
        segments(np.array(alignment), model)


def test_conversion_wants_equal_topologies(model):
    other = Topology.standard([2, 3], [1])
    tree = ContextDependency.monophone([[1], [2], [3]], other.pdf_class_counts())
    new = TransitionModel.from_tree(tree, other)
    with pytest.raises(UserError, match="topologies of the two models differ"):
        convert(np.array([6, 5]), model, new, tree)


def test_durations_add_up(model):
    one, two = PhoneDurations(3), PhoneDurations(3)
    one.add(np.array([2, 1, 1, 4, 3, 6, 5, 6]), model)
    two.add(np.array([2, 4, 8] + [7] * 400), model)
    one.merge(two)
    summary = one.summary({1: "SIL", 2: "a"}, [1])
    assert summary["frames"] == 411
    assert summary["silence_share"] == pytest.approx(7 / 411)
    assert summary["phones"]["a"] == {
        "occurrences": 2,
        "frames": 3,
        "mean_frames": 1.5,
        "p5_frames": 1,
        "median_frames": 1,
        "p95_frames": 2,
    }
    assert summary["phones"]["3"]["mean_frames"] == 401.0
    assert PhoneDurations(3).summary({}, [1])["silence_share"] == 0.0
