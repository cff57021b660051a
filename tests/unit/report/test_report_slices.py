"""Slices of test sets by what their utterances are like."""

import gzip
import json
import math
import shutil

import numpy as np
import pandas as pd
import pytest
from fixtures.made_up_results import made_up_recipe, write_experiment

from latflow.report.build import make_report
from latflow.report.inputs import Results
from latflow.report.page import Figure, Note, Table
from latflow.report.slices import (
    COLUMNS,
    attributes,
    slice_labels,
    slices_of,
    slices_section,
)
from latflow.scoring.results import read_scores, read_table
from latflow.workflow.recipe import Recipe

QUICK = {"score": {"bootstrap": {"samples": 200}}, "report": {"num_examples": 0}}


def rewrite(path, change):
    """Change each cut of a manifest."""
    lines = gzip.decompress(path.read_bytes()).splitlines()
    cuts = [change(i, json.loads(line)) for i, line in enumerate(lines)]
    text = "".join(json.dumps(cut) + "\n" for cut in cuts)
    path.write_bytes(gzip.compress(text.encode()))


def with_columns(i, cut):
    own = cut["supervisions"][0]
    own["gender"] = "f" if i % 2 else "m"
    own["custom"] = {"snr_db": float(i), "spk2age": str(30 + 10 * (i % 3))}
    cut["custom"] = {"room": f"room{i % 2}", "array": {"type": "array"}}
    own["custom"]["number"] = f"u{i}"
    return cut


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("slices") / "made_up"
    write_experiment(target, made_up_recipe().score)
    rewrite(target / "corpus/test/cuts.jsonl.gz", with_columns)
    return target


@pytest.fixture(scope="module")
def results(folder):
    return Results(folder, Recipe.resolve(made_up_recipe(**QUICK)))


@pytest.fixture(scope="module")
def slices(results):
    return slices_of(results)


def test_slices_are_by_all_columns_of_the_manifest(slices):
    assert list(slices.columns) == list(COLUMNS)
    numbers = {name: len(own) for name, own in slices.groupby("column", sort=False)}
    assert numbers == {
        "duration (s)": 5,  # of few values each
        "speaking rate (words/s)": 5,
        "words out of the lexicon": 2,
        "gender": 2,
        "room": 2,
        "snr_db": 4,
        "spk2age": 3,
        "speaker": 8,
    }
    assert set(slices["set"]) == {"test"}
    assert set(slices["baseline"]) == {"mono"}
    assert list(slices.query("column == 'spk2age'")["slice"]) == ["30", "40", "50"]
    snr = slices.query("column == 'snr_db'")
    assert list(snr["slice"]) == ["0 to 9", "10 to 19", "20 to 29", "30 to 39"]


def test_a_slice_has_the_errors_of_its_utterances(slices, results):
    old, new = (
        read_scores(results.scores_of(system, "test")) for system in ("mono", "tri1")
    )
    for column in ("gender", "room", "snr_db", "words out of the lexicon", "speaker"):
        own = slices[slices["column"] == column]
        assert own["words"].sum() == new["words"].sum()
        assert own["utterances"].sum() == len(new)
        wrong = (own["wer"] * own["words"]).sum() / 100
        assert wrong == pytest.approx(new["errors"].sum())
    row = slices.query("column == 'gender' and slice == 'f'").iloc[0]
    women = attributes(results / "corpus/test/cuts.jsonl.gz", None).index[1::2]
    inside = new["utterance"].isin(women)
    errors, before, words = (
        each[inside].sum() for each in (new["errors"], old["errors"], new["words"])
    )
    assert row["wer"] == pytest.approx(100 * errors / words)
    assert row["baseline_wer"] == pytest.approx(100 * before / words)
    assert row["change"] == pytest.approx(100 * (errors - before) / words)
    assert row["ci_low"] < row["wer"] < row["ci_high"]
    assert row["change_low"] <= row["change"] <= row["change_high"]
    for _speaker, own in new.groupby("speaker"):
        row = slices.query("column == 'speaker' and slice == @_speaker").iloc[0]
        assert row["wer"] == pytest.approx(
            100 * own["errors"].sum() / own["words"].sum()
        )
        assert row["drawn"] == "utterances"
    some = slices.query("slice == 'some'").iloc[0]
    assert some["utterances"] == 1  # ELEVEN is not in the lexicon
    assert math.isnan(some["p"])  # drawn anew it is the same utterance
    compared = slices[slices["utterances"] >= 5]
    assert compared["p"].between(0, 1).all()
    # 200 draws cannot give a p below 2 / 201, which is corrected for all slices
    assert compared["p"].min() >= len(compared) * 2 / 201 - 1e-9


def test_speakers_are_drawn_where_a_slice_has_ten(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "many")
    for system in ("mono", "tri1"):
        path = tmp_path / f"many/score/{system}/test/per_utterance.tsv"
        table = read_table(path)
        table["speaker"] = [f"s{i}" if i % 2 else "one" for i in range(len(table))]
        lines = ["\t".join(row) for row in [table.columns, *table.to_numpy()]]
        path.write_text("\n".join(lines) + "\n")
    found = slices_of(
        Results(tmp_path / "many", Recipe.resolve(made_up_recipe(**QUICK)))
    )
    drawn = found.query("column == 'gender'").set_index("slice")["drawn"]
    assert drawn.to_dict() == {"f": "speakers", "m": "utterances"}


def test_section_shows_each_slice_beside_the_baseline(slices, results):
    section = slices_section(results, slices)
    assert "tri1, which dev chose, beside mono" in section.blocks[0].text
    tables = [block for block in section.blocks if isinstance(block, Table)]
    figures = [block for block in section.blocks if isinstance(block, Figure)]
    assert len(tables) == len(figures) == 8
    assert sum(len(table.rows) for table in tables) == len(slices)
    assert {"change (absolute %)", "p", "reading"} <= set(tables[0].titles)
    assert "tri1</text>" in figures[0].svg
    assert "mono</text>" in figures[0].svg


@pytest.mark.slow
def test_report_writes_the_table(folder, slices, tmp_path):
    paths = [tmp_path / name for name in ("r.html", "r.md", "slices.tsv")]
    make_report(folder, *paths, config=made_up_recipe(**QUICK))
    written = read_table(paths[2])
    assert list(written.columns) == list(COLUMNS)
    assert len(written) == len(slices)
    assert written["wer"][0] == f"{slices['wer'][0]:.2f}"
    assert 'id="slices"' in paths[0].read_text()


def test_without_scores_there_are_no_slices(tmp_path):
    empty = Results(tmp_path, Recipe.resolve(made_up_recipe(**QUICK)))
    found = slices_of(empty)
    assert list(found.columns) == list(COLUMNS)
    assert found.empty
    (note,) = slices_section(empty, found).blocks
    assert isinstance(note, Note)
    assert note.is_missing


def test_first_system_has_slices_without_a_baseline(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "first")
    lines = (folder / "wer.tsv").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("tri1")]
    (tmp_path / "first/wer.tsv").write_text("\n".join(kept) + "\n")
    results = Results(tmp_path / "first", Recipe.resolve(made_up_recipe(**QUICK)))
    found = slices_of(results)
    assert set(found["baseline"]) == {""}
    assert found["change"].isna().all()
    tables = [b for b in slices_section(results, found).blocks if isinstance(b, Table)]
    assert "p" not in tables[0].titles


def test_simulation_gives_slices(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "noisy")
    records = []
    for i, utterance in enumerate(
        attributes(folder / "corpus/test/cuts.jsonl.gz", None).index
    ):
        noises = [
            {"name": "n", "snr": i % 2 * 10.0},
            {"name": "n", "snr": i % 2 * 10.0},
        ]
        fields = {"utterance": utterance, "whole_pass": 0, "rate": 8000}
        speakers = [{"utterance": "x", "offset": 0, "sir": 5.0, "overlap": 0.5}]
        records.append(
            {**fields, "num_samples": 9, "noises": noises, "speakers": speakers}
        )
    path = tmp_path / "noisy/corpus/test/records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = slices_of(
        Results(tmp_path / "noisy", Recipe.resolve(made_up_recipe(**QUICK)))
    )
    own = found[found["column"] == "SNR of the simulation (dB)"]
    assert list(own["slice"]) == ["-3.01", "6.99"]  # two equal noises
    assert list(own["utterances"]) == [20, 20]
    assert "level over another speaker (dB)" not in set(found["column"])  # all 5 dB


def categories(values):
    labels = slice_labels(pd.Series(values))
    return None if labels is None else list(labels.cat.categories)


def test_values_that_say_nothing_have_no_slices():
    assert categories(["a"] * 20) is None
    assert categories([3.0] * 20) is None
    assert categories([f"u{i}" for i in range(20)]) is None
    assert categories([None] * 20) is None


def test_values_become_slices():
    assert categories([True, False, True]) == ["False", "True"]
    assert categories(["10", "9", None]) == ["9", "10", "not given"]
    assert categories(["a", "b", "10"]) == ["10", "a", "b"]
    assert categories(["a", "a", math.nan]) == ["a", "not given"]
    many = [f"v{i % 20:02d}" for i in range(50)]
    found = categories(many)
    assert (found[0], found[-1], len(found)) == ("v00", "other values", 12)


def test_quantiles_cut_numbers_into_equal_parts():
    values = np.random.default_rng(1).permutation(np.arange(1000.0))
    counts = slice_labels(pd.Series(values)).value_counts(sort=False)
    assert counts.to_dict() == {
        "0 to 249": 250,
        "250 to 499": 250,
        "500 to 749": 250,
        "750 to 999": 250,
    }
    skewed = pd.Series([0.0] * 90 + [float(i) for i in range(10)])
    counts = slice_labels(skewed).value_counts(sort=False)
    assert counts.to_dict() == {"0": 91, "1 to 9": 9}
