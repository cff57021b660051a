"""Sections on what went in: speech, lexicon, language model, graphs, ledgers.

Public: `data_section`, `language_section`, `ledger_section`, `training_hours`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from latflow.files import read_lines
from latflow.fst.graph import Graph
from latflow.ledger import read_ledger
from latflow.report.inputs import Results, read_manifest
from latflow.report.page import Column, Note, Section, Table, missing, text_column

_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")


@dataclass(frozen=True)
class SplitSize:
    """How much speech a part of the corpus has."""

    seconds: float
    utterances: int
    speakers: int
    words: int
    distinct_words: int
    oov: int


def data_section(results: Results) -> Section:
    """Hours, utterances, speakers, words and unknown words of each part."""
    lead = (
        "The speech of this experiment. Unknown words (OOV) are not in the lexicon, so "
        "they cannot be recognised: in a test set they are errors from the start."
    )
    section = Section("data", "Speech data", lead)
    vocabulary = _vocabulary(results / "lang/words.txt")
    rows = []
    for split in results.splits:
        size = split_size(results / f"corpus/{split}/cuts.jsonl.gz", vocabulary)
        if size is not None:
            rows.append([split, *_size_cells(size, has_oov=vocabulary is not None)])
    if not rows:
        section.blocks.append(missing("speech data", "corpus"))
        return section
    columns = [text_column("part"), Column("hours"), Column("utterances")]
    columns += [Column("speakers"), Column("mean length (s)"), Column("words")]
    columns += [Column("distinct words"), Column("OOV (% of words)")]
    section.blocks.append(Table(columns, rows))
    return section


def split_size(cuts: Path, vocabulary: frozenset[str] | None) -> SplitSize | None:
    """Measure one part of the corpus.

    Args:
        cuts: its manifest.
        vocabulary: words of the lexicon; unknown words are not counted without.

    Returns:
        Sizes; None if the manifest is not there.
    """
    if not cuts.is_file():
        return None
    seconds, utterances, oov = 0.0, 0, 0
    speakers: set[str] = set()
    counts: Counter[str] = Counter()
    for cut in read_manifest(cuts):
        seconds += cut["duration"]
        utterances += 1
        for supervision in cut["supervisions"]:
            speakers.add(supervision.get("speaker") or "unknown")
            counts.update((supervision.get("text") or "").split())
    if vocabulary is not None:
        oov = sum(n for word, n in counts.items() if word not in vocabulary)
    words = sum(counts.values())
    return SplitSize(seconds, utterances, len(speakers), words, len(counts), oov)


def language_section(results: Results) -> Section:
    """Sizes of lexicon, language model and decoding graphs."""
    lead = (
        "The lexicon says which phones a word may be made of, the language model which "
        "words follow which. Both are composed with the phone models to one decoding "
        "graph a system (HCLG); its size governs memory and speed of decoding."
    )
    section = Section("language", "Lexicon, language model and graphs", lead)
    rows = [*_lexicon_rows(results), *_arpa_rows(results / "lm/lm.arpa")]
    if rows:
        section.blocks.append(Table([text_column("what"), Column("number")], rows))
    else:
        section.blocks.append(missing("lexicon and language model", "lang"))
    graphs = list(_graph_rows(results))
    if graphs:
        columns = [text_column("graph of"), Column("states"), Column("arcs")]
        section.blocks.append(Table([*columns, Column("size (MB)")], graphs))
    else:
        section.blocks.append(missing("decoding graph", "graphs"))
    return section


def ledger_section(results: Results) -> Section:
    """What each stage skipped, retried or cut, and why."""
    lead = (
        "No utterance is dropped in silence: each stage writes what it skipped, tried "
        "again or noticed into its ledger. A stage fails when it skips more than "
        f"{100 * results.config['ledger']['max_skipped_fraction']:g} % of its "
        "utterances. Numbers within a reason are shown as #."
    )
    section = Section("ledger", "Skipped and repaired utterances", lead)
    paths = sorted(results.folder.rglob("*ledger.jsonl"))
    counts: Counter[tuple[str, str, str, str]] = Counter()
    first: dict[tuple[str, str, str, str], str] = {}
    for path in paths:
        place = path.parent.relative_to(results.folder).as_posix()
        for entry in read_ledger(path):
            key = (place, entry.stage, entry.action, _NUMBER.sub("#", entry.reason))
            counts[key] += 1
            first.setdefault(key, entry.utterance)
    if not paths:
        section.blocks.append(missing("ledgers", "corpus"))
    elif not counts:
        section.blocks.append(Note(f"All {len(paths)} ledgers are empty."))
    else:
        rows = [[*key, str(n), first[key]] for key, n in sorted(counts.items())]
        titles = ("folder", "stage", "action", "reason")
        columns = [*map(text_column, titles), Column("entries"), text_column("first")]
        section.blocks.append(Table(columns, rows))
    return section


def training_hours(results: Results) -> float | None:
    """Hours of training speech; None where there is no manifest yet."""
    size = split_size(results / "corpus/train/cuts.jsonl.gz", None)
    return None if size is None else size.seconds / 3600


def _size_cells(size: SplitSize, *, has_oov: bool) -> list[str]:
    """Cells of one part of the corpus."""
    oov = f"{100 * size.oov / max(1, size.words):.2f}" if has_oov else ""
    return [
        f"{size.seconds / 3600:.2f}",
        str(size.utterances),
        str(size.speakers),
        f"{size.seconds / max(1, size.utterances):.1f}",
        str(size.words),
        str(size.distinct_words),
        oov,
    ]


def _vocabulary(path: Path) -> frozenset[str] | None:
    """Words of a symbol table; None if it is not there."""
    if not path.is_file():
        return None
    return frozenset(line.split()[0] for _, line in read_lines(path) if line.strip())


def _lexicon_rows(results: Results) -> Iterator[list[str]]:
    """Numbers of words, pronunciations and phones."""
    lexicon = results / "lang/lexiconp.txt"
    if lexicon.is_file():
        words = [line.split()[0] for _, line in read_lines(lexicon) if line.strip()]
        yield ["words in the lexicon", str(len(set(words)))]
        yield ["pronunciations", str(len(words))]
    for name in ("nonsilence", "silence"):
        path = results / f"lang/phones/{name}.txt"
        if path.is_file():
            number = sum(bool(line.strip()) for _, line in read_lines(path))
            yield [f"{name} phones", str(number)]


def _arpa_rows(path: Path) -> Iterator[list[str]]:
    """Numbers of n-grams, from the head of an ARPA file."""
    if not path.is_file():
        return
    for _, line in read_lines(path):
        if line.startswith("ngram "):
            order, _, number = line.removeprefix("ngram ").partition("=")
            yield [f"{order.strip()}-grams in the language model", number.strip()]
        elif line.strip() == "\\1-grams:":
            return


def _graph_rows(results: Results) -> Iterator[list[str]]:
    """Sizes of the decoding graphs."""
    for system in results.gmm_systems:
        path = results / f"graph/{system}/HCLG.fst"
        if path.is_file():
            graph = Graph.load(path)
            size = f"{path.stat().st_size / 1e6:.1f}"
            yield [system, str(graph.num_states), str(graph.num_arcs), size]
