"""A recipe is begun by what lies in a folder of data."""

import json

import numpy as np
import pytest
import soundfile
import yaml

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.lang.letters import letter_lexicon
from latflow.workflow.layout import find_layout, find_source, set_of
from latflow.workflow.recipe import Recipe
from latflow.workflow.settings import read_config
from latflow.workflow.sizes import gmm_systems, network_size
from latflow.workflow.start import write_start

WORDS = ("Hello, world.", "one two", "Don't one")


def speak(path, rate=8000, seconds=0.5):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(1).normal(0, 0.1, int(rate * seconds))
    soundfile.write(path, noise, rate)


@pytest.fixture
def recordings(tmp_path):
    """Folder of three speakers, with a transcript beside each file."""
    for who in ("ann", "bob", "cid"):
        for number, words in enumerate(WORDS):
            speak(tmp_path / f"data/{who}/{number}.wav")
            (tmp_path / f"data/{who}/{number}.txt").write_text(words)
    return tmp_path / "data"


def recipe_of(folder, monkeypatch):
    monkeypatch.chdir(folder)
    config = read_config("recipe.yaml")
    return Recipe.from_config(config), config


def test_folder_without_a_lexicon_is_spelled(recordings, tmp_path, monkeypatch):
    _, found = write_start(tmp_path / "My Own", recordings)
    recipe, config = recipe_of(tmp_path / "My Own", monkeypatch)
    assert config["experiment"] == "my_own"
    assert config["corpus"]["train"] == {"type": "folder", "path": str(recordings)}
    assert config["corpus"]["dev"]["by"] == "utterance"  # of three speakers
    assert config["nnet"]["features"]["hires"]["cmvn"]["type"] == "speaker"
    assert config["package"] == {"systems": ["chain"], "offline": True}
    assert "train: 9 utterances, 0.00 hours, 3 speakers, 8000 Hz" in found.facts
    lexicon = (tmp_path / "My Own/lexicon.txt").read_text().splitlines()
    assert lexicon[0] == "don't d o n t"
    assert [line.split()[0] for line in lexicon[1:]] == ["hello", "one", "two", "world"]
    recipe.check_definitions()


def test_what_is_served_pauses_and_has_features_that_can_be(
    recordings, tmp_path, monkeypatch
):
    lexicon = tmp_path / "lexicon.txt"
    lexicon.write_text("HELLO HH\nONE W\nTWO T\n")
    write_start(tmp_path / "mine", recordings, lexicon, serve=True)
    recipe, config = recipe_of(tmp_path / "mine", monkeypatch)
    assert config["lang"]["lexicon"] == str(lexicon)
    assert config["lang"]["g2p"] == {"num_pronunciations": 3}  # `world`, `don't`
    assert config["nnet"]["features"]["hires"]["cmvn"] == {"type": "none"}
    assert config["decode"] == {"sentences": "several"}
    assert recipe.test_sets == ["dev_paused"]
    assert config["package"] == {"systems": ["chain"]}


def test_rates_are_brought_to_one(recordings, tmp_path, monkeypatch):
    speak(recordings / "ann/0.wav", 44100)
    _, found = write_start(tmp_path / "mine", recordings)
    _, config = recipe_of(tmp_path / "mine", monkeypatch)
    assert config["corpus"]["train"]["sample_rate"] == 8000
    assert "train: 9 utterances, 0.00 hours, 3 speakers, 8000 Hz, 44100 Hz" in (
        found.facts
    )
    assert not [one for one in found.findings if one.severity == "error"]


def test_parts_are_sets_and_a_table_is_made_of_what_no_source_reads(
    tmp_path, monkeypatch
):
    for part in ("train-clean", "train-other", "dev-clean", "test-clean"):
        folder = tmp_path / f"LibriSpeech/{part}/7/8"
        for number in range(2):
            speak(folder / f"7-8-{part}{number}.flac")
        text = f"7-8-{part}0 ONE\n7-8-{part}1 TWO TWO\n"
        (folder / "7-8.trans.txt").write_text(text)
    write_start(tmp_path / "mine", tmp_path / "LibriSpeech")
    _, config = recipe_of(tmp_path / "mine", monkeypatch)
    assert config["corpus"]["train"] == {"type": "table", "path": "train.tsv"}
    assert set(config["corpus"]["test"]) == {"test-clean"}
    rows = (tmp_path / "mine/train.tsv").read_text().splitlines()
    assert rows[0] == "path\ttext\tspeaker"
    assert [row.split("\t")[1:] for row in rows[1:]] == 2 * [
        ["ONE", "7"],
        ["TWO TWO", "7"],
    ]


def test_what_is_refused_leaves_nothing_in_the_way(tmp_path):
    speak(tmp_path / "zh/wavs/a.wav")
    (tmp_path / "zh/list.txt").write_text("a 你好世界\n", encoding="utf-8")
    with pytest.raises(UserError, match="parted by blanks"):
        write_start(tmp_path / "mine", tmp_path / "zh")
    assert list((tmp_path / "mine").iterdir()) == []
    lexicon = tmp_path / "lexicon.txt"
    lexicon.write_text("你好世界 n i\n", encoding="utf-8")
    assert write_start(tmp_path / "mine", tmp_path / "zh", lexicon)[1].hours > 0


def test_subtitles_beside_audio_are_transcripts(recordings, tmp_path):
    for text in recordings.rglob("*.txt"):
        cue = f"1\n00:00:00,000 --> 00:00:00,900\n{text.read_text()}\n"
        text.with_suffix(".srt").write_text(cue)
        text.unlink()
    assert find_layout(recordings).sets["train"]["type"] == "folder"


def test_tables_are_sets_by_their_names(tmp_path):
    speak(tmp_path / "en/clips/a.mp3")
    for name in ("train", "dev", "test", "validated"):
        rows = 'client_id\tpath\tsentence\nx\ta.mp3\tHe said "no\n'
        (tmp_path / f"en/{name}.tsv").write_text(rows)
    (tmp_path / "en/clip_durations.tsv").write_text("clip\tduration[ms]\na.mp3\t5\n")
    layout = find_layout(tmp_path)
    assert set(layout.sets) == {"train", "dev", "test"}
    assert layout.sets["dev"] == {
        "type": "table",
        "path": str(tmp_path / "en/dev.tsv"),
        "audio": str(tmp_path / "en/clips"),
    }
    assert layout.unused == [str(tmp_path / "en/validated.tsv")]


def test_tables_and_manifests_in_folders_of_sets(tmp_path):
    for name in ("train", "test-a"):
        speak(tmp_path / f"hf/{name}/a.wav")
        (tmp_path / f"hf/{name}/metadata.csv").write_text("file_name,text\na.wav,one\n")
        (tmp_path / f"lhotse/{name}").mkdir(parents=True)
        for kind in ("recordings", "supervisions"):
            (tmp_path / f"lhotse/{name}/{kind}.jsonl.gz").touch()
    for kind, layout in (("table", "hf"), ("manifests", "lhotse")):
        sets = find_layout(tmp_path / layout).sets
        assert {name: one["type"] for name, one in sets.items()} == {
            "train": kind,
            "test-a": kind,
        }


def test_what_lhotse_wrote_is_found_by_any_name(tmp_path):
    cut = json.dumps({"id": "a", "type": "MonoCut"}) + "\n"
    for name in ("x_recordings_train.jsonl.gz", "x_supervisions_train.jsonl.gz"):
        (tmp_path / name).touch()
    (tmp_path / "any.jsonl").write_text(cut)
    (tmp_path / "rows.jsonl").write_text('{"audio": "a.wav", "text": "one"}\n')
    recordings = tmp_path / "x_recordings_train.jsonl.gz"
    supervisions = str(tmp_path / "x_supervisions_train.jsonl.gz")
    for path in (tmp_path, recordings):
        found = find_source(path, {"min_duration": 0.5})
        assert (found["type"], found["min_duration"]) == ("manifests", 0.5)
        assert (found["recordings"], found["supervisions"]) == (
            str(recordings),
            supervisions,
        )
    assert find_source(tmp_path / "any.jsonl", {})["type"] == "cuts"
    assert find_source(tmp_path / "rows.jsonl", {})["type"] == "table"
    for name in ("y_recordings.jsonl", "y_supervisions.jsonl"):
        (tmp_path / name).touch()
    several = r"several sets of Lhotse: x_rec\S+, y_rec\S+ - name one of them"
    with pytest.raises(UserError, match=several):
        find_source(tmp_path, {})
    for name in ("recordings.jsonl.gz", "supervisions.jsonl.gz"):
        (tmp_path / name).touch()
    found = find_source(tmp_path, {})["recordings"]
    assert found == str(tmp_path / "recordings.jsonl.gz")


def test_table_without_speakers(tmp_path):
    speak(tmp_path / "wavs/a.wav")
    row = {"audio_filepath": "wavs/a.wav", "text": "one"}
    (tmp_path / "manifest.json").write_text(json.dumps(row) + "\n")
    assert find_layout(tmp_path).sets["train"]["speaker"] == "utterance"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("train-clean-100", "train"), ("cv-valid-train", "train"), ("dev_other", "dev"),
        ("validation", "dev"), ("test", "test"), ("eval92", "test"), ("tr05", None),
        ("validated", None), ("latest", None), ("training", "train"),
    ],
)  # fmt: skip
def test_sets_by_name(name, kind):
    assert set_of(name) == kind


def test_places_that_are_none_are_one_line(tmp_path, capsys):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for place, what in (
        ("file", "File exists"),
        ("file/below", "Not a directory"),
        ("loop/below", "Too many levels"),
        ("x" * 300, "File name too long"),
    ):
        assert main(["init", str(tmp_path / place)]) == 1
        said = capsys.readouterr().err
        assert what in said
        assert len(said.splitlines()) == 1


def test_refusals_are_one_line(tmp_path, capsys):
    speak(tmp_path / "data/a.wav")
    for arguments, what in (
        (["--audio", tmp_path / "none"], "no such folder"),
        (["--audio", tmp_path / "data"], "no transcript has the name of one"),
        (["--lexicon", tmp_path / "x"], "--lexicon without --audio"),
    ):
        assert main(["init", str(tmp_path / "mine"), *map(str, arguments)]) == 1
        said = capsys.readouterr().err
        assert what in said
        assert said.count("\n") == 1
    assert not (tmp_path / "mine/recipe.yaml").exists()


def test_letters():
    lines, others = letter_lexicon(["Éa", "e\u0301a", "can't", "R2", "हिन्दी"])
    assert lines == ["can't c a n t", "éa é a", "हिन्दी ह ि न ् द ी"]
    assert others == ["r2"]
    with pytest.raises(UserError, match="parted by blanks"):
        letter_lexicon(["你好", "东西"])


def test_sizes_grow_with_speech_and_stop_at_the_contexts_of_few_words():
    small, large = network_size(0.1, 10**6), network_size(1000, 10**6)
    assert small.leaves < network_size(5, 10**6).leaves < large.leaves == 7000
    assert small.width < large.width
    assert network_size(0.5, 32).leaves == 80
    assert "tri2" not in gmm_systems(0.1, "tri3")
    assert gmm_systems(0.4, "sat")["sat"]["num_leaves"] == 400
    assert gmm_systems(0.4, "sat", 7)["sat"]["num_leaves"] == 28


def test_generated_files_are_yaml(recordings, tmp_path):
    files, _ = write_start(tmp_path / "mine", recordings)
    for path in files:
        if path.suffix == ".yaml":
            assert isinstance(yaml.safe_load(path.read_text()), dict)
            assert path.read_text().endswith("\n")
