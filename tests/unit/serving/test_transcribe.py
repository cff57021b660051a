import gc
import io
import json
import sys
import tracemalloc
from types import SimpleNamespace

import lhotse
import numpy as np
import pandas as pd
import pytest
import soundfile
from fixtures.serving_package import adapting_package

from latflow.cli.main import main
from latflow.corpus.ctm import read_ctm
from latflow.corpus.espeak import resample
from latflow.corpus.json_lines import ManifestWriter
from latflow.decode.options import (
    RecordingsOptions,
    SegmentationOptions,
    TranscribeOptions,
)
from latflow.errors import UserError
from latflow.features.cmvn_options import OnlineCmvn
from latflow.features.resampling import StreamingResampler
from latflow.lattice.io.archives import read_lattices
from latflow.ledger import read_ledger
from latflow.options import read_options
from latflow.serving.options import SessionOptions
from latflow.serving.package import Model
from latflow.serving.recording import find_recordings
from latflow.serving.results import Final
from latflow.serving.segmentation import SpeechCutter, SpeechDetector
from latflow.serving.session import Session
from latflow.serving.transcribe import Fault, transcribe, transcribe_recordings

RATE = 8000
WHOLE = TranscribeOptions(segmentation=SegmentationOptions(type="none"))


@pytest.fixture(scope="module")
def call(digits, tmp_path_factory):
    """A recording of all sentences, 2 s of faint noise between them."""
    rng = np.random.default_rng(5)
    pieces = []
    for utterance in digits.audio:
        pieces += [rng.normal(0, 3e-4, 2 * RATE), digits.samples(utterance)]
    path = tmp_path_factory.mktemp("call") / "call.wav"
    soundfile.write(path, np.concatenate([*pieces, np.zeros(RATE)]), RATE)
    return path


def segments_of(model, samples, rate=RATE, **options):
    """Segments of a session that is given all samples at once."""
    chosen = SessionOptions(
        **{"sample_rate": rate, "endpoint": "off", "chunk_length": 2.4, **options}
    )
    with Session(model, chosen, "x") as session:
        events = session.accept(samples) + session.finish()
    return [event.segment for event in events if isinstance(event, Final)]


def timed(segment, offset=0.0):
    return [
        (w.word, w.start + offset, w.duration, w.confidence) for w in segment.best.words
    ]


def assert_same(segment, expected, offset=0.0):
    """Compare words, times, and confidences, whose sums round with the threads."""
    found, wanted = timed(segment), timed(expected, offset)
    assert [word[:3] for word in found] == [word[:3] for word in wanted]
    sure = [word[3] for word in wanted]
    assert [word[3] for word in found] == pytest.approx(sure, abs=1e-3)


def run(model, paths, out_dir, options=None, **others):
    options = options or TranscribeOptions()
    recordings = find_recordings(paths)
    return transcribe(model, recordings, options=options, out_dir=out_dir, **others)


@pytest.mark.parametrize("threads", [1, 3])
def test_words_of_a_file_are_those_of_a_session(model, digits, tmp_path, threads):
    paths = list(digits.audio.values())
    found = run(model, paths, tmp_path, WHOLE, threads=threads)
    assert [result.name for result in found] == list(digits.audio)
    for result in found:
        (expected,) = segments_of(model, digits.samples(result.name))
        (segment,) = result.segments
        assert_same(segment, expected)
        assert (segment.start, segment.end) == (expected.start, expected.end)
        written = (tmp_path / f"{result.name}.txt").read_text()
        assert written == f"{expected.best.text}\n"
    words = " ".join(result.text for result in found).split()
    said = " ".join(digits.texts.values()).split()
    assert abs(len(words) - len(said)) <= 3


@pytest.mark.parametrize("threads", [1, 3])
def test_where_a_model_adapts_segments_go_on_as_in_a_stream(
    digits, call, tmp_path, threads
):
    cmvn = OnlineCmvn(window=60000, global_frames=20000)
    model = Model.load(adapting_package(digits, tmp_path, cmvn))
    again = tmp_path / "again.wav"
    again.write_bytes(call.read_bytes())
    archive = tmp_path / "lattices.ark"
    found = run(model, [call, again], tmp_path, lattices=archive, threads=threads)
    samples, _ = soundfile.read(call, dtype="float32")
    options = {"endpoint": "model", "chunk_length": 0.24, "lattices": True}
    vad = SegmentationOptions()
    streamed = [
        segment
        for segment in segments_of(model, samples, vad=vad, **options)
        if segment.best.words
    ]
    for result in found:
        mine = [segment for segment in result.segments if segment.best.words]
        for segment, other in zip(mine, streamed, strict=True):
            assert_same(segment, other)

    def costs(lattices):
        return [lattice.acoustic_cost.sum() for lattice in lattices]

    got = costs(lattice for _, lattice in read_lattices(archive))
    wanted = costs(segment.lattice for segment in streamed)
    assert got == pytest.approx([*wanted, *wanted], rel=1e-6)
    cutter = SpeechCutter(RATE, SpeechDetector(RATE), vad)
    alone = costs(
        segments_of(model, piece, **options)[0].lattice
        for _, piece in cutter.accept(samples) + cutter.finish()
    )
    assert alone[0] == pytest.approx(wanted[0], rel=1e-6)
    assert all(
        abs(one - other) > 1e-4 * other
        for one, other in zip(alone[1:], wanted[1:], strict=True)
    )


def test_segments_of_speech_are_recognized_one_by_one(model, digits, call, tmp_path):
    (found,) = run(model, [call], tmp_path, threads=2)
    samples, _ = soundfile.read(call, dtype="float32")
    cutter = SpeechCutter(RATE, SpeechDetector(RATE), SegmentationOptions())
    pieces = cutter.accept(samples) + cutter.finish()
    assert len(found.segments) == len(pieces) >= len(digits.audio)
    for segment, (first, piece) in zip(found.segments, pieces, strict=True):
        np.testing.assert_array_equal(piece, samples[first : first + len(piece)])
        (expected,) = segments_of(model, piece)
        assert_same(segment, expected, first / RATE)
        assert segment.start == first / RATE
        assert segment.end == pytest.approx((first + len(piece)) / RATE)
    words = found.text.split()
    said = " ".join(digits.texts.values()).split()
    assert abs(len(words) - len(said)) <= 3
    assert found.duration == len(samples) / RATE
    ends = [w.end for s in found.segments for w in s.best.words]
    assert ends == sorted(ends)
    assert ends[-1] <= found.duration


def test_endpoint_rules_end_segments(model, call, tmp_path):
    options = TranscribeOptions(segmentation=SegmentationOptions(type="endpoint"))
    (found,) = run(model, [call], tmp_path, options)
    samples, _ = soundfile.read(call, dtype="float32")
    expected = segments_of(
        model, samples, endpoint="model", chunk_length=SessionOptions().chunk_length
    )
    assert len(expected) >= 2
    for segment, other in zip(found.segments, expected, strict=True):
        assert_same(segment, other)


def test_results_do_not_depend_on_threads_and_overwrite_themselves(
    unsure, digits, call, tmp_path
):
    paths = [call, *digits.audio.values()]
    forms = ("txt", "json", "ctm", "srt", "vtt", "textgrid")
    options = TranscribeOptions(formats=forms, max_alternatives=3)
    written = []
    for threads in (1, 3, 1):
        run(unsure, paths, tmp_path / "out", options, threads=threads)
        files = sorted((tmp_path / "out").iterdir())
        assert len(files) == len(forms) * len(paths)
        written.append({path.name: path.read_bytes() for path in files})
    assert written[0] == written[1] == written[2]
    value = json.loads(written[0]["call.json"])
    assert value["model"]["name"] == "tdnnf"
    assert value["model"]["experiment"] == "digits"
    assert any("alternatives" in segment for segment in value["segments"])
    words = list(read_ctm(tmp_path / "out/call.ctm"))
    assert [w.word for w in words] == value["text"].split()
    assert all(0 <= w.confidence <= 1 for w in words)


@pytest.mark.parametrize(
    ("suffix", "rate", "subtype"),
    [
        ("flac", 8000, "PCM_16"),
        ("wav", 16000, "FLOAT"),
        ("wav", 44100, "PCM_24"),
        ("ogg", 16000, None),
        ("mp3", 16000, None),
        ("aiff", 11025, "PCM_16"),
        ("au", 8000, "ULAW"),
    ],
)
def test_formats_and_rates_are_read(model, digits, tmp_path, suffix, rate, subtype):
    utterance = next(iter(digits.audio))
    samples = resample(digits.samples(utterance), RATE, rate)
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, samples, rate, subtype=subtype)
    read, _ = soundfile.read(path, dtype="float32")
    (found,) = run(model, [path], tmp_path, WHOLE)
    (expected,) = segments_of(model, read, rate)
    assert_same(found.segments[0], expected)
    assert found.text


def test_channels_are_mixed_or_chosen(model, digits, tmp_path):
    one, two = (digits.samples(u) for u in list(digits.audio)[:2])
    both = np.zeros((max(len(one), len(two)), 2), np.float32)
    both[: len(one), 0], both[: len(two), 1] = one, two
    path = tmp_path / "stereo.wav"
    soundfile.write(path, both, RATE, subtype="FLOAT")
    for channel, samples in ((1, both[:, 0]), (2, both[:, 1]), (None, both.mean(1))):
        options = WHOLE.replace(channel=channel)
        (found,) = run(model, [path], tmp_path, options)
        assert_same(found.segments[0], segments_of(model, samples)[0])
        assert found.channel == str(channel or 1)
    (found,) = run(model, [path], tmp_path, WHOLE.replace(channel=3))
    assert "no channel 3" in found.reason
    assert found.remedy == "choose from 1 to 2"


def bad_files(folder, good):
    """Files that cannot be transcribed, and what is told of them."""
    data = good.read_bytes()
    (folder / "empty.wav").touch()
    (folder / "text.wav").write_text("these are no samples, " * 100)
    (folder / "short.flac").write_bytes(data[: len(data) // 2])
    soundfile.write(folder / "nothing.wav", np.zeros(0), RATE)
    soundfile.write(folder / "nan.wav", np.full(9000, np.nan), RATE, subtype="FLOAT")
    soundfile.write(folder / "slow.wav", np.zeros(900), 500)
    return {
        "empty": "is empty",
        "nan": "NaN or infinite",
        "nothing": "holds no samples",
        "short": "corrupt|cut short",
        "slow": "500 samples a second",
        "text": "in no format",
    }


@pytest.mark.parametrize("segmentation", ["vad", "none"])
def test_bad_files_are_named_and_the_others_go_on(
    model, package, digits, tmp_path, capsys, segmentation
):
    good = next(iter(digits.audio.values()))
    folder = tmp_path / "in"
    folder.mkdir()
    told = bad_files(folder, good)
    (folder / "good.flac").write_bytes(good.read_bytes())
    status = main(
        ["transcribe", str(package), str(folder), str(tmp_path / "missing.wav"),
         "--out", str(tmp_path / "out"), "--segmentation", segmentation]
    )  # fmt: skip
    assert status == 1
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["good.txt"]
    told_all = capsys.readouterr().err
    assert "7 of 8 recordings could not be transcribed" in told_all
    lines = [line for line in told_all.splitlines() if " ERROR " in line]
    assert len(lines) == 7
    for name, reason in {**told, "missing": "does not exist"}.items():
        (line,) = [line for line in lines if f"{name}." in line]
        assert any(part in line for part in reason.split("|")), line


def test_a_fault_behind_good_speech_leaves_no_result(model, call, tmp_path):
    samples, _ = soundfile.read(call, dtype="float32")
    samples[-100] = np.inf
    soundfile.write(tmp_path / "a.wav", samples, RATE, subtype="FLOAT")
    soundfile.write(tmp_path / "b.wav", samples[:-200], RATE)
    first, second = run(model, [tmp_path], tmp_path / "out")
    assert isinstance(first, Fault)
    assert second.segments
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.txt"]


def test_files_of_the_same_name_do_not_collide(tmp_path):
    for name in ("x/a.wav", "y/a.wav", "y/deep/b.1.flac", "y/.hidden.wav", "y/t.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    x, y = tmp_path / "x", tmp_path / "y"

    def names(*inputs):
        return [recording.name for recording in find_recordings(inputs)]

    assert names(y) == ["a", "deep/b.1"]
    assert names(x / "a.wav", y / "deep" / "b.1.flac") == ["a", "b.1"]
    assert names(x, y) == ["x/a", "y/a", "y/deep/b.1"]
    assert names(x / "a.wav", y / "a.wav") == ["x/a", "y/a"]
    assert names(x, x / "a.wav", x) == ["a"]
    (x / "a.flac").touch()
    assert names(x) == ["a.flac", "a.wav"]
    assert names() == []


def test_a_folder_without_audio_is_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match="no audio file in this folder"):
        find_recordings([tmp_path])


@pytest.mark.parametrize("is_raw", [True, False])
def test_standard_input_is_read(model, package, digits, monkeypatch, capsys, is_raw):
    utterance = next(iter(digits.audio))
    samples = digits.samples(utterance)
    if is_raw:
        data = (samples * 32768).astype("<i2").tobytes()
    else:
        stream = io.BytesIO()
        soundfile.write(stream, samples, RATE, format="WAV")
        data = stream.getvalue()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    raw = ["--raw-rate", str(RATE)] if is_raw else []
    assert main(["transcribe", str(package), "-", "--segmentation", "none", *raw]) == 0
    (expected,) = segments_of(model, samples)
    assert capsys.readouterr().out == f"{expected.best.text}\n"


def test_the_bar_of_one_recording_counts_its_segments(model, call, tmp_path, capsys):
    for number in (1, 2):
        recordings = tmp_path / str(number)
        recordings.mkdir()
        for n in range(number):
            (recordings / f"{n}.wav").write_bytes(call.read_bytes())
        found = run(model, [recordings], tmp_path / f"{number}.out")
        bar = capsys.readouterr().err
        if number == 1:
            assert len(found[0].segments) > 1
            assert "transcribe segments: " in bar
            assert "0/1" not in bar
        else:
            assert "| 0/2 " in bar


def test_standard_output_takes_one_result(package, digits):
    paths = list(map(str, digits.audio.values()))
    assert main(["transcribe", str(package), *paths]) == 1
    assert main(["transcribe", str(package), paths[0], "--format", "txt,srt"]) == 1


def test_lattices_are_written_by_segment(model, call, tmp_path):
    archive = tmp_path / "lattices.ark"
    (found,) = run(model, [call], tmp_path, lattices=archive)
    keys = [key for key, lattice in read_lattices(archive) if lattice.num_states]
    assert len(keys) == len(found.segments)
    start = round(100 * found.segments[0].start)
    assert keys[0].startswith(f"call-{start:07}-")
    assert keys == sorted(keys)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_recording(model, digits, tmp_path):
    spoken = digits.samples(next(iter(digits.audio)))
    part = np.concatenate([np.zeros(20 * RATE, np.float32), spoken])
    peaks = []
    for times in (1, 1, 8):  # the first loads and compiles
        path = tmp_path / f"{times}.wav"
        soundfile.write(path, np.tile(part, 2 * times), RATE)
        gc.collect()
        tracemalloc.start()
        (found,) = run(model, [path], tmp_path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(found.segments) == 2 * times
    assert peaks[2] < peaks[1] + 1e6  # the longer one has 13 MB of samples


def test_the_stage_writes_a_summary_and_a_ledger(package, digits, tmp_path):
    good = next(iter(digits.audio.values()))
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "good.flac").write_bytes(good.read_bytes())
    (folder / "bad.wav").touch()
    given = {
        "package_dir": package,
        "out_dir": tmp_path / "out",
        "options": RecordingsOptions(
            system="tdnnf", path=str(folder), formats=("txt", "ctm"), lattices=True
        ),
        "threads": 2,
    }
    with pytest.raises(UserError, match="transcribe skipped 1 of 2"):
        transcribe_recordings(**given, max_skipped_fraction=0.1)
    transcribe_recordings(**given, max_skipped_fraction=0.5)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "good.txt", "good.ctm", "lattices.ark", "recordings.tsv", "ledger.jsonl",
    }  # fmt: skip
    table = pd.read_csv(tmp_path / "out/recordings.tsv", sep="\t")
    assert list(table["recording"]) == ["good"]
    assert table["seconds"][0] == pytest.approx(
        len(soundfile.read(good)[0]) / RATE, abs=1e-3
    )
    words = (tmp_path / "out/good.txt").read_text().split()
    assert table["words"][0] == len(words)
    (entry,) = read_ledger(tmp_path / "out/ledger.jsonl")
    assert entry.utterance == "bad"


@pytest.mark.parametrize("rate", [8000, 11025, 44100])
def test_pieces_of_any_rate_are_cut_where_the_detector_says(call, rate):
    samples, _ = soundfile.read(call, dtype="float32")
    resampler = StreamingResampler(RATE, rate)
    wave = np.concatenate([resampler.accept(samples), resampler.finish()])
    found = []
    for size in (len(wave), 7001):
        cutter = SpeechCutter(rate, SpeechDetector(rate), SegmentationOptions())
        pieces = []
        for first in range(0, len(wave), size):
            pieces += cutter.accept(wave[first : first + size])
        pieces += cutter.finish()
        for first, piece in pieces:
            np.testing.assert_array_equal(piece, wave[first : first + len(piece)])
        found.append([(first, len(piece)) for first, piece in pieces])
        assert cutter.num_samples == len(wave)
    assert found[0] == found[1]
    assert len(found[0]) > 3


def test_recordings_of_a_set_are_transcribed_under_their_ids(
    package, model, digits, tmp_path
):
    paths = list(digits.audio.values())[:2]
    with ManifestWriter(tmp_path / "recordings.jsonl.gz") as writer:
        for name, path in zip(("one", "two"), paths, strict=True):
            writer.write(lhotse.Recording.from_file(path, recording_id=name))
    options = RecordingsOptions(
        system="tdnnf", set="test", segmentation=SegmentationOptions(type="none")
    )
    transcribe_recordings(
        package,
        tmp_path / "out",
        options=options,
        threads=1,
        max_skipped_fraction=0.0,
        recordings=tmp_path / "recordings.jsonl.gz",
    )
    for name, path in zip(("one", "two"), paths, strict=True):
        (expected,) = segments_of(model, soundfile.read(path, dtype="float32")[0])
        text = (tmp_path / f"out/{name}.txt").read_text()
        assert text == f"{expected.best.text}\n"


@pytest.mark.parametrize("given", [{}, {"path": "x", "set": "test"}])
def test_recordings_come_from_one_place(given):
    with pytest.raises(UserError, match="name either a path or a set"):
        read_options(RecordingsOptions, {"system": "tdnnf", **given}, "transcribe.x")


def test_a_header_of_no_length_is_read_to_the_end(model, call, tmp_path, caplog):
    """As a recorder leaves it that crashed; the words are those of the whole file."""
    content = bytearray(call.read_bytes())
    at = content.index(b"data") + 4
    content[at : at + 4] = bytes(4)
    path = tmp_path / "call.wav"
    path.write_bytes(content)
    whole, mended = (
        transcribe(model, find_recordings([p]), options=WHOLE, out_dir=tmp_path / "o")
        for p in (call, path)
    )
    assert [s.best.text for s in mended[0].segments] == [
        s.best.text for s in whole[0].segments
    ]
    assert mended[0].duration == whole[0].duration
    assert f"{path}: a header with a wrong length" in caplog.text
