"""Mutated lattices, scores, and what experiments keep of their runs."""

import gzip
import json
import random
from contextlib import chdir
from itertools import islice
from pathlib import Path

import numpy as np
import yaml
from fixtures.made_up_alignments import make_system, states
from fixtures.made_up_networks import frame_log
from fixtures.made_up_results import made_up_recipe
from fixtures.mutations import (
    check,
    of_each,
    use_all,
    write_cuts,
    write_ledger,
    write_spoken,
)
from reference.determinize_naive import tangled_lattice

from latflow.align.corpus import LogLikes
from latflow.align.options import AlignSplitOptions
from latflow.archive_sizes import Entries
from latflow.corpus.ctm import read_ctm
from latflow.decode.joining import join_alignments, join_lattices
from latflow.decode.options import SearchOptions
from latflow.decode.totals import Totals, write_summary
from latflow.errors import UserError
from latflow.kaldi.io import write_int_vectors
from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.determinize.pruned import determinize
from latflow.lattice.io.archives import (
    LatticeArchive,
    read_compact_lattices,
    read_lattices,
    write_lattices,
)
from latflow.lattice.lattice import Lattice
from latflow.lattice.path_sums import forward_backward
from latflow.lattice.posteriors import (
    alignment_posteriors,
    read_posteriors,
    write_posteriors,
)
from latflow.lattice.prune import prune
from latflow.ledger import read_ledger
from latflow.ragged import RaggedWriter
from latflow.report.cost_figures import Run
from latflow.report.costs import read_costs
from latflow.report.inputs import read_log
from latflow.scoring.boundaries import read_labels
from latflow.scoring.options import (
    ComparisonOptions,
    LmwtOptions,
    ScoreOptions,
    TuneOptions,
)
from latflow.scoring.results import (
    COLUMNS,
    format_rates,
    read_scores,
    read_table,
    score_utterances,
    summarize_wer,
    totals,
    write_table,
)
from latflow.scoring.score import ScoreJob, score
from latflow.scoring.transcripts import read_text
from latflow.scoring.tune import read_scales, tune_scales
from latflow.workflow.code_digest import _Kept
from latflow.workflow.experiment import load as load_recipe
from latflow.workflow.jobs import above_limit, describe, find_record
from latflow.workflow.settings import read_config


def has_path(lattice):
    """Return whether a path leads to a final state."""
    try:
        forward_backward(lattice)
    except UserError:
        return False
    return True


def write_lattice_archive(path, rng, *, binary, compact):
    tangled = (tangled_lattice(rng, 3) for _ in range(100))
    lattices = list(islice((x for x in tangled if has_path(x)), 2))
    items = [
        (f"u{i}", lattice.to_compact() if compact else lattice)
        for i, lattice in enumerate(lattices)
    ]
    write_lattices(path, items, binary=binary)


def use_lattices(path, read):
    for _, lattice in read(path):
        best_paths(lattice, [Scales.from_lmwt(7, 0.0), Scales.from_lmwt(9, 1.0)])
        forward_backward(lattice, acoustic_scale=0.1)
        determinize(prune(lattice, 8.0, acoustic_scale=0.1), beam=6.0)


def lattice_kind(*, binary, compact):
    read = read_compact_lattices if compact else read_lattices
    return (
        "a.ark",
        lambda path, rng: write_lattice_archive(
            path, rng, binary=binary, compact=compact
        ),
        lambda path: use_lattices(path, read),
    )


def use_scales(path):
    chosen = read_scales(path)
    Scales.from_lmwt(chosen["lmwt"], chosen["wip"])


def write_gammas(path, rng, *, binary):
    items = [(f"u{i}", alignment_posteriors(rng.integers(0, 9, 4))) for i in range(2)]
    write_posteriors(path, items, binary=binary)


def write_scores(path, rng):
    said, heard = {"u0": ["A", "B"], "u1": ["B"]}, {"u0": ["A"], "u1": ["B", "C"]}
    speakers = {"u0": "s", "u1": "t"}
    scores = score_utterances(said, heard, speakers, options=ComparisonOptions())
    write_table(path, scores, {"wer": 2}, missing="nan")


def write_log(path, rng):
    lines = frame_log(random.Random(1))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_costs(folder, rng):
    path = folder / "benchmarks/make_graph/tri1.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text('{"s": 1.5, "max_rss": 100.0, "io_in": 1.0, "cpu_time": "NA"}\n')
    record = folder / "provenance/make_graph/tri1.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"rule": "make_graph", "wildcards": {}, "params": {}}\n')


def write_recipe(path, rng):
    values = made_up_recipe().model_dump(mode="json", exclude_unset=True, by_alias=True)
    path.write_text(yaml.safe_dump(values))


def use_log(path):
    log = read_log(path)
    [log.epochs_at(line) for line in log.steps]


def write_provenance(folder, rng):
    write_costs(folder, rng)
    (folder / "graph").mkdir()
    (folder / "graph/ledger.jsonl").write_text("")
    record = {
        "rule": "make_graph", "wildcards": {"system": "tri1"}, "inputs": ["lang"],
        "outputs": {"graph/ledger.jsonl": {"bytes": 0}}, "params": {"scale": 1.0},
        "params_digest": "0a", "config_digest": "0b", "code_digest": "0c",
        "seeds": {}, "versions": {"numpy": "2"}, "commit": "0d", "threads": 1,
        "started": "2026-01-01", "seconds": 1.5,
    }  # fmt: skip
    (folder / "provenance/make_graph/tri1.json").write_text(json.dumps(record))
    frames = folder / "streams/gmm/frames/train/meta.json"
    frames.parent.mkdir(parents=True)
    frames.write_text('{"num_frames": 100, "frame_shift": 0.01, "num_utterances": 2}')


def use_provenance(folder):
    describe(find_record(folder / "graph/ledger.jsonl"))
    list(above_limit(folder, 0.1))
    Run(folder).figures()


def write_part(folder, rng):
    """Write what decoding and aligning a part of a set leave."""
    given = folder.parent / "given"
    given.mkdir()
    lang, _, model = write_spoken(given)
    write_lattice_archive(folder / "lattices.ark", rng, binary=True, compact=True)
    totals = Totals(0.01, 1, utterances=3, skipped=1, frames=300)
    lattices, facts = Entries(), {"lattice_scale": 1.0}
    for name in ("u0", "u1"):
        lattices.add(name)
    write_summary(folder, "1-of-1", totals, SearchOptions(), facts, lattices=lattices)
    path = states(lang, model, ["EY_B"], (5,))
    (folder / "ali").mkdir()
    write_ledger(folder / "ledger.jsonl", rng)
    write_ledger(folder / "ali/ledger.jsonl", rng)
    write_int_vectors(folder / "ali/ali.ark", [("u1", path)])
    with RaggedWriter(folder / "ali/log_likes", LogLikes) as writer:
        writer.write("u1", np.zeros(len(path)))
    told = {"num_aligned": 1, "num_failed": 1, "frame_shift": 0.01}
    (folder / "ali/statistics.json").write_text(json.dumps(told))


def use_part(folder):
    given = folder.parent / "given"
    join_lattices(
        [folder], folder / "joined", options=SearchOptions(), max_skipped_fraction=1.0
    )
    join_alignments(
        [folder / "ali"], given / "lang", given, folder / "joined",
        options=AlignSplitOptions(), max_skipped_fraction=1.0,
    )  # fmt: skip


def write_rates(folder, rng):
    rates = folder / "tri1/dev/wer.json"
    rates.parent.mkdir(parents=True)
    bounds = {"low": 1.0, "high": 3.0}
    told = dict.fromkeys(COLUMNS, 2) | {"confidence_interval": bounds}
    rates.write_text(json.dumps(told))


def use_rates(folder):
    summarize_wer([folder / "tri1/dev/wer.json"], folder / "wer.tsv")
    format_rates(read_table(folder / "wer.tsv"))


def write_indexed(folder, rng):
    write_lattice_archive(folder / "a.ark", rng, binary=True, compact=False)
    lattices = list(read_lattices(folder / "a.ark"))
    with chdir(folder):
        write_lattices("a.ark", lattices, scp="a.scp")


def use_indexed(folder):
    archive = LatticeArchive(folder / "a.scp")
    for utterance in archive.utterances:
        best_paths(archive.lattice(utterance), [Scales.from_lmwt(7, 0.0)])


def write_scored(folder, rng):
    """Write a decoded set: its lattices, references and scales."""
    given = folder.parent / "given"
    given.mkdir()
    _, lang, model = make_system(given)
    path = states(lang, model, ["W_B", "AH_I", "N_E"], (4, 5, 6))
    word = lang.words_to_ids("ONE")[0]
    lattices = []
    for name in ("u0", "u1"):
        arcs = [(i, i + 1, tid, 0) for i, tid in enumerate(path.tolist())]
        arcs[0] = (0, 1, int(path[0]), word)
        costs = rng.normal(size=(len(arcs), 2)).astype(np.float32)
        finals = np.full((len(arcs) + 1, 2), np.inf, np.float32)
        finals[-1] = 0.0
        lattice = Lattice.from_arcs(np.array(arcs, np.int32), costs, finals)
        lattices.append((name, lattice))
    write_lattices(folder / "lattices.ark", lattices)
    write_cuts(folder / "cuts.jsonl.gz", rng)
    (folder / "scales.json").write_text('{"lmwt": 9, "wip": 0.5}')


def use_scored(folder):
    given, lattices = folder.parent / "given", folder / "lattices.ark"
    cuts, scales = folder / "cuts.jsonl.gz", folder / "scales.json"
    score(
        ScoreJob(
            lattices=lattices,
            cuts=cuts,
            lang_dir=given / "lang",
            model_dir=given,
            scales=scales,
            out_dir=folder / "out",
        ),
        options=ScoreOptions(decision="mbr"),
        seed=1,
    )
    tuned = TuneOptions(lmwt=LmwtOptions(min=8, max=9), widen=False)
    tune_scales(
        lattices, cuts, given / "lang", folder / "tuned", options=tuned,
        comparison=ComparisonOptions(),
    )  # fmt: skip


#: Name of file or folder, how it is written, how it is used.
KINDS = {
    "raw lattices, binary": lattice_kind(binary=True, compact=False),
    "raw lattices, text": lattice_kind(binary=False, compact=False),
    "compact lattices, binary": lattice_kind(binary=True, compact=True),
    "compact lattices, text": lattice_kind(binary=False, compact=True),
    "texts": (
        "text",
        lambda p, _: p.write_text("u0 ONE TWO\nu1 TWO\n"),
        read_text,
    ),
    "times": (
        "hyp.ctm",
        lambda p, _: p.write_text("u0 1 0.1 0.2 ONE 0.9\nu0 1 0.3 0.2 TWO\n"),
        use_all(read_ctm),
    ),
    "scales": (
        "scales.json",
        lambda p, _: p.write_text('{"lmwt": 9, "wip": 0.5, "wer": 3.0}\n'),
        use_scales,
    ),
    "labels of CTM": (
        "a.ctm",
        lambda p, _: p.write_text("u0 1 0.1 0.2 ONE 0.9\nu0 1 0.3 0.2 TWO\n"),
        lambda p: read_labels(p, "words"),
    ),
    "ledger": ("ledger.jsonl", write_ledger, use_all(read_ledger)),
    "posteriors, binary": (
        "a.post",
        lambda p, rng: write_gammas(p, rng, binary=True),
        use_all(read_posteriors),
    ),
    "posteriors, text": (
        "a.post",
        lambda p, rng: write_gammas(p, rng, binary=False),
        use_all(read_posteriors),
    ),
    "scores": ("u.tsv", write_scores, lambda p: totals(read_scores(p))),
    "log of a training": ("log.jsonl", write_log, use_log),
    "costs": ("", write_costs, read_costs),
    "provenance": ("", write_provenance, use_provenance),
    "parts of a set": ("", write_part, use_part),
    "word error rates": ("", write_rates, use_rates),
    "lattices of an scp file": ("", write_indexed, use_indexed),
    "definitions of the code": (
        "definitions.json.gz",
        lambda p, _: p.write_bytes(gzip.compress(b'{"key": "0a", "files": {}}')),
        _Kept,
    ),
    "decoded set": ("", write_scored, use_scored),
    "recipe": ("a.yaml", write_recipe, lambda p: load_recipe(read_config(p))),
}


@of_each(KINDS)
def test_a_mutated_file_gives_a_result_or_one_clear_line(tmp_path: Path, kind, cases):
    check(KINDS, kind, tmp_path, cases)
