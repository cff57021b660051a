"""Makes the golden set of our own: what Kaldi's code computes of the demo's speech.

Kaldi's code as the wheels have it, kaldi-native-fbank (features) and kaldi-hmm-gmm
(mixtures, lattice decoder); neither is ours, so that equal numbers say something.

    make demo
    pip install kaldi-native-fbank==1.23.0
    python tests/golden/own/make.py results/demo

Frames, model, graph and alignments are the demo's. Written beside this file are the
audio of a few utterances and `golden.npz`; see README.md there.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import kaldi_hmm_gmm as kaldi  # before anything that imports kaldifst
import kaldi_native_fbank as knf
import numpy as np
import soundfile

from latflow.features.frames import FrameStore
from latflow.features.transform import Deltas
from latflow.fst.graph import Graph
from latflow.gmm.model import AcousticModel
from latflow.kaldi.io import read_int_vectors

HERE = Path(__file__).parent
UTTERANCES = 3
EVERY = 8  # frames whose log-likelihoods are kept
SCALE, BEAM, LATTICE_BEAM, MAX_ACTIVE = 0.1, 13.0, 6.0, 7000


def features(samples: np.ndarray, kind: str, *, snip: bool) -> np.ndarray:
    """Return MFCC or log-mel features, float32[T, D], of int16 samples at 16 kHz."""
    options = knf.MfccOptions() if kind == "mfcc" else knf.FbankOptions()
    options.frame_opts.samp_freq = 16000
    options.frame_opts.dither = 0
    options.frame_opts.snip_edges = snip
    options.use_energy = False
    options.mel_opts.num_bins = 23 if kind == "mfcc" else 40
    computer = (knf.OnlineMfcc if kind == "mfcc" else knf.OnlineFbank)(options)
    computer.accept_waveform(16000, samples.astype(np.float32).tolist())
    computer.input_finished()
    frames = range(computer.num_frames_ready)
    return np.array([computer.get_frame(t) for t in frames], np.float32)


def mixtures(model: AcousticModel) -> kaldi.AmDiagGmm:
    """Return a model's mixtures as Kaldi's."""
    am, gmms = kaldi.AmDiagGmm(), model.gmms
    for first, last in zip(gmms.begin[:-1], gmms.begin[1:], strict=True):
        gmm = kaldi.DiagGmm(int(last - first), gmms.dim)
        gmm.set_weights(gmms.weights[first:last])
        inverse = gmms.inv_vars[first:last]
        gmm.set_invvars_and_means(inverse, gmms.means_invvars[first:last] / inverse)
        gmm.compute_gconsts()
        am.add_pdf(gmm)
    return am


def updated(am: kaldi.AmDiagGmm, frames: np.ndarray, pdfs: np.ndarray) -> dict:
    """Return the mixtures after a pass of EM over the frames, and their likelihood."""
    flags = int(kaldi.GmmUpdateFlags.kGmmAll)
    accumulator = kaldi.AccumAmDiagGmm()
    accumulator.init(am, flags)
    for row, pdf in zip(frames, pdfs.tolist(), strict=True):
        accumulator.accumulate_for_gmm(am, row, pdf, 1.0)
    options = kaldi.MleDiagGmmOptions()
    kaldi.mle_am_diag_gmm_update(options, accumulator, flags, am)
    gmms = [am.get_pdf(pdf) for pdf in range(am.num_pdfs)]
    return {
        "em_log_like": np.float64(accumulator.tot_log_like),
        "em_sizes": np.array([gmm.num_gauss for gmm in gmms]),
        "em_weights": np.concatenate([np.array(gmm.weights) for gmm in gmms]),
        "em_means": np.concatenate([np.array(gmm.means) for gmm in gmms]),
        "em_vars": np.concatenate([np.array(gmm.vars) for gmm in gmms]),
    }


def lattices(graph: Path, scores: dict[str, np.ndarray]) -> None:
    """Write the raw lattices of Kaldi's decoder beside this file."""
    program = HERE.parents[2] / "benchmarks/kaldi_lattice_decoder.py"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Graph.load(graph).to_fst().write(str(folder / "graph.fst"))
        for utterance, matrix in scores.items():
            np.save(folder / f"{utterance}.npy", matrix)
        settings = [str(value) for value in (BEAM, LATTICE_BEAM, MAX_ACTIVE, 1)]
        subprocess.run([sys.executable, program, name, *settings], check=True)
        for utterance in scores:
            data = (folder / f"{utterance}.lat").read_bytes()
            packed = gzip.compress(data, mtime=0)
            (HERE / f"{utterance}.lat.gz").write_bytes(packed)


def main() -> None:
    results = Path(sys.argv[1])
    store = FrameStore.load(results / "streams/gmm/frames/train")
    model = AcousticModel.load(results / "gmm/mono/final.mdl")
    pdf_of = model.transitions.pdf
    am = mixtures(model)
    aligned = dict(read_int_vectors(results / "align/mono/train/ali.ark"))
    chosen = sorted(aligned, key=lambda u: (len(aligned[u]), u))[:UTTERANCES]
    found: dict[str, np.ndarray] = {"utterances": np.array(chosen)}
    scores, rows, paths = {}, [], []
    (HERE / "audio").mkdir(exist_ok=True)
    for utterance in chosen:
        source = results / f"corpus/train/audio/{utterance}.flac"
        shutil.copy(source, HERE / "audio" / source.name)
        samples, _ = soundfile.read(source, dtype="int16")
        for kind in ("mfcc", "fbank"):
            for snip in (True, False):
                key = f"{utterance}.{kind}.{'snipped' if snip else 'whole'}"
                found[key] = features(samples, kind, snip=snip)
        rows_of = store.frames(store.position(utterance))
        frames = Deltas().apply(rows_of, np.array([0, len(rows_of)]))
        likes = np.array(
            [
                [am.log_likelihood(pdf, row) for pdf in range(am.num_pdfs)]
                for row in frames
            ],
            np.float32,
        )
        found[f"{utterance}.frames"] = frames
        found[f"{utterance}.log_likes"] = likes[::EVERY]
        found[f"{utterance}.alignment"] = np.asarray(aligned[utterance], np.int32)
        scores[utterance] = (SCALE * likes[:, pdf_of[1:]]).astype(np.float32)
        rows.append(frames)
        paths.append(aligned[utterance])
    found |= updated(am, np.concatenate(rows), pdf_of[np.concatenate(paths)])
    np.savez_compressed(HERE / "golden.npz", **found)
    lattices(results / "graph/mono/HCLG.fst", scores)
    for name in ("gmm/mono/final.mdl", "graph/mono/HCLG.fst"):
        packed = gzip.compress((results / name).read_bytes(), mtime=0)
        (HERE / f"{Path(name).name}.gz").write_bytes(packed)


if __name__ == "__main__":
    main()
