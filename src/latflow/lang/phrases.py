"""Phrases that are favoured, as a back-off language model.

A sentence has the cost -boost x words of each occurrence of a phrase in it, summed.

The model has a state for each beginning of a phrase. Each word that continues with a
phrase is given its boost at once (of several phrases that it may become, the largest
one); where the phrase breaks off, the back-off arc takes back the discount given in
advance, and leads to the longest suffix of the words that begins a phrase again.

Source: Aho and Corasick 1975, "Efficient string matching" (failure arcs).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from latflow.lang.lm_arrays import ROOT, LmArrays
from latflow.lang.lm_trie import LmTrie


def plain_model(num_words: int) -> LmTrie:
    """Return the model without phrases: nothing costs anything.

    Args:
        num_words: one more than the largest word id.
    """
    return phrase_model({}, num_words)


def phrase_model(phrases: Mapping[tuple[int, ...], float], num_words: int) -> LmTrie:
    """Return the model of phrases.

    Args:
        phrases: word ids of each, none of them empty -> boost of each word of it,
            negated log.
        num_words: one more than the largest word id.
    """
    own = sorted({word for phrase in phrases for word in phrase})
    label_of = np.full(num_words, len(own), np.int32)  # other words share a label
    label_of[own] = np.arange(len(own))
    end = len(own) + 1
    root = _Prefix(0)
    for phrase, boost in phrases.items():
        node = root
        for label in label_of[list(phrase)].tolist():
            node = node.next.setdefault(label, _Prefix(node.depth + 1))
            node.boost = max(node.boost, boost)
        node.ended = boost * len(phrase)
        node.is_whole = True
    nodes = _linked(root)
    number = {id(node): i for i, node in enumerate(nodes)}
    arcs: list[tuple[int, float, int]] = []
    arc_begin = [0]
    for node in nodes:
        found = {
            label: (node.pending - n.pending - n.ended, number[id(n)])
            for label, n in node.next.items()
        }
        if node is root:  # which lists every label, each at its own place
            found = {label: found.get(label, (0.0, ROOT)) for label in range(end + 1)}
        arcs.extend((label, *found[label]) for label in sorted(found))
        arc_begin.append(len(arcs))
    shorter = [root if node.shorter is None else node.shorter for node in nodes]
    arrays = LmArrays(
        arc_begin=np.array(arc_begin, np.int64),
        label=np.array([arc[0] for arc in arcs], np.int32),
        cost=np.array([arc[1] for arc in arcs], np.float32),
        next_state=np.array([arc[2] for arc in arcs], np.int32),
        backoff_state=np.array([-1] + [number[id(s)] for s in shorter[1:]], np.int32),
        backoff_cost=np.array(
            [n.pending - s.pending for n, s in zip(nodes, shorter, strict=True)],
            np.float32,
        ),
    )
    for array in arrays:
        array.setflags(write=False)  # as `lay_out` leaves them: kernels compile once
    return LmTrie(arrays, 0, ROOT, end, [], label_of, {})


@dataclass(eq=False)
class _Prefix:
    """A beginning of phrases.

    Attributes:
        depth: its words.
        next: longer ones, by label.
        boost: the largest of the phrases that begin so.
        is_whole: whether it is a phrase.
        whole: words of the longest phrase that it begins with.
        ended: what all phrases that end with its last word are worth.
        shorter: its longest ending that is a beginning too; None for the root.
    """

    depth: int
    next: dict[int, _Prefix] = field(default_factory=dict)
    boost: float = 0.0
    is_whole: bool = False
    whole: int = 0
    ended: float = 0.0
    shorter: _Prefix | None = None

    @property
    def pending(self) -> float:
        """What its words have been given in advance."""
        return self.boost * (self.depth - self.whole)


def _linked(root: _Prefix) -> list[_Prefix]:
    """Complete all of them; return them, short ones first."""
    nodes = [root]
    for node in nodes:
        if node.shorter is not None:
            node.ended += node.shorter.ended
        if node.is_whole:
            node.whole = node.depth
        for label, child in node.next.items():
            child.whole = node.whole
            ending = node.shorter
            while ending is not None and label not in ending.next:
                ending = ending.shorter
            child.shorter = root if ending is None else ending.next[label]
            nodes.append(child)
    return nodes
