"""Read what a form asks for: OpenAI's fields of transcriptions, and a few others."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from starlette.datastructures import FormData

from latflow.decode.options import SegmentationOptions
from latflow.serving.realtime_settings import turns_of
from latflow.serving.scheduler import Scheduler
from latflow.serving.service import RefusedError, Service

_Format = Literal["json", "text", "srt", "vtt", "verbose_json"]
_STREAMED = ("json", "text")
_GRANULARITIES = ("segment", "word")
_INCLUDED = ("logprobs",)
_BOOLEANS = {"": False, "false": False, "0": False, "true": True, "1": True}
_PHRASES = ("phrases", "hotwords", "keywords")  # as other servers and OpenAI say
_LISTS = (*_PHRASES, "new_words", "words_like", "phrase_list")
_FIELDS = {
    *("file", "model", "language", "response_format", "timestamp_granularities"),
    *("stream", "include", "known_speaker_names", "known_speaker_references"),
    *("prompt", "grammar", "chunking_strategy", *_LISTS),
    # Of OpenAI's; a search without sampling and one language have no use for them.
    *("temperature", "languages"),
}


@dataclass(frozen=True)
class Wanted:
    """What a client asks for.

    Attributes:
        form: of the answer.
        granularities: whose times it gives.
        language: that the client names.
        is_streamed: whether segments are sent as they are recognized.
        has_logprobs: whether words are sent with their confidences.
        model: that recognizes.
        options: of the session, see `SessionOptions`.
        notes: warnings: of fields that have no effect.
    """

    form: _Format
    granularities: frozenset[str]
    language: str
    is_streamed: bool
    has_logprobs: bool
    model: Scheduler
    options: Mapping[str, Any]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, form: FormData, service: Service) -> Wanted:
        """Return what a form asks for.

        Raises:
            RefusedError: something in it cannot be.
        """
        name = _chosen(form, "response_format", get_args(_Format), "json")
        asked = _several(form, "timestamp_granularities", _GRANULARITIES)
        if asked and name != "verbose_json":
            text = "timestamp_granularities needs response_format verbose_json"
            raise RefusedError(text, param="timestamp_granularities")
        is_streamed = _BOOLEANS[_chosen(form, "stream", tuple(_BOOLEANS), "")]
        if is_streamed and name not in _STREAMED:
            text = f"stream needs response_format {' or '.join(_STREAMED)}"
            raise RefusedError(text, param="stream")
        included = _several(form, "include", _INCLUDED)
        if included and name != "json" and not is_streamed:
            raise RefusedError("include needs response_format json", param="include")
        for key in ("known_speaker_names", "known_speaker_references"):
            if _values(form, key):
                raise RefusedError(f"{key}: speakers are not distinguished", param=key)
        names = {name.partition("[")[0] for name, _ in form.multi_items()}
        idle = ", ".join(sorted(names - _FIELDS))
        return cls(
            cast("_Format", name),
            frozenset(asked or {"segment"}),
            str(form.get("language") or ""),
            is_streamed,
            bool(included),
            service.scheduler_of(str(form.get("model") or "")),
            {**_brought(form), **_chunking(form, service)},
            (f"fields without effect: {idle[:200]}",) if idle else (),
        )


def _brought(form: FormData) -> dict[str, Any]:
    """Return the words, phrases and grammar of a form."""
    lists = {
        name: [
            item.strip()
            for value in _values(form, name)
            for item in _items(value, r"[,\n]" if name == "hotwords" else "\n")
            if item.strip()
        ]
        for name in _LISTS
    }
    phrases = [p for name in _PHRASES for p in lists.pop(name)]
    texts = {name: str(form.get(name) or "") for name in ("prompt", "grammar")}
    given = {"phrases": phrases, **lists, **texts}
    return {name: value for name, value in given.items() if value}


def _items(text: str, separator: str) -> list[str]:
    """Return the items of one field of a list: a list in JSON, else what is separated.

    Other servers take `hotwords` with commas between them.
    """
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        items = None
    if isinstance(items, list) and all(isinstance(item, str) for item in items):
        return items
    return re.split(separator, text)


def _chunking(form: FormData, service: Service) -> dict[str, Any]:
    """Return how speech is found, where a form says so: `auto` is the server's way."""
    key = "chunking_strategy"
    given: Any = str(form.get(key) or "auto")
    fields = {
        name[len(key) + 1 : -1]: str(value)
        for name, value in form.multi_items()
        if name.startswith(f"{key}[") and name.endswith("]")
    }
    if not fields and given == "auto":
        return {}
    try:  # as JSON, or in their own fields, whose values are texts
        given = {k: _number(v) for k, v in fields.items()} or json.loads(given)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise RefusedError(f"{key} must be 'auto' or an object", param=key)
    found, _ = turns_of(given, service.session.vad or SegmentationOptions(), key)
    return {"vad": found}


def _number(text: str) -> float | str:
    """Return the number that a text is, else the text."""
    try:
        return float(text)
    except ValueError:
        return text


def _values(form: FormData, key: str) -> list[str]:
    """Return the values of a list, whose name may end in `[]`."""
    return [str(value) for name in (key, f"{key}[]") for value in form.getlist(name)]


def _several(form: FormData, key: str, known: tuple[str, ...]) -> set[str]:
    """Return the values of a list that has only some."""
    asked = set(_values(form, key))
    if unknown := asked.difference(known):
        text = f"{key}: {min(unknown)!r} is not one of {', '.join(known)}"
        raise RefusedError(text, param=key)
    return asked


def _chosen(form: FormData, key: str, known: tuple[str, ...], default: str) -> str:
    """Return the value of a field that has only some."""
    value = str(form.get(key) or default)
    value = value.lower() if key == "stream" else value
    if value not in known:
        names = ", ".join(filter(None, known))
        raise RefusedError(f"{key} {value!r} is not one of {names}", param=key)
    return value
