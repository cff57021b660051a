"""The stage that puts the features of several streams side by side in each frame.

Source: Kaldi `featbin/paste-feats.cc`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.features.options import PasteOptions
from latflow.files import atomic_directory
from latflow.ledger import Ledger
from latflow.logs import progress

log = logging.getLogger(__name__)


def paste_features(
    frames_dir: Sequence[Path],
    out_dir: Path,
    *,
    options: PasteOptions,
    max_skipped_fraction: float,
) -> None:
    """Write the frames of several streams of a split side by side (stage).

    Each utterance has as many frames as the stream with the fewest; what others have
    more is cut off at the end. Speakers and transcripts are those of the first stream.

    Args:
        frames_dir: the `FrameStore` of each stream, in the order of
            `options.features`.
        out_dir: a `FrameStore` whose `meta.json` has, as `parts`, name and features of
            each stream, and `ledger.jsonl`; replaced as a whole.
        options: names of the streams, and how far their lengths may differ.
        max_skipped_fraction: share of the utterances that a stream may lack.

    Raises:
        UserError: frame shifts differ, lengths of an utterance do too much, or too many
            utterances are not in all streams.
    """
    names = options.features
    stores = [FrameStore.load(folder) for folder in frames_dir]
    first = stores[0]
    _check_frame_shifts(names, stores)
    ledger, num_cut = Ledger("paste_features"), 0
    utterances = sorted(set().union(*(store.utt_ids for store in stores)))
    parts = [(name, s.dim) for name, s in zip(names, stores, strict=True)]
    with (
        atomic_directory(out_dir) as folder,
        FrameWriter(
            folder,
            dim=sum(store.dim for store in stores),
            frame_shift=first.frame_shift,
            meta={"parts": parts},
        ) as writer,
    ):
        for utterance in progress(utterances, "paste features"):
            numbers = [int(store.positions([utterance])[0]) for store in stores]
            if -1 in numbers:
                lacking = names[numbers.index(-1)]
                ledger.record(utterance, f"has no features {lacking}")
                continue
            found = [s.frames(i) for s, i in zip(stores, numbers, strict=True)]
            lengths = [len(frames) for frames in found]
            _check_lengths(utterance, lengths, options)
            num_cut += len(set(lengths)) > 1
            joined = np.hstack([frames[: min(lengths)] for frames in found])
            speaker, text = first.speakers[numbers[0]], first.texts[numbers[0]]
            writer.append(utterance, speaker, text, joined)
        ledger.check(len(utterances), max_skipped_fraction=max_skipped_fraction)
        ledger.write(folder / "ledger.jsonl")
    if num_cut:
        log.info(
            "%d of %d utterances were cut to the stream with the fewest frames",
            num_cut,
            len(utterances),
        )


def _check_frame_shifts(names: Sequence[str], stores: Sequence[FrameStore]) -> None:
    """Refuse streams whose frames are not at the same times."""
    first = stores[0]
    for name, store in zip(names, stores, strict=True):
        if not math.isclose(store.frame_shift, first.frame_shift):
            raise UserError(
                f"{name} has a frame each {1000 * store.frame_shift:g} ms, {names[0]} "
                f"each {1000 * first.frame_shift:g} ms",
                file=store.folder,
                remedy="give both features the same frame_shift_ms",
            )


def _check_lengths(
    utterance: str, lengths: Sequence[int], options: PasteOptions
) -> None:
    """Refuse an utterance whose streams differ by too many frames."""
    shortest, longest = min(lengths), max(lengths)
    if longest - shortest > options.length_tolerance:
        frames = ", ".join(
            f"{length} frames of {name}"
            for name, length in zip(options.features, lengths, strict=True)
        )
        raise UserError(
            f"has {frames}, more than length_tolerance ({options.length_tolerance}) "
            "apart",
            utterance=utterance,
            remedy="give the features the same snip_edges, or raise length_tolerance",
        )
