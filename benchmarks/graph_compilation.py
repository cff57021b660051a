"""Time of training graphs and of HCLG; peer: kaldifst's general operations.

    .venv/bin/python benchmarks/graph_compilation.py ../shared/corpora/speechocean

Makes the lang directory and G of a corpus folder (lexicon.txt, lm.arpa, train/text), an
untrained system whose tree asks nothing (mono: no context; tri: three phones), and
prints one JSON line for each system. Times are wall seconds.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from timing import Stopwatch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from reference.training_graph import compile_training_graph

from latflow.graphs.hclg import build_hclg
from latflow.graphs.options import GraphOptions
from latflow.graphs.training import TrainingGraphCompiler
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency, Root, stub_map
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_grammar, make_lang
from latflow.parallel import in_order, worker_pool

REPOSITORY = Path(__file__).resolve().parents[1]


def systems(lang):
    counts = lang.topology.pdf_class_counts()
    yield "mono", ContextDependency.monophone(lang.phone_sets, counts)
    roots = [Root(tuple(sorted(p)), shared=False) for p in lang.phone_sets]
    yield "tri", ContextDependency(3, 1, stub_map(roots, counts, 1))


def seconds_of(action):
    with Stopwatch() as spent:
        result = action()
    return round(spent.wall, 3), result


def measure(lang, grammar, name, tree, utterances, num_peer):
    model = TransitionModel.from_tree(tree, lang.topology)
    compiler = TrainingGraphCompiler(lang, tree, model)
    compiler.compile(utterances[0][1])  # compiles the kernels
    row = {"system": name, "utterances": len(utterances)}
    for threads in (1, 2):
        texts = [words for _, words in utterances]
        with worker_pool(threads) as pool:
            row[f"compile_s_{threads}_threads"], states = seconds_of(
                lambda pool=pool, texts=texts: sum(
                    graph.num_states
                    for graph in in_order(pool, compiler.compile, texts)
                )
            )
    row["states_per_graph"] = round(states / len(utterances), 1)
    peer, _ = seconds_of(
        lambda: [
            compile_training_graph(lang, tree, model, words)
            for _, words in utterances[:num_peer]
        ]
    )
    row["kaldifst_s_per_graph"] = round(peer / num_peer, 5)
    row["ours_s_per_graph"] = round(row["compile_s_1_threads"] / len(utterances), 5)
    row["hclg_s"], graph = seconds_of(
        lambda: build_hclg(lang.folder, grammar, tree, model, GraphOptions())
    )
    row["hclg_states"], row["hclg_arcs"] = graph.num_states, graph.num_arcs
    row["load_average"] = os.getloadavg()[0]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--peer-utterances", type=int, default=20)
    arguments = parser.parse_args()
    corpus = arguments.corpus
    with tempfile.TemporaryDirectory() as folder:
        make_lang(corpus / "lexicon.txt", Path(folder) / "lang", options=LangOptions())
        grammar = Path(folder) / "G.fst"
        make_grammar(corpus / "lm.arpa", Path(folder) / "lang", grammar)
        lang = Lang.load(Path(folder) / "lang")
        lines = (corpus / "train/text").read_text(encoding="utf-8").splitlines()
        split = [line.split(maxsplit=1) for line in lines]
        utterances = [(key, lang.words_to_ids(text)) for key, text in split]
        for name, tree in systems(lang):
            row = measure(
                lang, grammar, name, tree, utterances, arguments.peer_utterances
            )
            print(json.dumps(row))


if __name__ == "__main__":
    main()
