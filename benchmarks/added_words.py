"""Words that a search gets at run time; peer: the same search with them in HCL and G.

    python benchmarks/added_words.py results/demo chain [--split test] [--words 20]
        [--boost -2] [--like NEW=KNOWN ...] [--seed 1]

takes content words out of lexicon and language model, and decodes a set with the
package of a network in three ways, at the same beams: without the words, with them
added at run time, and with all words in the lexicon and the n-grams. The words are
drawn among those of the set's texts that are not among its most frequent ones. Prints
JSON, for each way: word error rate in all, of utterances without any of the words, the
share of the words that was recognized, how many stand where they were not said in a
hundred utterances, processor seconds; and milliseconds to prepare the words.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import kaldialign
import numpy as np
from lhotse import CutSet
from timing import Stopwatch

from latflow.decode.composed_graph import GraphParts
from latflow.decode.decoder import LatticeDecoder
from latflow.fst.graph import Graph
from latflow.fst.optimize import connect
from latflow.graphs.hclg import HclgComposer, load_model
from latflow.graphs.options import ChainGraphOptions
from latflow.lang.directory import Lang
from latflow.lang.lexicon import Pronunciation, entry_line
from latflow.lattice.best_path import Scales, best_paths
from latflow.serving.options import LanguageOptions
from latflow.serving.package import Model

NUM_FREQUENT = 20  # words of the texts that are not taken out
TRIALS = 7  # of preparing the words


@dataclass(frozen=True)
class Utterance:
    """Scores of an utterance and what it says."""

    scores: np.ndarray
    words: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("system")
    parser.add_argument("--split", default="test")
    parser.add_argument("--words", type=int, default=20)
    parser.add_argument("--boost", type=float, default=-2.0)
    parser.add_argument("--like", nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(_measure(arguments, Path(folder)), indent=1))


def _measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Decode the set in three ways."""
    results, system = arguments.results, arguments.system
    package = Model.load(results / "package" / system)
    cuts = results / "corpus" / arguments.split / "cuts.jsonl.gz"
    utterances = list(_utterances(package, cuts))
    chosen = _chosen(utterances, arguments.words, arguments.seed)
    parts = {
        "without": _parts(results, system, folder / "without", chosen),
        "with": _parts(results, system, folder / "with", []),
    }
    lang = package.lang
    lines = tuple(
        entry_line(Pronunciation(word, phones, probability))
        for word in chosen
        for probability, phones in lang.lexicon[word]
    )
    options = LanguageOptions(new_words=lines, words_like=tuple(arguments.like))
    lacking, whole = (_package(package, folder / name, parts[name]) for name in parts)
    prepared, added = [], lacking
    for n in range(TRIALS):  # another boost is another list
        began = time.perf_counter()
        boost = arguments.boost + 1e-6 * n
        added, _ = lacking.for_session(options.replace(word_boost=boost))
        prepared.append(1000 * (time.perf_counter() - began))
    return {
        "words": chosen,
        "prepare_ms": round(statistics.median(prepared[1:]), 2),
        **{
            name: _decode(model, utterances, set(chosen))
            for name, model in (
                ("without", lacking),
                ("added", added),
                ("in_lexicon", whole),
            )
        },
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


def _chosen(utterances: Sequence[Utterance], number: int, seed: int) -> list[str]:
    """Draw words of the texts, none of the most frequent ones."""
    counts = Counter(word for utterance in utterances for word in utterance.words)
    frequent = {word for word, _ in counts.most_common(NUM_FREQUENT)}
    rare = sorted(set(counts) - frequent)
    rng = np.random.default_rng(seed)
    return sorted(map(str, rng.choice(rare, min(number, len(rare)), replace=False)))


def _parts(
    results: Path, system: str, folder: Path, words: Sequence[str]
) -> list[Graph]:
    """Return HCL and G without some words."""
    folder.mkdir()
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
    model: Model, utterances: Sequence[Utterance], chosen: set[str]
) -> dict[str, Any]:
    """Decode all utterances and count."""
    scales = Scales.from_lmwt(model.info.lmwt or 1.0, model.info.wip or 0.0)
    errors = {True: [0, 0], False: [0, 0]}  # of utterances with the words, without
    found, said, false_alarms, seconds = 0, 0, 0, 0.0
    model.decoder.decode(
        utterances[0].scores, acoustic_scale=model.acoustic_scale
    )  # compiled
    for utterance in utterances:
        with Stopwatch() as spent:
            decoded = model.decoder.decode(
                utterance.scores, acoustic_scale=model.acoustic_scale
            )
        seconds += spent.processor
        costs = np.float32(model.lattice_scale) * decoded.lattice.acoustic_cost
        lattice = replace(decoded.lattice, acoustic_cost=costs)
        path = best_paths(lattice, [scales])[0]
        words = [model.lang.words[word] for word in path.words.tolist()]
        pairs = kaldialign.align(utterance.words, words, "")
        has = bool(chosen & set(utterance.words))
        errors[has][0] += sum(a != b for a, b in pairs)
        errors[has][1] += len(utterance.words)
        said += sum(a in chosen for a, _ in pairs)
        found += sum(a == b and a in chosen for a, b in pairs)
        false_alarms += sum(a != b and b in chosen for a, b in pairs)
    total = [sum(column) for column in zip(*errors.values(), strict=True)]
    return {
        "wer": round(100 * total[0] / total[1], 2),
        "wer_of_others": round(100 * errors[False][0] / max(1, errors[False][1]), 2),
        "occurrences": said,
        "recall": round(found / max(1, said), 3),
        "false_alarms_per_100": round(100 * false_alarms / len(utterances), 2),
        "seconds": round(seconds, 2),
    }


if __name__ == "__main__":
    main()
