"""Mutated results of an experiment: its report, and comparisons with another."""

import shutil
from pathlib import Path
from unittest import mock

from fixtures.made_up_networks import CONFIG, write_networks
from fixtures.made_up_results import made_up_recipe, write_experiment, write_json
from fixtures.mutations import check, of_each
from matplotlib.figure import Figure

from latflow.report.build import make_report
from latflow.report.comparison import comparison_sections
from latflow.report.cost_figures import Run
from latflow.scoring.options import BootstrapOptions

DRAWS = BootstrapOptions(samples=100)
SCORE, REPORT = {"bootstrap": {"samples": 100}}, {"num_examples": 1}
TRIALS = """sessions\tfinals\terrors\trtfx\tp50\tp90\tp95\tp99\tfirst_partial\twer\theld
2\t20\t0\t1.9\t0.05\t0.06\t0.07\t0.08\t0.5\t12.5\tTrue
4\t0\t90\t0.0\t\t\t\t\t\t\tFalse
"""
GENERATED = "word\tprobability\tphones\ttranscripts\tlm\nteh\t0.9\tT EH\t1\t0\n"
SUSPECTS = "utterance\treason\tscore\tdetails\ntest0-000\tbeam\t2.5\tx\n"


def recipe():
    """A recipe that asks for all that `write_results` writes."""
    config = made_up_recipe(
        nnet=CONFIG, score=SCORE, report=REPORT,
        lang={"g2p": {"num_pronunciations": 1}},
        decode={"rescore": {"lstm": {"lm": {"type": "neural"}}}},
        package={"systems": ["tri1"]},
        capacity={"systems": ["tri1"]},
        suspects={"sets": ["test"]},
    )  # fmt: skip
    return config.replace(corpus=config.corpus.replace(cleaned={"good": {}}))


def job(system):
    """What a job leaves in `provenance/`."""
    made = {f"gmm/{system}/final.mdl": {"bytes": 100, "sha256": "0a"}}
    options = {"training": {"epochs": 2}, "data": {"partition_epoch": 2}}
    return {
        "rule": "train_deltas", "wildcards": {"system": system},
        "inputs": ["streams/gmm/frames/train/meta.json"], "outputs": made,
        "params": {"options": options}, "code_digest": "0a", "versions": {"numpy": "2"},
        "cpu_seconds": 1.5, "peak_memory_mib": 100.0, "gpu_share": 0.5,
    }  # fmt: skip


def write_results(folder, rng):
    config = recipe()
    write_experiment(folder, config.score, num_utterances=8)
    write_networks(folder, config.score)
    perplexity = {"neural": 130.4, "ngram": 83.8, "mixture": 78.6}
    told = {
        "utterances": 4, "seconds": 7200.0, "whole_utterances": 2, "cut_utterances": 1,
        "kept_seconds": 5400.0, "dropped_seconds": {"silence": 360.0},
    }  # fmt: skip
    package = {"why_not_streaming": None, "sample_rate": 8000, "lmwt": 9.0, "wip": 0.5}
    mixture = {"weight": 0.3, "perplexity": perplexity}
    write_json(folder / "lm/lstm.mixture.json", mixture)
    write_json(folder / "corpus/good/cleaned.json", told)
    write_json(
        folder / "package/tri1/package.json",
        {**package, "confidences": [[0.5, 0.5], [0.9, 0.5]]},
    )
    for system in ("a", "b"):
        write_json(folder / f"provenance/train_deltas/{system}.json", job(system))
    config = {"params": {"config": {"seed": 1}}}
    write_json(folder / "provenance/make_report/report.json", config)
    frames = {"num_frames": 100, "frame_shift": 0.01, "num_utterances": 2}
    write_json(folder / "streams/gmm/frames/train/meta.json", frames)
    for name, text in {
        "capacity/tri1.tsv": TRIALS,
        "lang/generated.tsv": GENERATED,
        "suspects/test/suspects.tsv": SUSPECTS,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def drawn(figure, stream, **_):
    """Lay out a figure, and write little: its text would take most of the time."""
    stream.write("<svg></svg>")


def use_report(folder):
    with mock.patch.object(Figure, "savefig", drawn):
        make_report(folder, folder / "r.html", folder / "r.md", config=recipe())


def use_comparison(folder):
    before = folder.parent / "before"
    if not before.is_dir():
        shutil.copytree(folder, before)
    with mock.patch.object(Figure, "savefig", drawn):
        comparison_sections(before, folder, bootstrap=DRAWS, seed=1)
    Run(folder).figures()


#: Name of file or folder, how it is written, how it is used.
KINDS = {
    "results for a report": ("", write_results, use_report),
    "results to compare": ("", write_results, use_comparison),
}


def test_what_is_mutated_is_what_a_report_reads(tmp_path):
    write_results(tmp_path, None)
    use_report(tmp_path)
    page = (tmp_path / "r.html").read_text()
    for told in ("78.6", "teh", "1.500", "Serving capacity"):
        assert told in page


@of_each(KINDS)
def test_a_mutated_file_gives_a_result_or_one_clear_line(tmp_path: Path, kind, cases):
    check(KINDS, kind, tmp_path, cases)
