import gzip
import html.parser
import json
import math
import re
import shutil

import pytest
from fixtures.made_up_results import made_up_recipe, write_experiment, write_json

from latflow.errors import UserError
from latflow.report.build import make_report
from latflow.report.cost_sections import speed_section
from latflow.report.decision import decision_section
from latflow.report.inputs import Results
from latflow.report.page import Table
from latflow.report.scores import (
    errors_section,
    lattices_section,
    rates_section,
    scales_section,
)
from latflow.report.training import alignment_section, training_section
from latflow.scoring.results import read_table
from latflow.workflow.recipe import Recipe

QUICK = {"score": {"bootstrap": {"samples": 100}}, "report": {"num_examples": 1}}


@pytest.fixture(scope="module")
def config():
    return made_up_recipe()


@pytest.fixture(scope="module")
def quick():
    """Few examples and draws, where the test is about something else."""
    return made_up_recipe(**QUICK)


@pytest.fixture(scope="module")
def experiment(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "made_up"
    write_experiment(folder, config.score)
    return folder


@pytest.fixture(scope="module")
def report(experiment, config):
    make_report(
        experiment, experiment / "report.html", experiment / "report.md", config=config
    )
    return (experiment / "report.html").read_text()


class Structure(html.parser.HTMLParser):
    """Counts tags and checks that they close in order."""

    VOID = frozenset({"meta", "link", "br", "img", "input"})

    def __init__(self):
        super().__init__()
        self.open, self.counts, self.ids = [], {}, []

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.ids += [v for k, v in attributes if k == "id" and self.open[-1] == "main"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def structure(text):
    parser = Structure()
    parser.feed(text)
    assert parser.open == []
    return parser


@pytest.mark.slow
def test_report_is_one_well_formed_file_that_fetches_nothing(report):
    found = structure(report)
    assert not re.search(r"https?:|//\w+\.\w+/|@import|<link", report)
    sources = re.findall(r'\b(?:src|href)="([^"]{1,12})', report)
    assert sources
    assert all(source.startswith(("data:", "#")) for source in sources)
    assert len(report) < 3_000_000
    assert len(found.ids) == len(set(found.ids)) == 15


def test_report_shows_every_part(report):
    found = structure(report)
    assert found.counts["audio"] == 12
    assert "data:audio/flac;base64,ZkxhQ" in report
    assert "data:image/png;base64," in report
    assert report.count('class="missing"') == 1  # graphs are not made up
    for text in (
        "language model weight",
        "log-likelihood per frame (nats)",
        "duration (ms)",
        "Is the difference real?",
        "text has # words",
        "train_deltas",
        "num_examples: 12",
        "source commit",
        "OOV (% of words)",
        "oracle WER (%)",
        "What a wider beam buys",
    ):
        assert text in report


def test_wer_table_and_summary_agree_with_the_files(report, experiment):
    lines = (experiment / "wer.tsv").read_text().splitlines()
    row = dict(zip(lines[0].split("\t"), lines[-1].split("\t"), strict=True))
    assert (row["system"], row["set"]) == ("tri1", "test")
    assert f"tri1 gets {row['wer']} % of the {row['words']} words of test" in report
    assert f"{row['ci_low']} – {row['ci_high']}" in report


def test_before_the_end_there_are_the_scores_so_far(experiment, quick, tmp_path):
    """In the order of the recipe, whatever the order in which they were made."""
    folder = tmp_path / "made_up"
    shutil.copytree(experiment / "score", folder / "score")
    shutil.rmtree(folder / "score/tri1/dev")
    (folder / "score/mono/dev/wer.json").touch()
    found = Results(folder, Recipe.resolve(quick)).wer
    whole = read_table(experiment / "wer.tsv")
    is_there = (whole["system"] != "tri1") | (whole["set"] != "dev")
    assert found.to_dict("records") == whole[is_there].to_dict("records")


def test_before_the_end_dev_has_not_chosen(experiment, quick, tmp_path):
    folder = tmp_path / "made_up"
    shutil.copytree(experiment / "score", folder / "score")
    shutil.rmtree(folder / "score/tri1/dev")
    section = decision_section(Results(folder, Recipe.resolve(quick)))
    assert section.lead.startswith("mono: the best on dev so far, and it gets ")
    assert "Dev has not been scored with tri1." in section.lead
    assert "On test tri1 did better." in section.lead
    assert "misled" not in section.lead
    table = next(block for block in section.blocks if isinstance(block, Table))
    assert [*table.rows[0]][3:8] == [*table.rows[1]][3:8]  # the chosen one's, too
    assert {row["system"]: row["dev WER (%)"] for row in table.rows}["tri1"] == ""


def test_decision_names_what_dev_chose_and_what_it_is_worth(report, experiment):
    table = read_table(experiment / "wer.tsv").set_index(["system", "set"])["wer"]
    system = min(("tri1", "mono"), key=lambda name: float(table[name, "dev"]))
    told = (experiment / "report.md").read_text()
    assert f"{system}: dev chose it, and it gets {table[system, 'test']} %" in told
    assert f"{system}: dev chose it" in report
    rows = [line for line in told.splitlines() if line.startswith("| tri1 |")]
    # tri1 makes less than half the errors of mono, on 40 utterances of many words.
    assert "ship this" in rows[0]
    found = re.search(
        r"\| mono \|.*\| (-\d+\.\d\d) \| (-\S+) to (-\S+) \| -\d+\.\d \|.*better", told
    )
    change, low, high = map(float, found.groups())
    assert low < change < high
    better = f"{-change:.2f} points better than mono"
    assert (
        f"{better} (change {change:+.2f}, interval {low:+.2f} to {high:+.2f}, p "
        in told
    )


@pytest.mark.slow
def test_findings_come_with_their_evidence(experiment, quick, tmp_path):
    shutil.copytree(experiment, tmp_path / "found")
    scores = tmp_path / "found/tune/tri1"
    chosen = json.loads((scores / "scales.json").read_text())
    (scores / "scales.json").write_text(json.dumps({**chosen, "at_edge": ["lmwt"]}))
    words = tmp_path / "found/lang/words.txt"
    words.write_text(words.read_text().replace("NINE", "TEN"))
    make_report(
        tmp_path / "found", tmp_path / "r.html", tmp_path / "r.md", config=quick
    )
    told = (tmp_path / "r.md").read_text()
    assert "weight of tri1, 12, lies at the edge of the sweep" in told
    assert "decode.tune.widen" in told
    assert re.search(r"\d+\.\d % of test's words are not in the lexicon", told)
    assert "lies at the edge" not in (experiment / "report.md").read_text()


@pytest.mark.slow
def test_report_is_the_same_each_time(experiment, config, report, tmp_path):
    make_report(
        experiment, tmp_path / "again.html", tmp_path / "again.md", config=config
    )

    def undated(text):
        return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "", text)

    assert undated((tmp_path / "again.html").read_text()) == undated(report)


def test_empty_folder_says_what_is_missing(tmp_path, quick):
    make_report(
        tmp_path, tmp_path / "report.html", tmp_path / "report.md", config=quick
    )
    text = (tmp_path / "report.html").read_text()
    structure(text)
    assert "No system has been scored yet." in text
    targets = {"score", "gmm", "align", "corpus", "lang", "graphs", "decode", "all"}
    for target in targets:
        assert f"run the target {target}." in text


@pytest.mark.slow
@pytest.mark.parametrize("part", ["gmm", "align", "tune", "score", "corpus", "lang"])
def test_partial_results_still_make_a_report(experiment, quick, part, tmp_path):
    shutil.copytree(experiment, tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / part)
    make_report(
        tmp_path / "part",
        tmp_path / "report.html",
        tmp_path / "report.md",
        config=quick,
    )
    text = (tmp_path / "report.html").read_text()
    structure(text)
    assert 'class="missing"' in text


def test_lost_recording_is_told_not_fatal(experiment, quick, tmp_path):
    shutil.copytree(experiment, tmp_path / "part")
    cuts = tmp_path / "part" / "corpus" / "test" / "cuts.jsonl.gz"
    items = [
        json.loads(line) for line in gzip.decompress(cuts.read_bytes()).splitlines()
    ]
    for item in items:
        item["recording"]["sources"][0]["source"] = str(tmp_path / "gone.flac")
    lines = "".join(json.dumps(item) + "\n" for item in items)
    cuts.write_bytes(gzip.compress(lines.encode()))
    make_report(
        tmp_path / "part",
        tmp_path / "report.html",
        tmp_path / "report.md",
        config=quick,
    )
    assert "cannot be read any more" in (tmp_path / "report.html").read_text()


def test_words_are_escaped(experiment, quick, tmp_path):
    shutil.copytree(experiment, tmp_path / "part")
    path = tmp_path / "part" / "score" / "tri1" / "test" / "per_utterance.tsv"
    path.write_text(path.read_text().replace("NINE", "<script>alert(1)</script>"))
    make_report(
        tmp_path / "part",
        tmp_path / "report.html",
        tmp_path / "report.md",
        config=quick,
    )
    text = (tmp_path / "report.html").read_text()
    assert "&lt;script&gt;alert(1)" in text
    assert structure(text).counts["script"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "shows"),
    [
        ({"num_examples": 0}, "report.num_examples is 0"),
        ({"num_examples": 2}, "<article"),
        ({"example_system": "mono"}, "Where mono goes wrong on test"),
        ({"example_set": "dev"}, "Where tri1 goes wrong on dev"),
        ({"num_confusions": 1}, "the 1 most frequent of"),
        ({"num_utterances": 2}, "The 2 worst of"),
        ({"max_example_duration": 2.0, "num_examples": 3}, "<article"),
    ],
)
def test_options_do_what_they_say(experiment, tmp_path, changes, shows):
    changed = made_up_recipe(**{**QUICK, "report": {**QUICK["report"], **changes}})
    make_report(
        experiment, tmp_path / "report.html", tmp_path / "report.md", config=changed
    )
    text = (tmp_path / "report.html").read_text()
    assert shows in text
    if "num_examples" in changes:
        assert text.count("<article") == changes["num_examples"]
    if "max_example_duration" in changes:
        lengths = re.findall(r"speaker \w+, ([\d.]+) s", text)
        assert max(map(float, lengths)) <= 2.0


def test_missing_folder_is_refused(tmp_path, config):
    with pytest.raises(UserError, match="no such results folder"):
        make_report(
            tmp_path / "nothing",
            tmp_path / "report.html",
            tmp_path / "report.md",
            config=config,
        )
    assert not (tmp_path / "report.html").exists()


def read_all(folder, config):
    """Make the sections that read the files below."""
    results = Results(folder, Recipe.resolve(config))
    for section in (
        *(lattices_section, alignment_section, scales_section, speed_section),
        *(rates_section, errors_section, training_section),
    ):
        section(results)


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("score/mono/test/lattices.json", "depth", "many"),
        ("score/mono/test/lattices.json", "depth_percentiles", [1, 2]),
        ("score/mono/test/lattices.json", "best_wer", math.nan),
        ("score/mono/test/wer.json", "confidence_interval", None),
        ("decode/mono/test/decode.json", "audio_seconds", {}),
        ("decode/mono/test/decode.json", "real_time_factor_per_core", 3),
        ("tune/mono/scales.json", "lmwt", "12"),
        ("tune/mono/scales.json", "at_edge", ["lmwt", "beam"]),
        ("align/tri1/train/statistics.json", "phones", ["AH"]),
        ("align/tri1/train/statistics.json", "frame_shift", True),
    ],
)
def test_a_wrong_value_is_told_in_one_line(
    experiment, quick, tmp_path, file, key, value
):
    shutil.copytree(experiment, tmp_path / "copy")
    path = tmp_path / "copy" / file
    write_json(path, json.loads(path.read_text()) | {key: value})
    with pytest.raises(
        UserError, match=f"{re.escape(str(path))}: {key}.*again"
    ) as told:
        read_all(tmp_path / "copy", quick)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("wer.tsv", "mono", "tri1"),
        ("wer.tsv", "ci_low", "lower"),
        ("tune/mono/sweep.tsv", "wip", "lmwt"),
        ("gmm/tri1/iterations.tsv", "-9", "x9"),
        ("score/mono/test/per_utterance.tsv", "***", "*** ***"),
    ],
)
def test_a_wrong_table_is_told_in_one_line(experiment, quick, tmp_path, file, old, new):
    shutil.copytree(experiment, tmp_path / "copy")
    path = tmp_path / "copy" / file
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match=f"{re.escape(str(path))}.*again"):
        read_all(tmp_path / "copy", quick)
