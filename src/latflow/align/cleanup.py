"""A training set cleaned: parts of utterances that are what their transcripts say.

A set that was decoded against its own transcripts (`latflow.decode.biased`) is cut into
the parts in which transcript and recognized words agree (`latflow.align.agreement`). An
utterance that agrees stays unchanged; parts are called `<utterance>-<number>`.

Memory is that of the ids, and of one utterance.

Source: Kaldi `steps/cleanup/clean_and_segment_data.sh`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np
from lhotse import MonoCut
from lhotse.utils import fastcopy

from latflow.align.agreement import Line, Segment, agreeing_segments, compare
from latflow.corpus.ctm import TimedWord, read_ctm
from latflow.corpus.derived_options import CleanedSetOptions
from latflow.corpus.json_lines import ManifestWriter, Spool, count_cuts
from latflow.corpus.manifests import read_cuts, read_recordings, supervision_of, text_of
from latflow.errors import UserError
from latflow.files import atomic_directory, write_json
from latflow.lang.directory import Lang
from latflow.ledger import Ledger
from latflow.logs import progress

log = logging.getLogger(__name__)

SUMMARY = "cleaned.json"
# Why speech is dropped; what is meant is in docs/suspects.md.
_REASONS = ("words differ", "too short", "unsure", "silence", "nothing recognized")
_KEPT = -1
_FRAME = 0.01  # seconds: times of parts are multiples of it


def clean_corpus(
    cuts: Path,
    recordings: Path,
    hypotheses: Path,
    lang_dir: Path,
    out_dir: Path,
    *,
    options: CleanedSetOptions,
) -> None:
    """Write a corpus folder with the parts of a set that are what their text says.

    No audio is written. Beside the manifests are `cleaned.json`, the seconds kept and
    dropped, and the ledger: utterances dropped (`excluded`) and cut (`truncated`), with
    the reason for most of what is gone.

    Args:
        cuts: manifest of the set.
        recordings: likewise.
        hypotheses: `hyp.ctm` of its biased decoding.
        lang_dir: the lang directory of the system that decoded.
        out_dir: corpus folder to write, replaced as a whole.
        options: bounds.

    Raises:
        UserError: files are missing or do not fit together; nothing is left; a part
            would have the id of another utterance.
    """
    lang = Lang.load(lang_dir)
    noises = lang.word_ids.keys() - {*lang.speech_words, lang.oov_word}
    ledger, totals = Ledger("clean_corpus"), _Totals()
    found = _with_hypotheses(cuts, hypotheses)
    with (
        atomic_directory(out_dir) as folder,
        Spool(folder, MonoCut.from_dict) as parts,
    ):
        for cut, recognized in progress(found, "clean", count_cuts(cuts)):
            lines = compare(
                text_of(cut).split(),
                recognized,
                cut.duration,
                is_known=lang.is_known,
                unknown_word=lang.oov_word,
                noises=noises,
            )
            kept, dropped = agreeing_segments(lines, options)
            lost = _lost(lines, kept, dropped, is_recognized=bool(recognized))
            made = list(_parts(cut, kept, lang.oov_word))
            parts.extend(made, file=cuts)
            totals.add(cut, made, lost)
            _note(ledger, cut, made, lost)
        if not len(parts):
            raise UserError(
                "no utterance agrees with its transcript",
                file=hypotheses,
                remedy="look at the words of this file, and at corpus.cleaned",
            )
        _write(folder, parts, recordings)
        write_json(folder / SUMMARY, totals.values())
        ledger.write(folder / "ledger.jsonl")
    log.info("%.2f of %.2f hours are kept", totals.kept / 3600, totals.seconds / 3600)


def _with_hypotheses(
    cuts: Path, hypotheses: Path
) -> Iterator[tuple[MonoCut, list[TimedWord]]]:
    """Yield each utterance with the words that were recognized in it."""
    groups = groupby(read_ctm(hypotheses), key=attrgetter("utterance"))
    name, words = next(groups, ("", iter(())))
    for cut in read_cuts(cuts):
        if cut.id != name:
            yield cut, []
            continue
        yield cut, list(words)
        name, words = next(groups, ("", iter(())))
    if name:
        raise UserError(
            "words of an utterance that is not in the set, or not in its place",
            file=hypotheses,
            utterance=name,
            remedy="decode the set again",
        )


def _parts(
    cut: MonoCut, kept: Sequence[Segment], unknown_word: str
) -> Iterator[MonoCut]:
    """Yield the parts of an utterance; the utterance itself if all of it is kept."""
    reference = text_of(cut).split()
    if len(kept) == 1 and kept[0].is_whole and kept[0].words(unknown_word) == reference:
        yield cut
        return
    for number, segment in enumerate(kept, start=1):
        name = f"{cut.id}-{number:0{len(str(len(kept)))}}"
        start = _rounded(segment.begin)
        end = min(_rounded(segment.finish), cut.duration)
        supervision = fastcopy(
            supervision_of(cut),
            id=name,
            start=0.0,
            duration=round(end - start, 8),
            text=" ".join(segment.words(unknown_word)),
            alignment=None,
        )
        yield fastcopy(
            cut,
            id=name,
            start=round(cut.start + start, 8),
            duration=supervision.duration,
            supervisions=[supervision],
        )


def _rounded(seconds: float) -> float:
    """Return the nearest multiple of a frame."""
    return round(seconds / _FRAME) * _FRAME


def _lost(
    lines: Sequence[Line],
    kept: Sequence[Segment],
    dropped: Sequence[tuple[Segment, str]],
    *,
    is_recognized: bool,
) -> Counter[str]:
    """Return the seconds of an utterance that are in no part, by reason."""
    reason = np.zeros(max(1, round(lines[-1].end / _FRAME)), np.int8)

    def mark(start: float, end: float, number: int) -> None:
        reason[round(start / _FRAME) : round(end / _FRAME)] = number

    for line in lines:
        kind = "silence" if line.kind == "silence" else "unsure"
        name = "words differ" if line.is_unsure else kind
        mark(line.start, line.end, _REASONS.index(name))
    if not is_recognized:
        mark(0.0, lines[-1].end, _REASONS.index("nothing recognized"))
    for segment, why in dropped:
        mark(segment.begin, segment.finish, _REASONS.index(why))
    for segment in kept:
        mark(segment.begin, segment.finish, _KEPT)
    counts = np.bincount(reason + 1, minlength=len(_REASONS) + 1)[1:]
    return Counter(
        {
            name: int(count) * _FRAME
            for name, count in zip(_REASONS, counts, strict=True)
            if count
        }
    )


def _note(
    ledger: Ledger, cut: MonoCut, made: Sequence[MonoCut], lost: Counter[str]
) -> None:
    """Note an utterance that is dropped, cut, or has lost words."""
    if list(made) == [cut]:
        return
    main = max(lost, key=lost.__getitem__, default="words differ")
    if not made:
        ledger.record(cut.id, main, action="excluded")
        return
    seconds = sum(part.duration for part in made)
    message = f"{main}: kept {seconds:.2f} of {cut.duration:.2f} s, parts: {len(made)}"
    ledger.record(cut.id, message, action="truncated")


@dataclass
class _Totals:
    """What is kept and dropped of a set.

    Attributes:
        utterances: of the set.
        seconds: of them.
        whole: utterances that stay unchanged.
        cut: utterances of which parts stay.
        parts: all that is kept, whole or not.
        kept: seconds of it.
        dropped: seconds by reason.
    """

    utterances: int = 0
    seconds: float = 0.0
    whole: int = 0
    cut: int = 0
    parts: int = 0
    kept: float = 0.0

    def __post_init__(self) -> None:
        self.dropped: Counter[str] = Counter()

    def add(self, cut: MonoCut, made: Sequence[MonoCut], lost: Counter[str]) -> None:
        """Count an utterance."""
        is_whole = list(made) == [cut]
        self.utterances += 1
        self.seconds += cut.duration
        self.whole += is_whole
        self.cut += bool(made) and not is_whole
        self.parts += len(made)
        self.kept += sum(part.duration for part in made)
        self.dropped.update(lost)

    def values(self) -> dict[str, object]:
        """Return the numbers by name, seconds to 10 ms."""
        return {
            "utterances": self.utterances,
            "seconds": round(self.seconds, 2),
            "whole_utterances": self.whole,
            "cut_utterances": self.cut,
            "parts": self.parts,
            "kept_seconds": round(self.kept, 2),
            "dropped_seconds": {
                name: round(self.dropped[name], 2) for name in _REASONS
            },
        }


def _write(folder: Path, parts: Spool[MonoCut], recordings: Path) -> None:
    """Write the manifests of the parts, and of the recordings that they are of."""
    used: set[str] = set()
    with (
        ManifestWriter(folder / "cuts.jsonl.gz") as cuts,
        ManifestWriter(folder / "supervisions.jsonl.gz") as supervisions,
    ):
        for part in parts:
            cuts.write(part)
            supervision = supervision_of(part)
            supervisions.write(fastcopy(supervision, start=part.start))
            used.add(supervision.recording_id)
    with ManifestWriter(folder / "recordings.jsonl.gz") as writer:
        for recording in read_recordings(recordings):
            if recording.id in used:
                writer.write(recording)
