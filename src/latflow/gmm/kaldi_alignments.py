"""Stage: alignments that Kaldi made with a system become those of a split.

They are what aligning the split with the imported system writes, and cost nothing;
`ali.*.gz` and `trans.*` lie in the directory of the system, or in one of its own that
`steps/align_si.sh` or `steps/align_fmllr.sh` wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.files import atomic_output
from latflow.gmm.kaldi_jobs import job_files, merged_alignments, merged_transforms
from latflow.gmm.system import GmmSystem
from latflow.hmm.alignment import PhoneDurations
from latflow.kaldi_io import write_int_vectors
from latflow.lang.directory import Lang
from latflow.ledger import Ledger
from latflow.logs import progress

ALIGNMENTS, TRANSFORMS = "ali.{}.gz", "trans.{}"


def import_alignments(
    exp_dir: str | Path,
    system_dir: str | Path,
    lang_dir: str | Path,
    frames_dir: str | Path,
    out_dir: str | Path,
    *,
    max_skipped_fraction: float,
) -> None:
    """Take over the alignments of a split, and the transforms of its speakers.

    Writes `ali.ark`, `ledger.jsonl`, `statistics.json` and, if the system adapts to
    speakers, `trans.ark`: what aligning with the system writes. Alignments of
    utterances that the split has not are passed over and counted.

    Args:
        exp_dir: Kaldi's directory with `ali.*.gz`, of the system itself or made by
            `steps/align_*.sh` with it.
        system_dir: folder of the imported system.
        lang_dir: the lang directory.
        frames_dir: the `FrameStore` of the split.
        out_dir: where the alignments go.
        max_skipped_fraction: share of the split's utterances that may have none.

    Raises:
        UserError: pieces are missing, or not of this model; an utterance has another
            number of frames; an adapted system has no transforms of the split's
            speakers; or too many utterances have no alignment.
    """
    exp, out = Path(exp_dir), Path(out_dir)
    store, lang = FrameStore.load(frames_dir), Lang.load(lang_dir)
    system = GmmSystem.load(system_dir)
    paths = job_files(exp, ALIGNMENTS)
    if not paths:
        raise UserError(
            "no alignments",
            file=exp / ALIGNMENTS.format(1),
            remedy="copy ali.*.gz there, or align with the imported system",
        )
    merged = _Merged(store, system, lang, exp)
    ledger = Ledger(f"import_{out.parent.name}")
    if system.is_speaker_adapted:
        _import_transforms(exp, system, store, ledger, out)

    def items() -> Iterator[tuple[str, np.ndarray]]:
        everything = merged_alignments(paths, system.model.transitions)
        yield from progress(merged.keep(everything), "import alignments", len(store))
        # Before the archive gets its name: a failed stage leaves none.
        for utterance in merged.missing():
            ledger.record(utterance, f"no alignment in {exp}")
        ledger.write(out / "ledger.jsonl")
        ledger.check(len(store), max_skipped_fraction=max_skipped_fraction)

    write_int_vectors(out / "ali.ark", items())
    with atomic_output(out / "statistics.json") as temporary:
        text = json.dumps(merged.statistics(), indent=1)
        temporary.write_text(text + "\n", encoding="utf-8")


def _import_transforms(
    exp: Path, system: GmmSystem, store: FrameStore, ledger: Ledger, out: Path
) -> None:
    """Merge the transforms of the speakers of a split.

    A speaker without one is left as it is, and noted.
    """
    paths = job_files(exp, TRANSFORMS)
    remedy = "import alignments of steps/align_fmllr.sh, or align with the system"
    if not paths:
        raise UserError(
            "the system adapts to speakers, but their transforms are missing",
            file=exp / TRANSFORMS.format(1),
            remedy=remedy,
        )
    transforms = merged_transforms(paths, system.model.gmms.dim)
    missing = sorted(set(store.speaker_names) - transforms.matrices.keys())
    if len(missing) == len(store.speaker_names):
        raise UserError(
            f"none of the split's speakers has a transform, e.g. not {missing[0]}",
            file=paths[0],
            remedy=remedy,
        )
    for speaker in missing:
        ledger.record(speaker, "speaker without a transform", action="noted")
    transforms.save(out / "trans.ark")


class _Merged:
    """The alignments of a split's utterances among all of a directory; counts them."""

    def __init__(
        self, store: FrameStore, system: GmmSystem, lang: Lang, exp: Path
    ) -> None:
        self._store, self._lang, self._exp = store, lang, exp
        self._model = system.model.transitions
        self._durations = PhoneDurations(max(lang.topology.phones))
        self._lengths = dict(
            zip(store.utt_ids, np.diff(store.begin).tolist(), strict=True)
        )
        self._num_kept = self._num_strangers = 0

    def keep(
        self, items: Iterator[tuple[str, np.ndarray]]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield those of the split's utterances, checked."""
        for utterance, ids in items:
            length = self._lengths.pop(utterance, None)
            if length is None:
                self._num_strangers += 1
                continue
            if length != len(ids):
                raise UserError(
                    f"{len(ids)} frames aligned, but the features have {length}",
                    file=self._exp,
                    utterance=utterance,
                    remedy="set features.snip_edges and frame_shift_ms to what the "
                    "system was trained on",
                )
            try:
                self._durations.add(ids, self._model)
            except UserError as error:
                raise UserError(
                    error.what,
                    file=self._exp,
                    utterance=utterance,
                    remedy="take alignments that were made with this model",
                ) from None
            self._num_kept += 1
            yield utterance, ids

    def missing(self) -> list[str]:
        """Utterances of the split that had no alignment, sorted."""
        return sorted(self._lengths)

    def statistics(self) -> dict[str, Any]:
        """What the report tells of alignments."""
        summary = self._durations.summary(self._lang.phones, self._lang.silence_phones)
        return {
            "num_frames": summary["frames"],
            "num_aligned": self._num_kept,
            "num_failed": len(self._lengths),
            "num_strangers": self._num_strangers,
            "imported_from": str(self._exp),
            "frame_shift": self._store.frame_shift,
            **summary,
        }
