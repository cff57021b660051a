"""MFA's YAML files of dictionaries by speaker, read as one lexicon.

Source: Montreal Forced Aligner, "Per-speaker pronunciation dictionaries".
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from latflow.corpus.dictionaries import is_marked, named_word
from latflow.corpus.ids import plain_id
from latflow.errors import UserError
from latflow.files import reading
from latflow.lang.lexicon import Lexicon, Pronunciation, read_lexicon
from latflow.lang.options import LangOptions
from latflow.lang.special_words import is_special
from latflow.yaml_files import read_yaml

SUFFIXES = (".yaml", ".yml")
_DEFAULT = "default"
_ROOT = "MFA_ROOT_DIR"
_CACHE = "pretrained_models/dictionary"


@dataclass(frozen=True)
class SpeakerDictionaries:
    """The dictionaries that a YAML file names.

    Attributes:
        default: of all speakers that are not named.
        others: further dictionaries by name.
        speakers: name of the dictionary of each speaker, by id, who has one of the
            others.
    """

    default: Path
    others: dict[str, Path]
    speakers: dict[str, str]

    @property
    def files(self) -> list[Path]:
        """All dictionaries."""
        return [self.default, *self.others.values()]

    @classmethod
    def find(cls, path: str | Path) -> SpeakerDictionaries:
        """Find the dictionaries that a path names: its own, or those of a YAML file.

        Args:
            path: a lexicon, or a YAML file `SPEAKER: DICTIONARY` with `default`. A
                dictionary is a path, below the folder of the YAML file unless it is
                absolute, or the name of one that MFA has downloaded.

        Raises:
            UserError: the YAML file is garbled, has no `default`, names a speaker
                twice, or a dictionary that is not there.
        """
        file = Path(path)
        if file.suffix not in SUFFIXES:
            return cls(file, {}, {})
        found = {speaker: _of_name(name, file) for speaker, name in _read(file).items()}
        default = found.pop(_DEFAULT)
        names: dict[Path, str] = {}
        for dictionary in dict.fromkeys(found.values()):
            if dictionary != default:
                names[dictionary] = _name_of(dictionary, set(names.values()))
        return cls(
            default,
            {name: dictionary for dictionary, name in names.items()},
            {who: names[own] for who, own in found.items() if own in names},
        )

    def of(self, speaker: str | None) -> Path:
        """Return the dictionary of a speaker."""
        name = self.speakers.get(plain_id(speaker or ""))
        return self.default if name is None else self.others[name]


def read_dictionaries(path: str | Path, options: LangOptions) -> Lexicon:
    """Read a lexicon, or those of a YAML file as one.

    Words of other dictionaries than the default one have the names of these
    (`latflow.corpus.dictionaries`). A noise has the pronunciations of the first
    dictionary with it.

    Args:
        path: see `SpeakerDictionaries.find`.
        options: how each dictionary is read.

    Raises:
        UserError: as `read_lexicon`; or a word looks as if it had a dictionary's name.
    """
    found = SpeakerDictionaries.find(path)

    def read(file: Path) -> Lexicon:
        return read_lexicon(
            file,
            has_probabilities=options.has_probabilities,
            strip_stress=options.strip_stress,
            max_normalize=options.max_normalize,
        )

    lexicon = read(found.default)
    if not found.others:
        return lexicon
    _refuse_marked(lexicon)
    entries = list(lexicon.entries)
    known = {entry.word for entry in entries}
    for name, file in found.others.items():
        own = read(file)
        _refuse_marked(own)
        named = [_named(entry, name) for entry in own.entries]
        new = [entry for entry in named if entry.word not in known]
        entries += new
        known.update(entry.word for entry in new)
    return replace(
        lexicon, entries=tuple(entries), file=Path(path), speakers=found.speakers
    )


def _named(entry: Pronunciation, dictionary: str) -> Pronunciation:
    """Return an entry with the name of its dictionary, unless it is a noise."""
    if is_special(entry):
        return entry
    return replace(entry, word=named_word(entry.word, dictionary))


def _refuse_marked(lexicon: Lexicon) -> None:
    """Refuse words that could be taken for those of a dictionary."""
    for entry in lexicon.entries:
        if is_marked(entry.word):
            raise UserError(
                f"line {entry.line}: word {entry.word} has a mark that names "
                "dictionaries of speakers",
                file=lexicon.file,
                remedy="spell the word without it",
            )


def _read(file: Path) -> dict[str, str]:
    """Return the dictionary of each speaker, by id, as a YAML file names it."""
    remedy = "write lines like default: english_us_mfa"
    with reading(file, "not a list of dictionaries by speaker", remedy):
        names = read_yaml(file)
        if not isinstance(names, dict) or not names:
            raise ValueError("it is no mapping of speakers")
        if not all(isinstance(value, str) for value in names.values()):
            raise ValueError("a dictionary is not the name of one")
        if _DEFAULT not in names:
            raise ValueError("no dictionary is the default one")
        by_speaker = {plain_id(str(who)): name for who, name in names.items()}
        if len(by_speaker) < len(names):
            raise ValueError("two names of speakers differ in blanks and _ only")
    return by_speaker


def _name_of(dictionary: Path, taken: set[str]) -> str:
    """Return a name for a dictionary: that of its file, without blanks."""
    name = stem = plain_id(dictionary.stem).strip("⧼⧽") or "dictionary"
    number = 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}"
    return name


def _of_name(name: str, file: Path) -> Path:
    """Return the dictionary of a name.

    Raises:
        UserError: there is none.
    """
    root = os.environ.get(_ROOT)
    cache = (Path(root) if root else Path.home() / "Documents/MFA") / _CACHE
    for path in (file.parent / name, cache / f"{name}.dict"):
        if path.is_file():
            return path
    raise UserError(
        f"no dictionary {name}",
        file=file,
        remedy=f"name a file, or a dictionary in {cache}",
    )
