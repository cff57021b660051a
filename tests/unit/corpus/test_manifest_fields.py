"""Manifests of others: each field changed, read right or refused in one line."""

import json

import pytest

from latflow.corpus.manifests import read_cuts, read_recordings, read_supervisions
from latflow.errors import UserError

SOURCE = {"type": "file", "channels": [0], "source": "a.wav"}
RECORDING = {
    "id": "r",
    "sources": [SOURCE],
    "sampling_rate": 8000,
    "num_samples": 8000,
    "duration": 1.0,
}
TOLD = {"id": "u", "recording_id": "r", "start": 0.0, "duration": 1.0, "channel": 0}
CUT = {
    "id": "u",
    "start": 0,
    "duration": 1.0,
    "channel": 0,
    "supervisions": [{**TOLD, "text": "A"}],
    "recording": RECORDING,
    "type": "MonoCut",
}


def read(reader, tmp_path, values):
    path = tmp_path / "m.jsonl"
    path.write_text("\n" + json.dumps(values) + "\n")
    (item,) = reader(path)
    return item


@pytest.mark.parametrize(
    ("field", "given", "read_as"),
    [
        ("id", 12, "12"),
        ("recording_id", 7, "7"),
        ("text", 42, "42"),
        ("text", None, None),
        ("speaker", 3, "3"),
        ("start", "0.5", 0.5),
        ("start", 1, 1),
        ("start", -1.0, -1.0),  # told with the utterance, when its times are checked
        ("channel", "1", 1),
        ("channel", [1], 1),
        ("channel", [0, 1], [0, 1]),
    ],
)
def test_supervisions_with_a_plain_meaning_are_read(tmp_path, field, given, read_as):
    item = read(read_supervisions, tmp_path, {**TOLD, field: given})
    assert getattr(item, field) == read_as


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("id", None), ("id", ""), ("id", True), ("id", ["u"]), ("id", 1.5),
        ("recording_id", None), ("recording_id", {}),
        ("start", float("nan")), ("start", float("inf")), ("start", None),
        ("start", "soon"), ("start", True), ("duration", []),
        ("text", ["A"]), ("text", 3.5), ("text", False), ("speaker", {}),
        ("channel", -1), ("channel", "A"), ("channel", None), ("channel", [0, "x"]),
        ("custom", 3), ("custom", "a"), ("alignment", [1]), ("wrong", 1),
    ],
)  # fmt: skip
def test_supervisions_without_meaning_are_refused(tmp_path, field, given):
    with pytest.raises(UserError, match=rf"m.jsonl: line 2 is not .*{field}"):
        read(read_supervisions, tmp_path, {**TOLD, field: given})


@pytest.mark.parametrize(
    ("field", "given", "read_as"),
    [("id", 12, "12"), ("sampling_rate", 8000.0, 8000), ("num_samples", "8000", 8000)],
)
def test_recordings_with_a_plain_meaning_are_read(tmp_path, field, given, read_as):
    item = read(read_recordings, tmp_path, {**RECORDING, field: given})
    assert getattr(item, field) == read_as


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("id", None), ("id", {}), ("sampling_rate", 0), ("sampling_rate", None),
        ("sampling_rate", 0.5), ("num_samples", float("nan")), ("num_samples", -1),
        ("duration", 3.0), ("duration", float("nan")), ("duration", "long"),
        ("sources", None), ("sources", {}), ("sources", ["a.wav"]),
        ("sources", [{**SOURCE, "type": 1}]), ("sources", [{**SOURCE, "source": 2}]),
        ("sources", [{**SOURCE, "channels": 0}]),
        ("sources", [{**SOURCE, "channels": ["0"]}]),
    ],
)  # fmt: skip
def test_recordings_without_meaning_are_refused(tmp_path, field, given):
    with pytest.raises(UserError, match=rf"m.jsonl: line 2 is not .*{field}"):
        read(read_recordings, tmp_path, {**RECORDING, field: given})


def test_fields_of_cuts_are_read(tmp_path):
    told = {**TOLD, "id": 5, "text": 7, "speaker": 9}
    cut = read(read_cuts, tmp_path, {**CUT, "id": 5, "supervisions": [told]})
    (said,) = cut.supervisions
    assert (cut.id, said.id, said.text, said.speaker) == ("5", "5", "7", "9")


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("start", float("nan")),
        ("duration", "x"),
        ("channel", [0, 1, "a"]),
        ("supervisions", [3]),
        ("recording", {**RECORDING, "sampling_rate": "x"}),
    ],
)
def test_cuts_without_meaning_are_refused(tmp_path, field, given):
    with pytest.raises(UserError, match=r"m.jsonl: "):
        read(read_cuts, tmp_path, {**CUT, field: given})


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("file:///a/b%20c.wav", ("file", "/a/b c.wav")),
        ("https://example.org/a.wav", ("url", "https://example.org/a.wav")),
        ("file://host/a.wav", ("url", "file://host/a.wav")),
    ],
)
def test_the_url_of_a_file_is_a_file(tmp_path, url, found):
    source = {**SOURCE, "type": "url", "source": url}
    recording = read(read_recordings, tmp_path, {**RECORDING, "sources": [source]})
    assert (recording.sources[0].type, recording.sources[0].source) == found
