"""How features are made, as Kaldi's directories of systems say it.

A directory `exp/<system>` keeps the options of the programs that make its features:

    cmvn_opts    apply-cmvn      --norm-means=true --norm-vars=false
    delta_opts   add-deltas      --delta-order=2 --delta-window=2
    splice_opts  splice-feats    --left-context=4 --right-context=4
    final.mat    transform-feats, a matrix after splicing

With `final.mat` the features are CMVN, splicing, the matrix; without it CMVN and
deltas. A file that is not there stands for the defaults, which are above.

Public: `read_transform`, `write_transform`, `check_cmvn`, `write_cmvn`.

Source: Kaldi `steps/decode.sh`, `steps/align_si.sh` (`feat_type`),
`featbin/{apply-cmvn,add-deltas,splice-feats}.cc`.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from latflow.errors import UserError
from latflow.features.transform import (
    Chain,
    Deltas,
    FeatureTransform,
    Identity,
    Linear,
    Splice,
)
from latflow.files import atomic_output, read_lines
from latflow.kaldi_io import KaldiReader, KaldiWriter

log = logging.getLogger(__name__)

CMVN, DELTA, SPLICE = "cmvn_opts", "delta_opts", "splice_opts"
MATRIX = "final.mat"
_BOOLEANS = {"true": True, "false": False, "t": True, "f": False, "": True}
_BY_STATISTICS = ("speaker", "utterance", "global")  # apply-cmvn can do all of them


def read_transform(exp_dir: str | Path) -> FeatureTransform:
    """The transform of a directory: of normalised frames to what its model takes.

    Raises:
        UserError: an option is unknown or garbled, or `final.mat` is.
    """
    folder = Path(exp_dir)
    if not (folder / MATRIX).is_file():
        known = {"delta-order": 2, "delta-window": 2, "truncate": 0}
        deltas = _read_options(folder / DELTA, known, int)
        _refuse_others(folder / DELTA, deltas, {"truncate": 0})
        return Deltas(deltas["delta-order"], deltas["delta-window"])
    splice = _read_options(
        folder / SPLICE, {"left-context": 4, "right-context": 4}, int
    )
    with KaldiReader.open(folder / MATRIX) as reader:
        matrix = reader.float_matrix()
    return Chain(
        [Splice(splice["left-context"], splice["right-context"]), Linear(matrix)]
    )


def write_transform(
    folder: str | Path, transform: FeatureTransform, *, dim_out: int
) -> None:
    """Write `delta_opts`, or `splice_opts` and `final.mat`.

    Args:
        folder: where they go.
        transform: deltas; or a matrix, splicing, or both.
        dim_out: dimension after the transform; splicing alone is written with the
            identity for its matrix.

    Raises:
        UserError: Kaldi's scripts have no options for this transform.
    """
    folder = Path(folder)
    match _parts(transform):
        case [] | [Deltas()] as parts:
            deltas = parts[0] if parts else Deltas(0)
            assert isinstance(deltas, Deltas)
            line = f"--delta-order={deltas.order} --delta-window={deltas.window}"
            _write_line(folder / DELTA, line)
        case [Splice() as splice, *rest] if _is_matrix(rest):
            line = f"--left-context={splice.left} --right-context={splice.right}"
            _write_line(folder / SPLICE, line)
            identity = np.eye(dim_out, dtype=np.float32)
            _write_matrix(folder, rest[0] if rest else Linear(identity))
        case [Linear() as linear]:
            _write_line(folder / SPLICE, "--left-context=0 --right-context=0")
            _write_matrix(folder, linear)
        case _:
            raise UserError(
                f"features made by {transform.to_config()['type']} of several steps "
                "have no form in Kaldi's scripts",
                remedy="use deltas, or splicing with one matrix",
            )


def check_cmvn(exp_dir: str | Path, cmvn: Mapping[str, Any]) -> None:
    """Refuse features that are not normalised as those of a system were.

    What the statistics are taken of (speaker, utterance, all) is not told by
    `cmvn_opts` but by `utt2spk`, and left to the user.

    Args:
        exp_dir: Kaldi's directory of the system.
        cmvn: key `cmvn` of the section `features` of the configuration.

    Raises:
        UserError: they differ in means or variances, or `cmvn_opts` is garbled or has
            an option that latflow does not know.
    """
    path = Path(exp_dir) / CMVN
    known = {"norm-means": True, "norm-vars": False, "reverse": False}
    found = _read_options(path, known, _boolean)
    _refuse_others(path, found, {"reverse": False})
    theirs = found["norm-means"], found["norm-vars"]
    if cmvn["type"] == "none":
        ours = False, False
    elif cmvn["type"] in _BY_STATISTICS:
        ours = True, bool(cmvn["norm_vars"])
    else:
        raise UserError(
            f"configuration features.cmvn.type is {cmvn['type']}, but the system was "
            "trained on features normalised by apply-cmvn",
            file=path,
            remedy="set features.cmvn.type: speaker",
        )
    if theirs != ours:
        wanted = "none" if theirs == (False, False) else "speaker"
        norm_vars = str(theirs[1]).lower()
        raise UserError(
            f"the system has {_describe(*theirs)}, but features.cmvn of the "
            f"configuration gives {_describe(*ours)}",
            file=path,
            remedy=f"set features.cmvn: {{type: {wanted}"
            + (f", norm_vars: {norm_vars}}}" if wanted == "speaker" else "}"),
        )


def write_cmvn(folder: str | Path, cmvn: Mapping[str, Any]) -> None:
    """Write `cmvn_opts`: the options of apply-cmvn that do what a configuration says.

    Args:
        folder: where it goes.
        cmvn: key `cmvn` of the section `features` of the configuration. For `sliding`
            apply-cmvn is told to do nothing: such features come from
            apply-cmvn-sliding, which no script for GMMs calls.
    """
    is_applied = cmvn["type"] in _BY_STATISTICS
    if cmvn["type"] == "sliding":
        log.warning(
            "Kaldi's scripts must be given features that went through "
            "apply-cmvn-sliding (latflow export-kaldi features writes such)"
        )
    norm_means = str(is_applied).lower()
    norm_vars = str(is_applied and bool(cmvn["norm_vars"])).lower()
    _write_line(
        Path(folder) / CMVN, f"--norm-means={norm_means} --norm-vars={norm_vars}"
    )


def _read_options(
    path: Path, defaults: Mapping[str, Any], parse: Callable[[str], Any]
) -> dict[str, Any]:
    """Options `--name=value` of a file, completed by the defaults."""
    values = dict(defaults)
    if not path.is_file():
        return values
    for word in shlex.split(" ".join(line for _, line in read_lines(path))):
        name, _, text = word.removeprefix("--").replace("_", "-").partition("=")
        if not word.startswith("--") or name not in defaults:
            raise UserError(
                f"{word} is an option that latflow does not know here",
                file=path,
                remedy=f"known are --{', --'.join(defaults)}",
            )
        try:
            values[name] = parse(text)
        except (ValueError, KeyError):
            raise UserError(
                f"{word} has no proper value", file=path, remedy="mend the file"
            ) from None
    return values


def _boolean(text: str) -> bool:
    """The truth value that Kaldi's programs read of an option."""
    return _BOOLEANS[text.lower()]


def _refuse_others(
    path: Path, found: Mapping[str, Any], only: Mapping[str, Any]
) -> None:
    """Refuse options that Kaldi has and latflow has not, unless they do nothing."""
    for name, value in only.items():
        if found[name] != value:
            raise UserError(
                f"--{name}={found[name]} is something that latflow's features cannot "
                "do",
                file=path,
                remedy="train the system again in Kaldi without this option",
            )


def _describe(norm_means: bool, norm_vars: bool) -> str:  # noqa: FBT001 - both named
    """Normalisation in words."""
    names = [
        name for name, on in (("means", norm_means), ("variances", norm_vars)) if on
    ]
    return f"normalised {' and '.join(names)}" if names else "nothing normalised"


def _parts(transform: FeatureTransform) -> list[FeatureTransform]:
    """The steps of a transform, those that do nothing left out."""
    if isinstance(transform, Chain):
        return [step for part in transform.transforms for step in _parts(part)]
    return [] if isinstance(transform, Identity) else [transform]


def _is_matrix(steps: list[FeatureTransform]) -> bool:
    """Whether there is nothing but, at most, a matrix."""
    return not steps or (len(steps) == 1 and isinstance(steps[0], Linear))


def _write_matrix(folder: Path, linear: FeatureTransform) -> None:
    assert isinstance(linear, Linear)
    with KaldiWriter.open(folder / MATRIX) as writer:
        writer.write_float_matrix(linear.matrix)


def _write_line(path: Path, line: str) -> None:
    with atomic_output(path) as temporary:
        temporary.write_text(f"{line}\n", encoding="utf-8")
