"""The store of one search: tokens and links of all frames in flat, growing arrays.

A *token* is a graph state reached at a frame, with the least cost of getting there; a
*link* is a graph arc between two tokens. Tokens of frame f are token_begin[f] ...
token_begin[f + 1] - 1; links name them by their numbers in the frame, from 0. Links lie
in the order they are made: the epsilon links among the tokens of frame 0, the emitting
links from frame 0 to 1, the epsilon links of frame 1, and so on; within each group the
links of one source token are neighbours.

What is needed only while a frame is searched, above all the map from graph states to
tokens, is kept apart in a `Scratch`: it belongs to whoever searches at the moment, so
that any number of searches that wait for their next frames share a few of them.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from latflow.decode.parts import Records
from latflow.fst.determinize import enlarged, space
from latflow.jit import njit

# Unsigned, so that kernels can index by the fields without a test for negative numbers.
LINK = np.dtype(
    [
        ("source", "u4"),
        ("target", "u4"),
        ("arc", "u4"),
        ("acoustic", "f4"),
        ("total", "f8"),
    ]
)

# Entries of Store.counts.
FRAMES, TOKENS, LINKS, SETTLED, EXPANDED, KEPT, MOST = range(7)
# Entries of Scratch.clock.
BASE, NUM_EPSILON = range(2)


class Store(NamedTuple):
    """Tokens and links; all arrays are longer than what they hold.

    Attributes:
        cost: float64[tokens], graph cost plus scaled acoustic cost of the best path.
        state: uint32[tokens], graph state.
        link: `LINK`[links]: source and target token, numbers in their frames; packed
            arc (`SearchGraph.arcs`); unscaled acoustic cost; cost of the best path
            that ends in this link.
        token_begin: int64[frames + 2].
        epsilon_begin: int64[frames + 2], first epsilon link of each frame.
        emitting_begin: int64[frames + 2], first link that leaves each frame.
        counts: int64[7]: FRAMES decoded; TOKENS and LINKS held; SETTLED frames, at
            which links have been pruned last; EXPANDED tokens in all; links KEPT by the
            last pruning of all frames; MOST bytes that the arrays may have, 0 for any.
    """

    cost: np.ndarray
    state: np.ndarray
    link: Records
    token_begin: np.ndarray
    epsilon_begin: np.ndarray
    emitting_begin: np.ndarray
    counts: np.ndarray


class Scratch(NamedTuple):
    """Working memory of the search through one frame, in addition to the store.

    Attributes:
        serial: int32[S], for each graph state the token that reached it last: its
            number in its frame + clock[BASE] of that time.
        with_epsilon: int32[some], tokens of the frame whose states have epsilon arcs.
        queue: int32[some], of these the ones whose epsilon arcs are to be followed.
        clock: int64[2]: BASE, above all serials of earlier frames; NUM_EPSILON, length
            of `with_epsilon`.
    """

    serial: np.ndarray
    with_epsilon: np.ndarray
    queue: np.ndarray
    clock: np.ndarray


def new_store() -> Store:
    """Make an empty store."""
    return Store(
        cost=np.empty(4096),
        state=np.empty(4096, np.uint32),
        link=np.empty(8192, LINK),
        token_begin=np.zeros(256, np.int64),
        epsilon_begin=np.zeros(256, np.int64),
        emitting_begin=np.zeros(256, np.int64),
        counts=np.zeros(7, np.int64),
    )


class StorePool:
    """Stores that no search holds, for those to come; safe to use from many threads.

    A store grows with its search and never shrinks, so only this many bytes are kept:
    else each store would grow, one search after the other, to what the longest needs.

    Args:
        max_bytes: the most that is kept.
    """

    def __init__(self, max_bytes: int = 128 << 20) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._stores: list[Store] = []
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._stores)

    @property
    def num_bytes(self) -> int:
        """Bytes of the stores that are kept."""
        return self._bytes

    def take(self) -> Store:
        """Return a store that nobody else uses."""
        with self._lock:
            if not self._stores:
                return new_store()
            store = self._stores.pop()
            self._bytes -= num_bytes(store)
            return store

    def clear(self) -> None:
        """Keep none any more."""
        with self._lock:
            self._stores.clear()
            self._bytes = 0

    def give(self, store: Store) -> None:
        """Keep a store that is no longer used, if the limit allows it."""
        size = num_bytes(store)
        with self._lock:
            if self._bytes + size <= self._max_bytes:
                self._stores.append(store)
                self._bytes += size


def num_bytes(store: Store) -> int:
    """Return the bytes of a store's arrays."""
    return sum(array.nbytes for array in store)


def new_scratch(num_states: int) -> Scratch:
    """Make the scratch for a graph of `num_states` states."""
    return Scratch(
        serial=np.zeros(num_states, np.int32),  # memory is taken as states are met
        with_epsilon=np.empty(4096, np.int32),
        queue=np.empty(4096, np.int32),
        clock=np.array([1, 0], np.int64),
    )


@njit(cache=True, nogil=True)
def with_capacity(
    store: Store, tokens: int = 0, links: int = 0, frames: int = 0
) -> Store:
    """Return the store with space for at least this many of each.

    Raises:
        MemoryError: it would have more bytes than `counts` allows.
    """
    most = store.counts[MOST]
    if most > 0:
        a_token = store.cost.itemsize + store.state.itemsize
        size = a_token * space(store.cost, tokens)
        size += store.link.itemsize * space(store.link, links)
        size += 3 * store.counts.itemsize * space(store.token_begin, frames + 2)
        if size > most:
            raise MemoryError
    return Store(
        enlarged(store.cost, tokens),
        enlarged(store.state, tokens),
        enlarged(store.link, links),
        enlarged(store.token_begin, frames + 2),
        enlarged(store.epsilon_begin, frames + 2),
        enlarged(store.emitting_begin, frames + 2),
        store.counts,
    )


@njit(cache=True, nogil=True)
def with_queue(scratch: Scratch, size: int) -> Scratch:
    """Return the scratch with space for `size` tokens that have epsilon arcs."""
    return Scratch(
        scratch.serial,
        enlarged(scratch.with_epsilon, size),
        enlarged(scratch.queue, size),
        scratch.clock,
    )


_POINTER, _INT = ir.IntType(8).as_pointer(), ir.IntType(32)
_READ, _KEEP, _DATA = ir.Constant(_INT, 0), ir.Constant(_INT, 3), ir.Constant(_INT, 1)


def _typed(_context: Any, array: Any, index: Any) -> tuple[Any, Any]:
    """Fetch the line of array[index]: `prefetch(array, index)` in a kernel.

    The index is not checked: it must not be negative; an address beyond the end of the
    array does no harm.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type, index_type = signature.args
        values = context.make_array(array_type)(context, builder, arguments[0])
        at = context.cast(builder, arguments[1], index_type, types.intp)
        address = cgutils.get_item_pointer(
            context, builder, array_type, values, [at], wraparound=False
        )
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [_POINTER, _INT, _INT, _INT]),
            "llvm.prefetch.p0",
        )
        line = builder.bitcast(address, _POINTER)
        builder.call(function, [line, _READ, _KEEP, _DATA])
        return context.get_dummy_value()

    return types.void(array, index), generate


prefetch: Any = intrinsic(_typed)
