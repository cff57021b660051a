"""Scores of chunks as sessions ask for them: the context kept, or computed again.

Prints processor time for a second of audio, of a preset with random parameters, as
JSON: the fastest of some rounds, in which both take turns.

    python benchmarks/streamed_networks.py config/networks/cnn_tdnnf_chain_small.yaml
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import AcousticNetwork
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.serving.acoustics import Chunk, ChunkCutter, NetworkAcoustics

FRAMES = 100  # a second


def chunks_of(
    acoustics: NetworkAcoustics, frames: np.ndarray, size: int
) -> Iterator[Chunk]:
    """Yield the chunks of a segment."""
    cutter = ChunkCutter(size, acoustics.context)
    cutter.add(frames)
    cutter.end()
    while (chunk := cutter.take()) is not None:
        yield chunk


def seconds(
    acoustics: NetworkAcoustics, frames: np.ndarray, size: int, *, keeps: bool
) -> float:
    """Return processor time for a second of audio.

    Args:
        acoustics: of the network.
        frames: [B, T, D], of B sessions in step.
        size: of a chunk.
        keeps: whether what lies behind is kept.
    """
    began = time.process_time()
    streams = [chunks_of(acoustics, x, size) for x in frames]
    for chunks in zip(*streams, strict=True):
        acoustics.score([x if keeps else replace(x, stream=None) for x in chunks])
    audio = frames.shape[0] * frames.shape[1] / FRAMES
    return (time.process_time() - began) / audio


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network")
    parser.add_argument("--dim-in", type=int, default=40)
    parser.add_argument("--classes", type=int, default=2000)
    parser.add_argument("--chunks", type=float, nargs="+", default=[0.24, 0.48, 0.96])
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seconds", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    description = NetworkDescription.load(given.network).decoded()
    network = Network(description, given.dim_in, {"pdf": given.classes}).eval()
    acoustics = NetworkAcoustics(
        AcousticNetwork(network, None, {"scores": "log_likelihoods"}),
        Normalizer(),
        0.0,
        torch.device("cpu"),
    )
    found = []
    for sessions in given.sessions:
        shape = sessions, given.seconds * FRAMES, given.dim_in
        frames = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        for chunk in given.chunks:
            size = -(-round(chunk * FRAMES) // acoustics.period) * acoustics.period
            rounds = [
                [
                    seconds(acoustics, frames, size, keeps=keeps)
                    for keeps in (False, True)
                ]
                for _ in range(given.rounds)
            ]
            again, kept = np.min(rounds, 0).tolist()
            found.append(
                {
                    "sessions": sessions,
                    "chunk": size / FRAMES,
                    "again": again,
                    "kept": kept,
                }
            )
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
