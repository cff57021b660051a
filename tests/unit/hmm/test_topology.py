import io

import pytest

from latflow.errors import UserError
from latflow.hmm.topology import NO_PDF, HmmState, Topology, fault_of
from latflow.kaldi.io import KaldiReader, KaldiWriter

FINAL = HmmState(NO_PDF)


def left_to_right(*classes):
    states = [HmmState(c, ((n, 0.75), (n + 1, 0.25))) for n, c in enumerate(classes)]
    return (*states, FINAL)


def test_a_standard_topology_has_three_and_five_states():
    topology = Topology.standard([3, 2], [1])
    assert topology.phones == (1, 2, 3)
    assert topology.states(2) == left_to_right(0, 1, 2)
    assert [topology.num_pdf_classes(p) for p in (1, 2)] == [5, 3]
    first, *inner, last, final = topology.states(1)
    assert [n for n, _ in first.transitions] == [0, 1, 2, 3]
    assert all([n for n, _ in s.transitions] == [1, 2, 3, 4] for s in inner)
    assert last.transitions == ((4, 0.75), (5, 0.25))
    assert final == FINAL


def test_silence_of_one_state_is_left_to_right():
    topology = Topology.standard([2], [1], num_silence_states=1)
    assert topology.states(1) == left_to_right(0)


def test_probabilities_that_do_not_end_are_written_as_perl_does(tmp_path):
    Topology.standard([2], [1], num_silence_states=4).save(tmp_path / "topo")
    assert "<Transition> 2 0.333333333333333 " in (tmp_path / "topo").read_text()
    assert Topology.load(tmp_path / "topo").num_pdf_classes(1) == 4


@pytest.mark.parametrize("binary", [True, False])
def test_classes_of_self_loops_survive(binary):
    topology = Topology([([5, 7], (HmmState(0, ((0, 0.5), (1, 0.5)), 1), FINAL))])
    assert not topology.is_hmm
    assert topology.num_pdf_classes(7) == 2
    out = io.BytesIO()
    topology.write(KaldiWriter(out, binary=binary))
    out.seek(0)
    assert Topology.read(KaldiReader(out)) == topology


@pytest.mark.parametrize(
    ("states", "fault"),
    [
        ((FINAL,), "emitting and a final"),
        ((HmmState(0, ((1, 1.0),)), HmmState(0)), "must neither emit"),
        ((HmmState(0, ((0, 1.0),)), FINAL), "no transition leads to state 1"),
        ((HmmState(0, ((1, 0.5),)), FINAL), "sum to 0.5"),
        ((HmmState(0, ((1, 0.5), (1, 0.5))), FINAL), "two transitions"),
        ((HmmState(0, ((1, 1.5), (0, -0.5))), FINAL), "not positive"),
        ((HmmState(0, ((1, 0.5), (2, 0.5))), FINAL), "not there"),
        ((HmmState(1, ((1, 1.0),)), FINAL), "without a gap"),
        ((HmmState(NO_PDF, ((1, 1.0),)), FINAL), "final state"),
        ((HmmState(0), HmmState(0, ((2, 1.0),)), FINAL), "state 1"),
    ],
)
def test_what_is_no_hmm_is_refused(states, fault):
    assert fault in (fault_of(states) or "")
    with pytest.raises(UserError, match=fault):
        Topology([([1], states)])


def test_phones_are_listed_once():
    with pytest.raises(UserError, match="phone 2 is in two entries"):
        Topology([([1, 2], left_to_right(0)), ([2], left_to_right(0))])
    with pytest.raises(UserError, match="no phones"):
        Topology([([], left_to_right(0))])
    with pytest.raises(UserError, match="not positive"):
        Topology([([0], left_to_right(0))])
    with pytest.raises(UserError, match="no entries"):
        Topology([])


def test_an_unknown_phone_is_named():
    with pytest.raises(UserError, match="phone 9 is not in the topology"):
        Topology.standard([2], [1]).states(9)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("<Topology> <TopologyEntry> <ForPhones> 1", "'' where an integer"),
        ("<Topology> <Entry>", "'<Entry>' where '<TopologyEntry>' or"),
        ("<Topology> <TopologyEntry> <ForPhones> 1 </ForPhones> <State> 1 ", "state 1"),
    ],
)
def test_a_broken_file_is_named_with_the_place(tmp_path, text, fault):
    path = tmp_path / "topo"
    path.write_text(text)
    with pytest.raises(UserError, match=fault) as caught:
        Topology.load(path)
    assert caught.value.file == str(path)
    assert "byte" in str(caught.value)
