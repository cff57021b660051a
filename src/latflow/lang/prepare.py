"""Stage functions of the language side: lang directory, language model, grammar.

`make_lang` writes what Kaldi's `utils/prepare_lang.sh` writes; `make_lm` fetches or
estimates an ARPA model; `make_grammar` turns it into the acceptor G.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from latflow.corpus.words import WordForms
from latflow.errors import UserError
from latflow.files import atomic_directory, atomic_output
from latflow.hmm.topology import Topology
from latflow.lang.arpa import NgramModel, perplexity, read_arpa, write_arpa
from latflow.lang.directory import GENERATED, Lang
from latflow.lang.grammar import check_arpa, unknown_name, write_grammar
from latflow.lang.lexicon import (
    EPSILON,
    GRAMMAR_DISAMBIG,
    RESERVED_WORDS,
    SENTENCE_END,
    SENTENCE_START,
    Lexicon,
    Pronunciation,
    write_lexicon,
    write_silence,
)
from latflow.lang.lexicon_fst import add_disambiguation, write_transducers
from latflow.lang.ngram import (
    estimate_of_corpus,
    uniform,
    with_unknown_words,
)
from latflow.lang.ngram_counts import (
    encode,
    text_sentences,
    transcript_sentences,
)
from latflow.lang.options import (
    ArpaLm,
    LangOptions,
    LmOptions,
    TextLm,
    TranscriptsLm,
    UniformLm,
)
from latflow.lang.phones import PhoneInventory, place_markers, word_boundary_kind
from latflow.lang.speaker_dictionaries import read_dictionaries
from latflow.text_files import open_text

log = logging.getLogger(__name__)

_UNKNOWN_NAMES = ("<unk>", "<UNK>", "<Unk>")  # the first that the lexicon lacks


def make_lang(
    lexicon: str | Path,
    out_dir: str | Path,
    *,
    options: LangOptions,
    generated: str | Path | None = None,
) -> None:
    """Make a Kaldi lang directory of a lexicon.

    Args:
        lexicon: the lexicon file, see `latflow.lang.lexicon`.
        out_dir: folder to write: `phones.txt words.txt topo L.fst L_disambig.fst
            oov.txt oov.int lexicon.txt lexiconp.txt` (the latter two without position
            markers) and the lists of `phones/`; `lexiconp_silprob.txt silprob.txt` too
            if the lexicon has probabilities of silence around words, which L then has.
        options: phones, topology and silence; their `lexicon` is not read.
        generated: table of the entries that `complete_lexicon` has added to the
            lexicon, which then has probabilities; copied to `generated.tsv`.

    Raises:
        UserError: the lexicon is faulty, or does not fit the configured phones.

    Source: Kaldi `utils/prepare_lang.sh`; the files are equal to its byte for byte.
    """
    if generated:
        options = options.replace(has_probabilities=True)
    given = read_dictionaries(lexicon, options)
    inventory = PhoneInventory.of_lexicon(given, options)
    complete = given.with_words(inventory.names.added_words())
    parts = _Parts.of(complete, inventory)
    silence = complete.silence_model(options.silence_probability)
    with atomic_directory(out_dir) as folder:
        (folder / "phones").mkdir()
        write_lexicon(complete, folder / "lexicon.txt", with_probabilities=False)
        write_lexicon(complete, folder / "lexiconp.txt", with_probabilities=True)
        if silence is not None:
            write_silence(folder, complete.entries, silence)
        _write_tables(folder, parts, inventory.names.oov_word)
        _write_phone_lists(folder / "phones", parts)
        _write_align_lexicon(folder / "phones", parts)
        _write_topology(folder, parts, options)
        write_transducers(
            folder,
            parts.entries,
            (parts.phone_ids, parts.word_ids),
            silence_phone=inventory.optional_silence,
            silence=silence or options.silence_probability,
            silence_disambig=parts.disambig[-1],
        )
        if generated:
            shutil.copyfile(generated, folder / GENERATED)
    log.info(
        "%s: %d words, %d pronunciations, %d phones, %d disambiguation symbols",
        lexicon,
        len(complete.words),
        len(complete.entries),
        len(parts.silence) + len(parts.nonsilence),
        len(parts.disambig),
    )


def make_lm(
    arpa: str | Path,
    *,
    options: LmOptions,
    lang_dir: str | Path,
    text: Sequence[str | Path],
    adds_words: bool = False,
) -> None:
    """Fetch or estimate the language model.

    Args:
        lang_dir: the lang directory, for the words of the lexicon.
        text: manifests (`cuts.jsonl.gz`) of the training set, for the type
            `transcripts`.
        adds_words: whether searches may get words: then words of the text that the
            lexicon lacks are n-grams of `<unk>` beside the others, which stay
            unchanged; unless the options name a word for them.

    Raises:
        UserError: a file is missing or faulty, has no word of the lexicon, or there is
            no text.
    """
    lang = Lang.load(lang_dir)
    if isinstance(options, ArpaLm):
        check_arpa(options.path, lang.word_ids)
        _log_overlap(read_arpa(options.path), lang)
        _copy_text(options.path, arpa)
        return
    if isinstance(options, UniformLm):
        model = uniform(lang.speech_words)
    else:
        model = _estimate(options, lang, text, adds_words=adds_words)
    _log_overlap(model, lang)
    write_arpa(model, arpa)


def make_grammar(
    arpa: str | Path,
    lang_dir: str | Path,
    grammar: str | Path,
    *,
    adds_words: bool = False,
) -> None:
    """Turn the ARPA model into the grammar acceptor G, see `latflow.lang.grammar`.

    Where searches may get words, G has the n-grams of those that the lexicon lacks.
    """
    lang = Lang.load(lang_dir)
    write_grammar(arpa, lang_dir, lang.word_ids, grammar, keeps_unknown=adds_words)


def _estimate(
    options: TextLm | TranscriptsLm,
    lang: Lang,
    cuts: Sequence[str | Path],
    *,
    adds_words: bool,
) -> NgramModel:
    path = options.path if isinstance(options, TextLm) else None
    if path is None and isinstance(options, TextLm):
        raise UserError(
            "configuration lm.path is not set",
            remedy="name the text to estimate the language model from, or set lm.type "
            "to transcripts",
        )

    known = lang.word_ids.keys() - set(RESERVED_WORDS)
    first = WordForms(known)
    passes = iter([first])

    def sentences() -> Iterable[list[str]]:
        if path is None:  # transcripts have the lexicon's spelling already
            return transcript_sentences(cuts)
        return text_sentences(path, next(passes, None) or WordForms(known))

    vocabulary, has_unknown = None, False
    if options.vocabulary == "lexicon":
        spoken = {word for line in sentences() for word in line}
        words = {*lang.speech_words, *filter(lang.is_known, spoken)} - {lang.oov_word}
        vocabulary, has_unknown = sorted(words, key=str.encode), not spoken <= words

    corpus = encode(
        sentences(),
        unknown_word=options.unknown_word or _UNKNOWN_NAMES[0],
        vocabulary=vocabulary,
        min_count=options.min_counts[0],
    )
    estimate = partial(
        estimate_of_corpus, order=options.order, min_counts=options.min_counts
    )
    model = estimate(corpus, is_open=options.unknown_word is not None)
    if summary := first.summary():
        log.info("words of the text are changed: %s", summary)
    log.info("the text itself: %s", perplexity(model, sentences()))
    name = unknown_name(_UNKNOWN_NAMES, lang.word_ids)
    if adds_words and has_unknown and options.unknown_word is None and name:
        named = replace(corpus, words=[*corpus.words[:-1], name])
        model = with_unknown_words(model, estimate(named, is_open=True))
    return model


def _copy_text(source: str | Path, target: str | Path) -> None:
    """Copy a text file, decompressed and as UTF-8, otherwise as it is."""
    with (
        open_text(source) as stream,
        atomic_output(target) as temporary,
        temporary.open("wb") as copy,
    ):
        shutil.copyfileobj(stream, copy)


def _log_overlap(model: NgramModel, lang: Lang) -> None:
    """Tell how the vocabularies of model and lexicon differ."""
    words = set(model.words) - {SENTENCE_START, SENTENCE_END}
    outside = {word for word in words if not lang.is_known(word)}
    missing = set(lang.speech_words) - words
    log.info(
        "vocabulary of the language model: %d words, %d of them not in the lexicon; "
        "%d words of the lexicon are not in the model",
        len(words),
        len(outside),
        len(missing),
    )


@dataclass(frozen=True)
class _Parts:
    """Everything that the files of a lang directory are written from."""

    inventory: PhoneInventory
    entries: Sequence[Pronunciation]  # with position markers
    silence: list[str]
    nonsilence: list[str]
    disambig: list[str]
    phone_ids: dict[str, int]
    word_ids: dict[str, int]

    @classmethod
    def of(cls, lexicon: Lexicon, inventory: PhoneInventory) -> _Parts:
        """Mark the phones and number everything."""
        entries = list(lexicon.entries)
        if inventory.options.position_dependent_phones:
            entries = [replace(e, phones=place_markers(e.phones)) for e in entries]
        _, highest = add_disambiguation(entries)
        silence, nonsilence = inventory.silence_list(), inventory.nonsilence_list()
        # one more than the words need: the symbol of optional silence
        disambig = [f"#{number}" for number in range(highest + 2)]
        phones = [EPSILON, *silence, *nonsilence, *disambig]
        words = [EPSILON, *lexicon.words]
        words += [GRAMMAR_DISAMBIG, SENTENCE_START, SENTENCE_END]
        return cls(
            inventory,
            entries,
            silence,
            nonsilence,
            disambig,
            {phone: number for number, phone in enumerate(phones)},
            {word: number for number, word in enumerate(words)},
        )


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _write_tables(folder: Path, parts: _Parts, oov_word: str) -> None:
    """Write the symbol tables and the unknown word."""
    _write(folder / "phones.txt", (f"{p} {n}" for p, n in parts.phone_ids.items()))
    _write(folder / "words.txt", (f"{w} {n}" for w, n in parts.word_ids.items()))
    _write(folder / "oov.txt", [oov_word])
    _write(folder / "oov.int", [str(parts.word_ids[oov_word])])


def _write_phone_lists(folder: Path, parts: _Parts) -> None:
    """Write the lists of `phones/`: as text, as ids, and joined by colons."""
    ids = parts.phone_ids
    plain = {
        "silence": parts.silence,
        "nonsilence": parts.nonsilence,
        "optional_silence": [parts.inventory.optional_silence],
        "disambig": parts.disambig,
        "context_indep": parts.silence,
    }
    for name, phones in plain.items():
        numbers = [str(ids[phone]) for phone in phones]
        _write(folder / f"{name}.txt", phones)
        _write(folder / f"{name}.int", numbers)
        _write(folder / f"{name}.csl", [":".join(numbers)])
    for name, lines, end in (
        ("sets", parts.inventory.sets(), ""),
        ("extra_questions", parts.inventory.extra_questions(), " "),
    ):
        _write(folder / f"{name}.txt", (" ".join(line) + end for line in lines))
        _write(folder / f"{name}.int", (_join(ids, line) for line in lines))
    roots = parts.inventory.roots()
    _write(folder / "roots.txt", (" ".join(line) for line in roots))
    _write(
        folder / "roots.int",
        (f"{' '.join(line[:2])} {_join(ids, line[2:])}" for line in roots),
    )
    if parts.inventory.options.position_dependent_phones:
        kinds = {p: word_boundary_kind(p) for p in parts.silence + parts.nonsilence}
        _write(folder / "word_boundary.txt", (f"{p} {k}" for p, k in kinds.items()))
        _write(
            folder / "word_boundary.int", (f"{ids[p]} {k}" for p, k in kinds.items())
        )
    _write(folder / "wdisambig.txt", [GRAMMAR_DISAMBIG])
    _write(folder / "wdisambig_phones.int", [str(ids[GRAMMAR_DISAMBIG])])
    _write(folder / "wdisambig_words.int", [str(parts.word_ids[GRAMMAR_DISAMBIG])])


def _join(ids: Mapping[str, int], symbols: Iterable[str]) -> str:
    """Return symbols as ids, joined by blanks."""
    return " ".join(str(ids[symbol]) for symbol in symbols)


def _write_align_lexicon(folder: Path, parts: _Parts) -> None:
    """Write the lexicon that aligns lattices with words, sorted by bytes."""
    rows = {(entry.word, entry.word, *entry.phones) for entry in parts.entries}
    rows.add((EPSILON, EPSILON, parts.inventory.optional_silence))
    ordered = sorted(rows, key=lambda row: " ".join(row).encode())
    _write(folder / "align_lexicon.txt", (" ".join(row) for row in ordered))
    _write(
        folder / "align_lexicon.int",
        (
            f"{_join(parts.word_ids, row[:2])} {_join(parts.phone_ids, row[2:])}"
            for row in ordered
        ),
    )


def _write_topology(folder: Path, parts: _Parts, options: LangOptions) -> None:
    """Write the HMM topologies."""
    topology = Topology.standard(
        [parts.phone_ids[phone] for phone in parts.nonsilence],
        [parts.phone_ids[phone] for phone in parts.silence],
        options.num_nonsilence_states,
        options.num_silence_states,
    )
    topology.save(folder / "topo")


LANG_FILES = (
    "words.txt",
    "topo",
    "L.fst",
    "L_disambig.fst",
    "oov.txt",
    "phones.txt",
)


OPTIONAL_LANG_FILES = (
    "G.fst",
    "lexicon.txt",
    "lexiconp.txt",
    "lexiconp_silprob.txt",
    "silprob.txt",
)


def import_lang(lang_dir: Path, out_dir: Path) -> None:
    """Take over a lang directory of Kaldi's, with `G.fst` if it has one (stage).

    Words, phones and transducers are copied unchanged, so that ids stay. What other
    programs put there (other grammars, scratch folders) is left behind.

    Args:
        lang_dir: Kaldi's `data/lang`.
        out_dir: the lang directory of the experiment; replaced as a whole.

    Raises:
        UserError: a file is missing or garbled, or two contradict each other.
    """
    lang = Lang.load(lang_dir)
    lang.validate()
    if not lang.lexicon:
        raise UserError(
            "no pronunciations",
            file=lang.folder / "phones/align_lexicon.txt",
            remedy="make the lang directory again with utils/prepare_lang.sh",
        )
    with atomic_directory(out_dir) as folder:
        copy_lang(lang, folder)
        for name in OPTIONAL_LANG_FILES:
            if (lang.folder / name).is_file():
                shutil.copyfile(lang.folder / name, folder / name)


def copy_lang(lang: Lang, folder: Path) -> None:
    """Copy what makes a lang directory, without grammar and lexicon.

    That of an acoustic model alone has no transducers, since it has no words.
    """
    for name in LANG_FILES:
        if not name.endswith(".fst") or (lang.folder / name).is_file():
            shutil.copyfile(lang.folder / name, folder / name)
    (folder / "oov.int").write_text(f"{lang.oov_id}\n", encoding="utf-8")
    (folder / "phones").mkdir()
    for path in sorted((lang.folder / "phones").iterdir()):
        if path.is_file():
            shutil.copyfile(path, folder / "phones" / path.name)
