"""A CutSet that Lhotse wrote, as recordings and utterances.

Each cut is an utterance, named by the cut's id, with the transcript of its supervision.
A plain cut, of channels of a file, stays what it is: a part of its recording. All
others are read once and written as their own files, `audio/<id>.wav`, float samples of
the first channel: mixed and padded cuts (`cut.mix`, `cut.append`, `cut.pad`), and cuts
with effects, which Lhotse applies when it loads (speed, tempo, volume, reverberation,
resampling).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from lhotse import MonoCut, MultiCut, Recording, SupervisionSegment
from lhotse.audio import AudioSource
from lhotse.cut import Cut
from lhotse.serialization import deserialize_item
from lhotse.utils import fastcopy

from latflow.corpus.audio import BadAudio, refuse_others
from latflow.corpus.audio_folder import AudioFolder
from latflow.corpus.manifest_fields import audio_types, cut_fields
from latflow.corpus.manifests import refuse_damaged
from latflow.errors import UserError
from latflow.files import require_file
from latflow.parallel import in_order
from latflow.text_files import read_json_lines

_REMEDY = "write it with Lhotse: cuts.to_file('cuts.jsonl.gz')"


@dataclass(frozen=True)
class CutUtterance:
    """An utterance of a CutSet.

    Attributes:
        id: of the cut.
        recording: that it is a part of, or all of; None where there is a fault.
        supervision: its place in the recording, transcript and speaker.
        fault: why it cannot be used, and the remedy; None where it can.
    """

    id: str
    recording: Recording | None = None
    supervision: SupervisionSegment | None = None
    fault: BadAudio | None = None


def read_cut_set(
    path: str | Path, audio: AudioFolder, *, pool: Executor, ahead: int
) -> Iterator[CutUtterance]:
    """Yield the utterances of a CutSet, in its order.

    Args:
        path: `.jsonl` or `.jsonl.gz`.
        audio: where audio is written to.
        pool: threads that hear cuts.
        ahead: cuts that may wait for their turn.

    Raises:
        UserError: the file is missing or garbled.
    """

    def convert(one: tuple[Cut, set[str]]) -> CutUtterance:
        cut, types = one
        try:
            if fault := _refused(types, allow_commands=audio.allow_commands):
                raise fault
            return _utterance(cut, audio)
        except BadAudio as fault:
            return CutUtterance(cut.id, fault=fault)

    yield from in_order(pool, convert, _cuts(path), ahead=ahead)


def supervisions_of(
    path: str | Path, *, allow_commands: bool
) -> Iterator[tuple[Cut, SupervisionSegment | None, BadAudio | None]]:
    """Yield each cut with its supervision, if it has one; no audio is read.

    The third is why the cut cannot be read, if it is because of its audio's type.

    Raises:
        UserError: the file is missing or garbled.
    """
    for cut, types in _cuts(path):
        spoken = [one for one in cut.supervisions if (one.text or "").strip()]
        fault = _refused(types, allow_commands=allow_commands)
        yield cut, spoken[0] if spoken else None, fault


def _refused(types: set[str], *, allow_commands: bool) -> BadAudio | None:
    """Return why the audio of a cut is not read; None where it is."""
    try:
        for kind in sorted(types):
            refuse_others(kind, allow_commands=allow_commands)
    except BadAudio as fault:
        return fault
    return None


def _cuts(path: str | Path) -> Iterator[tuple[Cut, set[str]]]:
    """Read the cuts, each with the types of its sources of audio."""
    require_file(path)

    def make(values: dict[str, Any]) -> tuple[Cut, set[str]]:
        kind = values.get("type")
        fields = cut_fields(values)
        types = audio_types(fields)
        cut = deserialize_item(fields)
        if not isinstance(cut, Cut):
            raise TypeError(f"type {kind!r}")
        return cut, types

    return read_json_lines(path, make, "a Lhotse cut", _REMEDY)


def _utterance(cut: Cut, audio: AudioFolder) -> CutUtterance:
    """Return the utterance of a cut.

    Raises:
        BadAudio: it has several transcripts, no audio, or audio that cannot be read.
    """
    spoken = [one for one in cut.supervisions if (one.text or "").strip()]
    if len(spoken) > 1:
        raise BadAudio(
            f"has {len(spoken)} supervisions with a transcript",
            "cut it by them: cuts.trim_to_supervisions()",
        )
    if not cut.has_recording:
        raise BadAudio("has no audio", "attach recordings to the cuts")
    own = cut.recording if isinstance(cut, MonoCut | MultiCut) else None
    if isinstance(cut, MonoCut | MultiCut) and own is not None and not own.transforms:
        recording, start = own, cut.start
        channel = cut.channel if isinstance(cut.channel, int) else min(cut.channel)
    else:
        recording, start, channel = _heard(cut, audio), 0.0, 0
    supervision = next(iter(spoken or cut.supervisions), None)
    supervision = supervision or SupervisionSegment(
        cut.id, recording.id, 0.0, cut.duration, text=""
    )
    supervision = fastcopy(
        supervision,
        id=cut.id,
        recording_id=recording.id,
        start=start,
        duration=cut.duration,
        channel=channel,
        alignment=None,  # of the times before
    )
    return CutUtterance(cut.id, recording, supervision)


def _heard(cut: Cut, audio: AudioFolder) -> Recording:
    """Load a cut, write its audio, and return it as a recording.

    Raises:
        BadAudio: it cannot be read.
    """
    path = audio.place(cut.id, ".wav")
    try:
        with refuse_damaged(cut.id):
            samples = cut.load_audio()
    except UserError as error:
        raise BadAudio(error.what, "restore its files") from error
    if samples is None or not samples.size:
        raise BadAudio("has no audio", "attach recordings to the cuts")
    rate = int(cut.sampling_rate)
    wave = np.asarray(samples, np.float32)[0]
    soundfile.write(path, wave, rate, subtype="FLOAT")
    return Recording(
        id=cut.id,
        sources=[AudioSource("file", [0], audio.final_path(path))],
        sampling_rate=rate,
        num_samples=len(wave),
        duration=len(wave) / rate,
    )
