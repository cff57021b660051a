"""Quality of alignments: MFA's table."""

import csv
import math

import numpy as np
import pytest
import soundfile
from fixtures.made_up_alignments import cut, make_system, recording, states

from latflow.align.analysis import COLUMNS, AlignmentAnalysis, signal_to_noise
from latflow.align.corpus import LogLikes
from latflow.align.export import export_alignments
from latflow.align.options import ExportOptions
from latflow.align.timing import AlignedSet, AlignedUtterance, AlignedWord, TimedPhone
from latflow.corpus.json_lines import ManifestWriter
from latflow.files import write_json
from latflow.kaldi.io import write_int_vectors
from latflow.ragged import RaggedWriter

RATE = 8000


def utterance(*phones):
    """Phones (name, start, end, score) of one word, silences as SIL."""
    timed = tuple(TimedPhone(*phone, None) for phone in phones)
    word = AlignedWord("word", tuple(p for p in timed if p.phone != "SIL"))
    return AlignedUtterance((word,), timed, frozenset({"SIL"}))


def table(path):
    with path.open() as stream:
        rows = list(csv.DictReader(stream))
    return {row["file"]: row for row in rows}, [row["file"] for row in rows]


def test_rows_are_what_mfa_says_of_them(tmp_path):
    analysis = AlignmentAnalysis(tmp_path / "scratch")
    logs = []
    for number, length in enumerate((0.1, 0.1, 0.1, 0.4)):
        end = length + 0.1
        phones = ("AH", 0.0, length, -40.0), ("T", length, end, -60.0)
        timed = utterance(*phones, ("SIL", end, 1.0, -10.0))
        analysis.add((f"f{number}", 0.0, 1.0, "ann"), timed, None, RATE)
        logs.append(math.log(length))
    analysis.write(tmp_path / "a.csv")
    found, order = table(tmp_path / "a.csv")
    assert tuple(found["f0"]) == COLUMNS
    assert order[0] == "f3"  # the most unusual first
    z = (logs[3] - np.mean(logs)) / np.std(logs, ddof=1)
    assert float(found["f3"]["phone_duration_deviation"]) == pytest.approx(z, abs=1e-4)
    # Of frames, silence with them; of the phones of words alone, each counts once.
    overall = (0.1 * -40 + 0.1 * -60 + 0.8 * -10) / 1.0
    assert float(found["f0"]["overall_log_likelihood"]) == pytest.approx(overall)
    assert float(found["f0"]["speech_log_likelihood"]) == -50.0
    assert found["f0"]["snr"] == ""
    assert not (tmp_path / "scratch").exists()


def test_what_is_not_known_is_empty(tmp_path):
    analysis = AlignmentAnalysis(tmp_path / "scratch")
    timed = utterance(("AH", 0.0, 0.5, None))
    analysis.add(("f", 0.0, 0.5, "ann"), timed, np.zeros(RATE // 2), RATE)
    analysis.write(tmp_path / "a.csv")
    (row,) = table(tmp_path / "a.csv")[0].values()
    assert [row[name] for name in COLUMNS[4:]] == ["", "", "", ""]


def test_a_phone_without_length_is_left_out(tmp_path):
    analysis = AlignmentAnalysis(tmp_path / "scratch")
    for name, length in (("a", 0.1), ("b", 0.2)):
        timed = utterance(("AH", 0.0, length, -1.0), ("T", length, length, -3.0))
        analysis.add((name, 0.0, length, "ann"), timed, None, RATE)
    timed = utterance(("T", 0.3, 0.3, -3.0))
    analysis.add(("c", 0.0, 0.3, "ann"), timed, None, RATE)
    analysis.write(tmp_path / "a.csv")
    found, _ = table(tmp_path / "a.csv")
    assert float(found["a"]["overall_log_likelihood"]) == -1.0
    assert float(found["a"]["phone_duration_deviation"]) > 0
    assert found["c"]["overall_log_likelihood"] == ""
    assert found["c"]["phone_duration_deviation"] == ""


def test_signal_to_noise():
    timed = utterance(("SIL", 0.0, 0.5, -1.0), ("AH", 0.5, 1.0, -1.0))
    samples = np.full(RATE, 0.01)
    samples[RATE // 2 :] = 0.1
    assert signal_to_noise(timed, samples, RATE) == pytest.approx(20.0)
    samples[: RATE // 2] = 0.0
    assert signal_to_noise(timed, samples, RATE) is None
    # Nothing but speech: its quietest 25 ms.
    timed = utterance(("AH", 0.0, 1.0, -1.0))
    samples[:] = 0.1
    samples[400:600] = 0.01
    power = (7800 * 0.01 + 200 * 0.0001) / 8000
    expected = 10 * math.log10(power / 0.0001)
    assert signal_to_noise(timed, samples, RATE) == pytest.approx(expected)


def test_the_export_reads_the_audio_of_each_utterance(tmp_path):
    folder, lang, model = make_system(tmp_path)
    samples = np.full(RATE, 0.1, np.float32)
    samples[400:600] = 0.01  # 25 ms, 20 dB below
    soundfile.write(tmp_path / "one.wav", samples, RATE, "FLOAT")
    ids = states(lang, model, ["EY_B", "T_E"], (12, 18))
    with ManifestWriter(tmp_path / "cuts.jsonl.gz") as cuts:
        place = recording("one", tmp_path / "one.wav")
        cuts.write(cut("a-1", place, "ann", "EIGHT"))
    write_int_vectors(tmp_path / "ali.ark", iter([("a-1", ids)]))
    with RaggedWriter(tmp_path / "log_likes", LogLikes) as writer:
        writer.write("a-1", np.full(len(ids), -10.0, np.float32))
    write_json(tmp_path / "statistics.json", {"frame_shift": 0.01})
    aligned = AlignedSet(
        alignments=tmp_path / "ali.ark",
        statistics=tmp_path / "statistics.json",
        cuts=tmp_path / "cuts.jsonl.gz",
        lang_dir=folder / "lang",
        model_dir=folder,
        first_middle=0.005,
    )
    export_alignments(
        aligned, tmp_path / "out", options=ExportOptions(formats=["analysis"]),
        log_likes_dir=tmp_path / "log_likes",
    )  # fmt: skip
    (row,) = table(tmp_path / "out/alignment_analysis.csv")[0].values()
    assert (row["begin"], row["end"], row["speaker"]) == ("0.0", "0.3", "ann")
    assert float(row["snr"]) == pytest.approx(19.6, abs=0.1)
    assert float(row["overall_log_likelihood"]) == pytest.approx(-10.0)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"alignment_analysis.csv", "export.json"}
