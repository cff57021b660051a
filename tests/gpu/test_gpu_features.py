"""Front end, statistics and rooms on a device: the numbers of the processor."""

from concurrent.futures import Executor

import numpy as np
import pytest
import torch

from latflow.features.front_end import KaldiFrontEnd
from latflow.features.options import FrontEndOptions
from latflow.gmm.device_estep import moments_on_device
from latflow.gmm.estep import _on_cpu, sort_by_pdf
from latflow.gmm.mllt import MlltAccumulator
from latflow.gmm.model import DiagGmms
from latflow.options import read_options
from latflow.parallel import worker_pool
from latflow.simulation.rooms import calibrated_responses, room_responses


class CallingThread(Executor):
    """No threads: the pretended device is that of one thread alone."""

    def map(self, work, *items):
        return map(work, *items)


def mixtures(rng, num_pdfs=40, dim=13, widest=12):
    sizes = rng.integers(1, widest + 1, num_pdfs)
    weights = np.concatenate([rng.dirichlet(np.full(n, 5.0)) for n in sizes])
    shape = sizes.sum(), dim
    return DiagGmms.from_moments(
        np.concatenate([[0], np.cumsum(sizes)]),
        weights,
        rng.normal(0, 2, shape),
        rng.uniform(0.2, 3, shape),
    )


def aligned_frames(rng, gmms, count=2000):
    frames = rng.normal(0, 2, (count, gmms.dim)).astype(np.float32)
    return frames, rng.integers(-1, gmms.num_pdfs, count).astype(np.int32)


def test_statistics_of_mixtures(device):
    rng = np.random.default_rng(1)
    gmms = mixtures(rng)
    frames, pdfs = aligned_frames(rng, gmms)
    order, begin = sort_by_pdf(pdfs, gmms.num_pdfs)
    with worker_pool(1) as pool:
        moments, log_like = _on_cpu(gmms, frames, order, begin, pool)
    found, found_log_like = moments_on_device(gmms, frames, order, begin, device)
    np.testing.assert_allclose(found, moments, rtol=1e-3, atol=1e-2)
    assert found_log_like == pytest.approx(log_like, rel=1e-6)


def test_statistics_of_mllt(device):
    rng = np.random.default_rng(2)
    gmms = mixtures(rng, num_pdfs=5)
    frames, pdfs = aligned_frames(rng, gmms, 2000)
    here, there = MlltAccumulator.zeros(gmms.dim), MlltAccumulator.zeros(gmms.dim)
    with worker_pool(1) as pool:
        here.accumulate(gmms, frames, pdfs, pool)
    there.accumulate(gmms, frames, pdfs, CallingThread(), device=device)
    limit = 1e-5 * np.abs(here.scatters).max()
    np.testing.assert_allclose(there.scatters, here.scatters, atol=limit)


@pytest.mark.parametrize(
    "values",
    [{"type": "fbank"}, {"type": "mfcc", "snip_edges": False}, {"type": "waveform"}],
)
def test_front_end(device, values):
    front_end = KaldiFrontEnd(read_options(FrontEndOptions, values), 16000)
    rng = np.random.default_rng(3)
    waves = torch.from_numpy(0.1 * rng.normal(size=(3, 8000)).astype(np.float32))
    lengths = torch.tensor([8000, 5000, 400])
    expected = front_end(waves, lengths)
    found = front_end.to(device)(waves.to(device), lengths)
    assert found.device.type == device.type
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-3)


def rooms(count=4):
    """Sizes, sources, microphones, reverberation times."""
    rng = np.random.default_rng(4)
    size = rng.uniform((3.0, 4.0, 2.5), (6.0, 8.0, 3.5), (count, 3))
    parts = size, 0.3 * size, 0.6 * size, rng.uniform(0.25, 0.4, count)
    return [torch.from_numpy(part) for part in parts]


def near(response):
    """What the last bit of a distance makes at most: 1e-4 of a point of the grid."""
    return 3e-5 * float(response.abs().max())


def test_responses_of_rooms(device):
    size, source, microphone, _ = rooms()
    reflection = torch.linspace(0.6, 0.9, len(size), dtype=torch.float64)
    given = size, source, microphone, reflection
    options = {"rate": 8000, "num_samples": 1500}
    expected = room_responses(*given, **options)
    found = room_responses(*(part.to(device) for part in given), **options)
    assert found.device.type == device.type
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=near(expected))


def test_responses_of_rooms_of_any_lengths(device, monkeypatch):
    """In groups of two or three."""
    monkeypatch.setattr("latflow.simulation.rooms._SAMPLES", 6000)
    size, source, microphone, _ = rooms(6)
    reflection = torch.linspace(0.6, 0.9, len(size), dtype=torch.float64)
    given = size, source, microphone, reflection
    options = {"rate": 8000, "num_samples": [800, 2500, 90, 1500, 1500, 700]}
    expected = room_responses(*given, **options)
    found = room_responses(*(part.to(device) for part in given), **options).cpu()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=near(other))


def test_calibrated_responses(device):
    given = rooms(2)
    here = calibrated_responses(*given, rate=8000)
    there = calibrated_responses(*(part.to(device) for part in given), rate=8000)
    torch.testing.assert_close(
        there.reflection.cpu(), here.reflection, rtol=1e-3, atol=0
    )
    error = (there.responses.cpu() - here.responses).square().sum(1)
    assert (error / here.responses.square().sum(1) < 1e-4).all()
