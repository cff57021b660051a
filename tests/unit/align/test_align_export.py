"""Alignments as TextGrids, CTM and JSON; scores; the lexicon of `--model`."""

import json

import numpy as np
import pytest
from fixtures.made_up_alignments import cut, make_system, recording, states
from lhotse import AudioSource, Recording
from praatio import textgrid as praat

from latflow.align.corpus import LogLikes
from latflow.align.export import export_alignments
from latflow.align.options import ExportOptions
from latflow.align.timing import AlignedSet, PhoneScores
from latflow.corpus.ctm import read_ctm
from latflow.corpus.json_lines import ManifestWriter
from latflow.errors import UserError
from latflow.files import write_json
from latflow.kaldi.io import write_int_vectors
from latflow.lang.directory import Lang
from latflow.lang.extension import extend_lang
from latflow.lang.options import LangOptions
from latflow.ragged import RaggedWriter

FRAME_SHIFT, FIRST_MIDDLE = 0.01, 0.0125


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    """A lang directory, and monophones without training."""
    return make_system(tmp_path_factory.mktemp("system"))


@pytest.fixture
def experiment(system, tmp_path):
    """Two recordings: one of one utterance, one of two speakers; one failure."""
    _, lang, model = system
    eight = ["EY_B", "T_E"]
    two = ["T_B", "UW_E"]
    one, talk = recording("one", "/data/x/one.wav"), recording("talk", "/data/y/t.wav")
    utterances = [
        (cut("a-1", one, "ann", "EIGHT"), states(lang, model, eight, (12, 16))),
        (cut("b-1", talk, "bob", "TWO", 0.1), states(lang, model, two, (10, 18))),
        (cut("c-1", talk, "cat", "TWO eh", 0.5), None),
        (cut("d-1", talk, "cat", "EIGHT", 0.6), states(lang, model, eight, (20, 8))),
    ]
    with ManifestWriter(tmp_path / "cuts.jsonl.gz") as cuts:
        for found, _ in utterances:
            cuts.write(found)
    aligned = [(c.id, ids) for c, ids in utterances if ids is not None]
    write_int_vectors(tmp_path / "ali.ark", iter(aligned))
    with RaggedWriter(tmp_path / "log_likes", LogLikes) as writer:
        for number, (name, ids) in enumerate(aligned):
            writer.write(name, np.full(len(ids), -10.0 - number, np.float32))
    write_json(tmp_path / "statistics.json", {"frame_shift": FRAME_SHIFT})
    return tmp_path


def export(experiment, system, **options):
    folder = system[0]
    export_alignments(
        AlignedSet(
            alignments=experiment / "ali.ark",
            statistics=experiment / "statistics.json",
            cuts=experiment / "cuts.jsonl.gz",
            lang_dir=folder / "lang",
            model_dir=folder,
            first_middle=FIRST_MIDDLE,
        ),
        out_dir=experiment / "out",
        options=ExportOptions(**options),
        log_likes_dir=experiment / "log_likes",
    )
    return experiment / "out"


def tiers(path):
    grid = praat.openTextgrid(str(path), includeEmptyIntervals=False)
    return {
        tier.name: [(round(s, 4), round(e, 4), x) for s, e, x in tier.entries]
        for tier in grid.tiers
    }


def test_textgrids_have_words_and_phones_of_each_speaker(experiment, system):
    out = export(experiment, system)
    # 28 frames of 10 ms whose first stands for the time from 7.5 ms on.
    assert tiers(out / "textgrid/one.TextGrid") == {
        "words": [(0, 0.3, "EIGHT")],
        "phones": [(0, 0.1275, "EY"), (0.1275, 0.3, "T")],
    }
    assert tiers(out / "textgrid/talk.TextGrid") == {
        "bob - words": [(0.1, 0.4, "TWO")],
        "bob - phones": [(0.1, 0.2075, "T"), (0.2075, 0.4, "UW")],
        "cat - words": [(0.6, 0.9, "EIGHT")],
        "cat - phones": [(0.6, 0.8075, "EY"), (0.8075, 0.9, "T")],
    }
    told = json.loads((out / "export.json").read_text())
    assert told == {
        "recordings": 2, "utterances": 3, "without_words": 0, "not_aligned": ["c-1"],
        "long_pauses": [],
    }  # fmt: skip


def test_praat_reads_the_short_form(experiment, system):
    out = export(experiment, system, formats=["textgrid", "short_textgrid"])
    for name in ("one.TextGrid", "talk.TextGrid"):
        assert tiers(out / "short_textgrid" / name) == tiers(out / "textgrid" / name)


def test_json_as_mfa_writes_it(experiment, system):
    out = export(experiment, system, formats=["mfa_json"])
    assert json.loads((out / "mfa_json/one.json").read_text()) == {
        "start": 0, "end": 1.0,
        "tiers": {
            "words": {"type": "interval", "entries": [[0.0, 0.3, "EIGHT"]]},
            "phones": {
                "type": "interval",
                "entries": [[0.0, 0.1275, "EY"], [0.1275, 0.3, "T"]],
            },
        },
    }  # fmt: skip
    talk = json.loads((out / "mfa_json/talk.json").read_text())
    assert list(talk["tiers"])[:2] == ["bob - words", "bob - phones"]


def test_a_table_of_each_recording(experiment, system):
    out = export(experiment, system, formats=["csv"])
    assert (out / "csv/one.csv").read_text().splitlines() == [
        "Begin,End,Label,Type,Speaker",
        "0.0,0.3,EIGHT,words,ann",
        "0.0,0.1275,EY,phones,ann",
        "0.1275,0.3,T,phones,ann",
    ]
    assert not (out / "textgrid").exists()


def test_ctm_and_json_tell_times_of_the_recording(experiment, system):
    out = export(experiment, system)
    words = [(w.utterance, w.start, w.word) for w in read_ctm(out / "words.ctm")]
    assert words == [("one", 0, "EIGHT"), ("talk", 0.1, "TWO"), ("talk", 0.6, "EIGHT")]
    lines = (out / "alignments.jsonl").read_text().splitlines()
    first, _, last = map(json.loads, lines)
    assert (last["utterance"], last["speaker"]) == ("d-1", "cat")
    assert last["words"][0]["phones"][0] == {
        "phone": "EY", "start": 0.6, "end": 0.8075, "score": -12.0,
        "confidence": pytest.approx(0.1587, abs=1e-4),
    }  # fmt: skip
    assert first["words"][0]["confidence"] > last["words"][0]["confidence"]


def test_names_may_be_paths_of_the_audio(experiment, system):
    out = export(experiment, system, names="path", formats=["textgrid"])
    found = sorted(p.relative_to(out).as_posix() for p in out.rglob("*.TextGrid"))
    assert found == ["textgrid/x/one.TextGrid", "textgrid/y/t.TextGrid"]
    assert not (out / "words.ctm").exists()
    for folder, begin in (("/", "data/"), ("/data/x", ""), ("/elsewhere", "")):
        options = {"folder": folder, "formats": ["textgrid"]}
        out = export(experiment, system, names="path", **options)
        assert (out / f"textgrid/{begin}x/one.TextGrid").is_file()


def test_long_times_without_a_word_are_told(experiment, system):
    out = export(experiment, system, long_pause=0.15)
    assert json.loads((out / "export.json").read_text())["long_pauses"] == [
        {"recording": "one", "start": 0.3, "end": 1.0},
        {"recording": "talk", "start": 0.4, "end": 0.6},
    ]


def test_confidence_is_the_share_that_scores_lower():
    scores = PhoneScores()
    scores.add(["A"] * 4, np.array([-1.0, -2.0, -3.0, -4.0]))
    assert scores.confidence("A", -2.5) == pytest.approx(0.5)
    assert scores.confidence("A", 0.0) > 0.95
    # A phone that occurs once is compared with all, so that each line of a CTM has one.
    assert scores.confidence("B", -2.5) == pytest.approx(0.5)
    assert PhoneScores().confidence("B", 0.0) is None


def test_lexicon_for_a_model_keeps_its_phones(system, tmp_path):
    folder, lang, _ = system
    (tmp_path / "new.txt").write_text("WEE W IY\nTEA T IY\n")
    how = {"options": LangOptions()}
    extend_lang(folder / "lang", tmp_path / "new.txt", tmp_path / "lang", **how)
    found = Lang.load(tmp_path / "lang")
    assert found.phone_ids == lang.phone_ids
    assert found.words_to_ids("TEA ONE") == [found.word_ids["TEA"], found.oov_id]
    assert found.lexicon["WEE"] == [(1.0, ("W", "IY"))]
    (tmp_path / "bad.txt").write_text("HUH HH AH\n")
    with pytest.raises(UserError, match=r"bad\.txt: HUH: phone HH is not among"):
        extend_lang(folder / "lang", tmp_path / "bad.txt", tmp_path / "l", **how)


def test_no_textgrid_takes_the_place_of_another(system, tmp_path):
    """`a.wav`, `a.flac` and `a.2.wav` have three; ids do not lead out of the folder."""
    _, lang, model = system
    paths = ["/data/a.2.wav", "/data/a.flac", "/data/a.wav", "", ""]
    names = ["r1", "r2", "r3", "../up", "/top"]
    ids = states(lang, model, ["EY_B", "T_E"], (12, 16))
    cuts = []
    for name, path in zip(names, paths, strict=True):
        sources = [AudioSource("file" if path else "url", [0], path or "http://x")]
        held = Recording(name, sources, 8000, 8000, 1.0)
        cuts.append(cut(name, held, "ann", "EIGHT"))
    with ManifestWriter(tmp_path / "cuts.jsonl.gz") as writer:
        for each in sorted(cuts, key=lambda c: c.id):
            writer.write(each)
    write_int_vectors(tmp_path / "ali.ark", iter((c.id, ids) for c in cuts))
    with RaggedWriter(tmp_path / "log_likes", LogLikes):
        pass
    write_json(tmp_path / "statistics.json", {"frame_shift": FRAME_SHIFT})
    folder = export(tmp_path, system, names="path") / "textgrid"
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*.TextGrid")}
    names = ("a", "a.2", "a.3", "%2E./up", "%/top")
    assert found == {f"{name}.TextGrid" for name in names}
