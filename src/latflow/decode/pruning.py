"""Lattice pruning: backward passes that remove links far from the best path.

The *extra cost* of a token is how much the best path through it costs more than the
best path of all. Working backwards from the last frame,

    extra(link)  = extra(target) + cost(source) + cost of the arc - cost(target)
    extra(token) = least extra of its links, inf without any,

and links above the lattice beam are removed, tokens with them. In the middle of an
utterance the last frame's tokens have extra cost 0, which is the least they can turn
out to have: what is removed then would be removed in the end as well. So pruning at
intervals bounds memory and changes nothing in the result.

Public: `prune`, `finish`, `link_extra`.

Source: Kaldi `decoder/lattice-faster-decoder.cc` (`PruneForwardLinks`,
`PruneForwardLinksFinal`, `PruneTokensForFrame`). Kaldi's `PruneActiveTokens` goes back
until extra costs hardly change; here the schedule depends on the number of links.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from latflow.decode.search_graph import Records, SearchGraph
from latflow.decode.tokens import FRAMES, KEPT, LINKS, SETTLED, SHIFT, TOKENS, Store

_FEW_LINKS = 1 << 16  # below twice this number old frames are left alone


@njit(cache=True, nogil=True)
def prune(store: Store, acoustic_scale: float, lattice_beam: float) -> None:
    """Prune what has been decoded so far.

    The frames since the last call are pruned, and as many before them again, in the
    light of what has come since. All frames are pruned when the links have doubled
    since that was last done, so that the work stays proportional to the frames.

    Args:
        store: changed in place.
        acoustic_scale: as in the search.
        lattice_beam: links with more extra cost than this are removed.
    """
    counts = store.counts
    frame = counts[FRAMES]
    first = max(0, 2 * counts[SETTLED] - frame)
    if counts[LINKS] > 2 * max(counts[KEPT], _FEW_LINKS):
        first = 0
    for f in range(frame - 1, first - 1, -1):
        _prune_frame(store, f, acoustic_scale, lattice_beam)
    _compact(store, first, frame)
    counts[SETTLED] = frame
    if first == 0:
        counts[KEPT] = counts[LINKS]


@njit(cache=True, nogil=True)
def finish(
    graph: SearchGraph, store: Store, acoustic_scale: float, lattice_beam: float
) -> bool:
    """Take final costs in and prune the whole utterance.

    Without a token in a final state all tokens of the last frame count as final, at no
    cost.

    Args:
        graph: the packed graph.
        store: changed in place.
        acoustic_scale: as in the search.
        lattice_beam: links with more extra cost than this are removed.

    Returns:
        Whether a final state was reached.
    """
    counts = store.counts
    frame = counts[FRAMES]
    first, last = store.token_begin[frame], counts[TOKENS]
    fresh = np.full(last - first, np.inf)
    for i in range(first, last):
        fresh[i - first] = store.cost[i] + graph.final[store.state[i]]
    reached_final = bool(np.isfinite(fresh).any())
    if not reached_final:
        fresh[:] = store.cost[first:last]
    if last > first:
        fresh -= fresh.min()
    _settle_epsilon(store, frame, fresh, lattice_beam)
    for i in range(first, last):
        extra = fresh[i - first]
        store.extra[i] = extra if extra <= lattice_beam else np.inf
    for f in range(frame - 1, -1, -1):
        _prune_frame(store, f, acoustic_scale, lattice_beam)
    _compact(store, 0, frame + 1)
    return reached_final


@njit(cache=True, nogil=True)
def link_extra(costs: np.ndarray, link: Records, acoustic_scale: float) -> float:
    """Extra cost of a link without that of its target; 0 on the best way to it.

    Args:
        costs: float64[tokens].
        link: a `LINK`.
        acoustic_scale: as in the search; the arc's cost is rounded as there.
    """
    cost = link.weight + acoustic_scale * link.acoustic
    return max(0.0, float(costs[link.source] + cost - costs[link.target]))


@njit(cache=True, nogil=True)
def _prune_frame(
    store: Store, frame: int, acoustic_scale: float, lattice_beam: float
) -> None:
    """Prune the links that leave a frame; removed ones get the source -1."""
    costs, extras, links = store.cost, store.extra, store.link
    first, last = store.token_begin[frame], store.token_begin[frame + 1]
    fresh = np.full(last - first, np.inf)
    for at in range(store.emitting_begin[frame], store.epsilon_begin[frame + 1]):
        link = links[at]
        if link.source < 0:
            continue
        extra = extras[link.target]
        if extra <= lattice_beam:
            extra += link_extra(costs, link, acoustic_scale)
        if extra > lattice_beam:
            link.source = -1
        else:
            fresh[link.source - first] = min(fresh[link.source - first], extra)
    _settle_epsilon(store, frame, fresh, lattice_beam)
    store.extra[first:last] = fresh


@njit(cache=True, nogil=True)
def _settle_epsilon(
    store: Store, frame: int, fresh: np.ndarray, lattice_beam: float
) -> None:
    """Carry extra costs back over a frame's epsilon links and prune these.

    Args:
        store: changed in place.
        frame: the frame.
        fresh: float64[tokens of the frame], extra costs from what follows the frame;
            changed to those that take the epsilon links in.
        lattice_beam: links with more extra cost than this are removed.
    """
    costs, links = store.cost, store.link
    first = store.token_begin[frame]
    begin, end = store.epsilon_begin[frame], store.emitting_begin[frame]
    changed = True
    while changed:
        changed = False
        for at in range(end - 1, begin - 1, -1):
            link = links[at]
            if link.source < 0:
                continue
            extra = fresh[link.target - first] + link_extra(costs, link, 0.0)
            if extra < fresh[link.source - first] and extra <= lattice_beam:
                fresh[link.source - first] = extra
                changed = True
    for at in range(begin, end):
        link = links[at]
        if link.source < 0:
            continue
        extra = fresh[link.target - first] + link_extra(costs, link, 0.0)
        if extra > lattice_beam:
            link.source = -1


@njit(cache=True, nogil=True)
def _compact(store: Store, first_frame: int, end_frame: int) -> None:
    """Close the gaps that pruning has left in the frames first_frame ... end_frame - 1.

    Tokens of later frames move along; their epsilon links too. Tokens of the first
    frame stay (unless it is frame 0), since links from the frame before may lead there.
    """
    counts = store.counts
    costs, extras, states = store.cost, store.extra, store.state
    origin = store.token_begin[first_frame]
    moved = np.full(counts[TOKENS] - origin, -1, np.int32)
    num_tokens = origin
    for f in range(first_frame, counts[FRAMES] + 1):
        begin, end = store.token_begin[f], store.token_begin[f + 1]
        store.token_begin[f] = num_tokens
        is_open = f < end_frame and (f > first_frame or f == 0)
        for i in range(begin, end):
            if is_open and extras[i] == np.inf:
                continue
            moved[i - origin] = num_tokens
            costs[num_tokens] = costs[i]
            extras[num_tokens] = extras[i]
            states[num_tokens] = states[i]
            num_tokens += 1
    num_links = store.epsilon_begin[first_frame]
    for f in range(first_frame, counts[FRAMES] + 1):
        begin, middle = store.epsilon_begin[f], store.emitting_begin[f]
        end = store.epsilon_begin[f + 1] if f < counts[FRAMES] else middle
        store.epsilon_begin[f] = num_links
        num_links = _move_links(store.link, begin, middle, num_links, (moved, origin))
        store.emitting_begin[f] = num_links
        num_links = _move_links(store.link, middle, end, num_links, (moved, origin))
    counts[SHIFT] += counts[TOKENS] - num_tokens
    counts[TOKENS], counts[LINKS] = num_tokens, num_links
    store.token_begin[counts[FRAMES] + 1] = num_tokens


@njit(cache=True, nogil=True)
def _move_links(
    links: Records, begin: int, end: int, to: int, moved: tuple[np.ndarray, int]
) -> int:
    """Move the links begin ... end - 1 that are left to `to`; return where they end."""
    number, origin = moved
    for at in range(begin, end):
        link = links[at]
        if link.source < 0:
            continue
        target = links[to]
        target.source = number[link.source - origin]
        target.target = number[link.target - origin]
        target.arc = link.arc
        target.weight = link.weight
        target.acoustic = link.acoustic
        to += 1
    return to
