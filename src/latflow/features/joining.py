"""The stage that joins the features that several jobs computed, each of a part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from latflow.corpus.json_lines import count_cuts
from latflow.errors import UserError
from latflow.features.frames import FeatureStore, FrameWriter
from latflow.files import atomic_directory
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parts import in_order_of_ids


def join_features(
    parts: Sequence[Path], cuts: Path, out_dir: Path, *, max_skipped_fraction: float
) -> None:
    """Join the features of all parts of a split (stage).

    The result has the bytes that a single job would have written.

    Args:
        parts: folders that `extract_features` wrote, each of a part of the split.
        cuts: the split's `cuts.jsonl.gz`.
        out_dir: for what `extract_features` writes of a whole split; replaced as a
            whole, or left as it was on an error.
        max_skipped_fraction: share of utterances of the split that may be skipped.

    Raises:
        UserError: features or ledger of a part are missing or damaged, parts are not of
            these cuts, too many utterances had to be skipped, or the disk is full.
    """
    ledger = Ledger.of_parts("extract_features", [p / "ledger.jsonl" for p in parts])
    stores = [FeatureStore.open(part) for part in parts]
    total = sum(map(len, stores))
    num_cuts, found = count_cuts(cuts), total + ledger.num_skipped()
    if found != num_cuts:
        what = f"parts of the features have {found} utterances, not {num_cuts}"
        raise UserError(what, remedy="extract the features again")
    ledger.check(num_cuts, max_skipped_fraction=max_skipped_fraction)
    first = stores[0]
    with (
        atomic_directory(out_dir) as folder,
        FrameWriter(
            folder,
            kind=FeatureStore,
            dim=first.dim,
            frame_shift=first.frame_shift,
            meta=first.meta,
        ) as writer,
    ):
        rows = in_order_of_ids(map(_utterances, stores))
        for utterance, (store, i) in progress(rows, "join features", total=total):
            speaker, text = store.speakers[i], store.texts[i]
            writer.append(utterance, speaker, text, store.frames(i))
        ledger.write(folder / "ledger.jsonl")


def _utterances(store: FeatureStore) -> Iterator[tuple[str, tuple[FeatureStore, int]]]:
    """Yield each utterance of a part with where it is."""
    for i, utterance in enumerate(store.utt_ids):
        yield utterance, (store, i)
