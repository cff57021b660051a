"""Lhotse's feature extractors, and users' own subclasses of them, as front ends.

Lhotse registers extractors by name (`lhotse.features.base.FEATURE_EXTRACTORS`); each
has a dataclass of settings, a frame shift and a feature dimension of its own. Here they
are made of a recipe's options, checked before they are used, and called from several
threads.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import json
import math
import sys
import typing
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from lhotse.features.base import FEATURE_EXTRACTORS, FeatureExtractor
from lhotse.features.opensmile import OpenSmileExtractor
from lhotse.utils import compute_num_frames
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from latflow.errors import UserError
from latflow.features.dither import dither
from latflow.features.front_end import SAMPLE_SCALE
from latflow.features.options import FrameGeometry, LhotseFrontEndOptions
from latflow.user_code import load_object, refuse_untrusted

#: Names of our own extractors begin so.
OURS = "latflow-"
# Packages that Lhotse's extractors import when they are made or called.
_PACKAGES = {
    "fbank": "torchaudio",
    "kaldifeat-fbank": "kaldifeat",
    "kaldifeat-mfcc": "kaldifeat",
    "librosa-fbank": "librosa",
    "mfcc": "torchaudio",
    "opensmile-extractor": "opensmile",
    "s3prl-ssl": "s3prl",
    "spectrogram": "torchaudio",
    "whisper-fbank": "librosa",
}
# Those whose settings name code: modules and pickles of a hub, parts that write files.
_RUNNING = {"opensmile-extractor", "s3prl-ssl"}
_ANY_TYPE = ConfigDict(arbitrary_types_allowed=True)
_DOCS = "see docs/network_data.md on extractors"


class OpenSmile(OpenSmileExtractor):
    """Lhotse's extractor of openSMILE, of which two methods are mended.

    In Lhotse 1.33 `feature_dim` fails, and of features with more frames than there are
    frame shifts (`lld_de` of the set IS09) a frame or two are left.
    """

    def feature_dim(self, sampling_rate: int) -> int:  # noqa: ARG002 - Lhotse's form
        """Return the features of a frame."""
        return len(self.smileExtractor.feature_names)

    def _pad_frames(
        self, samples: np.ndarray, feats: np.ndarray, sampling_rate: int
    ) -> np.ndarray:
        """Return a frame for each frame shift: the last ones again, or cut off."""
        duration = samples.shape[1] / sampling_rate
        count = compute_num_frames(duration, self.frame_shift, sampling_rate)
        if len(feats) > count:
            return feats[:count]
        return super()._pad_frames(samples, feats, sampling_rate)


class ExtractionError(UserError):
    """An extractor has failed on the samples of an utterance."""


class LhotseExtractor:
    """One of Lhotse's extractors, or a class of the user's own.

    `extract_utterance` may run in several threads at once: each then has an instance of
    the extractor to itself.

    Args:
        options: the extractor and its settings.
        sample_rate: of the samples, Hz; None for that of the extractor.
        key: of the options in the recipe, for messages.

    Attributes:
        name: that Lhotse knows the features by.
        sample_rate: of the samples, Hz.
        frame_shift: time from one frame to the next, seconds.
        dim: features per frame of one channel, D.
        geometry: frames that a signal of this many samples should have, by Lhotse's
            count (one for each frame shift) or, with `snip_edges`, Kaldi's.

    Raises:
        UserError: there is no such extractor, a package is missing, settings are
            unknown or wrong, or the extractor cannot be made.
    """

    def __init__(
        self,
        options: LhotseFrontEndOptions,
        sample_rate: int | None,
        *,
        key: str = "features",
    ) -> None:
        self.options = options
        self._key = f"configuration {key}"
        self._kind = self._load_class()
        self._config = self._configured(key, sample_rate)
        extractor = self._made()
        self.name = str(extractor.name or options.extractor)
        self.sample_rate = self._rate_of(extractor, sample_rate)
        try:
            self.frame_shift = float(extractor.frame_shift)
            self.dim = int(extractor.feature_dim(self.sample_rate))
            self.geometry = self._geometry()
        except Exception as error:  # of the user's own code it may be any
            raise self._failure("cannot be used", error) from error
        self._idle = [extractor]

    def extract_utterance(self, wave: np.ndarray, key: int) -> np.ndarray:
        """Compute the features of one utterance, float32 [T, D] or [T, C D].

        Args:
            wave: float32 [L] or, of several channels, [C, L], in [-1, 1).
            key: with `dither_seed` it chooses the dither: the CRC-32 of the id.

        Raises:
            ExtractionError: the extractor fails, or gives NaN.
            UserError: it gives no matrix of `dim` columns.
        """
        options = self.options
        noisy = dither(wave, options.dither, options.dither_seed, key)
        if options.sample_range == "int16":
            noisy = noisy * np.float32(SAMPLE_SCALE)
        try:
            extractor = self._idle.pop()
        except IndexError:
            extractor = self._made()
        try:
            channels = [
                self._extract(extractor, one[np.newaxis])
                for one in np.atleast_2d(noisy)
            ]
        finally:
            self._idle.append(extractor)
        return channels[0] if wave.ndim == 1 else np.concatenate(channels, axis=1)

    def _extract(self, extractor: FeatureExtractor, samples: np.ndarray) -> np.ndarray:
        """Compute the features of one channel, [1, L]: float32 [T, D]."""
        try:
            with torch.no_grad():
                found = extractor.extract(samples, self.sample_rate)
                found = torch.as_tensor(found).cpu().numpy()
        except Exception as error:  # of the user's own code it may be any
            what = f"extractor {self.name}: {_told(error)}"
            raise ExtractionError(what, remedy="see its documentation") from error
        if found.ndim != 2 or found.shape[1] != self.dim:
            raise UserError(
                f"extractor {self.name} gives an array of shape {found.shape}, and "
                f"should give frames of {self.dim} features, its feature_dim",
                remedy=_DOCS,
            )
        if not np.isfinite(found).all():
            what = f"extractor {self.name}: features that are not numbers"
            raise ExtractionError(what, remedy="set dither above 0")
        return np.ascontiguousarray(found, np.float32)

    def instance(self) -> FeatureExtractor:
        """Return an instance of the extractor, for one thread."""
        return self._made()

    def check(self) -> None:
        """Refuse an extractor that does not work, by a second of noise.

        Raises:
            UserError: it fails, or gives features of another size than it says.
        """
        rng = np.random.default_rng(0)
        wave = rng.normal(0, 0.1, self.sample_rate).astype(np.float32)
        try:
            self.extract_utterance(wave, 0)
        except UserError as error:
            raise UserError(f"{self._key}.extractor: {error}") from error

    def check_lengths(self) -> None:
        """Refuse an extractor whose numbers of frames are not those of `geometry`.

        Raises:
            UserError: they are not, for signals of about a second; or it fails.
        """
        shift = self.geometry.shift
        rng = np.random.default_rng(0)
        for more in (0, shift // 2, shift - 1):
            num_samples = self.sample_rate + more
            wave = rng.normal(0, 0.1, num_samples).astype(np.float32)
            found = len(self.extract_utterance(wave, 0))
            if found != self.geometry.num_frames(num_samples):
                raise UserError(
                    f"extractor {self.name} gives {found} frames of {num_samples} "
                    f"samples, and by its frame shift there are "
                    f"{self.geometry.num_frames(num_samples)}",
                    remedy="store its features (`stored: true`), which takes any "
                    "number",
                )

    def _load_class(self) -> type[FeatureExtractor]:
        """Return the class that the options name."""
        name = self.options.extractor
        # Ours are registered too, and are types of their own.
        known = [name for name in FEATURE_EXTRACTORS if not name.startswith(OURS)]
        if self.options.is_own:
            try:
                found = load_object(name)
            except UserError:
                raise
            except Exception as error:  # of the user's own code it may be any
                raise self._failure("cannot be loaded", error) from error
        elif name not in known:
            raise UserError(
                f"{self._key}.extractor: Lhotse has no extractor {name!r}",
                remedy=f"{_nearest(name, known)} (or name a class of your own, as "
                "folder/file.py:Class)",
            )
        else:
            found = _MENDED.get(name, FEATURE_EXTRACTORS[name])
            if name in _RUNNING:
                refuse_untrusted(name)
            package = _PACKAGES.get(name)
            if package is not None and find_spec(package) is None:
                raise UserError(
                    f"{self._key}.extractor: {name} needs the Python package {package}",
                    remedy=f"install it (pip install {package}), or take another",
                )
            if package == "torchaudio":
                _load_torchaudio()
            if package == "s3prl":
                self._load_s3prl()
        if not (isinstance(found, type) and issubclass(found, FeatureExtractor)):
            raise UserError(
                f"{self._key}.extractor: {name} is no subclass of Lhotse's "
                "FeatureExtractor",
                remedy=_DOCS,
            )
        return found

    def _load_s3prl(self) -> None:
        """Import s3prl, which names parts of torchaudio that 2.9 has no more.

        Only its augmentation of training data calls them.
        """
        try:
            _load_torchaudio()
            torchaudio: Any = sys.modules["torchaudio"]
            if not hasattr(torchaudio, "set_audio_backend"):
                torchaudio.set_audio_backend = lambda *_: None
            if not hasattr(torchaudio, "sox_effects"):
                effects: Any = ModuleType("torchaudio.sox_effects")
                effects.apply_effects_tensor = effects.apply_effects_file = None
                torchaudio.sox_effects = sys.modules[effects.__name__] = effects
            import_module("s3prl.hub")
        except Exception as error:  # of all encoders that it has it may be any
            raise UserError(
                f"{self._key}.extractor: s3prl does not load here: {_told(error)}",
                remedy="a network that begins with a layer of class pretrained needs "
                "no s3prl",
            ) from error

    def _configured(self, key: str, sample_rate: int | None) -> Any:
        """Return the extractor's settings, the sample rate among them."""
        kind = self._kind.config_type
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            raise UserError(
                f"{self._key}.extractor: config_type of {self.options.extractor} is no "
                "dataclass",
                remedy=_DOCS,
            )
        values = dict(self.options.options)
        hints = _hints(kind)
        nested = values.get("frame_opts", {})
        for place, above in ((values, ""), (nested, "frame_opts.")):
            if isinstance(place, Mapping) and place.get("dither"):
                raise UserError(
                    f"{self._key}.options.{above}dither: its noise would depend on the "
                    "number of threads",
                    remedy=f"leave it out, and set {key}.dither",
                )
        if sample_rate is not None and "sampling_rate" in _field_names(kind):
            values = self._with_rate(values, sample_rate)
        elif (
            sample_rate is not None
            and isinstance(nested, Mapping)
            and "sampling_rate" in _field_names(hints.get("frame_opts"))
        ):
            values["frame_opts"] = self._with_rate(nested, sample_rate)
        return _config(kind, values, f"{key}.options")

    def _with_rate(self, values: Mapping[str, Any], sample_rate: int) -> dict[str, Any]:
        """Return settings with the sample rate; refuse another one among them."""
        given = values.get("sampling_rate")
        if given not in {None, sample_rate}:
            raise UserError(
                f"{self._key}.options: sampling_rate is {given}, and sample_rate of "
                f"the features {sample_rate}",
                remedy="leave the former out",
            )
        return {**values, "sampling_rate": sample_rate}

    def _made(self) -> FeatureExtractor:
        """Make an instance of the extractor."""
        try:
            return self._kind(copy.deepcopy(self._config))
        except Exception as error:  # of the user's own code it may be any
            raise self._failure("cannot be made", error) from error

    def _rate_of(self, extractor: FeatureExtractor, sample_rate: int | None) -> int:
        """Return the sample rate: that asked for, which must be the extractor's."""
        nested = getattr(self._config, "frame_opts", None)
        own = getattr(self._config, "sampling_rate", None)
        own = own or getattr(nested, "sampling_rate", None)
        own = own or getattr(extractor, "sampling_rate", None)
        if own is None and sample_rate is None:
            raise UserError(
                f"{self._key}.sample_rate: is not set, and {self.options.extractor} "
                "has none of its own",
                remedy="set it",
            )
        if own is not None and sample_rate not in {None, own}:
            raise UserError(
                f"{self._key}.sample_rate: {sample_rate} Hz, and "
                f"{self.options.extractor} is for {own} Hz",
                remedy=f"set it to {own}",
            )
        return int(own or sample_rate or 0)

    def _geometry(self) -> FrameGeometry:
        """Return how frames lie in the samples, as far as it can be known."""
        shift = round(self.frame_shift * self.sample_rate)
        if shift < 1 or not math.isfinite(self.frame_shift) or self.dim < 1:
            raise ValueError(f"frame shift {self.frame_shift} s, {self.dim} features")
        options = getattr(self._config, "frame_opts", self._config)
        length = getattr(options, "frame_length", None)
        if getattr(options, "snip_edges", False) and length:
            window = int(length * self.sample_rate)
            return FrameGeometry(window, shift, snip_edges=True)
        return FrameGeometry(shift, shift, snip_edges=False)

    def _failure(self, what: str, error: Exception) -> UserError:
        """Return the error of an extractor that cannot be had."""
        return UserError(
            f"{self._key}.extractor: {self.options.extractor} {what}: {_told(error)}",
            remedy=_DOCS,
        )


_MENDED: dict[str, type[FeatureExtractor]] = {"opensmile-extractor": OpenSmile}


def _load_torchaudio() -> None:
    """Import torchaudio, without its library where that is for another torch.

    PyPI's is for torch with CUDA. Features are computed in Python alone.
    """
    try:
        import_module("torchaudio")
    except OSError:
        for name in [name for name in sys.modules if name.startswith("torchaudio")]:
            del sys.modules[name]
        without = ModuleType("torchaudio._extension")
        vars(without).update(
            _IS_TORCHAUDIO_EXT_AVAILABLE=False,
            _IS_ALIGN_AVAILABLE=False,
            fail_if_no_align=lambda function: function,
        )
        sys.modules[without.__name__] = without
        import_module("torchaudio")


def adds_features(extractor: FeatureExtractor) -> bool:
    """Tell whether an extractor can add the features of two signals."""
    kind, base = type(extractor), FeatureExtractor
    return kind.mix is not base.mix and kind.compute_energy is not base.compute_energy


def _field_names(kind: Any) -> list[str]:
    """Return the fields of a dataclass that it is made of; none of other types."""
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return []
    return [field.name for field in dataclasses.fields(kind) if field.init]


def _hints(kind: type[Any]) -> dict[str, Any]:
    """Return the types of a dataclass' fields, as far as they are known."""
    try:
        return typing.get_type_hints(kind)
    except (NameError, AttributeError, SyntaxError, TypeError):
        return {}  # names that are not there: then no type is known


def _config(kind: type[Any], values: Mapping[str, Any], key: str) -> Any:
    """Make a dataclass of plain values, each checked against its field's type."""
    names, hints = _field_names(kind), _hints(kind)
    for name in values:
        if name not in names:
            what = f"unknown configuration key {key}.{name}"
            raise UserError(what, remedy=_nearest(name, names))
    given = {
        name: _checked(kind, hints.get(name, Any), name, value, key)
        for name, value in values.items()
    }
    try:
        return kind(**given)
    except Exception as error:  # of the user's own code it may be any
        raise UserError(f"configuration {key}: {_told(error)}", remedy=_DOCS) from error


def _checked(kind: type[Any], hint: Any, name: str, value: Any, key: str) -> Any:
    """Return the value of a field; refuse one of another type."""
    if _field_names(hint) and isinstance(value, Mapping):
        return _config(hint, value, f"{key}.{name}")
    if value is None and getattr(kind, name, ...) is None:  # `win_length: int = None`
        return None
    try:
        adapter = TypeAdapter(hint, config=_ANY_TYPE)
    except (PydanticSchemaGenerationError, PydanticUserError):
        return value  # a type that cannot be checked
    try:
        return adapter.validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        what = error.errors()[0]["msg"].removeprefix("Input ")
        raise UserError(
            f"configuration {key}.{name}: {what}, not {json.dumps(value, default=str)}",
            remedy=_DOCS,
        ) from None


def _nearest(name: str, known: list[str]) -> str:
    """Return a remedy for a name that is not known."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"


def _told(error: Exception) -> str:
    """Return an error of code that is not ours, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
