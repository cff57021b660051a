"""Settings of a feature extractor in a file, as Lhotse writes and reads them.

`feature_extractor.yaml` has Lhotse's name of the extractor as `feature_type`, and the
fields of its configuration. Ours are `latflow-mfcc`, `latflow-fbank` and
`latflow-waveform`; a class of the user's is named by its location.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from lhotse.features.base import FEATURE_EXTRACTORS

from latflow.errors import UserError
from latflow.features.lhotse_extractors import OURS
from latflow.features.options import (
    Extraction,
    ExtractionOptions,
    FrontEndOptions,
    LhotseExtractionOptions,
)
from latflow.files import write_text
from latflow.options import read_options
from latflow.yaml_files import read_yaml

EXTRACTOR_FILE = "feature_extractor.yaml"
# Settings beside those of the extractor, which Lhotse's file has no place for.
_BESIDE = ("dither", "dither_seed", "sample_range", "channels", "single_channel")


def write_extractor(
    path: str | Path, extraction: Mapping[str, Any], sample_rate: int
) -> None:
    """Write the settings that features were computed by.

    Args:
        path: file to write.
        extraction: plain values of `Extraction`, as a store of features has them.
        sample_rate: that the features were computed at, Hz.
    """
    comment = ""
    if extraction["type"] == "lhotse":
        name = extraction["extractor"]
        values = _with_rate(name, extraction["options"], sample_rate)
        beside = {key: extraction[key] for key in _BESIDE if extraction.get(key)}
        comment = f"# Not in Lhotse's form: {beside}\n" if beside else ""
    else:
        name = f"{OURS}{extraction['type']}"
        options = {k: v for k, v in extraction.items() if k in _OWN_FIELDS}
        values = {"sampling_rate": sample_rate, "options": options}
    text = yaml.safe_dump({"feature_type": name, **values}, sort_keys=False)
    write_text(path, comment + text)


_OWN_FIELDS = FrontEndOptions.model_fields.keys()


def _with_rate(
    name: str, values: Mapping[str, Any], sample_rate: int
) -> dict[str, Any]:
    """Return settings with the sample rate, where an extractor has a field for it."""
    kind = getattr(FEATURE_EXTRACTORS.get(name), "config_type", None)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return dict(values)
    names = [field.name for field in dataclasses.fields(kind)]
    rate = {"sampling_rate": sample_rate}
    if "frame_opts" in names:  # kaldifeat's
        return {**values, "frame_opts": {**values.get("frame_opts", {}), **rate}}
    return {**values, **rate} if "sampling_rate" in names else dict(values)


def read_extractor(path: str | Path) -> Extraction:
    """Read the settings of an extractor, of ours, Lhotse's or the user's.

    Samples are as Lhotse gives them to its extractors: from -1 to 1, without dither.

    Raises:
        UserError: no such file, or no settings of an extractor that is known.
    """
    values = read_yaml(Path(path))
    if not isinstance(values, dict) or not isinstance(values.get("feature_type"), str):
        raise UserError(
            "does not name an extractor",
            file=path,
            remedy="write one: lhotse feat write-default-config --feature-type fbank "
            "FILE, or latflow export-features",
        )
    name = values.pop("feature_type")
    rate = {"sample_rate": values.pop("sampling_rate", None)}
    if not name.startswith(OURS):
        given = {"extractor": name, "options": values, "dither": 0.0, **rate}
        return read_options(LhotseExtractionOptions, given, str(path))
    options = values.pop("options", {})
    if not isinstance(options, dict):
        raise UserError("options: not a mapping", file=path, remedy="fix it")
    given = {**options, "type": name.removeprefix(OURS), **values, **rate}
    return read_options(ExtractionOptions, given, str(path))
