"""Beam search of a decoder with attention, along the words of a lexicon.

Sequences of units grow by one unit a step, all of the beam and of several utterances
together. Units follow a prefix tree of the words' spellings; at the end of a word the
language model takes it (shallow fusion at the words' ends), and the next word begins at
the tree's root, where the sequence may end too. The score of a sequence, to be
maximized, is

    log p(units, end) + length_bonus x units + coverage x frames covered
        - lm_scale x cost of the words

A frame is covered where the weights of all attentions on it (means over the heads) add
up to more than `coverage_threshold`. All of it adds up, so that lattices can hold it as
costs; a score that is divided by the length could not.

As with HMMs, a word takes one output frame for each of its phones at least, which
bounds the length of what is found. Of a step's candidates the best `beam` are kept,
finished ones among them; a beam of one is the greedy search.

Source: Chorowski & Jaitly 2017, "Towards better decoding and language model integration
in sequence to sequence models" (coverage); Hori, Watanabe & Hershey 2017 (word-level
language models in search over characters).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from latflow.decode.options import AttentionDecodeOptions
from latflow.jit import njit
from latflow.lang.lm_arrays import LmArrays, walk
from latflow.lang.lm_trie import LmTrie
from latflow.nnet.layers.decoder import END, AttentionDecoder

ROOT = 0
_INSIDE, _FINISHED = -1, -2  # instead of an entry


class Entry(NamedTuple):
    """A word as the tree has it; of several pronunciations, one each.

    Attributes:
        units: its spelling.
        word: its word id.
        num_phones: frames that it takes at least.
    """

    units: tuple[int, ...]
    word: int
    num_phones: int


class TreeArrays(NamedTuple):
    """Arrays of a tree, for kernels; N nodes, C arcs, E entries.

    Attributes:
        child_begin: int64[N + 1], where the arcs of each node begin.
        unit, child: int32[C].
        entry_begin: int64[N + 1], where the entries that end in each node begin.
        entry: int32[E], their numbers.
        label: int32[E], of their words in the language model, by number.
        num_phones: int32[E], by number.
        fan_out: int64[N], continuations of a sequence in each node, at most.
    """

    child_begin: np.ndarray
    unit: np.ndarray
    child: np.ndarray
    entry_begin: np.ndarray
    entry: np.ndarray
    label: np.ndarray
    num_phones: np.ndarray
    fan_out: np.ndarray


class PrefixTree:
    """The spellings of words, and the language model that they go through.

    Attributes:
        entries: the words, by number.
        arrays: the tree; node 0 is the root.
        lm: the language model.

    Args:
        entries: words that the language model lists.
        lm: by the same word ids.
    """

    def __init__(self, entries: Sequence[Entry], lm: LmTrie) -> None:
        self.entries = tuple(entries)
        self.lm = lm
        children: list[dict[int, int]] = [{}]
        ends: list[list[int]] = [[]]
        for number, entry in enumerate(self.entries):
            node = ROOT
            for unit in entry.units:
                if unit not in children[node]:
                    children[node][unit] = len(children)
                    children.append({})
                    ends.append([])
                node = children[node][unit]
            ends[node].append(number)
        words = np.array([entry.word for entry in self.entries], np.int32)
        self.arrays = TreeArrays(
            _begins([len(arcs) for arcs in children]),
            np.array([unit for arcs in children for unit in arcs], np.int32),
            np.array([c for arcs in children for c in arcs.values()], np.int32),
            _begins([len(numbers) for numbers in ends]),
            np.array([n for numbers in ends for n in numbers], np.int32),
            lm.labels(words).astype(np.int32),
            np.array([entry.num_phones for entry in self.entries], np.int32),
            np.array([1 + sum(1 + len(ends[c]) for c in a.values()) for a in children]),
        )


def _begins(counts: Sequence[int]) -> np.ndarray:
    """Return where each of some rows begins, int64[N + 1]."""
    begin = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=begin[1:])
    return begin


@dataclass(frozen=True)
class Hypothesis:
    """A finished sequence.

    Attributes:
        entries: its words, by their numbers in the tree.
        peaks: for each unit the frame with the greatest weight when it was emitted.
        acoustic: score of all but the language model.
        lm_cost: cost of the words and of the sentence's end, unscaled.
        score: what was maximized.
    """

    entries: tuple[int, ...]
    peaks: tuple[int, ...]
    acoustic: float
    lm_cost: float
    score: float


@dataclass
class _Beam:
    """The sequences of an utterance that continue, n of them.

    Attributes:
        max_phones: frames of the encoder.
        node, lm_state, num_phones: int32[n].
        log_prob, lm_cost: float64[n].
        num_units: units of each sequence; all have as many.
        trail: int64[n], their last units' positions in `history`.
        history: (position of the unit before, peak, entry), of all units ever kept.
        finished: what has ended.
    """

    max_phones: int
    node: np.ndarray
    lm_state: np.ndarray
    num_phones: np.ndarray
    log_prob: np.ndarray
    lm_cost: np.ndarray
    trail: np.ndarray
    num_units: int = 0
    history: list[tuple[int, int, int]] = field(default_factory=list)
    finished: list[Hypothesis] = field(default_factory=list)

    @classmethod
    def start(cls, max_phones: int, lm_state: int) -> _Beam:
        """Return one empty sequence."""
        zero, one = np.zeros(1, np.int32), np.zeros(1)
        state = np.full(1, lm_state, np.int32)
        trail = np.full(1, -1, np.int64)
        return cls(max_phones, zero, state, zero, one, one, trail)

    def __len__(self) -> int:
        return len(self.node)

    def step(
        self,
        log_probs: np.ndarray,
        peaks: np.ndarray,
        covered: np.ndarray,
        tree: PrefixTree,
        options: AttentionDecodeOptions,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Take the best continuations.

        Args:
            log_probs: float64[n, K], of the next unit.
            peaks: int64[n], frame with the greatest weight of each attention.
            covered: float64[n], frames that are covered by now.
            tree: words and language model.
            options: of the search.

        Returns:
            (sequences that continue, by their numbers before; their last units).
        """
        found = _expand(
            tree.arrays,
            tree.lm.arrays,
            tree.lm.end,
            log_probs,
            self.node,
            self.lm_state,
            self.num_phones,
            self.max_phones,
        )
        parent, unit, entry, node, lm_state, num_phones, log_prob, cost = found
        log_prob = self.log_prob[parent] + log_prob
        lm_cost = self.lm_cost[parent] + cost
        is_end = entry == _FINISHED
        acoustic = log_prob + options.coverage * covered[parent]
        acoustic += options.length_bonus * (self.num_units + ~is_end)
        score = acoustic - options.lm_scale * lm_cost
        best = np.argsort(-score, kind="stable")[: options.beam]
        for i in best[is_end[best]].tolist():
            self._finish(
                int(parent[i]), float(acoustic[i]), float(lm_cost[i]), float(score[i])
            )
        kept = best[~is_end[best]]
        if self.finished:
            least = max(one.score for one in self.finished) - options.margin
            kept = kept[score[kept] >= least]
        rows = parent[kept]
        first = len(self.history)
        self.history += zip(
            self.trail[rows].tolist(),
            peaks[rows].tolist(),
            entry[kept].tolist(),
            strict=True,
        )
        self.trail = np.arange(first, first + len(kept))
        self.node, self.lm_state = node[kept], lm_state[kept]
        self.num_phones = num_phones[kept]
        self.log_prob, self.lm_cost = log_prob[kept], lm_cost[kept]
        self.num_units += 1
        return rows, unit[kept]

    def _finish(self, row: int, acoustic: float, lm_cost: float, score: float) -> None:
        """Note that a sequence has ended."""
        peaks: list[int] = []
        entries: list[int] = []
        position = int(self.trail[row])
        while position >= 0:
            position, peak, entry = self.history[position]
            peaks.append(peak)
            if entry != _INSIDE:
                entries.append(entry)
        self.finished.append(
            Hypothesis(
                tuple(reversed(entries)),
                tuple(reversed(peaks)),
                acoustic,
                lm_cost,
                score,
            )
        )

    def result(self, tree: PrefixTree, count: int) -> list[Hypothesis]:
        """Return the best of each sequence of words, the best first."""
        ordered = sorted(self.finished, key=lambda one: -one.score)
        by_words: dict[tuple[int, ...], Hypothesis] = {}
        for one in ordered:
            words = tuple(tree.entries[number].word for number in one.entries)
            by_words.setdefault(words, one)
        return list(by_words.values())[:count]


@torch.no_grad()
def search(
    decoder: AttentionDecoder,
    values: torch.Tensor,
    lengths: Sequence[int],
    tree: PrefixTree,
    options: AttentionDecodeOptions,
) -> list[list[Hypothesis]]:
    """Find the best sequences of words of some utterances.

    Args:
        decoder: in evaluation mode.
        values: [B, T, D], the encoder's frames.
        lengths: frames of each utterance.
        tree: words and language model.
        options: of the search.

    Returns:
        Of each utterance at most `beam` sequences with different words, the best first;
        none where all were dropped before they ended.
    """
    device = values.device
    whole = decoder.memory(values, torch.tensor(lengths, device=device))
    beams = [_Beam.start(length, tree.lm.start) for length in lengths]
    state, memory = decoder.start(whole), whole
    summed = torch.zeros_like(state.attention)
    units = torch.full((len(beams),), END, device=device)
    utterances = np.arange(len(beams))  # utterance of each row
    while len(utterances):
        logits, state = decoder.step(units, state, memory)
        log_probs = torch.log_softmax(logits.double(), 1).cpu().numpy()
        peaks = state.attention.argmax(1).cpu().numpy()
        summed = summed + state.attention
        is_covered = summed > options.coverage_threshold
        covered = is_covered.sum(1).double().cpu().numpy()
        rows, emitted, where = [], [], []
        for u in np.unique(utterances):
            own = np.flatnonzero(utterances == u)
            kept, last = beams[u].step(
                log_probs[own], peaks[own], covered[own], tree, options
            )
            rows.append(own[kept])
            emitted.append(last)
            where.append(np.full(len(kept), u))
        chosen = torch.from_numpy(np.concatenate(rows)).to(device)
        state, summed = state.take(chosen), summed[chosen]
        units = torch.from_numpy(np.concatenate(emitted)).to(device, torch.int64)
        before, utterances = utterances, np.concatenate(where)
        if not np.array_equal(before, utterances):
            memory = whole.take(torch.from_numpy(utterances).to(device))
    return [beam.result(tree, options.beam) for beam in beams]


@njit(cache=True, nogil=True)
def _expand(
    tree: TreeArrays,
    lm: LmArrays,
    end_label: int,
    log_probs: np.ndarray,
    node: np.ndarray,
    lm_state: np.ndarray,
    num_phones: np.ndarray,
    max_phones: int,
) -> tuple[np.ndarray, ...]:
    """List all continuations of some sequences by one unit.

    Returns:
        Columns of the candidates: parent, unit, entry (or `_INSIDE`, `_FINISHED`),
        node, state of the language model, phones, log-probability of the unit, cost of
        the word.
    """
    most = tree.fan_out[node].sum()
    parents, units = np.empty(most, np.int64), np.empty(most, np.int32)
    entries, nodes = np.empty(most, np.int32), np.empty(most, np.int32)
    states, phones = np.empty(most, np.int32), np.empty(most, np.int32)
    log_prob, costs = np.empty(most), np.zeros(most)
    n = 0
    for h in range(len(node)):
        if node[h] == ROOT:
            cost, state = walk(lm, lm_state[h], end_label)
            if cost < np.inf:
                parents[n], units[n], entries[n] = h, END, _FINISHED
                nodes[n], states[n], phones[n] = ROOT, state, num_phones[h]
                log_prob[n], costs[n] = log_probs[h, END], cost
                n += 1
        for arc in range(tree.child_begin[node[h]], tree.child_begin[node[h] + 1]):
            child, unit = tree.child[arc], tree.unit[arc]
            if tree.child_begin[child + 1] > tree.child_begin[child]:
                parents[n], units[n], entries[n] = h, unit, _INSIDE
                nodes[n], states[n], phones[n] = child, lm_state[h], num_phones[h]
                log_prob[n], costs[n] = log_probs[h, unit], 0.0
                n += 1
            for number in range(tree.entry_begin[child], tree.entry_begin[child + 1]):
                entry = tree.entry[number]
                total = num_phones[h] + tree.num_phones[entry]
                if total > max_phones:
                    continue
                label = int(tree.label[entry])
                cost, state = walk(lm, lm_state[h], label)
                if cost < np.inf:
                    parents[n], units[n], entries[n] = h, unit, entry
                    nodes[n], states[n], phones[n] = ROOT, state, total
                    log_prob[n], costs[n] = log_probs[h, unit], cost
                    n += 1
    return (
        parents[:n],
        units[:n],
        entries[:n],
        nodes[:n],
        states[:n],
        phones[:n],
        log_prob[:n],
        costs[:n],
    )
