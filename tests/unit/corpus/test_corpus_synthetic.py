"""The demo corpus: deterministic, disjoint, as noisy as asked."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import CutSet

from latflow.corpus import grammar
from latflow.corpus.espeak import Synthesizer, speak_job
from latflow.corpus.options import SyntheticSource
from latflow.corpus.prepare import prepare_corpus
from latflow.corpus.synthetic import (
    FEMALE,
    VOICES,
    _job,
    _speak,
    side_of,
    write_synthetic_language,
)
from latflow.errors import UserError


@pytest.fixture(scope="module")
def source():
    return SyntheticSource(speakers=3, utterances=7)


def prepare(source, split, folder, *, seed=1, threads=1):
    prepare_corpus(
        source, split, folder, seed=seed, threads=threads, max_skipped_fraction=0.0
    )
    return list(CutSet.from_jsonl_lazy(folder / "cuts.jsonl.gz"))


def digests(folder):
    return {
        path.name: hashlib.md5(path.read_bytes()).hexdigest()
        for path in (folder / "audio").iterdir()
    }


@pytest.fixture(scope="module")
def train(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("synthetic") / "train"
    return folder, prepare(source, "train", folder)


def test_corpus_has_the_speakers_and_utterances_asked_for(train):
    folder, cuts = train
    assert len(cuts) == 7
    assert len({cut.supervisions[0].speaker for cut in cuts}) == 3
    assert [cut.id for cut in cuts] == sorted(cut.id for cut in cuts)
    assert all(cut.id == cut.supervisions[0].id for cut in cuts)
    for cut in cuts:
        info = soundfile.info(cut.recording.sources[0].source)
        assert (info.samplerate, info.subtype, info.format) == (16000, "PCM_16", "FLAC")
        assert info.frames == cut.recording.num_samples
        assert cut.load_audio().shape == (1, info.frames)
    assert (folder / "ledger.jsonl").read_text() == ""


def test_same_seed_gives_same_bytes_with_any_number_of_workers(source, train, tmp_path):
    folder, cuts = train
    again = prepare(source, "train", tmp_path / "again", threads=3)
    assert digests(tmp_path / "again") == digests(folder)
    assert [c.supervisions for c in again] == [c.supervisions for c in cuts]


def test_manifests_are_written_byte_for_byte_alike(source, train, tmp_path):
    folder, _ = train
    name = "supervisions.jsonl.gz"
    before = (folder / name).read_bytes()
    prepare(source, "train", tmp_path / "again")
    assert (tmp_path / "again" / name).read_bytes() == before


def test_another_seed_gives_other_speech(source, train, tmp_path):
    folder, _ = train
    prepare(source, "train", tmp_path / "other", seed=2)
    assert not set(digests(tmp_path / "other").values()) & set(digests(folder).values())


def test_voices_of_the_sides_are_disjoint():
    everyone = [voice.lower() for voices in VOICES.values() for voice in voices]
    assert len(everyone) == len(set(everyone))
    assert {voice for voices in VOICES.values() for voice in voices} >= FEMALE


def test_every_voice_speaks():
    for voice in [voice for voices in VOICES.values() for voice in voices]:
        speech = Synthesizer(f"en-us+{voice}").speak("fish", rate=170, pitch=50)
        assert np.abs(speech.astype(np.int32)).max() > 1000, voice


@pytest.mark.parametrize("variant", ["f2", "f3", "f5", "Alicia", "Reed", "m3"])
def test_breathy_voices_do_not_depend_on_the_clock(tmp_path, variant):
    """eSpeak seeds the noise of breath with the time, unless it is told a seed."""
    utterances = [
        {
            "text": text, "rate": 160, "pitch": 50, "lead_s": 0.1, "tail_s": 0.1,
            "peak_db": -6.0, "snr_db": 60.0, "noise_key": [1], "path": str(path),
        }
        for text in ("feed the fish",)
        for path in (tmp_path / "a.flac", tmp_path / "b.flac")
    ]  # fmt: skip
    for utterance in utterances:
        job = {"voice": f"en-us+{variant}", "seed": 5, "sample_rate": 16000}
        _speak({**job, "utterances": [utterance]})
    assert (tmp_path / "a.flac").read_bytes() == (tmp_path / "b.flac").read_bytes()


def test_splits_take_the_sides_they_should():
    assert [side_of(s) for s in ("train", "full", "dev", "test", "noisy")] == [
        "train", "train", "dev", "test", "test",
    ]  # fmt: skip


def test_speakers_and_sentences_of_train_and_test_differ(source, train, tmp_path):
    test = prepare(source, "test", tmp_path / "test")
    _, cuts = train

    def voices(cuts):
        return {c.supervisions[0].custom["voice"].split("+")[1] for c in cuts}

    assert not voices(cuts) & voices(test)
    texts = {c.supervisions[0].text for c in test}
    assert not texts & {c.supervisions[0].text for c in cuts}
    assert {grammar.side_of(text) for text in texts} == {"test"}


def test_language_is_all_words_and_train_sentences(source, tmp_path):
    write_synthetic_language(
        tmp_path / "language", lm_sentences=source.lm_sentences, seed=3
    )
    lexicon = (tmp_path / "language/lexicon.txt").read_text().splitlines()
    text = (tmp_path / "language/lm_text.txt").read_text().splitlines()
    assert {line.split()[0] for line in lexicon} == set(grammar.words())
    assert len(text) == source.lm_sentences
    assert {grammar.side_of(sentence) for sentence in text} == {"train"}
    write_synthetic_language(
        tmp_path / "again", lm_sentences=source.lm_sentences, seed=3
    )
    assert (tmp_path / "again/lm_text.txt").read_text().splitlines() == text


def test_unknown_voice_is_refused():
    with pytest.raises(ValueError, match="no voice xx-none"):
        Synthesizer("xx-none")


def test_worker_failure_is_one_clear_line(source, tmp_path, monkeypatch):
    monkeypatch.setattr("latflow.corpus.synthetic.ACCENTS", ("en-none",))
    with pytest.raises(UserError, match="eSpeak NG with voice en-none"):
        prepare(source, "train", tmp_path / "broken")
    assert list(tmp_path.iterdir()) == []


def test_job_writes_silence_around_the_speech(tmp_path):
    path = tmp_path / "a.flac"
    utterance = {
        "text": "fish", "rate": 160, "pitch": 50, "lead_s": 0.5, "tail_s": 0.0,
        "peak_db": -6.0, "snr_db": 60.0, "noise_key": [1], "path": str(path),
    }  # fmt: skip
    job = {
        "voice": "en-us+m3", "seed": 1, "sample_rate": 8000, "utterances": [utterance]
    }  # fmt: skip
    (length,) = speak_job(job)
    samples, rate = soundfile.read(path)
    assert (len(samples), rate) == (length, 8000)
    assert np.abs(samples).max() == pytest.approx(10 ** (-6 / 20), abs=1e-3)
    assert np.abs(samples[:3600]).max() < 0.01


def test_silence_around_the_speech_is_drawn_within_its_limits():
    source = SyntheticSource(silence_s=(0.7, 0.8))
    _, job = _job(source, "train", 0, Path("audio"), 1)
    drawn = [u[side] for u in job["utterances"] for side in ("lead_s", "tail_s")]
    assert drawn
    assert all(0.7 <= seconds <= 0.8 for seconds in drawn)
