"""The stage `train_sequence`: a seed folder in, a model folder out."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from reference.subsampled_twin import FACTOR, write_slow_frames, write_subsampling
from safetensors.torch import load_file, save_file

from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.kaldi.io import read_int_vectors, write_int_vectors
from latflow.nnet.model_dir import load_model
from latflow.options import read_options
from latflow.training.options import SequenceRunOptions
from latflow.training.sequence import SequenceJob, train_sequence


@pytest.fixture(scope="module")
def sources(system, tmp_path_factory):
    """All that the stage reads; dev is the training set, decoded with its graph."""
    root = tmp_path_factory.mktemp("stage")
    (root / "scales.json").write_text(json.dumps({"lmwt": 5, "wip": 0.0}))
    frames = system.root / "frames"
    return {
        "frames_dir": frames,
        "dev_frames_dir": frames,
        "parent_dir": system.root / "seed",
        "lang_dir": system.root / "lang",
        "denominator": system.root / "den/HCLG.fst",
        "graph": system.root / "den/HCLG.fst",
        "scales": root / "scales.json",
        "alignments": system.root / "ali.ark",
        "training_graphs_dir": system.root / "graphs",
    }


@pytest.fixture
def options(system):
    """Options of a sequence training."""
    values = {
        "criterion": {"type": "mmi", "acoustic_scale": 0.2},
        "sequence": system.options(
            alignments={"source": "on_the_fly"}, dev_search={"acoustic_scale": 0.2}
        ).values(),
        "data": {"max_sequences": 4},
        "training": {
            "epochs": 2,
            "learning_rate": 0.1,
            "tensorboard": False,
            "micro_sequences": 2,
        },
        "graph": {"transition_scale": 1.0, "self_loop_scale": 0.1},
        "device": "cpu",
        "seed": 1,
    }
    return read_options(SequenceRunOptions, values)


def epochs_of(folder):
    """What the log says of each epoch."""
    lines = [json.loads(x) for x in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "epoch"]


@pytest.mark.parametrize("before", [0.0, 100.0])
def test_a_network_far_worse_than_its_seed_is_warned_of(
    sources, options, tmp_path, caplog, before
):
    """A learning rate that destroys the network, which nothing else would tell."""
    scales = tmp_path / "scales.json"
    scales.write_text(json.dumps({"lmwt": 5, "wip": 0.0, "wer": before}))
    training = options.training.replace(epochs=1, learning_rate=1000.0)
    train_sequence(
        SequenceJob(
            **{**sources, "scales": scales},
            out_dir=tmp_path / "model",
            options=options.replace(training=training),
            checkpoints=tmp_path / "work",
        )
    )
    told = "0.00 % with the network that the training started from: it failed"
    assert (told in caplog.text) == (before == 0)


def test_model_folder_is_whole_and_its_dev_errors_are_words(
    sources, options, system, tmp_path
):
    out = tmp_path / "model"
    train_sequence(
        SequenceJob(
            **sources,
            out_dir=out,
            options=options,
            checkpoints=tmp_path / "work",
            threads=2,
        )
    )
    model, seed = load_model(out), load_model(sources["parent_dir"])
    before, after = seed.network.state_dict(), model.network.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(model.log_priors, seed.log_priors)
    assert model.meta["criterion"] == "mmi"
    assert model.meta["parent"] == str(sources["parent_dir"])
    criterion, search = options.criterion, options.sequence.lattices
    assert model.meta["scales"] == {
        "acoustic_scale": criterion.acoustic_scale,
        "lm_scale": criterion.lm_scale,
        "ce_weight": criterion.ce_weight,
        "l2": criterion.l2,
        "boost": criterion.boost,
        "boost_of_silence": 0.0,
        "prior_scale": 1.0,
        "search.acoustic_scale": search.acoustic_scale,
        "alignments.acoustic_scale": options.sequence.alignments.acoustic_scale,
        "denominator.transition_scale": 1.0,
        "denominator.self_loop_scale": 0.1,
    }
    epochs = epochs_of(out)
    num_words = sum(
        len(t.split()) for t in FrameStore.load(sources["frames_dir"]).texts
    )
    assert [line["dev"]["frames"] for line in epochs] == [num_words] * 2
    rates = np.array([line["dev"]["loss"] for line in epochs]) * num_words
    assert np.allclose(rates, np.round(rates))
    assert json.loads((out / "drift.json").read_text())
    assert (out / "sequence_ledger.jsonl").is_file()
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["finished"]


def test_a_missing_file_is_named(sources, options, tmp_path):
    missing = {**sources, "scales": tmp_path / "none.json"}
    with pytest.raises(UserError, match=r"none\.json"):
        train_sequence(
            SequenceJob(
                **missing, out_dir=tmp_path / "m", options=options, checkpoints=tmp_path
            )
        )


def teaching(options, **training):
    """The options, with a teacher's criterion alone."""
    own = {"type": "teacher", "teacher": "any", "ce_weight": 0.0}
    values = options.values()
    training = {**values["training"], **training}
    return read_options(
        SequenceRunOptions, {**values, "criterion": own, "training": training}
    )


def test_who_is_his_own_teacher_learns_nothing(sources, options, tmp_path):
    out = tmp_path / "model"
    train_sequence(
        SequenceJob(
            **{**sources, "teacher_dir": sources["parent_dir"]},
            out_dir=out,
            options=teaching(options, optimizer={"type": "sgd"}),
            checkpoints=tmp_path / "work",
        )
    )
    before, after = (
        load_model(folder).network.state_dict()
        for folder in (sources["parent_dir"], out)
    )
    for name, value in before.items():
        assert torch.allclose(after[name], value, atol=1e-6), name
    last = epochs_of(out)[-1]["train"]
    assert last["objective"] == pytest.approx(-last["teacher_entropy"], abs=1e-6)


def test_a_pupil_comes_closer_to_its_teacher(system, sources, options, tmp_path):
    teacher = shutil.copytree(sources["parent_dir"], tmp_path / "teacher")
    weights = load_file(teacher / "weights.safetensors")
    generator = torch.Generator().manual_seed(3)
    for value in weights.values():
        value.add_(torch.randn(value.shape, generator=generator), alpha=0.3)
    save_file(weights, teacher / "weights.safetensors")
    out = tmp_path / "model"
    train_sequence(
        SequenceJob(
            **{**sources, "teacher_dir": teacher},
            out_dir=out,
            options=teaching(options, epochs=6, learning_rate=0.01),
            checkpoints=tmp_path / "work",
        )
    )
    distances = [
        -epoch["train"]["objective"] - epoch["train"]["teacher_entropy"]
        for epoch in epochs_of(out)
    ]
    assert min(distances) > 0
    assert distances[-1] < 0.8 * distances[0]


def test_a_teacher_of_another_normalization_is_refused(sources, options, tmp_path):
    teacher = shutil.copytree(sources["parent_dir"], tmp_path / "teacher")
    meta = json.loads((teacher / "meta.json").read_text())
    meta["normalization"] = {"type": "mean"}
    (teacher / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(UserError, match="normalization differ"):
        train_sequence(
            SequenceJob(
                **{**sources, "teacher_dir": teacher},
                out_dir=tmp_path / "m",
                options=teaching(options),
                checkpoints=tmp_path,
            )
        )


MINE = """
from latflow.criteria.mmi import Mmi
from latflow.criteria.options import MmiOptions

class Mine(Mmi):
    def __init__(self, options, model, silence_phones=(), *, seed=0):
        super().__init__(MmiOptions(**options), model, silence_phones, seed=seed)
"""


@pytest.mark.slow
def test_criteria_of_users_train_the_same(sources, options, tmp_path):
    """MMI by its name, as a class of the recipe's, and as a program: the same bits."""
    (tmp_path / "mine.py").write_text(MINE)
    scale = {"acoustic_scale": 0.2}
    serve = [sys.executable, "-m", "latflow.criteria.server"]
    path = f"{tmp_path}/mine.py:Mine"
    weights, values = [], options.values()
    for name, criterion in (
        ("own", {"type": "mmi", **scale}),
        ("custom", {"type": "custom", "path": path, "options": scale}),
        (
            "external",
            {"type": "external", "command": [*serve, "mmi", json.dumps(scale)]},
        ),
    ):
        given = read_options(SequenceRunOptions, {**values, "criterion": criterion})
        train_sequence(
            SequenceJob(
                **sources,
                out_dir=tmp_path / name,
                options=given,
                checkpoints=tmp_path / "work",
                threads=2,
            )
        )
        weights.append((tmp_path / name / "weights.safetensors").read_bytes())
        assert load_model(tmp_path / name).meta["criterion"] == "mmi"
    assert weights[0] == weights[1] == weights[2]


@pytest.mark.slow
def test_a_program_that_dies_is_told_with_the_utterance(sources, options, tmp_path):
    script = tmp_path / "dies.py"
    script.write_text(
        "import sys\n"
        "from latflow.criteria.external import read_message, write_message\n"
        "read_message(sys.stdin.buffer)\n"
        "own = {'protocol': 1, 'name': 'mine', 'statistics': []}\n"
        "write_message(sys.stdout.buffer, 'ready', own, {})\n"
    )
    own = {"type": "external", "command": [sys.executable, str(script)]}
    given = read_options(SequenceRunOptions, {**options.values(), "criterion": own})
    assert given.criterion.files == [Path(sys.executable), script]
    with pytest.raises(UserError, match="it ended|Broken pipe") as error:
        train_sequence(
            SequenceJob(
                **sources,
                out_dir=tmp_path / "m",
                options=given,
                checkpoints=tmp_path / "work",
            )
        )
    assert error.value.utterance


@pytest.fixture(scope="module")
def slow_sources(sources, tmp_path_factory):
    """The same with a network that scores one frame in three."""
    root = tmp_path_factory.mktemp("slow")
    write_slow_frames(sources["frames_dir"], root / "frames")
    write_subsampling(sources["parent_dir"], root / "seed")
    # A frame of the output stands for three, so that this is the LMWT of the twin.
    lmwt = FACTOR * json.loads(sources["scales"].read_text())["lmwt"]
    (root / "scales.json").write_text(json.dumps({"lmwt": lmwt, "wip": 0.0}))
    frames = root / "frames"
    return {
        **sources,
        "scales": root / "scales.json",
        "frames_dir": frames,
        "dev_frames_dir": frames,
        "parent_dir": root / "seed",
    }


@pytest.mark.parametrize("source", ["static", "on_the_fly"])
def test_a_network_that_subsamples_learns_what_its_twin_learns(
    sources, slow_sources, options, tmp_path, source
):
    """From alignments of its own rate or of the features', or made on the fly."""
    values = options.values()
    values["sequence"]["alignments"]["source"] = source
    store = FrameStore.load(slow_sources["frames_dir"])
    lengths = dict(zip(store.utt_ids, np.diff(store.begin), strict=True))
    whole = {
        utterance: np.repeat(ids, FACTOR)[: lengths[utterance]]
        for utterance, ids in read_int_vectors(sources["alignments"])
    }
    write_int_vectors(tmp_path / "ali.ark", whole.items())
    slow = {**slow_sources, "alignments": tmp_path / "ali.ark"}
    for name, files in (("plain", sources), ("own", slow_sources), ("whole", slow)):
        scale = 0.2 if name == "plain" else 0.2 / FACTOR
        values["sequence"]["dev_search"]["acoustic_scale"] = scale
        train_sequence(
            SequenceJob(
                **files,
                out_dir=tmp_path / name,
                options=read_options(SequenceRunOptions, values),
                checkpoints=tmp_path / f"work_{name}",
                threads=2,
            )
        )
    plain = load_model(tmp_path / "plain").network.state_dict()
    seed = load_model(sources["parent_dir"]).network.state_dict()
    assert any(not torch.equal(seed[name], plain[name]) for name in seed)
    for name in ("own", "whole"):
        found = load_model(tmp_path / name)
        assert found.network.subsampling == FACTOR
        for key, value in found.network.state_dict().items():
            torch.testing.assert_close(value, plain[key], rtol=1e-4, atol=1e-5)
        last, wanted = epochs_of(tmp_path / name)[-1], epochs_of(tmp_path / "plain")[-1]
        assert last["dev"]["loss"] == wanted["dev"]["loss"]
        assert last["train"]["frames"] == wanted["train"]["frames"]


def test_a_network_of_log_likelihoods_stays_one(slow_sources, options, tmp_path):
    """It has no priors, neither before nor after."""
    parent = tmp_path / "seed"
    write_subsampling(slow_sources["parent_dir"], parent, scores="log_likelihoods")
    np.save(parent / "priors.npy", np.empty(0, np.float32))
    values = options.values()
    values["sequence"]["prior_scale"] = None
    train_sequence(
        SequenceJob(
            **{**slow_sources, "parent_dir": parent},
            out_dir=tmp_path / "model",
            options=read_options(SequenceRunOptions, values),
            checkpoints=tmp_path / "work",
            threads=2,
        )
    )
    found = load_model(tmp_path / "model")
    assert found.gives_log_likelihoods
    assert found.log_priors is None
    assert np.load(tmp_path / "model" / "priors.npy").shape == (0,)
    values["sequence"]["prior_scale"] = 1.0
    with pytest.raises(UserError, match=r"seed.*no priors"):
        train_sequence(
            SequenceJob(
                **{**slow_sources, "parent_dir": parent},
                out_dir=tmp_path / "other",
                options=read_options(SequenceRunOptions, values),
                checkpoints=tmp_path / "work",
            )
        )
