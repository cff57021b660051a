"""Decoding graphs of speech in which one sentence follows another.

A grammar is of single sentences. Of the words that end one and begin the next it knows
nothing, so that a search through both pays as for words that never meet, and rather
finds others. Here the end of a sentence leads to the beginning of another one:

    cost(a, then b) = cost(a) + cost(b)        beside that of all words as one sentence

An utterance of one sentence costs what it did, and one without words does not continue.

Source: Stolcke and Shriberg 1996, "Automatic linguistic segmentation of conversational
speech" (sentence ends as hidden events of an n-gram model).
"""

from __future__ import annotations

import numpy as np

from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC


def let_sentences_follow(graph: Graph, end: int = 0) -> Graph:
    """Return a decoding graph whose utterances hold one sentence or several.

    Each final state gets an arc without input label, of its final cost, to a second
    start state. What is reached from there without an input label is there twice, too,
    and is not final the second time: no path comes back to where it was without a
    frame.

    Args:
        graph: of single sentences: HCLG, or HCL alone.
        end: output label of these arcs, by which G ends and begins again.
    """
    begin = _reached_without_input(graph)
    second = np.full(graph.num_states, -1, np.int64)
    second[begin] = graph.num_states + np.arange(len(begin))
    source = graph.sources()
    again = np.flatnonzero(second[source] >= 0)
    copies = graph.arcs[again]
    stays = copies["ilabel"] == 0
    copies["next_state"][stays] = second[copies["next_state"][stays]]
    ends = np.flatnonzero(np.isfinite(graph.final))
    onwards = np.zeros(len(ends), ARC)
    onwards["olabel"], onwards["weight"] = end, graph.final[ends]
    onwards["next_state"] = second[graph.start]
    return Graph.from_arc_list(
        graph.start,
        np.concatenate([source, ends, second[source[again]]]),
        np.concatenate([graph.arcs, onwards, copies]),
        np.append(graph.final, np.full(len(begin), np.inf, np.float32)),
    )


def _reached_without_input(graph: Graph) -> list[int]:
    """Return the states that are reached from the start without an input label."""
    found, seen = [graph.start], {graph.start}
    for state in found:
        arcs = slice(*graph.arc_begin[state : state + 2])
        targets = set(graph.next_state[arcs][graph.ilabel[arcs] == 0].tolist())
        found += sorted(targets - seen)
        seen |= targets
    return found
