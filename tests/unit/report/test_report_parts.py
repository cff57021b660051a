import re

import numpy as np
import pytest

from latflow.report import figures, spectrogram
from latflow.report.data import split_size
from latflow.report.spectrogram import Tier
from latflow.report.svg import canvas, render, series_colour


def test_drawings_take_their_colours_from_the_page_and_repeat():
    def draw():
        with canvas(4, 2) as figure:
            axes = figure.subplots()
            axes.plot([0, 1], [0, 1], color=series_colour(0))
            axes.set_xlabel("time (s)")
            return render(figure, 'a "quoted" <label>')

    svg = draw()
    assert svg == draw()
    assert svg.startswith("<svg role=")
    assert "aria-label=\"a 'quoted' label>\"" in svg
    assert "var(--c0)" in svg
    assert "time (s)</text>" in svg
    assert not re.search(r"#0[0-9a]0[0-9b]0\d|xmlns|<style|http", svg)


@pytest.mark.parametrize(
    "svg",
    [
        figures.error_rates({"test": {"mono": (0.0, 0.0, 0.0)}}),
        figures.error_rates({f"set{i}": {"mono": (9.0, 8.0, 10.0)} for i in range(5)}),
        figures.training_curves({"mono": [figures.Iteration(1, -90.0, 10, True)]}),
        figures.scale_sweep({"mono": {0.0: [(7.0, 10.0)]}}, {}),
        figures.speaker_rates({f"s{i:02d}": float(i) for i in range(60)}, 20.0),
        figures.phone_durations({"SIL": (3, 10, 80)}, shift_ms=10),
        figures.rule_costs({"train": (0.0, 0.0)}),
    ],
    ids=["rates", "sets", "curves", "sweep", "speakers", "phones", "costs"],
)
def test_figures_hold_at_their_edges(svg):
    assert svg.rstrip().endswith("</svg>")
    assert "nan" not in svg


def test_small_numbers_keep_their_digits_on_axes():
    points = [figures.BeamPoint(5, 0.00123, 9.0, 3.0)]
    points.append(figures.BeamPoint(7, 0.00187, 8.0, 4.0))
    assert re.search(r">0\.001\d+</text>", figures.beam_sweep({"tri1": points}))


def test_loudest_frequency_is_where_the_tone_is():
    rate = 8000
    tone = np.sin(2 * np.pi * 1000 * np.arange(rate) / rate)
    spectrum = spectrogram.log_spectrum(tone, rate)
    num_bins, num_frames = spectrum.shape
    assert (num_bins, num_frames) == (101, 101)
    assert spectrum[:, 50].argmax() == 25  # 40 Hz a bin
    assert spectrum.max() == 0
    assert spectrum.min() == -spectrogram.RANGE_DB


def test_shortest_sound_and_no_labels_can_be_drawn():
    svg = spectrogram.draw(np.zeros(1), 8000, [])
    assert svg.rstrip().endswith("</svg>")
    with_words = spectrogram.draw(
        np.zeros(4000), 8000, [Tier("words", [(0.0, 0.5, "ONE")])]
    )
    assert ">ONE</text>" in with_words


def test_labels_are_text_not_formulas():
    spans = [(0.0, 0.5, "$5 & <UNK> $x$"), (0.5, 1.0, "日本")]
    svg = spectrogram.draw(np.ones(8000), 8000, [Tier("words", spans)])
    assert ">$5 &amp; &lt;UNK&gt; $x$</text>" in svg
    assert ">日本</text>" in svg


def test_missing_manifest_has_no_size(tmp_path):
    assert split_size(tmp_path / "cuts.jsonl.gz", None) is None
