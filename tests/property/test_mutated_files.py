"""Files with mutations: readers and their first users give a result or a `UserError`.

Bytes are changed, lost, doubled or moved, lines too: 10,000 cases of all kinds together
in the slow set, their first 300 without it.
"""

import gzip
import json
import random
import re
import shutil
import struct
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, chdir, suppress
from itertools import islice
from pathlib import Path

import h5py
import numpy as np
import pytest
import soundfile
import torch
import yaml
from lhotse.audio import AudioSource
from reference.decode_paths import endless_graph, random_graph
from reference.determinize_naive import tangled_lattice
from reference.kaldi_nnet3 import HandWritten, xconfig_lines
from reference.made_up_alignments import cut as made_up_cut
from reference.made_up_alignments import make_system, recording, states
from reference.made_up_networks import frame_log
from reference.made_up_results import made_up_recipe
from reference.sequence_system import Mmi
from reference.sequence_system import make_system as make_sequence_system
from reference.serving_package import words_of
from reference.small_model import small_model

from latflow.align.aligner import Aligner
from latflow.align.boundaries import refine_boundaries
from latflow.align.cleanup import clean_corpus
from latflow.align.corpus import AlignmentArchive, LogLikes
from latflow.align.ctc import CtcGraphs, compile_ctc
from latflow.align.export import export_alignments
from latflow.align.flat_start import supervise_flat_start
from latflow.align.graphs import TrainingGraphs, compile_transcripts
from latflow.align.options import (
    AlignOptions,
    AlignSplitOptions,
    ExportOptions,
    SupervisionOptions,
    SuspectOptions,
)
from latflow.align.reestimate import reestimate_lexicon
from latflow.align.supervision import PhoneLattice, SupervisionCompiler
from latflow.align.supervision_store import (
    NORMALIZATION,
    Supervisions,
    make_supervisions,
)
from latflow.align.suspects import find_suspects
from latflow.align.timing import PhoneTimes
from latflow.align.units import UnitGraphs, spell_transcripts
from latflow.corpus.audio import AudioReader, BadAudio, examine
from latflow.corpus.combine import combine_corpora
from latflow.corpus.ctm import read_ctm
from latflow.corpus.cut_set import read_cut_set, supervisions_of
from latflow.corpus.folder import list_folder
from latflow.corpus.hdf5 import read_sequences
from latflow.corpus.hold_out import hold_out
from latflow.corpus.json_lines import ManifestWriter, read_cut_lines, read_items
from latflow.corpus.kaldi_dir import import_kaldi_dir
from latflow.corpus.listing import Listing
from latflow.corpus.manifests import read_cuts, read_recordings, read_supervisions
from latflow.corpus.options import (
    CleanedSetOptions,
    CorpusOptions,
    FolderSource,
    Hdf5Source,
    HoldOutSource,
    ManifestSource,
    PerturbationOptions,
    TableSource,
)
from latflow.corpus.perturb import perturb_corpus
from latflow.corpus.prepare import prepare_corpus
from latflow.corpus.table import list_table
from latflow.corpus.textgrid import Interval, textgrid
from latflow.criteria.ctc import evaluate_ctc
from latflow.criteria.denominator import Denominator
from latflow.criteria.external import MessageError, write_message
from latflow.criteria.external import read_message as read_answer
from latflow.criteria.lfmmi import evaluate_lfmmi
from latflow.criteria.options import LfmmiOptions
from latflow.decode.align import align_network
from latflow.decode.decoder import LatticeDecoder
from latflow.decode.joining import join_alignments, join_lattices
from latflow.decode.lattices import decode_lattices
from latflow.decode.options import AlignNetworkOptions, SearchOptions, TranscribeOptions
from latflow.decode.rescore import rescore_lattices
from latflow.decode.rescore_n_best import mix_language_models, rescore_n_best
from latflow.decode.search_graph import GraphFile, mapped_search_graph
from latflow.decode.totals import Totals, write_summary
from latflow.decode.vosk import export_vosk
from latflow.errors import UserError
from latflow.features.cmvn import normalize_features
from latflow.features.extract import extract_features
from latflow.features.frames import FrameStore, FrameWriter
from latflow.features.live import LiveFrames, prepare_live_features
from latflow.features.options import (
    FeatureOptions,
    FrontEndOptions,
    OnlineCmvn,
    PasteOptions,
    SpeakerCmvn,
    StreamOptions,
)
from latflow.features.pasting import paste_features
from latflow.features.storage import FeatureStorage
from latflow.features.transform import Deltas, Linear
from latflow.files import file_digest
from latflow.fst.graph import Graph
from latflow.gmm.alignment import align_gmm
from latflow.gmm.apply import adapt_frames, write_log_likes
from latflow.gmm.chain_tree import build_chain_tree
from latflow.gmm.ivector import (
    Extractor,
    FrameProjection,
    IvectorModel,
    append_ivectors,
)
from latflow.gmm.kaldi_dir import (
    check_cmvn,
    job_files,
    merged_transforms,
    read_transform,
)
from latflow.gmm.kaldi_export import export_system
from latflow.gmm.kaldi_import import import_alignments, import_graph, import_system
from latflow.gmm.kaldi_ivector import read_ivectors, write_ivectors
from latflow.gmm.model import (
    AcousticModel,
    DiagGmms,
    load_transform,
    save_transform,
)
from latflow.gmm.options import AlignAdaptedOptions, IvectorOptions
from latflow.gmm.source import SpeakerTransforms
from latflow.graphs.chain import ChainGraphs, save_chain_system
from latflow.graphs.denominator import make_denominator
from latflow.graphs.hclg import load_model as load_transitions
from latflow.graphs.hclg import make_graph
from latflow.graphs.options import (
    ChainTreeOptions,
    DenominatorOptions,
    GraphOptions,
    PhoneLmOptions,
)
from latflow.hmm.topology import Topology, chain_topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import (
    KaldiWriter,
    read_int_vectors,
    read_matrices,
    write_int_vectors,
    write_matrices,
    write_matrix,
)
from latflow.lang.arpa import perplexity, read_arpa
from latflow.lang.completion import apply_model, complete_lexicon
from latflow.lang.completion import train_model as train_lexicon_model
from latflow.lang.directory import Lang, read_symbols
from latflow.lang.g2p import G2p, train_g2p
from latflow.lang.lexicon import read_lexicon
from latflow.lang.lm_trie import LmTrie
from latflow.lang.ngram import text_sentences, transcript_sentences
from latflow.lang.options import LangOptions, LstmLmOptions
from latflow.lang.prepare import import_lang, make_grammar, make_lang
from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.determinize.pruned import determinize
from latflow.lattice.io.archives import (
    LatticeArchive,
    read_compact_lattices,
    read_lattices,
    write_lattices,
)
from latflow.lattice.lattice import Lattice
from latflow.lattice.path_sums import forward_backward
from latflow.lattice.posteriors import (
    alignment_posteriors,
    read_posteriors,
    write_posteriors,
)
from latflow.lattice.prune import prune
from latflow.ledger import Ledger, read_ledger
from latflow.nnet.described import (
    described_layers,
    described_outputs,
    described_parts,
    described_sample_rates,
    described_subsampling,
)
from latflow.nnet.description import NetworkDescription
from latflow.nnet.language_model import NeuralLm, WordLstm
from latflow.nnet.model_dir import (
    AcousticNetwork,
    average_models,
    load_model,
    save_model,
)
from latflow.nnet.network import Network
from latflow.nnet.nnet3 import Nnet3
from latflow.nnet.nnet3_import import import_nnet3
from latflow.nnet.pretraining import shallower
from latflow.options import read_options
from latflow.ragged import RaggedWriter
from latflow.report.cost_figures import read_figures
from latflow.report.costs import read_costs
from latflow.report.inputs import read_log
from latflow.scoring.boundaries import read_labels
from latflow.scoring.options import (
    ComparisonOptions,
    LmwtOptions,
    ScoreOptions,
    TuneOptions,
)
from latflow.scoring.results import (
    COLUMNS,
    format_rates,
    read_scores,
    read_table,
    score_utterances,
    summarize_wer,
    totals,
    write_table,
)
from latflow.scoring.score import score
from latflow.scoring.transcripts import read_references, read_text
from latflow.scoring.tune import read_scales, tune_scales
from latflow.sequence.generation import SequenceFiles, load_generator
from latflow.sequence.options import SequenceOptions
from latflow.serving.http import _read_arrays
from latflow.serving.load_test import read_audio
from latflow.serving.package import Model, read_info
from latflow.serving.packaging import PackageOptions, write_package
from latflow.serving.service import RefusedError
from latflow.serving.transcribe import find_recordings, transcribe
from latflow.serving.vosk_import import import_vosk, read_conf
from latflow.serving.vosk_import import read_model as read_nnet3_model
from latflow.serving.websocket import read_message
from latflow.simulation.corpus import simulate_corpus
from latflow.simulation.options import SimulatedSetOptions
from latflow.simulation.records import Record, read_records, record_line
from latflow.training.checkpoint import CheckpointStore, Position
from latflow.training.data_options import LfmmiDataOptions
from latflow.training.forward import forward
from latflow.training.hdf5 import export_hdf, import_hdf
from latflow.training.job import adopt
from latflow.training.labels import LabelStore, LabelWriter, load_targets, write_targets
from latflow.training.readers import StoreReader
from latflow.training.supervised import SupervisedSource, open_supervisions
from latflow.workflow.code_digest import _Kept
from latflow.workflow.doctor import examine as examine_corpora
from latflow.workflow.doctor import examine_sources
from latflow.workflow.experiment import load as load_recipe
from latflow.workflow.jobs import above_limit, describe, find_record
from latflow.workflow.settings import read_config

TID_TO_PDF = np.array([0, 0, 1, 1, 2], np.int32)
LOG_LIKES = np.random.default_rng(7).normal(size=(6, 3)).astype(np.float32)
ARPA = """\\data\\
ngram 1=4
ngram 2=2

\\1-grams:
-1.0 <s> -0.5
-0.7 </s>
-0.9 one -0.2
-0.8 two -0.3

\\2-grams:
-0.3 <s> one
-0.4 one </s>

\\end\\
"""


#: What is put in the place of numbers of text.
SPECIAL = (
    *(b"-1", b"0", b"nan", b"inf", b"99999999999", b"1e999", b"NaN", b"Infinity"),
    *(b"null", b"{}", b'""', b"1" * 5000, b"[" * 5000, b" ", b"\n"),
)


def mutated(raw: bytes, rng: np.random.Generator) -> bytes:
    """Return bytes with one to three mutations."""
    data = bytearray(raw)
    for _ in range(rng.integers(1, 4)):
        size = len(data)
        at, end = sorted(int(i) for i in rng.integers(0, size + 1, 2))
        short = min(end, at + 8)
        kind = rng.integers(9)
        if kind == 0 and size:
            data[at % size] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            data[at:short] = rng.integers(0, 256, short - at, dtype=np.uint8).tobytes()
        elif kind == 2:
            del data[at:short]
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            data[at:at] = data[at:short]
        elif kind == 5:
            special = SPECIAL[rng.integers(len(SPECIAL))]
            data[at : at + len(special)] = special
        elif kind == 6 and size > 4:  # an integer that is far too large, or negative
            number = int(rng.choice([-1, 0, 2**31 - 1, -(2**31), 1000]))
            data[at : at + 4] = number.to_bytes(4, "little", signed=True)
        elif kind == 7 and (numbers := [*re.finditer(rb"-?\d+(\.\d+)?", data)]):
            begin, finish = numbers[rng.integers(len(numbers))].span()
            data[begin:finish] = SPECIAL[rng.integers(len(SPECIAL))]
        else:
            lines = bytes(data).split(b"\n")
            one, other = (int(i) for i in rng.integers(0, len(lines), 2))
            lines[one], lines[other] = lines[other], lines[one]
            data = bytearray(b"\n".join(lines))
    return bytes(data)


def cuts(rng):
    """Return the lines of a manifest of cuts."""
    for i in range(3):
        name = f"u{i}"
        recording = {
            "id": name, "sources": [{"type": "file", "channels": [0], "source": "a"}],
            "sampling_rate": 8000, "num_samples": 8000, "duration": 1.0,
        }  # fmt: skip
        supervision = {
            "id": name, "recording_id": name, "start": 0.0, "duration": 1.0,
            "channel": 0, "text": "ONE TWO", "speaker": "s",
        }  # fmt: skip
        features = {
            "type": "kaldi", "num_frames": 98, "num_features": 13, "frame_shift": 0.01,
            "sampling_rate": 8000, "start": 0, "duration": 1.0,
            "storage_type": "numpy_files", "storage_path": "x", "storage_key": "y",
        }  # fmt: skip
        yield {
            "id": name, "start": 0.0, "duration": 1.0, "channel": 0,
            "supervisions": [supervision], "features": features,
            "recording": recording, "type": "MonoCut",
        }  # fmt: skip


def write_cuts(path, rng):
    text = "".join(json.dumps(cut) + "\n" for cut in cuts(rng))
    raw = text.encode()
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)


def has_path(lattice):
    """Return whether a path leads to a final state."""
    try:
        forward_backward(lattice)
    except UserError:
        return False
    return True


def write_lattice_archive(path, rng, *, binary, compact):
    tangled = (tangled_lattice(rng, 3) for _ in range(100))
    lattices = list(islice((x for x in tangled if has_path(x)), 2))
    items = [
        (f"u{i}", lattice.to_compact() if compact else lattice)
        for i, lattice in enumerate(lattices)
    ]
    write_lattices(path, items, binary=binary)


def use_lattices(path, read):
    for _, lattice in read(path):
        best_paths(lattice, [Scales.from_lmwt(7, 0.0), Scales.from_lmwt(9, 1.0)])
        forward_backward(lattice, acoustic_scale=0.1)
        determinize(prune(lattice, 8.0, acoustic_scale=0.1), beam=6.0)


def use_graph(path):
    decoder = LatticeDecoder(Graph.load(path), TID_TO_PDF, beam=8.0)
    decoder.decode(LOG_LIKES, acoustic_scale=1.0, utterance="u")


def write_gmm(folder, rng):
    topology = Topology.standard([2, 3], [1], 2, 1)
    tree = ContextDependency.monophone([[1], [2, 3]], topology.pdf_class_counts())
    n = tree.num_pdfs
    gmms = DiagGmms.from_moments(
        np.arange(n + 1), np.ones(n), rng.normal(size=(n, 2)), np.full((n, 2), 3.0)
    )
    AcousticModel(small_model(), gmms).save(folder / "final.mdl")
    tree.save(folder / "tree")


def use_gmm(folder):
    model = AcousticModel.load(folder / "final.mdl")
    load_transitions(folder)
    model.gmms.log_likelihoods(np.zeros((3, model.gmms.dim), np.float32))


def write_network(folder, rng):
    layers = {
        "hidden": {"class": "linear", "size": 4, "activation": "relu"},
        "rec": {"class": "rec", "size": 3},
        "output": {"class": "output"},
    }
    description = NetworkDescription.from_config({"layers": layers})
    network = Network(description, 3, {"pdf": 4}, seed=3)
    save_model(folder / "m", network, description, np.ones(4), {"criterion": "ce"})


def use_network(folder):
    model = load_model(folder / "m")
    with torch.inference_mode():
        model.network(torch.zeros(1, 5, model.network.dim_in), torch.tensor([5]))


def write_nnet3(path, rng):
    layers = {
        "near": {"class": "tdnnf", "size": 3, "bottleneck": 2, "stride": 3},
        "past": {"class": "tdnn", "size": 4, "offsets": [-1, 0]},
        "norm": {"class": "batch_norm"},
        "both": {"class": "concat", "from": ["past", "norm"]},
        "output": {"class": "output", "loss": "lfmmi"},
    }
    description = NetworkDescription.from_config({"edges": "repeat", "layers": layers})
    network = Network(description, 3, {"pdf": 4}, seed=3).eval()
    meta = {"scores": "log_likelihoods", "normalization": {"type": "none"}}
    with KaldiWriter.open(path) as writer:
        small_model().write(writer)
        Nnet3(AcousticNetwork(network, None, meta)).write(writer)


def write_xconfig(path, rng):
    with KaldiWriter.open(path) as writer:
        small_model().write(writer)
        writer.write_bytes(HandWritten(*xconfig_lines(dim=3, ivector_dim=2)).raw())


def use_nnet3(path):
    network = import_nnet3(read_nnet3_model(path)[1], 3).network
    with torch.inference_mode():
        network(torch.zeros(1, 5, network.dim_in), torch.tensor([5]))


def write_checkpoint(folder, rng):
    store = CheckpointStore(folder, {"seed": 1})
    state = {"weights": torch.zeros(3), "step": 4}
    store.save(Position(1, 0), state, ())


def use_checkpoint(folder):
    store = CheckpointStore(folder, {"seed": 1})
    for position in store.positions():
        store.load(position)


def write_frames(folder, rng):
    with FrameWriter(folder / "frames", dim=2) as writer:
        for i in range(3):
            frames = rng.normal(size=(4, 2)).astype(np.float32)
            writer.append(f"u{i}", "s", "ONE", frames)


def use_frames(folder):
    store = FrameStore.load(folder / "frames")
    names = (store.utt_ids, store.speakers, store.texts)
    assert all(len(column) == len(store) for column in names)
    for i in range(len(store)):
        float(store.frames(i).sum())
    store.frame_shift, store.num_frames  # noqa: B018


def write_hdf(path, rng):
    folder = path.parent / "of_hdf"
    write_frames(folder, rng)
    with LabelWriter(folder / "labels", 3) as writer:
        for i in range(3):
            writer.append(f"u{i}", np.array([0, 1, 2, 1], np.int32))
    export_hdf(folder / "frames", {"pdf": folder / "labels"}, path)
    shutil.rmtree(folder)


def use_hdf(path):
    out = path.parent
    import_hdf([path], out / "frames", out / "labels")
    FrameStore.load(out / "frames")
    for labels in (out / "labels").glob("*"):  # none where no target is left
        LabelStore.load(labels)


def use_all(read):
    return lambda path: list(read(path))


def lattice_kind(*, binary, compact):
    read = read_compact_lattices if compact else read_lattices
    return (
        "a.ark",
        lambda path, rng: write_lattice_archive(
            path, rng, binary=binary, compact=compact
        ),
        lambda path: use_lattices(path, read),
    )


def write_matrix_archive(path, rng):
    write_matrices(path, [(f"u{i}", rng.normal(size=(3, 2))) for i in range(2)])


def write_vector_archive(path, rng):
    write_int_vectors(path, [(f"u{i}", rng.integers(0, 9, 5)) for i in range(2)])


def write_graph(path, rng, form):
    random_graph(rng, 6, has_cycles=False).save(path, **form)


def use_arpa(path):
    perplexity(read_arpa(path), [["one", "two"], ["one"]])


def use_scales(path):
    chosen = read_scales(path)
    Scales.from_lmwt(chosen["lmwt"], chosen["wip"])


def write_parts(path, rng, key):
    """Write the recordings or supervisions of the cuts."""
    items = (cut[key] for cut in cuts(rng))
    parts = (each[0] if isinstance(each, list) else each for each in items)
    path.write_text("".join(json.dumps(part) + "\n" for part in parts))


def use_trie(path):
    trie = LmTrie.load(path, {"one": 1, "two": 2})
    trie.sentence_costs(np.array([1, 2, 1]))


def write_g2p(path, rng):
    entries = [
        ("one", ("W", "AH", "N")),
        ("two", ("T", "UW")),
        ("ton", ("T", "AH", "N")),
    ]
    train_g2p(entries, order=2).trie.save(path)


LEXICON = "<UNK> SPN\nONE W AH N\nTWO T UW\nTWO T AX\n"


def write_lang(folder, rng):
    lexicon = folder / "given.txt"
    lexicon.write_text(LEXICON)
    make_lang(lexicon, folder / "lang", options=LangOptions())
    (folder / "lm.arpa").write_text(ARPA.replace("one", "ONE").replace("two", "TWO"))


def use_lang(folder):
    Lang.load(folder / "lang")
    make_grammar(folder / "lm.arpa", folder / "lang", folder / "G.fst")


def write_textgrid(path, rng):
    words = [Interval(0.1, 0.5, "ONE"), Interval(0.5, 0.9, "TWO")]
    path.write_text(textgrid({"words": words, "phones": words}, 1.0))


def write_short_textgrid(path, rng):
    lines = (
        'File type = "ooTextFile"', 'Object class = "TextGrid"', "", "0", "1",
        "<exists>", "1", '"IntervalTier"', '"words"', "0", "1", "2", "0", "0.4",
        '"ONE"', "0.4", "1", '"TWO"',
    )  # fmt: skip
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-16")


def ivector_model(rng):
    ubm = DiagGmms.from_moments(
        np.array([0, 2]), np.ones(2) / 2, rng.normal(size=(2, 2)), np.ones((2, 2))
    )
    extractor = Extractor(rng.normal(size=(2, 2, 2)), np.stack([np.eye(2)] * 2), 5.0)
    options = IvectorOptions(features="x", dim=2, num_gaussians=2)
    projection = FrameProjection(0, np.zeros(2), np.eye(2))
    stats = np.array([[1.0, 2.0, 3.0], [5.0, 6.0, 0.0]])
    return IvectorModel(projection, ubm, extractor, options, OnlineCmvn(), stats)


def use_ivectors(folder):
    read_ivectors(folder, 2, features="x").online(np.zeros((12, 2), np.float32))


def write_neural_lm(folder, rng):
    options = LstmLmOptions(size=4)
    words = ["</s>", "ONE", "TWO"]
    NeuralLm(WordLstm(3, options).eval(), words, options, {}).save(folder / "lm")


def write_record(path, rng):
    room = {
        "number": 3, "size": (4.0, 3.0, 2.5), "microphone": (1.0, 1.0, 1.2),
        "source": (2.0, 2.0, 1.6), "others": [(3.0, 1.0, 1.0)], "t60": 0.4,
        "redraws": 0,
    }  # fmt: skip
    noise = {
        "name": "white",
        "spectrum": "white",
        "snr": 10.0,
        "place": (1.0, 2.0, 1.0),
    }
    speaker = {"utterance": "u1", "offset": 100, "sir": 5.0, "overlap": 0.5}
    values = {
        "utterance": "u0", "whole_pass": 0, "rate": 8000, "num_samples": 8000,
        "room": room, "noises": [noise], "speakers": [speaker],
        "device": {"gain": 3.0},
    }  # fmt: skip
    record = Record.model_validate(values)
    path.write_text(record_line(record) * 2)


def write_wave(path, rng, num_channels=1):
    samples = rng.uniform(-0.5, 0.5, (4000, num_channels))
    soundfile.write(path, samples, 8000)


def use_wave(path):
    """Bad audio is a finding: importers name it, and go on or refuse it."""
    try:
        examine(AudioSource("file", [0], str(path)), verify=True)
        with AudioReader(path) as reader:
            list(reader.blocks(1000))
    except BadAudio:
        pass


def write_kaldi_dir(folder, rng):
    for name in ("r0", "r1"):
        write_wave(folder / f"{name}.wav", rng)
    waves = "".join(f"{name} {folder / name}.wav\n" for name in ("r0", "r1"))
    tables = {
        "wav.scp": waves,
        "segments": "a-0 r0 0 0.2\na-1 r0 0.2 0.4\nb-0 r1 0 0.5\n",
        "text": "a-0 ONE\na-1 TWO\nb-0 ONE TWO\n",
        "utt2spk": "a-0 a\na-1 a\nb-0 b\n",
        "spk2gender": "a f\nb m\n",
    }
    for name, text in tables.items():
        (folder / name).write_text(text)


def write_listed(path, rng, separator):
    write_wave(path.with_name("a.wav"), rng)
    write_wave(path.with_name("b.wav"), rng)
    rows = (("path", "text", "speaker"), ("a.wav", "ONE", "s"), ("b.wav", "TWO", "t"))
    if separator is None:
        lines = (json.dumps(dict(zip(rows[0], row, strict=True))) for row in rows[1:])
    else:
        lines = (separator.join(row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines))


def use_listed(path):
    with Listing(path.parent) as listing:
        list_table(TableSource(path=str(path)), listing)


def write_ledger(path, rng):
    ledger = Ledger("align_frames")
    ledger.record("u0", "no path", action="skipped")
    ledger.record("u1", "beam widened", action="retried", beam=40.0)
    ledger.write(path)


def write_gammas(path, rng, *, binary):
    items = [(f"u{i}", alignment_posteriors(rng.integers(0, 9, 4))) for i in range(2)]
    write_posteriors(path, items, binary=binary)


def write_scores(path, rng):
    said, heard = {"u0": ["A", "B"], "u1": ["B"]}, {"u0": ["A"], "u1": ["B", "C"]}
    speakers = {"u0": "s", "u1": "t"}
    scores = score_utterances(said, heard, speakers, options=ComparisonOptions())
    write_table(path, scores, {"wer": 2}, missing="nan")


def write_log(path, rng):
    lines = frame_log(random.Random(1))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_costs(folder, rng):
    path = folder / "benchmarks/make_graph/tri1.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text('{"s": 1.5, "max_rss": 100.0, "io_in": 1.0, "cpu_time": "NA"}\n')
    record = folder / "provenance/make_graph/tri1.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"rule": "make_graph", "wildcards": {}, "params": {}}\n')


def write_conf(folder, rng):
    (folder / "mfcc.conf").write_text("--sample-frequency=8000\n--num-mel-bins=23\n")
    (folder / "model.conf").write_text(
        "--beam=13.0\n--max-active=7000\n--acoustic-scale=1.0\n"
        "--frame-subsampling-factor=3\n--endpoint.silence-phones=1:2\n"
        "--endpoint.rule2.min-trailing-silence=0.5\n"
    )


def write_recipe(path, rng):
    values = made_up_recipe().model_dump(mode="json", exclude_unset=True, by_alias=True)
    path.write_text(yaml.safe_dump(values))


def read_arpa_text(path):
    """Return the model of `ARPA`, read beside a path."""
    given = path.with_suffix(".arpa")
    given.write_text(ARPA)
    model = read_arpa(given)
    given.unlink()
    return model


def use_log(path):
    log = read_log(path)
    [log.epochs_at(line) for line in log.steps]


PACKAGE = {
    "experiment": "made_up", "name": "tri3", "kind": "gmm",
    "front_end": {"type": "mfcc"}, "format": 1, "sample_rate": 8000,
    "frame_shift": 0.01, "subsampling": 1,
    "acoustic_scale": 0.1, "lattice_scale": 1.0, "prior_scale": 1.0, "lmwt": 9.0,
    "wip": 0.5, "silence_phones": [1], "is_streaming": True, "why_not_streaming": None,
    "licence": "", "versions": {"numpy": "2"}, "digests": {"model/final.mdl": "0a"},
}  # fmt: skip


def use_arrays(path):
    with suppress(RefusedError):  # what the server answers with
        _read_arrays(path.read_bytes(), limit=10**6)


def use_alignments(path):
    archive = AlignmentArchive(path)
    archive.get("u0")
    archive.get("u1")


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


def write_spoken(folder):
    """Write a language, a model of its phones, and frames of three utterances."""
    _, lang, model = make_system(folder)
    counts = lang.topology.pdf_class_counts()
    tree = ContextDependency.monophone([[p] for p in sorted(counts)], counts)
    tree.save(folder / "tree")
    with FrameWriter(folder / "frames", dim=2) as writer:
        for i, text in enumerate(("EIGHT TWO", "TWO", "THREE")):
            writer.append(f"u{i}", "s", text, np.zeros((60, 2), np.float32))
    return lang, tree, model


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
        RaggedWriter(folder / "times", PhoneTimes) as times,
    ):
        for name in ("u0", "u1"):
            held = recording(name, "a.wav", 0.3)
            manifest.write(made_up_cut(name, held, "ann", "EIGHT"))
            scores.write(name, rng.normal(size=len(path)))
            times.write(name, np.array([0.0, 0.14, 0.3]))
    write_int_vectors(folder / "ali.ark", [("u0", path), ("u1", path)])
    known = {"frame_shift": 0.01, "first_middle": 0.0125}
    (folder / "statistics.json").write_text(json.dumps(known))


def use_aligned(folder):
    given = folder.parent / "given"
    export_alignments(
        folder / "ali.ark",
        folder / "statistics.json",
        folder / "cuts.jsonl.gz",
        given / "lang",
        given,
        folder / "out",
        options=ExportOptions(formats=("ctm", "json", "textgrid")),
        log_likes_dir=folder / "log_likes",
        boundaries_dir=folder / "times",
    )


def write_live(folder, rng):
    audio = folder.parent / "audio"
    audio.mkdir()
    with ManifestWriter(audio / "cuts.jsonl.gz") as writer:
        for name in ("u0", "u1"):
            write_wave(audio / f"{name}.wav", rng)
            held = recording(name, audio / f"{name}.wav", 0.5)
            writer.write(made_up_cut(name, held, "s", "ONE"))
    prepare_live_features(
        audio / "cuts.jsonl.gz",
        folder / "live",
        options=read_options(StreamOptions, {"cmvn": {"type": "none"}}),
        max_skipped_fraction=0,
    )


def use_live(folder):
    live = LiveFrames(folder / "live")
    assert len(live.texts) == len(live.utt_ids) == len(live)
    live.speaker_codes.max()
    for i in range(len(live)):
        live.frames(i)
        live.speaker(i)


def write_labels(folder, rng):
    with LabelWriter(folder / "labels/pdf", 3) as writer:
        for i in range(3):
            writer.append(f"u{i}", np.array([0, 1, -1, 2], np.int32))


def use_labels(folder):
    for store in load_targets(folder / "labels").values():
        for i, _ in enumerate(store.utt_ids):
            store.labels(i)
        if store.num_classes < 1000:  # else much memory is taken
            store.counts()


def write_system(folder, rng, *, kind):
    """Write a system that knows no speech, its language, graph and scales."""
    _, lang, model = make_system(folder)
    shutil.move(folder / "final.mdl", folder / "transitions.mdl")
    counts = lang.topology.pdf_class_counts()
    tree = ContextDependency.monophone([[p] for p in sorted(counts)], counts)
    (folder / "model").mkdir()
    n = tree.num_pdfs
    if kind == "gmm":
        means = rng.normal(size=(n, 39))
        moments = np.ones(n), means, np.full((n, 39), 3.0)
        gmms = DiagGmms.from_moments(np.arange(n + 1), *moments)
        AcousticModel(model, gmms).save(folder / "model/final.mdl")
        save_transform(folder / "model", Deltas())
    else:
        layers = {"output": {"class": "output", "loss": "lfmmi"}}
        config = {"edges": "repeat", "layers": layers}
        description = NetworkDescription.from_config(config)
        network = Network(description, 13, {"pdf": n}, seed=3).eval()
        meta = {"scores": "log_likelihoods", "normalization": {"type": "none"}}
        save_model(folder / "model", network, description, None, meta)
        model.save(folder / "model/final.mdl")
    tree.save(folder / "model/tree")
    arpa = folder / "lm.arpa"
    arpa.write_text(ARPA.replace("one", "ONE").replace("two", "TWO"))
    make_grammar(arpa, folder / "lang", folder / "G.fst")
    graph = GraphOptions()
    make_graph(
        folder / "lang", folder / "G.fst", folder / "model", folder / "HCLG.fst",
        options=graph,
    )  # fmt: skip
    (folder / "scales.json").write_text('{"lmwt": 9, "wip": 0.5}')
    for name in ("transitions.mdl", "lexicon.txt", "lm.arpa", "G.fst"):
        (folder / name).unlink()
    return lang, model


def package(folder, out, *, kind):
    """Write the package of a system."""
    options = PackageOptions(
        experiment="e", name="s", kind=kind, front_end=FrontEndOptions(),
        sample_rate=8000,
    )  # fmt: skip
    write_package(
        folder / "model", folder / "HCLG.fst", folder / "lang", folder / "scales.json",
        out, options=options,
    )  # fmt: skip


def use_system(folder, *, kind):
    package(folder, folder / "package", kind=kind)
    use_package(folder / "package")


def write_whole_package(folder, rng):
    given = folder.parent / "given"
    given.mkdir()
    write_system(given, rng, kind="gmm")
    package(given, folder / "package", kind="gmm")


def use_package(folder):
    samples = np.random.default_rng(1).normal(size=2400).astype(np.float32)
    words_of(Model.load(folder), samples)


def use_repackaged(folder):
    """Use a package with the digests of its files as they are."""
    info = folder / "package/package.json"
    with suppress(OSError, ValueError, TypeError, KeyError):
        told = json.loads(info.read_text())
        told["digests"] = {
            name: file_digest(folder / "package" / name) for name in told["digests"]
        }
        info.write_text(json.dumps(told))
    use_package(folder / "package")


def write_kaldi_system(folder, rng):
    given = folder.parent / "given"
    given.mkdir()
    lang, model = write_system(given, rng, kind="gmm")
    path = given / "ali.ark"
    write_int_vectors(path, [("u0", states(lang, model, ["EY_B"], (3,)))])
    write_matrices(given / "trans.ark", [("s", np.eye(39, 40))])
    export_system(
        given / "model", given / "lang", folder / "exp", graph=given / "HCLG.fst",
        alignments=path, transforms=given / "trans.ark",
    )  # fmt: skip
    (folder / "exp/cmvn_opts").write_text("--norm-means=true --norm-vars=false\n")
    frames = folder.parent / "frames"
    with FrameWriter(frames, dim=13) as writer:
        writer.append("u0", "s", "ONE", np.zeros((3, 13), np.float32))


def use_kaldi_system(folder):
    given, out = folder.parent / "given", folder / "out"
    lang, exp = folder / "exp/lang", folder / "exp"
    import_system(exp, lang, out / "gmm", features=FeatureOptions())
    import_graph(exp / "graph", out / "gmm", lang, out / "HCLG.fst")
    import_alignments(
        exp, out / "gmm", given / "lang", folder.parent / "frames", out / "ali",
        max_skipped_fraction=1.0,
    )  # fmt: skip


def write_vosk(folder, rng):
    given = folder.parent / "given"
    given.mkdir()
    write_system(given, rng, kind="lfmmi")
    export_vosk(
        given / "model", given / "lang", given / "HCLG.fst", folder / "vosk",
        features=FrontEndOptions(), sample_rate=8000,
    )  # fmt: skip


def use_vosk(folder):
    import_vosk(folder / "vosk", folder / "out", "vosk")
    use_package(folder / "out/package/vosk")


def write_provenance(folder, rng):
    write_costs(folder, rng)
    (folder / "graph").mkdir()
    (folder / "graph/ledger.jsonl").write_text("")
    record = {
        "rule": "make_graph", "wildcards": {"system": "tri1"}, "inputs": ["lang"],
        "outputs": {"graph/ledger.jsonl": {"bytes": 0}}, "params": {"scale": 1.0},
        "params_digest": "0a", "config_digest": "0b", "code_digest": "0c",
        "seeds": {}, "versions": {"numpy": "2"}, "commit": "0d", "threads": 1,
        "started": "2026-01-01", "seconds": 1.5,
    }  # fmt: skip
    (folder / "provenance/make_graph/tri1.json").write_text(json.dumps(record))
    frames = folder / "frames/train/meta.json"
    frames.parent.mkdir(parents=True)
    frames.write_text('{"num_frames": 100, "frame_shift": 0.01, "num_utterances": 2}')


def use_provenance(folder):
    describe(find_record(folder / "graph/ledger.jsonl"))
    list(above_limit(folder, 0.1))
    read_figures(folder)


def write_stored_features(folder, rng):
    lines = []
    kinds = ("numpy_files", "numpy_hdf5", "lilcom_chunky")
    for cut, kind in zip(cuts(rng), kinds, strict=True):
        storage = FeatureStorage(kind, folder, folder)
        matrix = rng.normal(size=(20, 13)).astype(np.float32)
        told = {"storage_type": kind, "storage_key": storage.write(cut["id"], matrix)}
        storage.close()
        path = Path(storage.path).relative_to(folder)
        cut["features"] |= {**told, "storage_path": str(path)}
        lines.append(json.dumps(cut) + "\n")
    (folder / "cuts.jsonl").write_text("".join(lines))


def use_stored_features(folder):
    cmvn = read_options(SpeakerCmvn, {"norm_vars": True})
    with chdir(folder):
        normalize_features("cuts.jsonl", folder / "out", cmvn=cmvn)
    FrameStore.load(folder / "out")


def write_hdf_corpus(path, rng):
    lengths = np.array([[4, 2, 2], [6, 1, 2]], np.int32)
    with h5py.File(path, "w") as file:
        file["inputs"] = rng.normal(size=(10, 2)).astype(np.float32)
        file["seqLengths"] = lengths
        file["seqTags"] = np.array([b"u0", b"u1"])
        file["targets/data/classes"] = np.array([0, 1, 1], np.int32)
        file["targets/data/sizes"] = np.array([2, 2, 2, 3], np.int32)
        file.require_group("targets/size").attrs["classes"] = 2
        file["targets/labels/classes"] = np.array([b"ONE", b"TWO"])


def write_cut_set(folder, rng):
    write_wave(folder / "a.wav", rng)
    lines = []
    for i, cut in enumerate(cuts(rng)):
        del cut["features"]
        cut["recording"] |= {"num_samples": 4000, "duration": 0.5}
        cut["recording"]["sources"][0]["source"] = "a.wav"
        cut |= {"duration": 0.4}
        if i == 1:
            cut["recording"]["transforms"] = [
                {"name": "Speed", "kwargs": {"factor": 0.9}}
            ]
        lines.append(json.dumps(cut) + "\n")
    (folder / "cuts.jsonl").write_text("".join(lines))


def use_cut_set(folder):
    with chdir(folder), ThreadPoolExecutor(1) as pool:
        list(read_cut_set("cuts.jsonl", folder / "o", folder / "o", pool=pool, ahead=1))


def write_folder(folder, rng):
    for name in ("a", "b", "c"):
        write_wave(folder / f"{name}.wav", rng)
    (folder / "a.txt").write_text("ONE\n")
    (folder / "b.lab").write_text("TWO\n")
    write_textgrid(folder / "c.TextGrid", rng)


def use_folder(folder):
    out = folder.parent / f"{folder.name}.out"
    out.mkdir()
    with Listing(out) as listing:
        list_folder(FolderSource(path=str(folder)), listing)
    shutil.rmtree(out)


def write_part(folder, rng):
    """Write what decoding and aligning a part of a set leave."""
    given = folder.parent / "given"
    given.mkdir()
    lang, _, model = write_spoken(given)
    write_lattice_archive(folder / "lattices.ark", rng, binary=True, compact=True)
    totals = Totals(0.01, 1, utterances=3, skipped=1, frames=300)
    write_summary(folder, "1-of-1", totals, SearchOptions(), {"lattice_scale": 1.0})
    path = states(lang, model, ["EY_B"], (5,))
    (folder / "ali").mkdir()
    write_ledger(folder / "ledger.jsonl", rng)
    write_ledger(folder / "ali/ledger.jsonl", rng)
    write_int_vectors(folder / "ali/ali.ark", [("u1", path)])
    with RaggedWriter(folder / "ali/log_likes", LogLikes) as writer:
        writer.write("u1", np.zeros(len(path)))
    told = {"num_aligned": 1, "num_failed": 1, "frame_shift": 0.01}
    (folder / "ali/statistics.json").write_text(json.dumps(told))


def use_part(folder):
    given = folder.parent / "given"
    join_lattices(
        [folder], folder / "joined", options=SearchOptions(), max_skipped_fraction=1.0
    )
    join_alignments(
        [folder / "ali"], given / "lang", given, folder / "joined",
        options=AlignSplitOptions(), max_skipped_fraction=1.0,
    )  # fmt: skip


def write_mixed(folder, rng):
    """Write all that lattices are rescored with by a mixture."""
    folder.joinpath("lang").mkdir()
    words = ["<eps>", "ONE", "TWO", "#0", "<s>", "</s>"]
    lines = (f"{word} {i}\n" for i, word in enumerate(words))
    (folder / "lang/words.txt").write_text("".join(lines))
    own, zeros = np.array([1, 2], np.int32), np.zeros(2, np.int32)
    costs, final = np.ones(2, np.float32), np.ones(1, np.float32)
    begin = np.array([0, 2])
    Graph.from_arrays(0, begin, own, own, costs, zeros, final).save(folder / "G.fst")
    write_neural_lm(folder, rng)
    (folder / "mixture.json").write_text('{"weight": 0.3}')
    (folder / "scales.json").write_text('{"lmwt": 9, "wip": 0.5}')
    arcs = np.array([(0, 1, 9, 0), (1, 2, 7, 1), (1, 2, 7, 2)], np.int32)
    costs = np.concatenate([[[0, 0]], rng.normal(size=(2, 2))]).astype(np.float32)
    finals = np.array([[np.inf, np.inf]] * 2 + [[1.0, 2.0]], np.float32)
    lattice = Lattice.from_arcs(arcs, costs, finals)
    write_lattices(folder / "lattices.ark", [("u0", lattice)])


def use_mixed(folder):
    names = ("lattices.ark", "G.fst", "lm", "mixture.json", "lang", "out")
    rescore_n_best(
        *(folder / name for name in names),
        scales=folder / "scales.json", n_best=5, beam=30.0, threads=1, device="cpu",
    )  # fmt: skip


def write_rates(folder, rng):
    rates = folder / "tri1/dev/wer.json"
    rates.parent.mkdir(parents=True)
    bounds = {"low": 1.0, "high": 3.0}
    told = dict.fromkeys(COLUMNS, 2) | {"confidence_interval": bounds}
    rates.write_text(json.dumps(told))


def use_rates(folder):
    summarize_wer([folder / "tri1/dev/wer.json"], folder / "wer.tsv")
    format_rates(read_table(folder / "wer.tsv"))


def write_indexed(folder, rng):
    write_lattice_archive(folder / "a.ark", rng, binary=True, compact=False)
    lattices = list(read_lattices(folder / "a.ark"))
    with chdir(folder):
        write_lattices("a.ark", lattices, scp="a.scp")


def use_indexed(folder):
    archive = LatticeArchive(folder / "a.scp")
    for utterance in archive.utterances:
        best_paths(archive.lattice(utterance), [Scales.from_lmwt(7, 0.0)])


def use_transforms(path):
    transforms = SpeakerTransforms.load(path)
    for speaker in transforms.matrices:
        transforms.apply(speaker, np.zeros((2, 2), np.float32))


def write_vector_graph(path, rng):
    with path.open("wb") as stream:
        random_graph(rng, 6, has_cycles=False).write_vector(stream)


def write_packed_graph(folder, rng):
    """Write a graph, which stays as it is, and its packed form."""
    given = folder.parent / "HCLG.fst"
    endless_graph(rng, 6).save(given)
    mapped_search_graph(Graph.load(given), TID_TO_PDF, given)
    shutil.move(f"{given}.packed", folder / "packed")


def use_packed_graph(folder):
    given = folder.parent / "HCLG.fst"
    shutil.copy(folder / "packed", f"{given}.packed")
    file = GraphFile(Graph.load(given), given)
    decoder = LatticeDecoder(file, TID_TO_PDF, beam=8.0)
    decoder.decode(LOG_LIKES, acoustic_scale=1.0, utterance="u")


def write_compressed(path, rng):
    """Write a matrix of each compressed kind of Kaldi's, 3 x 2."""
    head = struct.pack("<ffii", -1.0, 2.0, 3, 2)
    sizes = {"CM": 22, "CM2": 12, "CM3": 6}
    path.write_bytes(
        b"".join(
            f"u{i} \0B{kind} ".encode() + head + rng.bytes(size)
            for i, (kind, size) in enumerate(sizes.items())
        )
    )


def write_text_archive(path, rng, *, is_matrix):
    with path.open("wb") as stream:
        for i in range(2):
            stream.write(f"u{i} ".encode())
            writer = KaldiWriter(stream, binary=False)
            if is_matrix:
                writer.write_float_matrix(rng.normal(size=(3, 2)))
            else:
                stream.write(b"3 4 5 5\n")


def write_text_gmm(folder, rng):
    """Write a GMM and its tree as text, and the matrix before it."""
    write_gmm(folder, rng)
    model = AcousticModel.load(folder / "final.mdl")
    model.save(folder / "final.mdl", binary=False)
    tree = ContextDependency.load(folder / "tree")
    tree.save(folder / "tree", binary=False)


def write_untransformed(folder, rng):
    """Write a system of GMMs that adapts to speakers, and its transforms."""
    write_gmm(folder, rng)
    shutil.copy(folder / "final.mdl", folder / "final.alimdl")
    save_transform(folder, Linear(rng.normal(size=(2, 3))))
    identity = np.eye(2, 3)
    write_matrices(folder / "trans.ark", [(speaker, identity) for speaker in "st"])
    given = folder.parent / "frames"
    with FrameWriter(given, dim=3) as writer:
        for name, speaker in (("u0", "s"), ("u1", "t")):
            writer.append(name, speaker, "", rng.normal(size=(5, 3)).astype("f4"))


def use_untransformed(folder):
    given = folder.parent / "frames"
    transforms = folder / "trans.ark"
    adapt_frames(given, folder, transforms, folder / "out", threads=1)
    write_log_likes(folder, given, folder / "a.ark")


def write_graph_parts(folder, rng):
    """Write what a decoding graph is made of."""
    _, lang, _ = make_system(folder)
    counts = lang.topology.pdf_class_counts()
    ContextDependency.monophone([[p] for p in sorted(counts)], counts).save(
        folder / "tree"
    )
    arpa = folder / "lm.arpa"
    arpa.write_text(ARPA.replace("one", "ONE").replace("two", "TWO"))
    make_grammar(arpa, folder / "lang", folder / "lang/G.fst")
    for name in ("lexicon.txt", "lm.arpa"):
        (folder / name).unlink()


def use_graph_parts(folder):
    lang = folder / "out/lang"
    import_lang(folder / "lang", lang)
    graph = folder / "out/HCLG.fst"
    make_graph(lang, lang / "G.fst", folder, graph, options=GraphOptions())


def write_rescored(folder, rng):
    """Write lattices, the language model that goes, and two that come."""
    write_mixed(folder, rng)
    shutil.rmtree(folder / "lm")
    for name in ("mixture.json", "scales.json"):
        (folder / name).unlink()
    arpa = folder / "lm.arpa"
    arpa.write_text(ARPA.replace("one", "ONE").replace("two", "TWO"))
    LmTrie.from_model(read_arpa(arpa), {"ONE": 1, "TWO": 2}).save(folder / "lm.trie")


def use_rescored(folder):
    for name in ("lm.arpa", "lm.trie"):
        rescore_lattices(
            folder / "lattices.ark", folder / "G.fst", folder / name, folder / "lang",
            folder / "out", beam=8.0, acoustic_scale=0.1, threads=1,
        )  # fmt: skip


def write_scored(folder, rng):
    """Write a decoded set: its lattices, references and scales."""
    given = folder.parent / "given"
    given.mkdir()
    _, lang, model = make_system(given)
    path = states(lang, model, ["W_B", "AH_I", "N_E"], (4, 5, 6))
    word = lang.words_to_ids("ONE")[0]
    lattices = []
    for name in ("u0", "u1"):
        arcs = [(i, i + 1, tid, 0) for i, tid in enumerate(path.tolist())]
        arcs[0] = (0, 1, int(path[0]), word)
        costs = rng.normal(size=(len(arcs), 2)).astype(np.float32)
        finals = np.full((len(arcs) + 1, 2), np.inf, np.float32)
        finals[-1] = 0.0
        lattice = Lattice.from_arcs(np.array(arcs, np.int32), costs, finals)
        lattices.append((name, lattice))
    write_lattices(folder / "lattices.ark", lattices)
    write_cuts(folder / "cuts.jsonl.gz", rng)
    (folder / "scales.json").write_text('{"lmwt": 9, "wip": 0.5}')


def use_scored(folder):
    given, lattices = folder.parent / "given", folder / "lattices.ark"
    cuts, scales = folder / "cuts.jsonl.gz", folder / "scales.json"
    score(
        lattices, cuts, given / "lang", given, scales, folder / "out",
        options=ScoreOptions(decision="mbr"), seed=1,
    )  # fmt: skip
    tuned = TuneOptions(lmwt=LmwtOptions(min=8, max=9), widen=False)
    tune_scales(
        lattices, cuts, given / "lang", folder / "tuned", options=tuned,
        comparison=ComparisonOptions(),
    )  # fmt: skip


def write_decoded(folder, rng, *, kind):
    """Write frames and a system that decodes and aligns them."""
    given = folder.parent / "given"
    given.mkdir()
    write_system(given, rng, kind=kind)
    (folder / "system").mkdir()
    shutil.move(given / "HCLG.fst", folder / "HCLG.fst")
    for path in (given / "model").iterdir():
        shutil.move(path, folder / "system" / path.name)
    with FrameWriter(folder / "frames", dim=13) as writer:
        for i, text in enumerate(("ONE", "TWO ONE")):
            frames = rng.normal(size=(40, 13)).astype(np.float32)
            writer.append(f"u{i}", "s", text, frames)


def use_decoded(folder, align, options):
    lang, system = folder.parent / "given/lang", folder / "system"
    decode_lattices(
        folder / "frames", folder / "HCLG.fst", system, lang, folder / "decoded",
        options=SearchOptions(beam=6.0, lattice_beam=2.0), threads=1,
        max_skipped_fraction=1.0,
    )  # fmt: skip
    align(
        folder / "frames", lang, system, folder / "ali", options=options,
        graph=GraphOptions(), threads=1, max_skipped_fraction=1.0,
    )  # fmt: skip


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
    find_suspects(
        cuts, folder / "frames", given / "lang", given / "final.mdl", ali,
        out / "suspects.tsv", out / "suspects.txt", options=SuspectOptions(),
        hypotheses=folder / "hyp.txt",
    )  # fmt: skip
    with suppress(UserError):
        clean_corpus(
            cuts, folder / "recordings.jsonl.gz", folder / "hyp.ctm", given / "lang",
            out / "cleaned", options=CleanedSetOptions(),
        )  # fmt: skip
    with suppress(UserError):
        refine_boundaries(
            ali / "ali.ark", folder / "statistics.json", cuts, given / "lang", given,
            out / "times",
        )  # fmt: skip
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
            model, folder / "tree", folder / kind, options=SupervisionOptions(),
            **{kind: folder / name},
        )  # fmt: skip
    transitions = TransitionModel.load(model / "final.mdl")
    write_targets(folder / "ali.ark", transitions, folder / "labels", ["pdf", "phone"])
    build_chain_tree(
        folder / "frames", given / "lang", folder / "ali.ark", model, None,
        folder / "out", options=ChainTreeOptions(), threads=1,
    )  # fmt: skip


def write_other_features(folder, rng):
    """Write features in other storages, and statistics to normalize them by."""
    lines = []
    kinds = ("manifest_lilcom", "lilcom_files", "manifest_numpy")
    for cut, kind in zip(cuts(rng), kinds, strict=True):
        storage = FeatureStorage(kind, folder, folder)
        matrix = rng.normal(size=(20, 13)).astype(np.float32)
        told = {"storage_type": kind, "storage_key": storage.write(cut["id"], matrix)}
        storage.close()
        path = storage.path and Path(storage.path).relative_to(folder)
        cut["features"] |= {**told, "storage_path": str(path)}
        lines.append(json.dumps(cut) + "\n")
    (folder / "cuts.jsonl").write_text("".join(lines))
    statistics = np.vstack([np.append(rng.normal(size=13), 9), np.full(14, 20.0)])
    write_matrices(folder / "cmvn.ark", [("global", statistics)])


def use_other_features(folder):
    cmvn = read_options(OnlineCmvn, {"norm_vars": True})
    with chdir(folder):
        normalize_features("cuts.jsonl", "out", cmvn=cmvn, training_dir=".")


def write_manifests(folder, rng):
    """Write a corpus folder, with its audio beside it."""
    audio = folder.parent / "audio"
    audio.mkdir()
    manifests = ("recordings", "supervisions", "cuts")
    with ExitStack() as stack:
        writers = [
            stack.enter_context(ManifestWriter(folder / f"{name}.jsonl.gz"))
            for name in manifests
        ]
        for name in ("u0", "u1", "u2"):
            write_wave(audio / f"{name}.wav", rng)
            held = recording(name, audio / f"{name}.wav", 0.5)
            made = made_up_cut(name, held, f"s{name}", "ONE TWO")
            for writer, item in zip(
                writers, (held, made.supervisions[0], made), strict=True
            ):
                writer.write(item)
    Ledger("prepare_corpus").write(folder / "ledger.jsonl")
    (folder / "lexicon.txt").write_text(LEXICON)
    (folder / "exclude").write_text("u9\n")


def source_of(folder):
    given = {
        "recordings": "recordings.jsonl.gz",
        "supervisions": "supervisions.jsonl.gz",
    }
    paths = {name: str(folder / file) for name, file in given.items()}
    return ManifestSource(**paths, exclude=str(folder / "exclude"))


def use_prepared(folder):
    """Prepare the manifests; extract features of the cuts."""
    prepare_corpus(
        source_of(folder), "train", folder / "out", seed=1, threads=1,
        max_skipped_fraction=1.0,
    )  # fmt: skip
    extract_features(
        folder / "cuts.jsonl.gz", folder / "features", threads=1,
        max_skipped_fraction=1.0, options=read_options(FeatureOptions, {}).extraction,
    )  # fmt: skip


def use_divided(folder):
    """Make other sets of a corpus folder."""
    combined = folder / "combined"
    combined.mkdir()
    combine_corpora({"a": folder, "b": folder}, combined)
    perturbed = PerturbationOptions(speeds=(0.9, 1.0), volume=(0.5, 2.0))
    perturb_corpus(folder, folder / "perturbed", options=perturbed, seed=1)
    hold_out(
        folder, folder / "train", folder / "dev", seed=1,
        options=HoldOutSource(fraction=0.3),
    )  # fmt: skip


def use_examined(folder):
    """The doctor tells faults as findings."""
    cuts, lexicon = {"train": folder / "cuts.jsonl.gz"}, folder / "lexicon.txt"
    examine_corpora(cuts, lexicon, LangOptions(), FeatureOptions(), folder)
    corpus = CorpusOptions(train=source_of(folder), dev={"type": "none"}, test={})
    examine_sources(corpus, lexicon, LangOptions(), FeatureOptions(), folder)


def write_simulated(folder, rng):
    """Write utterances, a noise, the response of a room, and records of a set."""
    for name in ("noise/a", "rooms/a", "u0", "u1"):
        path = folder / f"{name}.wav"
        path.parent.mkdir(exist_ok=True)
        write_wave(path, rng)
    with ManifestWriter(folder / "cuts.jsonl.gz") as manifest:
        for name in ("u0", "u1"):
            held = recording(name, f"{name}.wav", 0.5)
            manifest.write(made_up_cut(name, held, name, "ONE"))
    with chdir(folder):
        options = read_options(SimulatedSetOptions, SIMULATION)
        simulate_corpus(
            Path("cuts.jsonl.gz"),
            folder.parent / "o",
            options=options,
            seed=1,
            threads=1,
        )
    shutil.copy(folder.parent / "o/records.jsonl", folder)


SIMULATION = {
    "of": "test",
    "rooms": {"type": "measured", "files": "rooms"},
    "noises": {"street": {"type": "recorded", "files": "noise"}},
    "speakers": {"probability": 0.5},
}


def use_simulated(folder):
    replayed = {key: SIMULATION[key] for key in ("of", "rooms", "noises")}
    replayed["records"] = "records.jsonl"
    with chdir(folder):
        for values in (SIMULATION, replayed):
            simulate_corpus(
                Path("cuts.jsonl.gz"), folder / "out", seed=1, threads=1,
                options=read_options(SimulatedSetOptions, values),
            )  # fmt: skip


def use_messages(path):
    """What a client says, and what a server of criteria answers."""
    raw = path.read_bytes()
    with suppress(RefusedError, UnicodeDecodeError):  # of text the socket sees to it
        read_message(raw.decode())


def use_answer(path):
    with suppress(MessageError), path.open("rb") as stream:
        read_answer(stream)


def write_answer(path, rng):
    with path.open("wb") as stream:
        arrays = {"objectives": np.ones(3), "lengths": np.array([1, 2], np.int64)}
        write_message(stream, "scores", {}, arrays)


def write_heard(folder, rng):
    """Write recordings to transcribe, and a package beside them."""
    given = folder.parent / "given"
    given.mkdir()
    write_system(given, rng, kind="gmm")
    package(given, given / "package", kind="gmm")
    write_wave(folder / "a.wav", rng)
    write_wave(folder / "b.flac", rng, 2)
    soundfile.write(folder / "c.ogg", rng.uniform(-0.5, 0.5, 4000), 8000)
    (folder / "phrases").write_text("ONE TWO\n")


def use_heard(folder):
    model = Model.load(folder.parent / "given/package")
    options = TranscribeOptions(segmentation={"type": "endpoint"}, formats=("json",))
    recordings = find_recordings([folder])
    transcribe(model, recordings, options=options, out_dir=folder / "out")
    for each in recordings:
        with suppress(UserError):
            read_audio([each.path], limit=5, sample_rate=16000)


def write_appended(folder, rng):
    write_frames(folder, rng)
    ivector_model(rng).save(folder / "extractor.npz")
    with FrameWriter(folder / "more", dim=3) as writer:
        for i in range(3):
            writer.append(f"u{i}", "s", "ONE", np.ones((5, 3), np.float32))


def use_appended(folder):
    append_ivectors(folder / "frames", folder / "extractor.npz", folder / "out")
    paste_features(
        [folder / "out", folder / "more"], folder / "pasted",
        options=PasteOptions(features=("a", "b")), max_skipped_fraction=1.0,
    )  # fmt: skip


def write_networks(folder, rng):
    """Write a network with its tree, and what it is used on."""
    write_decoded(folder, rng, kind="lfmmi")
    shutil.rmtree(folder / "frames")
    with FrameWriter(folder.parent / "frames", dim=13) as writer:
        writer.append("u0", "s", "ONE", rng.normal(size=(9, 13)).astype(np.float32))
    (folder / "HCLG.fst").unlink()


def use_networks(folder):
    given, system = folder.parent / "frames", folder / "system"
    average_models([system, system], folder / "mean")
    forward(given, folder / "mean", folder / "a.ark", device="cpu")
    described = folder / "mean/network.yaml"
    described_subsampling(described)
    described_outputs(described)
    described_layers(described)
    adopt(load_model(folder / "mean").network, system)


NETWORK = """edges: repeat
layers:
  near: {class: tdnn, size: 8, offsets: [-2, 0, 2], activation: relu}
  second: {class: subsample, factor: 2, from: near}
  both: {class: concat, from: [second, second]}
  output: {class: output, loss: lfmmi, from: both}
  xent: {class: output, from: both}
decode: output
"""


def use_description(path):
    described_subsampling(path)
    described_outputs(path)
    described_sample_rates(path)
    described_parts(path)
    description = NetworkDescription.load(path)
    shallower(description, 0)
    Network(description, 3, {"pdf": 4}, seed=3)


def write_completed(folder, rng):
    """Write a lexicon, a model of it, and words that it lacks."""
    (folder / "lexicon.txt").write_text("ONE W AH N\nTWO T UW\nTON T AH N\n")
    train_lexicon_model(folder / "lexicon.txt", folder / "g2p", order=2)
    (folder / "words.txt").write_text("TOW\nWON\n")
    (folder / "lm.txt").write_text("ONE WON TWO\n")
    (folder / "lm.arpa").write_text(ARPA.replace("one", "ONE").replace("two", "TOW"))
    write_cuts(folder / "cuts.jsonl.gz", rng)


def use_completed(folder):
    list(apply_model(folder / "g2p", folder / "words.txt", number=2))
    complete_lexicon(
        folder / "lexicon.txt", folder / "completed.txt", folder / "generated.tsv",
        options=LangOptions(), cuts=folder / "cuts.jsonl.gz", text=folder / "lm.txt",
        arpa=folder / "lm.arpa", model=folder / "g2p",
    )  # fmt: skip
    make_lang(folder / "completed.txt", folder / "lang", options=LangOptions())


def write_mixture(folder, rng):
    write_neural_lm(folder, rng)
    text = ARPA.replace("one", "ONE").replace("two", "TWO")
    (folder / "lm.arpa").write_text(text)
    write_cuts(folder / "cuts.jsonl.gz", rng)


def use_mixture(folder):
    mix_language_models(
        folder / "lm", folder / "lm.arpa", folder / "cuts.jsonl.gz",
        folder / "mixture.json", device="cpu",
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
        [given / "texts"], given / "lang", folder / "model", folder / "den/HCLG.fst",
        [folder / "ali.ark"], folder / "graphs",
    )  # fmt: skip
    values = {"lattices": {"lattice_beam": 6.0, "acoustic_scale": 0.2}}
    for source in ("static", "on_the_fly"):
        given_options = values | {"alignments": {"source": source}}
        options = read_options(SequenceOptions, given_options)
        generator = load_generator(files, Mmi(model), options, GraphOptions())
        frames = FrameStore.load(folder / "frames")
        for i, utterance in enumerate(frames.utt_ids):
            scores = np.array(frames.frames(i))
            generator.work(utterance, scores, np.zeros_like(scores), lattice_beam=6.0)
    make_denominator(
        given / "lang", folder / "cuts.jsonl.gz", folder / "model", folder / "out",
        options=DenominatorOptions(),
    )  # fmt: skip


def write_kaldi_features(folder, rng):
    """Write how features of two of Kaldi's systems are made, and of a job."""
    for name in ("deltas", "spliced"):
        (folder / name).mkdir()
        (folder / name / "cmvn_opts").write_text("--norm-vars=false\n")
    (folder / "deltas/delta_opts").write_text("--delta-order=2 --delta-window=3\n")
    (folder / "spliced/splice_opts").write_text("--left-context=1\n")
    write_matrix(folder / "spliced/final.mat", rng.normal(size=(4, 12)))
    (folder / "spliced/num_jobs").write_text("1\n")
    write_matrices(folder / "spliced/trans.1", [("s", rng.normal(size=(2, 3)))])


def use_kaldi_features(folder):
    for name in ("deltas", "spliced"):
        transform = read_transform(folder / name)
        check_cmvn(folder / name, read_options(SpeakerCmvn, {}))
        transform(np.zeros((4, 2), np.float32))
    merged_transforms(job_files(folder / "spliced", "trans.{}"), 2)


#: Name of file or folder, how it is written, how it is used.
KINDS = {
    "graph": ("HCLG.fst", lambda p, rng: write_graph(p, rng, {}), use_graph),
    "raw lattices, binary": lattice_kind(binary=True, compact=False),
    "raw lattices, text": lattice_kind(binary=False, compact=False),
    "compact lattices, binary": lattice_kind(binary=True, compact=True),
    "compact lattices, text": lattice_kind(binary=False, compact=True),
    "matrices": ("a.ark", write_matrix_archive, use_all(read_matrices)),
    "integer vectors": ("a.ark", write_vector_archive, use_all(read_int_vectors)),
    "GMM and tree": ("", write_gmm, use_gmm),
    "ARPA": ("lm.arpa", lambda p, _: p.write_text(ARPA), use_arpa),
    "symbols": (
        "words.txt",
        lambda p, _: p.write_text("<eps> 0\nONE 1\nTWO 2\n"),
        read_symbols,
    ),
    "texts": (
        "text",
        lambda p, _: p.write_text("u0 ONE TWO\nu1 TWO\n"),
        read_text,
    ),
    "times": (
        "hyp.ctm",
        lambda p, _: p.write_text("u0 1 0.1 0.2 ONE 0.9\nu0 1 0.3 0.2 TWO\n"),
        use_all(read_ctm),
    ),
    "scales": (
        "scales.json",
        lambda p, _: p.write_text('{"lmwt": 9, "wip": 0.5, "wer": 3.0}\n'),
        use_scales,
    ),
    "transform": (
        "transform.json",
        lambda p, _: p.write_text(
            '{"type": "chain", "transforms": [{"type": "splice", "left": 1, '
            '"right": 1}, {"type": "deltas", "order": 2, "window": 2}]}'
        ),
        lambda path: load_transform(path.parent),
    ),
    "package": (
        "package.json",
        lambda p, _: p.write_text(json.dumps(PACKAGE)),
        lambda path: read_info(path.parent),
    ),
    "references": ("cuts.jsonl.gz", write_cuts, read_references),
    "plain references": ("cuts.jsonl", write_cuts, read_references),
    "cuts": ("cuts.jsonl.gz", write_cuts, use_all(read_cuts)),
    "plain cuts": ("cuts.jsonl", write_cuts, use_all(read_cuts)),
    "network": ("", write_network, use_network),
    "nnet3": ("final.mdl", write_nnet3, use_nnet3),
    "nnet3 of Kaldi's components": ("final.mdl", write_xconfig, use_nnet3),
    "checkpoint": ("", write_checkpoint, use_checkpoint),
    "frames": ("", write_frames, use_frames),
    "HDF5": ("a.hdf", write_hdf, use_hdf),
    "lexicon": ("lexicon.txt", lambda p, _: p.write_text(LEXICON), read_lexicon),
    "lexicon with probabilities": (
        "lexiconp.txt",
        lambda p, _: p.write_text("ONE 1.0 W AH N\nTWO 0.8 T UW\nTWO 0.2 T AX\n"),
        read_lexicon,
    ),
    "compressed ARPA": (
        "lm.arpa.gz",
        lambda p, _: p.write_bytes(gzip.compress(ARPA.encode(), mtime=0)),
        use_arpa,
    ),
    "mapped n-grams": (
        "lm.trie",
        lambda p, _: LmTrie.from_model(read_arpa_text(p), {"one": 1, "two": 2}).save(p),
        use_trie,
    ),
    "graphones": ("g2p", write_g2p, lambda p: G2p.load(p).pronounce("tow", 2)),
    "language directory": ("", write_lang, use_lang),
    "neural language model": (
        "",
        write_neural_lm,
        lambda folder: NeuralLm.load(folder / "lm").log_probs([["ONE", "TWO"]]),
    ),
    "TextGrid": ("a.TextGrid", write_textgrid, lambda p: read_labels(p, "words")),
    "labels of CTM": (
        "a.ctm",
        lambda p, _: p.write_text("u0 1 0.1 0.2 ONE 0.9\nu0 1 0.3 0.2 TWO\n"),
        lambda p: read_labels(p, "words"),
    ),
    "i-vectors": (
        "extractor.npz",
        lambda p, rng: ivector_model(rng).save(p),
        lambda p: IvectorModel.load(p).online(np.zeros((12, 2), np.float32)),
    ),
    "Kaldi's i-vector extractor": (
        "",
        lambda p, rng: write_ivectors(ivector_model(rng), p),
        use_ivectors,
    ),
    "records of simulation": ("records.jsonl", write_record, use_all(read_records)),
    "RIFF": ("a.wav", write_wave, use_wave),
    "FLAC": ("a.flac", lambda p, rng: write_wave(p, rng, 2), use_wave),
    "Kaldi's data": ("", write_kaldi_dir, lambda p: import_kaldi_dir(p, p / "out")),
    "CSV": ("a.csv", lambda p, rng: write_listed(p, rng, ","), use_listed),
    "TSV": ("a.tsv", lambda p, rng: write_listed(p, rng, "\t"), use_listed),
    "CutSet": ("cuts.jsonl", write_cuts, use_all(supervisions_of)),
    "lines of cuts": ("cuts.jsonl", write_cuts, use_all(read_cut_lines)),
    "items": ("cuts.jsonl.gz", write_cuts, use_all(read_items)),
    "recordings": (
        "recordings.jsonl",
        lambda p, rng: write_parts(p, rng, "recording"),
        use_all(read_recordings),
    ),
    "supervisions": (
        "supervisions.jsonl",
        lambda p, rng: write_parts(p, rng, "supervisions"),
        use_all(read_supervisions),
    ),
    "ledger": ("ledger.jsonl", write_ledger, use_all(read_ledger)),
    "topology": (
        "topo",
        lambda p, _: Topology.standard([2, 3], [1], 2, 1).save(p),
        Topology.load,
    ),
    "posteriors, binary": (
        "a.post",
        lambda p, rng: write_gammas(p, rng, binary=True),
        use_all(read_posteriors),
    ),
    "posteriors, text": (
        "a.post",
        lambda p, rng: write_gammas(p, rng, binary=False),
        use_all(read_posteriors),
    ),
    "alignments": ("ali.ark", write_vector_archive, use_alignments),
    "scores": ("u.tsv", write_scores, lambda p: totals(read_scores(p))),
    "log of a training": ("log.jsonl", write_log, use_log),
    "costs": ("", write_costs, read_costs),
    "arrays of a request": (
        "body.npz",
        lambda p, rng: np.savez(p, features=rng.normal(size=(3, 4))),
        use_arrays,
    ),
    "options of Vosk": ("", write_conf, read_conf),
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
    "live features": ("", write_live, use_live),
    "labels": ("", write_labels, use_labels),
    "GMM system to package": (
        "",
        lambda p, rng: write_system(p, rng, kind="gmm"),
        lambda p: use_system(p, kind="gmm"),
    ),
    "network to package": (
        "",
        lambda p, rng: write_system(p, rng, kind="lfmmi"),
        lambda p: use_system(p, kind="lfmmi"),
    ),
    "whole package": ("", write_whole_package, lambda p: use_package(p / "package")),
    "whole package, made of it": ("", write_whole_package, use_repackaged),
    "Kaldi's system": ("", write_kaldi_system, use_kaldi_system),
    "Vosk's folder": ("", write_vosk, use_vosk),
    "provenance": ("", write_provenance, use_provenance),
    "stored features": ("", write_stored_features, use_stored_features),
    "HDF5 as a corpus": (
        "a.hdf",
        write_hdf_corpus,
        lambda p: list(read_sequences(Hdf5Source(files=(str(p),)))),
    ),
    "CutSet that is heard": ("", write_cut_set, use_cut_set),
    "folder of audio": ("", write_folder, use_folder),
    "parts of a set": ("", write_part, use_part),
    "mixture of language models": ("", write_mixed, use_mixed),
    "word error rates": ("", write_rates, use_rates),
    "lattices of an scp file": ("", write_indexed, use_indexed),
    "speaker transforms": (
        "trans.ark",
        lambda p, rng: write_matrices(p, [(s, rng.normal(size=(2, 3))) for s in "ab"]),
        use_transforms,
    ),
    "sentences": (
        "text",
        lambda p, _: p.write_text("ONE TWO\nTWO\n"),
        use_all(text_sentences),
    ),
    "transcripts to learn from": (
        "cuts.jsonl.gz",
        write_cuts,
        lambda p: list(transcript_sentences([p])),
    ),
    "definitions of the code": (
        "definitions.json.gz",
        lambda p, _: p.write_bytes(gzip.compress(b'{"key": "0a", "files": {}}')),
        _Kept,
    ),
    "aligned graph": (
        "HCLG.fst",
        lambda p, rng: write_graph(p, rng, {"is_aligned": True}),
        use_graph,
    ),
    "graph of type vector": ("HCLG.fst", write_vector_graph, use_graph),
    "packed graph": ("", write_packed_graph, use_packed_graph),
    "compressed matrices": ("a.ark", write_compressed, use_all(read_matrices)),
    "matrices as text": (
        "a.ark",
        lambda p, rng: write_text_archive(p, rng, is_matrix=True),
        use_all(read_matrices),
    ),
    "integer vectors as text": (
        "a.ark",
        lambda p, rng: write_text_archive(p, rng, is_matrix=False),
        use_all(read_int_vectors),
    ),
    "integer vectors, packed": (
        "a.ark.gz",
        write_vector_archive,
        use_all(read_int_vectors),
    ),
    "GMM and tree as text": ("", write_text_gmm, use_gmm),
    "GMM system that adapts": ("", write_untransformed, use_untransformed),
    "parts of a graph": ("", write_graph_parts, use_graph_parts),
    "second language model": ("", write_rescored, use_rescored),
    "decoded set": ("", write_scored, use_scored),
    "frames, graph and GMM system": (
        "",
        lambda p, rng: write_decoded(p, rng, kind="gmm"),
        lambda p: use_decoded(p, align_gmm, AlignAdaptedOptions()),
    ),
    "frames, graph and network": (
        "",
        lambda p, rng: write_decoded(p, rng, kind="lfmmi"),
        lambda p: use_decoded(p, align_network, AlignNetworkOptions()),
    ),
    "set to look for suspects in": ("", write_suspected, use_suspected),
    "parts of a chain system": ("", write_chain_parts, use_chain_parts),
    "features of other storages": ("", write_other_features, use_other_features),
    "manifests of a corpus": ("", write_manifests, use_prepared),
    "corpus to divide": ("", write_manifests, use_divided),
    "corpus that the doctor sees": ("", write_manifests, use_examined),
    "noises, rooms and records": ("", write_simulated, use_simulated),
    "message of a client": (
        "message.json",
        lambda p, _: p.write_text(
            '{"config": {"sample_rate": 8000, "words": 1, "phrase_list": ["one"]}}'
        ),
        use_messages,
    ),
    "answer of a criterion": ("answer", write_answer, use_answer),
    "recordings to transcribe": ("", write_heard, use_heard),
    "frames and i-vectors": ("", write_appended, use_appended),
    "networks to average": ("", write_networks, use_networks),
    "network's description": (
        "network.yaml",
        lambda p, _: p.write_text(NETWORK),
        use_description,
    ),
    "lexicon to complete": ("", write_completed, use_completed),
    "language models to mix": ("", write_mixture, use_mixture),
    "files of sequence training": ("", write_sequence, use_sequence),
    "options of Kaldi's features": ("", write_kaldi_features, use_kaldi_features),
    "JSON table": (
        "a.jsonl",
        lambda p, rng: write_listed(p, rng, None),
        use_listed,
    ),
    "TextGrid, short": (
        "a.TextGrid",
        write_short_textgrid,
        lambda p: read_labels(p, "words"),
    ),
    "recipe": ("a.yaml", write_recipe, lambda p: load_recipe(read_config(p))),
}


def check(kind, folder, cases):
    """Mutate a file of a kind, again and again; anything but a UserError fails."""
    name, write, use = KINDS[kind]
    rng = np.random.default_rng([2, *kind.encode()])
    source = folder / "source"
    source.mkdir()
    write(source / name if name else source, rng)
    files = sorted(path for path in source.rglob("*") if path.is_file())
    shutil.copytree(source, folder / "whole")
    use(folder / "whole" / name if name else folder / "whole")
    for case in range(cases):
        copy = folder / f"case{case}"
        shutil.copytree(source, copy)
        path = files[case % len(files)]
        raw = mutated(path.read_bytes(), rng)
        (copy / path.relative_to(source)).write_bytes(raw)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                use(copy / name if name else copy)
        except UserError as error:
            assert "\n" not in str(error)  # noqa: PT017 - where there is one
        except Exception as error:
            note = f"case {case} of {kind}: {path.name} = {raw!r}"
            error.add_note(note[:3000])
            raise
        shutil.rmtree(copy)


@pytest.mark.parametrize("cases", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mutated_file_gives_a_result_or_one_clear_line(tmp_path: Path, kind, cases):
    check(kind, tmp_path, -(-cases // len(KINDS)))
