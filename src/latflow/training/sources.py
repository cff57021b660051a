"""From files to batches: open the data of a training by its paths and options.

    normaliser = estimate_normaliser(train_dir, options)
    batches = open_batches(train_dir, {"pdf": labels}, options, normaliser=normaliser,
                           subsampling=network.subsampling, seed=seed, ledger=ledger)
    dev = open_batches(dev_dir, ..., is_training=False)

`options` is the section `data` of a network system, with its defaults
(`workflow/schemas/nnet_data.yaml`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from latflow.features.live import Frames, LiveFrames, LiveOptions, open_frames
from latflow.ledger import Ledger
from latflow.training.batches import BatchSource
from latflow.training.data_options import DataOptions
from latflow.training.labels import LabelStore
from latflow.training.normalisation import Normaliser
from latflow.training.reading import FrameReader, LiveReader, StoreReader


def estimate_normaliser(
    frames_dir: str | Path, options: Mapping[str, Any]
) -> Normaliser:
    """Make the normalisation that the options name, from the training frames.

    Keep `to_meta()` of it in the model's meta.json (key `normalisation`), so that
    forward and decoding do the same to their features.

    Args:
        frames_dir: the features of the training split.
        options: the section `data`.
    """
    return Normaliser.estimate(
        options["normalisation"], open_features(frames_dir, options)
    )


def open_features(frames_dir: str | Path, options: Mapping[str, Any]) -> Frames:
    """Open the features of a training.

    Args:
        frames_dir: what `normalise_features` or `prepare_live_features` wrote.
        options: the section `data`; its key `on_the_fly` is for the latter.
    """
    return open_frames(frames_dir, LiveOptions.from_config(options["on_the_fly"]))


def open_reader(frames: Frames, normaliser: Normaliser) -> FrameReader:
    """Make the reader of features for batches."""
    if isinstance(frames, LiveFrames):
        return LiveReader(frames, normaliser)
    return StoreReader(frames, normaliser)


def open_batches(
    frames_dir: str | Path,
    labels: Mapping[str, LabelStore],
    options: Mapping[str, Any],
    *,
    normaliser: Normaliser,
    subsampling: int = 1,
    seed: int = 0,
    ledger: Ledger | None = None,
    is_training: bool = True,
) -> BatchSource:
    """Open features and labels as batches, in page-locked memory where there is a GPU.

    Args:
        frames_dir: features, see `open_features`.
        labels: label stores by the name of the target; empty = features alone.
        options: the section `data`.
        normaliser: of `estimate_normaliser`.
        subsampling: frames of the features for one of the network's output.
        seed: of the order.
        ledger: gets the utterances that cannot be used.
        is_training: false for the dev set: a fixed order, all in one epoch.

    Raises:
        UserError: no such store, no utterance that can be used, or chunks that do not
            fit the subsampling.
    """
    parsed = DataOptions.from_config(options)
    return BatchSource(
        open_reader(open_features(frames_dir, options), normaliser),
        labels,
        parsed if is_training else parsed.for_evaluation(),
        subsampling=subsampling,
        seed=seed,
        ledger=ledger,
        pin=torch.cuda.is_available(),
    )
