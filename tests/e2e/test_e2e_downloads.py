"""Recipes that fetch their corpora, from a server with the layout of the real ones."""

import functools
import http.server
import io
import json
import tarfile
import threading
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import soundfile
import yaml
from lhotse import CutSet

pytestmark = pytest.mark.slow

OPENSLR = "www.openslr.org/resources"
LEXICON = "raw.githubusercontent.com/kaldi-asr/kaldi/master/egs/yesno/s5/input"


class Proxy(http.server.SimpleHTTPRequestHandler):
    """Answers a request for http://host/path with the file host/path of a folder."""

    def translate_path(self, path):
        """Return the file of an address."""
        address = urlsplit(path)
        return str(Path(self.directory, address.netloc, address.path.lstrip("/")))

    def log_message(self, *_):
        """Be silent."""


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A folder whose files all hosts seem to serve."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(Proxy, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield folder
        server.shutdown()
        thread.join()


def put(folder, address, data):
    """Have an address served."""
    path = folder / address
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def tar_of(files):
    """Return a gzipped tar archive of (name, bytes)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, data in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def audio(samples, rate, kind):
    """Return the bytes of an audio file of 16 bits."""
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format=kind, subtype="PCM_16")
    return stream.getvalue()


def run(checkout, repository, recipe, *targets):
    """Run a recipe of the repository, whose secure addresses a proxy cannot answer."""
    text = (repository / f"config/recipes/{recipe}.yaml").read_text()
    path = checkout.folder / "recipe.yaml"
    path.write_text(text.replace("https://", "http://"))
    corpora = checkout.folder / "corpora"
    done = checkout.run(
        *targets, "--configfile", path, "--config", f"corpora={corpora}"
    )
    assert done.returncode == 0, done.stderr[-6000:] + done.stdout[-3000:]
    return checkout.results_of(yaml.safe_load(text)["experiment"]), corpora


def test_yes_and_no_are_fetched_and_recognized(
    make_checkout, repository, corpora, served
):
    waves = []
    for path in sorted((corpora / "yesno").glob("*/audio/*.flac")):
        samples, rate = soundfile.read(path, dtype="int16")
        name = f"waves_yesno/{path.stem}.wav"
        waves.append((name, audio(samples, rate, "WAV")))
    assert len(waves) == 60
    put(served, f"{OPENSLR}/1/waves_yesno.tar.gz", tar_of(waves))
    put(served, f"{LEXICON}/lexicon_nosil.txt", b"YES Y\nNO N\n")
    scores = "results/yesno_download/score/mono/test/wer.json"
    results, fetched = run(make_checkout(), repository, "yesno_download", scores)
    assert (fetched / "yesno_openslr/lexicon_nosil.txt").read_bytes().startswith(b"YES")
    found = json.loads((results / "score/mono/test/wer.json").read_text())
    assert found["words"] == 8 * 30
    assert found["wer"] < 3


def test_mini_librispeech_is_fetched(make_checkout, repository, served):
    rng = np.random.default_rng(3)
    for part, speakers in (("train-clean-5", (19, 26)), ("dev-clean-2", (84,))):
        files = []
        for speaker in speakers:
            folder = f"LibriSpeech/{part}/{speaker}/100"
            ids = [f"{speaker}-100-{number:04d}" for number in range(2)]
            for utt_id in ids:
                samples = (rng.standard_normal(8000) * 999).astype(np.int16)
                files.append((f"{folder}/{utt_id}.flac", audio(samples, 16000, "FLAC")))
            text = "".join(f"{utt_id} GOOD DAY\n" for utt_id in ids)
            files.append((f"{folder}/{speaker}-100.trans.txt", text.encode()))
        put(served, f"{OPENSLR}/31/{part}.tar.gz", tar_of(files))
    lexicon = b"DAY D EY1\nGOOD G UH1 D\n"
    put(served, f"{OPENSLR}/11/librispeech-lexicon.txt", lexicon)
    checkout = make_checkout()
    above = "results/mini_librispeech"
    results, fetched = run(
        checkout,
        repository,
        "mini_librispeech",
        f"{above}/corpus/full/cuts.jsonl.gz",
        f"{above}/corpus/dev-clean-2/cuts.jsonl.gz",
        f"{above}/lang/words.txt",
    )
    assert (fetched / "librispeech-lm/librispeech-lexicon.txt").read_bytes() == lexicon
    for split, speakers in (("full", {"19", "26"}), ("dev-clean-2", {"84"})):
        cuts = list(CutSet.from_jsonl_lazy(results / f"corpus/{split}/cuts.jsonl.gz"))
        assert {cut.supervisions[0].speaker for cut in cuts} == speakers
        assert {cut.supervisions[0].text for cut in cuts} == {"GOOD DAY"}
        assert all(cut.load_audio().shape == (1, 8000) for cut in cuts)
    assert "GOOD" in (results / "lang/words.txt").read_text()
