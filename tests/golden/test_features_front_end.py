"""Features equal those of Kaldi's programs (golden/README.md, folder features)."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from lhotse.features.kaldi.layers import Wav2LogFilterBank, Wav2MFCC

from latflow.features.cmvn import cmvn_statistics, normalize
from latflow.features.cmvn_options import SpeakerCmvn
from latflow.features.front_end import SAMPLE_SCALE, KaldiFrontEnd, StreamingFrontEnd
from latflow.features.options import FrontEndOptions
from latflow.features.transform import Deltas
from latflow.kaldi.io import read_matrices

# Rounding of the FFT, which depends on the processor's instructions, shows in a few of
# the logarithms of bins that are nearly empty: hence two bounds.
MFCC_TOLERANCE = FBANK_TOLERANCE = 2e-3
USUAL_TOLERANCE, USUAL_SHARE = 5e-4, 0.999
FBANK = {"type": "fbank", "num_mel_bins": 40}


@pytest.fixture(scope="module")
def matrices(golden):
    def read(name):
        return dict(read_matrices(golden / "features" / name))

    return read


@pytest.fixture(scope="module")
def waves(corpora):
    folder = corpora / "digits" / "test"
    lines = (folder / "wav.scp").read_text().splitlines()
    paths = dict(line.split(maxsplit=1) for line in lines)
    return {
        utt_id: soundfile.read(Path(folder, path), dtype="float32")[0]
        for utt_id, path in paths.items()
    }


def largest_difference(wanted, made):
    assert wanted
    worst = 0.0
    for utt_id, matrix in wanted.items():
        assert made[utt_id].shape == matrix.shape
        worst = max(worst, float(np.abs(made[utt_id] - matrix).max()))
    return worst


@pytest.mark.parametrize("snip_edges", [True, False])
@pytest.mark.parametrize(
    ("name", "settings", "tolerance"),
    [("mfcc13", {}, MFCC_TOLERANCE), ("fbank40", FBANK, FBANK_TOLERANCE)],
)
def test_features_equal_kaldis(matrices, waves, name, settings, tolerance, snip_edges):
    wanted = matrices(f"{name}_snip_{str(snip_edges).lower()}.txt.gz")
    options = FrontEndOptions(**settings, snip_edges=snip_edges, dither=0.0)
    front_end = KaldiFrontEnd(options, 8000)
    offline = {utt_id: front_end.extract(waves[utt_id]) for utt_id in wanted}
    assert largest_difference(wanted, offline) < tolerance
    differences = np.concatenate(
        [np.abs(offline[utt_id] - wanted[utt_id]).ravel() for utt_id in wanted]
    )
    assert np.quantile(differences, USUAL_SHARE) < USUAL_TOLERANCE

    longest = max(len(waves[utt_id]) for utt_id in wanted)
    lengths = torch.tensor([len(waves[utt_id]) for utt_id in wanted])
    batch = torch.zeros((len(wanted), longest))
    for row, utt_id in zip(batch, wanted, strict=True):
        row[: len(waves[utt_id])] = torch.as_tensor(waves[utt_id])
    on_the_fly = {
        utt_id: features[: front_end.num_frames(int(n))].numpy()
        for utt_id, features, n in zip(
            wanted, front_end(batch, lengths), lengths, strict=True
        )
    }
    assert largest_difference(wanted, on_the_fly) < tolerance

    streamed = {}
    for utt_id in wanted:
        stream = StreamingFrontEnd(front_end)
        chunks = np.array_split(waves[utt_id], 97)
        parts = [stream.accept(chunk) for chunk in chunks]
        streamed[utt_id] = np.concatenate([*parts, stream.finish()])
    assert largest_difference(wanted, streamed) < tolerance


@pytest.mark.parametrize(
    ("settings", "layer"),
    [
        ({}, Wav2MFCC),
        ({"type": "fbank", "num_mel_bins": 40, "use_energy": True}, Wav2LogFilterBank),
        ({"type": "fbank", "num_mel_bins": 40, "high_freq": -400.0}, Wav2LogFilterBank),
        ({"window_type": "hamming"}, Wav2MFCC),
        ({"window_type": "hanning", "low_freq": 60.0}, Wav2MFCC),
        ({"window_type": "rectangular", "cepstral_lifter": 10.0}, Wav2MFCC),
        ({"num_ceps": 20, "preemphasis": 0.5, "frame_shift_ms": 12.5}, Wav2MFCC),
    ],
)
def test_lhotses_layers_agree_with_snip_edges(waves, settings, layer):
    options = FrontEndOptions(**settings, dither=0.0)
    wave = waves["george-test-0000"]
    arguments = {
        "sampling_rate": 8000,
        "frame_length": options.frame_length_ms / 1000,
        "frame_shift": options.frame_shift_ms / 1000,
        "preemph_coeff": options.preemphasis,
        "window_type": options.window_type,
        "snip_edges": True,
        "use_energy": options.use_energy,
        "low_freq": options.low_freq,
        "high_freq": options.high_freq,
        "num_filters": options.num_mel_bins,
    }
    if options.type == "mfcc":
        arguments["num_ceps"] = options.num_ceps
        arguments["cepstral_lifter"] = options.cepstral_lifter
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lhotse advises against snip-edges
        peer = layer(**arguments)
    wanted = peer(torch.as_tensor(wave)[None] * SAMPLE_SCALE)[0].numpy()
    made = KaldiFrontEnd(options, 8000).extract(wave)
    np.testing.assert_allclose(made, wanted, atol=3e-3)


def test_deltas_equal_kaldis(matrices):
    wanted = matrices("mfcc13_deltas.txt.gz")
    base = matrices("mfcc13_snip_true.txt.gz")
    made = {utt_id: Deltas()(frames) for utt_id, frames in base.items()}
    assert largest_difference(wanted, made) < 1e-4


def test_cmvn_statistics_equal_kaldis(golden, matrices):
    wanted = matrices("cmvn_per_speaker.txt")
    lines = (golden / "utt2spk").read_text().splitlines()
    speakers = dict(line.split() for line in lines)
    made = {}
    for utt_id, frames in matrices("mfcc13_snip_true.txt.gz").items():
        stats = cmvn_statistics(frames)
        made[speakers[utt_id]] = made.get(speakers[utt_id], 0.0) + stats
    assert made.keys() == wanted.keys()
    for speaker, stats in wanted.items():
        np.testing.assert_allclose(made[speaker], stats, rtol=2e-6, atol=1e-2)


def test_cmvn_then_deltas_equal_kaldis(golden, matrices):
    wanted = matrices("mfcc39_cmvn.txt.gz")
    stats = matrices("cmvn_per_speaker.txt")
    lines = (golden / "utt2spk").read_text().splitlines()
    speakers = dict(line.split() for line in lines)
    made = {
        utt_id: Deltas()(normalize(frames, SpeakerCmvn(), stats[speakers[utt_id]]))
        for utt_id, frames in matrices("mfcc13_snip_true.txt.gz").items()
    }
    assert largest_difference(wanted, made) < 1e-3
