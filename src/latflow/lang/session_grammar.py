"""Grammars that a session brings instead of the package's language model.

A grammar is a text in one of two forms:

* a list of phrases in JSON, `["turn on", "turn off", "[unk]"]`: an utterance is any
  number of them, each as a whole. `[unk]` is a word that the lexicon lacks;
* JSGF, see `latflow.lang.jsgf`: an utterance is what a public rule can become.

Both accept an utterance without words. A third form is how Vosk takes a list of
phrases: as text that bigrams are counted in, so that words may follow one another in
other ways, too (`bigram_grammar`).

Words are spelled as transcripts are (`latflow.corpus.words`).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence

import kaldifst
import numpy as np

from latflow.corpus.words import WordForms
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.minimize import minimize_encoded
from latflow.fst.openfst import ARC
from latflow.fst.optimize import connect
from latflow.lang.directory import Lang
from latflow.lang.jsgf import HEADER, GrammarError, read_jsgf

UNKNOWN = "[unk]"
_DISCOUNT = 0.5  # of Vosk's bigrams
_LEAST_BOUND, _MAX_GROWTH = 40_000, 4  # of states that are made deterministic
_EXAMPLES = 5


class GrammarWords:
    """Finds the words of texts among those of a language.

    Args:
        lang: has the words.
    """

    def __init__(self, lang: Lang) -> None:
        self._lang = lang
        self._forms = WordForms([w for w in lang.word_ids if lang.is_known(w)])
        self._missing: dict[str, None] = {}

    @property
    def unknown(self) -> int:
        """The word that stands for all that the lexicon lacks."""
        return self._lang.oov_id

    @property
    def missing(self) -> list[str]:
        """Words so far that the lexicon lacks, each once."""
        return list(self._missing)

    def find(self, text: str) -> tuple[list[int], list[str]]:
        """Return the ids of the words of a text, and the words that are missing."""
        found: list[int] = []
        missing: list[str] = []
        for token in text.split():
            if token.casefold() == UNKNOWN and not self._lang.is_known(token):
                found.append(self.unknown)
                continue
            for word in self._forms.words(token):
                if self._lang.is_known(word):
                    found.append(self._lang.word_ids[word])
                else:
                    missing.append(word)
        self._missing |= dict.fromkeys(missing)
        return found, missing

    def ids(self, text: str) -> list[int]:
        """Return the ids of the words of a text, without those that are missing."""
        return self.find(text)[0]

    def require_all(self) -> None:
        """Refuse a grammar that words of are missing.

        Raises:
            GrammarError: names some.
        """
        if self._missing:
            names = ", ".join(self.missing[:_EXAMPLES])
            raise GrammarError(
                f"the grammar has {len(self._missing)} words that the lexicon lacks: "
                f"{names}",
                remedy="give their phones (--words FILE, new_words)",
            )


def read_grammar(text: str, lang: Lang) -> Graph:
    """Read a grammar in either form.

    Args:
        text: JSON or JSGF.
        lang: has the words.

    Returns:
        An acceptor of word ids, as `latflow.lang.lm_arrays` takes it.

    Raises:
        GrammarError: the text is neither; it has words that the lexicon lacks, or no
            phrase; or it is too large.
    """
    words = GrammarWords(lang)
    if _is_jsgf(text):
        graph = read_jsgf(text, words.ids, words.unknown)
        words.require_all()
        graph = _deterministic(graph)
        if not graph.olabel.any():
            raise _no_phrase()
        return graph
    phrases = [words.ids(phrase) for phrase in read_phrases(text)]
    words.require_all()
    return _any_of([phrase for phrase in phrases if phrase])


def missing_words(text: str, lang: Lang) -> list[str]:
    """Return the words of a grammar that a language lacks.

    Raises:
        GrammarError: the text is neither JSON nor JSGF.
    """
    words = GrammarWords(lang)
    if _is_jsgf(text):
        read_jsgf(text, words.ids, words.unknown)
    else:
        for phrase in read_phrases(text):
            words.find(phrase)
    return words.missing


def _is_jsgf(text: str) -> bool:
    """Return whether a grammar is in JSGF; else it is in JSON."""
    return text.lstrip("\ufeff \t\r\n").startswith(HEADER)


def read_phrases(text: str) -> list[str]:
    """Read a list of phrases in JSON.

    Raises:
        GrammarError: it is not a list of strings.
    """
    try:
        found = json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise GrammarError(
            "the grammar is neither a list of phrases in JSON nor JSGF",
            remedy='write ["turn on", "turn off", "[unk]"], or #JSGF V1.0; ...',
        )
    return found


def _no_phrase() -> GrammarError:
    """Return the error of a grammar that accepts no words."""
    return GrammarError("the grammar has no phrase", remedy="write at least one")


def _any_of(phrases: Sequence[Sequence[int]]) -> Graph:
    """Return an acceptor of any number of phrases, as probable as the end each.

    It is a tree of their beginnings. Behind a whole one, the next begins as in a
    language model that backs off: by the only epsilon arc of a state.
    """
    whole = list(dict.fromkeys(map(tuple, phrases)))
    if not whole:
        raise _no_phrase()
    cost = math.log(len(whole) + 1)
    next_state: dict[tuple[int, int], int] = {}
    ends = []
    for phrase in whole:
        state = 0
        for word in phrase:
            state = next_state.setdefault((state, word), len(next_state) + 1)
        ends.append(state)
    source = [state for state, _ in next_state] + ends
    rows = [
        (word, word, 0.0 if state else cost, to)
        for (state, word), to in next_state.items()
    ]
    rows += [(0, 0, 0.0, 0)] * len(ends)
    final = np.full(len(next_state) + 1, np.inf, np.float32)
    final[0] = cost
    return Graph.from_arc_list(0, np.array(source), np.array(rows, ARC), final)


def bigram_grammar(phrases: Sequence[Sequence[int]]) -> Graph:
    """Return the bigrams of phrases as Vosk estimates them.

    With counts c, p(w | v) = c(v w) / (2 c(v)), where w is not the first word of a
    phrase, and backing off has probability 1/2; p(w) likewise of all words. Any word
    may come first, and an utterance may be empty.

    Args:
        phrases: word ids of each; empty ones do not count.

    Raises:
        UserError: no phrase has a word.

    Source: vosk-api `src/language_model.cc`, `recognizer.cc` (`UpdateGrammarFst`).
    """
    following: dict[int, Counter[int]] = {0: Counter()}  # 0: no history; the end
    for phrase in filter(None, phrases):
        following[0][phrase[0]] += 1
        for word, next_word in zip(phrase, [*phrase[1:], 0], strict=True):
            following.setdefault(word, Counter())[next_word] += 1
            following[0][next_word] += 1
    if not following[0]:
        raise UserError(
            "no word of the list of phrases is in the lexicon",
            remedy="check its words, or give their phones (new_words)",
        )
    state_of = {word: n for n, word in enumerate(following)}
    final = np.full(len(following), np.inf, np.float32)
    source, rows = [], []
    for word, counts in following.items():
        total = counts.total()
        for next_word, count in counts.items():
            cost = -math.log(_DISCOUNT * count / total)
            if next_word:
                source.append(state_of[word])
                rows.append((next_word, next_word, cost, state_of[next_word]))
            else:
                final[state_of[word]] = cost
        if word:
            source.append(state_of[word])
            rows.append((0, 0, -math.log(1.0 - _DISCOUNT), 0))
    return Graph.from_arc_list(0, np.array(source), np.array(rows, ARC), final)


def _deterministic(graph: Graph) -> Graph:
    """Return a deterministic acceptor without epsilons, of the same costs."""
    fst = graph.to_fst()
    bound = max(_LEAST_BOUND, _MAX_GROWTH * graph.num_states)
    try:
        is_cut_short = kaldifst.determinize_star(fst, max_states=bound)
    except RuntimeError:  # the same, for most ways of not ending
        is_cut_short = True
    if is_cut_short:
        raise GrammarError(
            f"the grammar takes more than {bound} states, once each word tells where "
            "it stands",
            remedy="make it less ambiguous",
        )
    found = connect(Graph.from_fst(fst, is_emptied=True))
    return minimize_encoded(found) if found.num_states else found
