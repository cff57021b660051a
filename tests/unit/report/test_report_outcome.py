"""The end of a run says what there is, and the commands that use it."""

import pytest

from latflow.report.outcome import outcome_text
from latflow.scoring.results import COLUMNS
from latflow.workflow.recipe import Recipe

SYNTHETIC = {"type": "synthetic", "speakers": 2, "utterances": 4}
RECIPE = {
    "experiment": "x",
    "corpus": {"train": SYNTHETIC, "dev": SYNTHETIC, "test": {"test": SYNTHETIC}},
    "features": {"cmvn": {"type": "none"}},
    "lm": {"type": "text"},
    "gmm": {
        "systems": {
            "mono": {"type": "mono"},
            "tri1": {"type": "deltas", "alignments": "mono"},
            "tri3": {"type": "sat", "alignments": "tri1"},
        }
    },
}


@pytest.fixture
def results(tmp_path):
    """Results of three systems; dev is best with tri3, then with tri1."""
    rest = ["100", "10", "1", "10", "0", "0.00", "9.00"]
    rows = [
        [system, each, f"{n}.00", "0", "0", f"{n}", *rest]
        for system, n in (("mono", 9), ("tri1", 5), ("tri3", 2))
        for each in ("dev", "test")
    ]
    lines = ["\t".join(row) for row in ([*COLUMNS], *rows)]
    (tmp_path / "wer.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_nothing_is_told_before_scores(tmp_path):
    assert outcome_text(tmp_path) == ""


def test_the_best_system_that_can_be_streamed_is_to_be_packaged(results):
    told = outcome_text(results, Recipe.from_config(RECIPE)).splitlines()
    assert told[0].split()[:2] == ["system", "set"]
    assert told[-1].endswith(f"latflow package tri1 {results}")
    assert not any(line.startswith("report:") for line in told)


def test_of_packages_the_best_has_its_commands(results):
    (results / "report.html").touch()
    for system in ("mono", "tri1"):
        (results / "package" / system).mkdir(parents=True)
        (results / "package" / system / "package.json").touch()
    assert outcome_text(results, Recipe.from_config(RECIPE)).splitlines()[-3:] == [
        f"report: {results / 'report.html'}",
        f"transcribe: latflow transcribe {results}/package/tri1 RECORDING ...",
        f"serve: latflow serve {results}/package/tri1",
    ]
