"""Segments in which a transcript and recognized words agree, of any two of them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latflow.align.agreement import Line, _tainted, agreeing_segments, compare
from latflow.corpus.ctm import TimedWord
from latflow.corpus.derived_options import CleanedSetOptions

UNKNOWN, NOISE = "<UNK>", "<NOISE>"
KNOWN = {"a", "b", "c", UNKNOWN, NOISE}
WORDS = st.sampled_from(["a", "b", "c", "strange", NOISE])
GAPS = st.sampled_from([0.0, 0.0, 0.0, 0.05, 0.3, 1.1, 3.0])


@st.composite
def utterances(draw):
    """A transcript, recognized words with times, and the duration."""
    words, heard, time = [], [], draw(GAPS)
    for _ in range(draw(st.integers(1, 14))):
        edits = ["same"] * 8 + ["other", "more", "less"]
        edit, word = draw(st.sampled_from(edits)), draw(WORDS)
        if edit != "more":
            words.append(word)
        if edit == "less":
            continue
        found = word if edit == "same" else draw(WORDS)
        found = found if found in KNOWN else UNKNOWN
        duration = draw(st.sampled_from([0.03, 0.08, 0.2, 0.6]))
        heard.append(TimedWord("u", time, duration, found))
        time += duration + draw(GAPS)
    return words, heard, max(time, 0.1)


@st.composite
def bounds(draw):
    """Options: the defaults, and others."""
    if draw(st.booleans()):
        return CleanedSetOptions()
    return CleanedSetOptions(
        min_segment=draw(st.sampled_from([0.0, 0.5])),
        min_new_segment=draw(st.sampled_from([0.0, 0.3, 1.0])),
        unknown_padding=draw(st.sampled_from([0.0, 0.05, 0.2])),
        max_junk=draw(st.sampled_from([0.05, 0.5, 1.0])),
        max_left_out_words=draw(st.integers(0, 2)),
    )


def is_subsequence(some, words):
    rest = iter(words)
    return all(word in rest for word in some)


def lines_of(words, heard, duration):
    return compare(
        words, heard, duration,
        is_known=KNOWN.__contains__, unknown_word=UNKNOWN, noises={NOISE},
    )  # fmt: skip


@given(utterances())
def test_lines_fill_the_utterance(utterance):
    words, _, duration = utterance
    lines = lines_of(*utterance)
    assert lines[0].start == 0.0
    assert lines[-1].end == pytest.approx(duration)
    for before, after in pairwise(lines):
        assert before.end == after.start
        assert not before.kind == after.kind == "silence"
    assert is_subsequence([w for line in lines for w in line.words], words)


@given(
    st.lists(
        st.sampled_from(["correct", "unknown", "silence", "wrong", "left out"]),
        max_size=12,
    )
)
def test_what_borders_an_error_is_tainted(kinds):
    lines = [Line(float(n), n + 1.0, kind, (str(n),)) for n, kind in enumerate(kinds)]
    marked = {line.start: line.is_tainted for line in _tainted(lines)}

    def reaches(n, step):
        """Whether only unsure lines are between a line and an error."""
        n += step
        while 0 <= n < len(lines) and kinds[n] in {"silence", "unknown"}:
            n += step
        return 0 <= n < len(lines) and kinds[n] != "correct"

    for n, kind in enumerate(kinds):
        if kind in {"silence", "unknown"}:
            assert marked[n] == (reaches(n, 1) or reaches(n, -1))
        else:
            assert not marked[n]


@given(utterances(), bounds())
def test_segments_hold_no_error_that_is_not_allowed(utterance, options):
    words, _, duration = utterance
    lines = lines_of(*utterance)
    kept, dropped = agreeing_segments(lines, options)
    texts = []
    for segment in kept:
        text = segment.words(UNKNOWN)
        first, last = map(int, segment.has_unknown)
        texts += text[first : len(text) - last]
        assert text[:first] + text[len(text) - last :] == [UNKNOWN] * (first + last)
        assert 0.0 <= segment.begin < segment.finish <= duration + 1e-9
        least = max(options.min_segment, options.min_new_segment)
        least = options.min_segment if segment.is_whole else least
        assert segment.length >= 0.99 * least
        assert segment.has_correct_word
        left_out = 0
        for n, line in enumerate(lines):
            inside = min(line.end, segment.finish) - max(line.start, segment.begin)
            if (
                line.kind == "wrong" or line.is_tainted
            ) and inside > options.unknown_padding + 1e-9:
                assert line.duration <= 2 * options.unknown_padding + 1e-9
            if line.kind == "silence" and not line.is_tainted:
                assert inside <= options.max_internal_silence + 1e-9
            is_inside = segment.first <= n < segment.last and n not in segment.silent
            left_out += len(line.words) if line.kind == "left out" and is_inside else 0
        errors = sum(line.is_error for line in lines)
        assert left_out <= options.max_left_out_words * errors
    assert is_subsequence(texts, words)
    for before, after in pairwise(kept):
        assert before.finish < after.begin
    for segment, reason in dropped:
        assert reason in {"too short", "unsure"}
        assert segment.length < 1.0 or reason == "unsure"


@given(utterances(), bounds())
def test_an_utterance_without_error_is_kept_whole(utterance, options):
    _, heard, _ = utterance
    heard = [word for word in heard if word.word in {"a", "b", "c"}]
    short = [
        TimedWord("u", 0.1 + 0.4 * n, 0.4, word.word) for n, word in enumerate(heard)
    ]
    duration = 0.2 + 0.4 * len(short)
    said = [word.word for word in short]
    kept, dropped = agreeing_segments(lines_of(said, short, duration), options)
    if not short:
        assert kept == dropped == []
        return
    assert [each.words(UNKNOWN) for each in kept] == [said]
    assert kept[0].is_whole
    assert not dropped
