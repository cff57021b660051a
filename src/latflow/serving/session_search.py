"""Searches of sessions that bring words, phrases or a language model of their own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Lock

from latflow.decode.added_words import depends_on_phones_before, pronounced
from latflow.decode.composed_graph import GraphParts, SessionParts
from latflow.decode.decoder import LatticeDecoder, load_graph
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.hmm.transducer import HmmCache
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang
from latflow.lang.grammar import UNKNOWN_WORD, read_arpa_grammar
from latflow.lang.lexicon import Pronunciation, read_entry
from latflow.lang.pronouncer import Pronouncer
from latflow.lang.session_grammar import (
    GrammarWords,
    bigram_grammar,
    missing_words,
    read_grammar,
)
from latflow.serving.options import MOST_BOOST, LanguageOptions

G2P = "lang/g2p.model"  # of a package: a file, or a folder of MFA's
_EXAMPLES = 5  # words that a warning names
_MOST = 8  # searches with all that has been composed for them

_Key = tuple[LanguageOptions, tuple[int, int] | None]


def why_no_words(folder: Path, *, is_rescored: bool) -> str | None:
    """Return why no words can be added to a package; None where they can.

    Args:
        folder: the package.
        is_rescored: whether it has a second language model.
    """
    graph, tree = folder / "graph/HCLG.fst", folder / "model/tree"
    if is_rescored:
        return "it has a second language model"
    if not graph.is_file():
        return "it has no graph"
    if len(Graph.load_all(graph)) == 1:
        return "it has a whole graph"
    if not tree.is_file():
        return "it has no tree"
    if not depends_on_phones_before(ContextDependency.load(tree)):
        return "its phones depend on others than the phone before"
    return None


@dataclass(frozen=True, eq=False)
class SessionSearch:
    """What a session recognizes with.

    Attributes:
        lang: with the words that the session adds.
        decoder: of them.
        warnings: about words and phrases that are left out, a sentence each.
        added: ids of words that the package's language model lacks, where it is used.
    """

    lang: Lang
    decoder: LatticeDecoder
    warnings: tuple[str, ...] = ()
    added: tuple[int, ...] = ()


class SessionSearches:
    """Makes the searches of sessions; for many threads.

    The last few are kept: sessions that ask for the same share what they compose.

    Args:
        folder: the package.
        lang: its language.
        transitions: its transition model.
        decoder: of sessions that bring nothing.
        make: makes a decoder of a graph.
        can_add: whether words may be added at all.
    """

    def __init__(
        self,
        folder: Path,
        lang: Lang,
        transitions: TransitionModel,
        decoder: LatticeDecoder,
        make: Callable[[GraphParts], LatticeDecoder],
        *,
        can_add: bool,
    ) -> None:
        self._folder, self._lang, self._decoder = folder, lang, decoder
        self._can_add = can_add
        self._transitions, self._make = transitions, make
        self._known: OrderedDict[_Key, Future[SessionSearch]] = OrderedDict()
        self._lock, self._making_extensible = Lock(), Lock()

    def find(self, options: LanguageOptions) -> SessionSearch:
        """Return the search of a session that brings something.

        Raises:
            UserError: see `Model.for_session`.
        """
        key = options, _stamp(options.lm)
        with self._lock:
            is_new = key not in self._known
            search = self._known.setdefault(key, Future())
            self._known.move_to_end(key)
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        if is_new:  # made without the lock: who wants another one does not wait
            self._make_search(key, search)
        return search.result()

    def _make_search(self, key: _Key, search: Future[SessionSearch]) -> None:
        """Make the search that others may be waiting for; keep no failure."""
        try:
            search.set_result(self._search(key[0]))
        except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
            with self._lock:
                if self._known.get(key) is search:
                    del self._known[key]
            search.set_exception(error)

    def _search(self, options: LanguageOptions) -> SessionSearch:
        """Make the search of a session."""
        warnings: list[str] = []
        entries = self._entries(options, warnings)
        lang = self._lang.with_words(entries) if entries else self._lang
        grammar = _grammar(options, lang, warnings)
        phrases: dict[tuple[int, ...], float] = {}
        if self._decoder.is_composing:
            rare = self._decoder.composed.rare_words() if options.prompt else ()
            prompted = set(GrammarWords(lang).ids(options.prompt)).intersection(rare)
            phrases = {(word,): options.prompt_boost for word in prompted}
            phrases |= favoured(options, lang, warnings)
        if not (entries or phrases or grammar):
            return SessionSearch(lang, self._decoder, tuple(warnings))
        decoder, hmms = self._decoder, None
        if not decoder.is_composing:
            raise self._refused(
                "has a whole graph",
                "set decode.composition: lookahead, and package the system again",
            )
        if entries:
            with self._making_extensible:
                decoder, hmms = self._extensible
        like = self._like(options, {entry.word for entry in entries})
        boost = options.word_boost if grammar is None else 0.0
        words = pronounced(lang, entries, boost=boost, like=like)
        own = SessionParts(words, grammar, phrases)
        own_ids = {word.word for word in words if word.like != (word.word,)}
        added = sorted(own_ids if grammar is None else ())
        return SessionSearch(
            lang, decoder.with_parts(own, hmms), tuple(warnings), tuple(added)
        )

    def _entries(
        self, options: LanguageOptions, warnings: list[str]
    ) -> list[Pronunciation]:
        """Return the pronunciations of the words that a session adds.

        Args:
            options: of the session.
            warnings: gets a sentence for each word that nothing is done for.
        """
        found: list[Pronunciation] = []
        for line in options.new_words:
            found += self._new_word(line, warnings)
        pairs = {entry.word: self._own_word(entry.word) for entry in found}
        beside = [f"{w} ({own})" for w, own in pairs.items() if own not in {None, w}]
        if beside:
            more = f" and {len(beside) - _EXAMPLES} more" * (len(beside) > _EXAMPLES)
            warnings.append(
                "new_words: added beside the lexicon's, in another case: "
                f"{', '.join(beside[:_EXAMPLES])}{more}"
            )
        if self._can_add and self._pronouncer is not None:
            lang = self._lang.with_words(found)
            if options.grammar:
                for word in missing_words(options.grammar, lang):
                    found += self._pronouncer.pronounce(word)
            for word in _missing(options, lang):
                try:
                    found += self._pronouncer.pronounce(word)
                except UserError as error:
                    warnings.append(error.what)
        return found

    def _new_word(self, line: str, warnings: list[str]) -> list[Pronunciation]:
        """Return the pronunciations of a word, which may come without phones."""
        word, *phones = line.split() or [""]
        if phones:
            return [read_entry(line)]
        if self._lang.is_known(word):
            warnings.append(f"new_words: the lexicon has the word {word}")
            return []
        if self._pronouncer is None:
            raise UserError(
                f"new_words: {word} has no phones, and the package has no G2P model",
                remedy="give its phones (WORD PHONE PHONE ...), or package the "
                "system with package.g2p",
            )
        return self._pronouncer.pronounce(word)

    @cached_property
    def _pronouncer(self) -> Pronouncer | None:
        """The G2P model of the package, if there is one."""
        path = self._folder / G2P
        return Pronouncer.load(path, self._lang) if path.exists() else None

    def _like(
        self, options: LanguageOptions, words: set[str]
    ) -> dict[str, tuple[int, ...]]:
        """Return new word -> the ids of those that it is like.

        Those that are not said to be like any are like themselves, if the language
        model has them; else like the word for unknown words, recognized or not, if it
        knows where these stand.
        """
        found: dict[str, set[int]] = {}
        for line in options.words_like:
            new, equals, known = line.rpartition("=")
            if equals and new not in words:
                raise UserError(
                    f"words_like: {new} is no word that is added",
                    remedy="write NEW=KNOWN, or KNOWN for all words that are added",
                )
            like = self._own_word(known)
            if like is None:
                raise UserError(
                    f"words_like: the lexicon lacks the word {known}",
                    remedy="name a word of the package",
                )
            for word in [new] if equals else words:
                found.setdefault(word, set()).add(self._lang.word_ids[like])
        composed = self._decoder.composed
        unknown = (self._lang.oov_id, UNKNOWN_WORD) if words else ()
        usual = set(list(filter(composed.expects, unknown))[:1])
        for word in words.difference(found):
            own = {self._lang.word_ids[word]} if self._lang.is_known(word) else set()
            found[word] = own if any(map(composed.has, own)) else usual
        return {word: tuple(sorted(like)) for word, like in found.items()}

    def _own_word(self, word: str) -> str | None:
        """Return a word as the lexicon has it, maybe in another case; None if not."""
        cases = (word, word.upper(), word.lower(), word.capitalize())
        return next(filter(self._lang.is_known, cases), None)

    @cached_property
    def _extensible(self) -> tuple[LatticeDecoder, HmmCache]:
        """A decoder that words can be added to, and the model's HMMs.

        It is made for the first words: packages that get none don't need it.
        """
        tree = self._folder / "model/tree"
        graph = load_graph(self._folder / "graph/HCLG.fst", self._lang)
        if not tree.is_file():
            raise self._refused("has no tree", "package a system that has one")
        assert isinstance(graph, GraphParts)
        hmms = HmmCache(ContextDependency.load(tree), self._transitions)
        return self._make(replace(graph, model=self._transitions)), hmms

    def _refused(self, fault: str, remedy: str) -> UserError:
        return UserError(
            f"words and grammars can't be added: the package {fault}",
            file=self._folder,
            remedy=remedy,
        )


def _stamp(path: str) -> tuple[int, int] | None:
    """Return size and time of change of a file; None where none is named."""
    if not path:
        return None
    if not Path(path).is_file():
        raise UserError("no such file", file=path, remedy="check the path")
    found = Path(path).stat()
    return found.st_size, found.st_mtime_ns


def _grammar(options: LanguageOptions, lang: Lang, warnings: list[str]) -> Graph | None:
    """Return the language model that a session brings, if it does."""
    if options.grammar:
        return read_grammar(options.grammar, lang)
    if options.phrase_list:
        words = GrammarWords(lang)
        phrases = [words.ids(phrase) for phrase in options.phrase_list]
        warnings += [
            f"the list of phrases: no such word: {word}" for word in words.missing
        ]
        return bigram_grammar(phrases)
    if options.lm:
        return read_arpa_grammar(options.lm, lang.word_ids)
    return None


def _missing(options: LanguageOptions, lang: Lang) -> list[str]:
    """Return the words of phrases and prompt that a language lacks."""
    words = GrammarWords(lang)
    phrases = [_boosted(line, options.phrase_boost)[0] for line in options.phrases]
    for text in (*phrases, *options.phrase_list, options.prompt):
        words.find(text)
    return words.missing


def favoured(
    options: LanguageOptions, lang: Lang, warnings: list[str]
) -> dict[tuple[int, ...], float]:
    """Return the words of the phrases that a session favours -> their boost.

    Args:
        options: has the phrases.
        lang: has the words.
        warnings: gets a sentence for each phrase that is left out.
    """
    found: dict[tuple[int, ...], float] = {}
    words = GrammarWords(lang)
    for line in options.phrases:
        phrase, boost = _boosted(line, options.phrase_boost)
        ids, missing = words.find(phrase)
        if missing:
            names = ", ".join(missing)
            warnings.append(f"phrase {phrase!r}: no such words: {names}")
        elif ids:
            found[tuple(ids)] = boost
    return found


def _boosted(line: str, usual: float) -> tuple[str, float]:
    """Return a phrase, and the boost that it may end with."""
    phrase, colon, text = line.rpartition(" :")
    if not colon:
        return line, usual
    try:
        boost = float(text)
    except ValueError:
        boost = -1.0
    if not 0.0 <= boost <= MOST_BOOST:
        raise UserError(
            f"phrase {line!r}: {text!r} is no boost",
            remedy=f"write e.g. `new york :4`, {MOST_BOOST:g} at most",
        )
    return phrase, boost
