"""Peak memory and time of stages on a corpus, and on the same corpus repeated.

Each stage runs in a process of its own. Its largest resident size is asked of the
operating system, and its own (anonymous) memory is looked at every 20 ms: pages of
files that are only mapped (frames, graphs) count in the first alone, since the system
may drop them at any time. The repeated corpus holds the same cuts under new ids. Prints
JSON with the factors by which memory, and time per hour of speech, grow from the first
corpus to the last: near 1 where memory is bounded and time is linear. Small corpora are
slow by the hour, since a process needs seconds to start.

Lang directory, models and graph are Kaldi's, of the digits (golden data). The stage
`align_package` takes a package, a corpus and its lexicon that are named.

    python benchmarks/memory_scaling.py [--shared ../shared] [--repeats 1 4 16]
        [--stages extract_features compute_cmvn ...]
    python benchmarks/memory_scaling.py --stages align_package --package PACKAGE
        --cuts CUTS.jsonl.gz --lexicon LEXICON
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latflow.align.timing import AlignedSet
from latflow.corpus.kaldi_dir import import_kaldi_dir
from latflow.gmm.train import MonoJob
from latflow.parts import SetJob
from latflow.serving.aligning import AlignmentTask

ROOT = Path(__file__).resolve().parents[1]


def repeat_cuts(source: Path, target: Path, repeats: int) -> int:
    """Write the cuts `repeats` times, sorted by new ids; return their number."""
    count = 0
    with gzip.open(target, "wt", encoding="utf-8") as out:
        for i in range(repeats):
            with gzip.open(source, "rt", encoding="utf-8") as lines:
                for line in lines:
                    cut = json.loads(line)
                    cut["id"] = f"{i:03d}-{cut['id']}"
                    for supervision in cut["supervisions"]:
                        supervision["id"] = f"{i:03d}-{supervision['id']}"
                        supervision["speaker"] = f"{i:03d}-{supervision['speaker']}"
                    out.write(json.dumps(cut) + "\n")
                    count += 1
    return count


def extract(folder: Path, threads: int) -> None:
    """Run the stage extract_features."""
    from latflow.features.extract import extract_features
    from latflow.features.options import ExtractionOptions

    extract_features(
        folder / "cuts.jsonl.gz",
        folder / "features",
        options=ExtractionOptions(),
        threads=threads,
        max_skipped_fraction=1.0,
    )


def normalize(folder: Path, threads: int) -> None:  # noqa: ARG001 - same form for all
    """Run the stage compute_cmvn."""
    from latflow.features.cmvn_options import SpeakerCmvn
    from latflow.features.normalization import compute_cmvn

    compute_cmvn(folder / "features", folder / "frames", cmvn=SpeakerCmvn())


def train(folder: Path, threads: int) -> None:
    """Run the stage train_mono: training graphs, alignments and statistics."""
    from latflow.gmm.options import MonoOptions, SharedOptions
    from latflow.gmm.train import train_mono

    train_mono(
        MonoJob(
            frames_dir=folder / "frames",
            lang_dir=folder / "golden" / "lang",
            out_dir=folder / "mono",
            options=MonoOptions(num_gaussians=200, num_iterations=4),
            shared=SharedOptions(),
            max_skipped_fraction=1.0,
            threads=threads,
        )
    )


def _train_triphones(folder: Path, threads: int, options, kind, stage) -> None:
    """Train a triphone system from the alignments of Kaldi's."""
    from latflow.gmm.options import SharedOptions

    options = options(alignments="mono", num_leaves=100, num_gaussians=400)
    job = kind(
        frames_dir=folder / "frames",
        lang_dir=folder / "golden" / "lang",
        alignments=folder / "align" / "ali.ark",
        source_dir=folder / "system",
        out_dir=folder / options.type,
        options=options,
        shared=SharedOptions(),
        max_skipped_fraction=1.0,
        threads=threads,
    )
    stage(job)


def deltas(folder: Path, threads: int) -> None:
    """Run the stage train_deltas."""
    from latflow.gmm.options import DeltasOptions
    from latflow.gmm.train import DeltasJob, train_deltas

    _train_triphones(folder, threads, DeltasOptions, DeltasJob, train_deltas)


def lda_mllt(folder: Path, threads: int) -> None:
    """Run the stage train_lda_mllt."""
    from latflow.gmm.lda_mllt import LdaMlltJob, train_lda_mllt
    from latflow.gmm.options import LdaMlltOptions

    _train_triphones(folder, threads, LdaMlltOptions, LdaMlltJob, train_lda_mllt)


def sat(folder: Path, threads: int) -> None:
    """Run the stage train_sat."""
    from latflow.gmm.options import SatOptions
    from latflow.gmm.sat import SatJob, train_sat

    _train_triphones(folder, threads, SatOptions, SatJob, train_sat)


def align(folder: Path, threads: int) -> None:
    """Run the stage align_frames, with Kaldi's triphones."""
    from latflow.gmm.alignment import align_gmm
    from latflow.gmm.options import AlignAdaptedOptions
    from latflow.graphs.options import GraphOptions

    align_gmm(
        SetJob(
            frames_dir=folder / "frames",
            lang_dir=folder / "golden" / "lang",
            model_dir=folder / "system",
            out_dir=folder / "align",
            threads=threads,
            max_skipped_fraction=1.0,
        ),
        options=AlignAdaptedOptions(),
        graph=GraphOptions(),
    )


def refine(folder: Path, threads: int) -> None:
    """Run the stage refine_boundaries, on the alignments of align_frames."""
    from latflow.align.boundaries import refine_boundaries

    refine_boundaries(
        AlignedSet(
            alignments=folder / "align" / "ali.ark",
            statistics=folder / "align" / "statistics.json",
            cuts=folder / "cuts.jsonl.gz",
            lang_dir=folder / "golden" / "lang",
            model_dir=folder / "system",
            first_middle=0.0125,
        ),
        out_dir=folder / "boundaries",
        threads=threads,
    )


def align_by_package(folder: Path, threads: int) -> None:
    """Run the stage align_package, which begins with audio."""
    from latflow.align.options import AlignSplitOptions
    from latflow.lang.options import LangOptions
    from latflow.serving.aligning import align_package

    out = folder / "packaged"
    out.mkdir()
    align_package(
        AlignmentTask(
            package_dir=folder / "package",
            cuts=folder / "cuts.jsonl.gz",
            lexicon=folder / "lexicon.txt",
            lang=LangOptions(),
            threads=threads,
            max_skipped_fraction=1.0,
        ),
        out_dir=out,
        options=AlignSplitOptions(),
    )


def decode(folder: Path, threads: int) -> None:
    """Run the stage decode_lattices, with Kaldi's triphones and graph."""
    from latflow.decode.lattices import decode_lattices
    from latflow.decode.options import SearchOptions

    decode_lattices(
        SetJob(
            frames_dir=folder / "frames",
            model_dir=folder / "system",
            lang_dir=folder / "golden" / "lang",
            out_dir=folder / "decode",
            threads=threads,
            max_skipped_fraction=1.0,
        ),
        graph=folder / "golden" / "graph" / "HCLG_tri1.fst",
        options=SearchOptions(),
    )


def decode_biased(folder: Path, threads: int) -> None:
    """Run the stage decode_biased, with Kaldi's triphones."""
    from latflow.decode.biased import decode_biased
    from latflow.decode.options import BiasedDecodeOptions
    from latflow.graphs.options import GraphOptions

    decode_biased(
        SetJob(
            frames_dir=folder / "frames",
            lang_dir=folder / "golden" / "lang",
            model_dir=folder / "system",
            out_dir=folder / "biased",
            threads=threads,
            max_skipped_fraction=1.0,
        ),
        alignments_dir=folder / "align",
        options=BiasedDecodeOptions(),
        scales=GraphOptions(),
    )


def decode_to_speakers(folder: Path, threads: int) -> None:
    """Run the stage decode_adapted, with the system that train_sat made."""
    from latflow.decode.adapt import decode_adapted
    from latflow.decode.options import AdaptOptions, SearchOptions
    from latflow.graphs.hclg import make_graph
    from latflow.graphs.options import GraphOptions

    lang = folder / "golden" / "lang"
    graph = folder / "graph" / "HCLG.fst"
    make_graph(lang, lang / "G.fst", folder / "sat", graph, options=GraphOptions())
    decode_adapted(
        SetJob(
            frames_dir=folder / "frames",
            model_dir=folder / "sat",
            lang_dir=lang,
            out_dir=folder / "decode_adapted",
            threads=threads,
            max_skipped_fraction=1.0,
        ),
        graph=graph,
        options=SearchOptions(),
        adapt=AdaptOptions(),
    )


def copy_system(source: Path, target: Path) -> None:
    """Copy Kaldi's triphone system and save the transform of its features with it."""
    from latflow.features.options import FeatureOptions
    from latflow.features.transform import FeatureTransform
    from latflow.gmm.model import save_transform

    target.mkdir()
    for name in ("final.mdl", "tree"):
        shutil.copy(source / name, target / name)
    save_transform(
        target, FeatureTransform.from_config(FeatureOptions().transform.values())
    )


STAGES: dict[str, Callable[[Path, int], None]] = {
    "extract_features": extract,
    "compute_cmvn": normalize,
    "train_mono": train,
    "align_frames": align,
    "refine_boundaries": refine,
    "train_deltas": deltas,
    "train_lda_mllt": lda_mllt,
    "train_sat": sat,
    "align_package": align_by_package,
    "decode_lattices": decode,
    "decode_biased": decode_biased,
    "decode_adapted": decode_to_speakers,
}


DEFAULT = [stage for stage in STAGES if stage != "align_package"]


def needs(stage: str, folder: Path, threads: int) -> dict[str, float]:
    """Largest sizes of a fresh process that runs one stage, MB: resident, own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(stage, folder, threads, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        raise SystemExit(f"{stage} failed") from None
    finally:
        process.join()


def _measure(stage: str, folder: Path, threads: int, sender) -> None:
    """Run one stage; report largest sizes (resident, own), MB, and seconds."""
    done = threading.Event()
    own = [0.0]

    def watch() -> None:
        while not done.wait(0.02):
            lines = Path("/proc/self/status").read_text().splitlines()
            size = next(line for line in lines if line.startswith("RssAnon"))
            own[0] = max(own[0], int(size.split()[1]) / 1024)

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    STAGES[stage](folder, threads)
    seconds = round(time.perf_counter() - started, 2)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    done.set()
    watcher.join()
    resident = usage.ru_maxrss / 1024
    sizes = {"resident_mb": round(resident), "own_mb": round(own[0])}
    cpu_seconds = round(usage.ru_utime + usage.ru_stime, 2)
    sender.send({**sizes, "seconds": seconds, "cpu_seconds": cpu_seconds})


def measure_corpus(
    shared: Path, repeats: int, threads: int, stages: list[str], own: dict[str, Path]
) -> tuple[float, dict[str, dict[str, float]]]:
    """Hours of the repeated corpus, and what each stage needs on it.

    `own` names what stands for the golden data: cuts, and other files.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in ("package", "lexicon.txt"):
            if file in own:
                (folder / file).symlink_to(own[file])
        cuts = own.get("cuts", folder / "corpus" / "cuts.jsonl.gz")
        if "cuts" not in own:
            (folder / "golden").symlink_to(shared / "golden")
            copy_system(shared / "golden" / "gmm" / "tri1", folder / "system")
            import_kaldi_dir(shared / "corpora" / "digits" / "train", folder / "corpus")
        repeat_cuts(cuts, folder / "cuts.jsonl.gz", repeats)
        with gzip.open(folder / "cuts.jsonl.gz", "rt", encoding="utf-8") as lines:
            hours = sum(json.loads(line)["duration"] for line in lines) / 3600
        found = {stage: needs(stage, folder, threads) for stage in stages}
        for figures in found.values():
            for key in ("seconds", "cpu_seconds"):
                figures[f"{key}_per_hour"] = round(figures[key] / hours, 1)
    return hours, found


def main() -> None:
    """Run every stage on every corpus and print what they needed."""
    parser = argparse.ArgumentParser(description="Memory and time of stages")
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--repeats", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--stages", nargs="+", choices=STAGES, default=DEFAULT, help="in order"
    )
    for name in ("package", "cuts", "lexicon"):
        parser.add_argument(f"--{name}", type=Path, help="of align_package")
    arguments = parser.parse_args()
    named = {
        "package": arguments.package,
        "cuts": arguments.cuts,
        "lexicon.txt": arguments.lexicon,
    }
    own = {name: path.resolve() for name, path in named.items() if path is not None}
    hours: dict[str, float] = {}
    stages: dict[str, dict[str, Any]] = {}
    for repeats in arguments.repeats:
        length, found = measure_corpus(
            arguments.shared.resolve(),
            repeats,
            arguments.threads,
            arguments.stages,
            own,
        )
        hours[f"x{repeats}"] = round(length, 4)
        for stage, figures in found.items():
            stages.setdefault(stage, {})[f"x{repeats}"] = figures
    for figures in stages.values():
        small, *_, large = figures.values()
        figures["growth"] = {key: round(large[key] / small[key], 3) for key in small}
    result = {
        "benchmark": "memory_scaling",
        "threads": arguments.threads,
        "cores": os.cpu_count(),
        "hours": hours,
        "stages": stages,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
