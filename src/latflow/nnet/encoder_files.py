"""Files beside an encoder's parameters: how what it reads was made.

Transformers writes `preprocessor_config.json`, and since its version 5 the same as
`feature_extractor` in `processor_config.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latflow.errors import UserError
from latflow.files import read_json

_FILE, _NESTED = "preprocessor_config.json", "processor_config.json"
# What the layer gives encoders, by what they read; another value is refused.
_OURS: dict[str, dict[str, Any]] = {
    "samples": {"feature_size": 1},
    "fbank": {"num_mel_bins": 80, "stride": 2},
    "log_mel": {"hop_length": 160, "n_fft": 400},
}


def read_object(path: Path, what: str) -> dict[str, Any]:
    """Read a file with a JSON object.

    Args:
        path: the file.
        what: it is to be, for messages.

    Raises:
        UserError: it is not readable, or was not fetched.
    """
    return read_json(path, dict, what, "fetch it again")


def read_preprocessing(folder: Path) -> dict[str, Any] | None:
    """Return how an encoder's input was computed; None if unknown.

    Raises:
        UserError: a file is garbled.
    """
    what = "no description of an encoder's features"
    if (folder / _NESTED).is_file():
        preprocessing = read_object(folder / _NESTED, what).get("feature_extractor")
        if isinstance(preprocessing, dict):
            return preprocessing
    if (folder / _FILE).is_file():
        return read_object(folder / _FILE, what)
    return None


def sample_rate_of(folder: str | Path) -> int | None:
    """Return the sample rate that an encoder is for, Hz; None where none is stated.

    Raises:
        UserError: a value is invalid, or a file is garbled.
    """
    rate = (read_preprocessing(Path(folder)) or {}).get("sampling_rate")
    if rate is not None and not isinstance(rate, int | float):
        raise UserError(f"sampling_rate is {rate!r}", file=Path(folder, _FILE))
    return rate if rate is None else int(rate)


def check_preprocessing(folder: Path, reads: str, config: Mapping[str, Any]) -> None:
    """Refuse an encoder that reads other numbers than the layer computes.

    Args:
        folder: of the encoder.
        reads: what it reads, see `latflow.nnet.encoders.EncoderKind`.
        config: its configuration.

    Raises:
        UserError: names the value.
    """
    expected = dict(_OURS[reads])
    if reads == "log_mel" and "num_mel_bins" in config:
        expected["feature_size"] = config["num_mel_bins"]
    given = read_preprocessing(folder) or {}
    for key, value in expected.items():
        if given.get(key, value) != value:
            what = f"{key} is {given[key]!r}, and only encoders with {value} are known"
            raise UserError(what, file=folder / _FILE)


def normalizes_samples(folder: Path) -> bool | None:
    """Tell if an encoder's samples have mean 0 and variance 1; None if nothing does.

    Raises:
        UserError: neither true nor false, or a file is garbled.
    """
    given = read_preprocessing(folder)
    if given is None:
        return None
    found = given.get("do_normalize", True)  # as transformers reads a file without it
    if not isinstance(found, bool):
        what = f"do_normalize is {found!r}, not true or false"
        raise UserError(what, file=folder / _FILE)
    return found
