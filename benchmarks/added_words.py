"""Words that a search gets at run time; peer: the same search with them in HCL and G.

    python benchmarks/added_words.py results/demo chain [--split test] [--words 5]
        [--draws 15] [--boost -1] [--text TEXT] [--like NEW=KNOWN ...] [--seed 1]

takes content words out of lexicon and language model, and decodes a set with the
package of a network in three ways, at the same beams: without the words, with them
added at run time, and with all words in the lexicon and the n-grams. The words are
drawn among those of the set's texts that are not among its most frequent ones; each
draw has others, as long as there are any, and counts are those of all draws. The
n-grams with the words are left out; with `--text` G is estimated anew from a text in
which they are unknown words, as a recipe whose graphs are composed has it. Prints JSON,
for each way: word error rate in all, of utterances without any of the words, and of the
other words; the share of the words that was recognized; how many stand where they were
not said in a hundred utterances; processor seconds, the three ways taking turns at each
utterance. And milliseconds to prepare the words of a draw.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import kaldialign
import numpy as np
from lhotse import CutSet
from timing import Stopwatch

from latflow.corpus.words import WordForms
from latflow.decode.composed_graph import GraphParts
from latflow.decode.decoder import LatticeDecoder
from latflow.fst.graph import Graph
from latflow.fst.optimize import connect
from latflow.graphs.hclg import HclgComposer, load_model
from latflow.graphs.options import ChainGraphOptions
from latflow.lang.arpa import NgramModel
from latflow.lang.directory import Lang
from latflow.lang.grammar import UNKNOWN_WORD, grammar_graph
from latflow.lang.lexicon import Pronunciation, entry_line
from latflow.lang.ngram import estimate, with_unknown_words
from latflow.lang.ngram_counts import text_sentences
from latflow.lattice.best_path import Scales, best_paths
from latflow.serving.options import LanguageOptions
from latflow.serving.package import Model

NUM_FREQUENT = 20  # words of the texts that are not taken out
ORDER = 3  # of n-grams that are estimated anew
TRIALS = 7  # of preparing the words


@dataclass(frozen=True)
class Utterance:
    """Scores of an utterance and what it says."""

    scores: np.ndarray
    words: list[str]


@dataclass
class Counts:
    """What is counted of a way; errors and words by whose they are.

    Attributes:
        errors: of utterances with the words, of those without, of the other words.
        said, found, false_alarms: of the words.
    """

    errors: dict[str, list[int]] = field(
        default_factory=lambda: {"with": [0, 0], "without": [0, 0], "others": [0, 0]}
    )
    said: int = 0
    found: int = 0
    false_alarms: int = 0
    utterances: int = 0
    seconds: float = 0.0

    def add(
        self, said: list[str], heard: list[str], chosen: set[str], seconds: float
    ) -> None:
        """Count an utterance."""
        pairs = kaldialign.align(said, heard, "")
        others = [(a, b) for a, b in pairs if a not in chosen]
        whose = "with" if chosen & set(said) else "without"
        for name, found in ((whose, pairs), ("others", others)):
            self.errors[name][0] += sum(a != b for a, b in found)
            self.errors[name][1] += sum(a != "" for a, _ in found)
        self.said += sum(a in chosen for a, _ in pairs)
        self.found += sum(a == b and a in chosen for a, b in pairs)
        self.false_alarms += sum(a != b and b in chosen for a, b in pairs)
        self.utterances += 1
        self.seconds += seconds

    def figures(self) -> dict[str, float]:
        """Return rates."""
        rows = self.errors["with"], self.errors["without"]
        rates = {"wer": [sum(column) for column in zip(*rows, strict=True)]}
        rates["wer_of_utterances_without"] = self.errors["without"]
        rates["wer_of_other_words"] = self.errors["others"]
        return {
            **{name: round(100 * e / max(1, n), 2) for name, (e, n) in rates.items()},
            "occurrences": self.said,
            "recall": round(self.found / max(1, self.said), 3),
            "false_alarms_per_100": round(100 * self.false_alarms / self.utterances, 2),
            "seconds": round(self.seconds, 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("system")
    parser.add_argument("--split", default="test")
    parser.add_argument("--words", type=int, default=20)
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--boost", type=float, default=-1.0)
    parser.add_argument("--like", nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(_measure(arguments, Path(folder)), indent=1))


def _measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Decode the set in three ways for each draw."""
    results, system = arguments.results, arguments.system
    package = Model.load(results / "package" / system)
    cuts = results / "corpus" / arguments.split / "cuts.jsonl.gz"
    utterances = list(_utterances(package, cuts))
    draws = _draws(utterances, arguments.words, arguments.draws, arguments.seed)
    counts = {name: Counts() for name in ("without", "added", "in_lexicon")}
    (folder / "whole").mkdir()
    whole = _package(package, folder / "whole", _parts(results, system, folder, []))
    prepared: list[float] = []
    for number, chosen in enumerate(draws):
        own = folder / str(number)
        own.mkdir()
        parts = _parts(results, system, own, chosen)
        if arguments.text is not None:
            parts[1] = _grammar(package.lang, arguments.text, chosen)
        lacking = _package(package, own, parts)
        lines = tuple(
            entry_line(Pronunciation(word, phones, probability))
            for word in chosen
            for probability, phones in package.lang.lexicon[word]
        )
        options = LanguageOptions(new_words=lines, words_like=tuple(arguments.like))
        added = lacking
        for n in range(TRIALS):  # another boost is another list
            began = time.perf_counter()
            boost = arguments.boost + 1e-6 * n
            added, _ = lacking.for_session(options.replace(word_boost=boost))
            prepared += [1000 * (time.perf_counter() - began)][: n > 0]
        ways = dict(zip(counts, (lacking, added, whole), strict=True))
        _decode(ways, utterances, set(chosen), counts)
    return {
        "words": draws,
        "prepare_ms": round(statistics.median(prepared), 2),
        **{name: count.figures() for name, count in counts.items()},
    }


def _utterances(package: Model, cuts: Path) -> Iterator[Utterance]:
    """Score the utterances of a set."""
    for cut in CutSet.from_file(cuts):
        samples = cut.load_audio()[0].astype(np.float32)
        front_end = package.front_end()
        frames = np.concatenate([front_end.accept(samples), front_end.finish()])
        if len(frames):
            yield Utterance(
                package.acoustics.log_likes(frames), cut.supervisions[0].text.split()
            )


def _draws(
    utterances: Sequence[Utterance], number: int, draws: int, seed: int
) -> list[list[str]]:
    """Draw words of the texts, none of the most frequent ones and none twice."""
    counts = Counter(word for utterance in utterances for word in utterance.words)
    frequent = {word for word, _ in counts.most_common(NUM_FREQUENT)}
    rng = np.random.default_rng(seed)
    rare = list(map(str, rng.permutation(sorted(set(counts) - frequent))))
    lists = [rare[first : first + number] for first in range(0, len(rare), number)]
    return [sorted(words) for words in lists[:draws]]


def _parts(
    results: Path, system: str, folder: Path, words: Sequence[str]
) -> list[Graph]:
    """Return HCL and G without some words."""
    tree, model = load_model(results / "nnet" / system)
    shutil.copytree(results / "lang", folder / "lang")
    lang = Lang.load(folder / "lang")
    taken = [lang.word_ids[word] for word in words]
    lexicon = _without(Graph.load(results / "lang/L_disambig.fst"), taken)
    lexicon.to_fst().write(str(folder / "lang/L_disambig.fst"))
    composer = HclgComposer(
        Lang.load(folder / "lang"), tree, model, ChainGraphOptions()
    )
    grammar = _without(Graph.load(results / "lm/G.fst"), taken)
    return [composer.compose_lexicon(), grammar]


def _grammar(lang: Lang, text: Path, words: Sequence[str]) -> Graph:
    """Return G of a text, to which some words are unknown."""

    def model_of(unknown_word: str | None) -> NgramModel:
        return estimate(
            text_sentences(text, WordForms(lang.lexicon)),
            ORDER,
            vocabulary=sorted({*lang.speech_words} - {*words, lang.oov_word}),
            unknown_word=unknown_word,
        )

    model = with_unknown_words(model_of(None), model_of("<unk>"))
    return grammar_graph(model, {**lang.word_ids, "<unk>": UNKNOWN_WORD})


def _without(graph: Graph, words: Sequence[int]) -> Graph:
    """Return a graph without the arcs of words."""
    kept = ~np.isin(graph.olabel, words)
    return connect(
        Graph.from_arc_list(
            graph.start, graph.sources()[kept], np.array(graph.arcs)[kept], graph.final
        )
    )


def _package(package: Model, folder: Path, parts: list[Graph]) -> Model:
    """Return a model with another graph."""
    (folder / "graph").mkdir()
    path = folder / "graph/HCLG.fst"
    Graph.save_all(parts, path, is_aligned=True)
    shutil.copytree(package.folder / "model", folder / "model")
    search = package.info.search
    hcl, grammar = Graph.load_all(path)
    decoder = LatticeDecoder(
        GraphParts.of(hcl, grammar, path),
        package.transitions.pdf,
        beam=search.beam,
        lattice_beam=search.lattice_beam,
        max_active=search.max_active,
        min_active=search.min_active,
    )
    return replace(package, folder=folder, decoder=decoder)


def _decode(
    models: Mapping[str, Model],
    utterances: Sequence[Utterance],
    chosen: set[str],
    counts: Mapping[str, Counts],
) -> None:
    """Decode all utterances by models in turn, and count."""
    for model in models.values():  # compiled
        model.decoder.decode(utterances[0].scores, acoustic_scale=model.acoustic_scale)
    for number, utterance in enumerate(utterances):
        names = list(models)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            model = models[name]
            with Stopwatch() as spent:
                lattice = model.decoder.decode(
                    utterance.scores, acoustic_scale=model.acoustic_scale
                ).lattice
                costs = np.float32(model.lattice_scale) * lattice.acoustic_cost
                lattice = model.rescore(replace(lattice, acoustic_cost=costs))
            scales = Scales.from_lmwt(model.info.lmwt or 1.0, model.info.wip or 0.0)
            path = best_paths(lattice, [scales])[0]
            words = [model.lang.words[word] for word in path.words.tolist()]
            counts[name].add(utterance.words, words, chosen, spent.processor)


if __name__ == "__main__":
    main()
