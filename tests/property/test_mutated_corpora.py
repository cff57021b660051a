"""Mutated manifests, tables, audio and folders of corpora."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, chdir
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import soundfile
from fixtures.made_up_alignments import cut as made_up_cut
from fixtures.made_up_alignments import recording
from fixtures.mutations import (
    LEXICON,
    check,
    cuts,
    of_each,
    use_all,
    write_cuts,
    write_wave,
)
from lhotse.audio import AudioSource

from latflow.corpus.audio import AudioReader, BadAudio, examine
from latflow.corpus.audio_folder import AudioFolder
from latflow.corpus.combine import combine_corpora
from latflow.corpus.cut_set import read_cut_set, supervisions_of
from latflow.corpus.derived_options import PerturbationOptions
from latflow.corpus.folder import list_folder
from latflow.corpus.hdf5 import read_sequences
from latflow.corpus.hold_out import hold_out
from latflow.corpus.json_lines import ManifestWriter, read_cut_lines, read_items
from latflow.corpus.listing import Listing
from latflow.corpus.manifests import read_cuts, read_recordings, read_supervisions
from latflow.corpus.options import (
    CorpusOptions,
    FolderSource,
    Hdf5Source,
    HoldOutSource,
    ManifestSource,
    TableSource,
)
from latflow.corpus.perturb import perturb_corpus
from latflow.corpus.prepare import prepare_corpus
from latflow.corpus.table import list_table
from latflow.corpus.textgrid import Interval, textgrid
from latflow.features.extract import extract_features
from latflow.features.options import FeatureOptions
from latflow.lang.options import LangOptions
from latflow.ledger import Ledger
from latflow.options import read_options
from latflow.scoring.boundaries import read_labels
from latflow.scoring.transcripts import read_references
from latflow.simulation.corpus import simulate_corpus
from latflow.simulation.options import SimulatedSetOptions
from latflow.simulation.records import Record, read_records, record_line
from latflow.workflow.doctor import examine as examine_corpora
from latflow.workflow.doctor import examine_sources


def write_parts(path, rng, key):
    """Write the recordings or supervisions of the cuts."""
    items = (cut[key] for cut in cuts(rng))
    parts = (each[0] if isinstance(each, list) else each for each in items)
    path.write_text("".join(json.dumps(part) + "\n" for part in parts))


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


def use_wave(path):
    """Bad audio is a finding: importers name it, and go on or refuse it."""
    try:
        examine(AudioSource("file", [0], str(path)), verify=True)
        with AudioReader(path) as reader:
            list(reader.blocks(1000))
    except BadAudio:
        pass


#: Containers and codings of audio other than those of their own kinds.
FORMATS = (
    *(("aiff", "PCM_16"), ("au", "ULAW"), ("caf", "ALAC_16"), ("w64", "FLOAT")),
    *(("sph", "PCM_16"), ("mp3", "MPEG_LAYER_III"), ("ogg", "VORBIS")),
    *(("opus", "OPUS"), ("voc", "ALAW"), ("wav", "IMA_ADPCM"), ("rf64", "PCM_24")),
)
_CONTAINERS = {"sph": "NIST", "opus": "OGG"}


def write_formats(folder, rng):
    for ending, coding in FORMATS:
        kind = _CONTAINERS.get(ending, ending.upper())
        samples = rng.uniform(-0.5, 0.5, 4000)
        soundfile.write(folder / f"a.{ending}", samples, 8000, coding, format=kind)


def use_formats(folder):
    for path in folder.iterdir():
        use_wave(path)


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
        audio = AudioFolder(folder / "o", folder / "o")
        list(read_cut_set("cuts.jsonl", audio, pool=pool, ahead=1))


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
    examine_corpora(cuts, lexicon, LangOptions(), FeatureOptions())
    corpus = CorpusOptions(train=source_of(folder), dev={"type": "none"}, test={})
    examine_sources(corpus, lexicon, LangOptions(), FeatureOptions())


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


#: Name of file or folder, how it is written, how it is used.
KINDS = {
    "references": ("cuts.jsonl.gz", write_cuts, read_references),
    "plain references": ("cuts.jsonl", write_cuts, read_references),
    "cuts": ("cuts.jsonl.gz", write_cuts, use_all(read_cuts)),
    "plain cuts": ("cuts.jsonl", write_cuts, use_all(read_cuts)),
    "TextGrid": ("a.TextGrid", write_textgrid, lambda p: read_labels(p, "words")),
    "records of simulation": ("records.jsonl", write_record, use_all(read_records)),
    "RIFF": ("a.wav", write_wave, use_wave),
    "audio of other formats": ("", write_formats, use_formats),
    "FLAC": ("a.flac", lambda p, rng: write_wave(p, rng, 2), use_wave),
    "CSV": ("a.csv", lambda p, rng: write_listed(p, rng, ","), use_listed),
    "TSV": ("a.tsv", lambda p, rng: write_listed(p, rng, "\t"), use_listed),
    "CutSet": (
        "cuts.jsonl",
        write_cuts,
        use_all(partial(supervisions_of, allow_commands=False)),
    ),
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
    "HDF5 as a corpus": (
        "a.hdf",
        write_hdf_corpus,
        lambda p: list(read_sequences(Hdf5Source(files=(str(p),)))),
    ),
    "CutSet that is heard": ("", write_cut_set, use_cut_set),
    "folder of audio": ("", write_folder, use_folder),
    "manifests of a corpus": ("", write_manifests, use_prepared),
    "corpus to divide": ("", write_manifests, use_divided),
    "corpus that the doctor sees": ("", write_manifests, use_examined),
    "noises, rooms and records": ("", write_simulated, use_simulated),
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
}


@of_each(KINDS)
def test_a_mutated_file_gives_a_result_or_one_clear_line(tmp_path: Path, kind, cases):
    check(KINDS, kind, tmp_path, cases)
