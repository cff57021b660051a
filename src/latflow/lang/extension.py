"""The words of a lexicon with the phones of a model that never saw them."""

from __future__ import annotations

import logging
import shutil
import unicodedata
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from latflow.errors import UserError
from latflow.files import atomic_directory, write_text
from latflow.lang.directory import Lang
from latflow.lang.lexicon import (
    EPSILON,
    GRAMMAR_DISAMBIG,
    SENTENCE_END,
    SENTENCE_START,
    Lexicon,
    write_lexicon,
    write_silence,
)
from latflow.lang.lexicon_fst import write_transducers
from latflow.lang.options import LangOptions
from latflow.lang.phones import place_markers
from latflow.lang.silence import SILENCE_FILE, read_sentence_silence
from latflow.lang.speaker_dictionaries import read_dictionaries
from latflow.lang.special_words import special_names

log = logging.getLogger(__name__)


def extend_lang(
    lang_dir: str | Path,
    lexicon: str | Path,
    out_dir: str | Path,
    *,
    options: LangOptions,
    needed: Collection[str] | None = None,
) -> None:
    """Make a lang directory of a lexicon with the phones of another lang directory.

    What was trained with the other one can then align words that it never saw. There is
    no `L_disambig.fst`: alignment needs none.

    Args:
        lang_dir: the other lang directory: phones and their lists, topology, unknown
            word.
        lexicon: the lexicon file.
        out_dir: folder to write, replaced as a whole.
        options: how the lexicon is read, and the probability of silence, where neither
            the lexicon nor the other lang directory has it.
        needed: words that must be there; pronunciations with a phone that the other
            lang directory has not are left out, as long as each of these keeps one,
            and not all are. None needs all pronunciations.

    Raises:
        UserError: the lexicon is faulty, or a word that is needed has a phone that the
            other lang directory has not.
    """
    model = Lang.load(lang_dir)
    given = read_with_phones_of(model, lexicon, options, needed)
    if given.sentence is None and (model.folder / SILENCE_FILE).is_file():
        edges = read_sentence_silence(model.folder / SILENCE_FILE)
        given = replace(given, sentence=edges)
    unknown = model.lexicon.get(model.oov_word) or [(1.0, ())]
    complete = given.with_words([(model.oov_word, " ".join(unknown[0][1]))])
    silence = complete.silence_model(options.silence_probability)
    entries = list(complete.entries)
    if model.word_boundary is not None:
        entries = [replace(e, phones=place_markers(e.phones)) for e in entries]
    words = [EPSILON, *complete.words, GRAMMAR_DISAMBIG, SENTENCE_START, SENTENCE_END]
    word_ids = {word: number for number, word in enumerate(words)}
    with atomic_directory(out_dir) as folder:
        (folder / "phones").mkdir()
        names = ["phones.txt", "topo", "oov.txt"]
        names += [f"phones/{p.name}" for p in (model.folder / "phones").glob("*.int")]
        for name in names:
            if "align_lexicon" not in name:
                shutil.copyfile(model.folder / name, folder / name)
        table = "".join(f"{word} {n}\n" for word, n in word_ids.items())
        write_text(folder / "words.txt", table)
        write_text(folder / "oov.int", f"{word_ids[model.oov_word]}\n")
        write_lexicon(complete, folder / "lexicon.txt", with_probabilities=False)
        write_lexicon(complete, folder / "lexiconp.txt", with_probabilities=True)
        if silence is not None:
            write_silence(folder, complete.entries, silence)
        write_transducers(
            folder,
            entries,
            (model.phone_ids, word_ids),
            silence_phone=model.phones[model.optional_silence],
            silence=silence or options.silence_probability,
            silence_disambig=None,
        )


def read_with_phones_of(
    model: Lang,
    lexicon: str | Path,
    options: LangOptions,
    needed: Collection[str] | None,
) -> Lexicon:
    """Read a lexicon with the phones of a model, as the model writes them.

    Phones that differ in Unicode's normal form only become the model's. Words of
    silence and noise whose phone the model lacks get its silence, or what it has for
    unknown words. Of `needed` see `extend_lang`.

    Raises:
        UserError: as `extend_lang`.
    """
    given = read_dictionaries(lexicon, options)
    known = {model.base_phone(phone) for phone in model.topology.phones}
    same = {unicodedata.normalize("NFC", phone): phone for phone in sorted(known)}
    same |= {phone: phone for phone in known}
    names = special_names(given, options)
    unknown = model.lexicon.get(model.oov_word) or [(1.0, ())]
    stand_in = dict.fromkeys(names.silence_phones, " ".join(unknown[0][1]))
    stand_in[names.silence_phone] = model.base_phone(model.optional_silence)
    entries, strange = [], []
    for entry in given.entries:
        own = [
            same.get(unicodedata.normalize("NFC", phone)) or stand_in.get(phone)
            for phone in entry.phones
        ]
        phones = tuple(filter(None, own))
        if len(phones) < len(own):
            strange.append((entry, entry.phones[own.index(None)]))
        else:
            entries.append(replace(entry, phones=phones))
    kept = {entry.word for entry in entries}
    for entry, phone in strange:
        is_needed = needed is None or not kept or entry.word in needed
        if is_needed and entry.word not in kept:
            raise UserError(
                f"phone {phone} is not among those of the model",
                file=given.file,
                utterance=entry.word,
                remedy="use the model's phones: " + " ".join(sorted(known)[:60]),
            )
    if strange:
        log.warning(
            "%s: pronunciations left out, with phones that the model lacks: %d, of "
            "%d words, with %s",
            given.file,
            len(strange),
            len({entry.word for entry, _ in strange}),
            " ".join(sorted({phone for _, phone in strange})[:20]),
        )
    replaced = len(set(entries) - set(given.entries))
    if replaced:
        log.info(
            "%s: entries that got the model's names of phones: %d", given.file, replaced
        )
    return replace(given, entries=tuple(entries))
