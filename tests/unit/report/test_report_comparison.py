"""Two runs side by side."""

import json
import shutil

import pytest
from reference.made_up_results import made_up_recipe, write_experiment

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.report.comparison import comparison_sections
from latflow.report.page import Note, Table
from latflow.scoring.options import BootstrapOptions

DRAWS = BootstrapOptions(samples=200)


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old") / "made_up"
    write_experiment(folder, made_up_recipe().score)
    return folder


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


def sections(old, new):
    found = comparison_sections(old, new, bootstrap=DRAWS, seed=1)
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
    assert "decode.beam" in out.read_text()


def test_unfinished_run_is_refused(old, tmp_path):
    with pytest.raises(UserError, match=r"no results of a finished run here"):
        sections(old, tmp_path)
