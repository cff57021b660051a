import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from latflow.align.word_times import Pronunciations, split_phones
from latflow.corpus.ctm import TimedWord, ctm_line, read_ctm
from latflow.scoring.transcripts import read_text, write_text

quiet = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
ids = st.from_regex(r"[a-z0-9_]{1,8}", fullmatch=True)
words = st.lists(st.from_regex(r"[A-ZÄÖא-ת'<>]{1,6}", fullmatch=True), max_size=6)


@quiet
@given(texts=st.dictionaries(ids, words, max_size=5))
def test_text_reads_back_as_written(tmp_path, texts):
    write_text(tmp_path / "text", texts)
    assert read_text(tmp_path / "text") == texts


@quiet
@given(
    marks=st.lists(
        st.tuples(
            ids,
            st.integers(0, 10**6),
            st.integers(0, 10**4),
            st.sampled_from(["YES", "לא"]),
            st.none() | st.integers(0, 1000),
        ),
        max_size=5,
    )
)
def test_ctm_reads_back_as_written(tmp_path, marks):
    timed = [
        TimedWord(utt, a / 1000, b / 1000, w, "1", None if c is None else c / 1000)
        for utt, a, b, w, c in marks
    ]
    (tmp_path / "ctm").write_text("".join(map(ctm_line, timed)), encoding="utf-8")
    assert list(read_ctm(tmp_path / "ctm")) == timed


LEXICON = {"A": [("x",)], "B": [("x", "y"), ("y",)], "C": [("y", "x", "x")]}


@pytest.mark.parametrize("is_position_dependent", [False, True])
@given(
    spoken=st.lists(
        st.tuples(
            st.sampled_from(sorted(LEXICON)), st.integers(0, 1), st.integers(0, 2)
        ),
        max_size=6,
    )
)
def test_words_are_found_in_the_phones_they_were_said_with(
    is_position_dependent, spoken
):
    phones = []
    for word, which, silences in spoken:
        entry = LEXICON[word][which % len(LEXICON[word])]
        phones += ["sil"] * silences
        phones += [p + "_I" if is_position_dependent else p for p in entry]
    pronunciations = Pronunciations(
        LEXICON, ["sil"], is_position_dependent=is_position_dependent
    )
    said = [word for word, _, _ in spoken]
    spans = split_phones(phones, said, pronunciations)
    assert spans is not None
    end = 0
    for word, (first, last) in zip(said, spans, strict=True):
        assert set(phones[end:first]) <= {"sil"}
        entry = tuple(pronunciations.base(p) for p in phones[first:last])
        assert entry in LEXICON[word]
        end = last
    assert set(phones[end:]) <= {"sil"}
