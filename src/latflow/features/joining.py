"""The stage that stores the features that several jobs computed, each of a part.

Features go through the writer of `extract_features` in the order of the whole split, so
that storage and manifest have the bytes that a single job would have written.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from lhotse import MonoCut

from latflow.corpus.json_lines import count_cuts
from latflow.errors import UserError
from latflow.features.extract import prepare
from latflow.features.frames import FrameStore
from latflow.features.options import Extraction
from latflow.features.storage import Outcome, store_features
from latflow.files import atomic_directory
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parts import in_order_of_ids


def join_features(
    parts: Sequence[Path],
    cuts: Path,
    out_dir: Path,
    *,
    options: Extraction,
    max_skipped_fraction: float,
) -> None:
    """Store the features of all parts of a split (stage).

    Args:
        parts: folders that `extract_features` wrote, each of a part of the split.
        cuts: the split's `cuts.jsonl.gz`, sorted by id.
        out_dir: for what `extract_features` writes of a whole split; replaced as a
            whole, or left as it was on an error.
        options: front end, sample rate and storage.
        max_skipped_fraction: share of utterances of the split that may be skipped.

    Raises:
        UserError: features or ledger of a part are missing or damaged, too many
            utterances had to be skipped, or the disk is full.
    """
    source, extractor = prepare(cuts, options)
    ledger = Ledger.of_parts("extract_features", [p / "ledger.jsonl" for p in parts])
    ledger.check(count_cuts(cuts), max_skipped_fraction=max_skipped_fraction)
    stores = [FrameStore.load(part) for part in parts]
    computed = in_order_of_ids(map(_features, stores))
    skipped = {entry.utterance for entry in ledger.entries}
    kept = (cut for cut in source if cut.id not in skipped)
    outcomes = itertools.starmap(_outcome, itertools.zip_longest(kept, computed))
    with atomic_directory(out_dir) as folder:
        bar = progress(outcomes, "store features", total=sum(map(len, stores)))
        store_features(bar, extractor, options, folder, out_dir, ledger)
        ledger.write(folder / "ledger.jsonl")


def _features(store: FrameStore) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (utterance, features) of a part."""
    for i, utterance in enumerate(store.utt_ids):
        yield utterance, store.frames(i)


def _outcome(cut: MonoCut | None, found: tuple[str, np.ndarray] | None) -> Outcome:
    """Return the next cut with the next features that the parts have.

    Raises:
        UserError: these are not of that cut.
    """
    if cut is None or found is None or cut.id != found[0]:
        expected = None if cut is None else cut.id
        what = f"parts of the features have {found and found[0]} next, not {expected}"
        raise UserError(what, remedy="extract the features again")
    return Outcome(cut, np.array(found[1]))  # lilcom wants what may be written to
