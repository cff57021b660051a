"""Audio and transcripts are paired by name, whatever the layout."""

import json

import pytest

from latflow.corpus.transcript_search import find_pairs


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def found(top):
    pairs = find_pairs([top])
    return {
        str(pair.audio.relative_to(top)): (pair.text, pair.speaker)
        for pair in pairs.pairs
    }, pairs


def test_a_file_of_lines_for_each_chapter(tmp_path):
    write(
        tmp_path,
        {
            "train/19/198/19-198-0000.flac": "",
            "train/19/198/19-198-0001.flac": "",
            "train/19/198/19-198.trans.txt": "19-198-0000 ONE TWO\n19-198-0001 TWO\n",
            "SPEAKERS.TXT": "; id | sex\n19 | F | a b c\n",
        },
    )
    pairs, _ = found(tmp_path)
    assert pairs["train/19/198/19-198-0001.flac"] == ("TWO", "19")
    assert len(pairs) == 2


def test_a_tree_of_transcripts_beside_one_of_audio(tmp_path):
    write(
        tmp_path,
        {
            "wav48/p225/p225_001_mic1.flac": "",
            "wav48/p225/p225_001_mic2.flac": "",
            "txt/p225/p225_001.txt": "Please call Stella.\n",
        },
    )
    pairs, all_ = found(tmp_path)
    assert pairs == {"wav48/p225/p225_001_mic1.flac": ("Please call Stella.", "p225")}
    assert (all_.microphones, all_.without) == (1, 0)


def test_columns_without_titles_the_normalized_text_is_taken(tmp_path):
    write(
        tmp_path,
        {
            "LJ/wavs/LJ1.wav": "",
            "LJ/wavs/LJ2.wav": "",
            "LJ/metadata.csv": 'LJ1|in 1999, "he|in nineteen, "he\nLJ2|b c|b c\n',
        },
    )
    pairs, _ = found(tmp_path / "LJ")
    assert pairs["wavs/LJ1.wav"] == ('in nineteen, "he', "LJ")


def test_names_that_sessions_share_are_of_the_nearest(tmp_path):
    write(
        tmp_path,
        {
            **{f"{who}/wav/a0001.wav": "" for who in ("ann", "bob")},
            **{f"{who}/etc/PROMPTS": f"x/mfc/a0001 {who} S" for who in ("ann", "bob")},
            "ann/etc/prompts-original": "a0001 once more",
        },
    )
    pairs, all_ = found(tmp_path)
    assert pairs["ann/wav/a0001.wav"] == ("ann S", "ann")
    assert pairs["bob/wav/a0001.wav"] == ("bob S", "bob")
    assert all_.several == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("etc/txt.done.data", '( a "One, \\"two\\"." )\n'),
        ("texts.json", json.dumps({"audio/a.wav": {"text": 'One, "two".'}})),
        ("texts.json", json.dumps([{"file": "a.wav", "sentence": 'One, "two".'}])),
        ("a.json", json.dumps({"text": ' One, "two".', "segments": [{"start": 0}]})),
        ("text", 'a One, "two".\n'),
        ("A.txt", 'nothing\n\na.wav\tOne, "two".\n'),
        ("list.csv", 'a.wav,One, "two".\n'),
        ("a.TXT", '0 4711 One, "two".\n'),
    ],
)
def test_kinds_of_transcripts(tmp_path, name, text):
    write(tmp_path, {"audio/a.wav": "", name: text})
    pairs, _ = found(tmp_path)
    assert pairs["audio/a.wav"][0] == 'One, "two".'


def test_labels_with_times_and_texts_of_others_are_no_transcripts(tmp_path):
    write(
        tmp_path,
        {
            "a.wav": "",
            "a.lab": "0 3000000 sil\n3000000 9000000 one\n",
            "readme.txt": "a is said here\n",
            "words.txt": "b one\nc two\nd three\na one\ne four\nf five\n",
        },
    )
    pairs, all_ = found(tmp_path)
    assert pairs == {}
    assert all_.without == 1
