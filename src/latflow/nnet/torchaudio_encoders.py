"""Pretrained encoders as torchaudio's pipelines store them: a state dict alone.

A folder has one file, `*.pt` or `*.pth`, with the parameters of a model of
`torchaudio.models` (wav2vec 2.0, HuBERT, XLS-R, WavLM), perhaps with a head for
letters or for pretraining. What the encoder is made of follows from their shapes but
for the numbers of heads and the steps of the convolutions, which are the published
models', or what a `config.json` beside says.

Files are read by torch's loader of tensors alone: nothing in them is run.

Source: torchaudio `models/wav2vec2/model.py` (names), `pipelines/_wav2vec2` (which of
the published models normalize samples and have norms before blocks).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from latflow.errors import UserError

_ENDINGS = (".pt", ".pth")
# Parameters beside the encoder's: a head for letters, and what pretraining needs.
_HEADS = ("aux.", "logit_generator.", "mask_generator.")
_OUTER = "wav2vec2."  # of a model that was being pretrained
_STRIDES = (5, 2, 2, 2, 2, 2, 2)
_HEADS_OF = {768: 12, 1024: 16, 1280: 16, 1920: 16}  # by size
_TOGETHER = re.compile(r"(.*\.attention)\.attention\.in_proj_(weight|bias)")
_CONVOLUTION = re.compile(r"feature_extractor\.conv_layers\.\d+\.conv\.weight")
_BLOCK = re.compile(r"encoder\.layers\.(\d+)\.")
_REMEDY = "fetch the file of one of torchaudio's pipelines"


def find_file(folder: Path) -> Path | None:
    """Return the file of a folder that torchaudio's form may be in; None for none.

    Raises:
        UserError: there are several.
    """
    found = sorted(path for end in _ENDINGS for path in folder.glob(f"*{end}"))
    if len(found) > 1:
        raise UserError(
            f"has {found[0].name} and {found[1].name}",
            file=folder,
            remedy="give each encoder its own folder",
        )
    return found[0] if found else None


def read_tensors(path: Path, *, shapes_only: bool = False) -> dict[str, Tensor]:
    """Return the parameters of an encoder, by the names that transformers has.

    Args:
        path: the file.
        shapes_only: read no numbers: tensors on torch's device `meta`.

    Raises:
        UserError: it is not readable without running code in it, or no encoder of
            torchaudio's.
    """
    where = "meta" if shapes_only else "cpu"
    try:
        stored = torch.load(path, map_location=where, weights_only=True)
    except Exception as error:  # of broken files it may raise anything
        raise UserError(_why(path), file=path, remedy=_REMEDY) from error
    if not isinstance(stored, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor)
        for name, value in stored.items()
    ):
        raise UserError("no state dict: not all are tensors", file=path, remedy=_REMEDY)
    found: dict[str, Tensor] = {}
    for name, value in stored.items():
        if not value.is_floating_point() or value.layout != torch.strided:
            raise UserError(f"{name} is not a tensor of real numbers", file=path)
        found |= _ours(name, value)
    if not any(map(_CONVOLUTION.fullmatch, found)):
        first = next(iter(stored), "no parameters")
        what = f"no encoder of torchaudio's: it has {first}, and no feature_extractor"
        raise UserError(what, file=path, remedy=_REMEDY)
    return found


def derive_config(path: Path) -> tuple[dict[str, Any], bool]:
    """Return what an encoder is made of, and whether its samples are normalized.

    Returns:
        Values as config.json has them. Those that no shape determines are left out
        where the encoder has none of the published sizes.

    Raises:
        UserError: see `read_tensors`; parameters of no encoder.
    """
    shapes = {k: v.shape for k, v in read_tensors(path, shapes_only=True).items()}
    try:
        return _config(shapes)
    except (KeyError, IndexError, ZeroDivisionError, ValueError) as error:
        what = f"no encoder of torchaudio's: its parameters do not fit ({error})"
        raise UserError(what, file=path, remedy=_REMEDY) from error


def _config(shapes: Mapping[str, torch.Size]) -> tuple[dict[str, Any], bool]:
    """Return what `derive_config` does, from shapes by transformers' names."""
    extractor = "feature_extractor.conv_layers"
    count = sum(1 for name in shapes if _CONVOLUTION.fullmatch(name))
    convolutions = [shapes[f"{extractor}.{i}.conv.weight"] for i in range(count)]
    blocks = {int(m[1]) for name in shapes if (m := _BLOCK.match(name))}
    size = shapes["encoder.layer_norm.weight"][0]
    inner = shapes["encoder.layers.0.feed_forward.intermediate_dense.weight"][0]
    (positions, *_) = [v for k, v in shapes.items() if k in _POSITIONS]
    # of the published ones, those with this norm have it before the blocks' parts too
    is_large = count > 1 and f"{extractor}.1.layer_norm.weight" in shapes
    config: dict[str, Any] = {
        "model_type": "wav2vec2",
        "conv_dim": [x[0] for x in convolutions],
        "conv_kernel": [x[2] for x in convolutions],
        "conv_bias": f"{extractor}.0.conv.bias" in shapes,
        "num_feat_extract_layers": count,
        "feat_extract_norm": "layer" if is_large else "group",
        "do_stable_layer_norm": is_large,
        "hidden_size": size,
        "intermediate_size": inner,
        "num_hidden_layers": max(blocks) + 1,
        "num_conv_pos_embeddings": positions[2],
        "num_conv_pos_embedding_groups": size // positions[1],
    }
    if count == len(_STRIDES):
        config["conv_stride"] = [*_STRIDES]
    heads = _HEADS_OF.get(size)
    relative = shapes.get("encoder.layers.0.attention.rel_attn_embed.weight")
    if relative is not None:
        config |= {"model_type": "wavlm", "num_buckets": relative[0]}
        heads = relative[1]
    if heads is not None:
        config["num_attention_heads"] = heads
    return config, is_large


_POSITIONS = (
    "encoder.pos_conv_embed.conv.weight_v",
    "encoder.pos_conv_embed.conv.parametrizations.weight.original1",
)


def _ours(name: str, value: Tensor) -> dict[str, Tensor]:
    """Return a parameter by transformers' names; nothing of a head's."""
    name = name.removeprefix(_OUTER)
    if name == "mask_generator.mask_embedding":
        return {"masked_spec_embed": value}
    if name.startswith(_HEADS):
        return {}
    for old, new in (("encoder.transformer.", "encoder."), ("encoder.", "")):
        if name.startswith(old):
            name = new + name.removeprefix(old)
            break
    together = _TOGETHER.fullmatch(name)
    if together is not None:  # WavLM's: queries, keys and values in one
        parts = zip("qkv", value.chunk(3), strict=True)
        return {f"{together[1]}.{x}_proj.{together[2]}": part for x, part in parts}
    return {
        name.replace(".attention.attention.out_proj.", ".attention.out_proj."): value
    }


def _why(path: Path) -> str:
    """Return in a line why a file was not read."""
    try:
        with path.open("rb") as stream:
            head = stream.read(9)
    except OSError as error:
        return str(error.strerror)
    if head[8:9] == b"{":
        return "looks like safetensors: name it model.safetensors, with its config.json"
    if head[:4] == b"PK\3\4" or head[:1] == b"\x80":
        return "is damaged, or may hold code and is not read: no state dict of tensors"
    return "is not a file of torch's"
