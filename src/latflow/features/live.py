"""Features computed from the audio when they are read, nothing stored.

`prepare_live_features` takes the place of the stages that store features: its folder
says what is to be computed, and how many frames each utterance will have. Opened as
`LiveFrames` it gives the numbers that `extract_features` and `normalise_features` would
have stored (on the processor the same bits, where the storage keeps every bit).

Worker threads read audio and compute; with `device: cuda` they read, and the front end
runs on the GPU for all utterances of a batch together. Utterances stay in a cache of a
given number of bytes, the longest unused going first: with chunks, set `pool` so that
the chunks of an utterance come soon after each other.

Public: `prepare_live_features`, `LiveFrames`, `LiveOptions`, `Frames`, `open_frames`.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from lhotse import MonoCut
from lhotse.audio import AudioLoadingError, DurationMismatchError

from latflow.errors import UserError
from latflow.features.cmvn import apply_cmvn, cmvn_statistics, sliding_cmvn
from latflow.features.extractor import KaldiFbank, KaldiMfcc, make_extractor
from latflow.features.frames import FrameStore, pack, unpack
from latflow.features.front_end import dither
from latflow.features.manifests import count_cuts, read_cuts, text_of
from latflow.features.options import FrameGeometry, FrontEndOptions
from latflow.files import atomic_directory
from latflow.ledger import Ledger
from latflow.logs import progress

FORMAT = "latflow-live-frames-1"
CUTS, INDEX, META = "cuts.jsonl", "index.npz", "meta.json"
_UNREADABLE = (
    AudioLoadingError,
    DurationMismatchError,
    AssertionError,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
)
_CMVN: dict[str, Callable[..., np.ndarray]] = {
    "none": lambda frames: frames,
    "sliding": sliding_cmvn,
    "utterance": lambda frames, **how: apply_cmvn(
        frames, cmvn_statistics(frames), **how
    ),
}


def prepare_live_features(
    cuts: str | Path,
    out_dir: str | Path,
    *,
    options: Mapping[str, Any],
    max_skipped_fraction: float,
) -> None:
    """Describe the features of a split, to be computed when they are read.

    Args:
        cuts: the split's `cuts.jsonl.gz`, sorted by id.
        out_dir: replaced as a whole, or left as it was on an error.
        options: the `features` section of the configuration; its CMVN must be of
            `utterance`, `sliding` or `none`.
        max_skipped_fraction: share of utterances that may be too short for a frame.

    Raises:
        UserError: CMVN that needs statistics of several utterances, different sample
            rates, or too many utterances without a frame.
    """
    if options["cmvn"]["type"] not in _CMVN:
        raise UserError(
            f"features.cmvn {options['cmvn']['type']} needs all features beforehand",
            remedy="use utterance, sliding or none with features computed on the fly "
            "(the section data has a global normalisation of its own)",
        )
    ledger = Ledger("prepare_live_features")
    front_end = FrontEndOptions.from_config(options)
    rate: int | None = options["sample_rate"]
    utt_ids: list[str] = []
    texts: list[str] = []
    num_frames, offsets = [0], [0]
    with atomic_directory(out_dir) as folder, (folder / CUTS).open("wb") as stream:
        for cut in progress(read_cuts(cuts), "list cuts", total=count_cuts(cuts)):
            rate = rate or int(cut.sampling_rate)
            at_rate = _at_rate(cut, rate, may_resample=bool(options["sample_rate"]))
            num_samples = at_rate.num_samples or 0
            length = FrameGeometry.of(front_end, rate).num_frames(num_samples)
            if length < 1:
                ledger.record(cut.id, "too short for one frame")
                continue
            stream.write(json.dumps(at_rate.to_dict()).encode() + b"\n")
            utt_ids.append(cut.id)
            texts.append(text_of(cut))
            num_frames.append(length)
            offsets.append(stream.tell())
        if rate is None:
            raise UserError("holds no utterances", file=cuts)
        np.savez(
            folder / INDEX,
            begin=np.cumsum(num_frames, dtype=np.int64),
            offsets=np.array(offsets, np.int64),
            utt_ids=pack(utt_ids),
            texts=pack(texts),
        )
        meta = {"format": FORMAT, "sample_rate": rate, "options": dict(options)}
        (folder / META).write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
        num_cuts = len(utt_ids) + ledger.num_skipped()
        ledger.check(num_cuts, max_skipped_fraction=max_skipped_fraction)
        ledger.write(folder / "ledger.jsonl")


def _at_rate(cut: MonoCut, rate: int, *, may_resample: bool) -> MonoCut:
    """The cut at a sample rate, to be resampled when it is read."""
    if cut.sampling_rate == rate:
        return cut
    if not may_resample:
        raise UserError(
            f"sample rate {cut.sampling_rate} Hz, but others have {rate} Hz",
            utterance=cut.id,
            remedy="set features.sample_rate: recordings are then resampled to it",
        )
    return cast("MonoCut", cut.resample(rate))


@dataclass(frozen=True)
class LiveOptions:
    """How features are computed, key `on_the_fly` of the section `data`.

    Attributes:
        threads: that read audio, and compute where the device is the processor.
        device: where the front end runs.
        cache_bytes: features that are kept.
    """

    threads: int = 1
    device: str = "cpu"
    cache_bytes: int = 500_000_000

    @staticmethod
    def from_config(options: Mapping[str, Any]) -> LiveOptions:
        """Take them from the key."""
        megabytes = options["cache_mb"]
        return LiveOptions(options["threads"], options["device"], megabytes * 10**6)


class LiveFrames:
    """Features by utterance, computed when they are asked for.

    Has the reading half of a `FrameStore`; safe to share between threads.

    Args:
        folder: that `prepare_live_features` wrote.
        options: how to compute.

    Attributes:
        folder: as given.
        begin: int64 [N + 1], first frame of each utterance, counted over all.
        dim: features a frame, D.
        frame_shift: time from one frame to the next, seconds.
        meta: the whole of `meta.json`.

    Raises:
        UserError: the folder is not of that kind.
    """

    def __init__(self, folder: str | Path, options: LiveOptions | None = None) -> None:
        self.folder = Path(folder)
        self._options = options or LiveOptions()
        try:
            self.meta = json.loads((self.folder / META).read_text(encoding="utf-8"))
            with np.load(self.folder / INDEX) as arrays:
                self.begin = arrays["begin"]
                self._offsets = arrays["offsets"]
                self._packed_ids = arrays["utt_ids"]
            self._lines = np.memmap(self.folder / CUTS, np.uint8, "r")
        except (OSError, ValueError, KeyError) as error:
            remedy = "run the prepare_live_features stage again"
            what = f"not readable as features on the fly ({error})"
            raise UserError(what, file=self.folder, remedy=remedy) from error
        config = self.meta["options"]
        self._rate = int(self.meta["sample_rate"])
        self._extractor = make_extractor(
            FrontEndOptions.from_config(config), self._rate
        )
        cmvn = dict(config["cmvn"])
        self._normalise = partial(_CMVN[cmvn.pop("type")], **cmvn)
        self._extractor.front_end.to(self._options.device)
        self.dim = self._extractor.front_end.dim
        self.frame_shift = self._extractor.frame_shift
        self._cache = _Cache(self._options.cache_bytes)

    def __len__(self) -> int:
        return len(self.begin) - 1

    @cached_property
    def utt_ids(self) -> list[str]:
        """Utterance ids, sorted."""
        return unpack(self._packed_ids, len(self))

    @cached_property
    def texts(self) -> list[str]:
        """Transcript of each utterance, words separated by blanks."""
        with np.load(self.folder / INDEX) as arrays:
            return unpack(arrays["texts"], len(self))

    @cached_property
    def _positions(self) -> dict[str, int]:
        """Utterance id -> index."""
        return {utt_id: i for i, utt_id in enumerate(self.utt_ids)}

    def position(self, utt_id: str) -> int:
        """Index of an utterance.

        Raises:
            KeyError: no such utterance.
        """
        return self._positions[utt_id]

    def frames(self, i: int) -> np.ndarray:
        """Return the frames of utterance i, float32 [T_i, D], read only."""
        return self.get([i])[0]

    def get(self, numbers: Sequence[int]) -> list[np.ndarray]:
        """Return the frames of utterances, computing together those not at hand.

        Raises:
            UserError: audio is missing or not readable, or not of the length that its
                manifest says.
        """
        found = {i: self._cache.get(i) for i in numbers}
        missing = [i for i, frames in found.items() if frames is None]
        for i, frames in zip(missing, self._compute(missing), strict=True):
            found[i] = frames
            self._cache.put(i, frames)
        return [cast("np.ndarray", found[i]) for i in numbers]

    def _compute(self, numbers: Sequence[int]) -> list[np.ndarray]:
        """Compute the features of utterances."""
        if not numbers:
            return []
        with ThreadPoolExecutor(
            self._options.threads,
            initializer=torch.set_num_threads,
            initargs=(1,),
        ) as pool:
            if self._options.device == "cpu":
                computed = list(pool.map(self._compute_one, numbers))
            else:
                waves = list(pool.map(self._read, numbers))
                computed = on_device(self._extractor, waves)
        return [self._finish(i, f) for i, f in zip(numbers, computed, strict=True)]

    def _compute_one(self, i: int) -> np.ndarray:
        """Read and compute one utterance, on the processor."""
        wave, key = self._read(i)
        return self._extractor.extract_utterance(wave, key)

    def _finish(self, i: int, frames: np.ndarray) -> np.ndarray:
        """Check and normalise computed features."""
        expected = int(self.begin[i + 1] - self.begin[i])
        if len(frames) != expected:
            raise UserError(
                f"audio gives {len(frames)} frames, its manifest promises {expected}",
                file=self.folder / CUTS,
                utterance=self.utt_ids[i],
                remedy="prepare the corpus again",
            )
        frames = np.ascontiguousarray(self._normalise(frames), np.float32)
        frames.flags.writeable = False
        return frames

    def _read(self, i: int) -> tuple[np.ndarray, int]:
        """Samples of an utterance, float32 [L], and the key of its dither."""
        line = self._lines[self._offsets[i] : self._offsets[i + 1]].tobytes()
        cut = MonoCut.from_dict(json.loads(line))
        recording = cut.recording
        assert recording is not None
        try:
            audio = recording.load_audio(
                channels=cut.channel, offset=cut.start, duration=cut.duration
            )
        except _UNREADABLE as error:
            raise UserError(
                f"audio cannot be read ({type(error).__name__})",
                file=str(recording.sources[0].source) if recording.sources else None,
                utterance=cut.id,
                remedy="restore it, or prepare the corpus again",
            ) from error
        return audio[0], zlib.crc32(cut.id.encode())


Frames = FrameStore | LiveFrames  # what stages read that take both


def open_frames(folder: str | Path, options: LiveOptions | None = None) -> Frames:
    """Open features, stored or computed on the fly, whichever the folder is of.

    Args:
        folder: what `normalise_features` or `prepare_live_features` wrote.
        options: for the latter.

    Raises:
        UserError: the folder is of neither kind.
    """
    if (Path(folder) / CUTS).is_file():
        return LiveFrames(folder, options)
    return FrameStore.load(folder)


def on_device(
    extractor: KaldiMfcc | KaldiFbank,
    waves: Sequence[tuple[np.ndarray, int]],
) -> list[np.ndarray]:
    """Compute the features of several utterances in one pass of the front end.

    Args:
        extractor: works where the constants of its front end are.
        waves: samples of each utterance, and the key of its dither.

    Returns:
        float32 [T, D] of each utterance.
    """
    if not waves:
        return []
    front_end, options = extractor.front_end, extractor.config.options
    lengths = torch.tensor([len(wave) for wave, _ in waves])
    padded = torch.zeros(len(waves), int(lengths.max()))
    for row, (wave, key) in enumerate(waves):
        generator = np.random.default_rng([options.dither_seed, key])
        noisy = dither(wave, options.dither, generator)
        padded[row, : len(wave)] = torch.from_numpy(noisy)
    with torch.no_grad():
        features = front_end(padded.to(front_end.window.device), lengths).cpu().numpy()
    counts = [front_end.num_frames(n) for n in lengths.tolist()]
    return [features[row, :count] for row, count in enumerate(counts)]


class _Cache:
    """Arrays by number, the longest unused going first.

    Args:
        max_bytes: the most that is kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[int, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, i: int) -> np.ndarray | None:
        """The array of a number, if it is there."""
        with self._lock:
            if i in self._kept:
                self._kept.move_to_end(i)
            return self._kept.get(i)

    def put(self, i: int, array: np.ndarray) -> None:
        """Keep an array; one larger than the cache is not kept."""
        with self._lock:
            if i in self._kept or array.nbytes > self._max_bytes:
                return
            self._kept[i] = array
            self._bytes += array.nbytes
            while self._bytes > self._max_bytes:
                _, oldest = self._kept.popitem(last=False)
                self._bytes -= oldest.nbytes
