"""A trained acoustic model as a folder, complete for decoding and serving.

* `network.yaml`: the description, as training was given it; of pretrained encoders
  what they are made of, and their licences, instead of folders
* `weights.safetensors`: parameters and running statistics, float32, by name
* `priors.npy`: float32 [K], shares of the first output's classes; [0] where there are
  none
* `meta.json`: features per frame, classes of the outputs, frame subsampling, and what
  the caller adds (criterion, scales, parent, commit, versions, ...); `scores:
  log_likelihoods` says that the outputs themselves are log-likelihoods (as LF-MMI
  trains them), else they are turned into posteriors by a softmax; `ctc` that these are
  of labels and the blank, whose sums over paths are probabilities of transcripts;
  `attention` that a decoder predicts `units`, and there are no scores of frames
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from latflow.errors import UserError
from latflow.files import atomic_directory, reading
from latflow.nnet.description import NetworkDescription
from latflow.nnet.network import Network, log_likelihoods_of
from latflow.nnet.normalization import Normalizer
from latflow.nnet.streams import Memory
from latflow.user_code import is_trust_decided, trusting

PRIORS = "priors.npy"
TREE = ("final.mdl", "tree")
# log-prior of a class that never occurs: so high that no path through it survives, and
# small enough that sums over an utterance stay finite
_NEVER = float(np.sqrt(np.finfo(np.float32).max))
_FLOOR = 1e-10
# Factor of acoustic costs in lattices of networks that learnt whole sequences. They are
# searched with an acoustic scale of 1; with it LMWT 7 ... 17 is right for them as it is
# for others (Kaldi's decode.sh --post-decode-acwt 10.0).
_LATTICE_SCALE = 10.0


@dataclass(frozen=True)
class AcousticNetwork:
    """A model folder, read.

    Attributes:
        network: in evaluation mode.
        log_priors: float32 [K] on the network's device; None without any.
        meta: the contents of meta.json.
    """

    network: Network
    log_priors: Tensor | None
    meta: Mapping[str, Any]

    @property
    def gives_log_likelihoods(self) -> bool:
        """Return whether the outputs are log-likelihoods: no softmax, no priors."""
        return self.meta.get("scores") == "log_likelihoods"

    @property
    def has_full_scale(self) -> bool:
        """Return whether it learnt whole sequences: by LF-MMI, CTC or attention."""
        kinds = {"attention", "ctc"}
        return self.gives_log_likelihoods or self.meta.get("scores") in kinds

    @property
    def normalizer(self) -> Normalizer:
        """Return what normalizes the features that the network reads.

        Raises:
            UserError: meta.json does not have it, or for other features.
        """
        found = Normalizer.from_meta(self.meta.get("normalization"))
        if found.mean is not None and len(found.mean) != self.network.dim_in:
            raise UserError(
                f"the model's meta.json normalizes {len(found.mean)} features per "
                f"frame, but the network reads {self.network.dim_in}",
                remedy="train the network again",
            )
        return found

    @property
    def lattice_scale(self) -> float:
        """Return the factor of acoustic costs in lattices that are written.

        It makes an LMWT mean the same for all systems: posteriors of one frame in s
        stand for s frames.
        """
        if self.has_full_scale:
            return _LATTICE_SCALE
        return float(self.network.subsampling)

    def prior_scale(self, wanted: float | None = None) -> float:
        """Return the factor of the log priors.

        Args:
            wanted: None for 1, or 0 where LF-MMI or CTC trained the network.

        Raises:
            UserError: priors are to be taken off, and the model has none; or it has no
                scores of frames.
        """
        if self.meta.get("scores") == "attention":
            raise UserError(
                "a decoder with attention has no scores of frames",
                remedy="take a network of another type, or name a layer or output",
            )
        by_kind = 0.0 if self.has_full_scale else 1.0
        scale = by_kind if wanted is None else wanted
        if scale and self.log_priors is None:
            raise UserError("the network has no priors", remedy="set prior_scale to 0")
        return scale

    def scaled_log_priors(self, wanted: float | None = None) -> Tensor | None:
        """Return what `log_likelihoods_of` takes off, float32 [K]; None for nothing.

        Args:
            wanted: see `prior_scale`.
        """
        scale = self.prior_scale(wanted)
        return (
            scale * self.log_priors if scale and self.log_priors is not None else None
        )

    @torch.no_grad()
    def log_likelihoods(
        self,
        features: Tensor,
        lengths: Tensor,
        *,
        prior_scale: float | None = None,
        has_context: bool = False,
        lengths_there: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the scores for the decoder.

        They are log posterior - `prior_scale` x log prior; of a network whose outputs
        are log-likelihoods, output - `prior_scale` x log prior.

        Args:
            features: [B, T, dim_in].
            lengths: integers [B].
            prior_scale: see there.
            has_context: as for `Network.forward`.
            lengths_there: likewise.

        Returns:
            (float32 [B, T', K] of the first output, its lengths [B]).

        Raises:
            UserError: a prior scale but no priors.
        """
        found = self.network(
            features, lengths, has_context=has_context, lengths_there=lengths_there
        )
        logits, out_lengths = next(iter(found.values()))
        return self._scores_of(logits, prior_scale), out_lengths

    @torch.no_grad()
    def stream(
        self,
        features: Tensor,
        memory: Memory,
        rows: int,
        *,
        is_last: bool,
        prior_scale: float | None = None,
    ) -> tuple[Tensor, Memory]:
        """Return the next scores of streams, as `log_likelihoods` has them.

        Args:
            features: [B, T, dim_in], see `Network.stream`.
            memory: likewise.
            rows: likewise.
            is_last: likewise.
            prior_scale: see `log_likelihoods`.

        Returns:
            float32 [B, rows, K], and what is kept.
        """
        logits, memory = self.network.stream(features, memory, rows, is_last=is_last)
        return self._scores_of(logits, prior_scale), memory

    def _scores_of(self, logits: Tensor, prior_scale: float | None) -> Tensor:
        """Return the scores of the first output's logits, float32 [B, T, K]."""
        priors = self.scaled_log_priors(prior_scale)
        is_softmax = not self.gives_log_likelihoods
        return log_likelihoods_of(logits.float(), priors, softmax=is_softmax)


def save_model(
    folder: str | Path,
    network: Network,
    description: NetworkDescription,
    priors: np.ndarray | None,
    meta: Mapping[str, Any],
) -> None:
    """Write a model folder atomically.

    Args:
        folder: where; what stands there is replaced.
        network: the network.
        description: what it was made from.
        priors: [K], shares or counts of the first output's classes; made to sum to 1.
            None without any.
        meta: more for meta.json, values that JSON knows.

    Raises:
        ValueError: priors of another size, negative, not finite, or all zero.
    """
    shares = np.empty(0, np.float32)
    if priors is not None:
        num_classes = next(iter(network.outputs.values())).num_classes
        shares = _checked_priors(priors, num_classes)
    with atomic_directory(folder) as temporary:
        _write_network(temporary, network, description, meta)
        np.save(temporary / PRIORS, shares)


def _write_network(
    folder: Path,
    network: Network,
    description: NetworkDescription,
    meta: Mapping[str, Any],
) -> None:
    """Write description, weights and meta.json into a folder."""
    weights = {
        name: value.detach().to("cpu", copy=True).contiguous()
        for name, value in network.state_dict().items()
    }
    meta = {
        **meta,
        "dim_in": network.dim_in,
        "classes": {name: o.num_classes for name, o in network.outputs.items()},
        "subsampling": network.subsampling,
    }
    whole = dict(description.self_contained().config)
    config = yaml.safe_dump(whole, sort_keys=False)
    (folder / "network.yaml").write_text(config, encoding="utf-8")
    save_file(weights, folder / "weights.safetensors")
    text = json.dumps(meta, indent=2, ensure_ascii=False) + "\n"
    (folder / "meta.json").write_text(text, encoding="utf-8")


def keep_decoded(folder: Path) -> None:
    """Take out of a model what its decoded output does not need.

    Outputs that only help training go, and the layers that they alone need. Scores
    stay, to the bit; a model without such layers stays unchanged.

    Args:
        folder: the model folder, which changes.

    Raises:
        UserError: as `load_model`.
    """
    model = load_model(folder)
    whole, description = model.network, model.network.description.decoded()
    if set(description.plan.names) == set(whole.description.plan.names):
        return
    classes = {name: output.num_classes for name, output in whole.outputs.items()}
    network = Network(description, whole.dim_in, classes)
    state = whole.state_dict()
    network.load_state_dict({name: state[name] for name in network.state_dict()})
    meta = {**model.meta, "num_parameters": network.num_parameters}
    _write_network(folder, network, description, meta)


def _checked_priors(priors: np.ndarray, num_classes: int) -> np.ndarray:
    """Return float32 [K] that sums to 1."""
    priors = np.asarray(priors, np.float64)
    if priors.shape != (num_classes,):
        raise ValueError(f"priors have shape {priors.shape}, classes are {num_classes}")
    total = priors.sum()
    if not np.isfinite(total) or total <= 0 or priors.min() < 0:
        raise ValueError("priors must be finite, not negative, and not all zero")
    return (priors / total).astype(np.float32)


def load_model(
    folder: str | Path, device: str | torch.device = "cpu"
) -> AcousticNetwork:
    """Read a model folder.

    Args:
        folder: as `save_model` writes it.
        device: where the network is to run.

    Raises:
        UserError: a file is missing or broken, or they do not belong together; or it
            lies in a package and names code that nobody has trusted.
    """
    if not is_trust_decided() and (Path(folder).parent / "package.json").is_file():
        with trusting(False):  # noqa: FBT003 - its only argument
            return _load_model(Path(folder), device)
    return _load_model(Path(folder), device)


def _load_model(folder: Path, device: str | torch.device) -> AcousticNetwork:
    """Read a model folder, see `load_model`."""
    for name in ("network.yaml", "weights.safetensors", "meta.json"):
        if not (folder / name).is_file():
            remedy = "name a folder that training has written"
            raise UserError("no such file", file=folder / name, remedy=remedy)
    meta = _read_meta(folder / "meta.json")
    description = NetworkDescription.load(folder / "network.yaml")
    if outside := description.encoder_folders():
        what = f"names the folder {outside[0]}, and a model has all in its own"
        raise UserError(what, file=folder / "network.yaml", remedy="train it again")
    with reading(folder / "meta.json", "makes no network", "train the network again"):
        network = Network(description, meta["dim_in"], meta["classes"])
    _load_weights(network, folder / "weights.safetensors")
    network.to(device).eval()
    log_priors, priors = None, read_priors(folder)
    if priors is not None:
        num_classes = next(iter(network.outputs.values())).num_classes
        try:
            log_priors = _log_priors(_checked_priors(priors, num_classes)).to(device)
        except ValueError as error:
            raise UserError(str(error), file=folder / PRIORS) from error
    return AcousticNetwork(network, log_priors, meta)


def _read_meta(path: Path) -> dict[str, Any]:
    with reading(path, "not readable as JSON", "train the network again"):
        meta = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(meta, dict) or not {"dim_in", "classes"} <= meta.keys():
        raise UserError("dim_in and classes are missing: no model's", file=path)
    if not isinstance(meta.get("scores", ""), str):
        raise UserError(f"scores is {meta['scores']!r}: no model's", file=path)
    return meta


def _load_weights(network: Network, path: Path) -> None:
    """Read the parameters into a network."""
    try:
        network.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError) as error:
        what = " ".join(str(error).split())
        remedy = "weights and network.yaml must be of the same training"
        raise UserError(f"does not fit: {what}", file=path, remedy=remedy) from error


def read_priors(folder: str | Path) -> np.ndarray | None:
    """Return the priors of a model folder, float32 [K]; None where it has none.

    Raises:
        UserError: the file is broken.
    """
    path = Path(folder, PRIORS)
    if not path.is_file():
        return None
    with reading(path, "no priors", "train the network again"):
        priors = np.load(path)
        return priors if priors.size else None


def _log_priors(priors: np.ndarray) -> Tensor:
    """Return log-priors, float32 [K]; a class that never occurs is impossible."""
    priors = priors.astype(np.float64)
    is_known = priors > _FLOOR
    logs = np.where(is_known, np.log(np.maximum(priors, _FLOOR)), _NEVER)
    return torch.from_numpy(logs.astype(np.float32))


def average_states(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean parameters and running statistics of networks of one shape.

    Means are taken in float64. Whole numbers (counters) are those of the last network.

    Args:
        states: `state_dict`s, at least one.

    Raises:
        ValueError: none, or of networks that differ.
    """
    if not states:
        raise ValueError("no networks to average")
    shapes = {name: value.shape for name, value in states[-1].items()}
    for state in states:
        if {name: value.shape for name, value in state.items()} != shapes:
            raise ValueError("networks of different layers cannot be averaged")
    if len(states) == 1:
        return dict(states[0])
    return {name: _mean([s[name] for s in states]) for name in shapes}


def _mean(values: Sequence[Tensor]) -> Tensor:
    """Return the mean of tensors of one shape."""
    last = values[-1]
    if not last.is_floating_point():
        return last
    total = torch.zeros_like(last, dtype=torch.float64)
    for value in values:
        total += value
    return (total / len(values)).to(last.dtype)


def average_models(folders: Sequence[str | Path], out_dir: str | Path) -> None:
    """Write a model folder with the mean parameters of several.

    All else (description, priors, meta) is that of the last; `averaged` in meta.json
    names them all.

    Args:
        folders: of models with the same layers.
        out_dir: the new model folder; `final.mdl` and `tree` go with it.

    Raises:
        UserError: a folder is broken, the layers differ, or `out_dir` is one of them.
    """
    check_is_none_of(out_dir, folders)
    networks = [load_model(folder).network for folder in folders]
    try:
        mean = average_states([network.state_dict() for network in networks])
    except ValueError as error:
        what = f"{error}: {', '.join(map(str, folders))}"
        raise UserError(what, remedy="name models of one network") from error
    last = load_model(folders[-1])
    last.network.load_state_dict(mean)
    shares = read_priors(folders[-1])
    meta = {**last.meta, "averaged": [str(folder) for folder in folders]}
    with atomic_directory(out_dir) as folder:
        save_model(folder, last.network, last.network.description, shares, meta)
        copy_tree(folders[-1], folder)


def check_is_none_of(out_dir: str | Path, folders: Sequence[str | Path]) -> None:
    """Refuse to write a model over one of those that it is made of.

    Raises:
        UserError: names it.
    """
    if Path(out_dir).resolve() in {Path(folder).resolve() for folder in folders}:
        raise UserError(
            "is to be read and replaced",
            file=out_dir,
            remedy="write to a folder that holds no model of these",
        )


def copy_tree(source: str | Path, folder: Path) -> None:
    """Copy tree and transition model of a model folder, where it has them."""
    for name in TREE:
        if Path(source, name).is_file():
            shutil.copyfile(Path(source, name), folder / name)


def choose_device(name: str) -> torch.device:
    """Return the device that a name stands for.

    Args:
        name: `cpu`, `cuda`, or `auto`: a GPU where there is one.

    Raises:
        UserError: `cuda` without a GPU.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(
            "device cuda: torch finds no GPU",
            remedy="set the device to cpu or auto, or check the driver (nvidia-smi)",
        )
    return torch.device("cuda")
