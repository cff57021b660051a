"""What lies in an acoustic model of Montreal Forced Aligner (MFA), and what it says.

A model is a zip file, or a folder, with Kaldi's `final.mdl` and `tree`, and mostly
`final.alimdl`, `lda.mat` and `phones.txt`; `meta.yaml` (1.x) or `meta.json` (2.x, 3.x)
says the rest. What it leaves out is what that version of MFA took: the defaults of
Kaldi's compute-mfcc-feats, with mel filters from 20 to 7800 Hz.

Of an archive only the files named here are read, whatever else it holds and wherever it
would put it.

Source: MFA 1.0 to 3.3 (`aligner/models.py`, `aligner/dictionary.py`,
`montreal_forced_aligner/models/classes.py`, `.../dictionary/mixins.py`,
`.../corpus/features.py`) and kalpy (`kalpy/models.py`).
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from latflow.errors import UserError
from latflow.features.cmvn_options import CmvnOptions, NoCmvn, SpeakerCmvn
from latflow.features.options import FrontEndOptions
from latflow.files import reading
from latflow.lang.directory import read_symbols
from latflow.lang.phones import POSITIONS
from latflow.lang.silence import SentenceSilence
from latflow.options import read_options
from latflow.zip_files import unpack_files

log = logging.getLogger(__name__)

MODEL, ALIGNMENT_MODEL, TREE, MATRIX = "final.mdl", "final.alimdl", "tree", "lda.mat"
PHONES = "phones.txt"
_META = ("meta.json", "meta.yaml")
_RULES = "rules.yaml"
# Most bytes of each file, unpacked; MFA's own models have 100 MB at most.
_SIZES = {
    **dict.fromkeys((MODEL, ALIGNMENT_MODEL, TREE, MATRIX), 1 << 30),
    **dict.fromkeys((PHONES, *_META, _RULES), 16 << 20),
}
_ROOT, _CACHE = "MFA_ROOT_DIR", "pretrained_models/acoustic"
_REMEDY = "download the model again; mfa model download acoustic NAME fetches one"
_OLD = "0.9.0"  # what MFA takes a model without a version for
_ALWAYS_ADAPTED = (_OLD, "1.0.0")  # which do not say that they are
_FRONT_END = {
    "use_energy": "use_energy", "frame_shift": "frame_shift_ms",
    "frame_length": "frame_length_ms", "snip_edges": "snip_edges",
    "low_frequency": "low_freq", "high_frequency": "high_freq", "dither": "dither",
    "num_coefficients": "num_ceps", "num_mel_bins": "num_mel_bins",
    "cepstral_lifter": "cepstral_lifter", "preemphasis_coefficient": "preemphasis",
}  # fmt: skip
_RENAMED = {
    "type": "feature_type", "deltas": "uses_deltas", "lda": "uses_splices",
    "fmllr": "uses_speaker_adaptation", "pitch": "use_pitch",
}  # fmt: skip
# What has no effect on features of cepstra, or is read elsewhere.
_OTHERS = (
    "adaptive_pitch_range", "allow_downsample", "allow_upsample", "delta_pitch",
    "energy_floor", "feature_type", "max_f0", "min_f0", "normalize_pitch",
    "penalty_factor", "sample_frequency", "splice_left_context",
    "splice_right_context", "use_mp", "uses_cmvn", "uses_deltas", "uses_splices",
    "uses_speaker_adaptation",
)  # fmt: skip
# Features whose other values ours have not, and that value; those of pitch are refused
# by the model's dimension.
_FIXED = {
    "feature_type": "mfcc", "uses_voiced": False, "raw_energy": True, "ivectors": False,
    "fmllr_update_type": "full", "silence_weight": 0.0,
}  # fmt: skip
_HARMLESS = ("raw_energy", "fmllr_update_type", "silence_weight")
_PITCH = ("use_pitch", "use_voicing", "use_delta_pitch")


@dataclass(frozen=True)
class MfaPhones:
    """The phones of a model.

    Attributes:
        ids: phone, with a position marker where there are some -> id; `<eps>` is 0.
        silence: names of those for silence and noise, without markers.
        optional_silence: the one that may stand between words.
        unknown: the one of unknown words.
        is_positional: whether phones have markers of their position in the word.
        groups: speech phones that share a tree root, without markers.
    """

    ids: dict[str, int]
    silence: tuple[str, ...]
    optional_silence: str
    unknown: str
    is_positional: bool
    groups: tuple[tuple[str, ...], ...]

    def variants(self, phone: str) -> list[str]:
        """Return the marked forms of a phone, and the plain one of silence."""
        plain = [phone] if phone in self.silence or not self.is_positional else []
        marked = [phone + mark for mark in POSITIONS] if self.is_positional else []
        return [name for name in (*plain, *marked) if name in self.ids]


@dataclass(frozen=True)
class MfaModel:
    """A model whose files lie in one folder.

    Attributes:
        folder: with the files.
        source: where it comes from, for messages.
        meta: what `meta.json` or `meta.yaml` says.
        is_old: whether it is of MFA 1.x or a beta of 2.0, which wrote YAML.
    """

    folder: Path
    source: Path
    meta: Mapping[str, Any]
    is_old: bool

    @classmethod
    def read(cls, folder: Path, source: Path) -> MfaModel:
        """Read what a model says of itself.

        Raises:
            UserError: that is garbled, or the model is not a GMM-HMM.
        """
        paths = [folder / name for name in _META if (folder / name).is_file()]
        meta = _read_meta(paths[0], source) if paths else {}
        model = cls(folder, source, meta, not paths or paths[0].suffix == ".yaml")
        if meta.get("architecture", "gmm-hmm") != "gmm-hmm":
            model.refuse(f"its architecture is {meta['architecture']}, not gmm-hmm")
        if (folder / _RULES).is_file():
            log.warning(
                "%s: its phonological rules (%s) are not applied: pronunciations are "
                "those of the dictionary",
                source,
                _RULES,
            )
        return model

    def refuse(self, what: str, remedy: str = _REMEDY) -> NoReturn:
        """Raise an error about the model."""
        raise UserError(what, file=self.source, remedy=remedy)

    @property
    def name(self) -> str:
        """Name of the model: that of its archive or folder."""
        return self.source.name.removesuffix(".zip").removesuffix(".am")

    @property
    def version(self) -> str:
        """Version of MFA, or of the model."""
        return str(self.meta.get("version", _OLD))

    # -- features -------------------------------------------------------------------

    @property
    def features(self) -> dict[str, Any]:
        """Options of features under the names of MFA 3; those of 1.0 have none."""
        section = self.meta.get("features", {})
        if section == "mfcc+deltas":
            return {}
        if not isinstance(section, Mapping):
            self.refuse(f"features of type {section!r:.40} are not computed here")
        named = {_RENAMED.get(str(key), str(key)): v for key, v in section.items()}
        return {key: value for key, value in named.items() if value is not None}

    def front_end(self) -> FrontEndOptions:
        """Return the computation of the cepstra.

        Raises:
            UserError: an option is out of range, or of other features.
        """
        given = self.features
        for key, value in _FIXED.items():
            found = given.get(key, value)
            if found != value and key not in _HARMLESS:
                self.refuse(
                    f"{key} is {found}, and features with that are not computed here",
                    "take a model with cepstra alone",
                )
            if found != value and (key != "raw_energy" or given.get("use_energy")):
                log.warning(
                    "%s: %s is %s there, and %s here", self.source, key, found, value
                )
        known = (*_FRONT_END, *_OTHERS, *_FIXED, *_PITCH)
        if strange := sorted(given.keys() - set(known)):
            log.warning(
                "%s: options of features that are not known here, passed over: %s",
                self.source,
                ", ".join(strange),
            )
        values = {ours: given[key] for key, ours in _FRONT_END.items() if key in given}
        try:
            return read_options(FrontEndOptions, {"high_freq": 7800.0, **values})
        except UserError as error:
            self.refuse(f"options of features: {error.what}")

    @property
    def sample_rate(self) -> int:
        """Sample rate of the features, Hz."""
        return self._whole("sample_frequency", 16000, least=1000, most=192000)

    @property
    def context(self) -> tuple[int, int]:
        """Frames before and after each that are spliced to it before LDA."""
        left, right = (
            self._whole(f"splice_{side}_context", 3, least=0, most=100)
            for side in ("left", "right")
        )
        return left, right

    @property
    def cmvn(self) -> CmvnOptions:
        """Normalization of the features."""
        return SpeakerCmvn() if self.features.get("uses_cmvn", True) else NoCmvn()

    @property
    def has_pitch(self) -> bool:
        """Whether it says that its features have pitch, or voicing."""
        return any(self.features.get(key) for key in _PITCH)

    @property
    def is_adapted(self) -> bool:
        """Whether it was trained on features adapted to each speaker."""
        says_so = self.features.get("uses_speaker_adaptation", False)
        return (
            bool(says_so)
            or self.version in _ALWAYS_ADAPTED
            or (self.folder / ALIGNMENT_MODEL).is_file()
        )

    def _whole(self, key: str, default: int, *, least: int, most: int) -> int:
        """Return a whole number of the features."""
        value = self.features.get(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or value != value // 1 or not least <= value <= most:
            self.refuse(f"{key} is {value!r:.40}, not from {least} to {most}")
        return int(value)

    # -- phones and silence -----------------------------------------------------------

    def silence(self) -> SentenceSilence:
        """Return how likely silence is between words and at the edges of sentences.

        Raises:
            UserError: a number is out of range.
        """
        overall = self._number("silence_probability", 0.5, most=1.0)
        return SentenceSilence(
            overall,
            self._number("initial_silence_probability", 0.5, most=1.0),
            self._number("final_silence_correction", 1.0),
            self._number("final_non_silence_correction", 1.0),
        )

    def _number(self, key: str, default: float, most: float = float("inf")) -> float:
        """Return a number of the model, above 0; the default where it has none."""
        value = self.meta.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(f"{key} is {value!r:.40}, not a number")
        if not 0.0 < value < most:
            self.refuse(f"{key} is {value}, not above 0 and below {most}")
        return float(value)

    def phones(self, real: tuple[int, ...], silence_like: set[int]) -> MfaPhones:
        """Return the phones, by `phones.txt`, `phone_mapping` or MFA's order of them.

        Args:
            real: ids of the phones that the model's topology has.
            silence_like: those of them that have the HMM of the first one, which is
                always one of silence.

        Raises:
            UserError: what the model says of its phones does not fit its topology.
        """
        speech = self._speech_names()
        named = self._silence_names()
        table = self._given_table()
        if table is None:
            table, named = self._ordered_table(speech, named, (real, silence_like))
        strange = set(real) ^ (set(table.values()) - {0})
        if strange:
            where = MODEL if min(strange) in real else "the names of phones"
            self.refuse(
                f"phone {min(strange)} is in {where} only",
                "take all files of a model from one training",
            )
        silence = tuple(p for p in dict.fromkeys(named) if p in table)
        spoken = table.keys() - {"<eps>", *silence}
        is_positional = not spoken & set(speech) and all(
            name.endswith(POSITIONS) for name in spoken
        )
        optional, unknown = self._special(silence, table)
        bases = {name[:-2] for name in spoken} if is_positional else spoken
        return MfaPhones(
            table,
            silence,
            optional,
            unknown,
            is_positional,
            self._groups(bases - set(silence)),
        )

    def _special(
        self, silence: tuple[str, ...], table: Mapping[str, int]
    ) -> tuple[str, str]:
        """Return the phones of optional silence and of unknown words."""
        between = "sp" if self.is_old and "sp" in table else "sil"
        optional = str(self.meta.get("optional_silence_phone", between))
        unknown = str(self.meta.get("oov_phone", "spn"))
        for phone in (optional, unknown):
            if phone not in silence:
                self.refuse(f"it has no phone {phone}, for silence or unknown words")
        return optional, unknown

    def _speech_names(self) -> list[str]:
        """Return the speech phones, as codes sort them."""
        phones = self.meta.get("phones", ())
        if isinstance(phones, str | bytes | Mapping) or not hasattr(phones, "__iter__"):
            self.refuse("its phones are not a list")
        names = sorted({str(phone) for phone in phones})
        if strange := [name for name in names if not name or name.split() != [name]]:
            self.refuse(f"{strange[0]!r:.40} is the name of a phone")
        return names

    def _silence_names(self) -> list[str]:
        """Return names that phones of silence can have."""
        keys = ("optional_silence_phone", "oov_phone", "other_noise_phone")
        names = [str(self.meta[key]) for key in keys if self.meta.get(key)]
        return [*names, "sil", "sp", "spn"]

    def _given_table(self) -> dict[str, int] | None:
        """Return the ids of the phones where the model has them."""
        path, mapping = self.folder / PHONES, self.meta.get("phone_mapping")
        if path.is_file():
            try:
                table = read_symbols(path)
            except UserError as error:
                self.refuse(f"{PHONES}: {error.what}")
        elif isinstance(mapping, Mapping) and mapping:
            table = {str(phone): number for phone, number in mapping.items()}
            if not all(type(n) is int and n >= 0 for n in table.values()):
                self.refuse("phone_mapping has something else than numbers")
        else:
            return None
        return {"<eps>": 0} | {p: n for p, n in table.items() if n and p[0] != "#"}

    def _ordered_table(
        self,
        speech: list[str],
        named: list[str],
        hmms: tuple[tuple[int, ...], set[int]],
    ) -> tuple[dict[str, int], list[str]]:
        """Return ids as MFA gives them, and the phones of silence.

        Silence comes first, each part is sorted. Versions differ in the phones of
        silence and in whether phones have markers of position; the number of the phones
        and their HMMs show which.
        """
        real, silence_like = hmms
        own = named[: -len(("sil", "sp", "spn"))]
        for silence in (
            own,
            ["sil", "sp", "spn"],
            ["sil", "spn"],
            ["noi", "sil", "spn"],
        ):
            for marks in (POSITIONS, ()):
                quiet = sorted(set(silence))
                spoken = [phone for phone in speech if phone not in quiet]
                names = [q + mark for q in quiet for mark in ("", *marks)]
                first = len(names)
                names += [p + mark for p in spoken for mark in marks or ("",)]
                is_fit = set(range(1, first + 1)) == silence_like
                if quiet and len(names) == len(real) and is_fit:
                    ids = {name: number for number, name in enumerate(names, start=1)}
                    return {"<eps>": 0, **ids}, quiet
        return self.refuse(
            f"{len(real)} phones in {MODEL}, which its {len(speech)} phones and those "
            f"of silence do not make, and no {PHONES} has their ids"
        )

    def _groups(self, speech: set[str]) -> tuple[tuple[str, ...], ...]:
        """Return the groups of speech phones; those that are in none are alone."""
        groups = self.meta.get("phone_groups")
        left, found = set(speech), []
        for group in groups.values() if isinstance(groups, Mapping) else ():
            if isinstance(group, list | tuple | set):
                names = [p for p in dict.fromkeys(map(str, group)) if p in left]
                left -= set(names)
                found.append(tuple(names))
        return (*filter(None, found), *((phone,) for phone in sorted(left)))


def _read_meta(path: Path, source: Path) -> dict[str, Any]:
    """Read `meta.json` or `meta.yaml`."""
    with reading(source, f"{path.name} is garbled", _REMEDY):
        text = path.read_text(encoding="utf-8-sig")
        try:
            meta = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError) as error:
            raise ValueError(" ".join(str(error).split())[:200]) from None
        if not isinstance(meta, dict):
            raise ValueError("it is not a mapping")
        return meta


# -- files -----------------------------------------------------------------------------


@contextmanager
def open_model(model: str | Path) -> Iterator[MfaModel]:
    """Yield a model; the files of an archive are unpacked for as long as it is open.

    Args:
        model: archive or folder; or the name of a model in MFA's folder of downloads,
            below `$MFA_ROOT_DIR` or `~/Documents/MFA`.

    Raises:
        UserError: none was found, it is damaged, or it lacks a file.
    """
    source = _find(model)
    if source.is_dir():
        yield MfaModel.read(_folder_of_model(source), source)
        return
    with tempfile.TemporaryDirectory(prefix="latflow.mfa.") as folder:
        unpack_files(source, Path(folder), _SIZES, (MODEL, TREE), _REMEDY)
        yield MfaModel.read(Path(folder), source)


def _find(model: str | Path) -> Path:
    """Return the archive or folder of a model."""
    path = Path(model)
    if path.exists():
        return path
    root = os.environ.get(_ROOT)
    cache = (Path(root) if root else Path.home() / "Documents/MFA") / _CACHE
    if path.name == str(model):
        for suffix in (".zip", ".am", ""):
            if (found := cache / f"{model}{suffix}").exists():
                return found
    raise UserError(
        "no such model",
        file=model,
        remedy=f"name a zip file, a folder, or a model in {cache}",
    )


def _folder_of_model(top: Path) -> Path:
    """Return the folder with the files: the one given, or the only one in it."""
    within = [path for path in sorted(top.iterdir()) if path.is_dir()]
    found = [path for path in (top, *within) if (path / MODEL).is_file()]
    if not found or (found[0] != top and len(found) > 1):
        what = f"{len(found)} folders with" if found else "no"
        raise UserError(f"{what} {MODEL}", file=top, remedy=_REMEDY)
    for name in (MODEL, TREE):
        if not (found[0] / name).is_file():
            raise UserError(f"no {name}", file=top, remedy=_REMEDY)
    return found[0]
