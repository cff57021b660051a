"""In which order an epoch takes its utterances, and how they come together in batches.

All is a function of (options, seed, epoch): no state, no global generator, no hash of
the interpreter. Epochs count from 0. The orders are those of RETURNN's `batching`:

    default        as stored (sorted by id)
    sorted         short ones first; equal lengths as stored
    reverse        long ones first
    random again in every epoch laplace:<n> random, then cut into n windows that are
    sorted by length, in turns
                   upwards and downwards: neighbours have similar lengths, yet batches
                   differ from epoch to epoch
    laplace:.<n>   the same with windows of n sequences (or a few more)

With a *pool* of n utterances, `random` draws the chunks of n utterances, then those of
the next n, and so on: the utterances come in a random order, and their chunks lie near
each other. For features that are dear to get: computed on the fly, or on a slow disk.

With *subsets* a pass takes a share of the utterances, the same ones each time, so that
smaller shares are parts of greater ones. *Copies* say how often a pass takes each
utterance (`latflow.training.sampling`).
"""

from __future__ import annotations

import math
import zlib

import numpy as np

from latflow.jit import njit
from latflow.training.data_options import BatchOptions

_ORDER_KEY = zlib.crc32(b"order of an epoch")
_SUBSET_KEY = zlib.crc32(b"subset of the utterances")


def epoch_order(
    lengths: np.ndarray,
    options: BatchOptions,
    epoch: int,
    *,
    seed: int = 0,
    begin: np.ndarray | None = None,
    copies: np.ndarray | None = None,
) -> np.ndarray:
    """Choose and order the sequences of an epoch.

    With N partitions, epochs k N .. k N + N - 1 share the k-th pass over the data: its
    order is cut into N parts, of sizes that differ by one at most.

    Args:
        lengths: integers [N], frames of each sequence.
        options: `order`, `pool`, `subsets` and `partition_epoch`.
        epoch: from 0.
        seed: of `random`, `laplace` and `subsets`.
        begin: int64 [utterances + 1], first sequence of each utterance; None where each
            sequence is an utterance.
        copies: int64 [utterances], how often the pass takes each; None for once.

    Returns:
        int64 [n]: indices of sequences, O(N log N) to make.
    """
    partitions = options.partition_epoch
    whole_pass, part = divmod(epoch, partitions)
    generator = np.random.default_rng([seed, _ORDER_KEY, whole_pass])
    num_sequences, taken = len(lengths), None
    if copies is not None:
        of = copies if begin is None else np.repeat(copies, np.diff(begin))
        taken = np.repeat(np.arange(num_sequences), of)
        lengths = lengths[taken]
    if options.order == "random" and options.pool is not None and begin is not None:
        ordered = _pooled(taken, begin, options.pool, generator)
    else:
        ordered = _order(lengths, options.order, generator)
    if taken is not None:
        ordered = taken[ordered]
    if options.subsets:
        share = options.subsets[min(whole_pass, len(options.subsets) - 1)]
        ordered = ordered[_is_in_subset(share, num_sequences, seed, begin)[ordered]]
    bounds = len(ordered) * np.arange(partitions + 1) // partitions
    return ordered[bounds[part] : bounds[part + 1]]


def _is_in_subset(
    share: float, num_sequences: int, seed: int, begin: np.ndarray | None
) -> np.ndarray:
    """Return which sequences are of a share of the utterances: bool [num_sequences]."""
    num_utterances = num_sequences if begin is None else len(begin) - 1
    generator = np.random.default_rng([seed, _SUBSET_KEY])
    is_in = generator.permutation(num_utterances) < math.ceil(share * num_utterances)
    return is_in if begin is None else np.repeat(is_in, np.diff(begin))


def _order(
    lengths: np.ndarray, order: str, generator: np.random.Generator
) -> np.ndarray:
    if order == "default":
        return np.arange(len(lengths))
    if order == "sorted":
        return np.argsort(lengths, kind="stable")
    if order == "reverse":
        return np.argsort(-lengths.astype(np.int64), kind="stable")
    shuffled = generator.permutation(len(lengths))
    if order == "random":
        return shuffled
    return _laplace(shuffled, lengths[shuffled], num_windows(order, len(lengths)))


def num_windows(order: str, num_sequences: int) -> int:
    """Return how many windows `laplace:<n>` or `laplace:.<n>` cuts sequences into."""
    number = order.partition(":")[2]
    is_size = number.startswith(".")
    wanted = num_sequences // int(number[1:]) if is_size else int(number)
    return max(1, min(wanted, num_sequences))


def _pooled(
    taken: np.ndarray | None,
    begin: np.ndarray,
    pool: int,
    generator: np.random.Generator,
) -> np.ndarray:
    """Return an order of taken sequences, random within pools of utterances."""
    num_utterances = len(begin) - 1
    drawn = np.empty(num_utterances, np.int64)
    drawn[generator.permutation(num_utterances)] = np.arange(num_utterances)
    pool_of = np.repeat(drawn // pool, np.diff(begin))
    if taken is not None:
        pool_of = pool_of[taken]
    shuffled = generator.permutation(len(pool_of))
    return shuffled[np.argsort(pool_of[shuffled], kind="stable")]


def _laplace(shuffled: np.ndarray, lengths: np.ndarray, windows: int) -> np.ndarray:
    """Sort each window by length, every second one downwards, in one sort."""
    positions = np.arange(len(shuffled))
    window = positions * windows // max(1, len(shuffled))
    signed = np.where(window % 2 == 0, lengths, -lengths.astype(np.int64))
    return shuffled[np.lexsort((positions, signed, window))]


def form_batches(
    lengths: np.ndarray, options: BatchOptions
) -> tuple[np.ndarray, np.ndarray]:
    """Put sequences, in their order, together in batches.

    A batch is closed when the next sequence of its bucket would break a limit; batches
    come in the order of closing, those still open at the end by bucket.

    Args:
        lengths: integers [n], frames of the sequences, in the epoch's order.
        options: `max_sequences`, `max_frames`, `quadratic_frames` and `buckets`.

    Returns:
        (positions, begin): batch b holds the sequences at `positions[begin[b] :
        begin[b + 1]]`, int64 [n] and int64 [number of batches + 1]; within a batch the
        order stays.
    """
    bucket = _buckets(lengths, options.buckets)
    max_frames = options.max_frames or np.iinfo(np.int64).max
    counted = _counted(lengths, options.quadratic_frames)
    batch = _close_batches(counted, bucket, options.max_sequences, max_frames)
    # without buckets, batches are closed in the order of their sequences
    is_in_order = options.buckets == 1
    positions = (
        np.arange(len(batch)) if is_in_order else np.argsort(batch, kind="stable")
    )
    return positions, np.concatenate(([0], np.cumsum(np.bincount(batch))))


def _counted(lengths: np.ndarray, quadratic: int | None) -> np.ndarray:
    """Return the frames that sequences count as, int32 [n]."""
    if quadratic is not None:
        grown = lengths.astype(np.int64)
        lengths = grown + grown**2 // quadratic
        lengths = np.minimum(lengths, np.iinfo(np.int32).max)
    return lengths.astype(np.int32)


def _buckets(lengths: np.ndarray, buckets: int) -> np.ndarray:
    """Return the bucket of each sequence; equal lengths share theirs: int16 [n]."""
    if buckets == 1 or not len(lengths):
        return np.zeros(len(lengths), np.int16)
    shares = np.arange(1, buckets) / buckets
    bounds = np.unique(np.quantile(lengths, shares, method="inverted_cdf"))
    return np.searchsorted(bounds, lengths, side="left").astype(np.int16)


@njit(cache=True, nogil=True)
def _close_batches(
    lengths: np.ndarray, bucket: np.ndarray, max_sequences: int, max_frames: int
) -> np.ndarray:
    """Return the number of the batch of each sequence, int32 [n]."""
    num_buckets = bucket.max() + 1 if len(bucket) else 0
    size = np.zeros(num_buckets, np.int64)
    longest = np.zeros(num_buckets, np.int64)
    # a batch has a provisional number when it is opened, its final one when closed
    opened = np.zeros(num_buckets, np.int64)
    final = np.zeros(len(lengths), np.int32)
    batch = np.zeros(len(lengths), np.int32)
    num_opened = num_closed = 0
    for i in range(len(lengths)):
        b = bucket[i]
        grown = max(longest[b], np.int64(lengths[i]))
        is_full = size[b] == max_sequences or grown > max_frames // (size[b] + 1)
        if size[b] > 0 and is_full:
            final[opened[b]] = num_closed
            num_closed += 1
            size[b] = longest[b] = 0
        if size[b] == 0:
            opened[b] = num_opened
            num_opened += 1
        size[b] += 1
        longest[b] = max(longest[b], np.int64(lengths[i]))
        batch[i] = opened[b]
    for b in range(num_buckets):
        if size[b] > 0:
            final[opened[b]] = num_closed
            num_closed += 1
    for i in range(len(lengths)):
        batch[i] = final[batch[i]]
    return batch
