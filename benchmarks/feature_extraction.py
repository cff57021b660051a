"""Time of feature extraction against Lhotse's own, on the same cuts in the same run.

Ours is the stage as the workflow runs it (`latflow.features.extract.extract_features`:
read, decode, compute, store). The peer is what a Lhotse user writes:
`CutSet.compute_and_store_features` with Lhotse's `kaldi-mfcc` or `kaldi-fbank`,
the same number of jobs, and one of its storages. The stage runs without dither, as the
peer, and with that of recipes. Prints JSON; processor time says more than wall time
where the machine is not idle.

    python benchmarks/feature_extraction.py CUTS.jsonl.gz [--type mfcc] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch
from lhotse import CutSet
from lhotse.features.io import NumpyFilesWriter, NumpyHdf5Writer
from lhotse.features.kaldi.extractors import Fbank, FbankConfig, Mfcc, MfccConfig
from timing import Stopwatch

from latflow.features.extract import extract_features
from latflow.features.options import ExtractionOptions

WRITERS = {"numpy_hdf5": NumpyHdf5Writer, "numpy_files": NumpyFilesWriter}


def cpu_seconds() -> float:
    """Processor time of this process and of the children it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def ours(path: Path, folder: Path, options: ExtractionOptions, threads: int) -> float:
    """Seconds that the stage takes."""
    with Stopwatch() as spent:
        extract_features(
            path, folder, options=options, threads=threads, max_skipped_fraction=1.0
        )
    return spent.wall


def peer(
    path: Path, folder: Path, options: ExtractionOptions, threads: int, storage: str
) -> float:
    """Seconds that Lhotse takes for the same, its jobs being processes."""
    started = time.perf_counter()
    cuts = CutSet.from_file(path)
    common = {
        "sampling_rate": next(iter(cuts)).sampling_rate,
        "snip_edges": False,
        "num_filters": options.num_mel_bins,
        "low_freq": options.low_freq,
        "high_freq": options.high_freq,
    }
    if options.type == "mfcc":
        extractor = Mfcc(MfccConfig(num_ceps=options.num_ceps, **common))
    else:
        extractor = Fbank(FbankConfig(**common))
    with ProcessPoolExecutor(
        threads, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        done = cuts.compute_and_store_features(
            extractor=extractor,
            storage_path=str(folder / "storage"),
            num_jobs=threads,
            executor=pool if threads > 1 else None,
            storage_type=WRITERS[storage],
        )
        done.to_file(folder / "cuts.jsonl.gz")
    return time.perf_counter() - started


def main() -> None:
    """Run both in turn and print what they took."""
    parser = argparse.ArgumentParser(description="Feature extraction against Lhotse's")
    parser.add_argument("cuts", type=Path)
    parser.add_argument("--type", choices=["mfcc", "fbank"], default="mfcc")
    parser.add_argument("--storage", choices=sorted(WRITERS), default="numpy_hdf5")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    values = {
        "type": arguments.type, "snip_edges": False,
        "dither": 0.0,  # the peer adds none
    }  # fmt: skip
    options = ExtractionOptions(**values)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cuts = CutSet.from_file(arguments.cuts)
    audio_s = sum(cut.duration for cut in cuts)
    runs = {
        "latflow": (ours, options),
        "latflow_dither": (ours, options.replace(dither=1.0)),
        "lhotse": (partial(peer, storage=arguments.storage), options),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    cpu: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.repeats):
        for name, (run, given) in runs.items():
            with tempfile.TemporaryDirectory() as folder:
                target = Path(folder, "features")
                target.mkdir()
                before = cpu_seconds()
                seconds = run(arguments.cuts, target, given, arguments.threads)
                times[name].append(round(seconds, 3))
                cpu[name].append(round(cpu_seconds() - before, 3))
    best = {name: min(seconds) for name, seconds in times.items()}
    least = {name: min(seconds) for name, seconds in cpu.items()}
    result = {
        "benchmark": "feature_extraction",
        "options": values,
        "threads": arguments.threads,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "utterances": len(list(cuts)),
        "audio_s": round(audio_s, 1),
        "wall_s": times,
        "cpu_s": cpu,
        "latflow_times_real_time": audio_s / best["latflow"],
        "speed_up_over_lhotse": best["lhotse"] / best["latflow"],
        "cpu_saving_over_lhotse": least["lhotse"] / least["latflow"],
        "cpu_of_dither": least["latflow_dither"] / least["latflow"],
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
