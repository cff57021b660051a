"""Two runs side by side."""

import json
import random
import shutil

import pandas as pd
import pytest
from fixtures.made_up_networks import frame_log
from fixtures.made_up_results import made_up_recipe, write_experiment

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.report.choice import least_errors
from latflow.report.comparison import comparison_sections
from latflow.report.page import Figure, Note, Table
from latflow.report.significance import bounds_text, could_be_chance, reading
from latflow.scoring.options import BootstrapOptions

DRAWS = BootstrapOptions(samples=200)


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old") / "made_up"
    write_experiment(folder, made_up_recipe().score)
    write_training(folder, "wide", 1)
    return folder


def write_training(folder, name, seed):
    path = folder / "nnet" / name / "log.jsonl"
    path.parent.mkdir(parents=True)
    lines = frame_log(random.Random(seed))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def record(folder, rule, job, **content):
    path = folder / "provenance" / rule / f"{job}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def new(old, tmp_path_factory):
    """The same, but tri1 has mono's scores, and settings, code and torch differ."""
    folder = tmp_path_factory.mktemp("new") / "made_up"
    shutil.copytree(old, folder)
    shutil.rmtree(folder / "score/tri1")
    shutil.copytree(folder / "score/mono", folder / "score/tri1")
    for run, beam, digest, version in ((old, 13, "a", "1"), (folder, 15, "b", "2")):
        config = {"decode": {"beam": beam, "max_active": 7000}}
        versions = {"torch": version, "numpy": "2"}
        record(run, "make_report", "report", params={"config": config})
        record(run, "make_graph", "tri1", code_digest="same", versions=versions)
        record(run, "decode_lattices", "tri1.test", code_digest=digest)
    return folder


def sections(old, new, systems=None):
    found = comparison_sections(old, new, systems=systems, bootstrap=DRAWS, seed=1)
    return {section.key: section for section in found}


def rows(section):
    (table,) = [block for block in section.blocks if isinstance(block, Table)]
    return table.rows


def test_systems_are_compared_by_name_and_set(old, new):
    found = {(r["system"], r["set"]): r for r in rows(sections(old, new)["wer"])}
    assert {r["reading"] for (s, _), r in found.items() if s == "mono"} == {"equal"}
    worse = found["tri1", "test"]
    assert worse["reading"] == "worse"
    assert float(worse["change (absolute %)"]) > 0
    back = {(r["system"], r["set"]): r for r in rows(sections(new, old)["wer"])}
    change = float(back["tri1", "test"]["change (absolute %)"])
    assert change == -float(worse["change (absolute %)"])
    assert back["tri1", "test"]["reading"] == "better"


def test_settings_code_and_software_that_differ_are_named(old, new):
    found = sections(old, new)
    assert rows(found["options"]) == [
        {"setting": "decode.beam", "old": "13", "new": "15"}
    ]
    (told,) = [b.text for b in found["code"].blocks if isinstance(b, Note)]
    assert told == "1 rules: decode_lattices."
    assert rows(found["code"]) == [{"package": "torch", "old": "1", "new": "2"}]


def test_what_one_run_alone_has_is_told(old, new, tmp_path):
    shutil.copytree(new, tmp_path / "less")
    lines = (new / "wer.tsv").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("tri1")]
    (tmp_path / "less/wer.tsv").write_text("\n".join(kept) + "\n")
    notes = [b.text for b in sections(old, tmp_path / "less")["wer"].blocks[1:]]
    assert notes == [f"Only in {old}: tri1 on dev, tri1 on test."]


def test_command_prints_or_writes(old, new, tmp_path, capsys):
    assert main(["compare", str(old), str(new), "--samples", "100"]) == 0
    printed = capsys.readouterr().out
    assert "| decode.beam | 13 | 15 |" in printed
    out = tmp_path / "compare.html"
    arguments = ["compare", str(old), str(new), "--samples", "100", "--out", str(out)]
    assert main(arguments) == 0
    page = out.read_text()
    assert "decode.beam" in page
    assert page.count("<svg") == 2  # networks, GMMs
    assert "wide: loss on dev" in page
    assert "tri1, new" in page


def test_unfinished_run_is_refused(old, tmp_path):
    with pytest.raises(UserError, match=r"no results of a finished run here"):
        sections(old, tmp_path)


def test_courses_of_training_are_put_side_by_side(old, new, tmp_path):
    shutil.copytree(new, tmp_path / "other")
    shutil.rmtree(tmp_path / "other/nnet")
    write_training(tmp_path / "other", "tall", 2)
    rates = tmp_path / "other/wer.tsv"
    rates.write_text(rates.read_text().replace("tri1", "tall"))
    shutil.copytree(tmp_path / "other/score/tri1", tmp_path / "other/score/tall")
    found = sections(old, tmp_path / "other", ("tri1", "tall"))
    table = rows(found["training"])
    assert [(row["network"], row["run"]) for row in table] == [
        ("tall", "new"),
    ]
    assert any(isinstance(block, Figure) for block in found["training"].blocks)


def test_two_systems_of_one_run(old, capsys):
    found = sections(old, old, ("mono", "tri1"))
    assert list(found) == ["wer", "training"]
    table = rows(found["wer"])
    assert [(row["system"], row["set"]) for row in table] == [
        ("mono -> tri1", "dev"),
        ("mono -> tri1", "test"),
    ]
    assert {row["reading"] for row in table} == {"better"}
    back = rows(sections(old, old, ("tri1", "mono"))["wer"])
    assert [row["old WER (%)"] for row in back] == [r["new WER (%)"] for r in table]
    arguments = ["compare", str(old), "--systems", "mono", "tri1", "--samples", "100"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert f"# mono of {old} and tri1 of {old}" in printed


def test_two_systems_of_two_runs(old, new):
    (dev, test) = rows(sections(old, new, ("mono", "tri1"))["wer"])
    assert dev["reading"] == test["reading"] == "equal"  # the new tri1 is the old mono


@pytest.mark.parametrize(
    ("systems", "told"),
    [
        (None, "compared with itself"),
        (("mono", "mono"), "compared with itself"),
        (("mono", "tri9"), r"wer\.tsv: tri9 is not among.*name one of mono, tri1"),
    ],
)
def test_what_cannot_be_compared_is_refused(old, systems, told):
    with pytest.raises(UserError, match=told):
        sections(old, old, systems)


def test_utterances_with_other_references_are_left_out(old, new, tmp_path):
    folder = tmp_path / "other"
    shutil.copytree(new, folder)
    path = folder / "score/mono/test/per_utterance.tsv"
    head, first, second, *others = path.read_text().splitlines()
    fields = first.split("\t")
    columns = dict(zip(head.split("\t"), range(len(fields)), strict=True))
    said = fields[columns["reference"]].split()
    fields[columns["reference"]] = " ".join(["***", "NEVER", *said[2:]])
    path.write_text("\n".join([head, "\t".join(fields), *others]) + "\n")
    notes = {
        b.text: b.is_missing
        for b in sections(old, folder)["wer"].blocks
        if isinstance(b, Note)
    }
    (differing,) = [text for text, is_missing in notes.items() if is_missing]
    assert differing.startswith("mono on test: 1 of 39 utterances, ")
    assert f", {fields[0]} first, have other reference words" in differing
    assert "mono on test: 1 utterances are in one run alone and are left out." in notes
    assert len(notes) == 2
    assert second.split("\t")[0] != fields[0]


def test_gaps_in_references_do_not_make_them_differ(old, tmp_path):
    folder = tmp_path / "other"
    shutil.copytree(old, folder)
    path = folder / "score/mono/test/per_utterance.tsv"
    head, first, *others = path.read_text().splitlines()
    fields = first.split("\t")
    at = head.split("\t").index("reference")
    fields[at : at + 2] = f"{fields[at]} ***", f"{fields[at + 1]} SIX"
    path.write_text("\n".join([head, "\t".join(fields), *others]) + "\n")
    blocks = sections(old, folder)["wer"].blocks
    assert not [block for block in blocks if isinstance(block, Note)]


def test_too_few_draws_are_told(old, new):
    few = BootstrapOptions(samples=100)
    found = comparison_sections(old, new, bootstrap=few, seed=1)
    (told,) = [b.text for b in found[0].blocks if isinstance(b, Note)]
    assert told.startswith("100 draws are too few for 4 comparisons: ")
    assert "p is 0.08 or more" in told
    assert "Draw 160 or more" in told
    readings = {row["reading"] for row in rows(found[0])}
    assert all(said == "equal" or could_be_chance(said) for said in readings)
    assert "could be chance of many (worse, were it the only comparison)" in readings
    enough = BootstrapOptions(samples=160)
    found = comparison_sections(old, new, bootstrap=enough, seed=1)
    assert not [b for b in found[0].blocks if isinstance(b, Note)]
    assert "worse" in {row["reading"] for row in rows(found[0])}


@pytest.mark.parametrize(
    ("difference", "p_value", "interval", "said"),
    [
        (0.0, 1.0, (-1.0, 1.0), "equal"),
        (-1.0, 0.01, (-2.0, -0.5), "better"),
        (1.0, 0.01, (0.5, 2.0), "worse"),
        (-1.0, 0.2, (-2.0, 0.5), "could be chance"),
        (-1.0, 0.2, (-2.0, -0.1), "could be chance of many (better, were it the only "
         "comparison)"),
    ],
)  # fmt: skip
def test_differences_in_words(difference, p_value, interval, said):
    assert reading(difference, p_value, interval) == said
    assert could_be_chance(said) == ("chance" in said)


def test_bounds_have_no_negative_zero():
    assert bounds_text(-0.001, 2.0) == "+0.00 to +2.00"


def test_system_that_errs_least_on_sets_together():
    columns = ["system", "set", "wer", "ins", "del", "sub", "words"]
    rows = [
        ("a", "dev", "0.00", 0, 0, 0, 62),
        ("a", "test", "1.35", 1, 0, 1, 148),
        ("b", "dev", "1.61", 0, 0, 1, 62),
        ("b", "test", "0.00", 0, 0, 0, 148),
        ("c", "dev", "0.00", 0, 0, 0, 62),
    ]
    table = pd.DataFrame(rows, columns=columns).astype(str)
    found = least_errors(table, ["a", "b", "c"], ["dev", "test"])
    assert found == ("b", pytest.approx(100 / 210), pytest.approx(200 / 210))
    assert least_errors(table, ["c", "a"], ["dev", "test"]) is None
