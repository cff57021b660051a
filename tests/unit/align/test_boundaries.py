"""Boundaries of phones in short windows of the audio."""

import json

import numpy as np
import pytest
import soundfile
from fixtures.made_up_alignments import cut, make_system, recording, states

from latflow.align.boundaries import REACH, refine_boundaries
from latflow.align.export import export_alignments
from latflow.align.options import ExportOptions
from latflow.align.timing import AlignedSet, PhoneTimes, Timer
from latflow.corpus.json_lines import ManifestWriter
from latflow.corpus.textgrid import read_tiers
from latflow.errors import UserError
from latflow.files import write_json
from latflow.kaldi.io import write_int_vectors
from latflow.ledger import read_ledger

RATE, SECONDS, FIRST_MIDDLE = 8000, 0.3, 0.0125


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    return make_system(tmp_path_factory.mktemp("system"))


@pytest.fixture
def spoken(system, tmp_path):
    """EIGHT as a buzz and a hiss, aligned some frames off; where the hiss begins."""
    _, lang, model = system
    rng = np.random.default_rng(3)
    truth, aligned = {}, []
    with ManifestWriter(tmp_path / "cuts.jsonl.gz") as cuts:
        for number in range(12):
            name = f"u{number:02}"
            switch = int(RATE * rng.uniform(0.1, 0.2))
            time = np.arange(int(RATE * SECONDS))
            buzz = 0.3 * ((time % 57) / 57 - 0.5)
            hiss = 0.05 * rng.standard_normal(len(time))
            soundfile.write(
                tmp_path / f"{name}.wav", np.where(time < switch, buzz, hiss), RATE
            )
            truth[name] = switch / RATE
            held = recording(name, tmp_path / f"{name}.wav", SECONDS)
            cuts.write(cut(name, held, "ann", "EIGHT", 0.0, SECONDS))
            first = round((truth[name] - 0.0075) / 0.01) + int(rng.integers(-1, 2))
            path = states(lang, model, ["EY_B", "T_E"], (first, 28 - first))
            aligned.append((name, path))
    write_int_vectors(tmp_path / "ali.ark", iter(aligned))
    write_json(tmp_path / "statistics.json", {"frame_shift": 0.01})
    return tmp_path, truth


def refine(folder, system, out="bounds", **keywords):
    refine_boundaries(
        AlignedSet(
            alignments=folder / "ali.ark",
            statistics=folder / "statistics.json",
            cuts=folder / "cuts.jsonl.gz",
            lang_dir=system[0] / "lang",
            model_dir=system[0],
            first_middle=FIRST_MIDDLE,
        ),
        out_dir=folder / out,
        **keywords,
    )
    return PhoneTimes.load(folder / out)


def by_frame(folder, system):
    """Times of the frames' boundaries, by utterance."""
    from latflow.align.corpus import AlignmentArchive

    archive = AlignmentArchive(folder / "ali.ark")
    timer = Timer.load(
        system[0] / "lang",
        system[0],
        folder / "statistics.json",
        first_middle=FIRST_MIDDLE,
    )
    names = [f"u{number:02}" for number in range(12)]
    return {name: timer.phones(archive.get(name), SECONDS)[1] for name in names}


def test_boundaries_come_closer_to_the_truth(spoken, system):
    folder, truth = spoken
    found, before = refine(folder, system), by_frame(folder, system)
    assert list(read_ledger(folder / "bounds/ledger.jsonl")) == []
    errors = [abs(found.get(name).times[1] - truth[name]) for name in truth]
    frames = [abs(before[name][1] - truth[name]) for name in truth]
    assert max(errors) < 0.006
    assert max(frames) > 0.009
    for name in truth:
        times = found.get(name).times
        assert (times[0], times[-1]) == (0.0, SECONDS)
        assert (np.diff(times) > 0).all()
        assert np.abs(times - before[name]).max() <= REACH + 0.002


def test_threads_change_nothing(spoken, system):
    folder, _ = spoken
    one = refine(folder, system, "one", threads=1)
    three = refine(folder, system, "three", threads=3)
    assert (one["times"].flat == three["times"].flat).all()


def test_longer_frames_reach_further(spoken, system):
    """A network that scores one frame in three: two of its frames, then 7."""
    folder, truth = spoken
    _, lang, model = system
    aligned = [
        (name, states(lang, model, ["EY_B", "T_E"], (round(at / 0.03), 9)))
        for name, at in truth.items()
    ]
    write_int_vectors(folder / "ali.ark", iter(aligned))
    write_json(folder / "statistics.json", {"frame_shift": 0.03})
    found = refine(folder, system)
    assert max(abs(found.get(name).times[1] - at) for name, at in truth.items()) < 0.006


def test_damaged_audio_keeps_its_frames(spoken, system):
    folder, _ = spoken
    (folder / "u03.wav").write_bytes(b"no audio")
    found, before = refine(folder, system), by_frame(folder, system)
    assert found.get("u03").times.tolist() == before["u03"].tolist()
    (entry,) = read_ledger(folder / "bounds/ledger.jsonl")
    assert (entry.utterance, entry.action) == ("u03", "noted")
    assert "unreadable audio" in entry.reason


def export(folder, system):
    export_alignments(
        AlignedSet(
            alignments=folder / "ali.ark",
            statistics=folder / "statistics.json",
            cuts=folder / "cuts.jsonl.gz",
            lang_dir=system[0] / "lang",
            model_dir=system[0],
            first_middle=FIRST_MIDDLE,
        ),
        out_dir=folder / "out",
        options=ExportOptions(),
        boundaries_dir=folder / "bounds",
    )


def test_files_have_the_refined_times(spoken, system):
    folder, _ = spoken
    found = refine(folder, system)
    export(folder, system)
    for line in (folder / "out/alignments.jsonl").read_text().splitlines():
        told = json.loads(line)
        times = found.get(told["utterance"]).times.round(4).tolist()
        phones = told["words"][0]["phones"]
        assert [phone["start"] for phone in phones] == times[:-1]
        assert told["words"][0]["end"] == phones[-1]["end"] == SECONDS
        grid = read_tiers(folder / f"out/textgrid/{told['recording']}.TextGrid")
        (tier,) = (tier for tier in grid if tier.name == "phones")
        ends = [interval.end for interval in tier.intervals]
        assert ends == pytest.approx(times[1:], abs=1e-4)


def test_times_of_other_alignments_are_refused(spoken, system):
    folder, _ = spoken
    refine(folder, system)
    _, lang, model = system
    path = states(lang, model, ["W_B", "AH_I", "N_E"], (8, 8, 12))
    write_int_vectors(folder / "ali.ark", iter([("u00", path)]))
    with pytest.raises(UserError, match="times of 2 phones, where .* has 3"):
        export(folder, system)
