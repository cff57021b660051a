"""The stages `decode` and `tune_scales` on Kaldi's digits model and features."""

import gzip
import json
import shutil

import numpy as np
import pytest

from latflow.decode.lattices import decode_lattices, sweep_beams
from latflow.decode.options import SearchOptions
from latflow.errors import UserError
from latflow.features.frames import FrameWriter
from latflow.features.transform import Deltas, Identity
from latflow.gmm.model import save_transform
from latflow.kaldi.io import read_int_vectors, read_matrices
from latflow.lattice.best_path import best_path
from latflow.lattice.io.archives import read_lattices
from latflow.ledger import read_ledger
from latflow.parts import SetJob
from latflow.scoring.options import ComparisonOptions, LmwtOptions, TuneOptions
from latflow.scoring.results import read_table
from latflow.scoring.transcripts import read_text
from latflow.scoring.tune import tune_scales


@pytest.fixture
def options(repository):
    return SearchOptions(acoustic_scale=0.1)


@pytest.fixture
def features(golden):
    return dict(read_matrices(golden / "features" / "mfcc39_cmvn.txt.gz"))


@pytest.fixture
def run(golden, tmp_path, options, features):
    """Decode frames; returns the folder."""
    system = tmp_path / "system"
    shutil.copytree(golden / "gmm" / "tri1", system)

    def run(
        frames=None, *, threads=1, allowed=0.0, name="out", transform=None, **changes
    ):
        save_transform(system, transform or Identity())
        folder = tmp_path / f"frames-{name}"
        with FrameWriter(folder, dim=39) as writer:
            for utterance, matrix in sorted((frames or features).items()):
                writer.append(utterance, "speaker", "", matrix)
        decode_lattices(
            SetJob(
                frames_dir=folder,
                model_dir=system,
                lang_dir=golden / "lang",
                out_dir=tmp_path / name,
                threads=threads,
                max_skipped_fraction=allowed,
            ),
            graph=golden / "graph" / "HCLG_tri1.fst",
            options=options.replace(**changes),
        )
        return tmp_path / name

    return run


def write_cuts(path, texts):
    with gzip.open(path, "wt") as out:
        for utt, words in texts.items():
            part = {"start": 0.0, "duration": 3.0, "recording_id": utt}
            supervision = {"id": utt, "channel": 0, "speaker": "s", **part}
            supervision["text"] = " ".join(words)
            features = {"type": "kaldi-mfcc", "num_frames": 300, "num_features": 13}
            features |= {"frame_shift": 0.01, "sampling_rate": 8000, "channels": 0}
            features |= {"storage_type": "memory_raw", "storage_path": "", **part}
            features |= {"storage_key": "", "start": 0}
            cut = {"id": utt, "start": 0.0, "duration": 3.0, "channel": 0}
            cut |= {"supervisions": [supervision], "features": features}
            out.write(json.dumps({**cut, "type": "MonoCut"}) + "\n")


def test_words_are_kaldis(run, golden):
    out = run()
    assert {p.name for p in out.iterdir()} == {
        "lattices.ark",
        "ledger.jsonl",
        "decode.json",
    }
    expected = dict(read_int_vectors(golden / "lattice" / "best_words_beam13.int"))
    found = list(read_lattices(out / "lattices.ark"))
    assert [utterance for utterance, _ in found] == sorted(expected)
    for utterance, lattice in found:
        path = best_path(lattice, acoustic_scale=0.1)
        assert path.words.tolist() == expected[utterance].tolist()
    summary = json.loads((out / "decode.json").read_text())
    assert (summary["utterances"], summary["frames"]) == (6, 1758)
    assert summary["audio_seconds"] == pytest.approx(17.58)
    assert (summary["skipped"], summary["retried"], summary["partial"]) == (0, 0, 0)
    assert summary["real_time_factor_per_core"]["both"] > 0
    assert list(read_ledger(out / "ledger.jsonl")) == []


def test_threads_write_the_same_bytes(run):
    one, two = run(), run(threads=2, name="two")
    assert (one / "lattices.ark").read_bytes() == (two / "lattices.ark").read_bytes()


def test_an_utterance_cut_short_is_retried_then_partial(run, features):
    cut = {"george-test-0000": features["george-test-0000"][:35]}
    narrow = {"beam": 3.0, "lattice_beam": 2.0, "min_active": 0}
    out = run(cut, **narrow)
    (entry,) = read_ledger(out / "ledger.jsonl")
    assert (entry.action, entry.beam) == ("partial", 6.0)
    summary = json.loads((out / "decode.json").read_text())
    assert (summary["retried"], summary["partial"]) == (1, 1)
    out = run(cut, name="wide", **narrow, retry_beam_factor=100.0)
    (entry,) = read_ledger(out / "ledger.jsonl")
    assert (entry.action, entry.beam) == ("retried", 300.0)
    out = run(cut, name="partial", **narrow, on_no_final="partial")
    (entry,) = read_ledger(out / "ledger.jsonl")
    assert (entry.action, entry.beam) == ("partial", 3.0)
    with pytest.raises(UserError, match="george-test-0000: no final state"):
        run(cut, name="fail", **narrow, on_no_final="fail")


def test_bad_frames_are_skipped_and_counted(run, features):
    bad = {**features, "lucas-test-0002": features["lucas-test-0002"].copy()}
    bad["lucas-test-0002"][7] = np.nan
    out = run(bad, allowed=0.2)
    (entry,) = read_ledger(out / "ledger.jsonl")
    assert (entry.utterance, entry.action) == ("lucas-test-0002", "skipped")
    assert "frame 7 hold NaN" in entry.reason
    assert len(list(read_lattices(out / "lattices.ark"))) == 5
    with pytest.raises(UserError, match="skipped 1 of 6"):
        run(bad, name="strict")


def test_failure_leaves_no_lattices(run, features, tmp_path):
    bad = {"a": np.full_like(features["lucas-test-0002"], np.nan)}
    with pytest.raises(UserError, match="skipped 1 of 1"):
        run(bad)
    assert not (tmp_path / "out" / "lattices.ark").exists()
    assert not (tmp_path / "out" / "decode.json").exists()


def test_parts_that_do_not_fit(run, features):
    with pytest.raises(UserError, match="features of dimension 117"):
        run(transform=Deltas(2, 2))


def test_wider_beams_cost_more_and_hold_more(golden, tmp_path, options, features):
    texts = read_text(golden / "align" / "text")
    texts["george-test-0000"] = ["NINE", *texts["george-test-0000"]]  # one error
    with FrameWriter(tmp_path / "frames", dim=39) as writer:
        for utterance, matrix in sorted(features.items()):
            writer.append(utterance, "s", " ".join(texts[utterance]), matrix)
    system = tmp_path / "system"
    shutil.copytree(golden / "gmm" / "tri1", system)
    save_transform(system, Identity())
    (tmp_path / "tune").mkdir()
    (tmp_path / "tune" / "scales.json").write_text('{"lmwt": 10, "wip": 0.0}')
    sweep_beams(
        SetJob(
            frames_dir=tmp_path / "frames",
            model_dir=system,
            lang_dir=golden / "lang",
            out_dir=tmp_path / "tune",
            threads=2,
        ),
        graph=golden / "graph" / "HCLG_tri1.fst",
        lattices_dir=tmp_path / "decode",
        scales=tmp_path / "tune" / "scales.json",
        options=options.replace(min_active=0),
        beams=[13, 8],
        score=ComparisonOptions(),
    )
    lines = (tmp_path / "tune" / "beams.tsv").read_text().splitlines()
    narrow, wide = (
        dict(zip(lines[0].split("\t"), map(float, line.split("\t")), strict=True))
        for line in lines[1:]
    )
    assert (narrow["beam"], wide["beam"]) == (8, 13)
    assert wide["words"] == sum(map(len, texts.values()))
    assert wide["del"] == wide["ins"] + wide["del"] + wide["sub"] == 1
    assert wide["wer"] == pytest.approx(100 / wide["words"], abs=1e-3)
    assert 0 < narrow["active"] < wide["active"]
    assert narrow["depth"] <= wide["depth"]
    assert narrow["rtf"] > 0


def tune(golden, folder, options):
    tune_scales(
        golden / "lattice" / "raw_beam13.lats", folder / "cuts.jsonl.gz",
        golden / "lang", folder / "tune",
        options=options, comparison=ComparisonOptions(),
    )  # fmt: skip


def test_scales_are_chosen_on_the_references(golden, tmp_path):
    texts = read_text(golden / "align" / "text")
    write_cuts(tmp_path / "cuts.jsonl.gz", texts)
    tune(golden, tmp_path, TuneOptions())
    scales = json.loads((tmp_path / "tune" / "scales.json").read_text())
    assert scales == {"lmwt": 23, "wip": 0.0, "wer": 0.0, "at_edge": []}
    rows = (tmp_path / "tune" / "sweep.tsv").read_text().splitlines()
    assert rows[0].split("\t") == ["lmwt", "wip", "wer", "ins", "del", "sub", "words"]
    # All are as good: 0, the penalty nearest to 0, has -0.5 beside it from the start.
    assert len(rows) == 1 + 34 * 4
    assert rows[1].split("\t") == ["7", "-0.5", "0.0000", "0", "0", "0", "31"]


def test_sweep_goes_on_beyond_its_edge(golden, tmp_path):
    write_cuts(tmp_path / "cuts.jsonl.gz", read_text(golden / "align" / "text"))
    bounds = LmwtOptions(min=10, max=11)
    tune(golden, tmp_path, TuneOptions(lmwt=bounds, word_insertion_penalties=(2, 1)))
    scales = json.loads((tmp_path / "tune" / "scales.json").read_text())
    # All are as good: 10, the middle of 10 and 11, is an edge, 8 is not; nor is 0 as 1.
    assert (scales["lmwt"], scales["wip"], scales["at_edge"]) == (8, 0, [])
    sweep = read_table(tmp_path / "tune" / "sweep.tsv")
    assert sorted(set(sweep["lmwt"].astype(int))) == list(range(5, 12))
    assert sorted(set(sweep["wip"].astype(float))) == [-2, -1, 0, 1, 2]
    tune(golden, tmp_path, TuneOptions(lmwt=bounds, word_insertion_penalties=(1,)))
    scales = json.loads((tmp_path / "tune" / "scales.json").read_text())
    assert (scales["wip"], scales["at_edge"]) == (1, [])


def test_edges_and_missing_lattices_are_told(golden, tmp_path, caplog):
    texts = read_text(golden / "align" / "text")
    write_cuts(tmp_path / "cuts.jsonl.gz", {**texts, "zoe": ["ONE", "<SIL>", "TWO"]})
    options = TuneOptions(lmwt=LmwtOptions(min=10, max=11), widen=False)
    tune(golden, tmp_path, options)
    scales = json.loads((tmp_path / "tune" / "scales.json").read_text())
    assert scales["at_edge"] == ["lmwt", "wip"]
    assert scales["wer"] == pytest.approx(100 * 2 / 33)
    assert "at the edge of 10 ... 11" in caplog.text
    assert "penalty, 0, is at the edge of 0 ... 1" in caplog.text
    with pytest.raises(UserError, match="min 12 is above max 11"):
        tune(golden, tmp_path, TuneOptions(lmwt=LmwtOptions(min=12, max=11)))
    write_cuts(tmp_path / "cuts.jsonl.gz", {"zoe": ["ONE"]})
    with pytest.raises(UserError, match="a lattice without a reference"):
        tune(golden, tmp_path, options)
