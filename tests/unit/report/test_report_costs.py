"""Costs of jobs: from Snakemake's measurements and the jobs' records to one table."""

import json
import math

import pytest

from latflow.report.costs import read_costs, sum_by_rule, summarize_costs


@pytest.fixture
def results(tmp_path):
    def put(path, value):
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(value) + "\n")

    put(
        "streams/gmm/frames/train/meta.json",
        {"num_frames": 720_000, "frame_shift": 0.01},
    )
    put("streams/gmm/frames/dev/meta.json", {"num_frames": 36_000, "frame_shift": 0.01})
    measured = {"s": 100.0, "cpu_time": 150.0, "max_rss": 500.0, "io_in": 1.0}
    put("benchmarks/train_mono/mono.jsonl", {**measured, "io_out": 2.5})
    inputs = [
        "lang/L.fst",
        "streams/gmm/frames/train/meta.json",
        "streams/gmm/frames/dev/meta.json",
    ]
    record = {"wildcards": {"system": "mono"}, "inputs": inputs, "cpu_seconds": 180.0}
    put("provenance/train_mono/mono.json", {**record, "gpu_share": 0.25})
    put("benchmarks/score_wer/mono.dev.jsonl", {**measured, "s": 10.0})
    put("provenance/score_wer/mono.dev.json", {"wildcards": {"split": "dev"}})
    put("benchmarks/score_wer/tri1.dev.jsonl", {"s": 30.0, "max_rss": "NA"})
    put("benchmarks/make_lang/lang.jsonl", {"s": 1.0, "cpu_time": None})
    return tmp_path


def test_job_has_time_memory_and_speech(results):
    costs = read_costs(results).set_index(["rule", "job"])
    training = costs.loc[("train_mono", "mono")]
    assert training.cpu_seconds == 180  # its own record, the later look
    assert training.mean_load == pytest.approx(1.8)
    assert training.audio_hours == pytest.approx(2)
    assert training.audio_hours_per_hour == pytest.approx(72)
    assert training.gpu_share == 0.25
    assert costs.loc[("score_wer", "mono.dev")].audio_hours == pytest.approx(0.1)
    bare = costs.loc[("make_lang", "lang")]
    assert bare[["cpu_seconds", "audio_hours", "mean_load"]].isna().all()


def test_a_part_of_a_set_goes_through_its_share_of_the_speech(results):
    folder = results / "provenance/decode_lattices_part"
    folder.mkdir()
    named = {"system": "mono", "split": "dev", "scatteritem": "2-of-4"}
    (folder / "mono.dev.2-of-4.json").write_text(json.dumps({"wildcards": named}))
    measured = results / "benchmarks/decode_lattices_part/mono.dev.2-of-4.jsonl"
    measured.parent.mkdir()
    measured.write_text('{"s": 10.0}\n')
    costs = read_costs(results).set_index(["rule", "job"])
    part = costs.loc[("decode_lattices_part", "mono.dev.2-of-4")]
    assert part.audio_hours == pytest.approx(0.1 / 4)


def test_rules_sum_up_their_jobs(results):
    rules = sum_by_rule(read_costs(results))
    assert list(rules.index) == ["train_mono", "score_wer", "make_lang"]
    scoring = rules.loc["score_wer"]
    assert (scoring.jobs, scoring.wall_seconds, scoring.longest_seconds) == (2, 40, 30)
    assert (scoring.cpu_seconds, scoring.peak_memory_mib) == (150, 500)
    assert math.isnan(scoring.gpu_share)
    assert rules.loc["train_mono"].gpu_share == 0.25


def test_table_has_a_row_a_job_and_blanks_for_the_unknown(results):
    summarize_costs(results, results / "cost.tsv")
    head, *rows = [
        line.split("\t") for line in (results / "cost.tsv").read_text().splitlines()
    ]
    assert [row[:2] for row in rows] == [
        ["train_mono", "mono"],
        ["score_wer", "mono.dev"],
        ["score_wer", "tri1.dev"],
        ["make_lang", "lang"],
    ]
    first, last = (dict(zip(head, row, strict=True)) for row in (rows[0], rows[-1]))
    assert first["audio_hours_per_hour"] == "72.00"
    assert first["written_mib"] == "2.5"
    assert last["wall_seconds"] == "1.00"
    assert {v for k, v in last.items() if k not in {"rule", "job", "wall_seconds"}} == {
        ""
    }


def test_nothing_measured_yet_is_an_empty_table(tmp_path):
    summarize_costs(tmp_path, tmp_path / "cost.tsv")
    assert len((tmp_path / "cost.tsv").read_text().splitlines()) == 1
