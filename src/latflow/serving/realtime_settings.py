"""What clients of OpenAI's realtime protocol set: by its newer and its older names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

from pydantic import Field, NonNegativeFloat

from latflow.decode.options import SegmentationOptions
from latflow.errors import UserError
from latflow.options import Options, read_options
from latflow.serving.service import RefusedError

Form = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
# Names of the older protocol.
_OLD_FORMS: Mapping[str, Form] = {
    "pcm16": "audio/pcm",
    "g711_ulaw": "audio/pcmu",
    "g711_alaw": "audio/pcma",
}
CODINGS: Mapping[Form, str] = {
    "audio/pcm": "PCM_16",
    "audio/pcmu": "ULAW",
    "audio/pcma": "ALAW",
}
_PCM_RATE, TELEPHONE_RATE = 24000, 8000
_LONGEST = 1e12  # milliseconds; JSON's whole numbers may be beyond all floats
_LOGPROBS = "item.input_audio_transcription.logprobs"


class _ServerVad(Options):
    """What a client may set of `server_vad`; the ranges of `SegmentationOptions`."""

    threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    silence_duration_ms: Annotated[float, Field(ge=50)] | None = None
    prefix_padding_ms: NonNegativeFloat | None = None


@dataclass(frozen=True)
class Settings:
    """What a client has set.

    Attributes:
        model: that it names.
        form: of the samples.
        language: that it names; is sent back.
        prompt: text like the speech, see `LanguageOptions`.
        keywords: phrases that are favoured.
        turns: how turns are found; None where the client commits them.
        detection: what it has set of that, as it is sent back.
        has_logprobs: whether words are sent with their confidences.
    """

    model: str
    form: Form = "audio/pcm"
    language: str = ""
    prompt: str = ""
    keywords: tuple[str, ...] = ()
    turns: SegmentationOptions | None = None
    detection: Mapping[str, Any] | None = None
    has_logprobs: bool = False

    @property
    def rate(self) -> int:
        """Samples a second."""
        return _PCM_RATE if self.form == "audio/pcm" else TELEPHONE_RATE

    def updated(
        self, session: Mapping[str, Any], usual: SegmentationOptions
    ) -> Settings:
        """Return the settings after an update, of the newer or the older protocol.

        Args:
            session: that of the event.
            usual: the server's own detection of turns.

        Raises:
            RefusedError: something in it cannot be.
        """
        kind = session.get("type", "transcription")
        if kind != "transcription":
            raise wrong("session.type", kind, ("transcription",))
        given, changes = _input_of(session), {}
        if given.get("format") is not None:
            changes["form"] = _form_of(given["format"])
        if "transcription" in given:
            param = "session.audio.input.transcription"
            chosen = mapping(given["transcription"], param)
            changes["model"] = _text(chosen, "model", param) or self.model
            changes["language"] = _text(chosen, "language", param)
            changes["prompt"] = _text(chosen, "prompt", param)
            words = _list(chosen.get("keywords"), f"{param}.keywords")
            changes["keywords"] = tuple(map(str, words))
        if "turn_detection" in given:
            found = turns_of(given["turn_detection"], usual)
            changes["turns"], changes["detection"] = found
        if "include" in session:
            changes["has_logprobs"] = _LOGPROBS in _list(
                session["include"], "session.include"
            )
        return replace(self, **changes)

    def values(self) -> dict[str, Any]:
        """Return them in the form of the protocol."""
        form: dict[str, Any] = {"type": self.form}
        if self.form == "audio/pcm":
            form["rate"] = _PCM_RATE
        audio_input = {
            "format": form,
            "transcription": self._transcription,
            "turn_detection": self.detection,
            "noise_reduction": None,
        }
        return {
            "type": "transcription",
            "object": "realtime.transcription_session",
            "audio": {"input": audio_input},
            "include": [_LOGPROBS] if self.has_logprobs else [],
        }

    def old_values(self) -> dict[str, Any]:
        """Return them in the form of the older protocol."""
        (name,) = (old for old, form in _OLD_FORMS.items() if form == self.form)
        return {
            "object": "realtime.transcription_session",
            "input_audio_format": name,
            "input_audio_transcription": self._transcription,
            "turn_detection": self.detection,
            "modalities": ["text"],
        }

    @property
    def _transcription(self) -> dict[str, Any]:
        """What transcribes."""
        given = {"prompt": self.prompt, "keywords": list(self.keywords)}
        given = {name: value for name, value in given.items() if value}
        return {"model": self.model, "language": self.language, **given}


def wrong(param: str, value: object, known: Sequence[str]) -> RefusedError:
    """Return the refusal of an unknown value."""
    names = ", ".join(map(repr, known))
    text = f"{param}: {str(value)[:100]!r} is not supported; supported: {names}"
    return RefusedError(text, "options", param=param)


def mapping(value: object, param: str) -> Mapping[str, Any]:
    """Return an object of JSON, an empty one for null.

    Raises:
        RefusedError: it is invalid.
    """
    if value is not None and not isinstance(value, dict):
        raise RefusedError(f"{param} must be an object", "options", param=param)
    return value or {}


def _text(given: Mapping[str, Any], key: str, param: str) -> str:
    """Return a text of an object, an empty one for null.

    Raises:
        RefusedError: it is invalid.
    """
    value, param = given.get(key), f"{param}.{key}"
    if value is not None and not isinstance(value, str):
        raise RefusedError(f"{param} must be a string", "options", param=param)
    return value or ""


def _list(value: object, param: str) -> list[Any]:
    """Return a list, an empty one for null.

    Raises:
        RefusedError: it is invalid.
    """
    if value is not None and not isinstance(value, list):
        raise RefusedError(f"{param} must be a list", "options", param=param)
    return value or []


def _input_of(session: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the audio, by the names of the newer protocol."""
    audio = mapping(session.get("audio"), "session.audio")
    found = dict(mapping(audio.get("input"), "session.audio.input"))
    old = {
        "input_audio_format": "format",
        "input_audio_transcription": "transcription",
        "turn_detection": "turn_detection",
    }
    return found | {new: session[key] for key, new in old.items() if key in session}


def _form_of(value: object) -> Form:
    """Return the form of samples that a client names.

    Raises:
        RefusedError: it is not supported.
    """
    param = "session.audio.input.format"
    if isinstance(value, str):
        if value not in _OLD_FORMS:
            raise wrong("session.input_audio_format", value, tuple(_OLD_FORMS))
        return _OLD_FORMS[value]
    given = mapping(value, param)
    kind = given.get("type", "audio/pcm")
    known = tuple(CODINGS)
    if kind not in known:  # a list or an object has no hash
        raise wrong(f"{param}.type", kind, known)
    if kind == "audio/pcm" and given.get("rate", _PCM_RATE) != _PCM_RATE:
        raise wrong(f"{param}.rate", given["rate"], (str(_PCM_RATE),))
    return cast("Form", kind)


def turns_of(
    value: object,
    usual: SegmentationOptions,
    param: str = "session.audio.input.turn_detection",
) -> tuple[SegmentationOptions | None, Mapping[str, Any] | None]:
    """Return how turns are found, and as it is sent back.

    Raises:
        RefusedError: the type is unknown, or a value is out of range.
    """
    if value is None:
        return None, None
    given = mapping(value, param)
    kind = given.get("type", "server_vad")
    if kind not in ("server_vad", "semantic_vad"):
        raise wrong(f"{param}.type", kind, ("server_vad", "semantic_vad"))
    if kind == "semantic_vad":
        return usual, {"type": kind}
    numbers = {
        key: min(value, _LONGEST) if isinstance(value, int | float) else value
        for key, value in given.items()
        if key in _ServerVad.model_fields
    }
    try:
        own = read_options(_ServerVad, numbers, param)
    except UserError as error:
        what = error.what.removeprefix("configuration ")
        raise RefusedError(what, "options", param=what.partition(":")[0]) from None
    values = usual.values()
    if own.threshold is not None:
        values["threshold"] = own.threshold
    for name, milliseconds in (
        ("min_silence", own.silence_duration_ms),
        ("padding", own.prefix_padding_ms),
    ):
        if milliseconds is not None:
            values[name] = milliseconds / 1000
    most = min(values["min_silence"], usual.max_segment / 4)
    values["padding"] = min(values["padding"], most)
    found = read_options(SegmentationOptions, values)
    return found, {
        "type": kind,
        "threshold": found.threshold,
        "prefix_padding_ms": round(1000 * found.padding),
        "silence_duration_ms": round(1000 * found.min_silence),
    }
