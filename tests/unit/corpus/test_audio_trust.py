"""Names of files and manifests run nothing; no one reads audio in another way."""

import json
import subprocess
import sys

import numpy as np
import pytest
import soundfile
from lhotse import AudioSource, CutSet, MonoCut, Recording, SupervisionSegment
from lhotse.audio import AudioLoadingError
from pydantic import TypeAdapter

from latflow.corpus.audio import AudioReader, BadAudio, examine
from latflow.corpus.manifests import load_samples, read_cuts
from latflow.corpus.options import Source
from latflow.corpus.prepare import prepare_corpus
from latflow.errors import UserError

NOISE = np.random.default_rng(0).standard_normal(8000) * 0.1
HOW = {"seed": 0, "threads": 1, "max_skipped_fraction": 0.0}


def prepare(source, out):
    made = TypeAdapter(Source).validate_python(source)
    prepare_corpus(made, "train", out, **HOW)
    return {cut.id: cut for cut in read_cuts(out / "cuts.jsonl.gz")}


def write_manifests(folder, source):
    """Manifests of one recording and utterance."""
    recording = Recording("r", [source], 8000, 8000, 1.0)
    told = SupervisionSegment("u", "r", 0.0, 1.0, text="A", speaker="s")
    for name, item in (("recordings", recording), ("supervisions", told)):
        (folder / f"{name}.jsonl").write_text(json.dumps(item.to_dict()) + "\n")
    return {
        "type": "manifests",
        "recordings": str(folder / "recordings.jsonl"),
        "supervisions": str(folder / "supervisions.jsonl"),
    }


@pytest.mark.parametrize("kind", ["NIST", "broken"])
def test_a_name_of_a_file_runs_nothing(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    name = "a;touch ran;.sph"
    if kind == "NIST":
        soundfile.write(name, NOISE, 8000, format="NIST")
    else:
        (tmp_path / name).write_bytes(b"NIST_1A\n   1024\nno header")
    manifests = write_manifests(tmp_path, AudioSource("file", [0], name))
    if kind == "NIST":
        (cut,) = prepare(manifests, tmp_path / "out").values()
        assert load_samples(cut).shape == (8000,)
        assert cut.load_audio().shape == (1, 8000)
        assert Recording.from_file(name).num_samples == 8000
    else:
        with pytest.raises(UserError, match="a;touch ran;.sph"):
            prepare(manifests, tmp_path / "out")
        with pytest.raises(AudioLoadingError, match="sph2pipe"):
            Recording.from_file(name)
        with pytest.raises(BadAudio, match="sph2pipe"):
            AudioReader(name)
    assert not (tmp_path / "ran").exists()


def test_shortened_sphere_is_read_by_a_list_of_arguments(tmp_path, monkeypatch):
    """With a program of the name `sph2pipe` that prints its last argument's audio."""
    program = tmp_path / "bin/sph2pipe"
    program.parent.mkdir()
    soundfile.write(tmp_path / "told.wav", NOISE, 8000)
    program.write_text(f'#!/bin/sh\ntest -f "$4" && cat {tmp_path}/told.wav\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    path = tmp_path / "a;touch ran;.sph"
    path.write_bytes(b"NIST_1A\n   1024\nshortened")
    facts = examine(AudioSource("file", [0], str(path)), verify=True)
    assert (facts.sample_rate, facts.num_samples) == (8000, 8000)


def command(tmp_path):
    soundfile.write(tmp_path / "a.wav", NOISE, 8000, subtype="FLOAT")
    line = f"echo x >> {tmp_path}/runs; cat {tmp_path}/a.wav"
    return AudioSource("command", [0], line)


def runs(tmp_path):
    path = tmp_path / "runs"
    return len(path.read_text().split()) if path.exists() else 0


def test_commands_of_manifests_ask_to_be_allowed(tmp_path):
    manifests = write_manifests(tmp_path, command(tmp_path))
    with pytest.raises(UserError, match="r: runs a command.*allow_commands: true"):
        prepare(manifests, tmp_path / "out")
    assert runs(tmp_path) == 0
    cuts = prepare({**manifests, "allow_commands": True}, tmp_path / "out")
    np.testing.assert_allclose(load_samples(cuts["u"]), NOISE, atol=1e-6)
    assert runs(tmp_path) == 1


@pytest.mark.parametrize("kind", ["plain", "mixed", "reverberated", "in a track"])
def test_commands_of_cuts_ask_to_be_allowed(tmp_path, kind):
    recording = Recording("r", [command(tmp_path)], 8000, 8000, 1.0)
    soundfile.write(tmp_path / "b.wav", NOISE, 8000)
    file = Recording.from_file(tmp_path / "b.wav", recording_id="f")
    told = SupervisionSegment("u", "f", 0.0, 1.0, text="A", speaker="s")
    cut = MonoCut("u", 0.0, 1.0, 0, [told], recording=file)
    other = MonoCut("o", 0.0, 1.0, 0, recording=recording)
    made = {
        "plain": MonoCut("u", 0.0, 1.0, 0, [told], recording=recording),
        "mixed": cut.mix(other).with_id("u"),
        "reverberated": cut.reverb_rir(recording, affix_id=False),
        "in a track": other.append(cut).with_id("u"),
    }[kind]
    CutSet.from_cuts([made]).to_file(tmp_path / "cuts.jsonl")
    assert runs(tmp_path) == 0 or kind == "reverberated"
    (tmp_path / "runs").unlink(missing_ok=True)
    source = {"type": "cuts", "path": str(tmp_path / "cuts.jsonl")}
    with pytest.raises(UserError, match="runs a command.*allow_commands: true"):
        prepare(source, tmp_path / "out")
    assert runs(tmp_path) == 0
    assert [*prepare({**source, "allow_commands": True}, tmp_path / "out")] == ["u"]


def test_a_corpus_folder_of_others_runs_nothing(tmp_path):
    recording = Recording("r", [command(tmp_path)], 8000, 8000, 1.0)
    cut = MonoCut("u", 0.0, 1.0, 0, recording=recording)
    CutSet.from_cuts([cut]).to_file(tmp_path / "cuts.jsonl.gz")
    with pytest.raises(UserError, match="u: its audio is of type command"):
        list(read_cuts(tmp_path / "cuts.jsonl.gz"))


MODULES = (
    *("corpus.cut_set", "corpus.recipes", "corpus.prepare", "features.extract"),
    *("features.live", "simulation.simulator", "simulation.counts"),
    *("report.examples", "report.suspects", "report.simulation"),
    *("serving.transcribe", "serving.load_test", "serving.http", "align.cleanup"),
)


@pytest.mark.slow
def test_all_that_read_audio_do_it_in_one_way():
    script = (
        "import importlib, sys\n"
        "import lhotse.audio.backend as b\n"
        "for name in sys.argv[1:]:\n"
        "    b.CURRENT_AUDIO_BACKEND = None\n"
        "    for known in [n for n in sys.modules if n.startswith('latflow')]:\n"
        "        del sys.modules[known]\n"
        "    b.AudioBackend.KNOWN_BACKENDS.pop('Readers', None)\n"
        "    sys.modules['lhotse.features.base'].FEATURE_EXTRACTORS.clear()\n"
        "    importlib.import_module(f'latflow.{name}')\n"
        "    found = type(b.get_current_audio_backend()).__name__\n"
        "    assert found == 'Readers', (name, found)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *MODULES],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
