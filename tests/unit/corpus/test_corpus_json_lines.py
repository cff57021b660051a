"""Manifests as lines of JSON."""

import json

import pytest

from latflow.corpus.json_lines import ManifestWriter, read_cut_lines, read_items
from latflow.corpus.manifests import read_cuts
from latflow.errors import UserError


def cut(name, **changes):
    """JSON of a cut, as Lhotse writes it."""
    supervision = {
        "id": name, "recording_id": "r", "start": 0.0, "duration": 1.5, "channel": 0,
        "text": "één", "speaker": "s",
    }  # fmt: skip
    recording = {
        "id": "r", "sources": [{"type": "file", "channels": [0], "source": "/r.wav"}],
        "sampling_rate": 8000, "num_samples": 24000, "duration": 3.0,
        "channel_ids": [0],
    }  # fmt: skip
    return {
        "id": name, "start": 0.5, "duration": 1.5, "channel": 0,
        "supervisions": [supervision], "recording": recording, "type": "MonoCut",
    } | changes  # fmt: skip


def write(path, *values):
    path.write_text("".join(json.dumps(v) + "\n" for v in values))
    return path


def test_what_is_read_and_written_has_the_bytes_that_lhotse_gives(tmp_path):
    given = write(tmp_path / "cuts.jsonl", cut("a"), cut("b", supervisions=[]))
    for name, read in (("ours", read_cut_lines), ("lhotse", read_cuts)):
        with ManifestWriter(tmp_path / name) as writer:
            for item in read(given):
                writer.write(item)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "lhotse").read_bytes()


def test_a_cut_has_speaker_and_text(tmp_path):
    given = write(tmp_path / "cuts.jsonl", cut("a"), cut("b", supervisions=[]))
    found = [(line.id, line.speaker, line.text) for line in read_cut_lines(given)]
    assert found == [("a", "s", "één"), ("b", "b", "")]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([cut("b"), cut("a")], "comes after b"),
        ([cut("a"), cut("a")], "comes twice"),
        ([cut("a", type="MixedCut")], "one channel of one recording"),
        ([cut("a", channel=[0, 1])], "one channel of one recording"),
        ([cut("a", supervisions=[3])], "supervisions: no list of objects"),
        ([cut("a", start=None)], "start: None is not a number"),
        ([cut("a", recording=5)], "recording: 5 is not an object"),
        ([{"id": "a"}], "line 1 is not an item"),
        ([[1]], "line 1 is not an item"),
    ],
)
def test_other_lines_are_refused(tmp_path, lines, message):
    given = write(tmp_path / "cuts.jsonl", *lines)
    with pytest.raises(UserError, match=message):
        list(read_cut_lines(given))


def test_a_missing_field_is_told(tmp_path):
    given = write(tmp_path / "items.jsonl", {"id": "a"})
    with pytest.raises(UserError, match="duration"):
        list(read_items(given, "duration"))
