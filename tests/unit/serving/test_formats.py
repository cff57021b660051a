import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from praatio import textgrid

from latflow.corpus.ctm import TimedWord, read_ctm
from latflow.serving.formats import EXTENSIONS, FORMATS, Transcription, render
from latflow.serving.results import Hypothesis, Segment


def segment(words, start=None, end=None, others=()):
    timed = tuple(
        TimedWord("audio", begin, length, word, confidence=confidence)
        for word, begin, length, confidence in words
    )
    begin = timed[0].start if start is None else start
    stop = timed[-1].end if end is None else end
    return Segment(begin, stop, (Hypothesis(timed, 0.875), *others))


OTHER = Hypothesis((TimedWord("audio", 0.3, 0.4, "hollow", confidence=0.1),), 0.125)
HELLO = segment(
    [("hello", 0.31, 0.4, 0.98765432), ("<unk>", 0.71, 0.29, 0.5)], 0.25, 1.1, (OTHER,)
)
EMPTY = Segment(1.5, 2.0, (Hypothesis((), 1.0),))
LATER = segment([("wörld", 3661.5, 0.25, 1.0), ("a&b", 3661.75, 0.25, 1.0)])
CALL = Transcription(
    "calls/to day", 3700.0, [HELLO, EMPTY, LATER], "2", {"name": "demo", "version": "1"}
)

words_of_people = st.lists(
    st.tuples(
        st.text("abcdefghij", min_size=1, max_size=50),
        st.floats(0, 3),  # pause before it
        st.floats(0, 9),  # duration
    ),
    min_size=1,
    max_size=60,
)


def transcription_of(people):
    time, words = 0.0, []
    for word, pause, length in people:
        words.append((word, time + pause, length, 0.5))
        time += pause + length
    half = len(words) // 2
    parts = [part for part in (words[:half], words[half:]) if part]
    return Transcription("a", time, [segment(part) for part in parts])


def cues_of(text, point):
    clock = rf"(\d\d+):(\d\d):(\d\d)\{point}(\d\d\d)"
    for block in text.strip().split("\n\n"):
        lines = block.splitlines()
        number = lines.pop(0) if "-->" not in lines[0] else None
        match = re.fullmatch(f"{clock} --> {clock}", lines[0])
        h, m, s, t, h2, m2, s2, t2 = map(int, match.groups())
        begin = ((h * 60 + m) * 60 + s) * 1000 + t
        end = ((h2 * 60 + m2) * 60 + s2) * 1000 + t2
        yield number, begin, end, lines[1:]


def test_a_line_of_text_is_a_segment_with_words():
    assert render(CALL, "txt") == "hello <unk>\nwörld a&b\n"


def test_ctm_has_channel_confidence_and_a_name_without_blanks(tmp_path):
    (tmp_path / "a.ctm").write_text(render(CALL, "ctm"), encoding="utf-8")
    words = list(read_ctm(tmp_path / "a.ctm"))
    assert [w.word for w in words] == ["hello", "<unk>", "wörld", "a&b"]
    assert words[0] == TimedWord("calls/to_day", 0.31, 0.4, "hello", "2", 0.988)


def test_json_has_segments_words_and_alternatives():
    value = json.loads(render(CALL, "json"))
    assert value["model"] == {"name": "demo", "version": "1"}
    assert value["audio"] == "calls/to day"
    assert value["channel"] == "2"
    assert value["duration"] == 3700.0
    assert value["text"] == "hello <unk> wörld a&b"
    first, empty, _ = value["segments"]
    assert (first["start"], first["end"], first["confidence"]) == (0.25, 1.1, 0.875)
    assert first["words"][0] == {
        "word": "hello",
        "start": 0.31,
        "end": 0.71,
        "confidence": 0.9877,
    }
    assert [other["text"] for other in first["alternatives"]] == ["hollow"]
    assert "alternatives" not in empty
    assert empty["words"] == []


def test_srt_counts_cues_and_keeps_hours():
    cues = list(cues_of(render(CALL, "srt"), ","))
    assert cues == [
        ("1", 310, 1000, ["hello <unk>"]),
        ("2", 3661500, 3662000, ["wörld a&b"]),
    ]


def test_vtt_escapes_what_would_be_a_tag():
    text = render(CALL, "vtt")
    head, body = text.split("\n\n", 1)
    assert head == "WEBVTT"
    cues = list(cues_of(body, "."))
    assert [lines for *_, lines in cues] == [["hello &lt;unk&gt;"], ["wörld a&amp;b"]]


def test_textgrid_is_read_by_praatio(tmp_path):
    path = tmp_path / "a.TextGrid"
    path.write_text(render(CALL, "textgrid"), encoding="utf-8")
    grid = textgrid.openTextgrid(path, includeEmptyIntervals=False)
    assert grid.tierNames == ("words", "segments")
    assert (grid.minTimestamp, grid.maxTimestamp) == (0, 3700)
    assert tuple(grid.getTier("words").entries[0]) == (0.31, 0.71, "hello")
    assert [e.label for e in grid.getTier("words").entries] == [
        "hello",
        "<unk>",
        "wörld",
        "a&b",
    ]
    filled = textgrid.openTextgrid(path, includeEmptyIntervals=True)
    entries = filled.getTier("words").entries
    assert entries[0].start == 0
    assert entries[-1].end == 3700
    assert all(a.end == b.start for a, b in pairwise(entries))


@pytest.mark.parametrize("form", FORMATS)
def test_silence_can_be_written(form):
    silence = Transcription("quiet", 0.0, [])
    expected = {"txt": "", "ctm": "", "srt": "", "vtt": "WEBVTT\n\n"}
    assert render(silence, form) == expected.get(form, render(silence, form))
    assert "hello" not in render(silence, form)


def test_every_format_has_an_ending_of_names():
    assert EXTENSIONS.keys() == FORMATS.keys()
    assert EXTENSIONS["textgrid"] == "TextGrid"


@given(words_of_people)
def test_cues_hold_all_words_within_their_limits(people):
    transcription = transcription_of(people)
    cues = list(cues_of(render(transcription, "srt"), ","))
    spoken = " ".join(" ".join(lines) for *_, lines in cues)
    assert spoken == transcription.text
    assert [int(number) for number, *_ in cues] == list(range(1, len(cues) + 1))
    for _, begin, end, lines in cues:
        assert begin < end
        is_word = len(lines) == 1 and " " not in lines[0]
        assert len(lines) <= 2
        assert is_word or end - begin <= 7000
        assert is_word or max(map(len, lines)) <= 42
    assert all(a[2] <= b[1] for a, b in pairwise(cues))


def test_cues_part_at_pauses_and_are_about_equally_full():
    words = [("a" * 9, 0.5 * i, 0.5, 1.0) for i in range(9)]
    (_, _, _, one), (_, _, _, two) = cues_of(
        render(Transcription("a", 9.0, [segment(words)]), "srt"), ","
    )
    assert sorted(len(" ".join(lines).split()) for lines in (one, two)) == [4, 5]
    late = [
        (w, t + (0.9 if i >= 2 else 0), d, c) for i, (w, t, d, c) in enumerate(words)
    ]
    first, *_ = cues_of(render(Transcription("a", 9.0, [segment(late)]), "srt"), ",")
    assert len(" ".join(first[3]).split()) == 2


@given(words_of_people)
def test_tiers_hold_all_words_without_overlap(tmp_path_factory, people):
    path = tmp_path_factory.mktemp("grid") / "a.TextGrid"
    transcription = transcription_of(people)
    path.write_text(render(transcription, "textgrid"), encoding="utf-8")
    tier = textgrid.openTextgrid(path, includeEmptyIntervals=False).getTier("words")
    assert [entry.label for entry in tier.entries] == transcription.text.split()
