"""Two alignments compared: differences by hand, files of both kinds."""

import pytest

from latflow.cli.main import main
from latflow.corpus.textgrid import Interval, textgrid
from latflow.errors import UserError
from latflow.scoring.boundaries import compare_labels, read_labels

HERE = [Interval(0.1, 0.2, "A"), Interval(0.2, 0.4, "B"), Interval(0.5, 0.6, "C")]


def moved(*changes):
    """The labels with other times: (start, end) in milliseconds later."""
    return [
        Interval(i.start + a / 1000, i.end + b / 1000, i.text)
        for i, (a, b) in zip(HERE, changes, strict=True)
    ]


def test_boundaries_are_counted_once():
    there = moved((10, 30), (30, -20), (0, 60))
    found = compare_labels({"r": HERE}, {"r": there})
    # Beginnings of A, B, C; the ends of B and C, which nothing follows at once.
    assert sorted(round(d, 6) for d in found.all) == [-20, 0, 10, 30, 60]
    assert {k: [round(d) for d in v] for k, v in found.by_label.items()} == {
        "A": [10], "B": [30], "C": [0],
    }  # fmt: skip
    values = found.values()["boundaries"]
    assert values["mean_ms"] == pytest.approx(24)
    assert values["median_ms"] == pytest.approx(20)
    assert values["bias_ms"] == pytest.approx(16)
    assert values["within_10_ms"] == pytest.approx(0.4)
    assert values["within_20_ms"] == pytest.approx(0.6)
    assert values["within_50_ms"] == pytest.approx(0.8)


def test_a_label_more_costs_that_label_alone():
    there = [HERE[0], Interval(0.2, 0.25, "X"), Interval(0.25, 0.4, "B"), HERE[2]]
    found = compare_labels({"r": HERE, "only": HERE}, {"r": there})
    assert (found.num_matched, found.num_labels) == (3, (6, 4))
    assert found.unmatched == ["only"]
    assert [round(d) for d in found.by_label["B"]] == [50]


def test_ctm_and_textgrids_are_compared(tmp_path, capsys):
    (tmp_path / "a.ctm").write_text(
        "r 1 0.100 0.100 A\nr 1 0.200 0.200 B\nr 1 0.400 0.100 SIL\nr 1 0.500 0.1 C\n"
    )
    tiers = {"words": [Interval(0, 1, "word")], "phones": moved((5, 5), (5, 5), (5, 5))}
    (tmp_path / "grids").mkdir()
    (tmp_path / "grids/r.TextGrid").write_text(textgrid(tiers, 1.0))
    out = tmp_path / "found.json"
    pair = [str(tmp_path / "a.ctm"), str(tmp_path / "grids")]
    assert main(["compare-alignments", *pair, "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "3 labels of 3 and 3 match" in printed
    assert "5.00" in printed.splitlines()[2]
    assert '"mean_ms": 5.0' in out.read_text()


def test_tiers_of_speakers_are_recordings_of_their_own(tmp_path):
    grid = textgrid({"Ann - phones": HERE, "Bob - phones": HERE}, 1.0)
    (tmp_path / "r.TextGrid").write_text(grid)
    assert read_labels(tmp_path, "phones").keys() == {"r Ann", "r Bob"}
    with pytest.raises(UserError, match="no words here"):
        read_labels(tmp_path, "words")


def test_channels_of_a_ctm_file_are_apart(tmp_path):
    lines = ["r 1 0.0 1.0 A", "r 2 0.5 1.0 B", "r 1 1.0 1.0 C", "q 2 0.0 1.0 D"]
    (tmp_path / "a.ctm").write_text("".join(f"{line}\n" for line in lines))
    labels = read_labels(tmp_path / "a.ctm", "words")
    texts = {name: [x.text for x in found] for name, found in labels.items()}
    assert texts == {"r 1": ["A", "C"], "r 2": ["B"], "q": ["D"]}


def test_textgrids_are_known_by_any_case_of_their_suffix(tmp_path):
    for name in ("a.textgrid", "b.TextGrid"):
        (tmp_path / name).write_text(textgrid({"words": HERE}, 1.0))
    assert read_labels(tmp_path, "words").keys() == {"a", "b"}
    assert read_labels(tmp_path / "a.textgrid", "words").keys() == {"a"}
