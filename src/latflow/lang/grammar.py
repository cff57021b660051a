"""From an ARPA model to the grammar acceptor G.

G has a state for each history and accepts word sequences with costs -ln p; back-off
arcs carry `#0` on their input side, so that G composed with the lexicon can be
determinized. `<s>` and `</s>` leave no labels: they are the start and the final costs.

Public: `write_grammar`, `check_grammar`, `grammar_graph`.
Source: Kaldi `lmbin/arpa2fst.cc` (`--disambig-symbol=#0`), which `kaldilm` wraps;
`utils/format_lm.sh`, `fstbin/fstisstochastic.cc`.
"""

from __future__ import annotations

import gzip
import logging
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import kaldifst
import kaldilm
import numpy as np

from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.lang.arpa import LOG_ZERO, NgramModel, arpa_entries
from latflow.lang.lexicon import (
    EPSILON,
    GRAMMAR_DISAMBIG,
    SENTENCE_END,
    SENTENCE_START,
)
from latflow.logs import library_output

log = logging.getLogger(__name__)

_LN_10 = math.log(10.0)
FRAME = frozenset({SENTENCE_START, SENTENCE_END})


@dataclass(frozen=True)
class Coverage:
    """Words that an ARPA model and a lexicon have in common.

    Attributes:
        known: words of the model that words.txt has, `<s>` and `</s>` not counted.
        unknown: words of the model that it lacks.
        dropped: length -> number of n-grams with such a word.
        total: length -> number of all n-grams.
        frame: which of `<s>` and `</s>` the model has.
    """

    known: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    dropped: Counter[int] = field(default_factory=Counter)
    total: Counter[int] = field(default_factory=Counter)
    frame: set[str] = field(default_factory=set)


def write_grammar(
    arpa: str | Path, lang_dir: str | Path, word_ids: Mapping[str, int], out: str | Path
) -> None:
    """Turn an ARPA file into `G.fst`, its arcs sorted by input label.

    N-grams with words outside words.txt are dropped, as Kaldi does; what they weighed
    is lost, not shared among the others.

    Args:
        arpa: the ARPA file (`.gz` too).
        lang_dir: the lang directory, for its `words.txt`.
        word_ids: the same table, read.

    Raises:
        UserError: the ARPA file is faulty, or has no word of the lexicon; G accepts
            nothing.
    """
    coverage = _coverage(arpa, word_ids)
    _check_coverage(coverage, arpa, lang_dir)
    with (
        tempfile.TemporaryDirectory() as folder,
        atomic_output(out) as temporary,
        library_output(),
    ):
        kaldilm.arpa2fst(
            input_arpa=str(_plain(Path(arpa), Path(folder))),
            output_fst=str(temporary),
            disambig_symbol=GRAMMAR_DISAMBIG,
            read_symbol_table=str(Path(lang_dir) / "words.txt"),
            max_arpa_warnings=0,
        )
        fst = kaldifst.StdVectorFst.read(str(temporary))
        if fst is None:
            raise UserError(
                "the grammar could not be written",
                file=out,
                remedy="check the free space on the disk",
            )
        if fst.start < 0:
            raise UserError(
                "the grammar accepts no sentence",
                file=arpa,
                remedy="the model must end sentences (</s>) and share words with the "
                "lexicon",
            )
        check_grammar(Graph.load(temporary), word_ids, arpa)


def grammar_graph(model: NgramModel, word_ids: Mapping[str, int]) -> Graph:
    """Turn a model in memory into G, as `write_grammar` does with that of a file.

    Args:
        model: all of its words but `<s>` and `</s>` are in `word_ids`.
        word_ids: words.txt.

    Source: Kaldi `lm/arpa-lm-compiler.cc`.
    """
    log_probs, backoffs = _ngrams(model)
    state = {history: number for number, history in enumerate([(), *backoffs])}

    def longest(words: tuple[int, ...]) -> int:
        """Return the state of the longest history that the words end with."""
        while words not in state:
            words = words[1:]
        return state[words]

    labels = [word_ids.get(word, 0) for word in model.words]
    end, back = model.word_ids[SENTENCE_END], word_ids[GRAMMAR_DISAMBIG]
    final = np.full(len(state), np.inf, np.float32)
    sources: list[int] = []
    arcs: list[tuple[int, int, float, int]] = []
    for words, log_prob in log_probs.items():
        source, label = state[words[:-1]], labels[words[-1]]
        if words[-1] == end:
            final[source] = -log_prob * _LN_10
        else:
            sources.append(source)
            arcs.append((label, label, -log_prob * _LN_10, longest(words)))
    for words, weight in backoffs.items():
        sources.append(state[words])
        arcs.append((back, 0, -weight * _LN_10, longest(words[1:])))
    begin = state.get((model.word_ids[SENTENCE_START],), 0)
    return Graph.from_arc_list(
        begin, np.array(sources, np.int64), np.array(arcs, ARC), final
    )


def _ngrams(
    model: NgramModel,
) -> tuple[dict[tuple[int, ...], float], dict[tuple[int, ...], float]]:
    """Return log10 of the probability of n-grams, and of the weight of histories.

    N-grams of no probability are left out; keys are ids of the model's words.
    """
    log_probs: dict[tuple[int, ...], float] = {}
    backoffs: dict[tuple[int, ...], float] = {}
    texts: list[tuple[int, ...]] = [()]
    for level in model.levels:
        pairs = zip(level.prefix.tolist(), level.word.tolist(), strict=True)
        texts = [(*texts[prefix], word) for prefix, word in pairs]
        rows = zip(texts, level.log_prob.tolist(), strict=True)
        log_probs |= {words: value for words, value in rows if value > LOG_ZERO}
        if level.log_backoff is not None:
            rows = zip(texts, level.log_backoff.tolist(), strict=True)
            backoffs |= {words: value for words, value in rows if not math.isnan(value)}
    return log_probs, backoffs


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
        well above 0 tells of probability that was lost with dropped words.

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


def _coverage(arpa: str | Path, word_ids: Mapping[str, int]) -> Coverage:
    """Compare the words of the model with words.txt; checks the file on the way."""
    coverage = Coverage()
    allowed = set(word_ids) - {EPSILON, GRAMMAR_DISAMBIG} | FRAME
    for _, words, _ in arpa_entries(arpa):
        length = len(words)
        coverage.total[length] += 1
        if length == 1 and words[0] in FRAME:
            coverage.frame.add(words[0])
        elif length == 1:
            known = words[0] in allowed
            (coverage.known if known else coverage.unknown).add(words[0])
        if not allowed.issuperset(words):
            coverage.dropped[length] += 1
    return coverage


def _check_coverage(coverage: Coverage, arpa: str | Path, lang_dir: str | Path) -> None:
    """Log what is dropped; refuse a model that has nothing for this lexicon."""
    if not coverage.known:
        example = min(coverage.unknown, default="none")
        raise UserError(
            f"no word of the language model is in the lexicon ({lang_dir}/words.txt); "
            f"the model has e.g. {example}",
            file=arpa,
            remedy="check case and language of the lexicon and the model",
        )
    for word, what in ((SENTENCE_START, "start"), (SENTENCE_END, "end")):
        if word not in coverage.frame:
            raise UserError(
                f"the language model has no sentence {what} {word}",
                file=arpa,
                remedy="estimate it on sentences framed by <s> and </s>",
            )
    for word in (EPSILON, GRAMMAR_DISAMBIG):  # kaldilm would abort the process
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
    for length, count in sorted(coverage.dropped.items()):
        log.warning(
            "%s: %d of %d %d-grams dropped with them",
            arpa,
            count,
            coverage.total[length],
            length,
        )


def _plain(arpa: Path, folder: Path) -> Path:
    """Return the file itself, or its decompressed copy in a temporary folder."""
    if arpa.suffix != ".gz":
        return arpa
    target = folder / "lm.arpa"
    with gzip.open(arpa, "rb") as source, target.open("wb") as stream:
        shutil.copyfileobj(source, stream)
    return target
