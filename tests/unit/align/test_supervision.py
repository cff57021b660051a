"""Supervision of LF-MMI: against enumeration, Kaldi's, and as a stage."""

import shutil
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.graphs import canonical, paths
from reference.supervision_naive import chain_system, label_sequences, least_cost

from latflow.align.options import SupervisionOptions
from latflow.align.supervision import (
    PhoneLattice,
    SupervisionCompiler,
)
from latflow.align.supervision_store import (
    Supervisions,
    SupervisionSource,
    make_supervisions,
)
from latflow.align.supervision_weights import Normalization
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.graphs.hclg import load_model
from latflow.hmm.alignment import segments
from latflow.kaldi.io import read_int_vectors, write_int_vectors
from latflow.lattice.io.archives import read_lattices
from latflow.lattice.lattice import Lattice
from latflow.ledger import read_ledger

PHONES, PDFS = 3, 4


def as_graph(supervision):
    """Return a `FrameGraph` as a `Graph`."""
    arcs = np.zeros(len(supervision.arcs), ARC)
    arcs["ilabel"] = arcs["olabel"] = supervision.arcs["label"]
    arcs["next_state"] = supervision.arcs["next_state"]
    final = np.full(len(supervision.first_arc) - 1, np.inf, np.float32)
    final[supervision.first_state[-2] :] = 0.0
    source = np.repeat(np.arange(len(final)), np.diff(supervision.first_arc))
    return Graph.from_arc_list(0, source, arcs, final)


@st.composite
def systems(draw):
    """Trees in which contexts, phones and classes may share pdfs."""
    pdf = st.integers(0, PDFS - 1)
    row = st.lists(pdf, min_size=2, max_size=2)
    rows = st.lists(row, min_size=PHONES, max_size=PHONES)
    return chain_system(draw(st.lists(rows, min_size=PHONES + 1, max_size=PHONES + 1)))


@st.composite
def lattices(draw):
    """Lattices of one to three alignments that meet where they have a boundary."""
    num_frames = draw(st.integers(1, 11))
    arcs = set()
    for _ in range(draw(st.integers(1, 3))):
        cuts = draw(st.sets(st.integers(1, num_frames), max_size=3))
        bounds = sorted({0, *cuts, num_frames})
        for begin, end in pairwise(bounds):
            arcs.add((begin, end, draw(st.integers(1, PHONES))))
    begin, end, phone = np.array(sorted(arcs)).T
    times, inverse = np.unique(np.concatenate([begin, end]), return_inverse=True)
    source, target = inverse.reshape(2, -1)
    return PhoneLattice(
        source, target, phone, begin, end, times == num_frames, num_frames
    )


@st.composite
def normalizations(draw):
    """Small acceptors; some refuse some sequences."""
    num_states = draw(st.integers(1, 3))
    state = st.integers(0, num_states - 1)
    cost = st.sampled_from([0.0, 0.5, 1.25, 3.0])
    rows = draw(
        st.lists(st.tuples(state, st.integers(1, PDFS), cost, state), max_size=14)
    )
    arcs = np.zeros(len(rows), ARC)
    if rows:
        _, label, arcs["weight"], arcs["next_state"] = zip(*rows, strict=True)
        arcs["ilabel"] = arcs["olabel"] = label
    final = draw(st.lists(cost, min_size=num_states, max_size=num_states))
    source = np.array([row[0] for row in rows], int)
    return Graph.from_arc_list(0, source, arcs, np.array(final, np.float32))


options = st.builds(
    SupervisionOptions,
    left_tolerance=st.integers(1, 4),
    right_tolerance=st.integers(2, 4),
)


@pytest.mark.slow
@given(systems(), lattices(), options, st.integers(1, 3), normalizations(), st.data())
def test_all_paths_and_their_weights(
    system, lattice, options, subsampling, normalization, data
):
    compiler = SupervisionCompiler(*system, options, subsampling=subsampling)
    wanted = label_sequences(lattice, system[0], options, subsampling)
    found = compiler.compile(lattice)
    if not wanted:
        assert found == "too many phones for too few frames"
        return
    num_frames = -(-lattice.num_frames // subsampling)
    assert found.num_frames == num_frames
    assert {labels for labels, _ in paths(as_graph(found))} == wanted

    first = data.draw(st.integers(0, num_frames - 1))
    count = data.draw(st.integers(1, num_frames - first))
    costs = {
        part: least_cost(normalization, part)
        for part in {labels[first : first + count] for labels in wanted}
    }
    chunk = Normalization(normalization).compose(found, first, count)
    weighted = {labels: cost for (labels, _), cost in paths(chunk).items()}
    accepted = {part: cost for part, cost in costs.items() if cost < np.inf}
    assert weighted == pytest.approx(accepted, abs=1e-5)
    for low, high in pairwise(chunk.arc_begin):
        assert (np.diff(chunk.ilabel[low:high]) > 0).all()  # deterministic
    assert chunk.num_final_states == bool(accepted)
    assert chunk.properties.is_top_sorted


def durations(folder):
    """Phones and durations of three utterances."""
    for line in (folder / "phone_durations.txt").read_text().splitlines():
        utterance, *rest = line.split()
        pairs = [pair.split() for pair in " ".join(rest).split(";") if pair]
        yield utterance, *np.array(pairs, int).T


@pytest.fixture
def chain_dir(golden, tmp_path):
    """Kaldi's chain system, with the names that it has here."""
    source, folder = golden / "chain", tmp_path / "chain"
    folder.mkdir()
    shutil.copy(source / "0.trans_mdl", folder / "final.mdl")
    for name in ("tree", "normalization.fst"):
        shutil.copy(source / name, folder)
    return folder


def read_text(path):
    """Read an acceptor that OpenFst printed; its final costs are 0."""
    rows = [line.split() for line in path.read_text().splitlines()]
    arcs = [row for row in rows if len(row) > 2]
    final = np.full(1 + max(int(row[1]) for row in arcs), np.inf, np.float32)
    final[[int(row[0]) for row in rows if len(row) <= 2]] = 0.0
    records = np.zeros(len(arcs), ARC)
    for n, (_, target, label, cost) in enumerate(arcs):
        records[n] = (label, label, cost, target)
    return Graph.from_arc_list(0, np.array([int(a[0]) for a in arcs]), records, final)


def test_equals_kaldis(golden, chain_dir):
    normalization = Normalization(Graph.load(chain_dir / "normalization.fst"))
    tree, model = load_model(chain_dir)
    compiler = SupervisionCompiler(tree, model, SupervisionOptions())
    for utterance, phones, lengths in durations(golden / "chain"):
        supervision = compiler.compile(PhoneLattice.linear(phones, lengths))
        found = normalization.compose(supervision)
        wanted = read_text(golden / "chain" / f"supervision-{utterance}.fst.txt")
        ours, kaldis = canonical(found, 6), canonical(wanted, 6)
        assert ours[1] == kaldis[1]
        assert len(ours[0]) == len(kaldis[0])
        for one, other in zip(ours[0], kaldis[0], strict=True):
            assert one == pytest.approx(other, abs=2e-3)


def test_more_phones_than_frames(chain_dir):
    tree, model = load_model(chain_dir)
    compiler = SupervisionCompiler(tree, model, SupervisionOptions())
    found = compiler.compile(PhoneLattice.linear(np.arange(6, 26), np.ones(20, int)))
    assert isinstance(found, str)
    assert "too many phones" in found


def test_tolerances_below_the_subsampling(chain_dir):
    tree, model = load_model(chain_dir)
    with pytest.raises(UserError, match="together less than the frame subsampling"):
        SupervisionCompiler(
            tree, model, SupervisionOptions(left_tolerance=1, right_tolerance=1)
        )


@pytest.mark.parametrize("threads", [1, 3])
def test_stage(golden, chain_dir, tmp_path, threads):
    """Alignments of the triphone system; three are bad in different ways."""
    good = dict(read_int_vectors(golden / "align/ali_tri1.txt"))
    model_dir = golden / "gmm/tri1"
    _, aligned = load_model(model_dir)
    some = next(iter(good.values()))
    inside = np.argmax(aligned.hmm_state[some] == 1)  # of the first phone
    bad = {"cut": some[inside:], "strange": np.array([10**6]), "empty": some[:0]}
    ark, out = tmp_path / "ali.ark", tmp_path / "supervisions"
    write_int_vectors(ark, sorted({**good, **bad}.items()))
    make_supervisions(
        SupervisionSource(model_dir=model_dir, alignments=ark),
        chain_dir=chain_dir,
        out_dir=out,
        options=SupervisionOptions(),
        max_skipped_fraction=0.5,
        threads=threads,
    )
    store = Supervisions.load(out)
    entries = {
        entry.utterance: entry.reason for entry in read_ledger(out / "ledger.jsonl")
    }
    assert entries.keys() >= bad.keys()
    assert entries["empty"] == "the alignment is empty"
    assert set(store.utt_ids) | entries.keys() == good.keys() | bad.keys()
    assert store.subsampling == 3
    assert store.meta["left_tolerance"] == 5
    for utterance in store.utt_ids:
        i = store.position(utterance)
        assert store.num_frames[i] == -(-len(good[utterance]) // 3)
        chunk = store.chunk(i, 4, 10)
        assert chunk.num_states
    assert 0 <= store.meta["refused"] < len(store)
    with pytest.raises(ValueError, match="frames 4 to"):
        store.chunk(0, 4, 10**6)


def test_chunks_that_the_phone_language_model_does_not_know(
    golden, chain_dir, tmp_path
):
    """They have all their paths, without weights."""
    out = tmp_path / "supervisions"
    none = np.full(1, 0.0, np.float32)
    Graph.from_arc_list(0, np.zeros(1, int), np.array([(1, 1, 0, 0)], ARC), none).save(
        chain_dir / "normalization.fst"
    )
    ark = tmp_path / "ali.ark"
    write_int_vectors(
        ark, dict(read_int_vectors(golden / "align/ali_tri1.txt")).items()
    )
    make_supervisions(
        SupervisionSource(model_dir=golden / "gmm/tri1", alignments=ark),
        chain_dir=chain_dir,
        out_dir=out,
        options=SupervisionOptions(),
    )
    store = Supervisions.load(out)
    assert store.meta["refused"] == len(store) > 0
    chunk = paths(store.chunk(0, 8, 6))
    assert set(chunk.values()) == {0.0}
    graph, labels = as_graph(store.supervision(0)), {ins for ins, _ in chunk}
    generator = np.random.default_rng(1)
    for _ in range(50):
        assert tuple(some_labels(graph, generator)[8:14]) in labels


def test_too_many_skipped(golden, chain_dir, tmp_path):
    ark = tmp_path / "ali.ark"
    write_int_vectors(ark, [("a", np.array([10**6], np.int32))])
    with pytest.raises(UserError, match="skipped 1 of 1"):
        make_supervisions(
            SupervisionSource(model_dir=golden / "gmm/tri1", alignments=ark),
            chain_dir=chain_dir,
            out_dir=tmp_path / "supervisions",
            options=SupervisionOptions(),
            max_skipped_fraction=0.5,
        )


def test_lattices(golden, chain_dir, tmp_path):
    """Decoding lattices: what an alignment in one allows, the lattice allows."""
    model_dir, out = golden / "gmm/tri1", tmp_path / "supervisions"
    source = golden / "lattice/raw_beam13.lats"
    make_supervisions(
        SupervisionSource(model_dir=model_dir, lattices=source),
        chain_dir=chain_dir,
        out_dir=out,
        options=SupervisionOptions(),
    )
    store, (_, aligned) = Supervisions.load(out), load_model(model_dir)
    compiler = SupervisionCompiler(*load_model(chain_dir), SupervisionOptions())
    generator = np.random.default_rng(1)
    for utterance, lattice in read_lattices(source):
        graph = as_graph(store.supervision(store.position(utterance)))
        for _ in range(5):
            phones, _, lengths = segments(some_path(lattice, generator), aligned)
            part = as_graph(compiler.compile(PhoneLattice.linear(phones, lengths)))
            for _ in range(5):
                labels = some_labels(part, generator)
                assert least_cost(graph, labels) == 0.0


def test_a_lattice_of_one_path_is_an_alignment(golden, chain_dir):
    _, aligned = load_model(golden / "gmm/tri1")
    compiler = SupervisionCompiler(*load_model(chain_dir), SupervisionOptions())
    for ids in dict(read_int_vectors(golden / "align/ali_tri1.txt")).values():
        arcs = np.zeros((len(ids), 4), np.int32)
        arcs[:, 0] = np.arange(len(ids))
        arcs[:, 1], arcs[:, 2] = arcs[:, 0] + 1, ids
        finals = np.full((len(ids) + 1, 2), np.inf, np.float32)
        finals[-1] = 0.0
        path = Lattice.from_arcs(arcs, np.zeros((len(ids), 2), np.float32), finals)
        found = compiler.compile(PhoneLattice.of_lattice(path, aligned))
        phones, _, lengths = segments(ids, aligned)
        wanted = compiler.compile(PhoneLattice.linear(phones, lengths))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def some_path(lattice, generator):
    """Transition-ids of a path drawn arc by arc."""
    state, ids = 0, []
    while True:
        low, high = lattice.arc_begin[state : state + 2]
        if low == high:
            return np.array(ids)
        arc = generator.integers(low, high)
        if lattice.transition_id[arc]:
            ids.append(lattice.transition_id[arc])
        state = lattice.next_state[arc]


def some_labels(graph, generator):
    """Labels of a path drawn arc by arc."""
    state, labels = graph.start, []
    while graph.final[state] == np.inf:
        arc = generator.integers(*graph.arc_begin[state : state + 2])
        labels.append(graph.ilabel[arc])
        state = graph.next_state[arc]
    return labels
