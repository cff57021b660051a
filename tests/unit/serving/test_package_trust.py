"""Packages of strangers: nothing that is loaded runs, nothing is written elsewhere."""

import json
import logging
import shutil
import sys

import pytest
import yaml

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.features.options import LhotseFrontEndOptions
from latflow.files import file_digest
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import load_model
from latflow.serving.options import ServerOptions, SessionOptions, TritonOptions
from latflow.serving.package import GmmPackage, Model
from latflow.serving.triton import write_repository
from latflow.serving.workers import serve
from latflow.user_code import load_object, refuse_untrusted, trusting

OWN = """
from pathlib import Path

Path(__file__).with_name("ran").write_text("")
from lhotse.features.kaldi.extractors import Mfcc, MfccConfig
from latflow.nnet.layers.simple import Linear


class Own(Mfcc):
    pass


class Layer(Linear):
    pass
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Code that tells when it runs."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "stranger.py").write_text(OWN)
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("stranger", None)
    sys.modules.pop("latflow_custom_stranger", None)


def changed(package, to, change):
    """Copy a package, change it, and make its digests those of its files."""
    shutil.copytree(package, to)
    info = json.loads((to / "package.json").read_text())
    change(to, info)
    info["digests"] = {name: file_digest(to / name) for name in info["digests"]}
    (to / "package.json").write_text(json.dumps(info))
    return to


def with_extractor(code):
    front_end = {"type": "lhotse", "extractor": f"{code}/stranger.py:Own"}
    return lambda _, info: info.update(front_end=front_end)


def with_layer(folder, _):
    path = folder / "model/network.yaml"
    network = yaml.safe_load(path.read_text())
    layer = next(iter(network["layers"].values()))
    layer["class"] = "stranger.Layer"
    path.write_text(yaml.safe_dump(network, sort_keys=False))


def test_an_extractor_of_a_package_does_not_run(package, code, tmp_path, capsys):
    bad = changed(package, tmp_path / "bad", with_extractor(code))
    for load in (Model.load, GmmPackage.load):
        with pytest.raises(UserError):
            load(bad)
    with pytest.raises(UserError, match=r"would run code .*stranger.py:Own.*--trust"):
        Model.load(bad)
    wave = tmp_path / "x.wav"
    wave.write_bytes(b"RIFF")
    assert main(["transcribe", str(bad), str(wave)]) == 1
    assert "--trust-code" in capsys.readouterr().err
    with pytest.raises(UserError, match="would run code"):
        serve([bad], ServerOptions(port=0), SessionOptions())
    with pytest.raises(UserError, match="would run code"):
        write_repository({"m": bad}, tmp_path / "triton", options=TritonOptions())
    assert not (code / "ran").exists()


def test_a_layer_of_a_package_does_not_run(package, code, tmp_path):
    bad = changed(package, tmp_path / "bad", with_layer)
    with pytest.raises(UserError, match=r"would run code .*stranger:Layer"):
        Model.load(bad)
    with pytest.raises(UserError, match="would run code"):  # of a package, by itself
        load_model(bad / "model")
    assert not (code / "ran").exists()


def test_code_that_is_trusted_runs(package, code, tmp_path):
    own = changed(package, tmp_path / "own", with_layer)
    with pytest.raises(UserError, match="."):
        Model.load(own, trust_code=True)  # another layer than its weights are of
    assert (code / "ran").exists()


@pytest.mark.parametrize("name", ["s3prl-ssl", "opensmile-extractor"])
def test_extractors_that_run_what_their_settings_name(package, tmp_path, name):
    def change(_, info):
        info["front_end"] = {"type": "lhotse", "extractor": name}

    with pytest.raises(UserError, match=f"would run code .*{name}"):
        Model.load(changed(package, tmp_path / "bad", change))


def test_packaging_own_code_says_so(digits, code, tmp_path, caplog):
    own = LhotseFrontEndOptions(
        extractor=f"{code}/stranger.py:Own", options={"num_ceps": 13}
    )
    with caplog.at_level(logging.WARNING):
        made = digits.package(
            tmp_path / "p", system="mono", front_end=own, offline=True
        )
    (told,) = [r.message for r in caplog.records if "--trust-code" in r.message]
    assert "stranger.py:Own" in told
    with pytest.raises(UserError, match="would run code"):
        Model.load(made)
    Model.load(made, trust_code=True)


def test_a_package_names_no_file_outside_itself(package, tmp_path):
    for name in ("../secret", "/etc/passwd", "model/../../secret"):
        bad = tmp_path / name.replace("/", "_")
        shutil.copytree(package, bad)
        info = json.loads((bad / "package.json").read_text())
        info["digests"][name] = "0a"
        (bad / "package.json").write_text(json.dumps(info))
        with pytest.raises(UserError, match="has a file outside itself"):
            Model.load(bad)


def test_trust_is_of_what_is_loaded_and_ends_with_it():
    with trusting(False):
        with pytest.raises(UserError, match="would run code"):
            load_object("json:loads")
        with trusting(True) as loaded:
            assert load_object("json:loads") is json.loads
        assert loaded == ["json:loads"]
        with pytest.raises(UserError):
            refuse_untrusted("x")
    assert load_object("json:loads") is json.loads  # of a recipe


@pytest.mark.parametrize("number", [1001, 2**31])
def test_a_network_of_too_many_layers_is_refused_at_once(number):
    """Else its layers would be built for hours, before the weights do not fit."""
    inner = {"layers": {"output": {"class": "linear", "size": 2}}, "repeat": number}
    for layer in (
        {"class": "subnetwork", **inner},
        {"class": "rec", "size": 2, "num_layers": number},
    ):
        layers = {"a": layer, "output": {"class": "output"}}
        with pytest.raises(UserError, match="1000"):
            NetworkDescription.from_config({"layers": layers})
