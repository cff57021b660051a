"""Whole-process times of GMM training, and the E-step against a peer; prints JSON.

Trains the systems of the golden README on speechocean: monophones on the 800 shortest
utterances, triphones on deltas (1200 leaves, 8000 Gaussians), triphones on LDA and MLLT
features (1500 leaves, 10000 Gaussians), with alignments of all between them. Each stage
runs in a process of its own, so that start-up and loading count, as they do for Kaldi's
programs. The peer of the E-step is Kaldi's own C++ code as the wheel `kaldi-hmm-gmm`
(`AccumAmDiagGmm.accumulate_for_gmm`, one frame a call), on some frames of the data and
one thread, also in a process of its own; ours is timed on the same frames and thread.

    python benchmarks/gmm_training.py FRAMES LANG WORK [--threads N]

FRAMES: the `FrameStore` of speechocean's training set (13 MFCC with CMVN), that is
`results/<experiment>/streams/gmm/frames/train`; LANG: `results/<experiment>/lang`;
WORK: a folder to write to. Kaldi's times are those of issue 4: same kind of machine,
otherwise idle, 2 jobs. State the load that this prints next to the times.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from timing import Stopwatch

KALDI_SECONDS = {
    "mono": 35.0,
    "align_mono": 4.0,
    "tri1": 49.0,
    "align_tri1": 4.0,
    "tri2": 69.0,
    "align_tri2": 4.0,
    "tri3": 123.0,
}
PEER_FRAMES = 20_000


def options():
    from latflow.gmm.options import (
        DeltasOptions,
        LdaMlltOptions,
        MonoOptions,
        SatOptions,
    )

    sizes = {"num_leaves": 1500, "num_gaussians": 10000}
    return {
        "mono": MonoOptions(subset_shortest=800),
        "tri1": DeltasOptions(alignments="mono", num_leaves=1200, num_gaussians=8000),
        "tri2": LdaMlltOptions(alignments="tri1", **sizes),
        "tri3": SatOptions(alignments="tri2", **sizes),
    }


def run_stage(stage, frames, lang, work, threads):
    from latflow.gmm.alignment import align_gmm
    from latflow.gmm.lda_mllt import LdaMlltJob, train_lda_mllt
    from latflow.gmm.options import AlignAdaptedOptions, SharedOptions
    from latflow.gmm.sat import SatJob, train_sat
    from latflow.gmm.train import DeltasJob, MonoJob, train_deltas, train_mono
    from latflow.graphs.options import GraphOptions
    from latflow.parts import SetJob

    if stage.startswith("align_"):
        system = stage.removeprefix("align_")
        out = work / "align" / system / "train"
        align_gmm(
            SetJob(
                frames_dir=frames,
                lang_dir=lang,
                model_dir=work / system,
                out_dir=out,
                threads=threads,
                max_skipped_fraction=0.05,
            ),
            options=AlignAdaptedOptions(),
            graph=GraphOptions(),
        )
        return
    shared = SharedOptions()
    chosen = {"options": options()[stage], "shared": shared, "threads": threads}
    chosen |= {"frames_dir": frames, "lang_dir": lang, "out_dir": work / stage}
    if stage == "mono":
        train_mono(MonoJob(**chosen))
        return
    train, kind = {
        "tri1": (train_deltas, DeltasJob),
        "tri2": (train_lda_mllt, LdaMlltJob),
        "tri3": (train_sat, SatJob),
    }[stage]
    source = chosen["options"].alignments
    ali = work / "align" / source / "train/ali.ark"
    train(kind(**chosen, alignments=ali, source_dir=work / source))


def dump_peer_data(frames, work):
    """Write the frames, pdfs and model of the E-step comparison as plain arrays."""
    import numpy as np

    from latflow.features.frames import FrameStore
    from latflow.features.transform import Deltas
    from latflow.gmm.model import AcousticModel
    from latflow.gmm.source import FrameSource
    from latflow.gmm.train import known_alignments

    store = FrameStore.load(frames)
    source = FrameSource(store, Deltas(), np.arange(len(store)), cache_bytes=0)
    model = AcousticModel.load(work / "mono/final.mdl")
    rows, ids, count = [], [], 0
    for u, path in known_alignments(source, work / "align/mono/train/ali.ark"):
        rows.append(source.frames(u))
        ids.append(path)
        count += len(path)
        if count >= PEER_FRAMES:
            break
    gmms = model.gmms
    np.savez(
        work / "peer.npz",
        x=np.concatenate(rows)[:PEER_FRAMES],
        ids=np.concatenate(ids)[:PEER_FRAMES],
        pdfs=model.transitions.pdf[np.concatenate(ids)[:PEER_FRAMES]],
        begin=gmms.begin,
        weights=gmms.weights,
        means_invvars=gmms.means_invvars,
        inv_vars=gmms.inv_vars,
    )


def time_ours(work):
    import numpy as np

    from latflow.gmm.estep import accumulate_frames
    from latflow.gmm.model import AcousticModel
    from latflow.parallel import worker_pool

    data = dict(np.load(work / "peer.npz"))
    model = AcousticModel.load(work / "mono/final.mdl")
    seconds = []
    with worker_pool(1) as pool:
        for _ in range(5):
            with Stopwatch() as spent:
                found = accumulate_frames(model, data["x"], data["ids"], pool)
            seconds.append(spent.wall)
    return {"seconds": min(seconds), "log_like": found.log_like}


def time_peer(work):
    import kaldi_hmm_gmm as peer  # before anything that imports kaldifst
    import numpy as np

    data = dict(np.load(work / "peer.npz"))
    am = peer.AmDiagGmm()
    for first, last in zip(data["begin"][:-1], data["begin"][1:], strict=True):
        gmm = peer.DiagGmm(int(last - first), data["x"].shape[1])
        gmm.set_weights(data["weights"][first:last])
        gmm.set_invvars_and_means(
            data["inv_vars"][first:last],
            data["means_invvars"][first:last] / data["inv_vars"][first:last],
        )
        gmm.compute_gconsts()
        am.add_pdf(gmm)
    flags = int(peer.GmmUpdateFlags.kGmmAll)
    seconds = []
    for _ in range(3):
        accumulator = peer.AccumAmDiagGmm()
        accumulator.init(am, flags)
        rows = list(data["x"])
        pdfs = data["pdfs"].tolist()
        with Stopwatch() as spent:
            for row, pdf in zip(rows, pdfs, strict=True):
                accumulator.accumulate_for_gmm(am, row, pdf, 1.0)
        seconds.append(spent.wall)
    return {"seconds": min(seconds), "log_like": accumulator.tot_log_like}


def spawn(arguments, step):
    """Run a step of this script in a process of its own; (wall seconds, its JSON)."""
    with Stopwatch() as spent:
        done = subprocess.run(
            [sys.executable, __file__, *arguments, "--step", step],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    return spent.wall, json.loads(done.stdout or "null")


def summarize(arguments, work, threads):
    load_before = os.getloadavg()
    stages = {}
    for stage, kaldi in KALDI_SECONDS.items():
        seconds, _ = spawn(arguments, stage)
        stages[stage] = {
            "seconds": round(seconds, 2),
            "kaldi_seconds": kaldi,
            "ratio": round(seconds / kaldi, 3),
        }
    total = sum(stage["seconds"] for stage in stages.values())
    spawn(arguments, "dump")
    _, ours = spawn(arguments, "ours")
    _, peer = spawn(arguments, "peer")
    return {
        "benchmark": "gmm_training",
        "threads": threads,
        "cores": os.cpu_count(),
        "load_average_before": load_before,
        "load_average_after": os.getloadavg(),
        "stages": stages,
        "total_seconds": round(total, 2),
        "total_ratio": round(total / sum(KALDI_SECONDS.values()), 3),
        "log_like_per_frame": {
            name: json.loads((work / name / "info.json").read_text())[
                "log_like_per_frame"
            ]
            for name in ("mono", "tri1", "tri2", "tri3")
        },
        "e_step": {
            "frames": PEER_FRAMES,
            "latflow": ours,
            "kaldi_hmm_gmm": peer,
            "speed_up": round(peer["seconds"] / ours["seconds"], 1),
        },
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("frames", type=Path)
    parser.add_argument("lang", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    steps = [*KALDI_SECONDS, "dump", "ours", "peer"]
    parser.add_argument("--step", choices=steps, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    if given.step in KALDI_SECONDS:
        run_stage(given.step, given.frames, given.lang, given.work, given.threads)
    elif given.step == "dump":
        dump_peer_data(given.frames, given.work)
    elif given.step == "ours":
        print(json.dumps(time_ours(given.work)))
    elif given.step == "peer":
        print(json.dumps(time_peer(given.work)))
    else:
        paths = [str(given.frames), str(given.lang), str(given.work)]
        arguments = [*paths, "--threads", str(given.threads)]
        print(json.dumps(summarize(arguments, given.work, given.threads), indent=1))


if __name__ == "__main__":
    main()
