"""Folders of audio with transcripts beside the files, and tables of utterances."""

import gzip
import json
import os
import shutil
import unicodedata

import numpy as np
import pytest
import soundfile

from latflow.corpus.folder import list_folder
from latflow.corpus.folder_files import digest_of_files, list_files
from latflow.corpus.listing import Listing
from latflow.corpus.manifests import read_cuts
from latflow.corpus.options import FolderSource, TableSource
from latflow.corpus.prepare import prepare_corpus
from latflow.corpus.textgrid import Interval, read_tiers, textgrid
from latflow.errors import UserError
from latflow.ledger import read_ledger
from latflow.workflow.contents import Contents
from latflow.workflow.survey import Survey, survey_source

HOW = {"seed": 1, "threads": 1, "max_skipped_fraction": 1.0}


def speak(path, seconds=2.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(1).standard_normal(round(8000 * seconds))
    soundfile.write(path, (noise * 1000).astype(np.int16), 8000)


def prepared(source, folder):
    prepare_corpus(source, "train", folder / "out", **HOW)
    cuts = list(read_cuts(folder / "out/cuts.jsonl.gz"))
    spoken = {c.id: (c.supervisions[0].speaker, c.supervisions[0].text) for c in cuts}
    skipped = {e.utterance: e.reason for e in read_ledger(folder / "out/ledger.jsonl")}
    return cuts, spoken, skipped


@pytest.fixture
def folder(tmp_path):
    """Two speakers, a stray of each kind, a file with both kinds of transcript."""
    top = tmp_path / "corpus"
    for name in ("ann/one.wav", "ann/two a.flac", "bob/one.wav", "bob/alone.wav"):
        speak(top / name)
    (top / "ann/one.txt").write_text("\ufeffHello,\nworld!\n", encoding="utf-8")
    (top / "ann/two a.lab").write_text("it's “fine” - <unk>\n", encoding="utf-8")
    (top / "ann/two a.txt").write_text("not this one")
    (top / "bob/one.LAB").write_text("Yes")
    (top / "bob/stray.txt").write_text("no audio")
    return top


def test_transcripts_beside_audio_become_utterances(folder, tmp_path):
    source = FolderSource(path=str(folder), case="lower")
    _, spoken, skipped = prepared(source, tmp_path)
    assert spoken == {
        "ann-one": ("ann", "hello world"),
        "ann-two_a": ("ann", "it's fine <unk>"),
        "bob-one": ("bob", "yes"),
    }
    assert skipped == {
        "bob-alone": "audio without a transcript beside it",
        "bob-stray": "transcript without audio beside it",
    }


def test_forms_that_are_not_read_are_named(folder, tmp_path):
    (folder / "bob/alone.eaf").write_text("<ANNOTATION_DOCUMENT/>")
    source = FolderSource(path=str(folder))
    _, _, skipped = prepared(source, tmp_path)
    assert skipped["bob-alone"] == "beside it is a .eaf file, not read here"


def test_first_stray_stops_where_nothing_may_be_skipped(folder, tmp_path):
    source = FolderSource(path=str(folder), on_bad_utterance="fail")
    with pytest.raises(UserError, match=r"alone\.wav: bob-alone: audio without"):
        prepared(source, tmp_path)


def test_speakers_may_be_prefixes_of_names(tmp_path):
    for name in ("ann-1", "bob-1"):
        speak(tmp_path / f"c/{name}.wav")
        (tmp_path / f"c/{name}.txt").write_text("yes")
    source = FolderSource(path=str(tmp_path / "c"), speaker_by="prefix")
    assert prepared(source, tmp_path)[1] == {
        "ann-1": ("ann", "yes"),
        "bob-1": ("bob", "yes"),
    }
    flat = FolderSource(path=str(tmp_path / "c"))
    assert {speaker for speaker, _ in prepared(flat, tmp_path)[1].values()} == {"c"}


def test_intervals_of_long_files_become_utterances(tmp_path):
    speak(tmp_path / "c/talk.wav", 6.0)
    tiers = {
        "Ann": [Interval(0.5, 1.5, 'say "hi"'), Interval(2, 3, "yes")],
        "Bob": [Interval(2.5, 3.25, "no")],
        "notes": [Interval(0, 6, "noisy")],
    }
    (tmp_path / "c/talk.TextGrid").write_text(textgrid(tiers, 6.0), encoding="utf-8")
    source = FolderSource(
        path=str(tmp_path / "c"), speaker_by="tier", tiers=("Ann", "Bob")
    )
    cuts, spoken, _ = prepared(source, tmp_path)
    assert spoken == {
        "talk-Ann-00000500": ("Ann", "say hi"),
        "talk-Ann-00002000": ("Ann", "yes"),
        "talk-Bob-00002500": ("Bob", "no"),
    }
    assert [(c.start, c.duration) for c in cuts] == [(0.5, 1), (2, 1), (2.5, 0.75)]
    other = source.replace(tiers=("Eve",))
    with pytest.raises(UserError, match=r"none of its tiers is called Eve; it has: A"):
        prepared(other, tmp_path)


@pytest.mark.parametrize("samples", [48412, 48413, 48414])
def test_utterances_may_last_what_is_no_decimal_number(tmp_path, samples):
    (tmp_path / "c").mkdir()
    soundfile.write(tmp_path / "c/a.wav", np.ones(samples, np.int16), 22050)
    soundfile.write(tmp_path / "c/b.wav", np.ones(samples, np.int16), 22050)
    (tmp_path / "c/a.txt").write_text("yes")
    grid = textgrid({"x": [Interval(0.0, 2.1958, "no")]}, 2.1958)
    (tmp_path / "c/b.TextGrid").write_text(grid)
    _, spoken, skipped = prepared(FolderSource(path=str(tmp_path / "c")), tmp_path)
    assert len(spoken) == 2
    assert not any(reason.startswith("goes from") for reason in skipped.values())


FREE_FORM = """File type = "ooTextFile short"
"TextGrid"  ! 4 "comment"
0 2.5s <exists>
3 tiers
"IntervalTier" "! words" 0 2.5 3 item [7]
2 2.5 "two ! words
in ""quotes"" "
0 5e-1 ""    ! out of order
xmin=.5 xmax = +2.0003 text = "one"
"TextTier" "points" 0 2.5 1 points [1]: number = 0.5 mark = "up"
"IntervalTier" "! words" 0 2.5 1 0 1!
"again"
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_textgrids_are_read_in_all_layouts_that_praat_reads(tmp_path, encoding):
    path = tmp_path / "x.TextGrid"
    path.write_text(FREE_FORM, encoding=encoding)
    words, again = read_tiers(path)
    assert (words.name, again.name) == ("! words", "! words_2")
    # The first ends, by a rounding, behind the start of the second.
    text = 'two ! words\nin "quotes"'
    assert list(words.intervals) == [(0.5, 2.0, "one"), (2.0, 2.5, text)]
    assert list(again.intervals) == [(0.0, 1.0, "again")]


SRT = """1
00:00:00,000 --> 00:00:01,500 X1:40 X2:600
<i>Hello,</i>
{\\an8}world &amp; all!

2
0:00:01.6 --> 0:00:02,000

3
00:00:02,000 --> 00:00:03,000
Bye
"""
VTT = """WEBVTT - a talk

STYLE
::cue { color: red }

NOTE no text

intro
00:00.000 --> 00:01.000 align:start
<v Ann>Hi <00:00:00.500><c>there</c>

00:00.500 --> 00:02.000
<v.loud Bob>No
"""


def test_cues_of_subtitles_are_utterances(tmp_path):
    speak(tmp_path / "c/ann/film.wav", 4.0)
    speak(tmp_path / "c/talk.wav", 4.0)
    (tmp_path / "c/ann/film.srt").write_text(SRT.replace("\n", "\r\n"), newline="")
    (tmp_path / "c/talk.vtt").write_text(VTT)
    cuts, spoken, skipped = prepared(FolderSource(path=str(tmp_path / "c")), tmp_path)
    assert spoken == {
        "ann-film-00000000": ("ann", "Hello world & all"),
        "ann-film-00002000": ("ann", "Bye"),
        "talk-Ann-00000000": ("c-Ann", "Hi there"),
        "talk-Bob-00000500": ("c-Bob", "No"),
    }
    assert not skipped
    times = {cut.id: (cut.start, cut.duration) for cut in cuts}
    assert times["ann-film-00000000"] == (0.0, 1.5)
    assert times["talk-Bob-00000500"] == (0.5, 1.5)
    by_voice = FolderSource(path=str(tmp_path / "c"), speaker_by="tier")
    shutil.rmtree(tmp_path / "out")
    _, spoken, _ = prepared(by_voice, tmp_path)
    assert spoken["talk-Bob-00000500"][0] == "Bob"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "subtitles without a cue"),
        ("1\n00:00:02,000 --> 00:00:01,000\nhi\n", "line 2: a cue ends at 1 s"),
        ("1\n2,0 --> 3,0\nhi\n", "line 2: no times of a cue: 2,0 --> 3,0"),
        (
            "0:00:00 --> 0:00:02\nno\n\n0:00:01 --> 0:00:03\nyes\n",
            "cues overlap in time: 'no' and 'yes' at 1 s",
        ),
        (
            "0:00:00 --> 0:00:01\none\n\n0:00:01 --> 0:00:02\none\ntwo\n\n"
            "0:00:02 --> 0:00:03\ntwo\nthree\n",
            "captions that roll",
        ),
    ],
)
def test_subtitles_that_tell_no_times_are_refused(tmp_path, text, reason):
    speak(tmp_path / "c/talk.wav")
    (tmp_path / "c/talk.srt").write_text(text)
    source = FolderSource(path=str(tmp_path / "c"), on_bad_utterance="fail")
    with pytest.raises(UserError, match=reason):
        prepared(source, tmp_path)


def test_textgrids_are_read_as_they_were_written(tmp_path):
    tiers = {"a": [Interval(0, 0.25, "x"), Interval(0.3, 1.0, 'é "y"')], "b": []}
    path = tmp_path / "x.TextGrid"
    path.write_text(textgrid(tiers, 1.5), encoding="utf-8")
    found = {tier.name: list(tier.intervals) for tier in read_tiers(path)}
    assert found == tiers


def damaged_grid(old, new):
    grid = textgrid({"w": [Interval(0, 1, "café"), Interval(2, 3, "two")]}, 4.0)
    assert old in grid
    return grid.replace(old, new)


DAMAGED_GRIDS = {
    "not a TextGrid": b"words\n",
    "is empty": b"",
    "is not UTF-8": damaged_grid("café", "café").encode("latin-1"),
    "'two' begins at 2, ends at 1.5": damaged_grid("xmax = 3", "xmax = 1.5").encode(),
    "overlap in time.*two": damaged_grid("xmin = 2", "xmin = 0.5").encode(),
    "it ends where a number is due": damaged_grid("café", "cafe").encode()[:-60],
    'line 26: " where a number is due': damaged_grid('café"', "cafe").encode()[:-60],
    "line 25: 3,5 where a number is due": damaged_grid(
        "xmax = 3", "xmax = 3,5"
    ).encode(),
    "1e999 is not a finite": damaged_grid("xmax = 3", "xmax = 1e999").encode(),
    "a tier of class 'Matrix'": damaged_grid("IntervalTier", "Matrix").encode(),
    r"\(binary\)": b"ooBinaryFile\x08TextGrid\0\0",
}


@pytest.mark.parametrize("complaint", DAMAGED_GRIDS)
def test_what_is_no_textgrid_is_one_line(tmp_path, complaint):
    path = tmp_path / "x.TextGrid"
    path.write_bytes(DAMAGED_GRIDS[complaint])
    with pytest.raises(UserError, match=rf"x\.TextGrid: .*{complaint}"):
        read_tiers(path)


def test_damaged_transcripts_leave_the_others_alone(tmp_path):
    names = [*"abcdefghijk", "good"]
    for name, content in zip(names, DAMAGED_GRIDS.values(), strict=False):
        speak(tmp_path / f"c/{name}.wav", 4.0)
        (tmp_path / f"c/{name}.TextGrid").write_bytes(content)
    for name, content in (("good", b"yes"), ("latin", "café".encode("latin-1"))):
        speak(tmp_path / f"c/{name}.wav", 4.0)
        (tmp_path / f"c/{name}.txt").write_bytes(content)
    _, spoken, skipped = prepared(FolderSource(path=str(tmp_path / "c")), tmp_path)
    assert spoken == {"good": ("c", "yes")}
    assert set(skipped) == {*"abcdefghijk", "latin"}
    assert "is not UTF-8 (byte 4)" in skipped["latin"]


def test_ids_that_meet_are_made_unique(tmp_path):
    for name in ("1234 a 2", "1234_a_2", "s/x/a", "s-x/a"):
        speak(tmp_path / f"c/{name}.wav")
        (tmp_path / f"c/{name}.txt").write_text(f"the {name}".replace("/", " "))
    _, spoken, noted = prepared(FolderSource(path=str(tmp_path / "c")), tmp_path)
    assert {key: text for key, (_, text) in spoken.items()} == {
        "1234_a_2": "the 1234 a 2",
        "1234_a_2-2": "the 1234_a_2",
        "s-x-a": "the s x a",
        "s-x-a-2": "the s x a",
    }
    assert noted["1234_a_2-2"] == "file '1234_a_2.wav' is called 1234_a_2-2"


@pytest.mark.parametrize(("audio", "text"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_names_find_each_other_in_any_normal_form(tmp_path, audio, text):
    speak(tmp_path / f"c/{unicodedata.normalize(audio, 'café')}.wav")
    (tmp_path / f"c/{unicodedata.normalize(text, 'café')}.txt").write_text("yes")
    _, spoken, _ = prepared(FolderSource(path=str(tmp_path / "c")), tmp_path)
    assert spoken == {"café": ("c", "yes")}
    table = tmp_path / "t.csv"
    table.write_text(f"path,text\nc/{unicodedata.normalize(text, 'café')}.wav,no\n")
    source = TableSource(path=str(table), speaker="single")
    assert prepared(source, tmp_path)[1] == {"c-café": ("single", "no")}


def test_names_that_are_not_utf_8_are_bad_utterances(tmp_path):
    speak(tmp_path / "c/good.wav")
    (tmp_path / "c/good.txt").write_text("yes")
    for name in (b"caf\xe9.wav", b"caf\xe9.txt", b"alone\xff.lab", b"notes\xe9.pdf"):
        path = os.fsencode(tmp_path / "c") + b"/" + name
        shutil.copy(tmp_path / f"c/good.{'wav' if b'wav' in name else 'txt'}", path)
    _, spoken, skipped = prepared(FolderSource(path=str(tmp_path / "c")), tmp_path)
    assert spoken == {"good": ("c", "yes")}
    assert "the name caf\\xe9.wav is not UTF-8" in skipped.values()
    assert "the name alone\\xff.lab is not UTF-8" in skipped.values()
    assert not any("pdf" in reason for reason in skipped.values())


def test_digest_follows_the_files_of_the_folder(folder):
    source = FolderSource(path=str(folder))
    before = digest_of_files(list_files(source, Contents()))
    (folder / "notes.pdf").write_text("of no interest")
    text = (folder / "ann/one.txt").read_bytes()
    (folder / "ann/one.txt").unlink()
    assert digest_of_files(list_files(source, Contents())) != before
    (folder / "ann/one.txt").write_bytes(text)
    assert digest_of_files(list_files(source, Contents())) == before
    (folder / "ann/one.txt").write_text("something else")
    assert digest_of_files(list_files(source, Contents())) != before


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "tsv.gz"])
def test_tables_become_utterances(tmp_path, kind):
    for name in ("a", "b"):
        speak(tmp_path / f"clips/{name}.wav")
    rows = [("a.wav", 'She said "no"', "s1"), ("b.wav", "yes", "s2")]
    rows.append(("gone.wav", "nothing", "s2"))
    if kind == "jsonl":
        keys = ("audio", "sentence", "speaker_id")
        lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
    elif kind == "csv":
        lines = ["path,sentence,client_id", 'a.wav,"She said ""no""",s1']
        lines += [",".join(row) for row in rows[1:]]
    else:
        lines = ["client_id\tpath\tsentence"]
        lines += [f"{who}\t{path}\t{text}" for path, text, who in rows]
    table = tmp_path / f"train.{kind}"
    text = "\n".join(lines).encode()
    table.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    source = TableSource(path=str(table), audio=str(tmp_path / "clips"))
    _, spoken, skipped = prepared(source, tmp_path)
    assert spoken == {"a": ("s1", "She said no"), "b": ("s2", "yes")}
    assert list(skipped) == ["gone"]
    assert "audio file does not exist" in skipped["gone"]


def test_columns_of_a_table_are_options(tmp_path):
    (tmp_path / "clips").mkdir()
    for name in ("a.wav", "b.wav"):
        speak(tmp_path / "clips" / name)
    (tmp_path / "t.csv").write_text(
        "path,wave,text,words,speaker,who\nb.wav,a.wav,no,yes,s1,s2\n"
    )
    table = {"path": str(tmp_path / "t.csv"), "audio": str(tmp_path / "clips")}
    columns = {"path_column": "wave", "text_column": "words", "speaker_column": "who"}
    usual = prepared(TableSource(**table), tmp_path / "usual")[1]
    chosen = prepared(TableSource(**table, **columns), tmp_path / "chosen")[1]
    assert (usual, chosen) == ({"b": ("s1", "no")}, {"a": ("s2", "yes")})


def test_ends_of_transcripts_are_an_option_in_order(tmp_path):
    folder = tmp_path / "c" / "s1"
    folder.mkdir(parents=True)
    speak(folder / "a.wav")
    (folder / "a.lab").write_text("yes")
    (folder / "a.txt").write_text("no")
    for suffixes, text in ((("lab", "txt"), "yes"), (("txt", "lab"), "no")):
        source = FolderSource(path=str(tmp_path / "c"), transcript_suffixes=suffixes)
        _, spoken, _ = prepared(source, tmp_path / suffixes[0])
        assert [words for _, words in spoken.values()] == [text]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("path,text,speaker\na.wav,yes\n", r"2 columns, the .* names 3 \(line 2\)"),
        ("path,speaker\na.wav,s\n", "no column text or sentence .* set text_column"),
        ("path,text\na.wav,yes\n", "no column speaker .* speaker to utterance"),
        ("path,text,speaker\n,yes,s\n", r"names no audio file \(line 2\)"),
        ("path,text,speaker\nb.wav,y,s\n", r"b: .* not exist: .*b.wav \(line 2\)"),
        ("", "the table is empty"),
        ("path,text\n", "the table is empty, or has no line below its titles"),
        ("path,text,path\na.wav,one,b.wav\n", "two columns are called path - rename"),
    ],
)
def test_faulty_tables_are_one_line(tmp_path, text, complaint):
    speak(tmp_path / "a.wav")
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UserError, match=complaint):
        prepared(TableSource(path=str(tmp_path / "t.csv")), tmp_path)


def test_garbage_in_jsonl_is_named_by_its_line(tmp_path):
    (tmp_path / "t.jsonl").write_text("\n[1]\n")
    with pytest.raises(UserError, match=r"no JSON object \(line 2\)"):
        prepared(TableSource(path=str(tmp_path / "t.jsonl")), tmp_path)


def test_doctor_surveys_folders(folder, features_options):
    survey = Survey("train", str(folder), None, features_options)
    findings = survey_source(FolderSource(path=str(folder)), survey)
    assert [f.severity for f in findings] == ["warning", "warning", "note"]
    assert "audio without a transcript beside it (1): bob-alone" in findings[0].what
    assert (survey.num_utterances, survey.seconds) == (3, 6.0)
    assert survey.speakers == {"ann", "bob"}


@pytest.fixture
def features_options():
    from latflow.features.options import FeatureOptions

    return FeatureOptions()


def test_links_to_nothing_and_upwards_are_no_traceback(folder):
    source = FolderSource(type="folder", path=str(folder))
    with Listing() as listing:
        list_folder(source, listing)
        before = [file.id for file in listing.files]
    (folder / "up").symlink_to(folder, target_is_directory=True)
    (folder / "lost.wav").symlink_to(folder / "nothing.wav")
    (folder / "lost.txt").write_text("one")
    digest = digest_of_files(list_files(source, Contents()))
    with Listing() as listing:
        list_folder(source, listing)
        assert [file.id for file in listing.files] == sorted([*before, "lost"])
    soundfile.write(folder / "nothing.wav", np.zeros(800), 8000)
    assert digest_of_files(list_files(source, Contents())) != digest


@pytest.mark.parametrize(
    "lines",
    [
        "path;text;speaker\na.wav;one, two;s\n",
        'Path,Sentence,Speaker\na.wav,"one, two",s\n',
        "id|Path |TEXT|client_id\n1|a.wav|one, two|s\n",
        'path|text|speaker\na|"one, two|s\n',
        "sep=;\npath;text;speaker\na.wav;one, two;s\n",
        "ID,duration,wav,spk_id,wrd\n1,0.5,a.wav,s,one two\n",
        "audio_filepath,offset,text,speaker\na.wav,0.0,one two,s\n",
    ],
)
def test_tables_of_other_separators_and_titles_are_read(tmp_path, lines):
    speak(tmp_path / "a.wav")
    (tmp_path / "t.csv").write_text(lines)
    source = TableSource(path=str(tmp_path / "t.csv"))
    assert prepared(source, tmp_path)[1] == {"a": ("s", "one two")}


def test_tables_of_parts_and_without_titles_are_refused(tmp_path):
    speak(tmp_path / "a.wav")
    texts = {
        "wav,offset,text,speaker\na.wav,0.2,one,s\n": r"begins at offset 0\.2",
        "a|One|one\nb|Two|two\n": r"no column path .*if the first line has titles",
    }
    for text, complaint in texts.items():
        (tmp_path / "t.csv").write_text(text)
        with pytest.raises(UserError, match=complaint):
            prepared(TableSource(path=str(tmp_path / "t.csv")), tmp_path)


def test_labels_with_times_are_no_transcripts(tmp_path):
    texts = {
        "htk.lab": "0 3200000 sil\n3200000 7000000 one\n",
        "audacity.txt": "0.000000\t1.200000\tone two\n",
        "numbers.txt": "1 2 three\n",
        "years.txt": "1990 2000 years\n",
    }
    for name, text in texts.items():
        speak((tmp_path / "c" / name).with_suffix(".wav"))
        (tmp_path / "c" / name).write_text(text)
    _, spoken, skipped = prepared(FolderSource(path=str(tmp_path / "c")), tmp_path)
    assert {key: text for key, (_, text) in spoken.items()} == {
        "numbers": "1 2 three",
        "years": "1990 2000 years",
    }
    assert set(skipped) == {"htk", "audacity"}
    assert "labels with times" in skipped["htk"]


def test_tiers_of_phones_are_no_transcripts(tmp_path):
    speak(tmp_path / "c/talk.wav", 4.0)
    words = [Interval(0.5, 1.5, "yes"), Interval(2, 3, "no")]
    tiers = {"ann - words": words, "ann - phones": [Interval(0.5, 0.9, "Y")]}
    (tmp_path / "c/talk.TextGrid").write_text(textgrid(tiers, 4.0))
    _, spoken, _ = prepared(FolderSource(path=str(tmp_path / "c")), tmp_path)
    assert [text for _, text in spoken.values()] == ["yes", "no"]


def test_an_untranscribed_tail_is_told(tmp_path, features_options):
    speak(tmp_path / "c/talk.wav", 80.0)
    tiers = {"w": [Interval(0.5, 5.0, "yes"), Interval(6.0, 10.0, "no")]}
    (tmp_path / "c/talk.TextGrid").write_text(textgrid(tiers, 80.0))
    speak(tmp_path / "c/short.wav", 10.0)
    (tmp_path / "c/short.txt").write_text("yes")
    survey = Survey("train", "c", None, features_options)
    (finding,) = survey_source(FolderSource(path=str(tmp_path / "c")), survey)
    assert "after their last utterance (1): talk (70 s)" in finding.what
