"""The stage `train_network`, what it writes, and what `forward` makes of it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from fixtures.stage_task import DIM, MODEL, options, stage, write_inputs
from fixtures.training_task import LAYERS
from safetensors.torch import load_file, save_file

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.features.options import PasteOptions
from latflow.features.pasting import paste_features
from latflow.hmm.alignment import pdfs_of
from latflow.kaldi.io import (
    read_int_vectors,
    read_matrices,
    write_int_vectors,
)
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import load_model, save_model
from latflow.nnet.network import Network
from latflow.training.checkpoint import CheckpointStore, Position
from latflow.training.forward import Forward, ScoreFile, forward
from latflow.training.labels import LabelWriter
from latflow.training.saliency import saliency
from latflow.training.task import read_network
from latflow.training.train import NetworkJob, train_network


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def trained(inputs, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "model"
    chosen = options(tensorboard=True, priors="alignments")
    stage(inputs, out, out.parent / "checkpoints", chosen)
    return out


def test_the_folder_is_complete(inputs, trained):
    assert {path.name for path in trained.iterdir()} == {
        "network.yaml",
        "weights.safetensors",
        "priors.npy",
        "meta.json",
        "info.json",
        "log.jsonl",
        "ledger.jsonl",
        "tensorboard",
        "final.mdl",
        "tree",
    }
    info = json.loads((trained / "info.json").read_text())
    assert info["epochs"] == 3
    assert info["dev"]["frame_errors"] < 0.6
    meta = load_model(trained).meta
    assert meta["criterion"] == "ce"
    assert meta["options"]["seed"] == 3
    assert meta["scales"] == {
        **{"loss of output": 1.0, "label_smoothing": 0.0},
        "focal": 0.0,
    }
    assert meta["normalization"]["type"] == "global"
    assert meta["versions"]["torch"]
    lines = (trained / "ledger.jsonl").read_text().splitlines()
    ledger = [json.loads(line) for line in lines]
    assert [entry["utterance"] for entry in ledger] == ["dev00", "train00"]
    (kept,) = (trained.parent / "checkpoints").iterdir()
    assert kept.name == "finished"
    assert Position(4) in CheckpointStore(kept, {}).positions()
    assert len(list(kept.glob("*.pt"))) <= 2


def test_a_network_takes_apart_what_stands_side_by_side(inputs, tmp_path):
    for split in ("train", "dev"):
        store = FrameStore.load(inputs / split)
        with FrameWriter(tmp_path / "noise" / split, dim=3) as writer:
            for i, name in enumerate(store.utt_ids):
                noise = np.random.default_rng(i).normal(size=(len(store.frames(i)), 3))
                writer.append(name, "s", "", noise)
        paste_features(
            [tmp_path / "noise" / split, inputs / split],
            tmp_path / split,
            options=PasteOptions(features=("noise", "means")),
            max_skipped_fraction=0.0,
        )
    mine = tmp_path / "network.yaml"
    layers = {
        "noise": {"class": "slice", "from": "data", "features": "noise"},
        "means": {"class": "slice", "from": "data", "features": "means"},
        "hidden": {"class": "linear", "from": ["noise", "means"], "size": 12},
        "output": {"class": "output", "from": ["hidden", "means"]},
    }
    mine.write_text(json.dumps({"layers": layers}))
    out = tmp_path / "model"
    train_network(
        NetworkJob(
            frames_dir=tmp_path / "train",
            alignments=inputs / "train.ark",
            source_dir=inputs / "gmm",
            dev_frames_dir=tmp_path / "dev",
            dev_alignments=inputs / "dev.ark",
            network=mine,
            out_dir=out,
            options=options(),
            checkpoints=tmp_path / "checkpoints",
        )
    )
    assert json.loads((out / "info.json").read_text())["dev"]["frame_errors"] < 0.6
    found = load_model(out).network.description.config["layers"]
    assert found["means"] == {
        "class": "slice", "from": "data", "begin": 3, "size": DIM,
    }  # fmt: skip
    forward(tmp_path / "dev", out, ScoreFile(tmp_path / "scores.ark"))
    assert len(dict(read_matrices(tmp_path / "scores.ark"))) == 6
    with pytest.raises(UserError, match="layer noise: no features noise in data"):
        read_network(mine, FrameStore.load(inputs / "train"))


def test_labels_may_be_given_in_the_place_of_alignments(inputs, tmp_path):
    """Of pdfs, and of a target that alignments know nothing of."""
    places = {"class": "output", "from": "rec", "target": "place"}
    description = {"layers": {**LAYERS, "place": places}, "decode": "output"}
    network = tmp_path / "network.yaml"
    network.write_text(json.dumps(description))
    folders = {split: tmp_path / split for split in ("train", "dev")}
    for split, folder in folders.items():
        frames = FrameStore.load(inputs / split)
        with (
            LabelWriter(folder / "pdf", MODEL.num_pdfs) as pdfs,
            LabelWriter(folder / "place", 3) as classes,
        ):
            for utt_id, length in zip(
                frames.utt_ids, np.diff(frames.begin), strict=True
            ):
                pdfs.append(utt_id, np.full(length, 1, np.int32))
                classes.append(utt_id, np.full(length, 2, np.int32))
    job = NetworkJob(
        frames_dir=inputs / "train",
        source_dir=inputs / "gmm",
        dev_frames_dir=inputs / "dev",
        network=network,
        out_dir=tmp_path / "model",
        options=options(epochs=1, priors="alignments"),
        checkpoints=tmp_path / "checkpoints",
        labels=folders["train"],
        dev_labels=folders["dev"],
    )
    train_network(job)
    learnt = load_model(tmp_path / "model")
    outputs = learnt.network.outputs
    sizes = {name: output.num_classes for name, output in outputs.items()}
    assert sizes == {"output": MODEL.num_pdfs, "place": 3}
    priors = np.load(tmp_path / "model/priors.npy")
    assert priors.argmax() == 1
    assert priors[1] == pytest.approx(1.0, abs=0.01)
    assert (folders["train"] / "place/meta.json").is_file()  # only linked to
    with pytest.raises(UserError, match="an output has the loss ce, and there are no"):
        train_network(replace(job, labels=None))


def test_priors_are_the_shares_of_the_labels(inputs, trained):
    counts = np.zeros(MODEL.num_pdfs)
    for _, ids in read_int_vectors(inputs / "train.ark"):
        counts += np.bincount(pdfs_of(ids, MODEL), minlength=MODEL.num_pdfs)
    shares = counts / counts.sum()
    np.testing.assert_allclose(np.load(trained / "priors.npy"), shares, rtol=1e-6)


def test_too_many_utterances_without_labels(inputs, tmp_path):
    with pytest.raises(UserError, match="train_network skipped 2 of 26"):
        stage(
            inputs, tmp_path / "m", tmp_path / "c", options(), max_skipped_fraction=0.01
        )


def test_a_training_that_starts_from_a_parent(inputs, trained, tmp_path):
    chosen = options(epochs=1, learning_rate=1e-9, final="last", priors="posteriors")
    stage(inputs, tmp_path / "m", tmp_path / "c", chosen, parent_dir=trained)
    one, other = load_model(trained), load_model(tmp_path / "m")
    for name, value in one.network.state_dict().items():
        torch.testing.assert_close(other.network.state_dict()[name], value)
    assert other.meta["parent"] == str(trained)
    # mean posteriors of a trained network are near the shares, and not the same
    priors = np.load(tmp_path / "m" / "priors.npy")
    shares = np.load(trained / "priors.npy")
    assert 1e-4 < np.abs(priors - shares).max() < 0.1


def test_a_network_may_be_grown_or_cut_between_trainings(
    inputs, trained, tmp_path, caplog
):
    """What both have is taken over; the rest starts anew, or is left out."""
    more = {"class": "linear", "from": "rec", "size": 5, "activation": "relu"}
    layers = {k: LAYERS[k] for k in ("hidden", "rec")}
    grown = {**layers, "more": more, "output": LAYERS["output"]}
    cut = {"hidden": LAYERS["hidden"], "output": {"class": "output", "from": "hidden"}}
    parent = load_model(trained).network.state_dict()
    chosen = options(epochs=1, learning_rate=1e-9, final="last")
    for name, description in (("grown", grown), ("cut", cut)):
        folder = tmp_path / name
        folder.mkdir()
        for path in inputs.iterdir():
            (folder / path.name).symlink_to(path)
        (folder / "network.yaml").unlink()
        network = json.dumps({"layers": description})
        (folder / "network.yaml").write_text(network)
        caplog.clear()
        stage(folder, folder / "m", folder / "c", chosen, parent_dir=trained)
        own = load_model(folder / "m").network.state_dict()
        for key, value in own.items():
            if key in parent and parent[key].shape == value.shape:
                torch.testing.assert_close(value, parent[key])
        weight = "body.layers.output.map.weight"
        assert own[weight].shape != parent[weight].shape
        assert f"{weight} is of another size in the parent" in caplog.text
        assert ("body.layers.more" in caplog.text) is (name == "grown")
        left_out = "body.layers.rec.rnn.weight_ih_l0 of the parent"
        assert (left_out in caplog.text) is (name == "cut")
    (folder / "network.yaml").write_text(
        json.dumps({"layers": {"it": cut["output"] | {"from": "data"}}})
    )
    with pytest.raises(UserError, match="shares no layer's name and size"):
        stage(folder, folder / "m2", folder / "c", chosen, parent_dir=trained)


def test_priors_are_of_all_parts_of_the_data(inputs, tmp_path):
    found = []
    for parts, micro in ((1, None), (3, 1)):
        still = {"epochs": 1, "learning_rate": 1e-12, "final": "last"}
        chosen = options(**still, priors="posteriors", micro_sequences=micro)
        data = chosen.data.replace(partition_epoch=parts)
        chosen = chosen.replace(data=data)
        out = tmp_path / str(parts)
        stage(inputs, out, tmp_path / f"c{parts}", chosen)
        found.append(np.load(out / "priors.npy"))
    np.testing.assert_allclose(*found, rtol=1e-4)


def scores_by_hand(inputs: Path, folder: Path, scale: float):
    """One utterance at a time, with the formula."""
    model, store = load_model(folder), FrameStore.load(inputs / "dev")
    normalization = model.meta["normalization"]
    for i in range(len(store)):
        frames = (
            store.frames(i) - np.array(normalization["mean"], np.float32)
        ) * np.array(normalization["scale"], np.float32)
        with torch.no_grad():
            outputs = model.network(
                torch.tensor(frames)[None], torch.tensor([len(frames)])
            )
        log_posteriors = torch.log_softmax(outputs["output"].logits[0], -1).numpy()
        priors = np.log(np.load(folder / "priors.npy").astype(np.float64))
        yield store.utt_ids[i], log_posteriors - scale * priors


@pytest.mark.parametrize("max_frames", [1, 50, 10_000])
def test_forward_writes_likelihoods_in_the_stores_order(
    inputs, trained, tmp_path, max_frames
):
    ark, scp = tmp_path / "out.ark", tmp_path / "out.scp"
    forward(
        inputs / "dev",
        trained,
        ScoreFile(ark, scp=scp),
        prior_scale=0.7,
        max_frames=max_frames,
        device="cpu",
    )
    found = list(read_matrices(ark))
    expected = list(scores_by_hand(inputs, trained, 0.7))
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (_, one), (_, other) in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    places = [line.split() for line in scp.read_text().splitlines()]
    assert [name for name, _ in places] == [name for name, _ in found]
    offset = int(places[2][1].rpartition(":")[2])
    assert ark.read_bytes()[offset : offset + 2] == b"\0B"


def test_forward_as_a_command_to_hdf5(inputs, trained, tmp_path):
    out = tmp_path / "out.h5"
    command = ["forward", str(trained), str(inputs / "dev"), str(out), "--form", "hdf5"]
    assert main([*command, "--prior-scale", "0"]) == 0
    store = FrameStore.load(inputs / "dev")
    with h5py.File(out) as file:
        assert [tag.decode() for tag in file["seqTags"]] == store.utt_ids
        np.testing.assert_array_equal(file["seqLengths"][:, 0], np.diff(store.begin))
        scores = file["inputs"][:]
    np.testing.assert_allclose(np.exp(scores).sum(1), 1.0, rtol=1e-5)


def test_forward_refuses_what_does_not_fit(inputs, trained, tmp_path, capsys):
    with FrameWriter(tmp_path / "wide", dim=DIM + 1) as frames:
        frames.append("a", "s", "", np.zeros((2, DIM + 1), np.float32))
    with pytest.raises(UserError, match="5 numbers a frame, the network takes 4"):
        Forward.load(FrameStore.load(tmp_path / "wide"), trained)
    out = str(tmp_path / "x.h5")
    command = ["forward", str(trained), str(inputs / "dev"), out, "--form", "hdf5"]
    assert main([*command, "--scp", str(tmp_path / "x.scp")]) == 1
    assert "belongs to an archive" in capsys.readouterr().err


def test_forward_gives_what_a_layer_gives(inputs, trained, tmp_path, capsys):
    out = tmp_path / "hidden.ark"
    command = ["forward", str(trained), str(inputs / "dev"), str(out)]
    assert main([*command, "--output", "hidden", "--prior-scale", "1"]) == 1
    assert "priors are not taken off output hidden" in capsys.readouterr().err
    assert main([*command, "--output", "hidden"]) == 0
    model, store = load_model(trained), FrameStore.load(inputs / "dev")
    normalization = model.meta["normalization"]
    weights = dict(model.network.body.layers["hidden"].named_parameters())
    weight, bias = weights["map.weight"], weights["map.bias"]
    for i, (_, matrix) in enumerate(read_matrices(out)):
        frames = store.frames(i) - np.array(normalization["mean"], np.float32)
        frames = torch.tensor(frames * np.array(normalization["scale"], np.float32))
        with torch.no_grad():
            expected = torch.tanh(frames @ weight.T + bias).numpy()
        np.testing.assert_allclose(matrix, expected, rtol=1e-4, atol=1e-5)
    assert main([*command, "--output", "nothing"]) == 1
    assert "choose one of: hidden, rec, output" in capsys.readouterr().err


def labels_of(inputs):
    """Labels of dev by utterance."""
    return {n: pdfs_of(ids, MODEL) for n, ids in read_int_vectors(inputs / "dev.ark")}


def test_evaluate_is_cross_entropy_and_frame_errors_by_hand(inputs, trained, capsys):
    command = ["evaluate", str(trained), str(inputs / "dev"), str(inputs / "dev.ark")]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    labels, losses, errors = labels_of(inputs), [], []
    for name, log_posteriors in scores_by_hand(inputs, trained, 0.0):
        if name in labels:
            at = np.arange(len(log_posteriors)), labels[name]
            losses.extend(-log_posteriors[at])
            errors.extend(log_posteriors.argmax(1) != labels[name])
    assert found["frames"] == len(losses)
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert found["frame_errors"] == pytest.approx(np.mean(errors), abs=1e-6)
    assert found["skipped"] == 1


def test_analyze_counts_confusions_and_dead_units(inputs, trained, tmp_path, capsys):
    maimed = tmp_path / "maimed"
    model = load_model(trained)
    weights = dict(model.network.body.layers["hidden"].named_parameters())
    with torch.no_grad():
        weights["map.weight"][3] = 0.0
    meta = {k: v for k, v in model.meta.items() if k not in {"dim_in", "classes"}}
    priors = np.load(trained / "priors.npy")
    maimed.mkdir()
    save_model(maimed, model.network, model.network.description, priors, meta)
    shutil.copyfile(trained / "final.mdl", maimed / "final.mdl")
    shutil.copyfile(trained / "tree", maimed / "tree")
    alignments = ["--alignments", str(inputs / "dev.ark"), "--most", "2"]
    assert main(["analyze", str(maimed), str(inputs / "dev"), *alignments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: one["dead_units"] for name, one in found["layers"].items()} == {
        "hidden": [3],
        "rec": [],
        "output": [],
    }
    hidden = Forward.load(FrameStore.load(inputs / "dev"), maimed, output="hidden")
    values = np.concatenate([matrix for _, matrix in hidden])
    layer = found["layers"]["hidden"]
    assert layer["units"] == values.shape[1]
    assert layer["mean"] == pytest.approx(values.mean(), abs=1e-5)
    deviation = np.sqrt(values.var(0).mean())
    assert layer["deviation"] == pytest.approx(deviation, rel=1e-4)
    assert (layer["least"], layer["greatest"]) == pytest.approx(
        (values.min(), values.max())
    )
    labels, pairs = labels_of(inputs), Counter()
    for name, log_posteriors in scores_by_hand(inputs, maimed, 0.0):
        if name in labels:
            told = log_posteriors.argmax(1).tolist()
            pairs.update(zip(labels[name].tolist(), told, strict=True))
    right = sum(n for (label, told), n in pairs.items() if label == told)
    assert found["frames"] == sum(pairs.values())
    assert found["frame_accuracy"] == pytest.approx(right / found["frames"])
    wrong = sorted((n for (a, b), n in pairs.items() if a != b), reverse=True)
    assert [c["frames"] for c in found["confusions"]] == wrong[:2]
    assert all(pairs[c["class"], c["best"]] == c["frames"] for c in found["confusions"])
    assert found["skipped"] == 1
    assert main(["analyze", str(maimed), str(inputs / "dev")]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"layers"}


def test_saliency_is_the_gradient_of_the_likeliest_classes(inputs, tmp_path, capsys):
    layers = {
        "near": {"class": "splice", "left": 1, "right": 0},
        "output": {"class": "output"},
    }
    description = NetworkDescription.from_config({"layers": layers})
    network = Network(description, DIM, {"pdf": MODEL.num_pdfs})
    meta = {"normalization": {"type": "none"}}
    model_dir = tmp_path / "model"
    save_model(model_dir, network, description, None, meta)
    store = FrameStore.load(inputs / "dev")
    forward_of = Forward.load(store, model_dir, prior_scale=0.0)
    name = store.utt_ids[2]
    seen, found = saliency(forward_of, name)
    np.testing.assert_array_equal(seen, store.frames(2))
    frames, step = torch.from_numpy(store.frames(2).copy()).double(), 1e-5
    network.double().eval()

    @torch.no_grad()
    def log_posteriors(values):
        logits = network(values[None], torch.tensor([len(values)]))["output"].logits
        return torch.log_softmax(logits[0], 1)

    best = log_posteriors(frames).argmax(1)
    rows = torch.arange(len(frames))
    for t, d in ((0, 1), (len(frames) - 1, 3), (1, 0)):
        moved = [frames.clone(), frames.clone()]
        moved[0][t, d] += step
        moved[1][t, d] -= step
        up, down = (log_posteriors(one)[rows, best] for one in moved)
        wanted = abs(float((up - down).sum() / (2 * step)))
        assert found[t, d] == pytest.approx(wanted, rel=1e-3, abs=1e-6)
    _, of_one = saliency(forward_of, name, 2)
    assert np.flatnonzero(of_one.any(1)).tolist() == [1, 2]
    command = ["analyze", str(model_dir), str(inputs / "dev"), "--saliency"]
    pictures = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for picture in pictures:
        assert main([*command, str(picture), "--utterance", name]) == 0
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    assert b"<svg" in pictures[0].read_bytes()
    capsys.readouterr()
    for more, told in (
        ([str(tmp_path / "c.txt"), "--utterance", name], "is not a name of a picture"),
        ([str(tmp_path / "c.png"), "--utterance", "no"], "is not in this set"),
        (
            [str(tmp_path / "c.png"), "--utterance", name, "--frame", "99"],
            "no frame 99",
        ),
        ([str(tmp_path / "c.png")], "name it: --utterance"),
    ):
        assert main([*command, *more]) == 1
        assert told in capsys.readouterr().err


def test_analyze_takes_labels_of_each_output_frame(inputs, tmp_path, capsys):
    """As a network that leaves frames out aligns."""
    layers = {
        "every_other": {"class": "subsample", "factor": 2},
        "output": {"class": "output"},
    }
    description = NetworkDescription.from_config({"layers": layers})
    network = Network(description, DIM, {"pdf": MODEL.num_pdfs})
    meta = {"normalization": {"type": "none"}}
    save_model(tmp_path / "halves", network, description, None, meta)
    shutil.copyfile(inputs / "gmm/final.mdl", tmp_path / "halves/final.mdl")
    shutil.copyfile(inputs / "gmm/tree", tmp_path / "halves/tree")
    whole = dict(read_int_vectors(inputs / "dev.ark"))
    write_int_vectors(tmp_path / "own.ark", [(n, a[::2]) for n, a in whole.items()])
    command = ["analyze", str(tmp_path / "halves"), str(inputs / "dev"), "--alignments"]
    told = []
    for alignments in (inputs / "dev.ark", tmp_path / "own.ark"):
        assert main([*command, str(alignments)]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]
    assert told[0]["frames"] == sum(len(a[::2]) for a in whole.values())
    assert main([*command, str(inputs / "train.ark")]) == 1
    assert "no utterance has labels of its length" in capsys.readouterr().err


def test_priors_are_mean_posteriors_of_any_set(inputs, trained, tmp_path):
    out = tmp_path / "priors.npy"
    assert main(["priors", str(trained), str(inputs / "dev"), str(out)]) == 0
    scores = [log_posts for _, log_posts in scores_by_hand(inputs, trained, 0.0)]
    expected = np.exp(np.concatenate(scores)).mean(0)
    np.testing.assert_allclose(np.load(out), expected, rtol=1e-4)


def test_average_as_a_command(inputs, trained, tmp_path):
    other, out = tmp_path / "other", tmp_path / "mean"
    stage(inputs, other, tmp_path / "c", options(epochs=1))
    assert main(["average", str(trained), str(other), "--out", str(out)]) == 0
    states = [
        load_model(folder).network.state_dict() for folder in (trained, other, out)
    ]
    for name, mean in states[2].items():
        torch.testing.assert_close(mean, (states[0][name] + states[1][name]) / 2)
    assert (out / "final.mdl").is_file()
    np.testing.assert_array_equal(
        np.load(out / "priors.npy"), np.load(other / "priors.npy")
    )


def test_a_model_is_not_averaged_or_fused_over_itself(trained, tmp_path, capsys):
    weights = (trained / "weights.safetensors").read_bytes()
    (tmp_path / "link").symlink_to(trained)
    for command in ("average", "fuse"):
        for out in (trained, tmp_path / "link"):
            models = [str(trained), str(trained)]
            assert main([command, *models, "--out", str(out)]) == 1
            assert "is to be read and replaced" in capsys.readouterr().err
    assert (trained / "weights.safetensors").read_bytes() == weights


def test_features_of_another_size_are_refused_by_all(inputs, trained, tmp_path, capsys):
    with FrameWriter(tmp_path / "wide", dim=99) as writer:
        for name, ids in read_int_vectors(inputs / "dev.ark"):
            writer.append(name, "s", "", np.zeros((len(ids), 99)))
    wide, out = str(tmp_path / "wide"), str(tmp_path / "out")
    for command, last in (
        ("evaluate", str(inputs / "dev.ark")),
        ("forward", out),
        ("priors", out),
    ):
        assert main([command, str(trained), wide, last]) == 1
        told = capsys.readouterr().err
        assert "wide: features have 99 numbers a frame, the network takes" in told


def test_scores_that_are_no_numbers_are_not_written(inputs, trained, tmp_path, capsys):
    """Neither as scores nor as priors: of a broken network, or of broken features."""
    broken, bad = tmp_path / "broken", tmp_path / "bad"
    shutil.copytree(trained, broken)
    weights = load_file(trained / "weights.safetensors")
    name = next(name for name in weights if name.startswith("body.layers.output"))
    weights[name].view(-1)[0] = np.nan
    save_file(weights, broken / "weights.safetensors")
    store = FrameStore.load(inputs / "dev")
    with FrameWriter(bad, dim=store.dim) as writer:
        writer.append("fine", "s", "", store.frames(0))
        writer.append("odd", "s", "", np.full((9, store.dim), np.nan))
    out = tmp_path / "out"
    for command in ("forward", "priors"):
        assert main([command, str(broken), str(inputs / "dev"), str(out)]) == 1
        assert (
            f"the network's {name} has values that are not" in capsys.readouterr().err
        )
        assert main([command, str(trained), str(bad), str(out)]) == 1
        assert "bad: odd: the network's scores are not" in capsys.readouterr().err
        assert not out.exists()


def test_phones_as_a_second_task(inputs, tmp_path):
    output = {"class": "output", "from": "rec", "target": "phone", "loss_scale": 0.5}
    task = tmp_path / "task"
    shutil.copytree(inputs, task)
    layers = {**LAYERS, "phones": output}
    (task / "network.yaml").write_text(json.dumps({"layers": layers}))
    stage(task, tmp_path / "m", tmp_path / "c", options())
    dev = json.loads((tmp_path / "m" / "info.json").read_text())["dev"]
    # three phones of which pdfs tell less than all: 2 and 3 share theirs
    assert 0.0 < dev["frame_errors"] < 0.6
    assert 0.0 < dev["frame_errors.phones"] < 0.6
    assert dev["loss"] > dev["ce.phones"] * 0.5
    outputs = load_model(tmp_path / "m").network.outputs
    assert {name: o.num_classes for name, o in outputs.items()} == {
        "output": MODEL.num_pdfs,
        "phones": 4,
    }
    (task / "network.yaml").write_text(
        json.dumps({"layers": {**LAYERS, "other": {**output, "target": "tone"}}})
    )
    with pytest.raises(UserError, match="no labels for the target tone - .*pdf, phone"):
        stage(task, tmp_path / "m2", tmp_path / "c2", options())


@pytest.mark.slow
def test_two_ranks_make_the_model_of_one(inputs, trained, tmp_path):
    chosen = options(tensorboard=True).replace(backend="torch")
    stage(inputs, tmp_path / "m", tmp_path / "c", chosen, ranks=2, threads=2)
    one, other = load_model(trained), load_model(tmp_path / "m")
    for name, value in one.network.state_dict().items():
        found = other.network.state_dict()[name]
        torch.testing.assert_close(found, value, rtol=1e-3, atol=1e-5)
    files = {path.name for path in (tmp_path / "m").iterdir()}
    assert files == {path.name for path in trained.iterdir()}


JOB = """
import json, os, sys, time
from glob import glob  # not Path.rglob, which fails where a folder goes meanwhile
from pathlib import Path
from threading import Thread
from latflow.errors import Interrupted
from latflow.training.launch import RESUME_STATUS
from latflow.training.options import CeRunOptions
from latflow.training.train import NetworkJob, train_network
arguments = json.loads(Path(sys.argv[1]).read_text())
options = CeRunOptions.model_validate(arguments["options"])
paths = {name: Path(path) for name, path in arguments["paths"].items()}
job = NetworkJob(**paths, options=options, threads=options.training.ensemble)
number, pause = int(sys.argv[2]), float(sys.argv[3])
found = lambda: set(glob(f"{paths['checkpoints']}/*/e*.pt"))
before = found()

def end():  # after the next checkpoint; another process might come too late
    while found() <= before:
        time.sleep(0.01)
    time.sleep(pause)
    os.kill(os.getpid(), number)

if number:
    Thread(target=end, daemon=True).start()
try:
    train_network(job)
except Interrupted:
    sys.exit(RESUME_STATUS)
"""


@pytest.mark.slow
@pytest.mark.parametrize("networks", [1, 2])
def test_killed_at_random_moments_it_ends_with_the_same_bits(
    inputs, tmp_path, networks
):
    chosen = options(
        epochs=20,
        ensemble=networks,
        checkpoint_minutes=1e-4,
        gradient_noise=1e-4,
        optimizer={"type": "radam"},
    )
    stage(inputs, tmp_path / "whole", tmp_path / "c1", chosen)
    job = tmp_path / "job.json"
    paths = {
        "frames_dir": inputs / "train",
        "alignments": inputs / "train.ark",
        "source_dir": inputs / "gmm",
        "dev_frames_dir": inputs / "dev",
        "dev_alignments": inputs / "dev.ark",
        "network": inputs / "network.yaml",
        "out_dir": tmp_path / "parts",
        "checkpoints": tmp_path / "c2",
    }
    named = {name: str(path) for name, path in paths.items()}
    values = {"paths": named, "options": chosen.values()}
    job.write_text(json.dumps(values))
    rng, statuses = np.random.default_rng(4), []
    for signalled in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, 0):
        pause = f"{rng.uniform(0.0, 0.05)}"
        command = [sys.executable, "-c", JOB, str(job), f"{int(signalled)}", pause]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        statuses.append(
            subprocess.run(command, check=False, env=environment).returncode
        )
    assert statuses == [-signal.SIGKILL, -signal.SIGKILL, 75, 0]
    one, other = load_model(tmp_path / "whole"), load_model(tmp_path / "parts")
    for name, value in one.network.state_dict().items():
        assert torch.equal(value, other.network.state_dict()[name]), name
