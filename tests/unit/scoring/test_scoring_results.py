import json
import math

import numpy as np
import pytest

from latflow.configuration import resolve_section
from latflow.errors import UserError
from latflow.scoring import results
from latflow.scoring.bootstrap import bootstrap_interval, paired_bootstrap
from latflow.scoring.ctm import read_ctm
from latflow.scoring.score import summarise_wer
from latflow.scoring.summary import COLUMNS, format_table, read_summary
from latflow.scoring.text import WordFilter, read_text, read_trn, write_trn
from latflow.scoring.word_times import Pronunciations, split_phones

REFERENCES = {"u1": ["A", "B", "C"], "u2": ["A", "B"], "u3": ["D"], "u4": []}
HYPOTHESES = {"u1": ["A", "C"], "u2": ["A", "X", "B"], "u4": []}
SPEAKERS = {"u1": "s1", "u2": "s2", "u3": "s1", "u4": "s2"}


@pytest.fixture
def options(repository):
    section = resolve_section(repository / "workflow" / "schemas", "score", {})
    return {**section, "seed": 1}


@pytest.fixture
def scores(options):
    return results.score_utterances(REFERENCES, HYPOTHESES, SPEAKERS, options=options)


def test_missing_hypothesis_counts_as_deleted(scores):
    by_id = {score.utterance: score.counts for score in scores}
    assert by_id["u3"].del_ == 1
    counts = results.total(scores)
    assert (counts.ins, counts.del_, counts.sub, counts.words) == (1, 2, 0, 6)
    assert results.num_sentence_errors(scores) == 3


def test_hypothesis_without_reference_is_refused(options):
    with pytest.raises(
        UserError, match="u9: 1 recognised utterances have no reference"
    ):
        results.score_utterances(REFERENCES, {"u9": []}, SPEAKERS, options=options)


def test_ignored_words_and_case(options):
    filtered = {**options, "ignore_words": ["<SIL>"], "fold_case": True}
    scores = results.score_utterances(
        {"u": ["Hello", "<SIL>"]},
        {"u": ["<SIL>", "hello"]},
        {"u": "s"},
        options=filtered,
    )
    assert results.total(scores).errors == 0
    assert WordFilter(frozenset({"x"}))(["x", "Y"]) == ["Y"]


def test_options_change_the_alignment_rule(options):
    texts = {"u": list("aabc")}, {"u": list("bcdd")}, {"u": "s"}
    kaldi = results.score_utterances(*texts, options=options)
    sclite = results.score_utterances(
        *texts, options={**options, "alignment": "sclite"}
    )
    assert results.total(sclite).sub == 0
    assert results.total(kaldi).errors <= results.total(sclite).errors


def test_per_utterance_reads_back(scores, tmp_path):
    results.write_per_utterance(tmp_path / "u.tsv", scores)
    assert results.read_utterance_scores(tmp_path / "u.tsv") == scores
    line = (tmp_path / "u.tsv").read_text().splitlines()[1]
    assert line == "u1\ts1\t3\t0\t1\t0\t1\t33.33\tA B C\tA *** C"


def test_broken_per_utterance_is_refused(tmp_path):
    (tmp_path / "u.tsv").write_text("heading\nu1\ts1\n")
    with pytest.raises(UserError, match="line 2 has 2 fields"):
        results.read_utterance_scores(tmp_path / "u.tsv")


def test_speakers_and_confusions(scores, tmp_path):
    results.write_per_speaker(tmp_path / "s.tsv", scores)
    assert (tmp_path / "s.tsv").read_text().splitlines()[1:] == [
        "s1\t2\t2\t4\t0\t2\t0\t2\t50.00",
        "s2\t2\t1\t2\t1\t0\t0\t1\t50.00",
    ]
    results.write_confusions(tmp_path / "c.tsv", scores, limit=1)
    assert (tmp_path / "c.tsv").read_text().splitlines()[1:] == [
        "del\tB\t***\t1",
        "ins\t***\tX\t1",
    ]


def test_interval_holds_the_rate_and_narrows_with_more_data(options):
    few = results.score_utterances(
        {f"u{i}": ["A", "B"] for i in range(20)},
        {f"u{i}": ["A", "B" if i % 2 else "C"] for i in range(20)},
        {f"u{i}": f"s{i % 5}" for i in range(20)},
        options=options,
    )
    narrow = results.interval(few * 10, options=options)
    wide = results.interval(few, options=options)
    assert wide.low < narrow.low < 25 < narrow.high < wide.high


def test_blocks_of_like_speakers_widen_the_interval():
    # Two speakers without, two with an error an utterance: few independent draws.
    errors = np.repeat([0, 0, 1, 1], 25)
    words = np.full(100, 4)
    settings = {"samples": 2000, "confidence": 0.95, "seed": 1}
    plain = bootstrap_interval(errors, words, **settings)
    blocked = bootstrap_interval(
        errors, words, blocks=np.repeat(list("abcd"), 25).tolist(), **settings
    )
    assert blocked.high - blocked.low > 2 * (plain.high - plain.low)
    assert plain == bootstrap_interval(errors, words, **settings)


def test_seed_decides_the_draws():
    errors, words = np.arange(50) % 7, np.arange(50) % 11 + 1
    settings = {"samples": 100, "confidence": 0.9}
    one = bootstrap_interval(errors, words, seed=1, **settings)
    assert one == bootstrap_interval(errors, words, seed=1, **settings)
    assert one != bootstrap_interval(errors, words, seed=2, **settings)


def test_interval_agrees_with_the_normal_approximation():
    # 400 utterances of 10 words, binomial errors: the standard error is known.
    generator = np.random.default_rng(0)
    errors = generator.binomial(10, 0.2, size=400)
    found = bootstrap_interval(
        errors, np.full(400, 10), samples=20_000, confidence=0.95, seed=1
    )
    half = 1.96 * 100 * np.std(errors / 10) / np.sqrt(400)
    centre = 10.0 * errors.mean()
    np.testing.assert_allclose(
        [found.low, found.high], [centre - half, centre + half], atol=0.1
    )


def test_consistent_small_gain_is_significant():
    generator = np.random.default_rng(0)
    old = generator.integers(0, 9, size=300)
    new = np.maximum(0, old - (generator.random(300) < 0.2))
    found = paired_bootstrap(
        old, new, np.full(300, 10), samples=2000, confidence=0.95, seed=1
    )
    assert found.difference < 0
    assert found.high < 0
    assert found.probability_of_improvement == 1.0
    assert found.p_value < 0.01


def test_no_words_give_no_rate():
    found = bootstrap_interval(
        np.array([1]), np.array([0]), samples=100, confidence=0.9, seed=1
    )
    assert math.isnan(found.low)
    empty = np.zeros(0, dtype=int)
    found = bootstrap_interval(empty, empty, samples=100, confidence=0.9, seed=1)
    assert math.isnan(found.high)


def make_wer(folder, wer):
    folder.mkdir(parents=True)
    content = {
        **dict.fromkeys(COLUMNS, 1),
        "wer": wer,
        "confidence_interval": {"low": wer and wer - 1, "high": wer and wer + 1},
    }
    (folder / "wer.json").write_text(json.dumps(content))
    return folder


def test_summary_keeps_the_order_and_prints(tmp_path):
    folders = {
        ("tri1", "test"): make_wer(tmp_path / "a", 12.345),
        ("mono", "dev"): make_wer(tmp_path / "b", None),
    }
    summarise_wer(folders, tmp_path / "wer.tsv")
    rows = read_summary(tmp_path / "wer.tsv")
    assert [(r["system"], r["set"], r["wer"]) for r in rows] == [
        ("tri1", "test", "12.35"),
        ("mono", "dev", "nan"),
    ]
    assert list(rows[0]) == list(COLUMNS)
    lines = format_table(tmp_path / "wer.tsv").splitlines()
    assert lines[2].split()[:3] == ["tri1", "test", "12.35"]
    assert lines[2].endswith("11.35 - 13.35")


def test_summary_names_a_missing_score(tmp_path):
    with pytest.raises(UserError, match=r"wer\.json: no such file"):
        summarise_wer({("a", "b"): tmp_path}, tmp_path / "wer.tsv")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"u1 A\nu1 B\n", "u1: utterance occurs twice"),
        (b"u1 A\n\n", "line 2 is empty"),
        (b"u1 \xff\n", "line 1 is not UTF-8"),
    ],
)
def test_bad_text_is_refused(tmp_path, content, message):
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_text(tmp_path / "text")


def test_trn_carries_speakers_and_refuses_lines_without_id(tmp_path):
    write_trn(tmp_path / "trn", {"u-1": ["A"]}, {"u-1": "s-1"})
    assert (tmp_path / "trn").read_text() == "A (s_1-u-1)\n"
    (tmp_path / "bad").write_text("A B\n")
    with pytest.raises(UserError, match="line 1 does not end in"):
        read_trn(tmp_path / "bad")


@pytest.mark.parametrize(
    "line", ["u 1 0 1", "u 1 x 1 W", "u 1 -1 1 W", "u 1 0 1 W 1 1"]
)
def test_bad_ctm_is_refused(tmp_path, line):
    (tmp_path / "ctm").write_text(f";; comment\n{line}\n")
    with pytest.raises(UserError, match="line 2 is not"):
        list(read_ctm(tmp_path / "ctm"))


def test_phones_that_spell_other_words_are_not_split():
    pronunciations = Pronunciations(
        {"A": [("a", "b")]}, ["sil"], is_position_dependent=False
    )
    assert split_phones(["a", "c"], ["A"], pronunciations) is None
    assert split_phones(["sil", "a"], ["A"], pronunciations) is None
    cut_off = split_phones(["sil", "a"], ["A"], pronunciations, is_partial=True)
    assert cut_off == [(1, 2)]
    assert split_phones(["a"], ["B"], pronunciations) is None
