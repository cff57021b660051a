import json
import math
import os

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from latflow.align.word_times import Pronunciations, split_phones
from latflow.corpus.ctm import read_ctm
from latflow.errors import UserError
from latflow.lattice.edit_distance import ErrorCounts
from latflow.scoring import results
from latflow.scoring.bootstrap import bootstrap_interval, holm, paired_bootstrap
from latflow.scoring.options import BootstrapOptions, ComparisonOptions
from latflow.scoring.results import (
    COLUMNS,
    format_rates,
    read_rates,
    read_table,
    summarize_wer,
)
from latflow.scoring.transcripts import read_text

REFERENCES = {"u1": ["A", "B", "C"], "u2": ["A", "B"], "u3": ["D"], "u4": []}
HYPOTHESES = {"u1": ["A", "C"], "u2": ["A", "X", "B"], "u4": []}
SPEAKERS = {"u1": "s1", "u2": "s2", "u3": "s1", "u4": "s2"}


PLAIN = ComparisonOptions()


@pytest.fixture
def scores():
    return results.score_utterances(REFERENCES, HYPOTHESES, SPEAKERS, options=PLAIN)


def test_missing_hypothesis_counts_as_deleted(scores):
    assert scores.set_index("utterance").loc["u3", "del"] == 1
    assert results.totals(scores) == ErrorCounts(ins=1, del_=2, sub=0, words=6)
    assert (scores["errors"] > 0).sum() == 3


def test_hypothesis_without_reference_is_refused():
    with pytest.raises(
        UserError, match="u9: 1 recognized utterances have no reference"
    ):
        results.score_utterances(REFERENCES, {"u9": []}, SPEAKERS, options=PLAIN)


def test_ignored_words_and_case():
    scores = results.score_utterances(
        {"u": ["Hello", "<SIL>"]},
        {"u": ["<SIL>", "hello"]},
        {"u": "s"},
        options=ComparisonOptions(ignore_words=("<SIL>",), fold_case=True),
    )
    assert results.totals(scores).errors == 0
    assert ComparisonOptions(ignore_words=("x",)).filter(["x", "Y"]) == ["Y"]


def test_options_change_the_alignment_rule():
    texts = {"u": list("aabc")}, {"u": list("bcdd")}, {"u": "s"}
    kaldi, sclite = (
        results.totals(
            results.score_utterances(*texts, options=ComparisonOptions(alignment=rule))
        )
        for rule in ("kaldi", "sclite")
    )
    assert sclite.sub == 0
    assert kaldi.errors <= sclite.errors


def test_per_utterance_reads_back(scores, tmp_path):
    results.write_table(tmp_path / "u.tsv", scores, {"wer": 2}, missing="nan")
    read = results.read_scores(tmp_path / "u.tsv")
    exact = [name for name in read.columns if name != "wer"]
    assert read[exact].to_dict("list") == scores[exact].to_dict("list")
    np.testing.assert_allclose(read["wer"], scores["wer"], atol=0.005)
    line = (tmp_path / "u.tsv").read_text().splitlines()[1]
    assert line == "u1\ts1\t3\t0\t1\t0\t1\t33.33\tA B C\tA *** C"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("utterance\tspeaker\nu1\n", "line 2 has 1 fields, not 2"),
        ("utterance\tspeaker\nu1\ts1\nu1\ts1\t0\n", "line 3"),
        ("heading\nu1\n", "not scores of utterances"),
        ("", "not scores of utterances"),
    ],
)
def test_broken_per_utterance_is_refused(tmp_path, content, message):
    (tmp_path / "u.tsv").write_text(content)
    with pytest.raises(UserError, match=message):
        results.read_scores(tmp_path / "u.tsv")


def test_words_of_any_spelling_read_back(tmp_path):
    words = {"u": ["NA", '"quoted"', "null", "#", "o'clock", "日本", "1"]}
    scores = results.score_utterances(words, {}, {"u": "007"}, options=PLAIN)
    results.write_table(tmp_path / "u.tsv", scores, {"wer": 2})
    read = results.read_scores(tmp_path / "u.tsv").iloc[0]
    assert (read["speaker"], read["reference"].split()) == ("007", words["u"])
    assert read["hypothesis"] == " ".join([results.GAP] * 7)


def test_speakers_and_confusions(scores, tmp_path):
    speakers = results.by_speaker(scores)
    results.write_table(tmp_path / "s.tsv", speakers, {"wer": 2}, missing="nan")
    assert (tmp_path / "s.tsv").read_text().splitlines()[1:] == [
        "s1\t2\t2\t4\t0\t2\t0\t2\t50.00",
        "s2\t2\t1\t2\t1\t0\t0\t1\t50.00",
    ]
    assert results.confusions(scores).to_numpy().tolist() == [
        ["del", "B", results.GAP, 1],
        ["del", "D", results.GAP, 1],
        ["ins", results.GAP, "X", 1],
    ]


def test_interval_holds_the_rate_and_narrows_with_more_data():
    few = results.score_utterances(
        {f"u{i}": ["A", "B"] for i in range(20)},
        {f"u{i}": ["A", "B" if i % 2 else "C"] for i in range(20)},
        {f"u{i}": f"s{i % 5}" for i in range(20)},
        options=PLAIN,
    )
    narrow, wide = (
        results.interval(scores, options=BootstrapOptions(), seed=1)
        for scores in (pd.concat([few] * 10), few)
    )
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


@pytest.mark.parametrize(("errors", "words"), [(0, 738), (1, 738), (7, 200), (29, 50)])
def test_few_errors_have_the_exact_interval_at_least(errors, words):
    made = np.zeros(words, dtype=int)
    made[:errors] = 1
    found = bootstrap_interval(
        made, np.ones(words, dtype=int), samples=1000, confidence=0.95, seed=1
    )
    low = 100 * beta.ppf(0.025, errors, words - errors + 1) if errors else 0.0
    tail = 0.975 if errors else 0.95  # without errors: the rule of three
    high = 100 * beta.ppf(tail, errors + 1, words - errors)
    assert found.low <= low + 1e-9
    assert found.high >= high - 1e-9
    if not errors:
        np.testing.assert_allclose([found.low, found.high], [0, 300 / words], rtol=0.01)


def test_all_words_wrong_is_no_certainty_either():
    settings = {"samples": 1000, "confidence": 0.95, "seed": 1}
    none = bootstrap_interval(np.zeros(4, int), np.full(4, 3), **settings)
    every = bootstrap_interval(np.full(4, 3), np.full(4, 3), **settings)
    np.testing.assert_allclose([every.low, every.high], [100 - none.high, 100])
    assert every.low < 80
    more = bootstrap_interval(np.full(4, 5), np.full(4, 3), **settings)  # insertions
    assert more.low == more.high == pytest.approx(500 / 3)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_is_that_of_the_textbook(p_values):
    found = holm(p_values)
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    highest = 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        assert found[i] == pytest.approx(highest)
        assert found[i] >= p_values[i]


def test_speakers_are_drawn_where_there_are_enough():
    options = BootstrapOptions()
    few, many = [[f"s{i % n}" for i in range(40)] for n in (9, 10)]
    assert options.blocks(few) is None
    assert options.blocks(many) == many
    assert BootstrapOptions(by="speaker").blocks(few) == few


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
    return folder / "wer.json"


def test_summary_keeps_the_order_and_prints(tmp_path):
    paths = [
        make_wer(tmp_path / "tri1" / "test", 12.345),
        make_wer(tmp_path / "mono" / "dev", None),
    ]
    summarize_wer(paths, tmp_path / "wer.tsv")
    table = read_table(tmp_path / "wer.tsv")
    assert table[["system", "set", "wer"]].to_numpy().tolist() == [
        ["tri1", "test", "12.35"],
        ["mono", "dev", "nan"],
    ]
    assert list(table.columns) == list(COLUMNS)
    lines = format_rates(table).splitlines()
    assert lines[2].split()[:3] == ["tri1", "test", "12.35"]
    assert lines[2].endswith("11.35 - 13.35")


def test_rates_are_those_of_the_table_or_those_so_far(tmp_path):
    assert read_rates(tmp_path) is None
    second = make_wer(tmp_path / "score" / "tri1" / "test", 12.0)
    first = make_wer(tmp_path / "score" / "mono" / "test", 20.0)
    os.utime(second, ns=(2, 2))
    os.utime(first, ns=(1, 1))
    systems = read_rates(tmp_path)["system"].tolist()
    assert systems == ["mono", "tri1"]  # as they were made
    missing = tmp_path / "score" / "tri2" / "test" / "wer.json"
    wanted = read_rates(tmp_path, [second, missing, first])
    assert wanted["system"].tolist() == ["tri1", "mono"]
    assert read_rates(tmp_path, [missing]) is None
    summarize_wer([second], tmp_path / "wer.tsv")
    assert read_rates(tmp_path)["system"].tolist() == ["tri1"]


def test_summary_names_a_missing_score(tmp_path):
    with pytest.raises(UserError, match=r"wer\.json: no such file"):
        summarize_wer([tmp_path / "wer.json"], tmp_path / "wer.tsv")


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


@pytest.mark.parametrize(
    "line", ["u 1 0 1", "u 1 x 1 W", "u 1 -1 1 W", "u 1 0 1 W 1 x"]
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
