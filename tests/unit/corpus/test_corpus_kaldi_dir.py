"""Kaldi data directories: good ones, and each way of being bad in one clear line."""

import gzip
import json
import re
import shutil

import numpy as np
import pytest
import soundfile
from lhotse import CutSet, Recording

from latflow.corpus.kaldi_dir import export_kaldi_dir, import_kaldi_dir
from latflow.corpus.kaldi_tables import Table
from latflow.corpus.manifests import read_cuts
from latflow.corpus.options import GivenSource
from latflow.errors import UserError
from latflow.ledger import read_ledger

RATE = 8000


@pytest.fixture
def data(tmp_path):
    """Three utterances of two speakers, each a FLAC file of its own."""
    folder = tmp_path / "data"
    (folder / "audio").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i, utt_id in enumerate(["a-1", "a-2", "b-1"]):
        samples = (rng.standard_normal(RATE * (i + 1)) * 2000).astype(np.int16)
        soundfile.write(folder / f"audio/{utt_id}.flac", samples, RATE)
    put(folder, "wav.scp", [f"{u} audio/{u}.flac" for u in ("a-1", "a-2", "b-1")])
    put(folder, "text", ["a-1 ONE", "a-2 TWO  TWO", "b-1\tTHREE"])
    put(folder, "utt2spk", ["a-1 a", "a-2 a", "b-1 b"])
    return folder


def put(folder, name, lines):
    (folder / name).write_text("".join(f"{line}\n" for line in lines))


def cuts_of(folder):
    return {cut.id: cut for cut in CutSet.from_jsonl_lazy(folder / "cuts.jsonl.gz")}


def refused(data, tmp_path, match, **options):
    """Import must fail in one line, and leave nothing behind."""
    before = set(tmp_path.iterdir())
    with pytest.raises(UserError, match=match) as caught:
        import_kaldi_dir(data, tmp_path / "out", **options)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    assert set(tmp_path.iterdir()) == before
    return caught.value


def test_paths_may_be_relative_to_where_the_recipe_runs(data, tmp_path):
    """As in Kaldi's recipes, whose `data/train/wav.scp` is read two folders above."""
    recipe = tmp_path / "s5"
    train = recipe / "data/train"
    train.mkdir(parents=True)
    (data / "audio").rename(recipe / "audio")
    (recipe / "data/audio").mkdir()
    shutil.copy(recipe / "audio/a-2.flac", recipe / "data/audio/a-1.flac")  # nearer
    for table in ("wav.scp", "text", "utt2spk"):
        (data / table).rename(train / table)
    import_kaldi_dir(train, tmp_path / "out")
    found = {name: cut.duration for name, cut in cuts_of(tmp_path / "out").items()}
    assert found == {"a-1": 2.0, "a-2": 2.0, "b-1": 3.0}
    (recipe / "audio/b-1.flac").unlink()
    fault = refused(train, tmp_path, "does not exist", checks=GivenSource())
    assert "data/train/audio/b-1.flac" in str(fault)


def test_import_gives_one_cut_an_utterance(data, tmp_path):
    put(data, "spk2gender", ["a f", "b m"])
    put(data, "spk2age", ["a 6", "b 044"])
    put(data, "utt2lang", ["a-1 en"])
    import_kaldi_dir(data, tmp_path / "out", threads=2)
    cuts = cuts_of(tmp_path / "out")
    assert list(cuts) == ["a-1", "a-2", "b-1"]
    supervision = cuts["b-1"].supervisions[0]
    assert (supervision.id, supervision.text, supervision.speaker) == (
        "b-1", "THREE", "b",
    )  # fmt: skip
    assert (supervision.gender, supervision.custom) == ("m", {"spk2age": "044"})
    assert cuts["a-1"].supervisions[0].language == "en"
    assert cuts["a-2"].supervisions[0].text == "TWO TWO"
    assert cuts["a-2"].duration == 2.0
    assert cuts["a-2"].recording.sources[0].source == str(data / "audio/a-2.flac")
    assert cuts["a-1"].load_audio().shape == (1, RATE)
    assert list(read_ledger(tmp_path / "out/ledger.jsonl")) == []


def test_segments_cut_recordings(data, tmp_path):
    put(data, "segments", ["a-1 b-1 0.5 1.25", "a-2 b-1 1.25 -1", "b-1 a-2 0 2"])
    import_kaldi_dir(data, tmp_path / "out")
    cuts = cuts_of(tmp_path / "out")
    assert (cuts["a-1"].start, cuts["a-1"].duration) == (0.5, 0.75)
    assert cuts["a-2"].duration == 1.75
    assert cuts["a-1"].supervisions[0].start == 0.0
    whole, _ = soundfile.read(data / "audio/b-1.flac", dtype="float32")
    assert np.array_equal(cuts["a-1"].load_audio()[0], whole[4000:10000])


def test_segment_channel_is_honoured(data, tmp_path):
    stereo = np.zeros((RATE, 2), np.int16)
    stereo[:, 1] = 1000
    soundfile.write(data / "audio/a-1.flac", stereo, RATE)
    put(data, "segments", ["a-1 a-1 0 0.5 1", "a-2 a-2 0 1", "b-1 b-1 0 1"])
    import_kaldi_dir(data, tmp_path / "out")
    assert cuts_of(tmp_path / "out")["a-1"].load_audio().max() > 0.03
    export_kaldi_dir(tmp_path / "out", tmp_path / "back")
    segments = (tmp_path / "back/segments").read_text().splitlines()
    assert segments[0] == "a-1 a-1 0.0 0.50 1" or segments[0].endswith(" 1")


def test_small_overshoot_is_cut_and_noted(data, tmp_path):
    put(data, "segments", ["a-1 a-1 0 1.3", "a-2 a-2 0 2.005", "b-1 b-1 0 1"])
    import_kaldi_dir(data, tmp_path / "out")
    cuts = cuts_of(tmp_path / "out")
    assert (cuts["a-1"].duration, cuts["a-2"].duration) == (1.0, 2.0)
    (entry,) = read_ledger(tmp_path / "out/ledger.jsonl")
    assert (entry.utterance, entry.action) == ("a-1", "truncated")


def test_large_overshoot_is_refused(data, tmp_path):
    put(data, "segments", ["a-1 a-1 0 5", "a-2 a-2 0 2", "b-1 b-1 0 1"])
    refused(data, tmp_path, "a-1: goes from 0 s to 5 s, but its recording lasts 1 s")


@pytest.mark.parametrize("line", ["a-1 a-1 0", "a-1 a-1 x 1", "a-1 a-1 0 nan"])
def test_malformed_segments_are_refused(data, tmp_path, line):
    put(data, "segments", [line, "a-2 a-2 0 2", "b-1 b-1 0 1"])
    refused(data, tmp_path, "segments: a-1: .*is not: recording, start, end")


def test_unknown_recording_is_refused(data, tmp_path):
    put(data, "segments", ["a-1 zz 0 1", "a-2 a-2 0 2", "b-1 b-1 0 1"])
    refused(data, tmp_path, "segments: a-1: unknown recording zz")


def test_absolute_paths_and_commands(data, tmp_path):
    path = data / "audio/a-1.flac"
    put(data, "wav.scp", [f"a-1 {path}", f"a-2 cat {path} |", f"b-1 cat {path} |"])
    refused(data, tmp_path, r"wav.scp: a-2: .*command.*allow_commands: true")
    import_kaldi_dir(data, tmp_path / "out", allow_commands=True)
    cuts = cuts_of(tmp_path / "out")
    kept = tmp_path / "out/audio/a-2.flac"
    assert cuts["a-2"].recording.sources[0].source == str(kept)
    assert kept.read_bytes() == path.read_bytes()
    assert np.array_equal(cuts["a-2"].load_audio(), cuts["a-1"].load_audio())


def test_missing_audio_is_refused(data, tmp_path):
    (data / "audio/a-2.flac").unlink()
    error = refused(
        data, tmp_path, r"wav.scp: a-2: audio file .*a-2.flac does not exist"
    )
    assert error.utterance == "a-2"
    assert "on_bad_utterance: skip" in error.remedy


def test_zero_length_audio_is_refused(data, tmp_path):
    (data / "audio/a-2.flac").write_bytes(b"")
    refused(data, tmp_path, "a-2: audio file .* is empty")


def test_corrupt_audio_is_refused_though_its_header_is_good(data, tmp_path):
    path = data / "audio/a-2.flac"
    path.write_bytes(path.read_bytes()[:-2000])
    refused(data, tmp_path, "a-2: audio .*(corrupt|cut short)", threads=2)
    checks = GivenSource(verify_audio=False)
    import_kaldi_dir(data, tmp_path / "out", checks=checks)


def test_unknown_utterance_in_text_is_refused(data, tmp_path):
    put(data, "text", ["a-1 ONE", "a-2 TWO", "b-1 THREE", "c-1 FOUR"])
    refused(data, tmp_path, "text: c-1: unknown utterance: it is not in wav.scp")


def test_utterance_without_transcript_is_refused(data, tmp_path):
    put(data, "text", ["a-1 ONE", "b-1 THREE"])
    refused(data, tmp_path, "text: a-2: this utterance has no transcript")


@pytest.mark.parametrize("name", ["wav.scp", "text", "utt2spk"])
def test_duplicate_ids_are_refused(data, tmp_path, name):
    path = data / name
    path.write_text(path.read_text() + path.read_text().splitlines()[1] + "\n")
    refused(data, tmp_path, f"{name}: a-2: line 4: this id occurs twice")


def test_empty_transcript_is_refused(data, tmp_path):
    put(data, "text", ["a-1 ONE", "a-2", "b-1 THREE"])
    refused(data, tmp_path, "a-2: the transcript is empty")


def test_non_utf8_text_is_refused(data, tmp_path):
    (data / "text").write_bytes(b"a-1 ONE\na-2 caf\xe9\nb-1 THREE\n")
    refused(data, tmp_path, r"text: a-2: line 2 is not UTF-8 \(byte 8\) - convert")


def test_too_short_utterance_is_refused(data, tmp_path):
    put(data, "segments", ["a-1 a-1 0 0.05", "a-2 a-2 0 2", "b-1 b-1 0 1"])
    refused(data, tmp_path, "a-1: lasts 0.05 s only")


def test_missing_speaker_is_refused(data, tmp_path):
    put(data, "utt2spk", ["a-1 a", "b-1 b"])
    refused(data, tmp_path, "a-2: the speaker is not known")


@pytest.mark.parametrize("name", ["wav.scp", "text", "utt2spk"])
def test_missing_files_are_refused(data, tmp_path, name):
    (data / name).unlink()
    refused(data, tmp_path, f"{name}: no such file")


def test_missing_folder_is_refused(tmp_path):
    refused(tmp_path / "none", tmp_path, "none: no such folder")


@pytest.mark.parametrize(
    ("speaker", "found"), [("utterance", {"a-1", "a-2", "b-1"}), ("single", {"single"})]
)
def test_speakers_may_be_made_up(data, tmp_path, speaker, found):
    (data / "utt2spk").unlink()
    import_kaldi_dir(data, tmp_path / "out", checks=GivenSource(speaker=speaker))
    cuts = cuts_of(tmp_path / "out").values()
    assert {cut.supervisions[0].speaker for cut in cuts} == found


def test_bad_utterances_are_skipped_when_asked(data, tmp_path):
    (data / "audio/a-1.flac").write_bytes(b"")
    put(data, "text", ["a-1 ONE", "a-2", "b-1 THREE", "c-1 FOUR"])
    checks = GivenSource(on_bad_utterance="skip")
    import_kaldi_dir(data, tmp_path / "out", checks=checks)
    assert list(cuts_of(tmp_path / "out")) == ["b-1"]
    entries = {
        e.utterance: e.reason for e in read_ledger(tmp_path / "out/ledger.jsonl")
    }
    assert set(entries) == {"a-1", "a-2", "c-1"}
    assert "empty (0 bytes)" in entries["a-1"]
    refused(
        data, tmp_path / "..", "skipped 3 of 4", checks=checks, max_skipped_fraction=0.5
    )


def test_nothing_left_is_refused(data, tmp_path):
    put(data, "text", ["a-1", "a-2", "b-1"])
    checks = GivenSource(on_bad_utterance="skip")
    refused(data, tmp_path, "no utterance is left", checks=checks)


def test_resampling_is_noted_in_the_cuts(data, tmp_path):
    import_kaldi_dir(data, tmp_path / "out", checks=GivenSource(sample_rate=16000))
    cut = cuts_of(tmp_path / "out")["a-2"]
    assert (cut.sampling_rate, cut.num_samples, cut.duration) == (16000, 32000, 2.0)
    assert cut.load_audio().shape == (1, 32000)
    with pytest.raises(UserError, match="resampled"):
        export_kaldi_dir(tmp_path / "out", tmp_path / "back")


def test_export_writes_what_kaldi_reads(data, tmp_path):
    put(data, "spk2age", ["a 6", "b 44"])
    import_kaldi_dir(data, tmp_path / "out")
    export_kaldi_dir(tmp_path / "out", tmp_path / "back")
    back = {p.name: p.read_text() for p in (tmp_path / "back").iterdir()}
    assert back["text"] == "a-1 ONE\na-2 TWO TWO\nb-1 THREE\n"
    assert back["utt2spk"] == (data / "utt2spk").read_text()
    assert back["spk2utt"] == "a a-1 a-2\nb b-1\n"
    assert back["spk2age"] == "a 6\nb 44\n"
    assert back["wav.scp"].splitlines()[0] == f"a-1 {data}/audio/a-1.flac"
    assert set(back) == {"text", "utt2spk", "spk2utt", "spk2age", "wav.scp"}


def rewrite(folder, name, change):
    """Change every item of a manifest."""
    path = folder / f"{name}.jsonl.gz"
    items = [
        json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()
    ]
    with gzip.open(path, "wt") as stream:
        for item in items:
            change(item)
            stream.write(json.dumps(item) + "\n")


def test_export_refuses_what_kaldi_cannot_say(data, tmp_path):
    import_kaldi_dir(data, tmp_path / "out")
    rewrite(tmp_path / "out", "supervisions", lambda s: s.update(speaker="Ann Lee"))
    with pytest.raises(UserError, match="speaker 'Ann Lee' is empty or holds a blank"):
        export_kaldi_dir(tmp_path / "out", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    rewrite(
        tmp_path / "out", "recordings", lambda r: r["sources"][0].update(type="url")
    )
    with pytest.raises(UserError, match="type url"):
        export_kaldi_dir(tmp_path / "out", tmp_path / "back")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_table_reads_any_encoding_line_end_and_blank(tmp_path, encoding, end):
    path = tmp_path / "text"
    lines = ["b zwei", "", "a\u00a0h\u00e9\u3000ho ", "c"]
    path.write_bytes(end.join([*lines, ""]).encode(encoding))
    table = Table(path)
    assert {key: table[key].split() for key in table} == {
        "a": ["h\u00e9", "ho"], "b": ["zwei"], "c": []
    }  # fmt: skip


def test_table_reads_windows_line_ends_and_blank_lines(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("b zwei\r\n\r\na h\u00e9 ho\r\n".encode())
    table = Table(path)
    assert list(table) == ["a", "b"]
    assert (table["a"], table["b"], table.get("c")) == ("h\u00e9 ho", "zwei", None)
    table.close()


def test_paths_keep_links(data, tmp_path):
    (tmp_path / "link").symlink_to(data)
    import_kaldi_dir(tmp_path / "link", tmp_path / "out")
    source = cuts_of(tmp_path / "out")["a-1"].recording.sources[0].source
    assert source == str(tmp_path / "link/audio/a-1.flac")
    assert Recording.from_file(source).num_samples == RATE
    assert re.search("link", source)


def test_a_set_without_transcripts_needs_no_text(data, tmp_path):
    (data / "text").unlink()
    checks = GivenSource(transcripts=False)
    import_kaldi_dir(data, tmp_path / "out", checks=checks)
    cuts = cuts_of(tmp_path / "out")
    assert list(cuts) == ["a-1", "a-2", "b-1"]
    assert [cut.supervisions[0].text for cut in cuts.values()] == ["", "", ""]
    assert cuts["b-1"].supervisions[0].speaker == "b"


def test_transcripts_that_are_there_are_kept_in_a_set_that_may_lack_them(
    data, tmp_path
):
    put(data, "text", ["a-2 TWO"])
    checks = GivenSource(transcripts=False)
    import_kaldi_dir(data, tmp_path / "out", checks=checks)
    texts = [c.supervisions[0].text for c in cuts_of(tmp_path / "out").values()]
    assert texts == ["", "TWO", ""]


def test_cuts_are_written_as_lhotse_writes_them(data, tmp_path):
    import_kaldi_dir(data, tmp_path / "out")
    with gzip.open(tmp_path / "out/cuts.jsonl.gz", "rt", encoding="utf-8") as lines:
        written = lines.read().splitlines()
    cuts = read_cuts(tmp_path / "out/cuts.jsonl.gz")
    assert written == [json.dumps(c.to_dict(), ensure_ascii=False) for c in cuts]
