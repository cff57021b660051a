"""The stage that describes how features are normalized when they are read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.features.cmvn import GLOBAL, STATISTICS, read_global_statistics
from latflow.features.cmvn_options import (
    CmvnOptions,
    OnlineCmvn,
)
from latflow.features.frames import FeatureStore, NormalizedFrames
from latflow.files import atomic_directory
from latflow.kaldi.io import write_matrices
from latflow.ledger import read_ledger
from latflow.ragged import META


def compute_cmvn(
    features_dir: Path,
    out_dir: Path,
    *,
    cmvn: CmvnOptions,
    training_dir: Path | None = None,
) -> None:
    """Write what normalizes stored features, as `NormalizedFrames` (stage).

    Statistics of more than an utterance are in `cmvn.ark`, a Kaldi archive of double
    matrices [2, D + 1] by speaker, or under the key `global`; with `online`, those of
    the training set. No frame is read for them: features have those of utterances.

    Args:
        features_dir: the `FeatureStore`; its place is kept as seen from `out_dir`.
        out_dir: replaced as a whole, or left as it was on an error.
        training_dir: folder with the `cmvn.ark` of the training set, which `online`
            begins with; None where the features are of that set.

    Raises:
        UserError: there are no features, or no statistics in `training_dir`.
    """
    store = FeatureStore.open(features_dir)
    if not len(store):
        ledger = Path(features_dir, "ledger.jsonl")
        found = read_ledger(ledger) if ledger.is_file() else iter(())
        reasons = (f": {entry.utterance}: {entry.reason}" for entry in found)
        raise UserError(
            f"no utterance has features{next(reasons, '')}",
            file=features_dir,
            remedy="see its ledger",
        )
    place = os.path.relpath(Path(features_dir).resolve(), Path(out_dir).resolve())
    meta = {
        **store.meta,
        "format": NormalizedFrames.FORMAT,
        "features": place,
        "cmvn": cmvn.values(),
    }
    with atomic_directory(out_dir) as folder:
        names, groups = [GLOBAL], np.zeros(len(store), np.int32)
        if cmvn.statistics == "speaker":
            names, groups = store.speaker_names, store.speaker_codes
        if isinstance(cmvn, OnlineCmvn) and training_dir is not None:
            sums = [read_global_statistics(training_dir)]
        else:
            sums = store.summed(groups, len(names))
        if cmvn.statistics != "utterance":
            statistics = sorted(zip(names, sums, strict=True))
            write_matrices(folder / STATISTICS, statistics)
        text = json.dumps(meta, indent=1, sort_keys=True)
        (folder / META).write_text(text + "\n", encoding="utf-8")
