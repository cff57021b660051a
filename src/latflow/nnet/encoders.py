"""Pretrained encoders of speech in Hugging Face's form, read from a local folder.

    config.json                 what the encoder is made of
    model.safetensors           its parameters, perhaps with others; or several files
                                that model.safetensors.index.json names
    preprocessor_config.json    sample rate, and whether samples are normalized; or
                                processor_config.json, see `latflow.nnet.encoder_files`
    LICENSE*, COPYING*          terms of use; else those that README.md names

A file of torchaudio's may stand for the parameters and most of config.json; see
`latflow.nnet.torchaudio_encoders`.

Nothing is fetched, no pickle is read, and no code of the folder is run: an encoder is
one of the kinds below, which the package transformers makes of plain values.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from latflow.errors import UserError
from latflow.files import check_fetched, file_digest, read_json
from latflow.nnet import torchaudio_encoders
from latflow.nnet.encoder_files import (
    check_preprocessing,
    normalizes_samples,
    read_object,
)
from latflow.nnet.options import MOST_LAYERS
from latflow.text_files import open_text

log = logging.getLogger(__name__)

CONFIG, WEIGHTS = "config.json", "model.safetensors"
#: Key of our own: whether each utterance's samples get mean 0 and variance 1.
NORMALIZED = "samples_normalized"
_MASK = "masked_spec_embed"  # what stands for masked frames; not all folders have it
# What would choose code, or only describes the file.
_LEFT_OUT = {
    "architectures",
    "attn_implementation",
    "auto_map",
    "dtype",
    "experts_implementation",
    "id2label",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "quantization_config",
    "return_dict",
    "torch_dtype",
    "transformers_version",
}
_NUMBERS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_MOST = 1 << 20  # of any number in a configuration
_LICENCES = ("LICENSE*", "LICENCE*", "COPYING*", "license*")


@dataclass(frozen=True)
class EncoderKind:
    """A kind of encoder.

    Attributes:
        module: of transformers, where it is defined: `wav2vec2`, ...
        name: first part of the names of its classes.
        model: its class.
        reads: `samples`; `fbank`: pairs of frames of 80 log-mel energies; `log_mel`:
            Whisper's spectra of 30 s.
        prefixes: of the names of its parameters, in files that hold more.
    """

    module: str
    name: str
    model: str
    reads: Literal["samples", "fbank", "log_mel"]
    prefixes: tuple[str, ...]


#: Kinds by the `model_type` of config.json.
KINDS: dict[str, EncoderKind] = {
    "wav2vec2": EncoderKind(
        "wav2vec2", "Wav2Vec2", "Wav2Vec2Model", "samples", ("wav2vec2.",)
    ),
    "hubert": EncoderKind("hubert", "Hubert", "HubertModel", "samples", ("hubert.",)),
    "wavlm": EncoderKind("wavlm", "WavLM", "WavLMModel", "samples", ("wavlm.",)),
    "data2vec-audio": EncoderKind(
        "data2vec_audio",
        "Data2VecAudio",
        "Data2VecAudioModel",
        "samples",
        ("data2vec_audio.",),
    ),
    "wav2vec2-bert": EncoderKind(
        "wav2vec2_bert",
        "Wav2Vec2Bert",
        "Wav2Vec2BertModel",
        "fbank",
        ("wav2vec2_bert.",),
    ),
    "whisper": EncoderKind(
        "whisper",
        "Whisper",
        "WhisperEncoder",
        "log_mel",
        ("model.encoder.", "encoder."),
    ),
}


def kind_of(config: Mapping[str, Any]) -> EncoderKind:
    """Return the kind that a configuration is of.

    Raises:
        ValueError: none of those known.
    """
    found = KINDS.get(str(config.get("model_type")))
    if found is None:
        known = ", ".join(KINDS)
        raise ValueError(f"model_type {config.get('model_type')!r} is not {known}")
    return found


def read_config(folder: str | Path) -> dict[str, Any]:
    """Return what an encoder is made of.

    Args:
        folder: in Hugging Face's form.

    Returns:
        `model_type` and the values that its class knows, plain ones; of an encoder that
        reads samples also `NORMALIZED`.

    Raises:
        UserError: a file is missing or garbled, it is of no known kind, or transformers
            is not installed.
    """
    folder = Path(folder)
    bundle, given, by_shape = _torchaudio_file(folder), {}, None
    if bundle is not None:
        given, by_shape = torchaudio_encoders.derive_config(bundle)
    elif not (folder / CONFIG).is_file():
        raise UserError(
            "no such file",
            file=folder / CONFIG,
            remedy="name a folder with an encoder in Hugging Face's form: "
            "config.json and model.safetensors, or with a file of torchaudio's",
        )
    if (folder / CONFIG).is_file():
        given |= read_object(folder / CONFIG, "no encoder's configuration")
    missing = {"conv_stride", "num_attention_heads"} - {*given}
    if bundle is not None and missing:
        raise UserError(
            f"lacks {' and '.join(sorted(missing))} of an encoder of its size",
            file=bundle,
            remedy=f"write a {CONFIG} with them beside it",
        )
    try:
        kind = kind_of(given)
    except ValueError as error:
        raise UserError(str(error), file=folder / CONFIG) from None
    known = {*_config_class(kind)().to_dict()} - _LEFT_OUT
    config = {k: v for k, v in given.items() if k in known and not k.startswith("_")}
    if given.get("quantization_config"):
        what = "its parameters are quantized"
        raise UserError(what, file=folder / CONFIG, remedy="fetch it as it was before")
    check_preprocessing(folder, kind.reads, given)
    if kind.reads == "samples":
        found = normalizes_samples(folder)
        if found is None and by_shape is None:
            raise UserError(
                "nothing in it says whether samples are normalized",
                file=folder,
                remedy="fetch its preprocessor_config.json too, or write one: "
                '{"do_normalize": true} or false',
            )
        config[NORMALIZED] = by_shape if found is None else found
    return config


def check_folder(folder: str | Path) -> None:
    """Refuse a folder that no encoder can be made of, as far as its parts show.

    Raises:
        UserError: a file is missing, garbled, or of something else. Not where the
            package transformers is missing: jobs may have it in their environments.
    """
    if find_spec("transformers") is not None:
        read_config(folder)
        _weight_files(Path(folder))


def licence_of(folder: str | Path) -> str:
    """Return the text of an encoder's licence; of README.md, where only that has it.

    A folder without one gives an empty text, and a warning.
    """
    folder = Path(folder)
    for pattern in _LICENCES:
        for path in sorted(folder.glob(pattern)):
            return _text(path)
    readme = folder / "README.md"
    for line in _text(readme).splitlines() if readme.is_file() else []:
        if line.startswith("license:"):
            return f"{line.partition(':')[2].strip()} (of the encoder's README.md)\n"
    log.warning("%s names no licence: packages will not either", folder)
    return ""


def digest_of_weights(folder: str | Path) -> str:
    """Return a key of the parameters of a folder."""
    digest = hashlib.sha256()
    for path in _weight_files(Path(folder)):
        digest.update(file_digest(path).encode())
    return digest.hexdigest()


def make_model(config: Mapping[str, Any]) -> Any:
    """Return an encoder with random parameters.

    Args:
        config: as `read_config` returns it; of a stranger's package, anything.

    Raises:
        ValueError: values that make no encoder.
        UserError: transformers is not installed.
    """
    kind = kind_of(config)
    values = {k: v for k, v in config.items() if k not in {NORMALIZED, "model_type"}}
    for name, value in values.items():
        if name in _LEFT_OUT or name.startswith("_"):
            raise ValueError(f"config has {name}, which is nothing of an encoder's own")
        _check_size(name, value)
    if values.get("add_adapter") or values.get("conv_pos_batch_norm"):
        raise ValueError("encoders with adapters or batch normalization are not known")
    config_class = _config_class(kind)
    module = _module(f"{kind.module}.modeling_{kind.module}")
    try:
        made = config_class(**values)
        model = getattr(module, kind.model)(made)
    except Exception as error:  # of values of a stranger's it may be any
        what = " ".join(str(error).split())
        raise ValueError(f"config makes no encoder: {what[:200]}") from error
    # masks are drawn by the layer, so that a training that continues has the same ones
    made.apply_spec_augment, made.mask_time_prob, made.mask_feature_prob = (
        True,
        0.0,
        0.0,
    )
    return model


def load_weights(model: nn.Module, kind: EncoderKind, folder: str | Path) -> None:
    """Read the parameters of an encoder.

    Raises:
        UserError: a file is missing or broken, or parameters are missing in it or of
            another size.
    """
    wanted = model.state_dict()
    with torch.no_grad():
        for path in _weight_files(Path(folder)):
            for name, value in _tensors(path, kind, wanted):
                if name not in wanted:
                    raise UserError(f"has {name} twice", file=path)
                if wanted[name].shape != value.shape:
                    what = f"{name} has the shape {list(value.shape)}, and config.json "
                    what += f"says {list(wanted[name].shape)}"
                    raise UserError(what, file=path)
                if value.dtype not in _NUMBERS and wanted[name].is_floating_point():
                    what = f"{name} is of type {value.dtype}: it is quantized"
                    raise UserError(what, file=path, remedy="fetch it as it was before")
                wanted.pop(name).copy_(value)
    left = [name for name in wanted if name != _MASK]
    if left:
        raise UserError(
            f"{len(left)} of the encoder's parameters are missing, {left[0]} first",
            file=Path(folder),
            remedy="fetch the whole model, of the kind that config.json names",
        )


def _tensors(
    path: Path, kind: EncoderKind, wanted: Mapping[str, Tensor]
) -> list[tuple[str, Tensor]]:
    """Return the parameters of a file that are wanted, by the encoder's own names.

    Raises:
        UserError: it is not readable; a file of torchaudio's has others.
    """
    if path.suffix != ".safetensors":
        found = {
            _own_name(name, kind): value
            for name, value in torchaudio_encoders.read_tensors(path).items()
        }
        others = [name for name in found if name not in wanted]
        if others:
            raise UserError(f"{others[0]} is not a parameter of the encoder", file=path)
        return [*found.items()]
    try:
        with safe_open(path, "pt") as file:
            names = {stored: _own_name(stored, kind) for stored in file.keys()}  # noqa: SIM118 - it is not a mapping
            return [(n, file.get_tensor(x)) for x, n in names.items() if n in wanted]
    except (OSError, SafetensorError) as error:
        what = " ".join(str(error).split())
        raise UserError(f"no safetensors: {what}", file=path) from error


def _own_name(stored: str, kind: EncoderKind) -> str:
    """Return the name within the encoder of a parameter in a file."""
    for prefix in kind.prefixes:
        if stored.startswith(prefix):
            stored = stored.removeprefix(prefix)
            break
    for old, new in (("weight_g", "0"), ("weight_v", "1")):
        if stored.endswith(f".conv.{old}"):  # as torch named them until 2.0
            stored = stored.removesuffix(old) + f"parametrizations.weight.original{new}"
    return stored


def _weight_files(folder: Path) -> list[Path]:
    """Return the files with parameters.

    Raises:
        UserError: none were found, or only such that could run code when they are read.
    """
    index = folder / f"{WEIGHTS}.index.json"
    bundle = _torchaudio_file(folder)
    if bundle is not None:
        return [bundle]
    names = {WEIGHTS}
    if index.is_file() and not (folder / WEIGHTS).is_file():  # as transformers does
        names = read_json(
            index, lambda x: {*x["weight_map"].values()}, "no index", "fetch it"
        )
    paths = sorted(folder / Path(str(name)).name for name in names)
    for path in paths:
        if not path.is_file():
            pickles = [*folder.glob("*.bin")]
            raise UserError(
                "no such file",
                file=path,
                remedy=f"{pickles[0].name} may hold code and is not read: save the "
                "model with save_pretrained, as safetensors"
                if pickles
                else "fetch the parameters too",
            )
        check_fetched(path)
    return paths


def _torchaudio_file(folder: Path) -> Path | None:
    """Return the file of torchaudio's that stands for parameters; None for none."""
    if (folder / WEIGHTS).exists() or (folder / f"{WEIGHTS}.index.json").exists():
        return None
    if (found := torchaudio_encoders.find_file(folder)) is not None:
        check_fetched(found)
    return found


def _check_size(name: str, value: Any) -> None:
    """Refuse numbers that would build for ever, wherever they are in a value."""
    if isinstance(value, list):
        for part in value:
            _check_size(name, part)
    elif isinstance(value, int | float):
        most = MOST_LAYERS if name.endswith("_layers") else _MOST
        if abs(value) > most:
            raise ValueError(f"config has {name} {value}, above {most}")


def _config_class(kind: EncoderKind) -> Any:
    """Return the class of a kind's configurations."""
    module = _module(f"{kind.module}.configuration_{kind.module}")
    return getattr(module, f"{kind.name}Config")


def _module(name: str) -> Any:
    """Import a module of transformers' models.

    Raises:
        UserError: it is not installed.
    """
    family = name.partition(".")[0]
    folder = "data2vec" if family == "data2vec_audio" else family
    try:
        return importlib.import_module(
            f"transformers.models.{folder}.{name.partition('.')[2]}"
        )
    except ImportError as error:
        raise UserError(
            f"layers of class pretrained need the package transformers ({error})",
            remedy="pip install 'latflow[encoders]'",
        ) from error


def _text(path: Path) -> str:
    """Return a text file."""
    with open_text(path) as stream:
        return stream.read().decode(errors="replace")


def described(folder: str | Path) -> dict[str, Any]:
    """Return what takes the place of `folder` in the description of a trained model."""
    return {"config": read_config(folder), "licence": licence_of(folder)}


def identity_of(folder: str | Path) -> dict[str, str]:
    """Return what a training depends on of an encoder's folder."""
    config = json.dumps(read_config(folder), sort_keys=True)
    return {
        "config": hashlib.sha256(config.encode()).hexdigest(),
        "weights": digest_of_weights(folder),
    }
