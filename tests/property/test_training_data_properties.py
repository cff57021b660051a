"""What batches promise: each frame counted as often as said, whoever makes them."""

import math
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError
from reference.training_data_naive import batches as naive_batches
from reference.training_data_naive import chunks, data_of, normalize, targets

from latflow.criteria.batch import Batch, share_out
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.nnet.normalization import KINDS, Normalizer
from latflow.training.batches import BatchSource, Targets
from latflow.training.chunks import Chunker
from latflow.training.data_options import DataOptions, SamplingOptions
from latflow.training.labels import LabelStore, LabelWriter
from latflow.training.ordering import (
    epoch_order,
    form_batches,
    num_windows,
)
from latflow.training.readers import StoreReader
from latflow.training.sampling import UtteranceWeights, shares

DIM, CLASSES = 3, 7
LENGTHS = [5, 31, 1, 17, 64, 2, 40, 23, 23, 90, 8, 12]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dozen utterances with labels; frame t of utterance i is (i, t, noise)."""
    where = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(1)
    with (
        FrameWriter(where / "frames", dim=DIM) as frames,
        LabelWriter(where / "labels", CLASSES) as labels,
    ):
        for i, length in enumerate(LENGTHS):
            values = generator.normal(size=(length, DIM))
            values[:, 0], values[:, 1] = i, np.arange(length)
            frames.append(f"utt{i:02}", "speaker", "", values)
            labels.append(f"utt{i:02}", generator.integers(CLASSES, size=length))
    return where


@st.composite
def data_options(draw: st.DrawFn, subsampling: int = 1) -> DataOptions:
    """Any options that fit a subsampling."""
    size = draw(st.none() | st.integers(1, 12).map(lambda n: n * subsampling))
    step = None if size is None else draw(st.integers(1, size // subsampling))
    orders = ["default", "sorted", "reverse", "random", "laplace:3", "laplace:.4"]
    order = draw(st.sampled_from(orders))
    pool = draw(st.none() | st.integers(1, 14)) if order == "random" else None
    max_frames = draw(st.none() | st.integers(1, 300))
    return data_of(
        max_sequences=draw(st.integers(1, 9)),
        max_frames=max_frames,
        buckets=draw(st.integers(1, 4)),
        size=size,
        step=None if step is None else step * subsampling,
        left=draw(st.integers(0, 3)) * subsampling if size else 0,
        right=draw(st.integers(0, 9)) if size else 0,
        order=order,
        pool=pool,
        partition_epoch=draw(st.integers(1, 3)),
        prefetch=draw(st.integers(0, 3)),
        cache_mb=draw(st.sampled_from([None, 1])),
    )


def source(
    folder: Path, options: DataOptions, *, kind: str = "none", subsampling: int = 1
) -> BatchSource:
    """Batches of the fixture's data."""
    store = FrameStore.load(folder / "frames")
    reader = StoreReader(store, Normalizer.estimate(kind, store))
    labels = {"pdf": LabelStore.load(folder / "labels")}
    return BatchSource(
        reader, Targets(labels), options, subsampling=subsampling, seed=5
    )


def sequences(batch: Batch | None) -> list[tuple[object, ...]]:
    """Each piece of a batch as something that can be compared: no padding in it."""
    if batch is None:
        return []
    result = []
    for b, length in enumerate(batch.lengths.tolist()):
        out = -(-length // batch.subsampling)
        result.append(
            (
                batch.utterances[b],
                int(batch.first_frame[b]),
                batch.features[b, :length].numpy().tobytes(),
                batch.targets["pdf"][b, :out].numpy().tobytes(),
            )
        )
    return result


def global_batches(batches, epoch):
    """Pieces of each batch of an epoch, of all ranks together."""
    plan = batches._plan(epoch)
    return [plan.part(b, 0, 1) for b in range(len(plan))]


@given(
    length=st.integers(1, 200),
    size=st.integers(1, 40),
    share=st.floats(0, 1),
    stride=st.integers(1, 4),
    context=st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_chunks_are_those_of_the_obvious_loop(
    length: int, size: int, share: float, stride: int, context: tuple[int, int]
) -> None:
    step = max(1, round(share * size)) * stride
    size *= stride
    left, right = context[0] * stride, context[1]
    options = data_of(size, step, left, right).chunks
    chunker = Chunker(np.array([3, length, 1]), options, subsampling=stride)
    pieces = chunker.chunks(np.arange(chunker.num_chunks))
    own = pieces.select(np.flatnonzero(pieces.utterance == 1))
    counted = list(zip(own.count_from.tolist(), own.count_to.tolist(), strict=True))
    assert counted == chunks(length, size, step)
    end = own.first + own.length
    assert (own.first >= 0).all()
    assert (end <= length).all()
    assert (own.first % stride == 0).all()
    # context is there wherever the utterance has it
    assert (own.first <= np.maximum(own.count_from - left, 0)).all()
    assert (end == np.minimum(own.count_to + right, length)).all()
    # nothing is longer than a chunk with its context (and the last one's rounding)
    assert own.length.max() <= size + left + max(right, stride - 1)
    if length >= size + stride:
        assert own.length.min() >= size


@given(st.data(), st.integers(1, 3), st.integers(0, 4))
def test_each_frame_is_counted_as_often_as_chunks_hold_it(
    folder: Path, data: st.DataObject, subsampling: int, epoch: int
) -> None:
    options = data.draw(data_options(subsampling))
    batches = source(folder, options, subsampling=subsampling)
    labels = LabelStore.load(folder / "labels")
    seen: Counter[tuple[int, int]] = Counter()
    whole_pass = range(
        epoch * options.partition_epoch, (epoch + 1) * options.partition_epoch
    )
    for part in whole_pass:
        for batch in batches.epoch(part):
            assert batch is not None
            assert batch.num_frames == int((batch.targets["pdf"] >= 0).sum())
            for b in range(len(batch)):
                i, first = int(batch.indices[b]), int(batch.first_frame[b])
                for j in torch.nonzero(batch.targets["pdf"][b] >= 0).ravel().tolist():
                    frame = first + subsampling * j
                    assert batch.targets["pdf"][b, j] == labels.labels(i)[frame]
                    seen[i, frame] += 1
    wanted: Counter[tuple[int, int]] = Counter()
    for i, length in enumerate(LENGTHS):
        size = options.chunks.size if options.chunks else length
        step = options.chunks.step if options.chunks else None
        for first, last in chunks(length, size, step or size):
            wanted.update((i, t) for t in range(first, last) if t % subsampling == 0)
    assert seen == wanted


@given(st.data(), st.integers(2, 4), st.booleans(), st.integers(0, 3))
def test_shifted_passes_count_every_frame(
    folder: Path, data: st.DataObject, subsampling: int, labelled: bool, start: int
) -> None:
    options = data.draw(data_options(subsampling)).replace(shift_frames=True)
    if options.chunks:
        options = options.replace(
            sequences=options.chunks.replace(step=options.chunks.size)
        )
    batches = source(folder, options, subsampling=subsampling)
    if not labelled:
        batches = BatchSource(
            batches.reader, Targets(), options, subsampling=subsampling
        )
    seen: Counter[tuple[int, int]] = Counter()
    counted = 0
    first = start * subsampling * options.partition_epoch
    for epoch in range(first, first + subsampling * options.partition_epoch):
        for pieces in global_batches(batches, epoch):
            for b in range(len(pieces)):
                frames = range(
                    int(pieces.first[b]),
                    int(pieces.first[b] + pieces.length[b]),
                    subsampling,
                )
                i = int(batches.labelled.utterance[pieces.utterance[b]])
                inside = range(int(pieces.count_from[b]), int(pieces.count_to[b]))
                seen.update((i, t) for t in frames if t in inside)
        counted += sum(batch.num_frames for batch in batches.epoch(epoch))
    # of an utterance of n < s frames, passes of a shift beyond its end count the last
    for i, length in enumerate(LENGTHS):
        for t in range(length):
            late = max(0, subsampling - length) if t == length - 1 else 0
            assert seen[i, t] == 1 + late
    assert counted == seen.total()
    evaluation = options.for_evaluation()
    assert not evaluation.shift_frames


@given(st.data(), st.integers(1, 3), st.sampled_from(KINDS))
def test_batches_hold_the_frames_and_targets_of_their_pieces(
    folder: Path, data: st.DataObject, subsampling: int, kind: str
) -> None:
    batches = source(
        folder, data.draw(data_options(subsampling)), kind=kind, subsampling=subsampling
    )
    store, labels = batches.reader.store, LabelStore.load(folder / "labels")
    everything = [store.frames(i) for i in range(len(store))]
    for batch, pieces in zip(batches.epoch(1), global_batches(batches, 1), strict=True):
        assert batch is not None
        for b, length in enumerate(batch.lengths.tolist()):
            i, first = int(batch.indices[b]), int(batch.first_frame[b])
            assert batch.utterances[b] == store.utt_ids[i]
            wanted = normalize(store.frames(i), kind, everything)
            got = batch.features[b].numpy()
            np.testing.assert_allclose(
                got[:length], wanted[first : first + length], rtol=1e-4, atol=1e-4
            )
            assert (got[length:] == 0).all()
            counted = int(pieces.count_from[b]), int(pieces.count_to[b])
            aims = targets(labels.labels(i), first, length, counted, subsampling)
            got_targets = batch.targets["pdf"][b].tolist()
            assert got_targets[: len(aims)] == aims
            assert set(got_targets[len(aims) :]) <= {-1}


@given(st.data(), st.integers(1, 4), st.integers(0, 3))
def test_ranks_together_make_the_batches_of_one(
    folder: Path, data: st.DataObject, size: int, epoch: int
) -> None:
    batches = source(folder, data.draw(data_options()), kind="mean")
    whole = [sequences(batch) for batch in batches.epoch(epoch)]
    parts = [
        [sequences(batch) for batch in batches.epoch(epoch, rank=rank, size=size)]
        for rank in range(size)
    ]
    assert {len(part) for part in parts} == {len(whole)} == {batches.num_batches(epoch)}
    for b, batch in enumerate(whole):
        joined = [piece for part in parts for piece in part[b]]
        assert sorted(joined, key=repr) == sorted(batch, key=repr)


@given(st.data(), st.integers(0, 3))
def test_a_resumed_epoch_goes_on_where_it_was_left(
    folder: Path, data: st.DataObject, epoch: int
) -> None:
    options = data.draw(data_options())
    whole = [sequences(batch) for batch in source(folder, options).epoch(epoch)]
    first = data.draw(st.integers(0, len(whole)))
    rest = source(folder, options).epoch(epoch, first_batch=first)
    assert [sequences(batch) for batch in rest] == whole[first:]


@given(st.data(), st.integers(1, 4))
def test_micro_batches_hold_the_same_pieces(
    folder: Path, data: st.DataObject, parts: int
) -> None:
    for batch in source(folder, data.draw(data_options())).epoch(0):
        assert batch is not None
        micro = batch.split(parts)
        assert all(len(one) for one in micro)
        assert all(one.features.shape[1] == one.lengths.max() for one in micro)
        assert sum(one.num_frames for one in micro) == batch.num_frames
        joined = [piece for one in micro for piece in sequences(one)]
        assert sorted(joined, key=repr) == sorted(sequences(batch), key=repr)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=60),
    st.sampled_from(
        ["default", "sorted", "reverse", "random", "laplace:4", "laplace:.9"]
    ),
    st.integers(1, 5),
    st.integers(0, 9),
)
def test_orders_are_permutations_of_each_pass(
    lengths: list[int], text: str, partitions: int, whole_pass: int
) -> None:
    options = data_of(order=text, partition_epoch=partitions)
    array = np.array(lengths)
    first = whole_pass * partitions
    parts = [
        epoch_order(array, options, first + part, seed=3) for part in range(partitions)
    ]
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    joined = np.concatenate(parts)
    assert sorted(joined.tolist()) == list(range(len(lengths)))
    ordered = array[joined]
    if text == "sorted":
        assert joined.tolist() == sorted(range(len(lengths)), key=lambda i: lengths[i])
    if text == "reverse":
        assert joined.tolist() == sorted(range(len(lengths)), key=lambda i: -lengths[i])
    if text.startswith("laplace"):
        windows = num_windows(text, len(lengths))
        bounds = [-(-len(lengths) * w // windows) for w in range(windows + 1)]
        for w in range(windows):
            part = ordered[bounds[w] : bounds[w + 1]].tolist()
            assert part == sorted(part, reverse=w % 2 == 1)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(1, 25))
def test_a_pool_keeps_the_chunks_of_its_utterances_together(
    chunks_of: list[int], pool: int
) -> None:
    begin = np.concatenate(([0], np.cumsum(chunks_of)))
    lengths = np.ones(begin[-1], np.int64)
    ordered = epoch_order(lengths, data_of(pool=pool), 4, seed=1, begin=begin)
    assert sorted(ordered.tolist()) == list(range(len(lengths)))
    utterance = (np.searchsorted(begin, ordered, side="right") - 1).tolist()
    at = 0
    while at < len(utterance):
        # the next chunks are those of `pool` utterances, all of them
        drawn = list(dict.fromkeys(utterance[at:]))[:pool]
        size = sum(chunks_of[u] for u in drawn)
        assert set(utterance[at : at + size]) == set(drawn)
        at += size


def test_random_orders_differ_between_passes_and_seeds() -> None:
    lengths = np.ones(50, np.int64)
    orders = {
        tuple(epoch_order(lengths, data_of(), epoch, seed=seed).tolist())
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


@given(
    st.lists(st.integers(1, 50), max_size=60),
    st.integers(1, 8),
    st.integers(1, 300),
)
def test_batches_without_buckets_are_those_of_the_obvious_loop(
    lengths: list[int], max_sequences: int, max_frames: int
) -> None:
    limits = data_of(max_sequences=max_sequences, max_frames=max_frames)
    positions, begin = form_batches(np.array(lengths, np.int64), limits)
    got = [positions[a:b].tolist() for a, b in pairwise(begin)]
    assert got == naive_batches(lengths, max_sequences, max_frames)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=80),
    st.integers(1, 8),
    st.integers(2, 5),
)
def test_buckets_keep_lengths_apart(
    lengths: list[int], max_sequences: int, buckets: int
) -> None:
    array = np.array(lengths, np.int64)
    limits = data_of(max_sequences=max_sequences, buckets=buckets)
    positions, begin = form_batches(array, limits)
    assert sorted(positions.tolist()) == list(range(len(lengths)))
    assert (np.diff(begin) <= max_sequences).all()
    assert (np.diff(begin) >= 1).all()
    ranges = {
        (array[positions[a:b]].min(), array[positions[a:b]].max())
        for a, b in pairwise(begin)
    }
    # only the last batch of a bucket may have room left
    assert (np.diff(begin) < max_sequences).sum() <= buckets
    bounds = np.unique(
        np.quantile(array, np.arange(1, buckets) / buckets, method="inverted_cdf")
    )
    for low, high in ranges:
        assert np.searchsorted(bounds, low) == np.searchsorted(bounds, high)


@given(st.lists(st.integers(1, 90), min_size=1, max_size=40), st.integers(1, 6))
def test_shares_of_ranks_are_balanced(lengths: list[int], size: int) -> None:
    array = np.array(lengths)
    shares = share_out(array, size)
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(lengths)))
    loads = [int(array[share].sum()) for share in shares]
    # the last sequence given to a rank went to the least loaded one
    assert max(loads) - min(loads) <= max(lengths)


@pytest.mark.slow
def test_batches_are_the_same_in_another_process(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from latflow.features.frames import FrameStore;"
        "from latflow.training.batches import BatchSource, Targets;"
        "from latflow.training.data_options import ChunkOptions, DataOptions;"
        "from latflow.training.readers import StoreReader;"
        "store = FrameStore.load(Path(sys.argv[1]) / 'frames');"
        "options = DataOptions(sequences=ChunkOptions(size=10), order='laplace:3');"
        "source = BatchSource(StoreReader(store), Targets(), options, seed=5);"
        "print([b.utterances for b in source.epoch(2)])"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code, str(folder)],
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    options = data_of(10, order="laplace:3")
    here = BatchSource(
        StoreReader(FrameStore.load(folder / "frames")), Targets(), options, seed=5
    )
    assert printed == {f"{[b.utterances for b in here.epoch(2) if b]}\n"}


def test_an_epoch_keeps_a_few_bytes_a_piece(tmp_path: Path) -> None:
    num_utterances, length = 100, 2000
    with FrameWriter(tmp_path, dim=20) as writer:
        for i in range(num_utterances):
            writer.append(f"{i:03}", "", "", np.zeros((length, 20), np.float32))
    reader = StoreReader(FrameStore.load(tmp_path))
    source = BatchSource(reader, Targets(), data_of(1, prefetch=0))
    next(source.epoch(0))  # compiles, and unpacks the ids
    tracemalloc.start()
    try:
        batches = source.epoch(1)
        for _ in range(3):
            next(batches)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # the order, 8 bytes a piece; frames would be 80
    assert kept < 10 * num_utterances * length


@given(st.integers(1, 60), st.integers(1, 3), st.integers(0, 5), st.booleans())
def test_subsets_grow_and_keep_what_they_had(num_utterances, partitions, seed, is_cut):
    sizes = np.random.default_rng(seed).integers(1, 4, num_utterances)
    begin = np.concatenate(([0], np.cumsum(sizes))) if is_cut else None
    lengths = np.ones(int(sizes.sum()) if is_cut else num_utterances, np.int64)
    shares = (0.1, 0.5, 1.0, 0.25)
    options = data_of(subsets=list(shares), partition_epoch=partitions)
    seen = []
    for whole_pass in range(6):
        epochs = range(whole_pass * partitions, (whole_pass + 1) * partitions)
        taken = np.concatenate(
            [epoch_order(lengths, options, e, seed=seed, begin=begin) for e in epochs]
        )
        assert len(set(taken.tolist())) == len(taken)
        if begin is not None:
            taken = np.searchsorted(begin, taken, side="right") - 1
            assert len(taken) == sum(sizes[i] for i in set(taken.tolist()))
        seen.append(set(taken.tolist()))
    counts = [math.ceil(share * num_utterances) for share in (*shares, 0.25, 0.25)]
    assert [len(one) for one in seen] == counts
    assert seen[0] <= seen[3] <= seen[1] <= seen[2]
    assert seen[3] == seen[4] == seen[5]


def test_dev_is_whole_whatever_training_takes():
    assert data_of(subsets=[0.1]).for_evaluation().subsets == ()


WEIGHTS = st.lists(st.floats(0.01, 3), min_size=1, max_size=3)


def weights_of(
    ids: list[str],
    options: DataOptions,
    seed: int,
    speakers: Sequence[int] | np.ndarray = (),
    lengths: Sequence[int] | np.ndarray = (),
) -> UtteranceWeights:
    """Weights of utterances that nobody has the frames of."""
    reader: Any = SimpleNamespace(
        utt_ids=ids, speakers=np.array(speakers), lengths=np.array(lengths)
    )
    weights = UtteranceWeights.of(reader, np.arange(len(ids)), options, seed)
    assert weights is not None
    return weights


@given(
    st.lists(st.sampled_from(["a", "b", "other"]), min_size=1, max_size=40),
    WEIGHTS,
    WEIGHTS,
    st.integers(0, 5),
)
def test_sources_are_taken_as_often_as_their_weights_say(
    sources: list[str], first: list[float], second: list[float], seed: int
) -> None:
    """The total is that of the weights, of each utterance to within one."""
    assume({"a", "b", "other"} <= set(sources))
    ids = [f"{source}-{i}" for i, source in enumerate(sources)]
    options = data_of(source_weights={"a": first, "b": second})
    weights = weights_of(ids, options, seed)
    total = np.zeros(len(ids), np.int64)
    expected = np.zeros(len(ids))
    for whole_pass in range(6):
        copies = weights.copies(whole_pass)
        total += copies
        for i, source in enumerate(sources):
            its = {"a": first, "b": second}.get(source, [1.0])
            expected[i] += its[min(whole_pass, len(its) - 1)]
        assert (np.abs(total - expected) < 1.0 + 1e-9).all()
        for name in ("a", "b", "other"):
            rows = [i for i, source in enumerate(sources) if source == name]
            assert abs(total[rows].sum() - expected[rows].sum()) < 1.0 + 1e-6


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=30),
    st.sampled_from(
        [
            ("default", None),
            ("sorted", None),
            ("laplace:3", None),
            ("random", None),
            ("random", 4),
        ]
    ),
    st.integers(1, 3),
)
def test_copies_of_an_utterance_are_in_a_pass_with_all_their_chunks(
    utterances: list[tuple[int, int]], drawn: tuple[str, int | None], partitions: int
) -> None:
    order, pool = drawn
    sizes, copies = map(np.array, zip(*utterances, strict=True))
    begin = np.concatenate(([0], np.cumsum(sizes)))
    lengths = np.random.default_rng(1).integers(1, 9, begin[-1])
    options = data_of(order=order, pool=pool, partition_epoch=partitions)
    taken = np.concatenate(
        [
            epoch_order(lengths, options, epoch, begin=begin, copies=copies)
            for epoch in range(partitions)
        ]
    )
    found = np.bincount(taken, minlength=begin[-1])
    assert found.tolist() == np.repeat(copies, sizes).tolist()
    if order == "sorted":
        assert (np.diff(lengths[taken]) >= 0).all()
    half = options.replace(subsets=(0.5,))
    for chosen in (options, half):
        once = epoch_order(lengths, chosen, 0, begin=begin, copies=np.ones_like(copies))
        assert once.tolist() == epoch_order(lengths, chosen, 0, begin=begin).tolist()


def test_a_source_of_a_half_gives_its_other_half_in_the_next_pass() -> None:
    ids = [f"web-{i}" for i in range(10)] + [f"tv-{i}" for i in range(5)]
    options = data_of(source_weights={"web": [0.5], "tv": [0.0, 2.0]})
    weights = weights_of(ids, options, 3)
    passes = [weights.copies(k) for k in range(4)]
    assert (passes[0][:10] + passes[1][:10]).tolist() == [1] * 10
    assert passes[0][:10].sum() == 5
    assert [p[10:].tolist() for p in passes] == [[0] * 5, [2] * 5, [2] * 5, [2] * 5]
    assert weights.final().tolist() == [0.5] * 10 + [2.0] * 5
    assert options.first_whole_pass == 1
    assert options.for_evaluation().source_weights == {}
    nothing = data_of(source_weights={"web": [0.0], "tv": [0.0, 2.0]})
    weights = weights_of(ids, nothing, 3)
    with pytest.raises(UserError, match="pass 1 takes no utterance"):
        weights.copies(0)
    with pytest.raises(UserError, match="no utterance of tv"):
        weights_of(ids[:10], options, 3)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.integers(1, 50)),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([-1.0, 0.0, 1.0]),
)
def test_shares_are_those_of_powers(
    utterances: list[tuple[int, str, int]], speaker_power: float, length_power: float
) -> None:
    speakers, sources, lengths = map(list, zip(*utterances, strict=True))
    options = SamplingOptions(speaker_power=speaker_power, length_power=length_power)
    source = np.array([ord(name) for name in sources])
    found = shares(np.array(speakers), np.array(lengths), options, source)
    wanted = []
    for speaker, name, length in utterances:
        own = [t for s, n, t in utterances if (s, n) == (speaker, name)]
        total = sum(t**length_power for t in own)
        wanted.append(length**length_power * total ** (speaker_power - 1))
    for name in set(sources):
        rows = [i for i, n in enumerate(sources) if n == name]
        mean = sum(wanted[i] for i in rows) / len(rows)
        np.testing.assert_allclose(found[rows], np.array(wanted)[rows] / mean)


def test_speakers_come_equally_often() -> None:
    """Of 60, 30 and 10 utterances; those of one utterance not all in one pass."""
    sizes = [60, 30, 10, *[1] * 200]
    speakers = np.repeat(np.arange(len(sizes)), sizes)
    ids = [f"utt{i:03}" for i in range(len(speakers))]
    lengths = np.full(len(ids), 7)
    sampling = {"sampling": {"speaker_power": 0.0}}
    weights = weights_of(ids, data_of(**sampling), 1, speakers, lengths)
    per_pass = len(ids) / len(sizes)
    counts = np.array([np.bincount(speakers, weights.copies(k)) for k in range(8)])
    assert (np.abs(counts - per_pass) < 1).all()
    assert (np.abs(counts.sum(0) - 8 * per_pass) < 1).all()
    singles = counts[:, 3:].sum(1)
    assert (np.abs(singles - 200 * per_pass) < 40).all()
    # each utterance of a speaker as often as the others
    total = sum(weights.copies(k) for k in range(8))
    assert np.ptp(total[:60]) <= 1
    # another seed takes others, the same seed the same
    again = weights_of(ids, data_of(**sampling), 1, speakers, lengths)
    other = weights_of(ids, data_of(**sampling), 2, speakers, lengths)
    assert np.array_equal(again.copies(3), weights.copies(3))
    assert not np.array_equal(other.copies(0), weights.copies(0))


def test_long_utterances_come_more_often() -> None:
    ids = [f"utt{i:03}" for i in range(100)]
    lengths = np.repeat([10, 30], 50)
    options = data_of(sampling={"length_power": 1.0})
    copies = weights_of(ids, options, 1, np.zeros(100, int), lengths).copies(0)
    assert abs(copies[:50].sum() - 25) <= 5
    assert abs(copies[50:].sum() - 75) <= 5
    options = data_of(sampling={"length_power": 1.0}, source_weights={"utt": [2.0]})
    assert options.for_evaluation().sampling.is_even


def test_sampling_goes_on_as_any_epoch(tmp_path: Path) -> None:
    """Ranks take their parts of one order, and a rest is a rest; progress counts it."""
    with (
        FrameWriter(tmp_path / "frames", dim=DIM) as frames,
        LabelWriter(tmp_path / "labels", CLASSES) as labels,
    ):
        for i, length in enumerate(LENGTHS):
            values = np.full((length, DIM), i)
            frames.append(f"utt{i:02}", "b" if i % 6 else "a", "", values)
            labels.append(f"utt{i:02}", np.zeros(length, np.int32))
    options = data_of(max_sequences=3, sampling={"speaker_power": 0.0})
    batches = source(tmp_path, options)
    for epoch in range(3):
        whole = [sequences(batch) for batch in batches.epoch(epoch)]
        assert len(whole) == batches.num_batches(epoch)
        taken = Counter(int(str(one[0])[3:]) % 6 == 0 for b in whole for one in b)
        assert abs(taken[True] - 6) <= 1
        assert abs(taken[False] - 6) <= 1
        ranks = [list(batches.epoch(epoch, rank=r, size=2)) for r in range(2)]
        together = [
            sequences(one) + sequences(other) for one, other in zip(*ranks, strict=True)
        ]
        assert [sorted(b) for b in together] == [sorted(b) for b in whole]
        rest = [sequences(batch) for batch in batches.epoch(epoch, first_batch=2)]
        assert rest == whole[2:]


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=40),
    st.integers(1, 200),
    st.integers(1, 60),
)
def test_long_sequences_count_more_for_the_size_of_batches(
    lengths: list[int], max_frames: int, quadratic: int
) -> None:
    options = data_of(
        max_sequences=100, max_frames=max_frames, quadratic_frames=quadratic
    )
    positions, begin = form_batches(np.array(lengths), options)
    counted = [n + n * n // quadratic for n in lengths]
    wanted = naive_batches(counted, 100, max_frames)
    found = [positions[a:b].tolist() for a, b in pairwise(begin.tolist())]
    assert found == wanted
    with pytest.raises(ValidationError, match="max_frames, which is null"):
        data_of(quadratic_frames=9)
