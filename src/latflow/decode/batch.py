"""Lattices of many utterances at once, on threads that share one graph.

The kernels release the interpreter's lock, so that threads of one process use all
cores; an utterance that cannot be decoded gives its error in its place and does not
stop the others.

Public: `decode_batch`, `decode_each`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial

import numpy as np

from latflow.decode.decoded import Decoded
from latflow.decode.retry import Attempt, RetryPolicy
from latflow.decode.search import LatticeDecoder
from latflow.errors import UserError
from latflow.parallel import in_order, worker_pool

Item = tuple[str | None, np.ndarray]
_AHEAD = 2  # utterances per thread begun or done before they are asked for


def decode_batch(
    decoder: LatticeDecoder,
    log_likes: Sequence[np.ndarray],
    *,
    acoustic_scale: float,
    threads: int = 1,
    pool: Executor | None = None,
    utterances: Sequence[str] | None = None,
) -> list[Decoded | UserError]:
    """Decode a batch.

    Args:
        decoder: of all.
        log_likes: float32[T_i, P] each.
        acoustic_scale: factor on them.
        threads: how many to use, if there is no pool.
        pool: threads to use; with batch after batch, keep one.
        utterances: names for errors; the numbers in the batch if there are none.

    Returns:
        For each, what `LatticeDecoder.decode` returns or raises.
    """
    policy = RetryPolicy((decoder.beam,))
    names = utterances or [f"utterance {i} of the batch" for i in range(len(log_likes))]
    work = partial(_attempt, decoder, policy, acoustic_scale)
    items = list(zip(names, log_likes, strict=True))
    if pool is not None:
        return [_outcome(attempt) for attempt in pool.map(work, items)]
    with worker_pool(threads) as own:
        return [_outcome(attempt) for attempt in own.map(work, items)]


def decode_each(
    decoder: LatticeDecoder,
    items: Iterable[Item],
    policy: RetryPolicy,
    *,
    acoustic_scale: float,
    threads: int,
) -> Iterator[Attempt]:
    """Decode a stream of utterances, retrying by a policy; results in order.

    Only a few utterances per thread are in memory at a time.

    Args:
        decoder: of all; its own beam is not used.
        items: name, and float32[T, P]; taken one by one in the calling thread.
        policy: what to do about searches that come to no good end.
        acoustic_scale: factor on the log-likelihoods.
        threads: how many to use.
    """
    work = partial(_attempt, decoder, policy, acoustic_scale)
    with worker_pool(threads) as pool:
        yield from in_order(pool, work, items, ahead=_AHEAD * max(1, threads))


def _attempt(
    decoder: LatticeDecoder, policy: RetryPolicy, acoustic_scale: float, item: Item
) -> Attempt:
    """Decode one utterance by the policy."""
    name, log_likes = item

    def search(beam: float) -> Decoded:
        return decoder.decode(
            log_likes, acoustic_scale=acoustic_scale, utterance=name, beam=beam
        )

    return policy.run(search, utterance=name)


def _outcome(attempt: Attempt) -> Decoded | UserError:
    """The lattice, or the error in its place."""
    found = attempt.decoded or attempt.error
    assert found is not None
    return found
