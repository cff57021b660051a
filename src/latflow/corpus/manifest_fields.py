"""Fields of Lhotse's manifests as others write them: read right, or refused.

Lhotse takes what JSON holds as it is; a number instead of an id, or a time that is not
a number, comes to light much later. What has a plain meaning is read: a whole number as
an id, a name or a transcript is its digits, a number in quotes is the number.

These functions change the dictionary of a line in place, and return it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

Values = dict[str, Any]
_DECIMAL = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)
_TOLERANCE_S = 0.025  # Lhotse's, between a duration and the number of samples
_NAMES = ("speaker", "language", "gender")


def recording_fields(values: Values) -> Values:
    """Read the fields of a recording.

    Raises:
        ValueError: one is missing, or nothing that it can be.
    """
    values["id"] = text_field(values, "id", is_needed=True)
    for key in ("sampling_rate", "num_samples"):
        values[key] = _count(values, key)
    values["duration"] = _number(values, "duration")
    seconds = values["num_samples"] / values["sampling_rate"]
    if abs(values["duration"] - seconds) > _TOLERANCE_S:
        raise ValueError(
            f"duration {values['duration']:g} s, but its samples last {seconds:g} s"
        )
    sources = values.get("sources")
    if not isinstance(sources, list):
        raise ValueError("sources: no list of sources")
    for source in sources:
        _check_source(source)
    if values.get("channel_ids") is not None:
        _check_channels(values["channel_ids"], "channel_ids")
    return values


def supervision_fields(values: Values) -> Values:
    """Read the fields of a supervision.

    Raises:
        ValueError: one is missing, or nothing that it can be.
    """
    for key in ("id", "recording_id"):
        values[key] = text_field(values, key, is_needed=True)
    for key in ("start", "duration"):
        values[key] = _number(values, key)
    for key in ("text", *_NAMES):
        if key in values:
            values[key] = text_field(values, key)
    if "channel" in values:
        values["channel"] = _channel(values["channel"])
    for key in ("custom", "alignment"):
        if not isinstance(values.get(key), dict | None):
            raise ValueError(f"{key}: {values[key]!r} is not an object")
    return values


def cut_fields(values: Values) -> Values:
    """Read the fields of a cut, and of what it is made of.

    Raises:
        ValueError: one is missing, or nothing that it can be.
    """
    values["id"] = text_field(values, "id", is_needed=True)
    for key in ("start", "duration"):
        if key in values:
            values[key] = _number(values, key)
    if "channel" in values and values.get("type") == "MonoCut":
        values["channel"] = _channel(values["channel"])
    recording = values.get("recording")
    if not isinstance(recording, dict | None):
        raise ValueError(f"recording: {recording!r} is not an object")
    if recording is not None:
        recording_fields(recording)
    for one in _objects(values, "supervisions"):
        supervision_fields(one)
    for track in _objects(values, "tracks"):
        if isinstance(track.get("cut"), dict):
            cut_fields(track["cut"])
    return values


def audio_types(values: object) -> set[str]:
    """Return the types of all sources of audio within a line of a manifest.

    Those of impulse responses and of tracks of a mix count, too.
    """
    if isinstance(values, list):
        return set().union(*map(audio_types, values))
    if not isinstance(values, Mapping):
        return set()
    found = set().union(*map(audio_types, values.values()))
    if {"type", "channels", "source"} <= values.keys():
        found.add(str(values["type"]))
    return found


def _objects(values: Values, key: str) -> Iterator[Values]:
    """Yield the objects of a list; none where there is no list."""
    found = values.get(key) or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ValueError(f"{key}: no list of objects")
    yield from found


def text_field(values: Values, key: str, *, is_needed: bool = False) -> str | None:
    """Return a text, or the digits of a whole number.

    Raises:
        ValueError: it is neither; or missing, though needed.
    """
    value = values.get(key)
    if value is None and not is_needed:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or (is_needed and not value):
        raise ValueError(f"{key}: {value!r} is not text")
    return value


def _number(values: Values, key: str) -> float:
    """Return a finite number; a whole one stays an integer."""
    value = values.get(key)
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key}: {value!r} is not a number")
    if not math.isfinite(value):
        raise ValueError(f"{key}: {value!r} is not a finite number")
    return value


def _count(values: Values, key: str) -> int:
    """Return a whole number above 0."""
    value = _number(values, key)
    if value != int(value) or value < 1:
        raise ValueError(f"{key}: {value!r} is not a whole number above 0")
    return int(value)


def _channel(value: object) -> int | list[int]:
    """Return the number of a channel, or several; of one in a list, the number."""
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    if isinstance(value, list):
        several = [_channel(one) for one in value]
        if len(several) == 1:
            return several[0]
        if several and all(isinstance(one, int) for one in several):
            return [one for one in several if isinstance(one, int)]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"channel: {value!r} is not a number of a channel")
    return value


def _check_source(source: object) -> None:
    """Refuse what is not a source of audio; the URL of a file is a file."""
    if not isinstance(source, dict):
        raise ValueError(f"sources: {source!r} is not an object")
    for key in ("type", "source"):
        if not isinstance(source.get(key), str) or not source[key]:
            raise ValueError(f"sources: {key}: {source.get(key)!r} is not text")
    _check_channels(source.get("channels"), "sources: channels")
    if source["type"] == "url" and source["source"].startswith("file:///"):
        source |= {"type": "file", "source": unquote(urlsplit(source["source"]).path)}


def _check_channels(channels: object, key: str) -> None:
    """Refuse what is not a list of channels."""
    if not isinstance(channels, list) or not channels:
        raise ValueError(f"{key}: {channels!r} is not a list of channels")
    for channel in channels:
        if not isinstance(channel, int) or isinstance(channel, bool) or channel < 0:
            raise ValueError(f"{key}: {channel!r} is not a channel")
