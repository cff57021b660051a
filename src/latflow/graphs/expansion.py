"""From a word sequence to transition-ids, step by step, in Numba.

The same compositions as L o W, C o (L o W) and H o (C o L o W) of FSTs, for a linear W.
A machine is an array of links (`LINK`), by source, with state 0 as its start; for each
state `position` says how many words have been emitted, and `final` its final cost.

Source: Kaldi `decoder/training-graph-compiler.cc`, `fstext/context-fst.{h,cc}`.
"""

from __future__ import annotations

import numpy as np

from latflow.fst.determinize import LINK, Int, Links, by_source, enlarged
from latflow.jit import njit

_EMPTY = -1  # label: no phone is here, the window moves on
Machine = tuple[Links, np.ndarray, np.ndarray]  # links, position, final


@njit(cache=True, nogil=True)
def _add(
    links: Links, used: int, source: Int, label: Int, target: Int, weight: Int
) -> Links:
    """Write link number `used`; the array is enlarged if it is full."""
    links = enlarged(links, used + 1)
    links[used]["source"] = source
    links[used]["label"] = label
    links[used]["target"] = target
    links[used]["weight"] = weight
    return links


@njit(cache=True, nogil=True)
def _first_with(arcs: Links, low: Int, high: Int, word: Int) -> Int:
    """Find the first of arcs[low:high], sorted by olabel, with olabel >= word."""
    while low < high:
        middle = (low + high) // 2
        if arcs[middle]["olabel"] < word:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def compose_words(
    start: int,
    arc_begin: np.ndarray,
    arcs: Links,
    lexicon_final: np.ndarray,
    words: np.ndarray,
) -> tuple[Links, np.ndarray, np.ndarray, Int]:
    """Compose the lexicon with a word sequence: phones that spell the words.

    Args:
        start: start state of L.
        arc_begin: of L.
        arcs: of L, sorted by olabel within each state.
        lexicon_final: final costs of L.
        words: int64[N].

    Returns:
        (links, labels are phones and disambiguation symbols; position; final; words
        that could be spelled from the start). Only states on a path from the start to
        an end are kept; if there is none, the number of words spelled is less than N or
        the lexicon does not allow to end.
    """
    num_lexicon, num_words = len(lexicon_final), len(words)
    keys: list[Int] = [np.int64(start)]
    known: dict[Int, Int] = {np.int64(start): np.int64(0)}
    links = np.empty(16 * num_words + 16, LINK)
    used, spelled, at = 0, 0, 0
    while at < len(keys):
        position = keys[at] // num_lexicon
        state = keys[at] % num_lexicon
        spelled = max(spelled, position)
        low, high = arc_begin[state], arc_begin[state + 1]
        for silent in range(2):
            word = 0
            if silent == 1:
                if position == num_words:
                    break
                word = words[position]
                low = _first_with(arcs, low, high, word)
            while low < high and arcs[low]["olabel"] == word:
                key = (position + silent) * num_lexicon + arcs[low]["next_state"]
                if key not in known:
                    known[key] = len(keys)
                    keys.append(key)
                links = _add(
                    links,
                    used,
                    at,
                    arcs[low]["ilabel"],
                    known[key],
                    arcs[low]["weight"],
                )
                used += 1
                low += 1
        at += 1
    position = np.empty(len(keys), np.int64)
    final = np.full(len(keys), np.inf)
    for n in range(len(keys)):
        position[n] = keys[n] // num_lexicon
        if position[n] == num_words:
            final[n] = lexicon_final[keys[n] % num_lexicon]
    links, position, final = _trim(links[:used], position, final)
    return links, position, final, spelled


@njit(cache=True, nogil=True)
def _trim(links: Links, position: np.ndarray, final: np.ndarray) -> Machine:
    """Keep the states from which an end is reached; numbers stay in order."""
    is_live = final != np.inf
    has_changed = True
    while has_changed:  # links mostly lead to higher numbers: one or two rounds
        has_changed = False
        for n in range(len(links) - 1, -1, -1):
            if is_live[links[n]["target"]] and not is_live[links[n]["source"]]:
                is_live[links[n]["source"]] = True
                has_changed = True
    number = np.full(len(final), -1, np.int64)
    positions, costs = np.empty_like(position), np.empty_like(final)
    num_live = 0
    for state in range(len(final)):
        if is_live[state]:
            number[state] = num_live
            positions[num_live] = position[state]
            costs[num_live] = final[state]
            num_live += 1
    kept = np.empty(len(links), LINK)
    used = 0
    for n in range(len(links)):
        if is_live[links[n]["source"]] and is_live[links[n]["target"]]:
            kept[used] = links[n]
            kept[used]["source"] = number[links[n]["source"]]
            kept[used]["target"] = number[links[n]["target"]]
            used += 1
    return kept[:used], positions[:num_live], costs[:num_live]


@njit(cache=True, nogil=True)
def expand_context(
    links: Links,
    position: np.ndarray,
    final: np.ndarray,
    disambig_number: np.ndarray,
    context: tuple[int, int],
) -> Machine:
    """Replace each phone by its window of neighbours, which is known when it ends.

    A state is a state of the phones' machine and the last phones seen. For a window of
    N phones with the central one at P, a phone's label comes N - 1 - P phones late; at
    the end as many empty phones are shifted in (Kaldi's subsequential symbol).

    Args:
        links: the machine of phones.
        position: of it.
        final: of it.
        disambig_number: int64[phones]; 1, 2 ... for disambiguation symbols, else 0.
        context: (N, P).

    Returns:
        The machine whose labels are 0; -n for disambiguation symbol n; or a window as a
        number, whose digits to the base len(disambig_number) are the phones. Where the
        first phone is read and none has ended yet, the label is one more
        disambiguation symbol, as in Kaldi.
    """
    width, central = context
    base = len(disambig_number)
    span = base ** (width - 1)  # windows of width - 1 phones
    central_place = base ** (width - 1 - central)
    num_flush = width - 1 - central
    no_phone = -_largest(disambig_number) - 1
    num_words = _largest(position)
    num_nodes = len(final)
    begin, links = by_source(_with_ends(links, final, num_flush), num_nodes + num_flush)
    keys: list[Int] = [np.int64(0)]
    known: dict[Int, Int] = {np.int64(0): np.int64(0)}
    out = np.empty(4 * len(links) + 16, LINK)
    used, at = 0, 0
    while at < len(keys):
        node, history = keys[at] // span, keys[at] % span
        for n in range(begin[node], begin[node + 1]):
            phone, label, shifted = links[n]["label"], np.int64(0), history
            if phone > 0 and disambig_number[phone] > 0:
                label = -disambig_number[phone]
            elif phone != 0:
                window = history * base + max(phone, 0)
                shifted = window % span
                has_central = window // central_place % base > 0
                label = window if has_central else no_phone
            key = links[n]["target"] * span + shifted
            if key not in known:
                known[key] = len(keys)
                keys.append(key)
            out = _add(out, used, at, label, known[key], links[n]["weight"])
            used += 1
        at += 1
    positions = np.full(len(keys), num_words)
    costs = np.full(len(keys), np.inf)
    for n in range(len(keys)):
        node = keys[n] // span
        if node < num_nodes:
            positions[n] = position[node]
        if node < num_nodes and num_flush == 0:
            costs[n] = final[node]
        elif node == num_nodes + num_flush - 1:
            costs[n] = 0.0
    return out[:used], positions, costs


@njit(cache=True, nogil=True)
def _largest(numbers: np.ndarray) -> Int:
    """Return the largest of numbers >= 0."""
    largest = np.int64(0)
    for number in numbers:
        largest = max(largest, number)
    return largest


@njit(cache=True, nogil=True)
def _with_ends(links: Links, final: np.ndarray, num_flush: int) -> Links:
    """Add a sequence of links without a phone (label -1) behind the final states."""
    num_nodes = len(final)
    out = links.copy()
    used = len(links)
    if num_flush > 0:
        for node in range(num_nodes):
            if final[node] != np.inf:
                out = _add(out, used, node, _EMPTY, num_nodes, final[node])
                used += 1
        for n in range(num_flush - 1):
            out = _add(out, used, num_nodes + n, _EMPTY, num_nodes + n + 1, 0.0)
            used += 1
    return out[:used]


@njit(cache=True, nogil=True)
def expand_hmms(
    machine: Machine,
    hmm_begin: np.ndarray,
    hmm_arcs: Links,
    hmm_states: Links,
    first_disambig: int,
) -> Machine:
    """Replace each phone in context by its HMM.

    An HMM that leads into a state is shared by all links into that state.

    Args:
        machine: labels are 0; -n for disambiguation symbols; n for HMM number n - 1.
        hmm_begin: int64[H + 1], the arcs of each HMM.
        hmm_arcs: LINK; labels are transition-ids or 0.
        hmm_states: int64[H]: the number of states of each HMM; negative if the arc out
            of its first state may start anywhere (`PhoneHmm.shares_start`).
        first_disambig: label of the first disambiguation symbol.

    Returns:
        The machine of transition-ids; the old states keep their numbers.
    """
    links, position, final = machine
    num_old = len(final)
    bases, owners = _place_hmms(links, hmm_states, num_old)
    is_filled = np.zeros(len(owners), np.bool_)
    out = np.empty(8 * len(links) + 16, LINK)
    used = 0
    for n in range(len(links)):
        source, label = links[n]["source"], links[n]["label"]
        target, weight = links[n]["target"], links[n]["weight"]
        if label <= 0:
            label = first_disambig - 1 - label if label < 0 else 0
            out = _add(out, used, source, label, target, weight)
            used += 1
            continue
        hmm, base = label - 1, bases[n]
        shares_start = hmm_states[hmm] < 0
        last = abs(hmm_states[hmm]) - 1
        is_new = last > shares_start and not is_filled[base + last - 1 - num_old]
        if not shares_start:
            out = _add(out, used, source, 0, base, weight)
            used += 1
        for arc in range(hmm_begin[hmm], hmm_begin[hmm + 1]):
            is_entry = shares_start and hmm_arcs[arc]["source"] == 0
            if is_new or is_entry:
                end = hmm_arcs[arc]["target"]
                end = target if end == last else base + end
                begin = source if is_entry else base + hmm_arcs[arc]["source"]
                cost = hmm_arcs[arc]["weight"] + (weight if is_entry else 0.0)
                out = _add(out, used, begin, hmm_arcs[arc]["label"], end, cost)
                used += 1
        if is_new:
            is_filled[base + last - 1 - num_old] = True
    positions = np.empty(num_old + len(owners), np.int64)
    costs = np.full(len(positions), np.inf)
    for state in range(len(positions)):
        if state < num_old:
            positions[state] = position[state]
            costs[state] = final[state]
        else:
            positions[state] = position[owners[state - num_old]]
    return out[:used], positions, costs


@njit(cache=True, nogil=True)
def _place_hmms(
    links: Links, hmm_states: Links, num_states: int
) -> tuple[np.ndarray, np.ndarray]:
    """Number the inner states of HMMs, those of one HMM and target only once.

    Returns:
        (for each link the number of its HMM's state 0, which need not be there;
        for each inner state the target of its HMM).
    """
    known: dict[Int, Int] = {np.int64(0): np.int64(0)}
    known.clear()
    bases = np.zeros(len(links), np.int64)
    owners = np.empty(0, np.int64)
    used = 0
    for n in range(len(links)):
        if links[n]["label"] <= 0:
            continue
        hmm, target = links[n]["label"] - 1, links[n]["target"]
        shares_start = hmm_states[hmm] < 0
        key = target * len(hmm_states) + hmm
        if key not in known:
            inner = abs(hmm_states[hmm]) - 1 - shares_start
            known[key] = num_states + used - shares_start
            owners = enlarged(owners, used + inner)
            for state in range(used, used + inner):
                owners[state] = target
            used += inner
        bases[n] = known[key]
    return bases, owners[:used]
