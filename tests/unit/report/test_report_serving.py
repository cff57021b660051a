from fixtures.made_up_results import made_up_recipe

from latflow.report.cost_sections import capacity_section
from latflow.report.inputs import Results
from latflow.report.page import Figure, Heading, Note, Table
from latflow.workflow.recipe import Recipe

COLUMNS = [
    "sessions",
    "finals",
    "errors",
    "rtfx",
    "p50",
    "p90",
    "p95",
    "p99",
    "first_partial",
    "wer",
    "held",
]
TRIALS = [
    "2 20 0 1.9 0.05 0.06 0.0701 0.08 0.5 12.5 True",
    "4 40 0 3.8 0.06 0.10 0.1100 0.13 0.6 12.5 True",
    "8 70 9 6.5 0.30 0.90 1.2000 1.30 0.9 13.0 False",
]


def results(folder, **capacity):
    options = made_up_recipe()
    capacity = options.capacity.replace(**capacity)
    return Results(
        folder, Recipe.resolve(options.model_copy(update={"capacity": capacity}))
    )


def test_no_section_unless_asked_for(tmp_path):
    assert capacity_section(results(tmp_path)) is None


def test_trials_and_the_largest_number_that_was_held(tmp_path):
    folder = tmp_path / "capacity"
    folder.mkdir()
    # A trial without a final has no latency.
    rows = [COLUMNS, *(trial.split() for trial in TRIALS)]
    rows.append(["16", "0", "90", "0.0", *[""] * 6, "False"])
    (folder / "a.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    section = capacity_section(results(tmp_path, systems=("a", "b")))
    kinds = [type(block) for block in section.blocks]
    assert kinds == [Note, Figure, Heading, Table]
    assert section.blocks[0].is_missing
    assert section.blocks[2].text == "a: 4 sessions"
    cells = section.blocks[3].rows
    assert [row["sessions"] for row in cells] == ["2", "4", "8", "16"]
    assert cells[0]["p95 (ms)"] == "70"
    assert "p95 (ms)" not in cells[3]
    assert "nan" not in section.blocks[1].svg
