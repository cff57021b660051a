"""RETURNN's settings of a training as options of ours, and the command that takes both.

RETURNN's loss is the sum over the frames of a batch, ours their mean. Where that
matters (L2, noise, the learning rate without moments), numbers are divided by
`batch_size`, or multiplied.

Source: https://github.com/rwth-i6/returnn, `returnn/tf/updater.py`,
`returnn/learning_rate_control.py`, `returnn/pretrain.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from latflow.files import write_text
from latflow.nnet.description import NetworkDescription
from latflow.nnet.returnn_config import ReturnnConfig, read_config
from latflow.nnet.returnn_layers import Fate, Row
from latflow.nnet.returnn_network import ConvertedNetwork, convert_network
from latflow.options import read_options
from latflow.training.options import CeSystemOptions, CtcSystemOptions

_FLAGS = ("adam", "nadam", "adadelta", "adagrad", "rmsprop", "adamax")
_BY_CLASS = MappingProxyType(
    {
        **{name: name for name in _FLAGS},
        **{f"{name}optimizer": name for name in _FLAGS},
        "sgd": "sgd", "gradientdescent": "sgd", "momentum": "sgd",
        "gradientdescentoptimizer": "sgd", "momentumoptimizer": "sgd", "adamw": "adamw",
    }
)  # fmt: skip
_NEWBOB = MappingProxyType(
    {
        "newbob": True, "newbob_rel": True, "newbob_relative": True,
        "newbob_multi_epoch": True, "newbob_abs": False,
    }
)  # fmt: skip
# Settings of where and how RETURNN runs, and of its data, which a recipe has elsewhere.
_ELSEWHERE = MappingProxyType(
    {
        "the recipe says": (
            "train", "dev", "eval", "eval_datasets", "extern_data", "num_inputs",
            "num_outputs", "target", "loss", "task", "model", "random_seed",
        ),
        "nothing to choose here": (
            "use_tensorflow", "device", "multiprocessing", "update_on_device",
            "cache_size", "log", "log_verbosity", "log_batch_size", "save_interval",
            "learning_rate_file", "cleanup_old_models", "tf_log_memory_usage",
            "search_output_layer", "debug_print_layer_output_template", "start_epoch",
            "start_batch", "tf_session_opts", "sprint_interface_dataset_opts",
            "sprint_trainer_exec_path", "reinit", "log_dir", "config", "debug_mode",
            "store_metadata_mod_step", "use_learning_rate_control_always", "backend",
            "truncation", "calculate_exp_loss", "stop_on_nonfinite_train_score",
            "behavior_version",
        ),
    }
)  # fmt: skip


_NO_LIMIT = 1_000_000  # frames or sequences; RETURNN has no null


@dataclass
class ImportedTraining:
    """Options of a network in a recipe.

    Attributes:
        options: of `nnet.systems.<name>`: type, data, training.
        rows: what became of each key.
    """

    options: dict[str, Any]
    rows: list[Row] = field(default_factory=list)


def import_returnn(path: str | Path, out_dir: str | Path | None) -> list[Row]:
    """Write a network description and a part of a recipe of RETURNN's configuration.

    Args:
        path: the configuration, JSON or Python; it is not run.
        out_dir: folder for `network.yaml` and `recipe.yaml`; None to write nothing.

    Returns:
        What became of each key.

    Raises:
        UserError: the file cannot be read, or the network is made by code or wrong.
            Keys that cannot be done are rows; with them nothing is written.
    """
    config = read_config(path)
    window = config.values.get("window", 1)
    network = convert_network(
        config.network(), window if isinstance(window, int) else 1, _sparse(config)
    )
    training = convert_training(config, network)
    rows = [*network.rows, *training.rows]
    if network.is_refused:
        return rows
    description = {"description": f"as {Path(path).name} of RETURNN"}
    described = NetworkDescription.from_config(
        {**description, "layers": network.layers}, file=Path(path)
    )
    file = Path(out_dir or ".", "network.yaml")
    system = {"network": str(file), **training.options}
    if system["type"] == "ce":
        read_options(CeSystemOptions, {**system, "alignments": "mono"}, str(path))
    else:
        read_options(CtcSystemOptions, system, str(path))
    if out_dir is not None:
        _write_yaml(file, dict(described.config), _NETWORK)
        part = {"nnet": {"systems": {"returnn": system}}}
        _write_yaml(file.with_name("recipe.yaml"), part, _RECIPE)
    return rows


def _sparse(config: ReturnnConfig) -> dict[str, int]:
    """Return the numbers of classes of the data that are labels, by name."""
    found = {}
    for key in ("num_inputs", "num_outputs", "extern_data"):
        given = config.values.get(key)
        for name, setting in (given if isinstance(given, Mapping) else {}).items():
            match setting:
                # A pair is the dimension, and the number of axes: 1 for labels.
                case {"sparse": True, "dim": int(dim)} | [int(dim), 1]:
                    found[str(name)] = dim
    return found


_NETWORK = "# What it makes: latflow network THIS --dim-in FEATURES --classes PDFS\n"
_RECIPE = (
    "# A part of a recipe; a network of type ce needs `alignments` besides, the\n"
    "# system whose alignments it learns from.\n"
)


def _write_yaml(path: Path, value: Any, comment: str) -> None:
    """Write a file that people continue with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    write_text(path, comment + text)


def convert_training(
    config: ReturnnConfig, network: ConvertedNetwork
) -> ImportedTraining:
    """Return the options of a network's training that RETURNN's settings stand for."""
    return _Training(config, network).converted()


class _Training:
    """The conversion of the settings of one file."""

    def __init__(self, config: ReturnnConfig, network: ConvertedNetwork) -> None:
        self._config, self._network = config, network
        self._data: dict[str, Any] = {}
        self._training: dict[str, Any] = {}
        self._rows: dict[str, Row] = {}
        kind = "ctc" if "ctc" in network.losses[:1] else "ce"
        self._made = ImportedTraining({"type": kind})

    def converted(self) -> ImportedTraining:
        """Convert all settings."""
        self._note("network", "taken", "network.yaml")
        self._convert_batches()
        self._convert_optimizer()
        self._convert_schedule()
        self._convert_network_settings()
        self._convert_gradient()
        self._convert_pretraining()
        self._note_others()
        found = {"data": self._data, "training": self._training}
        self._made.options |= {key: value for key, value in found.items() if value}
        self._made.rows = list(self._rows.values())
        return self._made

    def _note(self, key: str, fate: Fate, text: str) -> None:
        self._rows[key] = Row(key, fate, text)

    def _number(self, key: str) -> float | None:
        """Return a number; a dictionary is that of `data`, the features."""
        value = self._config.values.get(key)
        if isinstance(value, Mapping):
            value = value.get("data", value.get("classes"))
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return value if math.isfinite(value) else None

    def _rename(self, key: str, place: str, value: Any, more: str = "") -> None:
        """Take a setting that has another name."""
        section, name = place.split(".", 1)
        target = self._data if section == "data" else self._training
        target[name] = value
        last = key.rpartition(".")[2]
        fate: Fate = "taken" if last == name and not more else "renamed"
        self._note(key, fate, f"{place}: {value}{more}")

    @property
    def _frames(self) -> float | None:
        """Frames of a batch, over which RETURNN adds losses up."""
        return self._number("batch_size") or None

    def _convert_batches(self) -> None:
        """Take what says which sequences make a batch."""
        if self._network.has_labels:
            self._data["normalization"] = "none"
        for key, name in (
            ("batch_size", "data.max_frames"),
            ("max_seqs", "data.max_sequences"),
            ("max_seq_length", "data.max_length"),
        ):
            if (value := self._number(key)) is None:
                continue
            if 1 <= value <= _NO_LIMIT:
                self._rename(key, name, int(value))
            else:
                self._note(key, "left out", f"no limit: {value}")
        self._convert_chunks()
        order = self._config.values.get("batching")
        known = ("default", "sorted", "reverse", "random")
        if order in known or str(order).startswith("laplace:"):
            self._rename("batching", "data.order", order)
        train = self._config.values.get("train")
        for key in ("partitionEpoch", "partition_epoch"):
            if isinstance(train, Mapping) and isinstance(train.get(key), int):
                self._rename(f"train.{key}", "data.partition_epoch", train[key])
        if (steps := self._number("accum_grad_multiple_step")) and steps > 1:
            self._rename("accum_grad_multiple_step", "training.accumulate", int(steps))

    def _convert_chunks(self) -> None:
        """Take `chunking: "50:25"`: frames of a chunk and from one to the next."""
        numbers = _chunk(self._config.values.get("chunking", "0"))
        if numbers is None:
            self._note("chunking", "left out", "neither size nor size:step")
        elif not numbers[0]:
            self._rename("chunking", "data.sequences", {"type": "utterances"})
        elif self._made.options["type"] == "ctc":
            self._note("chunking", "left out", "CTC learns from whole utterances")
        else:
            named = dict(zip(("size", "step"), numbers, strict=False))
            self._rename("chunking", "data.sequences", {"type": "chunks", **named})

    def _convert_optimizer(self) -> None:
        """Take the optimizer and its learning rate."""
        found, key = self._optimizer_type()
        options: dict[str, Any] = {"type": found}
        momentum = self._number("momentum") or self._number("nesterov_momentum")
        if momentum and found in ("sgd", "rmsprop"):
            options["momentum"] = momentum
            name = "momentum" if self._number("momentum") else "nesterov_momentum"
            self._note(name, "taken", "training.optimizer.momentum")
            if found == "sgd" and name == "nesterov_momentum":
                options["nesterov"] = True
        epsilon = self._number("optimizer_epsilon")
        if epsilon and found != "sgd":
            options["eps"] = self._of_mean(epsilon)
            self._note("optimizer_epsilon", "renamed", f"eps: {options['eps']:.3g}")
        self._rename(key, "training.optimizer", options)
        rate = self._number("learning_rate")
        if rate and found == "sgd" and self._frames:
            value = rate * self._frames
            more = " (times batch_size: the loss here is the frames' mean)"
            self._rename("learning_rate", "training.learning_rate", value, more)
        elif rate:
            self._rename("learning_rate", "training.learning_rate", float(rate))

    def _of_mean(self, value: float) -> float:
        """Return what stands beside a sum over frames for the frames' mean."""
        return value / (self._frames or 1)

    def _optimizer_type(self) -> tuple[str, str]:
        """Return the optimizer, and the key that names it."""
        values = self._config.values
        given = values.get("optimizer")
        if isinstance(given, Mapping):
            name = str(given.get("class", "")).lower()
            for key in given.keys() - {"class"}:
                self._note(f"optimizer.{key}", "left out", "set it in the recipe")
            if name in _BY_CLASS:
                return _BY_CLASS[name], "optimizer"
            self._note("optimizer.class", "left out", f"no {name} here: sgd")
        for name in _FLAGS:
            if values.get(name):
                return name, name
        return "sgd", "optimizer"

    def _convert_schedule(self) -> None:
        """Take how the learning rate changes."""
        kind = str(self._config.values.get("learning_rate_control", "constant"))
        if kind not in _NEWBOB:
            known = kind in ("constant", "none")
            self._note(
                "learning_rate_control",
                "taken" if known else "left out",
                "training.schedule: constant" if known else f"no {kind} here: constant",
            )
            self._training["schedule"] = {"type": "constant"}
            return
        is_relative = _NEWBOB[kind]
        found: dict[str, Any] = {"type": "newbob", "relative": is_relative}
        threshold = "relative_error_threshold" if is_relative else "error_threshold"
        numbers = {
            f"newbob_{threshold}": "threshold",
            "newbob_learning_rate_decay": "decay",
            "min_learning_rate": "min_learning_rate",
        }
        if kind == "newbob_multi_epoch":
            found |= {"epochs": 5}
            numbers["newbob_multi_num_epochs"] = "epochs"
            numbers["newbob_multi_update_interval"] = "interval"
        for key, name in numbers.items():
            if (value := self._number(key)) is not None:
                found[name] = value
                self._note(key, "renamed", f"training.schedule.{name}: {value}")
        if kind == "newbob_multi_epoch":
            found.setdefault("interval", found["epochs"])
        measure = str(self._config.values.get("learning_rate_control_error_measure"))
        if measure.startswith("dev_error"):
            found["measure"] = "frame_errors"
            text = "training.schedule.measure: frame_errors"
            self._note("learning_rate_control_error_measure", "renamed", text)
        self._rename("learning_rate_control", "training.schedule", found)

    def _convert_network_settings(self) -> None:
        """Take what RETURNN has in layers."""
        if (epochs := self._number("num_epochs")) is not None:
            self._rename("num_epochs", "training.epochs", int(epochs))
        if len(factors := set(self._network.l2.values())) == 1:
            value = 2 * self._of_mean(factors.pop())
            self._rename("network L2", "training.l2", value, " (of all layers)")
        elif factors:
            self._note("network L2", "left out", "layers differ; here all have one")
        if self._network.label_smoothing:
            self._training["label_smoothing"] = self._network.label_smoothing
        if self._network.focal:
            self._training["focal"] = self._network.focal
        if self._network.frozen:
            self._training["freeze"] = list(self._network.frozen)
        if self._number("window") is not None:
            self._note("window", "taken", "a layer of class window, where above 1")

    def _convert_gradient(self) -> None:
        """Take what is done with the gradient as a whole."""
        if noise := self._number("gradient_noise"):
            # A standard deviation there, a variance that falls from step to step here.
            value, more = self._of_mean(noise) ** 2, " (falls with the steps)"
            self._rename("gradient_noise", "training.gradient_noise", value, more)
        self._training["clip_norm"] = None
        if norm := self._number("gradient_clip_global_norm"):
            value = self._of_mean(norm)
            self._rename("gradient_clip_global_norm", "training.clip_norm", value)
        if (clip := self._number("gradient_clip")) is not None:
            text = "numbers of the gradient are not clipped one by one here"
            if clip:
                self._note("gradient_clip", "left out", text)
            else:
                self._note("gradient_clip", "renamed", "training.clip_norm: null")

    def _convert_pretraining(self) -> None:
        """Take layer-wise pretraining of RETURNN's own construction."""
        given = self._config.values.get("pretrain")
        if given is None:
            return
        way = self._config.values.get("pretrain_construction_algo", "from_output")
        if given != "default" or not isinstance(way, str):
            self._note("pretrain", "left out", "a construction of its own")
            return
        repetitions = self._number("pretrain_repetitions") or 1
        self._note("pretrain_repetitions", "renamed", "training.pretraining")
        self._note("pretrain_construction_algo", "left out", "always from the input")
        self._rename("pretrain", "training.pretraining", int(repetitions))

    def _note_others(self) -> None:
        """Note all other settings, and those that code makes."""
        reasons = {key: why for why, keys in _ELSEWHERE.items() for key in keys}
        for key in self._config.values.keys() - self._rows.keys():
            self._note(key, "left out", reasons.get(key, "nothing here is like it"))
        for key, what in self._config.code.items():
            self._note(key, "left out", f"code, which is not run: {what}")


def _chunk(given: Any) -> list[int] | None:
    """Return size and step of chunks, frames; [0] for none; None for anything else."""
    if given in ("", None):
        return [0]
    parts = given if isinstance(given, list) else [given]
    if isinstance(given, str):
        parts = given.split(":")
    parts = [one.get("data") if isinstance(one, Mapping) else one for one in parts]
    if not all(str(one).isdigit() for one in parts) or not 1 <= len(parts) <= 2:
        return None
    return [int(one) for one in parts]
