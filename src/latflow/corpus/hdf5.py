"""HDF5 files in RETURNN's layout as a corpus: sequences with labels, without audio."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from lhotse import Recording, SupervisionSegment

from latflow.corpus.assemble import CorpusWriter
from latflow.corpus.audio import Found
from latflow.corpus.hdf5_files import HdfFile, HdfLabels, open_sequences
from latflow.corpus.options import GivenSource, Hdf5Source
from latflow.errors import UserError
from latflow.ledger import Ledger

_NOMINAL_RATE = 16000  # of recordings without audio, whose durations are what counts


def read_hdf_corpus(
    source: Hdf5Source, folder: Path, *, ledger: Ledger, max_skipped_fraction: float
) -> None:
    """Write the manifests of the sequences of HDF5 files.

    Each is a recording without audio, and an utterance of its own speaker, which gives
    the frame shift.

    Args:
        source: see `read_sequences`.
        folder: see `CorpusWriter`.
        ledger: where skipped utterances are noted.
        max_skipped_fraction: largest share of utterances that may be skipped.

    Raises:
        UserError: as of `read_sequences`; or too many sequences have no labels.
    """
    checks = GivenSource(
        speaker="utterance", on_bad_utterance=source.on_bad_utterance, min_duration=0.0
    )
    with CorpusWriter(folder, source.files[0], checks, ledger) as writer:
        jobs = (
            (tag, partial(_found, tag, duration))
            for tag, duration, _ in read_sequences(source)
        )
        writer.add_recordings(jobs, threads=1)
        frame_shift = {"frame_shift": source.frame_shift_ms / 1000}
        utterances = (
            SupervisionSegment(
                tag,
                tag,
                0.0,
                _recording(tag, duration).duration,
                text=text,
                custom=frame_shift,
            )
            for tag, duration, text in read_sequences(source)
        )
        writer.add_utterances(utterances)
        writer.finish(max_skipped_fraction=max_skipped_fraction)


def read_sequences(source: Hdf5Source) -> Iterator[tuple[str, float, str]]:
    """Yield id, duration in seconds and transcript of each sequence, sorted by id.

    The transcript is the sequence of labels, by the names of the classes.

    Args:
        source: the files, and the target that is the transcript.

    Raises:
        UserError: a file is not of this layout or lacks the target, the names of its
            classes are not words, or a sequence comes twice.
    """
    with ExitStack() as stack:
        found = open_sequences(stack, source.files, [source.target])
        (labels,) = found.labels
        if not labels.places:
            raise UserError(f"has no target {labels.name}", file=source.files[0])
        parts = {part.path: part for part, _ in labels.places.values()}
        words = {path: _words(part, labels.name) for path, part in parts.items()}
        for tag, (part, i) in sorted(found.frames.items(), key=lambda item: item[0]):
            duration = part.num_frames(i) * source.frame_shift_ms / 1000
            yield tag, duration, _transcript(labels, tag, words)


def _found(tag: str, duration: float) -> Found:
    """Return a recording of a duration in seconds, without audio."""
    return Found(_recording(tag, duration))


def _recording(tag: str, duration: float) -> Recording:
    """Return a recording of a duration in seconds, without audio."""
    num_samples = round(duration * _NOMINAL_RATE)
    return Recording(
        id=tag,
        sources=[],
        sampling_rate=_NOMINAL_RATE,
        num_samples=num_samples,
        duration=num_samples / _NOMINAL_RATE,
        channel_ids=[0],
    )


def _words(part: HdfFile, target: str) -> list[str]:
    """Return the names of the classes of a target; each must be one word."""
    words = part.class_names(target)
    for number, word in enumerate(words):
        if len(word.split()) != 1:
            raise UserError(
                f"class {number} of target {target} is called {word!r}, which is not "
                "one word",
                file=part.path,
                remedy=f"give it another name in targets/labels/{target}",
            )
    return words


def _transcript(labels: HdfLabels, tag: str, words: Mapping[Path, list[str]]) -> str:
    """Return the labels of a sequence as words; none where it has no labels."""
    numbers = labels.of(tag)
    if numbers is None:
        return ""
    path = labels.places[tag][0].path
    known = words[path]
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(known):
        raise UserError(
            f"target {labels.name} has labels outside of 0..{len(known) - 1}",
            file=path,
            utterance=tag,
            remedy=f"name all classes in targets/labels/{labels.name}",
        )
    return " ".join([known[label] for label in numbers.tolist()])
