"""Contents of `package.json`, and digests of a package's files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from latflow.decode.options import (
    EndpointOptions,
    SearchOptions,
)
from latflow.errors import UserError
from latflow.features.cmvn_options import CmvnOptions, NoCmvn
from latflow.features.options import FrontEnd
from latflow.files import file_digest, reading
from latflow.options import Options, PositiveFloat, PositiveInt, read_options
from latflow.scoring.options import Decision

FORMAT = 2  # 1 knew no packages that only align
INFO = "package.json"
_AGAIN = "write the package again with latflow package"

_Share = Annotated[float, Field(ge=0, le=1)]
Kind = Literal["ce", "ctc", "lfmmi", "sequence", "gmm"]


class RescoringOptions(Options):
    """Rescoring of the lattices of finished segments."""

    lm: str
    """Name of the language model."""
    beam: PositiveFloat
    """Paths costing more than the best plus this are dropped (negated log, scaled)."""
    acoustic_scale: PositiveFloat
    """Factor of acoustic costs in that."""


class SystemFacts(Options):
    """Properties of a system that a package keeps as they are."""

    experiment: str
    """Name of the experiment that the system was trained in."""
    name: str
    """Name of the system."""
    kind: Kind
    """Training of the system."""
    front_end: FrontEnd
    """Computation of the features from samples."""
    cmvn: CmvnOptions = NoCmvn()
    """Normalization of the features before they are used. By speaker or utterance:
    with the statistics of a segment; globally: with those of the training set."""
    search: SearchOptions = SearchOptions()
    """The search."""
    decision: Decision = "best_path"
    """Choice of the words of a lattice."""
    rescoring: RescoringOptions | None = None
    """Rescoring with a second language model, if any."""
    endpoint: EndpointOptions = EndpointOptions()
    """Rules that end a segment."""


class PackageInfo(SystemFacts):
    """Contents of `package.json`."""

    format: PositiveInt
    """Version of the format."""
    sample_rate: PositiveInt
    """Sample rate of the features, Hz."""
    frame_shift: PositiveFloat
    """Time from one frame of the features to the next, seconds."""
    subsampling: PositiveInt
    """Frames of the features for one of the scores."""
    period: PositiveInt = 1
    """Frames of the features of which a chunk that is scored has a multiple, apart from
    the subsampling."""
    acoustic_scale: PositiveFloat
    """Factor of acoustic log-likelihoods in the search."""
    lattice_scale: PositiveFloat
    """Factor of acoustic costs in lattices."""
    prior_scale: float
    """Factor on the log priors of a network."""
    lmwt: PositiveFloat | None
    """Weight of the language model in lattices, chosen on dev; null where the package
    only aligns."""
    wip: float | None
    """Word insertion penalty, chosen on dev; likewise."""
    confidences: Annotated[
        tuple[tuple[_Share, _Share], ...], Field(max_length=100)
    ] = ()
    """Posteriors of words, and the confidences that stand for them, fitted on dev;
    lines are drawn between. Posteriors are given where there are none."""
    silence_phones: tuple[int, ...]
    """Phones of silence, for endpoints."""
    is_streaming: bool
    """Ability to recognize speech while it arrives."""
    why_not_streaming: str | None
    """Reason why not."""
    why_not_recognizing: str | None = None
    """Reason why the package only aligns; null where it recognizes speech."""
    licence: str
    """Terms of use of the data that the system was trained on."""
    versions: dict[str, str]
    """Versions of the software that wrote the package."""
    digests: dict[str, str]
    """SHA-256 of the package's files, by path."""

    def chunk_frames(self, seconds: float) -> int:
        """Return the frames of the features that are scored at a time."""
        unit = math.lcm(self.subsampling, self.period)
        return max(1, round(seconds / (self.frame_shift * unit))) * unit


def read_info(folder: str | Path) -> PackageInfo:
    """Read `package.json`.

    Raises:
        UserError: the folder is not a package, or one of a newer format.
    """
    path = Path(folder) / INFO
    remedy = "name a folder that latflow package has written"
    with reading(path, "not a model package", remedy):
        content = json.loads(path.read_text(encoding="utf-8"))
        version = int(content["format"])
    if version > FORMAT:
        raise UserError(
            f"a package of format {version}, newer than this latflow's ({FORMAT})",
            file=path,
            remedy="install a newer latflow, or package the system with this one",
        )
    try:
        return read_options(PackageInfo, content)
    except UserError as error:
        raise UserError(error.what, file=path, remedy=_AGAIN) from None


def check_recognizing(info: PackageInfo, folder: Path) -> None:
    """Refuse a package that only aligns.

    Raises:
        UserError: it does.
    """
    if info.lmwt is None or info.wip is None:
        raise UserError(
            f"recognizes nothing: {info.why_not_recognizing}",
            file=folder,
            remedy="align with it (latflow align --model), or package a system that "
            "does not adapt to speakers",
        )


def describe(info: PackageInfo, why_no_words: str | None) -> str:
    """Return the contents of `package.json` for a reader: a line a property.

    Args:
        info: the contents.
        why_no_words: see `latflow.serving.session_search.why_no_words`.
    """
    values = info.values()
    names = values.pop("digests")
    files = len(names)
    has_g2p = any(name.startswith("lang/g2p.model") for name in names)
    values["words of sessions"] = (
        f"none can be added: {why_no_words}"
        if why_no_words
        else "with their phones, or as the package's G2P model pronounces them"
        if has_g2p
        else "with their phones; no G2P model"
    )
    licence = values.pop("licence").strip()
    values["recognition"] = values.pop("why_not_recognizing") or "yes"
    values["streaming"] = values.pop("why_not_streaming") or "yes"
    points = len(values.pop("confidences"))
    values["confidences"] = f"calibrated, {points} points" if points else "posteriors"
    del values["is_streaming"]
    lines = _lines(values)
    lines += [("files", str(files)), ("licence", licence or "not stated")]
    return "".join(f"{name:<34} {value}\n" for name, value in lines)


def _lines(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested values as names and texts."""
    lines = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += _lines(value, f"{prefix}{name}.")
        else:
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            lines.append((prefix + name, text))
    return lines


def check_files(folder: Path, info: PackageInfo) -> None:
    """Refuse a package with files missing or changed.

    Raises:
        UserError: names the file.
    """
    for name, expected in info.digests.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise UserError(
                f"has a file outside itself: {name}", file=folder / INFO, remedy=_AGAIN
            )
        path = folder / name
        if not path.is_file():
            raise UserError("missing from the package", file=path, remedy=_AGAIN)
        if file_digest(path) != expected:
            raise UserError(
                "not the file that was packaged: its digest differs",
                file=path,
                remedy=_AGAIN,
            )
