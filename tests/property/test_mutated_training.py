"""Mutated graphs, alignments and supervisions to train with."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from fixtures.made_up_alignments import cut as made_up_cut
from fixtures.made_up_alignments import make_system, recording, states
from fixtures.mutations import (
    check,
    of_each,
    write_ledger,
    write_spoken,
    write_system,
    write_wave,
)
from fixtures.sequence_system import Mmi
from fixtures.sequence_system import make_system as make_sequence_system

from latflow.align.aligner import Aligner
from latflow.align.boundaries import refine_boundaries
from latflow.align.cleanup import clean_corpus
from latflow.align.corpus import LogLikes
from latflow.align.ctc import CtcGraphs, compile_ctc
from latflow.align.export import export_alignments
from latflow.align.flat_start import supervise_flat_start
from latflow.align.graphs import TrainingGraphs, compile_transcripts
from latflow.align.options import (
    AlignOptions,
    ExportOptions,
    SupervisionOptions,
    SuspectOptions,
)
from latflow.align.reestimate import reestimate_lexicon
from latflow.align.supervision import PhoneLattice, SupervisionCompiler
from latflow.align.supervision_store import (
    NORMALIZATION,
    Supervisions,
    SupervisionSource,
    make_supervisions,
)
from latflow.align.suspects import find_suspects
from latflow.align.timing import AlignedSet, PhoneTimes
from latflow.align.units import UnitGraphs, spell_transcripts
from latflow.corpus.derived_options import CleanedSetOptions
from latflow.corpus.json_lines import ManifestWriter
from latflow.criteria.ctc import evaluate_ctc
from latflow.criteria.denominator import Denominator
from latflow.criteria.lfmmi import evaluate_lfmmi
from latflow.criteria.options import LfmmiOptions
from latflow.criteria.sequence.generation import SequenceFiles, load_generator
from latflow.criteria.sequence.options import SequenceOptions
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.gmm.chain_tree import build_chain_tree
from latflow.graphs.chain import ChainGraphs, save_chain_system
from latflow.graphs.denominator import make_denominator
from latflow.graphs.hclg import load_model as load_transitions
from latflow.graphs.options import (
    ChainTreeOptions,
    DenominatorOptions,
    GraphOptions,
    PhoneLmOptions,
)
from latflow.hmm.topology import chain_topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import write_int_vectors
from latflow.lang.directory import Lang
from latflow.lattice.io.archives import write_lattices
from latflow.lattice.lattice import Lattice
from latflow.options import read_options
from latflow.parts import SetJob
from latflow.ragged import RaggedWriter
from latflow.training.data_options import LfmmiDataOptions
from latflow.training.labels import write_targets
from latflow.training.readers import StoreReader
from latflow.training.supervised import SupervisedSource, open_supervisions


def write_chain(folder, rng):
    """Write a chain system, and frames and supervisions of three utterances."""
    topology = chain_topology([1, 2, 3])
    tree = ContextDependency.monophone([[1], [2], [3]], topology.pdf_class_counts())
    model = TransitionModel.from_tree(tree, topology)
    phones = [rng.integers(1, 4, 4) for _ in range(3)]
    save_chain_system(folder, phones, PhoneLmOptions(), tree, model)
    compiler = SupervisionCompiler(tree, model, SupervisionOptions())
    meta = {"subsampling": 3, "num_pdfs": tree.num_pdfs}
    store = folder / "supervisions"
    with (
        FrameWriter(folder.parent / "frames", dim=2) as frames,
        RaggedWriter(store, Supervisions, meta=meta) as writer,
    ):
        for i, said in enumerate(phones):
            durations = rng.integers(4, 9, len(said))
            zeros = np.zeros((durations.sum(), 2), np.float32)
            frames.append(f"u{i}", "s", "", zeros)
            found = compiler.compile(PhoneLattice.linear(said, durations))
            writer.write(f"u{i}", *found)
    shutil.copy(folder / NORMALIZATION, store)


def use_chain(folder):
    _, model = load_transitions(folder)
    graphs = ChainGraphs.read(folder)
    use_supervisions(
        open_supervisions(folder / "supervisions"),
        folder.parent / "frames",
        {"type": "chunks", "size": 12},
        Denominator(graphs.denominator, graphs.initial_probs, model.num_pdfs),
    )


def use_supervisions(store, frames, sequences, denominator):
    """Evaluate the criterion of all chunks."""
    data = {"sequences": sequences, "max_sequences": 8, "normalization": "none"}
    source = SupervisedSource(
        StoreReader(FrameStore.load(frames)),
        store,
        read_options(LfmmiDataOptions, data),
        context=(0, 0),
        subsampling=3,
    )
    for batch in source.epoch(0):
        counted = batch.counted.tolist()
        logits = torch.zeros(len(batch), max(counted), denominator.num_pdfs)
        evaluate_lfmmi(
            logits, batch.supervisions, denominator, LfmmiOptions(), lengths=counted
        )


def write_flat_start(folder, rng):
    given = folder.parent / "given"
    given.mkdir()
    lang, tree, _ = write_spoken(given)
    model = TransitionModel.load(given / "final.mdl")
    phones = [rng.choice(sorted(lang.topology.phones), 4) for _ in range(3)]
    save_chain_system(given / "chain", phones, PhoneLmOptions(), tree, model)
    supervise_flat_start(
        given / "frames", given / "lang", given / "chain", folder / "s"
    )


def use_flat_start(folder):
    given = folder.parent / "given"
    graphs = ChainGraphs.read(given / "chain")
    num_pdfs = TransitionModel.load(given / "final.mdl").num_pdfs
    use_supervisions(
        open_supervisions(folder / "s"),
        given / "frames",
        {"type": "utterances"},
        Denominator(graphs.denominator, graphs.initial_probs, num_pdfs),
    )


def write_transcripts(folder, write, **options):
    given = folder.parent / "given"
    given.mkdir()
    write_spoken(given)
    write(given / "frames", given / "lang", folder / "graphs", **options)


def use_ctc(folder):
    store = CtcGraphs.load(folder / "graphs")
    for i in range(len(store)):
        evaluate_ctc(torch.zeros(1, 20, 17), [store.graph(i)], [20])


def use_units(folder):
    store = UnitGraphs.load(folder / "graphs")
    for i in range(len(store)):
        units = store.graph(i).ilabel.tolist()
        assert [store.names[unit] for unit in units]


def write_training_graphs(folder, rng):
    given = folder.parent / "given"
    given.mkdir()
    write_spoken(given)
    compile_transcripts(
        given / "frames", given / "lang", given, folder / "graphs", threads=1
    )


def use_training_graphs(folder):
    given = folder.parent / "given"
    model = TransitionModel.load(given / "final.mdl")
    aligner = Aligner(model, AlignOptions(), GraphOptions())
    store = TrainingGraphs.load(folder / "graphs")
    scores = np.zeros((60, model.num_pdfs), np.float32)
    for key in store.utt_ids:
        graph = store.get(key.split())
        if not isinstance(graph, str):
            aligner.align(graph, scores)
    dict(store.failures)


def write_aligned(folder, rng):
    """Write alignments with scores and refined times, and what they are of."""
    given = folder.parent / "given"
    given.mkdir()
    _, lang, model = make_system(given)
    path = states(lang, model, ["EY_B", "T_E"], (13, 15))
    with (
        ManifestWriter(folder / "cuts.jsonl.gz") as manifest,
        RaggedWriter(folder / "log_likes", LogLikes) as scores,
        RaggedWriter(
            folder / "times", PhoneTimes, row_shapes={"margins": (2,)}
        ) as times,
    ):
        for name in ("u0", "u1"):
            held = recording(name, "a.wav", 0.3)
            manifest.write(made_up_cut(name, held, "ann", "EIGHT"))
            scores.write(name, rng.normal(size=len(path)))
            times.write(name, np.array([0.0, 0.14, 0.3]), np.full((3, 2), 0.01))
    write_int_vectors(folder / "ali.ark", [("u0", path), ("u1", path)])
    known = {"frame_shift": 0.01, "first_middle": 0.0125}
    (folder / "statistics.json").write_text(json.dumps(known))


def use_aligned(folder):
    given = folder.parent / "given"
    export_alignments(
        AlignedSet(
            alignments=folder / "ali.ark",
            statistics=folder / "statistics.json",
            cuts=folder / "cuts.jsonl.gz",
            lang_dir=given / "lang",
            model_dir=given,
        ),
        out_dir=folder / "out",
        options=ExportOptions(formats=("ctm", "json", "textgrid")),
        log_likes_dir=folder / "log_likes",
        boundaries_dir=folder / "times",
    )


def write_suspected(folder, rng):
    """Write an aligned and decoded set to look for suspects in."""
    given = folder.parent / "given"
    given.mkdir()
    lang, _, model = write_spoken(given)
    (folder / "ali").mkdir()
    path = states(lang, model, ["EY_B", "T_E"], (13, 15))
    write_int_vectors(folder / "ali/ali.ark", [("u0", path), ("u1", path)])
    write_ledger(folder / "ali/ledger.jsonl", rng)
    (folder / "hyp.txt").write_text("u0 EIGHT\nu1 TWO EIGHT\n")
    (folder / "hyp.ctm").write_text("u0 1 0 0.2 EIGHT 0.9\nu1 1 0.1 0.1 TWO\n")
    known = {"frame_shift": 0.01, "first_middle": 0.0125}
    (folder / "statistics.json").write_text(json.dumps(known))
    with (
        ManifestWriter(folder / "cuts.jsonl.gz") as manifest,
        ManifestWriter(folder / "recordings.jsonl.gz") as recordings,
        RaggedWriter(folder / "ali/log_likes", LogLikes) as scores,
        FrameWriter(folder / "frames", dim=2) as frames,
    ):
        for name in ("u0", "u1"):
            write_wave(given / f"{name}.wav", rng)
            held = recording(name, given / f"{name}.wav", 0.5)
            recordings.write(held)
            manifest.write(made_up_cut(name, held, "s", "EIGHT"))
            scores.write(name, rng.normal(size=len(path)))
            x = rng.normal(size=(len(path), 2)).astype(np.float32)
            frames.append(name, "s", "EIGHT", x)


def use_suspected(folder):
    given = folder.parent / "given"
    cuts, ali, out = folder / "cuts.jsonl.gz", folder / "ali", folder / "out"
    job = SetJob(
        frames_dir=folder / "frames",
        lang_dir=given / "lang",
        model_dir=given,
        out_dir=out,
    )
    hypotheses = folder / "hyp.txt"
    find_suspects(job, cuts, ali, options=SuspectOptions(), hypotheses=hypotheses)
    with suppress(UserError):
        clean_corpus(
            cuts, folder / "recordings.jsonl.gz", folder / "hyp.ctm", given / "lang",
            out / "cleaned", options=CleanedSetOptions(),
        )  # fmt: skip
    with suppress(UserError):
        refine_boundaries(
            AlignedSet(
                alignments=ali / "ali.ark",
                statistics=folder / "statistics.json",
                cuts=cuts,
                lang_dir=given / "lang",
                model_dir=given,
            ),
            out_dir=out / "times",
        )
    reestimate_lexicon(
        given / "lang", ali / "ali.ark", given, folder / "frames", out / "lang"
    )


def write_chain_parts(folder, rng):
    """Write what a tree of lattice-free MMI and its supervisions are made of."""
    given = folder.parent / "given"
    given.mkdir()
    write_system(given, rng, kind="gmm")
    lang, model = Lang.load(given / "lang"), given / "model"
    transitions = TransitionModel.load(model / "final.mdl")
    path = states(lang, transitions, ["EY_B", "T_E"], (13, 15))
    write_int_vectors(folder / "ali.ark", [("u0", path), ("u1", path)])
    with FrameWriter(folder / "frames", dim=13) as writer:
        for name in ("u0", "u1"):
            frames = rng.normal(size=(len(path), 13)).astype(np.float32)
            writer.append(name, "s", "EIGHT", frames)
    arcs = [(i, i + 1, tid, 0) for i, tid in enumerate(path.tolist())]
    finals = np.full((len(arcs) + 1, 2), np.inf, np.float32)
    finals[-1] = 0.0
    costs = np.zeros((len(arcs), 2), np.float32)
    lattice = Lattice.from_arcs(np.array(arcs, np.int32), costs, finals)
    write_lattices(folder / "lattices.ark", [("u0", lattice)])
    build_chain_tree(
        folder / "frames", given / "lang", folder / "ali.ark", model, None,
        folder / "tree", options=ChainTreeOptions(), threads=1,
    )  # fmt: skip


def use_chain_parts(folder):
    given = folder.parent / "given"
    model = given / "model"
    for name in ("ali.ark", "lattices.ark"):
        kind = "alignments" if name == "ali.ark" else "lattices"
        make_supervisions(
            SupervisionSource(model_dir=model, **{kind: folder / name}),
            folder / "tree", folder / kind, options=SupervisionOptions(),
        )  # fmt: skip
    transitions = TransitionModel.load(model / "final.mdl")
    write_targets(folder / "ali.ark", transitions, folder / "labels", ["pdf", "phone"])
    build_chain_tree(
        folder / "frames", given / "lang", folder / "ali.ark", model, None,
        folder / "out", options=ChainTreeOptions(), threads=1,
    )  # fmt: skip


def write_sequence(folder, rng):
    """Write what sequence training works on, but for the language."""
    given = folder.parent / "given"
    given.mkdir()
    make_sequence_system(given, None, count=3)
    for name in ("den", "ali.ark", "graphs", "frames", "cuts.jsonl.gz", "model"):
        shutil.move(given / name, folder / name)


def use_sequence(folder):
    given = folder.parent / "given"
    model = load_transitions(folder / "model")[1]
    files = SequenceFiles(
        given / "texts", given / "lang", folder / "model", folder / "den/HCLG.fst",
        folder / "ali.ark", folder / "graphs",
    )  # fmt: skip
    values = {"lattices": {"lattice_beam": 6.0, "acoustic_scale": 0.2}}
    for source in ("static", "on_the_fly"):
        given_options = values | {"alignments": {"source": source}}
        options = read_options(SequenceOptions, given_options)
        generator = load_generator(files, Mmi(model), options, GraphOptions())
        frames = FrameStore.load(folder / "frames")
        for i, utterance in enumerate(frames.utt_ids):
            scores = np.array(frames.frames(i))
            generator.evaluate(
                utterance, scores, np.zeros_like(scores), lattice_beam=6.0
            )
    make_denominator(
        given / "lang", folder / "cuts.jsonl.gz", folder / "model", folder / "out",
        options=DenominatorOptions(),
    )  # fmt: skip


#: Name of file or folder, how it is written, how it is used.
KINDS = {
    "chain system and supervisions": ("", write_chain, use_chain),
    "supervisions of flat start": ("", write_flat_start, use_flat_start),
    "CTC graphs": ("", lambda p, _: write_transcripts(p, compile_ctc), use_ctc),
    "units": (
        "",
        lambda p, _: write_transcripts(p, spell_transcripts, kind="phone"),
        use_units,
    ),
    "training graphs": ("", write_training_graphs, use_training_graphs),
    "alignments, scores, times": ("", write_aligned, use_aligned),
    "set to look for suspects in": ("", write_suspected, use_suspected),
    "parts of a chain system": ("", write_chain_parts, use_chain_parts),
    "files of sequence training": ("", write_sequence, use_sequence),
}


@of_each(KINDS)
def test_a_mutated_file_gives_a_result_or_one_clear_line(tmp_path: Path, kind, cases):
    check(KINDS, kind, tmp_path, cases)
