"""The stage `score` on Kaldi's own lattices, language directory and model."""

import gzip
import json
from itertools import pairwise

import numpy as np
import pytest

from latflow.align.word_times import phone_segments
from latflow.corpus.ctm import read_ctm
from latflow.errors import UserError
from latflow.gmm.model import AcousticModel
from latflow.lang.directory import Lang
from latflow.scoring.lattice_quality import analyze_lattices
from latflow.scoring.options import ScoreOptions
from latflow.scoring.results import read_table, summarize_wer
from latflow.scoring.score import ScoreJob, recognize, score
from latflow.scoring.transcripts import read_text


def write_cuts(path, references):
    """Cuts with texts, speakers (the id's first part) and a 10 ms frame shift."""
    with gzip.open(path, "wt") as out:
        for utt, words in references.items():
            supervision = {
                "id": utt,
                "recording_id": utt,
                "start": 0.0,
                "duration": 3.0,
                "channel": 0,
                "text": " ".join(words),
                "speaker": utt.split("-")[0],
            }
            features = {
                "type": "kaldi-mfcc",
                "num_frames": 300,
                "num_features": 13,
                "frame_shift": 0.01,
                "sampling_rate": 8000,
                "start": 0,
                "duration": 3.0,
                "storage_type": "memory_raw",
                "storage_path": "",
                "storage_key": "",
                "recording_id": utt,
                "channels": 0,
            }
            cut = {"id": utt, "start": 0.0, "duration": 3.0, "channel": 0}
            cut |= {"supervisions": [supervision], "features": features}
            out.write(json.dumps({**cut, "type": "MonoCut"}) + "\n")


@pytest.fixture
def run(golden, tmp_path):
    """Score the golden lattices against references; returns the folder."""

    def run(references, **changes):
        write_cuts(tmp_path / "cuts.jsonl.gz", references)
        (tmp_path / "scales.json").write_text('{"lmwt": 10, "wip": 0.0}')
        score(
            ScoreJob(
                lattices=golden / "lattice" / "raw_beam13.lats",
                cuts=tmp_path / "cuts.jsonl.gz",
                lang_dir=golden / "lang",
                model_dir=golden / "gmm" / "tri1",
                scales=tmp_path / "scales.json",
                out_dir=tmp_path / "out",
            ),
            options=ScoreOptions(**changes),
            seed=1,
        )
        return tmp_path / "out"

    return run


def test_words_are_those_of_kaldis_best_path(run, golden):
    references = read_text(golden / "align" / "text")
    out = run(references)
    words = Lang.load(golden / "lang").words
    kaldi = read_text(golden / "lattice" / "best_path_words.int")
    expected = {u: [words[int(i)] for i in ids] for u, ids in kaldi.items()}
    assert read_text(out / "hyp.txt") == expected
    result = json.loads((out / "wer.json").read_text())
    assert result["wer"] == 0
    assert (result["words"], result["sentences"], result["speakers"]) == (31, 6, 6)
    assert (result["lmwt"], result["wip"], result["without_lattice"]) == (10, 0.0, [])
    assert result["confidence_interval"]["low"] == 0


def test_words_begin_and_end_with_their_phones(run, golden):
    out = run(read_text(golden / "align" / "text"))
    phones = {}
    for timed in read_ctm(out / "hyp_phones.ctm"):
        phones.setdefault(timed.utterance, []).append(timed)
    lexicon = {
        w: [p for _, p in e] for w, e in Lang.load(golden / "lang").lexicon.items()
    }
    num_words = 0
    for word in read_ctm(out / "hyp.ctm"):
        end = word.start + word.duration
        inside = [
            p.word
            for p in phones[word.utterance]
            if word.start - 1e-6 <= p.start < end - 1e-6
        ]
        # The lexicon is position-dependent: its phones tell where words begin and end.
        assert inside[0].endswith(("_B", "_S"))
        assert inside[-1].endswith(("_E", "_S"))
        assert all(phone.endswith("_I") for phone in inside[1:-1])
        assert tuple(p.rsplit("_", 1)[0] for p in inside) in lexicon[word.word]
        num_words += 1
    assert num_words == 31
    for own in phones.values():
        assert own[0].start == 0
        for a, b in pairwise(own):
            assert b.start == pytest.approx(a.start + a.duration, abs=2e-3)


def test_path_that_stops_anywhere_still_has_its_phones(golden):
    model = AcousticModel.load(golden / "gmm" / "tri1" / "final.mdl").transitions
    line = (golden / "align" / "ali_tri1.txt").read_text().splitlines()[0]
    ids = np.array(line.split()[1:], dtype=np.int32)
    phones, bounds, is_cut_off = phone_segments(ids, model)
    assert not is_cut_off
    for length in range(len(ids)):
        part, ends, _ = phone_segments(ids[:length], model)
        assert part == phones[: len(part)]
        assert ends == [*bounds[: len(part)], length]


def test_errors_are_counted_where_references_differ(run, golden):
    references = read_text(golden / "align" / "text")
    references["nicolas-test-0003"] = ["ONE", "ONE", "SEVEN", "NINE"]
    references["zoe-test-0000"] = ["ONE", "TWO"]
    out = run(references)
    result = json.loads((out / "wer.json").read_text())
    assert (result["sub"], result["del"], result["ins"]) == (1, 3, 0)
    assert result["sentence_errors"] == 2
    assert result["without_lattice"] == ["zoe-test-0000"]
    assert result["wer"] == pytest.approx(100 * 4 / 34)
    bounds = result["confidence_interval"]
    assert 0 <= bounds["low"] < result["wer"] < bounds["high"]
    lines = (out / "per_utterance.tsv").read_text().splitlines()
    assert lines[4].split("\t")[-2:] == ["ONE ONE SEVEN NINE", "ONE ZERO SEVEN ***"]
    confusions = (out / "confusions.tsv").read_text()
    assert "sub\tONE\tZERO\t1" in confusions
    assert len((out / "per_speaker.tsv").read_text().splitlines()) == 8
    summarize_wer([out / "wer.json"], out / "wer.tsv")
    row = read_table(out / "wer.tsv").iloc[0]
    assert (row["wer"], row["sentences"], row["lmwt"]) == ("11.76", "7", "10")


def test_ignored_words_do_not_count(run, golden):
    references = read_text(golden / "align" / "text")
    without = {u: [w for w in ws if w != "ZERO"] for u, ws in references.items()}
    out = run(without, ignore_words=["ZERO"])
    assert json.loads((out / "wer.json").read_text())["wer"] == 0


def test_empty_transcript_counts_insertions_only(run, golden):
    references = read_text(golden / "align" / "text")
    references["nicolas-test-0003"] = []
    result = json.loads((run(references) / "wer.json").read_text())
    assert (result["ins"], result["del"], result["words"]) == (3, 0, 28)


def test_lattice_without_reference_is_refused_and_leaves_nothing(run, golden):
    references = read_text(golden / "align" / "text")
    del references["nicolas-test-0003"]
    with pytest.raises(UserError, match="nicolas-test-0003: .* have no reference"):
        run(references)


def test_no_reference_at_all_is_refused(run):
    with pytest.raises(UserError, match="no utterance to score"):
        run({})


def test_missing_scales_are_refused(golden, tmp_path):
    write_cuts(tmp_path / "cuts.jsonl.gz", {"a": ["ONE"]})
    with pytest.raises(UserError, match=r"scales\.json: no such file"):
        score(
            ScoreJob(
                lattices=golden / "lattice" / "raw_beam13.lats",
                cuts=tmp_path / "cuts.jsonl.gz",
                lang_dir=golden / "lang",
                model_dir=golden / "gmm" / "tri1",
                scales=tmp_path / "scales.json",
                out_dir=tmp_path / "out",
            ),
            options=ScoreOptions(),
            seed=1,
        )
    assert not (tmp_path / "out").exists()


def test_words_come_with_confidences(run, golden):
    references = read_text(golden / "align" / "text")
    words = list(read_ctm(run(references) / "hyp.ctm"))
    assert len(words) == sum(map(len, references.values()))
    assert all(0.0 < word.confidence <= 1.0 for word in words)
    assert all(word.confidence > 0.9 for word in words)  # Kaldi gets them all right


def test_least_risk_finds_the_same_clear_words(run, golden):
    references = read_text(golden / "align" / "text")
    plain = list(read_ctm(run(references) / "hyp.ctm"))
    risk = list(read_ctm(run(references, decision="mbr") / "hyp.ctm"))
    assert [w.word for w in risk] == [w.word for w in plain]
    for a, b in zip(plain, risk, strict=True):
        assert b.start == pytest.approx(a.start, abs=0.15)
        assert b.confidence == pytest.approx(a.confidence, abs=1e-3)


def analyzed(golden, folder, references, **changes):
    """Measure the golden lattices; returns (summary, rows by utterance)."""
    (folder / "scales.json").write_text('{"lmwt": 10, "wip": 0.0}')
    analyze_lattices(
        golden / "lattice" / "raw_beam13.lats", references,
        golden / "lang", folder / "scales.json", folder,
        options=ScoreOptions(**changes), threads=2,
    )  # fmt: skip
    lines = (folder / "lattices.tsv").read_text().splitlines()
    rows = [dict(zip(lines[0].split("\t"), x.split("\t"), strict=True)) for x in lines]
    return json.loads((folder / "lattices.json").read_text()), rows[1:]


def test_lattices_hold_what_was_said(golden, tmp_path):
    references = read_text(golden / "align" / "text")
    summary, rows = analyzed(golden, tmp_path, references)
    assert summary["utterances"] == len(rows) == 6
    assert summary["words"] == sum(map(len, references.values()))
    assert summary["oracle_wer"] == 0.0
    assert summary["depth_percentiles"]["5"] <= summary["depth_percentiles"]["95"]
    depth = sum(float(r["depth"]) * int(r["frames"]) for r in rows) / summary["frames"]
    assert summary["depth"] == pytest.approx(depth, rel=1e-3)


def test_no_path_is_better_than_the_oracle(golden, tmp_path):
    references = read_text(golden / "align" / "text")
    wrong = {u: ["ZERO", *words[1:], "UNHEARD"] for u, words in references.items()}
    summary, rows = analyzed(golden, tmp_path, wrong)
    assert all(1 <= int(r["oracle"]) <= int(r["best"]) <= 2 for r in rows)
    kept, _ = analyzed(golden, tmp_path, wrong, ignore_words=["ZERO", "UNHEARD"])
    assert kept["words"] < summary["words"]
    assert kept["best_wer"] < summary["best_wer"]


def test_a_lattice_without_reference_is_named(golden, tmp_path):
    with pytest.raises(UserError, match="a lattice without a reference"):
        analyzed(golden, tmp_path, {"nobody": ["ONE"]})


def test_words_of_a_set_without_transcripts_are_written_without_scores(
    run, golden, tmp_path
):
    scored = run(read_text(golden / "align" / "text"))
    silent = {utterance: [] for utterance in read_text(scored / "hyp.txt")}
    write_cuts(tmp_path / "calls.jsonl.gz", silent)
    recognize(
        ScoreJob(
            lattices=golden / "lattice" / "raw_beam13.lats",
            cuts=tmp_path / "calls.jsonl.gz",
            lang_dir=golden / "lang",
            model_dir=golden / "gmm" / "tri1",
            scales=tmp_path / "scales.json",
            out_dir=tmp_path / "words",
            threads=2,
        ),
        options=ScoreOptions(),
    )
    names = {"hyp.txt", "hyp.ctm", "hyp_phones.ctm"}
    assert {path.name for path in (tmp_path / "words").iterdir()} == names
    for name in names:
        written = (tmp_path / "words" / name).read_bytes()
        assert written == (scored / name).read_bytes()


def test_confusions_are_the_most_frequent_ones(run, golden):
    references = read_text(golden / "align" / "text")
    changed = {u: ["NINE", *words[1:]] for u, words in references.items()}
    header, *confusions = (run(changed) / "confusions.tsv").read_text().splitlines()
    assert len(confusions) > 1
    fewer = run(changed, max_confusions=1) / "confusions.tsv"
    assert fewer.read_text().splitlines() == [header, confusions[0]]
