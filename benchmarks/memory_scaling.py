"""Peak memory of stages on a corpus, and on the same corpus repeated ten times.

Each stage runs in a process of its own. Its largest resident size is asked of the
operating system, and its own (anonymous) memory is looked at every 20 ms: pages of
files that are only mapped (frames, graphs) count in the first alone, since the system
may drop them at any time. The repeated corpus holds the same cuts under new ids. Prints
JSON; a ratio near 1 means that memory does not grow with the corpus.

Lang directory, models and graph are Kaldi's, of the digits (golden data).

    python benchmarks/memory_scaling.py [--shared ../shared] [--repeats 10]
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import resource
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latflow.corpus.kaldi_dir import import_kaldi_dir

ROOT = Path(__file__).resolve().parents[1]
SCHEMAS = ROOT / "workflow" / "schemas"


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
    """The stage extract_features."""
    from latflow.configuration import resolve_section
    from latflow.features.extract import extract_features

    extract_features(
        folder / "cuts.jsonl.gz",
        folder / "features",
        options=resolve_section(SCHEMAS, "features", {}),
        threads=threads,
        max_skipped_fraction=1.0,
    )


def normalise(folder: Path, threads: int) -> None:  # noqa: ARG001 - same form for all
    """The stage normalise_features."""
    from latflow.configuration import resolve_section
    from latflow.features.extract import normalise_features

    normalise_features(
        folder / "features" / "cuts.jsonl.gz",
        folder / "frames",
        options=resolve_section(SCHEMAS, "features", {}),
    )


def _acoustics() -> dict[str, object]:
    """What training, alignment and decoding share."""
    from latflow.configuration import resolve_section

    features = resolve_section(SCHEMAS, "features", {})
    graph = resolve_section(SCHEMAS, "graph", {})
    shared = {"transform": features["transform"], "graph": graph}
    return {**shared, "seed": 1, "device": "cpu"}


def train(folder: Path, threads: int) -> None:
    """The stage train_mono: training graphs, alignments and statistics."""
    from latflow.configuration import resolve_section
    from latflow.gmm.train import train_mono

    mono = {"type": "mono", "num_gaussians": 200, "num_iterations": 4}
    options = resolve_section(SCHEMAS, "gmm", {"systems": {"mono": mono}})
    train_mono(
        folder / "frames",
        folder / "golden" / "lang",
        folder / "mono",
        options={**options["systems"]["mono"], **_acoustics()},
        threads=threads,
        max_skipped_fraction=1.0,
    )


def align(folder: Path, threads: int) -> None:
    """The stage align_frames, with Kaldi's triphones."""
    from latflow.configuration import resolve_section
    from latflow.gmm.align import align as align_frames

    options = resolve_section(SCHEMAS, "gmm", {})["align"]
    align_frames(
        folder / "frames",
        folder / "golden" / "lang",
        folder / "golden" / "gmm" / "tri1",
        folder / "align",
        options={**options, **_acoustics()},
        threads=threads,
        max_skipped_fraction=1.0,
    )


def decode(folder: Path, threads: int) -> None:
    """The stage decode_lattices, with Kaldi's triphones and graph."""
    from latflow.configuration import resolve_section
    from latflow.decode.run import decode as decode_lattices

    decode_lattices(
        folder / "frames",
        folder / "golden" / "graph" / "HCLG_tri1.fst",
        folder / "golden" / "gmm" / "tri1",
        folder / "golden" / "lang",
        folder / "decode",
        options={**resolve_section(SCHEMAS, "decode", {}), **_acoustics()},
        threads=threads,
        max_skipped_fraction=1.0,
    )


STAGES: dict[str, Callable[[Path, int], None]] = {
    "extract_features": extract,
    "normalise_features": normalise,
    "train_mono": train,
    "align_frames": align,
    "decode_lattices": decode,
}


def peak_mb(stage: str, folder: Path, threads: int) -> dict[str, float]:
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
    """Run one stage and report the process's largest sizes."""
    done = threading.Event()
    own = [0.0]

    def watch() -> None:
        while not done.wait(0.02):
            lines = Path("/proc/self/status").read_text().splitlines()
            size = next(line for line in lines if line.startswith("RssAnon"))
            own[0] = max(own[0], int(size.split()[1]) / 1024)

    watcher = threading.Thread(target=watch)
    watcher.start()
    STAGES[stage](folder, threads)
    done.set()
    watcher.join()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sender.send({"resident_mb": round(resident), "own_mb": round(own[0])})


def main() -> None:
    """Run every stage on both corpora and print what they needed."""
    parser = argparse.ArgumentParser(description="Peak memory of stages")
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    shared = arguments.shared.resolve()
    stages: dict[str, dict[str, Any]] = {stage: {} for stage in STAGES}
    utterances: dict[str, int] = {}
    for repeats in (1, arguments.repeats):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "golden").symlink_to(shared / "golden")
            import_kaldi_dir(shared / "corpora" / "digits" / "train", folder / "corpus")
            cuts = folder / "corpus" / "cuts.jsonl.gz"
            count = repeat_cuts(cuts, folder / "cuts.jsonl.gz", repeats)
            utterances[f"x{repeats}"] = count
            for stage, peaks in stages.items():
                peaks[f"x{repeats}"] = peak_mb(stage, folder, arguments.threads)
    for peaks in stages.values():
        large, small = peaks[f"x{arguments.repeats}"], peaks["x1"]
        peaks["ratio"] = {name: round(large[name] / small[name], 3) for name in small}
    result = {
        "benchmark": "memory_scaling",
        "threads": arguments.threads,
        "cores": os.cpu_count(),
        "utterances": utterances,
        "stages": stages,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
