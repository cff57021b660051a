"""Memory of a training: counted beforehand, and one line where there is too little."""

import subprocess
import sys

import pytest
import torch
from fixtures.training_task import make_trainer, write_task
from torch import nn

from latflow.errors import UserError, is_out_of_memory
from latflow.nnet import footprint
from latflow.nnet.description import NetworkDescription
from latflow.nnet.footprint import Footprint, footprint_of
from latflow.nnet.network import Network
from latflow.options import read_options
from latflow.training.data_options import DataOptions
from latflow.training.memory import enough_memory, memory_of, num_moments
from latflow.training.optimizer_options import OptimizerOptions
from latflow.training.optimizers import make_optimizer
from latflow.training.options import TrainingOptions

ONE_LAYER = {
    "layers": {
        "wide": {"class": "linear", "from": "data", "size": 7, "activation": "relu"},
        "output": {"class": "output"},
    }
}
CLASSES = {"pdf": 5}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    write_task(folder, utterances=20)
    return folder


def test_a_network_is_counted_as_it_is():
    description = NetworkDescription.from_config(ONE_LAYER)
    network = Network(description, 3, CLASSES)
    found = footprint_of(description, 3, CLASSES)
    assert found.parameters == sum(p.numel() for p in network.parameters())
    assert found.per_pair == 0
    # of a frame: 3 features, 7 activations, for the products and relu's sign
    assert 4 * (3 + 7) <= found.per_frame <= 4 * (3 + 4 * 7 + 5)


def test_attention_is_counted_by_pairs_of_frames(repository):
    file = repository / "config/networks/transformer_small.yaml"
    found = footprint_of(NetworkDescription.load(file), 40, CLASSES)
    assert found.per_pair > 4
    assert found.kept(2, 100) < found.kept(1, 200)


def test_a_network_that_no_machine_holds_is_counted():
    layers = {
        name: {"class": "linear", "size": 200_000, "from": below}
        for name, below in (("one", "data"), ("two", "one"))
    }
    config = {"layers": {**layers, "output": {"class": "output"}}}
    found = footprint_of(NetworkDescription.from_config(config), 40, CLASSES)
    assert found.parameters > 4e10


def test_a_network_that_wants_contents_has_its_parameters_counted(monkeypatch, caplog):
    def wants_contents(*_):
        raise RuntimeError("Tensor.item() cannot be called on meta tensors")

    monkeypatch.setattr(footprint, "_bytes_kept", wants_contents)
    description = NetworkDescription.from_config(ONE_LAYER)
    found = footprint_of(description, 3, CLASSES)
    assert found == (3 * 7 + 7 + 7 * 5 + 5, 0.0, 0.0)
    assert "what a pass keeps is not counted" in caplog.text


@pytest.mark.parametrize(
    ("data", "training", "passed"),
    [
        ({"max_sequences": 10}, {}, (10, 80)),
        ({"sequences": {"type": "chunks", "size": 100,
                        "context": {"left": 20, "right": 10}}}, {}, (64, 130)),
        ({"sequences": {"type": "utterances"}}, {}, (64, 500)),
        ({"sequences": {"type": "utterances"}, "max_length": 300}, {}, (64, 300)),
        ({"sequences": {"type": "utterances"}, "max_frames": 4200}, {}, (8, 500)),
        ({"sequences": {"type": "utterances"}, "max_frames": 4200,
          "quadratic_frames": 500}, {}, (4, 500)),
        ({"sequences": {"type": "utterances"}, "max_frames": 100}, {}, (1, 500)),
        ({"max_sequences": 10}, {"micro_sequences": 4}, (4, 80)),
    ],
)  # fmt: skip
def test_the_largest_pass_is_counted(data, training, passed):
    found = memory_of(
        Footprint(1000, 10.0, 0.5),
        read_options(TrainingOptions, training),
        read_options(DataOptions, data),
        longest=500,
    )
    sequences, frames = passed
    assert found.batch == sequences * frames * (10 + 0.5 * frames)
    assert found.state == 4 * 1000 * 4  # Adam: value, gradient, two moments
    assert found.total == found.batch + found.state
    assert found.times(3).parameters == 3000


@pytest.mark.parametrize(
    "options",
    [
        *({"type": name} for name in ("adam", "adamw", "sgd", "adagrad", "rmsprop")),
        *({"type": name} for name in ("nadam", "radam", "adadelta", "adamax")),
        {"type": "scaled_adam"},
        {"type": "adam", "amsgrad": True},
        {"type": "sgd", "momentum": 0.9},
        {"type": "rmsprop", "momentum": 0.9},
    ],
)
def test_numbers_of_an_optimizer_are_those_that_it_keeps(options):
    chosen = read_options(OptimizerOptions, options)
    layer = nn.Linear(100, 1, bias=False)
    optimizer = make_optimizer(layer, chosen, 0.1)
    layer(torch.ones(1, 100)).sum().backward()
    optimizer.step()
    (state,) = [*optimizer.state.values()] or [{}]
    kept = sum(v.numel() for v in state.values() if torch.is_tensor(v))
    assert kept // 100 == num_moments(chosen)


ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0"),
    RuntimeError(
        "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"
    ),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    MemoryError(),
]


@pytest.mark.parametrize("error", ERRORS)
def test_a_lack_of_memory_is_known_by_its_words(error):
    assert is_out_of_memory(error)
    told = pytest.raises(UserError, match="^out of memory: this - do that$")
    with told, enough_memory("this", "do that"):
        raise error


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("memory")])
def test_other_errors_are_no_lack_of_memory(error):
    assert not is_out_of_memory(error)
    with pytest.raises(type(error)), enough_memory("this", "do that"):
        raise error


def lacking(error, *, when):
    """Return a hook that raises an error in training, or in evaluation."""

    def hook(module, *_):
        if module.training == (when == "training"):
            raise error

    return hook


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("when", ["training", "evaluation"])
def test_a_pass_without_memory_is_one_line_with_the_largest(
    task, tmp_path, error, when
):
    trainer = make_trainer(
        task, tmp_path, training={"epochs": 1}, data={"max_sequences": 5}
    )
    trainer.network.register_forward_pre_hook(lacking(error, when=when))
    with pytest.raises(UserError) as raised:
        trainer.run()
    said = str(raised.value)
    assert "\n" not in said
    assert "out of memory in a pass over 5 sequences of up to" in said
    assert "training.micro_sequences below 5" in said
    assert "data.max_frames" in said
    assert raised.value.utterance in trainer.batches.reader.utt_ids


def test_memory_that_ends_on_the_way_back_is_the_same_line(task, tmp_path):
    trainer = make_trainer(task, tmp_path, training={"epochs": 1, "micro_sequences": 1})

    def lack(_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    next(trainer.network.parameters()).register_hook(lack)
    with pytest.raises(UserError, match="set data.max_length below") as raised:
        trainer.run()
    assert "a pass over 1 sequences" in raised.value.what


def test_a_network_beyond_the_limit_of_a_process_is_one_line(tmp_path):
    """The allocator of torch really refuses; its error is the one that is known."""
    code = (
        "import resource, torch\n"
        "from latflow.training.memory import enough_memory\n"
        "resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\n"
        "with enough_memory('the network does not fit', 'take a smaller one'):\n"
        "    torch.nn.Linear(100_000, 100_000)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    last = done.stderr.splitlines()[-1]
    assert last.endswith("out of memory: the network does not fit - take a smaller one")
