"""The section of suspects: table, players, what is missing."""

import numpy as np
import soundfile
from fixtures.made_up_results import made_up_recipe
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment

from latflow.report.inputs import Results
from latflow.report.page import Example, Note, Table
from latflow.report.suspects import suspects_section
from latflow.workflow.recipe import Recipe


def test_suspects_are_listed_and_played(tmp_path):
    assert suspects_section(Results(tmp_path, Recipe.resolve(made_up_recipe()))) is None
    recipe = made_up_recipe(suspects={"sets": ["train"], "num_examples": 2})
    results = Results(tmp_path, Recipe.resolve(recipe))
    (told,) = suspects_section(results).blocks
    assert told.is_missing
    folder = tmp_path / "suspects/train"
    folder.mkdir(parents=True)
    (folder / "suspects.tsv").write_text(
        "utterance\treason\tscore\tdetails\n"
        "a\tbeam\t40.0\twider\na\trate\t6.0\t3 phones a second\n"
        "b\tsilence\t0.5\t0.5\ngone\tbeam\t1.0\twider\n"
    )
    soundfile.write(tmp_path / "a.wav", np.sin(np.arange(8000) / 9) / 2, 8000)
    recording = Recording.from_file(tmp_path / "a.wav", recording_id="a")
    text = SupervisionSegment("a", "a", 0, 1, text="ONE TWO", speaker="s")
    cut = MonoCut("a", 0, 1, 0, supervisions=[text], recording=recording)
    (tmp_path / "corpus/train").mkdir(parents=True)
    CutSet.from_cuts([cut]).to_file(tmp_path / "corpus/train/cuts.jsonl.gz")
    note, table, example = suspects_section(results).blocks
    assert isinstance(note, Note)
    assert "3 utterances" in note.text
    assert isinstance(table, Table)
    assert len(table.rows) == 4
    assert isinstance(example, Example)
    assert example.summary == "1.0 s: beam, rate"
    assert example.audio.startswith("data:audio/flac;base64,")
    assert example.svg.startswith("<svg")
    assert example.reference.words == [("ONE", "ok"), ("TWO", "ok")]
    assert not example.hypothesis.words


def test_players_show_what_was_recognized(tmp_path):
    suspects = {"sets": ["train"], "biased_decoding": {}}
    results = Results(tmp_path, Recipe.resolve(made_up_recipe(suspects=suspects)))
    text = SupervisionSegment("a", "a", 0, 1, text="ONE TWO", speaker="s")
    soundfile.write(tmp_path / "a.wav", np.zeros(8000), 8000)
    recording = Recording.from_file(tmp_path / "a.wav", recording_id="a")
    cut = MonoCut("a", 0, 1, 0, supervisions=[text], recording=recording)
    for folder in ("corpus/train", "suspects/train/biased"):
        (tmp_path / folder).mkdir(parents=True)
    CutSet.from_cuts([cut]).to_file(tmp_path / "corpus/train/cuts.jsonl.gz")
    table = "utterance\treason\tscore\tdetails\na\twords\t0.5\tTWO>SIX\n"
    (tmp_path / "suspects/train/suspects.tsv").write_text(table)
    (tmp_path / "suspects/train/biased/hyp.txt").write_text("a ONE SIX TEN\nb ONE\n")
    *_, example = suspects_section(results).blocks
    assert example.reference.words[:2] == [("ONE", "ok"), ("TWO", "sub")]
    assert [kind for _, kind in example.reference.words[2:]] == ["gap"]
    assert example.hypothesis.words == [("ONE", "ok"), ("SIX", "sub"), ("TEN", "ins")]
