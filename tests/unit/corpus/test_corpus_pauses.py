"""Utterances joined with pauses: manifests, audio, pauses; sets of a recipe."""

import numpy as np
import pytest
import soundfile
from lhotse import MonoCut, Recording, SupervisionSegment

from latflow.corpus.derived_options import PausedSetOptions
from latflow.corpus.json_lines import ManifestWriter
from latflow.corpus.manifests import (
    load_samples,
    read_cuts,
    read_recordings,
    read_supervisions,
)
from latflow.corpus.options import CorpusOptions
from latflow.corpus.pauses import join_with_pauses, noise_like
from latflow.errors import UserError
from latflow.ledger import read_ledger
from latflow.options import read_options

RATE = 8000
NAMES = ("a-1", "a-2", "a-3", "b-1", "b-2")
LEVEL = 0.25  # of all samples of an utterance


def write_corpus(folder, level=LEVEL, names=NAMES, subtype="PCM_16"):
    """A corpus folder of utterances of a second each, a word each, a tone each."""
    (folder / "set").mkdir()
    items = {"recordings": [], "supervisions": [], "cuts": []}
    time = np.arange(RATE) / RATE
    for name in names:
        wave = level * np.sin(2 * np.pi * 500 * time)
        soundfile.write(folder / f"{name}.wav", wave, RATE, subtype=subtype)
        recording = Recording.from_file(folder / f"{name}.wav", recording_id=name)
        said = SupervisionSegment(
            name, name, 0.0, 1.0, text=f"word-{name}", speaker=name[0], gender="F"
        )
        items["recordings"].append(recording)
        items["supervisions"].append(said)
        items["cuts"].append(
            MonoCut(name, 0.0, 1.0, 0, recording=recording, supervisions=[said])
        )
    for kind, found in items.items():
        with ManifestWriter(folder / f"set/{kind}.jsonl.gz") as writer:
            for item in found:
                writer.write(item)
    return folder / "set"


def joined(folder, cuts_dir=None, seed=3, threads=1, out="paused", **values):
    """The cuts of a set with pauses, by id."""
    options = read_options(PausedSetOptions, values, "paused")
    cuts_dir = cuts_dir or write_corpus(folder)
    join_with_pauses(
        cuts_dir, folder / out, options=options, seed=seed, threads=threads
    )
    return {cut.id: cut for cut in read_cuts(folder / out / "cuts.jsonl.gz")}


def test_each_utterance_is_said_once_by_its_speaker(tmp_path):
    cuts = joined(tmp_path, utterances=[2, 3])
    assert list(cuts) == sorted(cuts)
    words = [w for cut in cuts.values() for w in cut.supervisions[0].text.split()]
    assert sorted(words) == [f"word-{name}" for name in NAMES]
    for name, cut in cuts.items():
        (said,) = cut.supervisions
        first = said.text.split()[0].removeprefix("word-")
        assert name == said.id == cut.recording_id == f"paused-{first}"
        assert said.speaker == f"paused-{first[0]}"
        assert {word[5] for word in said.text.split()} == {first[0]}
        assert said.gender == "F"


def test_manifests_agree_with_audio(tmp_path):
    cuts = joined(tmp_path)
    folder = tmp_path / "paused"
    recordings = {r.id: r for r in read_recordings(folder / "recordings.jsonl.gz")}
    listed = read_supervisions(folder / "supervisions.jsonl.gz")
    said = {item.id: item for item in listed}
    assert cuts.keys() == recordings.keys() == said.keys()
    for name, cut in cuts.items():
        assert len(load_samples(cut)) == cut.num_samples == recordings[name].num_samples
        assert said[name].duration == cut.duration


def test_pauses_are_before_between_and_behind(tmp_path):
    cuts = joined(tmp_path, utterances=[2, 2], pause=[0.5, 0.5], quiet=0, digital=1)
    wave = load_samples(
        cuts[next(name for name in cuts if name.startswith("paused-b"))]
    )
    is_loud = np.abs(wave).reshape(-1, RATE // 2).max(axis=1) > LEVEL / 2
    assert is_loud.tolist() == [False, True, True, False, True, True, False]
    assert not wave[: RATE // 2].any()


def test_utterances_without_pause_between_touch(tmp_path):
    cuts = joined(tmp_path, utterances=[5, 5], pause=[0.5, 0.5], no_pause=1)
    assert {name: cut.duration for name, cut in cuts.items() if "-a" in name} == {
        next(n for n in cuts if "-a" in n): 4.0
    }


def test_quiet_pauses_have_their_level(tmp_path):
    cuts = joined(tmp_path, pause=[1, 1], quiet=1, quiet_db=[-40, -40])
    for cut in cuts.values():
        head = load_samples(cut)[:RATE].astype(np.float64)
        assert 10 * np.log10(np.mean(head**2)) == pytest.approx(-40, abs=0.1)


def test_the_same_seed_gives_the_same_bytes_with_any_threads(tmp_path):
    given = write_corpus(tmp_path)
    one = joined(tmp_path, given, out="one")
    two = joined(tmp_path, given, out="two", threads=3)
    other = joined(tmp_path, given, out="other", seed=4)
    assert list(one) == list(two)
    for name, cut in one.items():
        np.testing.assert_array_equal(load_samples(cut), load_samples(two[name]))
    assert [cut.duration for cut in one.values()] != [
        cut.duration for cut in other.values()
    ]


def test_utterances_by_themselves_may_stay(tmp_path):
    cuts = joined(tmp_path, alone=True)
    assert set(NAMES) < set(cuts)
    assert list(cuts) == sorted(cuts)
    assert cuts["a-1"].supervisions[0].speaker == "a"


def test_what_is_above_full_scale_is_made_softer_and_noted(tmp_path):
    loud = write_corpus(tmp_path, level=1.6, names=("a-1",), subtype="FLOAT")
    cuts = joined(tmp_path, loud, digital=1, quiet=0)
    peak = np.abs(load_samples(cuts["paused-a-1"])).max()
    assert peak == pytest.approx(1.0, abs=1e-3)
    (entry,) = read_ledger(tmp_path / "paused/ledger.jsonl")
    assert (entry.action, entry.utterance) == ("noted", "paused-a-1")
    assert "0.625" in entry.reason


def test_noise_has_the_level_and_the_colour_of_the_quietest_parts():
    rng = np.random.default_rng(0)
    white = 0.01 * rng.standard_normal(4 * RATE)
    wave = np.concatenate([white, 0.5 * rng.standard_normal(4 * RATE)])
    made = noise_like(wave.astype(np.float32), RATE, 4 * RATE, rng)
    assert np.std(made) == pytest.approx(0.01, rel=0.1)
    low = np.convolve(0.05 * rng.standard_normal(8 * RATE), np.ones(8) / 8)
    made = noise_like(low.astype(np.float32), RATE, 4 * RATE, rng)
    power = np.abs(np.fft.rfft(made)) ** 2
    assert power[: len(power) // 8].mean() > 20 * power[len(power) // 2 :].mean()


@pytest.mark.parametrize("num_samples", [0, 1, 5])
def test_noise_may_be_short_and_of_little_or_silent_speech(num_samples):
    rng = np.random.default_rng(0)
    for wave in (np.zeros(3, np.float32), np.zeros(RATE, np.float32)):
        made = noise_like(wave, RATE, num_samples, rng)
        assert made.shape == (num_samples,)
        assert not made.any()


TRAIN = {"type": "kaldi", "path": "x"}


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        ({"paused": {"p": {"of": "nothing"}}}, "no 'nothing'; there are train, dev"),
        ({"paused": {"t": {"of": "dev"}}, "test": {"t": TRAIN}}, "another set"),
        ({"paused": {"p": {"of": "dev", "quiet": 0.7, "digital": 0.5}}}, "more than 1"),
        ({"paused": {"p": {"of": "dev", "pause": [2, 1]}}}, "above"),
        (
            {"paused": {"p": {"of": "dev"}}, "perturbed": {"s": {"of": "p"}}},
            "perturbed.s.of: no 'p'",
        ),
    ],
)
def test_sets_that_cannot_be_made_are_refused(corpus, message):
    with pytest.raises(UserError, match=message):
        read_options(CorpusOptions, {"train": TRAIN, **corpus}, "corpus")


def test_sets_made_of_train_are_training_sets():
    made = {"p": {"of": "train"}, "q": {"of": "dev"}}
    corpus = {"train": TRAIN, "paused": made, "perturbed": {"s": {"of": "p"}}}
    options = read_options(CorpusOptions, corpus, "corpus")
    assert options.paused_training == ["p"]
