"""Made-up speech: lattices whose labels stand anywhere get an arc a word."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from reference.lattice_paths import enumerate_paths

from latflow.hmm.topology import Topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lattice.lattice import Lattice
from latflow.lattice.word_alignment import WordAligner

SILENCE = 1
KINDS = {"_B": "begin", "_E": "end", "_I": "internal", "_S": "singleton"}
# word id -> pronunciations; words 1 and 4 begin alike, 2 and 5 sound alike
LEXICON = {
    1: [("a",), ("a", "b")],
    2: [("b", "a")],
    3: [("b",), ("c", "a", "b")],
    4: [("a", "c")],
    5: [("b", "a")],
}


class Speech:
    """Phones, model and words, with or without positions in phones."""

    def __init__(self, has_positions):
        self.has_positions = has_positions
        marks = list(KINDS) if has_positions else [""]
        names = ["SIL", *(phone + mark for phone in "abc" for mark in marks)]
        self.phone_ids = {name: i for i, name in enumerate(names, 1)}
        ids = list(self.phone_ids.values())
        topology = Topology.standard(ids[1:], [SILENCE], 2, 3)
        tree = ContextDependency.monophone(
            [[phone] for phone in ids], topology.pdf_class_counts()
        )
        self.model = TransitionModel.from_tree(tree, topology)
        boundary = {i: KINDS[n[-2:]] for n, i in self.phone_ids.items() if "_" in n}
        self.lang = SimpleNamespace(
            word_boundary={SILENCE: "nonword", **boundary} if has_positions else None,
            word_ids={f"w{i}": i for i in LEXICON},
            phone_ids=self.phone_ids,
            lexicon={
                f"w{i}": [(1.0, phones) for phones in entries]
                for i, entries in LEXICON.items()
            },
            optional_silence=SILENCE,
        )
        self.aligner = WordAligner(self.model, self.lang)

    def phones(self, entry):
        """Ids of a pronunciation's phones."""
        if not self.has_positions:
            return [self.phone_ids[phone] for phone in entry]
        if len(entry) == 1:
            return [self.phone_ids[entry[0] + "_S"]]
        marks = ["_B", *["_I"] * (len(entry) - 2), "_E"]
        pairs = zip(entry, marks, strict=True)
        return [self.phone_ids[phone + mark] for phone, mark in pairs]

    def spoken(self, generator, phone):
        """Transition-ids of a phone: a random walk, self-loops behind other arcs."""
        model, ids = self.model, []
        state = 0
        while True:
            arcs = np.flatnonzero(
                (model.phone == phone)
                & (model.hmm_state == state)
                & ~model.is_self_loop
                & (np.arange(len(model.phone)) > 0)
            )
            tid = int(generator.choice(arcs))
            loop = int(model.self_loop[model.state[tid]])
            ids += [tid] + [loop] * (int(generator.integers(0, 3)) if loop else 0)
            if model.is_final[tid]:
                return ids
            state = int(model.next_state[tid])

    def lattice(self, generator, num_slots, *, is_whole=True):
        """A lattice in which words of equal length compete, and its labels are moved.

        Returns:
            A raw lattice.
        """
        arcs, num_states, here = [], 1, 0
        for _ in range(num_slots):
            rows = self._rivals(generator)
            ends, num_states = num_states, num_states + 1
            for labels, ids in rows:
                state = here
                for k, (label, tid) in enumerate(zip(labels, ids, strict=True)):
                    is_last = k + 1 == len(ids)
                    target = ends if is_last else num_states
                    num_states += not is_last
                    arcs.append((state, target, tid, label))
                    state = target
            here = ends
        if not is_whole:  # the search stops inside a word
            word = int(generator.integers(1, 6))
            ids = self.spoken(generator, self.phones(LEXICON[word][0])[0])
            ids = ids[: int(generator.integers(1, len(ids) + 1))]
            for k, tid in enumerate(ids):
                arcs.append((here, num_states, tid, 0 if k else word))
                here, num_states = num_states, num_states + 1
        costs = generator.normal(size=(len(arcs), 2)).astype(np.float32)
        finals = np.full((num_states, 2), np.inf, np.float32)
        finals[here] = 0.5
        return Lattice.from_arcs(np.array(arcs, np.int32), costs, finals)

    def _rivals(self, generator):
        """Some words, or silences, of equal length: (labels, transition-ids)."""
        rows = []
        while len(rows) < 4:
            word = int(generator.integers(0, 6))
            if word == 0:
                ids, last = self.spoken(generator, SILENCE), 1
            else:
                entry = LEXICON[word][generator.integers(len(LEXICON[word]))]
                parts = [self.spoken(generator, p) for p in self.phones(entry)]
                ids = [tid for part in parts for tid in part]
                last = len(ids) - len(parts[-1]) + 1  # frames where its label may be
            labels = [0] * len(ids)
            labels[int(generator.integers(last))] = word
            if not rows or len(rows[0][1]) == len(ids):
                rows.append((labels, ids))
            elif generator.random() < 0.3:
                break
        return rows

    def is_word(self, word, ids):
        """Whether an arc has just a word, or just one silence."""
        ends = [
            k for k, tid in enumerate(ids) if self.model.is_final[tid]
        ]  # self-loops follow
        phones = [int(self.model.phone[ids[k]]) for k in ends]
        if word == 0:
            return phones == [SILENCE]
        return phones in [self.phones(entry) for entry in LEXICON[word]]


SPEECH = {kind: Speech(kind) for kind in (True, False)}


def all_paths(lattice):
    """Least cost of each (words, transition-ids), wherever the labels stand."""
    found = {}
    for path in enumerate_paths(lattice):
        key = (path.words, path.transition_ids)
        found[key] = min(path.cost(), found.get(key, np.inf))
    return found


def assert_same(found, expected):
    """Paths agree, costs but for rounding."""
    assert found.keys() == expected.keys()
    for key, cost in expected.items():
        assert abs(found[key] - cost) < 1e-3


@given(
    seed=st.integers(0, 2**32 - 1),
    num_slots=st.integers(1, 4),
    has_positions=st.booleans(),
)
def test_each_arc_is_a_word_and_paths_stay(seed, num_slots, has_positions):
    speech = SPEECH[has_positions]
    raw = speech.lattice(np.random.default_rng(seed), num_slots)
    aligned = speech.aligner(raw.to_compact())
    for arc in range(aligned.num_arcs):
        ids = aligned.arc_string(arc).tolist()
        assert speech.is_word(int(aligned.word[arc]), ids)
    assert len(aligned.final_string) == 0
    assert aligned.num_frames == raw.num_frames
    assert_same(all_paths(aligned.to_lattice()), all_paths(raw))


@given(seed=st.integers(0, 2**32 - 1), has_positions=st.booleans())
def test_aligning_again_changes_no_path(seed, has_positions):
    speech = SPEECH[has_positions]
    raw = speech.lattice(np.random.default_rng(seed), 3)
    once = speech.aligner(raw.to_compact())
    twice = speech.aligner(once)
    assert_same(all_paths(twice.to_lattice()), all_paths(once.to_lattice()))


@given(seed=st.integers(0, 2**32 - 1))
def test_a_word_that_is_cut_off_keeps_its_label(seed):
    speech = SPEECH[True]
    raw = speech.lattice(np.random.default_rng(seed), 2, is_whole=False)
    aligned = speech.aligner(raw.to_compact())
    assert_same(all_paths(aligned.to_lattice()), all_paths(raw))
    last = {
        int(aligned.word[arc])
        for arc in range(aligned.num_arcs)
        if np.isfinite(aligned.final_graph_cost[aligned.next_state[arc]])
    }
    assert 0 not in last
