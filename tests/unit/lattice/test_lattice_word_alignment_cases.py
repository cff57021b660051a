"""Word alignment of small lattices by hand, and of lattices that do not fit."""

from types import SimpleNamespace

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.hmm.topology import Topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lattice.lattice import CompactLattice, Strings
from latflow.lattice.word_alignment import WordAligner

# One state a phone: its first transition-id is the self-loop, its second the way out.
SIL, A_B, B_I, C_E, D_S = range(1, 6)
KINDS = {SIL: "nonword", A_B: "begin", B_I: "internal", C_E: "end", D_S: "singleton"}


def out(phone):
    return 2 * phone


def loop(phone):
    return 2 * phone - 1


@pytest.fixture(scope="module")
def model():
    topology = Topology.standard([A_B, B_I, C_E, D_S], [SIL], 1, 1)
    tree = ContextDependency.monophone(
        [[phone] for phone in range(1, 6)], topology.pdf_class_counts()
    )
    model = TransitionModel.from_tree(tree, topology)
    assert model.is_self_loop[[loop(phone) for phone in range(1, 6)]].all()
    assert model.is_final[[out(phone) for phone in range(1, 6)]].all()
    return model


def lang(word_boundary=KINDS, lexicon=None):
    return SimpleNamespace(
        word_boundary=word_boundary,
        word_ids={"abc": 1, "d": 2, "e": 3},
        phone_ids={"SIL": SIL, "a": A_B, "b": B_I, "c": C_E, "d": D_S},
        lexicon=lexicon or {"abc": [(1.0, ("a", "b", "c"))], "d": [(1.0, ("d",))]},
        optional_silence=SIL,
    )


def chain(*arcs, last=()):
    """A compact lattice of one path: (word, transition-ids) an arc."""
    table = np.array([(i, i + 1, arc[0]) for i, arc in enumerate(arcs)], np.int32)
    lengths = [len(arc[1]) for arc in arcs]
    strings = Strings(
        np.concatenate([[0], np.cumsum(lengths)]),
        np.array([tid for arc in arcs for tid in arc[1]], np.int32),
    )
    finals = np.full((len(arcs) + 1, 2), np.inf, np.float32)
    finals[-1] = (0.5, 0.0)
    begin = np.zeros(len(arcs) + 2, np.int64)
    begin[-1] = len(last)
    costs = np.ones((len(arcs), 2), np.float32)
    ends = Strings(begin, np.array(last, np.int32))
    return CompactLattice.from_arcs(table, costs, strings, finals, ends)


def listed(lattice):
    """(word, transition-ids) of the arcs of a lattice of one path."""
    assert lattice.num_arcs == lattice.num_states - 1
    return [
        (int(lattice.word[arc]), lattice.arc_string(arc).tolist())
        for arc in range(lattice.num_arcs)
    ]


ABC = [out(A_B), loop(A_B), out(B_I), out(C_E), loop(C_E)]
HUSH = [out(SIL), loop(SIL)]
D = [out(D_S), loop(D_S), loop(D_S)]


@pytest.mark.parametrize("word_boundary", [KINDS, None])
def test_labels_and_frames_come_together(model, word_boundary):
    everything = HUSH + ABC + D + HUSH
    lattice = chain(
        (1, everything[:1]), (2, everything[1:4]), (0, everything[4:9]), last=D[-2:]
    )
    # frames behind: the last arc stops inside "d", the final state has its rest
    aligned = WordAligner(model, lang(word_boundary))(lattice)
    assert listed(aligned) == [(0, HUSH), (1, ABC), (2, D[:2] + D[-2:])]
    assert aligned.graph_cost.sum() + aligned.final_graph_cost[-1] == 3.5
    assert aligned.acoustic_cost.sum() == 3.0
    assert aligned.frame.tolist() == [0, 2, 7, 11]


@pytest.mark.parametrize("word_boundary", [KINDS, None])
def test_word_and_silence_behind_a_final_state(model, word_boundary):
    lattice = chain((1, ABC[:2]), last=ABC[2:] + HUSH)
    aligned = WordAligner(model, lang(word_boundary), silence_label=9)(lattice)
    assert listed(aligned) == [(1, ABC), (9, HUSH)]


def test_self_loops_before_the_way_out(model):
    word = [loop(A_B), out(A_B), out(B_I), loop(C_E), out(C_E)]
    hush = [loop(SIL), out(SIL)]
    lattice = chain((1, hush + word[:2]), (0, word[2:] + hush))
    aligned = WordAligner(model, lang(), reorder=False)(lattice)
    assert listed(aligned) == [(0, hush), (1, word), (0, hush)]


def test_parts_of_words(model):
    aligner = WordAligner(model, lang(), partial_label=8)
    assert listed(aligner(chain((1, HUSH + ABC[:3])))) == [(0, HUSH), (1, ABC[:3])]
    assert listed(aligner(chain((0, HUSH + ABC[:3])))) == [(0, HUSH), (8, ABC[:3])]
    # a label of which no frame was seen is lost, or gets the silence before it
    assert listed(aligner(chain((2, D), (1, [])))) == [(2, D)]
    assert listed(aligner(chain((2, D + HUSH), (1, [])))) == [(2, D), (1, HUSH)]


def test_parts_of_words_by_the_lexicon(model):
    aligner = WordAligner(model, lang(None), partial_label=8)
    assert listed(aligner(chain((1, HUSH + ABC[:3])))) == [(0, HUSH), (1, ABC[:3])]


def test_what_does_not_fit(model):
    aligner = WordAligner(model, lang())
    with pytest.raises(UserError, match="begins with a phone from inside"):
        aligner(chain((1, ABC[2:] + HUSH)))
    with pytest.raises(UserError, match="is not word-internal"):
        aligner(chain((1, ABC[:2] + HUSH + HUSH)))
    with pytest.raises(UserError, match="changes before its last transition"):
        aligner(chain((1, [loop(A_B), *ABC[2:], *HUSH])))
    with pytest.raises(UserError, match="changes before its last transition"):
        WordAligner(model, lang(None))(chain((1, [loop(A_B), *ABC[2:], *HUSH])))
    with pytest.raises(UserError, match="phone 5 of the model is not in word_boundary"):
        WordAligner(model, lang({p: k for p, k in KINDS.items() if p != D_S}))


def test_a_word_without_pronunciation(model):
    aligner = WordAligner(model, lang(None))
    with pytest.raises(UserError, match="word 3 of the lattice has no pronunciation"):
        aligner(chain((3, ABC + HUSH)))


def test_no_path(model):
    lattice = chain((1, ABC))
    lost = CompactLattice.from_arcs(
        np.array([(0, 1, 1)], np.int32),
        np.ones((1, 2), np.float32),
        Strings(lattice.string_begin, lattice.string),
        np.full((2, 2), np.inf, np.float32),
    )
    with pytest.raises(UserError, match="without a path to a final state"):
        WordAligner(model, lang())(lost)


def test_too_many_paths(model):
    # Each frame has two ways, and no label allows to cut a word off.
    steps = [(s, s + 1, 0) for s in range(40) for _ in range(2)]
    ids = [out(D_S)] * 2 + [out(D_S), loop(D_S)] * 39
    lattice = CompactLattice.from_arcs(
        np.array(steps, np.int32),
        np.ones((80, 2), np.float32),
        Strings(np.arange(81), np.array(ids, np.int32)),
        np.concatenate([np.full((40, 2), np.inf), np.zeros((1, 2))]).astype(np.float32),
    )
    with pytest.raises(UserError, match="too many paths"):
        WordAligner(model, lang(), max_expand=1.0)(lattice)
