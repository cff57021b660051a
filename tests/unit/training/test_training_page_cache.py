"""`data.cache_mb`: the same batches from a bounded number of resident pages."""

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from reference.training_data_naive import data_of

from latflow.features.cmvn_options import SlidingCmvn, SpeakerCmvn
from latflow.features.frames import FeatureStore, FrameStore, FrameWriter
from latflow.features.normalization import compute_cmvn
from latflow.nnet.normalization import Normalizer
from latflow.page_cache import PageBudget
from latflow.training.batches import BatchSource, Targets
from latflow.training.epoch_plan import ReadAhead
from latflow.training.labels import LabelStore, LabelWriter
from latflow.training.readers import StoreReader

DIM, UTTERANCES, FRAMES = 40, 200, 400  # 12.8 MB
BUDGET_MB = 2


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    with (
        FrameWriter(folder / "frames", dim=DIM) as frames,
        LabelWriter(folder / "labels", 9) as labels,
    ):
        for i in range(UTTERANCES):
            values = generator.normal(size=(FRAMES, DIM)).astype(np.float32)
            frames.append(f"u{i:03}", "s", "", values)
            labels.append(f"u{i:03}", generator.integers(9, size=FRAMES))
    return folder


def source(folder: Path, kind: str = "none", **options: object) -> BatchSource:
    store = FrameStore.load(folder / "frames")
    labels = {"pdf": LabelStore.load(folder / "labels")}
    values = {"max_sequences": 16, "size": 80, **options}
    return BatchSource(
        StoreReader(store, Normalizer(kind)), Targets(labels), data_of(**values)
    )


def mapping(array: np.ndarray) -> mmap.mmap:
    base: object = array
    while not isinstance(base, mmap.mmap):
        base = base.base  # type: ignore[attr-defined]
    return base


def in_page_cache(array: np.ndarray) -> int:
    """Return the bytes of a mapped file that the page cache holds: mincore(2)."""
    mapped = mapping(array)
    pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
    start = np.frombuffer(mapped, np.uint8).ctypes.data
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    assert mincore(start, len(mapped), pages) == 0
    return int((np.frombuffer(pages, np.uint8) & 1).sum()) * mmap.PAGESIZE


def of_process(file: Path) -> int:
    """Return the bytes of a mapped file that count for this process."""
    total, is_there = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.split()[0].endswith(":"):
            is_there = line.endswith(str(file))
        elif is_there and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def forget(file: Path) -> None:
    """Write a file to the disk and drop it from the page cache."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bits(batches: BatchSource, **of: int) -> list[tuple[bytes, bytes]]:
    """Return features and targets of an epoch."""
    return [
        (batch.features.numpy().tobytes(), batch.targets["pdf"].numpy().tobytes())
        for batch in batches.epoch(1, **of)
        if batch is not None
    ]


@pytest.mark.parametrize("kind", ["none", "mean_variance"])
def test_batches_are_the_same_bits(data: Path, kind: str) -> None:
    plain, cached = source(data, kind), source(data, kind, cache_mb=BUDGET_MB)
    assert plain.pop_statistics() == {}
    assert bits(cached) == bits(plain)
    counts = cached.pop_statistics()["cache"]
    assert counts["pieces"] == 2 * UTTERANCES * FRAMES // 80
    assert counts["dropped_mb"] > counts["read_mb"] - 2 * BUDGET_MB > 8
    of = {"rank": 1, "size": 2, "first_batch": 5}
    assert bits(cached, **of) == bits(plain, **of)
    # what is asked for again soon is there: all of it, where there is room
    everything = source(data, kind, cache_mb=40)
    for _ in range(2):
        bits(everything)
    assert everything.pop_statistics()["cache"]["dropped_mb"] == 0
    bits(everything)
    assert everything.pop_statistics()["cache"]["held"] == 1


def test_batches_are_the_same_bits_without_calls_of_linux(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = bits(source(data, "mean_variance"))
    for name in ("posix_fadvise", "posix_fallocate"):
        monkeypatch.delattr(os, name)
    cached = source(data, "mean_variance", cache_mb=BUDGET_MB)
    assert bits(cached) == expected
    assert cached.pop_statistics()["cache"]["dropped_mb"] > 8


def test_normalization_by_windows_asks_for_whole_utterances(tmp_path: Path) -> None:
    with FrameWriter(tmp_path / "all", dim=DIM, kind=FeatureStore) as writer:
        for name in "abc":
            writer.append(name, "s", "", np.ones((FRAMES, DIM), np.float32))
    asked: list[tuple[int, int]] = []

    class Budget(PageBudget):
        def hold(self, array: np.ndarray, first: np.ndarray, last: np.ndarray) -> int:
            asked.append((int(first[0]), int(last[0])))
            return super().hold(array, first, last)

    for cmvn in (SlidingCmvn(), SpeakerCmvn()):
        compute_cmvn(tmp_path / "all", tmp_path / cmvn.type, cmvn=cmvn)
        reader = StoreReader(FrameStore.load(tmp_path / cmvn.type))
        reader.hold(Budget(10**7), *np.array([[1], [50], [80]]))
    assert asked == [(FRAMES, 2 * FRAMES), (FRAMES + 50, FRAMES + 130)]


def test_pages_stay_within_the_budget(data: Path) -> None:
    """Of 13 MB, 2 MB and what a batch and page faults add; without it, all."""
    file = data / "frames" / "frames.npy"
    forget(file)
    cached = source(data, cache_mb=BUDGET_MB)
    assert isinstance(cached.reader, StoreReader)
    frames = cached.reader.store["frames"].flat
    can_drop = in_page_cache(frames) < 1e6  # not tmpfs, nor another that keeps all
    most = {"process": 0, "page cache": 0}
    epoch = cached.epoch(0)
    for number, _ in enumerate(epoch):
        if number % 8:
            continue
        most["process"] = max(most["process"], of_process(file))
        most["page cache"] = max(most["page cache"], in_page_cache(frames))
    assert most["process"] > 0.5e6
    if can_drop:
        assert max(most.values()) < 4e6
    del cached, frames, epoch
    plain = source(data)
    assert isinstance(plain.reader, StoreReader)
    bits(plain)
    assert of_process(file) > 12e6
    assert in_page_cache(plain.reader.store["frames"].flat) > 12e6


class Asked(PageBudget):
    """Notes the bytes that are asked for."""

    def __init__(self) -> None:
        super().__init__(10**9)
        self.spans: set[tuple[int, int]] = set()

    def hold(self, array: np.ndarray, first: np.ndarray, last: np.ndarray) -> int:
        start = array.ctypes.data
        begin, end = start + first * array.strides[0], start + last * array.strides[0]
        self.spans |= set(zip(begin.tolist(), end.tolist(), strict=True))
        return super().hold(array, first, last)


@pytest.mark.parametrize(
    "options",
    [{}, {"left": 7, "right": 9}, {"size": None, "max_sequences": 3}, {"step": 30}],
)
def test_what_is_read_was_asked_for(data: Path, options: dict[str, int]) -> None:
    batches = source(data, cache_mb=1, **options)
    assert isinstance(batches.reader, StoreReader)
    batches.pages = asked = Asked()
    frames = batches.reader.store["frames"].flat
    row, start = frames.strides[0], frames.ctypes.data
    for batch in batches.epoch(0):
        assert batch is not None
        first = batches.reader.store.begin[batch.indices] + batch.first_frame.numpy()
        for begin, count in zip(first, batch.lengths.tolist(), strict=True):
            span = (start + begin * row, start + (begin + count) * row)
            assert tuple(map(int, span)) in asked.spans


def test_half_of_the_budget_is_read_ahead_and_not_at_once() -> None:
    order: list[int] = []

    def hold(batch: int) -> int:
        order.append(batch)
        return 10

    ahead = ReadAhead(PageBudget(200), hold, 3, 40)
    ahead.before(3)
    assert order == [3, 4, 5, 6, 7]
    for batch in range(4, 10):
        ahead.before(batch)
        assert order == list(range(3, order[-1] + 1))
        assert order[-1] - batch <= 10
    assert order[-1] == 19
    for batch in range(10, 40):
        ahead.before(batch)
    assert order == list(range(3, 40))


def test_a_batch_larger_than_the_budget_is_asked_for_when_it_is_made() -> None:
    order: list[int] = []
    ahead = ReadAhead(PageBudget(5), lambda b: order.append(b) or 100, 0, 4)
    for batch in range(4):
        ahead.before(batch)
        assert order[-1] <= batch + 1
    assert order == [0, 1, 2, 3]


def test_the_oldest_pages_go_and_empty_arrays_need_none(tmp_path: Path) -> None:
    per_page = mmap.PAGESIZE // 4
    np.save(tmp_path / "a.npy", np.arange(8 * per_page, dtype=np.int32))
    array = np.load(tmp_path / "a.npy", mmap_mode="r")
    budget = PageBudget(4 * mmap.PAGESIZE)

    def ask(page: int) -> int:
        rows = np.array([page * per_page + 8])
        return budget.hold(array, rows, rows + 8)

    assert [ask(page) for page in (0, 1, 2, 3, 0)] == [mmap.PAGESIZE] * 5
    ask(4)  # 1 goes
    assert budget.take_counts()["held"] == 0.1667
    ask(0)
    assert budget.take_counts()["held"] == 1
    ask(1)
    counts = budget.take_counts()
    assert (counts["held"], counts["dropped_mb"]) == (0, round(mmap.PAGESIZE / 1e6, 3))
    assert (array == np.arange(8 * per_page)).all()
    nothing = np.zeros(0, np.int64)
    assert budget.hold(np.zeros((0, 3), np.float32), nothing, nothing) == 0
