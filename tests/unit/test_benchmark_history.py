"""Figures of benchmarks by commit, and their page."""

import importlib.util
import json
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[2] / "benchmarks/history.py"


@pytest.fixture(scope="module")
def history():
    spec = importlib.util.spec_from_file_location("benchmark_history", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_numbers_of_nested_figures_have_names(history):
    figures = {"digits": {"ratio": 2, "same": True}, "seconds": 1.5, "peer": "kaldi"}
    assert list(history.numbers(figures)) == [("digits.ratio", 2.0), ("seconds", 1.5)]


def test_the_page_has_each_benchmark_and_its_ratios(history, tmp_path):
    for i, figures in enumerate([{"a": {"ratio": 2.0}}, {"b": {"s": 3}}]):
        kept = {"commit": f"c{i}", "date": f"2026-01-0{i + 1}", "figures": figures}
        (tmp_path / f"{i}.json").write_text(json.dumps(kept))
    history.write_page_of(tmp_path, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 1
    assert "2026-01-02 c1" in page
    with pytest.raises(SystemExit, match="nothing is kept"):
        history.write_page_of(tmp_path / "none", tmp_path / "page.html")


def test_what_is_kept_in_the_repository_can_be_read(history):
    table = history.table_of(history.HISTORY)
    assert table["commit"].nunique() >= 2
    assert (table["value"] >= 0).mean() > 0.9
