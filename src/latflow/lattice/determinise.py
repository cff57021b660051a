"""Pruned determinisation of lattices on words.

The result accepts the word sequences of the lattice whose best path costs at most
`beam` more than the best of all (and some of the others). Each has exactly one path in
it, that of least cost, with its transition-ids. No two arcs of a state carry the same
word. Of paths of one cost the one with the lower graph cost is kept, then the one whose
transition-id is the higher where they first differ, as with Kaldi.

With a transition model the lattice is first determinised on words and phones. The
result of that first pass (`on_words=False`) keeps, for each word sequence, the best
path of each of its phone sequences: the lattice that discriminative training wants. The
second pass, on words, then has the result that one pass would have; on deep lattices
(above about 100 arcs a frame) the two take less time and memory than the one.

Public: `determinise`.

Source: Kaldi `lat/determinize-lattice-pruned.cc`; Povey et al. (2012), "Generating
exact lattices in the WFST framework".
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.lattice.compact import CompactLattice, Strings
from latflow.lattice.determinise_kernel import do_tasks, room_for_task, start
from latflow.lattice.lattice import Lattice
from latflow.lattice.phone_labels import insert_phones
from latflow.lattice.ropes import powers_of_base
from latflow.lattice.subsets import ARCS, HEAP, Pools, arc_strings
from latflow.lattice.word_closures import WordGraph, best_costs, close_words

_DELTA = 1 / 1024  # scaled costs of equal states differ by less; Kaldi's kDelta
_ROUNDING = 0.1  # by which merged states may change the cost of the best path
_SLACK = 1e-3  # added to the cutoff where rounding must not lose a path on its edge
_RETRY_CUTOFF = 0.5  # a beam reached to less than this part is tried again, narrower
_TRIALS = 10
_WIDEST_RETRY = 32.0  # twice the beam of the second trial, where the first had none
_NO_LIMIT = 2**62
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Options:
    """What a pass of determinisation is held to; see `determinise`."""

    beam: float
    scales: tuple[float, float]
    max_arcs: int
    max_bytes: int


def determinise(
    lattice: Lattice | CompactLattice,
    model: TransitionModel | None = None,
    *,
    beam: float,
    acoustic_scale: float = 1.0,
    lm_scale: float = 1.0,
    on_words: bool = True,
    max_arcs: int | None = None,
    max_bytes: int = 1_000_000_000,
) -> CompactLattice:
    """Determinise a lattice on words, pruned; see the module.

    If a limit stops the search, the best part of the result is there, as by a narrower
    beam; if that is less than half the beam, the lattice is pruned and determinised
    again with a narrower one. Either is logged.

    Args:
        lattice: a lattice with a final state.
        model: what its transition-ids stand for; None for one pass, on words.
        beam: how much more than the best path a word sequence may cost, in scaled
            costs, > 0; inf keeps all.
        acoustic_scale: factor on the acoustic cost, > 0.
        lm_scale: factor on the graph cost, > 0.
        on_words: False stops after the pass on words and phones, which takes a model.
        max_arcs: the most arcs and final states of the result; None for any number.
        max_bytes: about how much memory the tables may take.

    Returns:
        The determinised lattice, without dead ends; its costs are not scaled.

    Raises:
        UserError: no path leads to a final state, or none is left within the limits.
        ValueError: a beam or scale is not above 0, or phones are wanted of no model.
    """
    if not (beam > 0 and acoustic_scale > 0 and lm_scale > 0):
        raise ValueError("beam and scales must be above 0")
    if model is None and not on_words:
        raise ValueError("determinising on phones takes a transition model")
    options = _Options(
        beam,
        (lm_scale, acoustic_scale),
        _NO_LIMIT if max_arcs is None else max_arcs,
        max_bytes,
    )
    raw = lattice.to_lattice() if isinstance(lattice, CompactLattice) else lattice
    if model is None:
        return _one_pass(raw, options)
    labelled, first_phone = insert_phones(raw, model)
    by_phones = _one_pass(labelled, options)
    words = np.where(by_phones.word >= first_phone, 0, by_phones.word)
    raw = replace(by_phones, word=words.astype(np.int32)).to_lattice()
    if on_words:
        return _one_pass(raw, options)
    return CompactLattice.from_lattice(raw)


def _one_pass(lattice: Lattice, options: _Options) -> CompactLattice:
    """Determinise on labels, with a narrower beam if a limit asks for it."""
    wanted = options.beam
    found, reached = None, 0.0
    for _ in range(_TRIALS):
        found, reached = _try(lattice, options)
        is_enough = reached >= options.beam * _RETRY_CUTOFF or options.beam == np.inf
        if found is not None and is_enough:
            break
        factor = np.sqrt(max(reached, 0.0) / options.beam)
        narrower = min(options.beam, _WIDEST_RETRY) * max(factor, 0.5)
        options = replace(options, beam=narrower)
    if found is None:
        raise UserError(
            "a lattice too large to be determinised within the limits",
            remedy="decode with a narrower lattice beam, or allow more memory or arcs",
        )
    reached = min(reached, options.beam)
    if reached < wanted:
        log.warning("lattice determinised to a beam of %.2f, not %g", reached, wanted)
    return found


def _try(lattice: Lattice, options: _Options) -> tuple[CompactLattice | None, float]:
    """Determinise once: the result, None if limits cut the best path; the beam."""
    lm_scale, acoustic_scale = options.scales
    scales = np.array([lm_scale, acoustic_scale])
    costs = np.stack([lattice.graph_cost, lattice.acoustic_cost], 1) * scales
    finals = np.stack([lattice.final_graph_cost, lattice.final_acoustic_cost], 1)
    finals = finals * scales
    begin, target = lattice.arc_begin, lattice.next_state
    forward, backward = best_costs(begin, target, costs, finals)
    best = backward[0] if len(backward) else np.inf
    if not np.isfinite(best):
        raise UserError(
            "a lattice without a path to a final state",
            remedy="decode the utterance again",
        )
    cutoff = best + options.beam
    graph = close_words(
        lattice,
        costs,
        finals,
        (forward, backward),
        cutoff + _SLACK,
        options.max_bytes,
    )
    if graph is None:
        return None, 0.0
    pools = _search(graph, finals, cutoff, lattice.num_frames, options)
    reached = np.inf
    if pools.used[HEAP] > 0:
        reached = float(pools.task_cost[pools.heap[0]]) - best
    strings = Strings(*arc_strings(graph, pools))
    used = pools.used[ARCS]
    if not used:
        return None, reached
    result = _result(pools.arc[:used, :3], pools.arc_cost[:used] / scales, strings)
    has_best = _cost_of_best(result, scales) <= best + _ROUNDING
    return (result if has_best else None), reached


def _cost_of_best(lattice: CompactLattice, scales: np.ndarray) -> float:
    """Cost of the best path; inf without one."""
    costs = np.stack([lattice.graph_cost, lattice.acoustic_cost], 1) * scales
    finals = np.stack([lattice.final_graph_cost, lattice.final_acoustic_cost], 1)
    _, backward = best_costs(
        lattice.arc_begin, lattice.next_state, costs, finals * scales
    )
    return float(backward[0])


def _search(
    graph: WordGraph,
    final_costs: np.ndarray,
    cutoff: float,
    num_frames: int,
    options: _Options,
) -> Pools:
    """Do the tasks of determinisation in tables that grow; a limit leaves some."""
    num_states, room = len(final_costs), room_for_task(graph)
    scratch = (
        np.zeros((num_states + 1, 3), np.int64),
        np.empty((num_states, 2)),
        powers_of_base(num_frames + 2),
    )
    pools = Pools.empty().with_room(2 * room)
    start(graph, pools, scratch, final_costs, cutoff)
    limits = (cutoff, _DELTA, options.max_arcs, room)
    while not do_tasks(graph, pools, scratch, final_costs, limits):
        if pools.num_bytes > options.max_bytes:
            break
        pools = pools.with_room(2 * room)
    return pools


def _result(arcs: np.ndarray, costs: np.ndarray, strings: Strings) -> CompactLattice:
    """The lattice of these arcs, without states that lead nowhere.

    Args:
        arcs: int32[A, 3]: source, target (-1 where a final cost is meant), word.
        costs: float64[A, 2], graph and acoustic, unscaled.
        strings: of the arcs.
    """
    num_states = int(arcs[:, :2].max()) + 1
    is_arc = arcs[:, 1] >= 0
    final_costs = np.full((num_states, 2), np.inf, np.float32)
    final_costs[arcs[~is_arc, 0]] = costs[~is_arc]
    with_empty = Strings(np.append(strings.begin, strings.begin[-1]), strings.ids)
    rows = np.full(num_states, len(arcs))  # the empty string
    rows[arcs[~is_arc, 0]] = np.flatnonzero(~is_arc)
    lattice = CompactLattice.from_arcs(
        arcs[is_arc],
        costs[is_arc].astype(np.float32),
        strings.take(np.flatnonzero(is_arc)),
        final_costs,
        with_empty.take(rows),
    )
    return lattice.without_dead_ends()
