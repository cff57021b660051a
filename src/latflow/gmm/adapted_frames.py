"""Stage `adapt_frames`: the features of a GMM system, stored for networks.

A network on features that are adapted to each speaker starts where the GMM system
stands: LDA and MLLT have made the features plain, fMLLR has made the speakers alike.
For the training set transforms come from its alignments, for other sets from the first
passes of their decoding, so that nothing of their transcripts is used.

Public: `adapt_frames`.

Source: Kaldi `steps/nnet/make_fmllr_feats.sh`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.files import atomic_directory
from latflow.gmm.source import FrameSource
from latflow.gmm.speaker_transforms import SpeakerTransforms
from latflow.gmm.system import GmmSystem
from latflow.logs import progress
from latflow.parallel import map_in_order


def adapt_frames(
    frames_dir: str | Path,
    model_dir: str | Path,
    transforms: str | Path | None,
    out_dir: str | Path,
    *,
    threads: int,
) -> None:
    """Write the features of a system as a `FrameStore`.

    Args:
        frames_dir: the `FrameStore` that the system starts from.
        model_dir: folder of the system.
        transforms: its `trans.ark` for the speakers of this set; None where the system
            does not adapt.
        out_dir: the new store, replaced as a whole.
        threads: utterances transformed at a time.

    Raises:
        UserError: the system adapts but no transforms are given, or dimensions differ.
    """
    store, system = FrameStore.load(frames_dir), GmmSystem.load(model_dir)
    if system.is_speaker_adapted and transforms is None:
        raise UserError(
            "the system adapts to speakers, but no transforms are given",
            file=model_dir,
            remedy="name the trans.ark of this set",
        )
    source = FrameSource(
        store,
        system.transform,
        np.arange(len(store)),
        cache_bytes=0,
        speaker_transforms=SpeakerTransforms.load(transforms) if transforms else None,
    )
    system.model.gmms.check_dim(source.dim)
    with (
        atomic_directory(out_dir) as folder,
        FrameWriter(
            folder,
            dim=source.dim,
            frame_shift=store.frame_shift,
            meta={"system": Path(model_dir).name},
        ) as writer,
    ):
        frames = map_in_order(source.frames, range(len(store)), threads)
        for i, values in enumerate(progress(frames, "adapt frames", total=len(store))):
            writer.append(store.utt_ids[i], store.speakers[i], store.texts[i], values)
