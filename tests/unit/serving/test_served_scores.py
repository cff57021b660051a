"""A package scored on a set that it hears as a server does."""

import json

import numpy as np
import pytest
import soundfile
from lhotse import CutSet, Features, Recording, SupervisionSegment

from latflow.corpus.ctm import read_ctm
from latflow.scoring.calibration import ScoredWords
from latflow.scoring.options import ScoreOptions
from latflow.serving.options import SessionOptions
from latflow.serving.results import Final
from latflow.serving.served_scores import score_served
from latflow.serving.session import Session

RATE = 8000
PAUSE = 4  # seconds


@pytest.fixture(scope="module")
def talks(digits, tmp_path_factory):
    """(Folder, {utterance: samples}): pairs of sentences, a long pause between them."""
    folder = tmp_path_factory.mktemp("talks")
    rng = np.random.default_rng(5)
    names = list(digits.audio)[:6]
    waves, cuts = {}, []
    for first, second in zip(names[::2], names[1::2], strict=True):
        quiet = rng.normal(0, 3e-4, PAUSE * RATE)
        parts = [digits.samples(first), quiet, digits.samples(second)]
        wave = np.concatenate(parts).astype(np.float32)
        path = folder / f"{first}.wav"
        soundfile.write(path, wave, RATE, subtype="FLOAT")
        cut = Recording.from_file(path, recording_id=first).to_cut()
        cut.id, waves[first] = first, wave
        text = f"{digits.texts[first]} {digits.texts[second]}"
        told = (first, first, 0, cut.duration)
        cut.supervisions = [SupervisionSegment(*told, text=text, speaker="x")]
        cut.features = Features(
            *("fbank", 10, 23, 0.01, RATE, 0, cut.duration, "none", "none", "none"),
            recording_id=first,
            channels=0,
        )
        cuts.append(cut)
    CutSet.from_cuts(cuts).to_file(folder / "cuts.jsonl.gz")
    return folder, waves


def test_words_and_errors_are_those_of_a_server_s_streams(
    package, model, talks, tmp_path, digits
):
    folder, waves = talks
    score_served(
        package,
        folder / "cuts.jsonl.gz",
        tmp_path,
        options=ScoreOptions(),
        seed=1,
        threads=2,
    )
    found = {}
    for word in read_ctm(tmp_path / "hyp.ctm"):
        found.setdefault(word.utterance, []).append(word)
    options = SessionOptions.model_validate(
        {"sample_rate": RATE, "partials": False, "vad": {}}
    )
    for name, wave in waves.items():
        with Session(model, options, name) as session:
            events = session.accept(wave) + session.finish()
        ends = [event.segment for event in events if isinstance(event, Final)]
        words = [word.word for segment in ends for word in segment.best.words]
        assert [word.word for word in found[name]] == words
        assert len([segment for segment in ends if segment.best.words]) == 2
        # Times are of the utterance, not of its segments.
        assert found[name][-1].start > PAUSE
    told = json.loads((tmp_path / "wer.json").read_text())
    assert told["sentences"] == len(waves)
    assert (told["lmwt"], told["wip"]) == (model.info.lmwt, model.info.wip)
    assert told["wer"] < 20
    assert len(ScoredWords.read(tmp_path).confidence) > 0


def test_confidences_are_posteriors_also_of_a_calibrated_package(
    digits, talks, tmp_path
):
    info = tmp_path / "package/package.json"
    digits.package(info.parent)
    values = json.loads(info.read_text())
    info.write_text(json.dumps({**values, "confidences": [[0.0, 0.1], [1.0, 0.2]]}))
    out = tmp_path / "out"
    cuts = talks[0] / "cuts.jsonl.gz"
    score_served(info.parent, cuts, out, options=ScoreOptions(), seed=1, threads=1)
    assert max(word.confidence for word in read_ctm(out / "hyp.ctm")) > 0.5
