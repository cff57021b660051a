"""Lattice pruning: backward passes that remove links far from the best path.

The *extra cost* of a token is how much the best path through it costs more than the
best path of all. Working backwards from the last frame,

    extra(link)  = extra(target) + cost of the path that ends in the link - cost(target)
    extra(token) = least extra of its links, inf without any,

and links above the lattice beam are removed, tokens with them. In the middle of an
utterance the last frame's tokens have extra cost 0, which is the least they can turn
out to have: what is removed then would be removed in the end as well. So pruning at
intervals bounds memory and changes nothing in the result.

Extra costs are known for two neighbouring frames at a time. What is left of a frame
moves to the beginning of its own space while the frame is in the processor's cache; at
the end the frames move together.

Source: Kaldi `decoder/lattice-faster-decoder.cc` (`PruneForwardLinks`,
`PruneForwardLinksFinal`, `PruneTokensForFrame`). Kaldi's `PruneActiveTokens` goes back
until extra costs hardly change; here the schedule depends on the number of links.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latflow.decode.parts import Records
from latflow.decode.search_graph import SearchGraph
from latflow.decode.tokens import FRAMES, KEPT, LINKS, SETTLED, TOKENS, Store
from latflow.jit import njit

_FEW_LINKS = 1 << 16  # below twice this number old frames are left alone
_REMOVED = np.uint32(0xFFFF_FFFF)


class Tokens(NamedTuple):
    """The tokens of a frame after its pruning.

    Attributes:
        extra: float64[tokens left, or more], extra costs.
        moved: uint32[tokens before], the new number of each token, or _REMOVED.
    """

    extra: np.ndarray
    moved: np.ndarray


@njit(cache=True, nogil=True)
def prune(store: Store, lattice_beam: float) -> None:
    """Prune what has been decoded so far.

    The frames since the last call are pruned, and as many before them again, in the
    light of what has come since. All frames are pruned when the links have doubled
    since that was last done, so that the work stays proportional to the frames.

    Args:
        store: changed in place.
        lattice_beam: links with more extra cost than this are removed.
    """
    counts = store.counts
    frame = counts[FRAMES]
    first = max(0, 2 * counts[SETTLED] - frame)
    if counts[LINKS] > 2 * max(counts[KEPT], _FEW_LINKS):
        first = 0
    num_tokens = counts[TOKENS] - store.token_begin[frame]
    last = Tokens(np.zeros(num_tokens), np.arange(num_tokens).astype(np.uint32))
    _prune_frames(store, first, last, lattice_beam)
    counts[SETTLED] = frame
    if first == 0:
        counts[KEPT] = counts[LINKS]


@njit(cache=True, nogil=True)
def finish(graph: SearchGraph, store: Store, lattice_beam: float) -> bool:
    """Take final costs in and prune the whole utterance.

    Without a token in a final state all tokens of the last frame count as final, at no
    cost.

    Args:
        graph: the packed graph.
        store: changed in place.
        lattice_beam: links with more extra cost than this are removed.

    Returns:
        Whether a final state was reached.
    """
    counts = store.counts
    frame = counts[FRAMES]
    first, end = int(store.token_begin[frame]), counts[TOKENS]
    costs = store.cost[first:end]
    extra = np.empty(end - first)
    for i in range(len(extra)):
        extra[i] = costs[i] + graph.final[store.state[first + i]]
    reached_final = bool(np.isfinite(extra).any())
    if not reached_final:
        extra[:] = costs
    if len(extra) > 0:
        extra -= extra.min()
    for i in range(len(extra)):
        if extra[i] > lattice_beam:
            extra[i] = np.inf
    links = store.link[store.epsilon_begin[frame] : store.emitting_begin[frame]]
    num_links = _prune_epsilon(links, costs, extra, lattice_beam)
    last = Tokens(extra, np.empty(len(extra), np.uint32))
    counts[TOKENS] = first + _close_tokens(store, first, last)
    _renumber_epsilon(links[:num_links], last.moved)
    counts[LINKS] = store.epsilon_begin[frame] + num_links
    store.token_begin[frame + 1] = counts[TOKENS]
    store.emitting_begin[frame] = counts[LINKS]
    _prune_frames(store, 0, last, lattice_beam)
    return reached_final


@njit(cache=True, nogil=True)
def _prune_frames(
    store: Store, first_frame: int, following: Tokens, lattice_beam: float
) -> None:
    """Prune the frames from the first to the last but one, and close the gaps.

    Args:
        store: changed in place.
        first_frame: its tokens stay, since links from the frame before may lead there
            (unless it is frame 0).
        following: tokens of the last frame.
        lattice_beam: links with more extra cost than this are removed.
    """
    last_frame = store.counts[FRAMES]
    begin = store.token_begin
    kept = np.zeros((last_frame + 1 - first_frame, 3), np.int64)
    kept[-1, 0] = begin[last_frame + 1] - begin[last_frame]
    kept[-1, 1] = store.emitting_begin[last_frame] - store.epsilon_begin[last_frame]
    for f in range(last_frame - 1, first_frame - 1, -1):
        size = begin[f + 1] - begin[f]
        tokens = Tokens(np.full(size, np.inf), np.empty(size, np.uint32))
        emitting = store.link[store.emitting_begin[f] : store.epsilon_begin[f + 1]]
        num_emitting = _prune_emitting(
            emitting, store.cost[begin[f + 1] :], following, tokens.extra, lattice_beam
        )
        epsilon = store.link[store.epsilon_begin[f] : store.emitting_begin[f]]
        costs = store.cost[begin[f] : begin[f + 1]]
        num_epsilon = _prune_epsilon(epsilon, costs, tokens.extra, lattice_beam)
        if f > first_frame or f == 0:
            size = _close_tokens(store, begin[f], tokens)
            for at in range(num_emitting):
                emitting[at].source = tokens.moved[emitting[at].source]
            _renumber_epsilon(epsilon[:num_epsilon], tokens.moved)
        row = kept[f - first_frame]
        row[0], row[1], row[2] = size, num_epsilon, num_emitting
        following = tokens
    _close_gaps(store, first_frame, kept)


@njit(cache=True, nogil=True)
def _prune_emitting(
    links: Records,
    costs: np.ndarray,
    targets: Tokens,
    source_extra: np.ndarray,
    lattice_beam: float,
) -> int:
    """Prune the links to the frame behind; those left move to the front.

    Args:
        links: LINK[some]; their targets are renumbered.
        costs: float64[tokens left of the frame behind, and more].
        targets: the tokens of the frame behind.
        source_extra: float64[tokens], inf at first; falls to the least extra cost of
            each token's links.
        lattice_beam: links with more extra cost than this are removed.

    Returns:
        How many are left.
    """
    to = 0
    for at in range(len(links)):
        target = targets.moved[links[at].target]
        if target == _REMOVED:
            continue
        # What follows is without branches: nobody could predict which link stays.
        links[to] = links[at]
        links[to].target = target
        extra = targets.extra[target] + max(0.0, links[at].total - costs[target])
        is_kept = extra <= lattice_beam
        source = links[to].source
        extra = extra if is_kept else np.inf
        source_extra[source] = min(source_extra[source], extra)
        to += int(is_kept)
    return to


@njit(cache=True, nogil=True)
def _prune_epsilon(
    links: Records, costs: np.ndarray, extra: np.ndarray, lattice_beam: float
) -> int:
    """Carry extra costs back over the epsilon links of a frame and prune these.

    Args:
        links: LINK[some]; those left move to the front.
        costs: float64[tokens] of the frame.
        extra: float64[tokens], extra costs from what follows the frame; falls to those
            that take the epsilon links in.
        lattice_beam: links with more extra cost than this are removed.

    Returns:
        How many are left.
    """
    changed = True
    while changed:
        changed = False
        for at in range(len(links) - 1, -1, -1):
            found = _epsilon_extra(links, at, costs, extra)
            if found < extra[links[at].source] and found <= lattice_beam:
                extra[links[at].source] = found
                changed = True
    to = 0
    for at in range(len(links)):
        if _epsilon_extra(links, at, costs, extra) <= lattice_beam:
            links[to] = links[at]
            to += 1
    return to


@njit(cache=True, nogil=True)
def _epsilon_extra(
    links: Records, at: int, costs: np.ndarray, extra: np.ndarray
) -> float:
    target = links[at].target
    return float(extra[target] + max(0.0, links[at].total - costs[target]))


@njit(cache=True, nogil=True)
def _close_tokens(store: Store, first: int, tokens: Tokens) -> int:
    """Move the tokens with a finite extra cost to the front of their frame.

    Args:
        store: changed in place.
        first: first token of the frame.
        tokens: `extra` moves as well, `moved` is filled.

    Returns:
        How many are left.
    """
    costs, states = store.cost[first:], store.state[first:]
    extra, moved = tokens
    to = 0
    for i in range(len(extra)):
        is_kept = extra[i] < np.inf
        moved[i] = to if is_kept else _REMOVED
        costs[to] = costs[i]
        states[to] = states[i]
        extra[to] = extra[i]
        to += int(is_kept)
    return to


@njit(cache=True, nogil=True)
def _renumber_epsilon(links: Records, moved: np.ndarray) -> None:
    """Name the tokens of epsilon links by their new numbers."""
    for at in range(len(links)):
        links[at].source = moved[links[at].source]
        links[at].target = moved[links[at].target]


@njit(cache=True, nogil=True)
def _close_gaps(store: Store, first_frame: int, kept: np.ndarray) -> None:
    """Move what is left of each frame down to what is left of the frame before.

    Args:
        store: changed in place.
        first_frame: where to begin.
        kept: int64[frames, 3], tokens, epsilon links and emitting links that are left,
            each at the front of its space.
    """
    counts = store.counts
    to = store.token_begin[first_frame]
    to_link = store.epsilon_begin[first_frame]
    for f in range(first_frame, counts[FRAMES] + 1):
        num_tokens, num_epsilon, num_emitting = kept[f - first_frame]
        begin = store.token_begin[f]
        for i in range(num_tokens):
            store.cost[to + i] = store.cost[begin + i]
            store.state[to + i] = store.state[begin + i]
        store.token_begin[f] = to
        to += num_tokens
        begin, middle = store.epsilon_begin[f], store.emitting_begin[f]
        store.epsilon_begin[f] = to_link
        to_link = _move_down(store.link, begin, num_epsilon, to_link)
        store.emitting_begin[f] = to_link
        to_link = _move_down(store.link, middle, num_emitting, to_link)
    counts[TOKENS], counts[LINKS] = to, to_link
    store.token_begin[counts[FRAMES] + 1] = to


@njit(cache=True, nogil=True)
def _move_down(links: Records, begin: int, size: int, to: int) -> int:
    """Move neighbouring links down; return where they end."""
    for i in range(size):
        links[to + i] = links[begin + i]
    return to + size
