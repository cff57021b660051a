"""Confidences as shares of right words."""

import numpy as np
import pytest

from latflow.scoring.calibration import (
    ScoredWords,
    calibrated,
    calibration_error,
    fit_curve,
)


def drawn(number, share_of, seed=0):
    """Words whose share of right ones is a function of their posteriors."""
    rng = np.random.default_rng(seed)
    posterior = rng.random(number)
    return ScoredWords(posterior, rng.random(number) < share_of(posterior))


def test_the_error_is_the_gap_of_each_range():
    # Range 0.9 to 1: mean 0.95, right 1/2; range 0.2 to 0.3: mean 0.25, right 1/2.
    words = ScoredWords(
        np.array([0.95, 0.95, 0.25, 0.25]), np.array([True, False, True, False])
    )
    assert calibration_error(words) == pytest.approx((0.45 * 2 + 0.25 * 2) / 4)
    assert calibration_error(words, ((0.0, 0.5), (1.0, 0.5))) == 0
    sure = ScoredWords(np.array([1.0, 0.0]), np.array([True, False]))
    assert calibration_error(sure) == 0


def test_posteriors_that_say_too_much_are_mended():
    curve = fit_curve(drawn(2000, lambda p: p**3))
    unheard = drawn(2000, lambda p: p**3, seed=1)
    assert calibration_error(unheard) > 0.2
    assert calibration_error(unheard, curve) < 0.04
    found = calibrated(curve, np.linspace(0, 1, 101))
    assert (np.diff(found) >= 0).all()
    assert 0 < found[0] < found[-1] < 1
    assert calibrated(curve, np.array([0.5])) == pytest.approx(0.125, abs=0.06)


def test_posteriors_that_are_right_are_left_alone():
    assert [fit_curve(drawn(1000, lambda p: p, seed)) for seed in range(5)] == [()] * 5


def test_few_words_give_no_curve():
    assert fit_curve(drawn(199, lambda p: p**3)) == ()
    assert fit_curve(drawn(0, lambda p: p)) == ()
    kept = np.array([0.25])
    assert calibrated((), kept) is kept


def test_words_are_those_that_count(tmp_path):
    (tmp_path / "hyp.ctm").write_text(
        "u 1 0.0 0.1 one 0.5\nu 1 0.1 0.1 uh 0.9\nu 1 0.2 0.1 two 0.75\n"
        "v 1 0.0 0.1 one 1.0\n"
    )
    header = "utterance speaker words ins del sub errors wer reference hypothesis"
    rows = [
        ["u", "s", 3, 0, 1, 1, 2, "66.67", "one *** three", "one *** two"],
        ["v", "s", 0, 1, 0, 0, 1, "nan", "***", "one"],
    ]
    rows[0][8:] = ["one three two", "one *** two"]
    lines = [header.split(), *rows]
    text = "".join("\t".join(map(str, line)) + "\n" for line in lines)
    (tmp_path / "per_utterance.tsv").write_text(text)
    words = ScoredWords.read(tmp_path)
    assert words.confidence.tolist() == [0.5, 0.75, 1.0]
    assert words.is_right.tolist() == [True, True, False]
