"""Model repositories of the Triton Inference Server.

Its files:

    <repository>/<model>/config.pbtxt
    <repository>/<model>/1/model.py     see `latflow.serving.triton_model`
    <repository>/<model>/1/package/     a copy of the model package
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from latflow.errors import UserError
from latflow.files import atomic_directory
from latflow.serving.options import TritonOptions
from latflow.serving.package import Model
from latflow.serving.package_info import PackageInfo

log = logging.getLogger(__name__)
_MODEL = '''"""A packaged model of latflow's in Triton's Python backend."""

from pathlib import Path

from latflow.serving.triton_model import PackageModel


class TritonPythonModel(PackageModel):
    package = Path(__file__).with_name("package")
'''
#: Tensors of NVIDIA's Kaldi backend: (name, type, size; None: that of a message).
_INPUTS = (("WAV_DATA", "TYPE_FP32", None), ("WAV_DATA_DIM", "TYPE_INT32", 1))
_OUTPUTS = tuple((name, "TYPE_STRING", 1) for name in ("RAW_LATTICE", "TEXT", "CTM"))
_FLAGS = {"START": "SEQUENCE_START", "READY": "SEQUENCE_READY", "END": "SEQUENCE_END"}


class _Word(str):
    """A value of a protobuf that stands without quotes."""

    __slots__ = ()


def write_repository(
    packages: Mapping[str, str | Path], out: str | Path, *, options: TritonOptions
) -> None:
    """Write a repository of models.

    Args:
        packages: model package of each model, by its name.
        out: folder of the repository, replaced as a whole.
        options: of all models.

    Raises:
        UserError: a name or a package is faulty.
    """
    with atomic_directory(out) as folder:
        for name, package in packages.items():
            if not re.fullmatch(r"\w[\w.-]*", name):
                raise UserError(
                    f"{name!r} is not a name of a model",
                    remedy="use letters and digits",
                )
            model = Model.load(package, trust_code=options.trust_code)
            if not model.is_streaming:
                log.warning(
                    "%s cannot be streamed (%s): its words come with the end of a "
                    "sequence",
                    name,
                    model.why_not_streaming,
                )
            version = folder / name / "1"
            shutil.copytree(package, version / "package")
            (version / "model.py").write_text(_MODEL)
            config = model_config(name, model.info, options)
            (folder / name / "config.pbtxt").write_text(config)


def model_config(name: str, info: PackageInfo, options: TritonOptions) -> str:
    """Return the `config.pbtxt` of a model.

    Tensors and the sequence batcher's controls are those of NVIDIA's Kaldi backend.
    """
    controls = [
        {
            "name": flag,
            "control": [{"kind": _Word(f"CONTROL_{kind}"), "int32_false_true": [0, 1]}],
        }
        for flag, kind in _FLAGS.items()
    ]
    sequence = {"kind": _Word("CONTROL_SEQUENCE_CORRID"), "data_type": _UINT64}
    controls.append({"name": "CORRID", "control": [sequence]})
    return _text(
        {
            "name": name,
            "backend": "python",
            "max_batch_size": options.max_batch,
            "model_transaction_policy": {"decoupled": _Word("true")},
            "parameters": [
                _parameter("sample_rate", str(info.sample_rate)),
                _parameter("options", json.dumps(options.values())),
            ],
            "sequence_batching": {
                "max_sequence_idle_microseconds": round(1e6 * options.idle),
                "control_input": controls,
                "oldest": {
                    "max_candidate_sequences": options.max_sequences,
                    "preferred_batch_size": [options.max_batch],
                    "max_queue_delay_microseconds": round(1e6 * options.queue_delay),
                },
            },
            "input": [_tensor(*t, size=options.chunk) for t in _INPUTS],
            "output": [_tensor(*t, size=options.chunk) for t in _OUTPUTS],
            "instance_group": [_instances(options)],
        }
    )


_UINT64 = _Word("TYPE_UINT64")


def _parameter(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"string_value": value}}


def _tensor(name: str, kind: str, length: int | None, *, size: int) -> dict[str, Any]:
    return {"name": name, "data_type": _Word(kind), "dims": [length or size]}


def _instances(options: TritonOptions) -> dict[str, Any]:
    """Return where the model runs."""
    if options.gpus:
        device = {"kind": _Word("KIND_GPU"), "gpus": list(options.gpus)}
    else:
        device = {"kind": _Word("KIND_CPU")}
    return {"count": options.instances, **device}


def _text(fields: Mapping[str, Any]) -> str:
    """Return a protobuf message in its text form."""
    return "".join(f"{line}\n" for line in _lines(fields))


def _lines(fields: Mapping[str, Any]) -> Iterable[str]:
    """Yield the lines of a message."""
    for key, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, Mapping):
                yield f"{key} {{"
                yield from (f"  {line}" for line in _lines(value))
                yield "}"
            else:
                is_bare = isinstance(value, _Word | int)
                yield f"{key}: {value if is_bare else json.dumps(value)}"
