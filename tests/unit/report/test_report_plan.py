"""Plans: the model of costs, amounts of data, jobs on machines."""

import json
import math
from types import SimpleNamespace
from unittest import mock

import pandas as pd
import pytest

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.report import cost_figures
from latflow.report.cost_figures import (
    FIGURES,
    Run,
    Work,
    all_figures,
    packaged_figures,
    work_of,
)
from latflow.report.cost_model import Cost, CostModel, error_factors, leave_one_out
from latflow.report.inputs import read_jobs
from latflow.report.plan import make_plan, own_run, render
from latflow.report.schedule import Estimate, Machines, Plan
from latflow.workflow.amounts import split_amounts
from latflow.workflow.job_graph import PlannedJob, plan_jobs
from latflow.workflow.network_sizes import NetworkSizes
from latflow.workflow.recipe import Recipe


def figures(*rows):
    """Jobs of runs: (run, rule, seconds, MiB memory, MiB disk, hours, MiB read)."""
    table = [
        [run, rule, f"job{n}", 0, cpu, cpu, memory, disk, hours, 1, math.nan, read, 0]
        for n, (run, rule, cpu, memory, disk, hours, read) in enumerate(rows)
    ]
    return pd.DataFrame(table, columns=FIGURES)


ALIGNMENT = figures(
    ("one", "align", 4 + 10 * 0.1, 300, 2, 0.1, 0),
    ("one", "align", 4 + 10 * 0.4, 300, 8, 0.4, 0),
    ("two", "align", 4 + 10 * 2, 300, 40, 2.0, 0),
    ("two", "align", 90, 300, 40, 2.0, 0),  # it compiled its kernels
    ("two", "make_graph", 3, 200, 4, math.nan, 2.0),
    ("two", "make_graph", 9, 500, 16, math.nan, 8.0),
)


def test_line_goes_through_jobs_and_past_the_one_that_is_off():
    cost = CostModel(ALIGNMENT).predict("align", Work(100.0))
    assert isinstance(cost, Cost)
    assert (cost.start_seconds, cost.cpu_seconds) == pytest.approx((4, 1004))
    assert (cost.memory_mib, cost.disk_mib) == pytest.approx((300, 2000))
    assert cost.reach == pytest.approx(50)


def test_memory_that_hardly_rises_is_not_told_far_beyond_what_was_seen():
    """By two runs of next to nothing, 50 MiB more for 0.6 read, 500 read 40 GB."""
    small = [("one", "make_lm", 1, 118, 0.1, math.nan, 0.01)]
    small += [("two", "make_lm", 1, 180, 0.1, math.nan, 0.6)]
    model = CostModel(figures(*small))
    near, far = (model.predict("make_lm", Work(input_mib=n)) for n in (0.1, 500))
    assert isinstance(near, Cost)
    assert isinstance(far, Cost)
    assert 118 <= near.memory_mib < 150
    assert math.isnan(far.memory_mib)


def test_a_finished_run_has_nothing_left():
    told = render(Plan([], Machines(1, 2, 0)), ALIGNMENT)
    assert told == "Nothing is left to run: all that was asked for is up to date."


def test_a_part_of_a_set_costs_what_its_rule_does_for_less_speech():
    model = CostModel(ALIGNMENT)
    assert model.predict("align_part", Work(2.5)) == model.predict("align", Work(2.5))
    assert work_of({}, (10.0, 400), share=0.25).time == pytest.approx(2.5)


def test_job_without_speech_goes_by_what_it_reads():
    cost = CostModel(ALIGNMENT).predict("make_graph", Work(input_mib=20.0))
    assert isinstance(cost, Cost)
    assert (cost.cpu_seconds, cost.memory_mib) == pytest.approx((21, 1100))
    assert cost.disk_mib == pytest.approx(40)


@pytest.mark.parametrize(
    ("rule", "work", "on_gpu", "why"),
    [
        ("train_network", Work(1.0), False, "no earlier run has shown it"),
        ("align", Work(1.0), True, "no earlier run has shown it on a GPU"),
        ("make_graph", Work(), False, "size of a file that it reads is not known"),
        ("align", Work(30000.0), False, "15000 times the largest job that was seen"),
    ],
)
def test_what_was_not_seen_is_unknown(rule, work, on_gpu, why):
    assert why in str(CostModel(ALIGNMENT).predict(rule, work, on_gpu=on_gpu))


def test_work_follows_settings():
    options = {"num_iterations": 40, "subset_shortest": 100}
    assert work_of({"options": options}, (2.0, 400)).time == pytest.approx(20)
    assert work_of({"options": options}, (2.0, None)).time == pytest.approx(80)
    training = {"training": {"epochs": 6}, "data": {"partition_epoch": 2}}
    work = work_of({"options": training}, (2.0, 400), parameters=1.5)
    assert work.time == pytest.approx(2 * 3 * 1.5)
    assert work.disk == 1.5
    assert work_of({"options": {}}, (2.0, 400), parameters=1.5).time == 2.0


def test_each_run_is_predicted_from_the_others():
    left = leave_one_out(ALIGNMENT)
    assert set(left["run"]) == {"one", "two"}
    assert set(left["rule"]) == {"align"}  # one run alone has the other rule
    factors = error_factors(left)
    assert set(factors) == {"time", "memory", "disk"}
    assert factors["memory"] == pytest.approx((1, 1))


def test_packaged_figures_predict_each_other():
    table = packaged_figures()
    factors = error_factors(leave_one_out(table))
    assert len(table) > 250
    assert factors["time"][0] < 1.75
    assert factors["memory"][0] < 1.5


@pytest.fixture
def results(tmp_path):
    """A lexicon, features, and an alignment that reads both."""

    def put(path, value):
        target = tmp_path / "results/run" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(value) + "\n")

    frames = "streams/gmm/frames/train/meta.json"
    put(frames, {"num_frames": 36_000, "frame_shift": 0.01})
    put("streams/gmm/frames/train/frames.bin", "x" * 1000)
    lexicon = tmp_path / "lexicon.txt"
    lexicon.write_text("a " * 2048)
    jobs = {
        ("make_lang", "lang"): ([str(lexicon)], {"lang/L.fst": {"bytes": 8192}}, {}),
        ("compute_cmvn", "train"): (
            [], {frames: {"bytes": 24}}, {"split": "train"},
        ),
        ("align", "mono"): (
            ["lang/L.fst", frames], {"align/ali": {"bytes": 4}}, {},
        ),
    }  # fmt: skip
    for (rule, job), (inputs, outputs, wildcards) in jobs.items():
        measured = {"s": 10.0, "cpu_time": 15.0, "max_rss": 200.0}
        put(f"benchmarks/{rule}/{job}.jsonl", measured)
        record = {"inputs": inputs, "outputs": outputs, "wildcards": wildcards}
        put(f"provenance/{rule}/{job}.json", record)
    return tmp_path / "results/run"


def test_records_are_read_once(results):
    run = Run(results)
    planned = own_run(SimpleNamespace(results=str(results)), [run])
    assert planned is run
    with mock.patch.object(cost_figures, "read_jobs", wraps=read_jobs) as reading:
        all_figures([run])
        over_speech = planned.files_over_speech({"train"})
    assert f"{results}/streams/gmm/frames/train/meta.json" in over_speech
    assert reading.call_count == 1


def test_figures_of_a_run_join_the_packaged_ones(results):
    found = Run(results).figures().set_index("rule")
    assert found.loc["make_lang", "input_mib"] == pytest.approx(4096 / 2**20)
    features = found.loc["compute_cmvn"]
    assert features["audio_hours"] == pytest.approx(0.1)
    assert features["disk_mib"] > 1000 / 2**20  # what it did not declare, too
    assert found.loc["align", "audio_hours"] == pytest.approx(0.1)
    assert found.loc["align", "graph_mib"] == pytest.approx(8192 / 2**20)
    assert list(found["cpu_seconds"]) == [15, 15, 15]
    assert len(all_figures([Run(results)])) == len(packaged_figures()) + 3
    with pytest.raises(UserError, match="no measured jobs here"):
        all_figures([Run(results.parent)])


RECIPE = {
    "experiment": "planned",
    "corpus": {
        "train": {"type": "lhotse", "recipe": "librispeech", "root": "nowhere"},
        "perturbed": {"train_sp": {"speeds": [0.5, 1.0]}},
        "test": {"eval": {"type": "synthetic", "utterances": 1440}},
    },
    "lang": {"lexicon": "lexicon.txt"},
    "lm": {"type": "uniform"},
}


def test_amounts_are_given_or_follow(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    recipe = Recipe.from_config(RECIPE)
    with pytest.raises(UserError, match="hours of full are not known"):
        split_amounts(recipe, {}, {})
    with pytest.raises(UserError, match="trian is not a set of the recipe"):
        split_amounts(recipe, {"trian": 1}, {})
    amounts = split_amounts(recipe, {"full": 10}, {"full": 1000})
    assert amounts["train"] == (pytest.approx(9), 900)
    assert amounts["dev"] == (pytest.approx(1), 100)
    assert amounts["train_sp"] == (pytest.approx(27), 1800)
    assert amounts["eval"] == (pytest.approx(1), 1440)
    assert split_amounts(recipe, {"train": 9}, {})["full"] == (pytest.approx(10), None)


def job(number, *needs, rule="align", threads=2, gpu=0, inputs=(), outputs=(), **wild):
    return PlannedJob(
        number=number, rule=rule, name=f"j{number}", wildcards=wild, inputs=inputs,
        outputs=outputs, params={}, threads=threads, gpu=gpu, needs=needs,
    )  # fmt: skip


def planned(*jobs, seconds, machines):
    cost = Cost(1, 10, 100, 5, 1)
    estimates = [Estimate(j, cost, seconds[j.number]) for j in jobs]
    return Plan(estimates, machines)


@pytest.mark.parametrize(
    ("machines", "expected"),
    [((1, 2, 0), 100), ((1, 4, 0), 60), ((2, 2, 0), 60), ((1, 8, 0), 60)],
)
def test_wall_time_is_that_of_jobs_placed_on_machines(machines, expected):
    jobs = [job(0), job(1, 0), job(2, 0), job(3, 1)]
    seconds = {0: 10, 1: 20, 2: 40, 3: 30}
    plan = planned(*jobs, seconds=seconds, machines=Machines(*machines))
    assert plan.wall_seconds == pytest.approx(expected)
    assert [e.job.number for e in plan.critical_path] == [0, 1, 3]


def test_jobs_wait_for_a_gpu():
    jobs = [job(n, threads=1, gpu=1) for n in range(3)]
    seconds = dict.fromkeys(range(3), 10)
    plan = planned(*jobs, seconds=seconds, machines=Machines(1, 8, 1))
    assert plan.wall_seconds == 30
    assert "GPU time" in render(plan, ALIGNMENT)


def test_plan_follows_sizes_and_names_what_is_unknown(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    jobs = [
        job(0, rule="download", outputs=["lm.arpa.gz"]),
        job(1, 0, rule="make_graph", threads=1, inputs=["lm.arpa.gz"], outputs=["G"]),
        job(2, rule="align", threads=4, outputs=["a"], split="train"),
        job(3, 1, 2, rule="make_graph", threads=1, inputs=["G", "a"], outputs=["H"]),
    ]
    model = CostModel(ALIGNMENT)
    options = {
        "machines": Machines(1, 4, 0),
        "splits": {"train": (10.0, None)},
        "done": Run(tmp_path),
    }
    recipe = Recipe.from_config(RECIPE)
    plan = make_plan(recipe, jobs, model, **options)
    assert [type(e.cost) for e in plan.estimates] == [str, str, Cost, str]
    text = render(plan, ALIGNMENT)
    assert "make_graph (2 jobs): the size of a file that it reads is not known" in text
    plan = make_plan(recipe, jobs, model, **options, files={"lm.arpa.gz": 4.0})
    assert [type(e.cost) for e in plan.estimates] == [str, Cost, Cost, Cost]
    # 4 MiB make a graph of 8; alignments go over speech and are not language data.
    assert plan.estimates[1].cost.disk_mib == pytest.approx(8)
    assert plan.estimates[3].cost.disk_mib == pytest.approx(16)
    assert plan.estimates[2].seconds == pytest.approx(4 + 100 / 4)
    text = render(plan, ALIGNMENT)
    assert "largest job      make_graph j3: 524 MB of memory" in text
    assert "1 x 4 cores" in text
    with pytest.raises(UserError, match="no job reads such a file"):
        make_plan(recipe, jobs, model, **options, files={"lm.arpa": 4.0})


def test_what_is_done_over_speech_is_no_language_data(monkeypatch, tmp_path):
    """A lattice counts for nothing where the job that made it isn't planned again."""
    monkeypatch.chdir(tmp_path)
    recipe = Recipe.from_config(RECIPE)
    lattices = tmp_path / recipe.results / "decode/mono/dev/lattices.ark"
    record = tmp_path / recipe.results / "provenance/decode_lattices/mono.dev.json"
    for path in (lattices, record):
        path.parent.mkdir(parents=True)
    lattices.write_bytes(bytes(50 << 20))
    name = str(lattices.relative_to(tmp_path))
    made = {"outputs": {"decode/mono/dev/lattices.ark": {"bytes": 50 << 20}}}
    made["wildcards"] = {"split": "train"}
    record.write_text(json.dumps({"inputs": [], "params": {}, **made}))
    (tmp_path / "G").write_bytes(bytes(4 << 20))
    jobs = [job(0, rule="make_graph", threads=1, inputs=["G", name], outputs=["H"])]
    plan = make_plan(
        recipe,
        jobs,
        CostModel(ALIGNMENT),
        Machines(1, 4, 0),
        splits={"train": (10.0, None)},
        done=own_run(recipe, []),
    )
    assert plan.estimates[0].cost.disk_mib == pytest.approx(8)  # 4 MiB make 8


def test_plan_counts_what_a_training_keeps_in_memory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    wide = {"class": "linear", "size": 20_000}
    layers = {
        "one": {**wide, "from": "data"},
        "two": wide,
        "output": {"class": "output"},
    }
    (tmp_path / "wide.yaml").write_text(json.dumps({"layers": layers}))
    system = {"type": "ce", "network": "wide.yaml", "alignments": "mono"}
    recipe = Recipe.from_config({**RECIPE, "nnet": {"systems": {"wide": system}}})
    training = {"training": {"epochs": 2}}
    of = job(0, rule="train_network", threads=1, inputs=["x/frames/train/meta.json"])
    jobs = [of.replace(params={"options": training}, wildcards={"network": "wide"})]
    figures = packaged_figures()
    plan = make_plan(
        recipe, jobs, CostModel(figures),
        machines=Machines(1, 4, 0), splits={"train": (1.0, 500)}, done=Run(tmp_path),
    )  # fmt: skip
    (estimate,) = plan.estimates
    # Adam's two moments, gradient and value of 20,000 x 20,000 weights and some
    assert estimate.memory.state / 2**30 == pytest.approx(6.0, rel=0.1)
    assert estimate.cost.memory_mib > 6 * 1024
    text = render(plan, figures)
    assert "Trainings keep in memory, of the device that they run on:" in text
    assert "million parameters, 6." in text


def test_plan_counts_networks_on_samples(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    layers = {
        "spectra": {"class": "stft"},
        "mel": {"class": "mel", "sample_rate": 8000, "filters": "weights"},
        "output": {"class": "output"},
    }
    (tmp_path / "samples.yaml").write_text(json.dumps({"layers": layers}))
    samples = {"type": "waveform", "cmvn": {"type": "none"}}
    system = {
        "type": "ce", "network": "samples.yaml", "alignments": "mono",
        "features": "samples", "data": {"normalization": "none"},
    }  # fmt: skip
    nnet = {"features": {"samples": samples}, "systems": {"learnt": system}}
    recipe = Recipe.from_config({**RECIPE, "nnet": nnet})
    memory = NetworkSizes(recipe, {"train": (1.0, 500)}).memory("learnt")
    # windows of 200 samples have 129 lines of the spectrum
    count = 129 * 40 + 41 * 100
    assert memory.state == pytest.approx(4 * 4 * count, rel=0.01)


@pytest.mark.slow
def test_no_rule_of_a_recipe_with_all_kinds_of_systems_is_unknown(
    repository, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    recipe = str(repository / "benchmarks/rarer.yaml")
    assert main(["plan", recipe, "--cores", "1", "--gpus", "0"]) == 0
    said = capsys.readouterr().out
    for rule in ("join_lattices", "refine_boundaries", "train_language_model"):
        assert rule in said
    assert "Unknown" not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--hours", "train"], "--hours train is not NAME=NUMBER"),
        (["--hours", "train=-1"], "--hours train=-1 is not NAME=NUMBER"),
        (["--cores", "0"], "--nodes and --cores begin at 1"),
        (["--runs", "nowhere"], "no measured jobs here"),
    ],
)
def test_mistakes_are_one_line(monkeypatch, tmp_path, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "demo", *arguments]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_demo_is_planned_by_its_own_jobs(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["--cores", "2", "--gpus", "0"]
    assert main(["plan", "demo", "gmm_mono", *arguments]) == 0
    said = capsys.readouterr().out
    assert "train_mono" in said
    assert "critical path" in said
    with pytest.raises(UserError, match="no plan can be made: .*sed"):
        plan_jobs("demo", ["sed=2"], cores=2, gpus=0)


def test_memory_of_what_is_summed_by_utterance_hardly_grows():
    cost = CostModel(packaged_figures()).predict("compute_cmvn", Work(960.0))
    assert 400 < cost.memory_mib < 1000  # of a store of that size: 432
