"""`latflow score`: word errors of transcripts in the forms that people have."""

import json

import pytest

from latflow.cli.main import main
from latflow.corpus.textgrid import Interval, textgrid
from latflow.errors import UserError
from latflow.scoring.texts import match_names, read_texts

TEXTS = {"a": "zero seven two", "b/c": "one"}


def folder(top, texts, suffix=".txt", form="{}"):
    for name, text in texts.items():
        path = top / f"{name}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(form.format(text) + "\n")
    return top


def test_transcripts_are_read_in_all_forms(tmp_path):
    assert read_texts(folder(tmp_path / "txt", TEXTS)) == TEXTS
    cue = "1\n00:00:00,000 --> 00:00:01,000\n{}\n"
    assert read_texts(folder(tmp_path / "srt", TEXTS, ".srt", cue)) == TEXTS
    for name, text in TEXTS.items():
        words = [Interval(i, i + 1, w) for i, w in enumerate(text.split())]
        tiers = {"words": words, "segments": [Interval(0, len(words), text)]}
        path = tmp_path / "grids" / f"{name}.TextGrid"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textgrid(tiers, len(words)))
    assert read_texts(tmp_path / "grids") == TEXTS
    kaldi = tmp_path / "data"
    kaldi.mkdir()
    (kaldi / "text").write_text("".join(f"{k} {v}\n" for k, v in TEXTS.items()))
    assert read_texts(kaldi) == read_texts(kaldi / "text") == TEXTS
    files = {
        "x.trn": ";; NIST\nzero seven two (a)\none (b/c)\n",
        "x.csv": "audio,sentence\na.wav,zero seven two\nb/c.mp3,one\n",
        "x.jsonl": "".join(
            json.dumps({"id": k, "text": TEXTS[k]}) + "\n" for k in TEXTS
        ),
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        assert read_texts(tmp_path / name) == TEXTS


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("x.trn", "zero seven two\n", "line 1 does not end with an utterance"),
        ("x.trn", "one (a)\ntwo (a)\n", "two transcripts have this name"),
        ("x.csv", "wav,words\na.wav,one\n", "no column of ids or paths, or none of"),
        ("x.csv", "path,text\na.wav,one,two\n", "line 2: 3 columns"),
        ("text", "", "no transcript in it"),
    ],
)
def test_what_is_no_transcript_is_refused(tmp_path, name, content, what):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=what):
        read_texts(tmp_path / name)


def test_names_without_their_folders_are_matched_where_none_is_the_same():
    assert match_names({"x/a": "one"}, {"a": "two"}) == ({"x/a": "two"}, [], [])
    assert match_names({"a": "1", "b": "2"}, {"a": "3", "c": "4"}) == (
        {"a": "3"},
        ["b"],
        ["c"],
    )
    with pytest.raises(UserError, match="no hypothesis has the name of a reference"):
        match_names({"x/a": "one", "y/a": "one"}, {"a": "two"})


def test_the_command_counts_and_writes(tmp_path, capsys):
    references = folder(tmp_path / "ref", {"a": "Zero, seven two.", "b": "one"})
    hypotheses = folder(tmp_path / "hyp", {"a": "zero seven three", "d": "x"})
    lexicon = tmp_path / "lexicon.txt"
    lexicon.write_text(
        "".join(f"{w} x\n" for w in ["zero", "one", "two", "three", "seven"])
    )
    out = tmp_path / "out"
    command = ["score", str(references), str(hypotheses), "--lexicon", str(lexicon)]
    assert main([*command, "--out", str(out)]) == 0
    printed, warned = capsys.readouterr()
    assert printed.startswith("WER 50.00 % [")
    assert "0 inserted, 1 deleted, 1 substituted of 4 words" in printed
    assert "most often substituted: two > three 1" in printed
    assert "references without a hypothesis, which count as deleted: 1 (b)" in warned
    assert "hypotheses without a reference, left out: 1 (d)" in warned
    wer = json.loads((out / "wer.json").read_text())
    assert (wer["wer"], wer["words"], wer["missing"]) == (50.0, 4, ["b"])
    assert "two\tthree\t1" in (out / "confusions.tsv").read_text()


def test_words_as_written_are_compared_and_their_spelling_noted(tmp_path, capsys):
    references = folder(tmp_path / "ref", {"a": "Zero, seven"})
    hypotheses = folder(tmp_path / "hyp", {"a": "zero seven"})
    assert main(["score", str(references), str(hypotheses)]) == 0
    printed, warned = capsys.readouterr()
    assert printed.startswith("WER 50.00 %")
    assert "in case or punctuation alone, see --lexicon: 1 (Zero,)" in warned
    characters = ["score", str(references), str(hypotheses), "--characters"]
    assert main(characters) == 0
    assert "of 10 characters" in capsys.readouterr().out


def test_speakers_are_those_of_the_file(tmp_path, capsys):
    references = folder(tmp_path / "ref", {"a": "one", "b": "two"})
    utt2spk = tmp_path / "utt2spk"
    utt2spk.write_text("a ann\nb ann\n")
    command = ["score", str(references), str(references), "--speakers", str(utt2spk)]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert "ann\t2\t0" in (tmp_path / "out/per_speaker.tsv").read_text()
    utt2spk.write_text("a ann\n")
    assert main(command) == 1
    assert "no speaker of this utterance" in capsys.readouterr().err
