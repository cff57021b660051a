"""From an ARPA model to the grammar acceptor G.

G has a state for each history and accepts word sequences with costs -ln p; back-off
arcs carry `#0` on their input side, so that G composed with the lexicon can be
determinized. `<s>` and `</s>` leave no labels: they are the start and the final costs.
Histories that nothing follows are states too, with a back-off arc alone.

Words of the model are found in words.txt in Unicode's normal form NFC.

Source: Kaldi `lm/arpa-lm-compiler.cc`, `lmbin/arpa2fst.cc` (`--disambig-symbol=#0`),
without its `RemoveRedundantStates`, as in kaldilm: G is the same arc for arc;
`utils/format_lm.sh`, `fstbin/fstisstochastic.cc`.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.lang.arpa import NONE, Level, NgramModel, read_arpa
from latflow.lang.arpa_file import LOG_ZERO, arpa_entries
from latflow.lang.lexicon import (
    EPSILON,
    GRAMMAR_DISAMBIG,
    SENTENCE_END,
    SENTENCE_START,
)
from latflow.lang.lm_arrays import ROOT, LmArrays, lay_out

log = logging.getLogger(__name__)

FRAME = frozenset({SENTENCE_START, SENTENCE_END})
_FRAME_NAMES = {  # what other tools and people call them, in any case
    SENTENCE_START: {"<s>", "<sos>", "<bos>", "!sent_start", "sent-start", "!enter"},
    SENTENCE_END: {"</s>", "<eos>", "!sent_end", "sent-end", "!exit"},
}
UNKNOWN_WORD = 2**31 - 2  # label in G for words that words.txt lacks
_UNKNOWN = "<unk>"  # in any case: tools give it to models, lexica need not have it


@dataclass(frozen=True)
class Coverage:
    """Words that an ARPA model and a lexicon have in common.

    Attributes:
        known: words of the model that words.txt has, `<s>` and `</s>` not counted.
        unknown: words of the model that it lacks, `<unk>` not counted.
        frame: which of `<s>` and `</s>` the model has.
        other_case: word of the model -> the same in words.txt in another case, of words
            that are unknown.
    """

    known: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    frame: set[str] = field(default_factory=set)
    other_case: dict[str, str] = field(default_factory=dict)

    @property
    def is_in_other_case(self) -> bool:
        """Return whether most words in common are written in another case."""
        return len({*self.other_case.values()} - self.known) > len(self.known)

    def other_name(self, frame: str) -> str | None:
        """Return the word that the model has in the place of `<s>` or `</s>`."""
        found = (w for w in self.unknown if w.casefold() in _FRAME_NAMES[frame])
        return min(found, default=None)

    @classmethod
    def of(cls, model_words: Iterable[str], words: Iterable[str]) -> Coverage:
        """Compare the words of a model with those of words.txt."""
        found = set(model_words)
        allowed = {*map(_nfc, words)} - {EPSILON, GRAMMAR_DISAMBIG} - FRAME
        unknown = {w for w in found - allowed - FRAME if w.casefold() != _UNKNOWN}
        folded = {word.casefold(): word for word in allowed}
        pairs = {w: folded[w.casefold()] for w in unknown if w.casefold() in folded}
        return cls(found & allowed, unknown, found & FRAME, pairs)


def check_arpa(path: str | Path, words: Iterable[str]) -> Coverage:
    """Tell from the header and the single words of an ARPA file whether it can serve.

    Args:
        path: the file, see `latflow.lang.arpa`.
        words: those of the lexicon, or of words.txt.

    Raises:
        UserError: the file is not an ARPA file or faulty there, has a reserved word,
            cannot begin or end sentences, or has no word of the lexicon.
    """
    unigrams = takewhile(lambda entry: len(entry[1]) == 1, arpa_entries(path))
    coverage = Coverage.of((found[0] for _, found, _ in unigrams), words)
    _check_coverage(coverage, path)
    return coverage


def write_grammar(
    arpa: str | Path,
    lang_dir: str | Path,
    word_ids: Mapping[str, int],
    out: str | Path,
    *,
    keeps_unknown: bool = False,
) -> None:
    """Turn an ARPA file into `G.fst`, its arcs sorted by input label.

    Args:
        arpa: the ARPA file, see `latflow.lang.arpa`.
        lang_dir: the lang directory, for messages.
        word_ids: its `words.txt`.
        out: the file to write.
        keeps_unknown: see `read_arpa_grammar`.

    Raises:
        UserError: as `read_arpa_grammar`.
    """
    grammar = read_arpa_grammar(arpa, word_ids, lang_dir, keeps_unknown=keeps_unknown)
    with atomic_output(out) as temporary, temporary.open("wb") as stream:
        grammar.write_vector(stream)


def read_arpa_grammar(
    arpa: str | Path,
    word_ids: Mapping[str, int],
    lang_dir: str | Path | None = None,
    *,
    keeps_unknown: bool = False,
) -> Graph:
    """Turn an ARPA file into G.

    N-grams with words outside words.txt are dropped, as Kaldi does; what they weighed
    is lost, not shared among the others.

    Args:
        arpa: the ARPA file, see `latflow.lang.arpa`.
        word_ids: words.txt.
        lang_dir: where that is, for messages.
        keeps_unknown: whether n-grams of `<unk>` (in any case) that words.txt lacks are
            kept, with the label UNKNOWN_WORD.

    Raises:
        UserError: the ARPA file is faulty, or has no word of the lexicon; G accepts
            nothing.
    """
    model = read_arpa(arpa)
    _check_coverage(Coverage.of(model.words, word_ids), arpa, lang_dir)
    if keeps_unknown and (name := unknown_name(model.words, word_ids)):
        word_ids = {**word_ids, name: UNKNOWN_WORD}
    kept = _Kept.of(model, word_ids)
    kept.log_dropped(arpa)
    grammar = _graph(kept, word_ids[GRAMMAR_DISAMBIG])
    num_ngrams = int((grammar.olabel != 0).sum()) + grammar.num_final_states
    if num_ngrams != kept.num_ngrams:
        raise UserError(
            f"G has {num_ngrams} of the {kept.num_ngrams} n-grams that were read",
            file=arpa,
            remedy="this is a fault of latflow: report it with the model",
        )
    check_grammar(grammar, word_ids, arpa)
    return grammar


def unknown_name(names: Iterable[str], words: Container[str]) -> str | None:
    """Return the first of some names that is `<unk>` in any case, and none of words."""
    found = (name for name in names if name.casefold() == _UNKNOWN)
    return next((name for name in found if name not in words), None)


def grammar_graph(model: NgramModel, word_ids: Mapping[str, int]) -> Graph:
    """Turn a model in memory into G, as `write_grammar` does with that of a file.

    Args:
        model: it has `<s>` and `</s>`; n-grams of no probability, and those with words
            outside words.txt, are left out.
        word_ids: words.txt.
    """
    kept = _Kept.of(model, word_ids, above=LOG_ZERO)
    return _graph(kept, word_ids[GRAMMAR_DISAMBIG])


@dataclass(frozen=True)
class _Kept:
    """The n-grams of a model that G has.

    Attributes:
        levels: of the model, without the others.
        labels: int64, word of the model -> id in words.txt; NONE if it is not there.
        start, end: `<s>` and `</s>` among the words of the model.
        unknown, misplaced: of each length the n-grams that are left out, since they
            have a word outside words.txt, or `<s>` behind or `</s>` before a word.
        total: n-grams of each length.
    """

    levels: list[Level]
    labels: np.ndarray
    start: int
    end: int
    unknown: list[int]
    misplaced: list[int]
    total: list[int]

    @classmethod
    def of(
        cls, model: NgramModel, word_ids: Mapping[str, int], above: float = -np.inf
    ) -> _Kept:
        """Find them; only those of a log-probability above a bound."""
        labels = _labels(model.words, word_ids)
        start, end = (model.word_ids[word] for word in (SENTENCE_START, SENTENCE_END))
        kept = cls([], labels, start, end, [], [], [])
        row = np.zeros(1, np.int64)  # among those kept, of n-grams one word shorter
        has_unknown, is_end = np.zeros((2, 1), bool)
        for level in model.levels:
            prefix, word = level.prefix, level.word
            has_unknown = has_unknown[prefix] | (labels[word] == NONE)
            good = (row[prefix] != NONE) & ~is_end[prefix] & (labels[word] != NONE)
            good &= (level.log_prob > above) | (word == start)
            if kept.levels:
                good &= word != start
            is_end = word == end
            kept.levels.append(_part(level, good, row, is_end))
            kept.unknown.append(int(has_unknown.sum()))
            kept.misplaced.append(int((~good & ~has_unknown).sum()))
            kept.total.append(len(word))
            row = np.where(good, np.cumsum(good) - 1, NONE)
        return kept

    @property
    def num_ngrams(self) -> int:
        """Number of n-grams that become an arc or a final cost: all but `<s>`."""
        return sum(self.total) - sum(self.unknown) - sum(self.misplaced) - 1

    def log_dropped(self, arpa: str | Path) -> None:
        """Log how many n-grams are left out, and why."""
        for what, counts in (
            ("dropped: they have words that the lexicon lacks", self.unknown),
            ("left out: <s> stands behind, or </s> before, a word", self.misplaced),
        ):
            for length, count in enumerate(counts, start=1):
                if count:
                    total = self.total[length - 1]
                    log.warning(
                        "%s: %d of %d %d-grams %s", arpa, count, total, length, what
                    )


def _part(level: Level, good: np.ndarray, row: np.ndarray, is_end: np.ndarray) -> Level:
    """Return some rows of a level; after a sentence end there is nothing to back off.

    Args:
        level: all rows.
        good: bool[N], those to keep.
        row: int64, new rows of the prefixes.
        is_end: bool[N], whether the n-gram ends in `</s>`.
    """
    backoff = level.log_backoff
    if backoff is not None:
        backoff = np.where(is_end, np.nan, backoff)[good]
    return Level(
        row[level.prefix[good]], level.word[good], level.log_prob[good], backoff
    )


def _labels(words: Iterable[str], word_ids: Mapping[str, int]) -> np.ndarray:
    """Return the id of each word of a model, NONE where words.txt lacks it."""
    table = {_nfc(word): number for word, number in word_ids.items()} | dict(word_ids)
    for word in (EPSILON, GRAMMAR_DISAMBIG):
        table.pop(word, None)
    table |= dict.fromkeys(FRAME, 0)
    return np.array([table.get(word, NONE) for word in words], np.int64)


def _nfc(word: str) -> str:
    """Return a word with its letters and marks composed."""
    return word if word.isascii() else unicodedata.normalize("NFC", word)


def _graph(kept: _Kept, backoff_label: int) -> Graph:
    """Make G of the n-grams that it has."""
    lm = lay_out(kept.levels, with_all_histories=True)
    num_arcs = np.diff(lm.arc_begin)
    source = np.repeat(np.arange(len(num_arcs)), num_arcs)
    is_end, is_start = lm.label == kept.end, lm.label == kept.start
    start = int(lm.next_state[is_start][0])
    final = np.full(len(num_arcs), np.inf, np.float32)
    final[source[is_end]] = lm.cost[is_end]
    is_state = np.ones(len(num_arcs), bool)
    is_state[lm.next_state[is_end]] = False  # there is nothing behind a sentence end
    is_state[ROOT] = True
    has_word = ~is_end & ~is_start
    target, shorter = _own_endings(kept.levels, lm, kept.end)
    is_state = np.append(is_state, np.ones(len(shorter), bool))
    final = np.append(final, np.full(len(shorter), np.inf, np.float32))
    backs_off = np.flatnonzero(is_state)[1:]  # all but the root
    number = np.cumsum(is_state) - 1
    arcs = np.empty(int(has_word.sum()) + len(backs_off), ARC)
    words, backoffs = np.split(arcs, [int(has_word.sum())])
    words["ilabel"] = words["olabel"] = kept.labels[lm.label[has_word]]
    words["weight"], words["next_state"] = lm.cost[has_word], number[target[has_word]]
    backoffs["ilabel"], backoffs["olabel"] = backoff_label, 0
    backoffs["weight"] = np.append(lm.backoff_cost, 0.0 * shorter)[backs_off]
    shorter = np.append(lm.backoff_state, shorter)
    backoffs["next_state"] = number[shorter[backs_off]]
    source = number[np.append(source[has_word], backs_off)]
    order = np.lexsort((arcs["ilabel"], source))
    return Graph.from_arc_list(
        int(number[start]), source[order], arcs[order], final[is_state]
    )


def _own_endings(
    levels: list[Level], lm: LmArrays, end: int
) -> tuple[np.ndarray, np.ndarray]:
    """Give the longest n-grams states for their endings where these are not listed.

    Such a model was pruned. Behind `h a b` comes the state of `a b`; if `a b` is not
    listed, it only backs off to that of `b`.

    Args:
        levels: of the model.
        lm: made of them, with a state for each history.
        end: the word `</s>`, which has none behind it.

    Returns:
        (where the arcs lead; shorter history of each state beyond those of `lm`).
    """
    target = lm.next_state.astype(np.int64)
    longest = len(levels[-1].word)
    first_history = len(lm.backoff_state) - (
        len(levels[-2].word) if len(levels) > 1 else 1
    )
    top = target[len(target) - longest :]
    short = np.flatnonzero((top < first_history) & (levels[-1].word != end))
    rows, ending = short, []
    for level in levels[:0:-1]:  # all words but the first
        ending.append(level.word[rows])
        rows = level.prefix[rows]
    if not len(short):
        return target, np.zeros(0, np.int64)
    _, first, own = np.unique(
        np.stack(ending[::-1], 1), axis=0, return_index=True, return_inverse=True
    )
    shorter = top[short[first]]
    top[short] = len(lm.backoff_state) + own.ravel()
    return target, shorter


def check_grammar(
    grammar: Graph, word_ids: Mapping[str, int], arpa: str | Path
) -> tuple[float, float]:
    """Check what decoding graphs need of G, and log how far it is from stochastic.

    Args:
        word_ids: words.txt.
        arpa: the file G comes from, for messages.

    Returns:
        Least and largest of -ln(total weight of a state's arcs and final weight). With
        back-off arcs the totals are above one, so that the least is negative; a value
        well above 0 shows that probability was lost with dropped words.

    Raises:
        UserError: a sentence can not end, `<s>` or `</s>` are left as labels, an input
            label is epsilon, or G is not deterministic.
    """
    labels = {word_ids.get(w, -1) for w in (EPSILON, SENTENCE_START, SENTENCE_END)}
    strange = labels & set(np.unique(grammar.ilabel).tolist())
    if strange:
        names = {number: word for word, number in word_ids.items()}
        raise UserError(
            f"the grammar has the label {names[min(strange)]}",
            file=arpa,
            remedy="<s> may only begin and </s> only end the n-grams of the model",
        )
    if not np.isfinite(grammar.final).any():
        raise UserError(
            "no sentence of the grammar ends",
            file=arpa,
            remedy="the model must have the word </s>",
        )
    sources = grammar.sources().astype(np.int64)
    pairs = sources * (int(grammar.ilabel.max()) + 1) + grammar.ilabel
    if len(np.unique(pairs)) < len(pairs):
        raise UserError(
            "the grammar is not deterministic: an n-gram comes twice",
            file=arpa,
            remedy="remove the repetition from the model",
        )
    total = np.exp(-grammar.final.astype(np.float64))
    total += np.bincount(
        sources,
        weights=np.exp(-grammar.weight.astype(np.float64)),
        minlength=len(total),
    )
    with np.errstate(divide="ignore"):
        costs = -np.log(total)
    least, largest = float(costs.min()), float(costs.max())
    log.info(
        "G: %d states, %d arcs; -ln of a state's total weight from %g to %g",
        grammar.num_states,
        grammar.num_arcs,
        least,
        largest,
    )
    return least, largest


def _check_coverage(
    coverage: Coverage, arpa: str | Path, lang_dir: str | Path | None = None
) -> None:
    """Log which words are unknown; refuse a model that has nothing for this lexicon."""
    if not coverage.known or coverage.is_in_other_case:
        raise _no_word(coverage, arpa, lang_dir)
    for word, what in ((SENTENCE_START, "start"), (SENTENCE_END, "end")):
        if word not in coverage.frame:
            other = coverage.other_name(word)
            raise UserError(
                f"the language model has no sentence {what} {word}"
                + (f"; it has {other}" if other else ""),
                file=arpa,
                remedy=f"write {word} for {other} in all its n-grams"
                if other
                else "estimate it on sentences framed by <s> and </s>",
            )
    for word in (EPSILON, GRAMMAR_DISAMBIG):
        if word in coverage.unknown:
            raise UserError(
                f"the language model has the word {word}, which is a reserved symbol",
                file=arpa,
                remedy="remove it from the text of the model",
            )
    if coverage.unknown:
        log.warning(
            "%s: %d of its %d words are not in the lexicon, e.g. %s",
            arpa,
            len(coverage.unknown),
            len(coverage.unknown) + len(coverage.known),
            ", ".join(sorted(coverage.unknown)[:10]),
        )
    if coverage.other_case:
        ours, theirs = min(coverage.other_case.items())
        log.warning(
            "%s: %d of these words are in the lexicon in another case, e.g. %s as %s",
            arpa,
            len(coverage.other_case),
            ours,
            theirs,
        )


def _no_word(
    coverage: Coverage, arpa: str | Path, lang_dir: str | Path | None
) -> UserError:
    """Return the error about a model without a word of the lexicon."""
    lexicon = (
        "the lexicon" if lang_dir is None else f"the lexicon ({lang_dir}/words.txt)"
    )
    what = f"no word of the language model is in {lexicon}"
    if coverage.known:
        what = (
            f"words of the language model that are in {lexicon}: "
            f"{len(coverage.known)}, and in another case {len(coverage.other_case)}"
        )
    if coverage.other_case:
        ours, theirs = min(coverage.other_case.items())
        return UserError(
            f"{what}: the model has {ours}, the lexicon {theirs}",
            file=arpa,
            remedy="write the model (lm.path) and the lexicon in the same case",
        )
    example = min(coverage.unknown, default="none")
    return UserError(
        f"{what}; the model has e.g. {example}",
        file=arpa,
        remedy="check the language and the script of the model (lm.path) and of the "
        "lexicon",
    )
