"""Pruned determinization of lattices on words.

The result accepts the word sequences of the lattice whose best path costs at most
`beam` more than the best of all (and some of the others). Each has exactly one path in
it, that of least cost, with its transition-ids. No two arcs of a state carry the same
word. Of paths of one cost the one with the lower graph cost is kept, then the one whose
transition-id is the higher where they first differ, as with Kaldi.

With a transition model the lattice is first determinized on words and phones. The
result of that first pass (`on_words=False`) keeps, for each word sequence, the best
path of each of its phone sequences: the lattice that discriminative training wants. The
second pass, on words, then has the result that one pass would have; on deep lattices
(above about 100 arcs a frame) the two take less time and memory than the one.

Few labels and many paths can make the result exponentially large. `Limits` bound what a
lattice may take, by counts that depend on it alone: the result is the same on any
machine. A search that a limit stops has done the best part of the work first.

Source: Kaldi `lat/determinize-lattice-pruned.cc`; Povey et al. (2012), "Generating
exact lattices in the WFST framework".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.lattice.determinize.epsilon_closure import Closures, epsilon_closures
from latflow.lattice.determinize.search import DONE, do_tasks, rows_of_task, start
from latflow.lattice.determinize.string_repository import powers_of_base
from latflow.lattice.determinize.subsets import ARCS, HEAP, Pools, arc_strings
from latflow.lattice.lattice import CompactLattice, Lattice, Strings
from latflow.lattice.path_sums import best_costs, costs_to_end, scaled_arcs

_DELTA = 1 / 1024  # scaled costs of equal states differ by less; Kaldi's kDelta
_ROUNDING = 0.1  # by which merged states may change the cost of the best path
_SLACK = 1e-3  # added to the cutoff where rounding must not lose a path on its edge
_RETRY_CUTOFF = 0.5  # a beam reached to less than this part is tried again, narrower
_TRIALS = 10
_WIDEST_RETRY = 32.0  # twice the beam of the second trial, where the first had none
log = logging.getLogger(__name__)


class TooLargeError(UserError):
    """Not even the best path of a lattice is determinized within the limits."""


@dataclass(frozen=True)
class Limits:
    """The most that one pass over a lattice may take.

    Attributes:
        arcs: arcs and final states of the result.
        bytes: memory of the tables, about.
        work: paths between words that are followed, and symbols that are compared. Each
            trial may take half of what is left; the default is ten seconds in all.
    """

    arcs: int = 2**62
    bytes: int = 1_000_000_000
    work: int = 200_000_000


@dataclass(frozen=True)
class _Options:
    """Limits and scales of a pass; see `determinize`."""

    beam: float
    scales: tuple[float, float]
    limits: Limits
    note: Callable[[str], None]


def determinize(
    lattice: Lattice | CompactLattice,
    model: TransitionModel | None = None,
    *,
    beam: float,
    acoustic_scale: float = 1.0,
    lm_scale: float = 1.0,
    on_words: bool = True,
    limits: Limits | None = None,
    note: Callable[[str], None] = log.warning,
) -> CompactLattice:
    """Determinize a lattice on words, pruned; see the module.

    If a limit stops the search, the best part of the result is there, as by a narrower
    beam; if that is less than half the beam, the lattice is pruned and determinized
    again with a narrower one. Either is noted.

    Args:
        lattice: a lattice with a final state.
        model: what its transition-ids stand for; None for one pass, on words.
        beam: how much more than the best path a word sequence may cost, in scaled
            costs, > 0; inf keeps all.
        acoustic_scale: factor on the acoustic cost, > 0.
        lm_scale: factor on the graph cost, > 0.
        on_words: False stops after the pass on words and phones, which takes a model.
        limits: of each pass; None takes the defaults.
        note: called with a line if the beam reached is narrower than asked for.

    Returns:
        The determinized lattice, without dead ends; its costs are not scaled.

    Raises:
        UserError: no path leads to a final state.
        TooLargeError: none is left within the limits.
        ValueError: a beam or scale is not above 0, or phones are wanted of no model.
    """
    if not (beam > 0 and acoustic_scale > 0 and lm_scale > 0):
        raise ValueError("beam and scales must be above 0")
    if model is None and not on_words:
        raise ValueError("determinizing on phones takes a transition model")
    options = _Options(beam, (lm_scale, acoustic_scale), limits or Limits(), note)
    raw = lattice.to_lattice()
    if model is None:
        return _one_pass(raw, options)
    labelled, first_phone = _insert_phones(raw, model)
    by_phones = _one_pass(labelled, options)
    words = np.where(by_phones.word >= first_phone, 0, by_phones.word)
    raw = replace(by_phones, word=words.astype(np.int32)).to_lattice()
    if on_words:
        return _one_pass(raw, options)
    return raw.to_compact()


def _one_pass(lattice: Lattice, options: _Options) -> CompactLattice:
    """Determinize on labels, with a narrower beam if a limit asks for it."""
    wanted = options.beam
    found, reached = None, 0.0
    work = options.limits.work
    for _ in range(_TRIALS):
        work //= 2
        options = replace(options, limits=replace(options.limits, work=work))
        found, reached = _try(lattice, options)
        is_enough = reached >= options.beam * _RETRY_CUTOFF or options.beam == np.inf
        if found is not None and is_enough:
            break
        factor = np.sqrt(max(reached, 0.0) / options.beam)
        narrower = min(options.beam, _WIDEST_RETRY) * max(factor, 0.5)
        options = replace(options, beam=narrower)
    if found is None:
        raise TooLargeError(
            f"a lattice too large to be determinized within the limits "
            f"({lattice.num_states} states, {lattice.num_arcs} arcs)",
            remedy="decode with a narrower lattice beam",
        )
    reached = min(reached, options.beam)
    if reached < wanted:
        options.note(
            f"lattice of {lattice.num_states} states and {lattice.num_arcs} arcs "
            f"determinized to a beam of {reached:.2f}, not {wanted:g}"
        )
    return found


def _try(lattice: Lattice, options: _Options) -> tuple[CompactLattice | None, float]:
    """Determinize once: the result, None if limits cut the best path; the beam."""
    arcs = scaled_arcs(
        lattice, lm_scale=options.scales[0], acoustic_scale=options.scales[1]
    )
    forward, backward = best_costs(arcs), costs_to_end(arcs)
    best, cutoff = forward[-1], forward[-1] + options.beam
    scales = np.array(options.scales)
    costs = np.stack([lattice.graph_cost, lattice.acoustic_cost], 1) * scales
    finals = np.stack([lattice.final_graph_cost, lattice.final_acoustic_cost], 1)
    finals = finals * scales
    through = forward[lattice.source()] + arcs.cost + backward[lattice.next_state]
    is_cheap = (through <= cutoff + _SLACK) & np.isfinite(through)
    closures = epsilon_closures(
        lattice,
        (costs, finals),
        backward,
        is_cheap,
        (options.limits.bytes, options.limits.work),
    )
    if closures is None:
        return None, 0.0
    pools = _search(closures, finals, cutoff, lattice.num_frames, options)
    reached = np.inf
    if pools.used[HEAP] > 0:
        reached = float(pools.task_cost[pools.heap[0]] - best)
    used = pools.used[ARCS]
    if not used:
        return None, reached
    strings = Strings(*arc_strings(closures, pools))
    result = _result(pools.arc[:used, :3], pools.arc_cost[:used] / scales, strings)
    to_end = costs_to_end(
        scaled_arcs(result, lm_scale=scales[0], acoustic_scale=scales[1])
    )
    has_best = len(to_end) > 0 and to_end[0] <= best + _ROUNDING
    return (result if has_best else None), reached


def _search(
    closures: Closures,
    final_costs: np.ndarray,
    cutoff: float,
    num_frames: int,
    options: _Options,
) -> Pools:
    """Do the tasks of determinization in tables that grow; a limit leaves some.

    It ends: at each round the table that was full gets room for another task at least,
    and a task takes one off the heap and counts as work.
    """
    num_states, needed = len(final_costs), rows_of_task(closures)
    scratch = (
        np.zeros((num_states + 1, 3), np.int64),
        np.empty((num_states, 2)),
        powers_of_base(num_frames + 2),
    )
    pools = Pools.empty().with_capacity(2 * needed)
    start(closures, pools, scratch, final_costs, cutoff)
    bounds = (cutoff, _DELTA, options.limits.arcs, options.limits.work, needed)
    while do_tasks(closures, pools, scratch, final_costs, bounds) != DONE:
        if pools.num_bytes > options.limits.bytes:
            break
        pools = pools.with_capacity(2 * needed)
    return pools


def _result(arcs: np.ndarray, costs: np.ndarray, strings: Strings) -> CompactLattice:
    """Return the lattice of these arcs, without states that lead nowhere.

    Args:
        arcs: int32[A, 3]: source, target (-1 where a final cost is meant), word.
        costs: float64[A, 2], graph and acoustic, unscaled.
        strings: of the arcs.
    """
    num_states = int(arcs[:, :2].max()) + 1
    is_arc = arcs[:, 1] >= 0
    final_costs = np.full((num_states, 2), np.inf, np.float32)
    final_costs[arcs[~is_arc, 0]] = costs[~is_arc]
    rows = np.full(num_states, -1)  # the empty string
    rows[arcs[~is_arc, 0]] = np.flatnonzero(~is_arc)
    lattice = CompactLattice.from_arcs(
        arcs[is_arc],
        costs[is_arc].astype(np.float32),
        strings.take(np.flatnonzero(is_arc)),
        final_costs,
        strings.take(rows),
    )
    return lattice.connected()


def _insert_phones(lattice: Lattice, model: TransitionModel) -> tuple[Lattice, int]:
    """Label the arcs on which a phone begins.

    A phone begins with a transition-id of its first HMM state that is not a self-loop.
    An arc that has a word keeps it, and an arc with the phone's label alone follows it.
    Phones that begin at the start state have no label; there is nothing to distinguish
    before them.

    Args:
        lattice: its words are word ids.
        model: what its transition-ids stand for.

    Returns:
        The lattice, its words now labels; the number of which phone p is the p-th
        label after.
    """
    ids, words, source = lattice.transition_id, lattice.word, lattice.source()
    first_phone = int(words.max(initial=0)) + 1
    begins = (ids != 0) & (model.hmm_state[ids] == 0) & ~model.is_self_loop[ids]
    begins &= source != 0
    labels = first_phone + model.phone[ids]
    follows = np.flatnonzero(begins & (words != 0))
    between = lattice.num_states + np.arange(len(follows))
    arcs = np.stack(
        [
            source,
            lattice.next_state,
            ids,
            np.where(begins & (words == 0), labels, words),
        ],
        axis=1,
    )
    arcs[follows, 1] = between
    behind = np.zeros((len(follows), 4), np.int32)
    behind[:, 0], behind[:, 1] = between, lattice.next_state[follows]
    behind[:, 3] = labels[follows]
    costs = np.stack([lattice.graph_cost, lattice.acoustic_cost], axis=1)
    finals = np.stack([lattice.final_graph_cost, lattice.final_acoustic_cost], axis=1)
    return (
        Lattice.from_arcs(
            np.concatenate([arcs, behind]).astype(np.int32),
            np.concatenate([costs, np.zeros((len(follows), 2), np.float32)]),
            np.concatenate([finals, np.full((len(follows), 2), np.inf, np.float32)]),
        ),
        first_phone,
    )
