"""Features computed from the audio when they are read, nothing stored.

`prepare_live_features` takes the place of the stages that store features: its folder
says what is to be computed, and how many frames each utterance will have. Opened as
`LiveFrames` it gives the numbers that stored features give (on the processor the same
bits).

Worker threads read audio and compute; with `device: cuda` they read, and the front end
runs on the GPU for all utterances of a batch together. Utterances stay in a cache of a
given number of bytes, the longest unused going first: with chunks, set `pool` so that
the chunks of an utterance come soon after each other.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, partial
from itertools import repeat
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from lhotse import MonoCut

from latflow.array_cache import ArrayCache
from latflow.corpus.json_lines import count_cuts
from latflow.corpus.manifests import (
    at_rate,
    load_samples,
    read_cuts,
    speaker_of,
    text_of,
    volume_of,
)
from latflow.corpus.perturb import check_speed
from latflow.errors import UserError
from latflow.features.cmvn import normalize
from latflow.features.extract import (
    Extractor,
    KaldiExtractor,
    extractor_of,
    make_extractor,
    on_device,
)
from latflow.features.frames import CUTS
from latflow.features.front_end import Domain, KaldiFrontEnd
from latflow.features.lhotse_extractors import ExtractionError, LhotseExtractor
from latflow.features.options import (
    LhotseStreamOptions,
    PerturbationDraws,
    Stream,
    StreamOptions,
)
from latflow.features.perturb import (
    Perturbation,
    Simulation,
    change_speed,
    num_samples_at,
)
from latflow.files import atomic_directory, reading
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.options import read_options
from latflow.ragged import INDEX, META, integers, open_index, pack, unpack

FORMAT = "latflow-live-frames-1"


def prepare_live_features(
    cuts: str | Path,
    out_dir: str | Path,
    *,
    options: Stream,
    max_skipped_fraction: float,
) -> None:
    """Describe the features of a split, to be computed when they are read.

    Args:
        cuts: the split's `cuts.jsonl.gz`, sorted by id.
        out_dir: replaced as a whole, or left as it was on an error.
        options: features to compute; their CMVN must need no statistics beyond the
            utterance.
        max_skipped_fraction: share of utterances that may be too short for a frame.

    Raises:
        UserError: CMVN that needs statistics of several utterances, different sample
            rates, or too many utterances without a frame.
    """
    if options.cmvn.statistics != "utterance":
        raise UserError(
            f"features.cmvn {options.cmvn.type} needs all features beforehand",
            remedy="use utterance, sliding, level or none with features computed "
            "on the fly (the section data has a global normalization of its own)",
        )
    ledger = Ledger("prepare_live_features")
    extractor: Extractor | None = None
    may_resample = False
    utt_ids: list[str] = []
    texts: list[str] = []
    speakers: dict[str, int] = {}
    codes: list[int] = []
    num_frames, offsets = [0], [0]
    samples: list[int] = []
    with atomic_directory(out_dir) as folder, (folder / CUTS).open("wb") as stream:
        for cut in progress(read_cuts(cuts), "list cuts", total=count_cuts(cuts)):
            if extractor is None:
                extractor, may_resample = extractor_of(options, int(cut.sampling_rate))
                if isinstance(extractor, LhotseExtractor):
                    extractor.check_lengths()
            rate = extractor.sample_rate
            (source,) = at_rate([cut], rate, may_resample=may_resample)
            num_samples = source.num_samples or 0
            length = extractor.geometry.num_frames(num_samples)
            if length < 1:
                ledger.record(cut.id, "too short for one frame")
                continue
            stream.write(json.dumps(source.to_dict()).encode() + b"\n")
            utt_ids.append(cut.id)
            texts.append(text_of(cut))
            codes.append(speakers.setdefault(speaker_of(cut), len(speakers)))
            num_frames.append(length)
            samples.append(num_samples)
            offsets.append(stream.tell())
        if extractor is None:
            raise UserError("holds no utterances", file=cuts)
        np.savez(
            folder / INDEX,
            begin=np.cumsum(num_frames, dtype=np.int64),
            offsets=np.array(offsets, np.int64),
            num_samples=np.array(samples, np.int64),
            utt_ids=pack(utt_ids),
            texts=pack(texts),
            speaker_codes=np.array(codes, np.int32),
        )
        meta = {
            "format": FORMAT,
            "sample_rate": extractor.sample_rate,
            "options": options.values(),
        }
        (folder / META).write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
        num_cuts = len(utt_ids) + ledger.num_skipped()
        ledger.check(num_cuts, max_skipped_fraction=max_skipped_fraction)
        ledger.write(folder / "ledger.jsonl")


class LiveFrames:
    """Features by utterance, computed when they are asked for.

    Has the reading half of a `FrameStore`; safe to share between threads.

    Args:
        folder: that `prepare_live_features` wrote.
        threads: that read audio, and compute where the device is the processor.
        device: of the front end.
        cache_bytes: features that are kept for their next use.

    Attributes:
        folder: as given.
        begin: int64 [N + 1], first frame of each utterance, counted over all.
        dim: features per frame, D.
        frame_shift: time from one frame to the next, seconds.
        sample_rate: of the samples, Hz.
        channels: that features are computed of; None for the cut's own.
        meta: the whole of `meta.json`.

    Raises:
        UserError: the folder is not of that kind.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        threads: int = 1,
        device: str = "cpu",
        cache_bytes: int = 500_000_000,
    ) -> None:
        self.folder = Path(folder)
        self._threads, self._device = threads, device
        with self._reading():
            self.meta = json.loads((self.folder / META).read_text(encoding="utf-8"))
            self.sample_rate = int(self.meta["sample_rate"])
            given = self.meta["options"]
            with open_index(self.folder) as arrays:
                self.begin = arrays["begin"]
                self._offsets = arrays["offsets"]
                self._num_samples = arrays["num_samples"]
                self._packed_ids = arrays["utt_ids"]
            count = self._offsets.size - 1
            integers(self._offsets, count + 1)
            integers(self.begin, count + 1)
            integers(self._num_samples, count)
            self._lines = np.memmap(self.folder / CUTS, np.uint8, "r")
        known = cast("type[StreamOptions | LhotseStreamOptions]", Stream)
        try:
            options = read_options(known, given, "features")
        except UserError as error:
            raise error.at(file=self.folder / META) from None
        self.channels = options.channels
        self._may_repeat = options.single_channel == "repeat"
        self._cmvn = options.cmvn
        self._extractor = make_extractor(options.front_end, self.sample_rate)
        self._geometry = self._extractor.geometry
        if isinstance(self._extractor, KaldiExtractor):
            self._extractor.front_end.to(device)
        elif device != "cpu":
            raise UserError(
                f"extractor {self._extractor.name} chooses its device itself",
                remedy="set data.on_the_fly.device: cpu, and `device` in the options "
                "of the extractor if it has one",
            )
        self.dim = self._extractor.dim
        if options.channels is not None:
            self.dim *= len(options.channels)
        self.frame_shift = self._extractor.frame_shift
        self._cache = ArrayCache(cache_bytes)

    def __len__(self) -> int:
        return len(self.begin) - 1

    @cached_property
    def utt_ids(self) -> list[str]:
        """Utterance ids, sorted."""
        with self._reading():
            return unpack(self._packed_ids, len(self))

    @cached_property
    def texts(self) -> list[str]:
        """Transcript of each utterance, words separated by blanks."""
        with self._reading(), open_index(self.folder) as arrays:
            return unpack(arrays["texts"], len(self))

    @cached_property
    def speaker_codes(self) -> np.ndarray:
        """Number of each utterance's speaker, in order of appearance, int32 [N]."""
        with self._reading(), open_index(self.folder) as arrays:
            return integers(arrays["speaker_codes"], len(self))

    @cached_property
    def _positions(self) -> dict[str, int]:
        """Utterance id -> index."""
        return {utt_id: i for i, utt_id in enumerate(self.utt_ids)}

    def position(self, utt_id: str) -> int:
        """Return the index of an utterance.

        Raises:
            KeyError: no such utterance.
        """
        return self._positions[utt_id]

    def frames(self, i: int) -> np.ndarray:
        """Return the frames of utterance i, float32 [T_i, D], read only."""
        return self.get([i])[0]

    @property
    def center(self) -> float:
        """Middle of frame 0, in frame shifts from the start of the samples."""
        first = self._geometry.first_sample(0)
        return (first + self._geometry.length / 2) / self._geometry.shift

    def perturbation(
        self, options: PerturbationDraws, *, seed: int, whole_pass: int
    ) -> Perturbation:
        """Draw speeds and volumes; an utterance too short for its speed keeps its own.

        Args:
            options: to draw from.
            seed: see `Perturbation.draw`.
            whole_pass: see `Perturbation.draw`.

        Raises:
            UserError: the sample rate does not allow a speed.
        """
        for speed in options.speeds:
            check_speed(self.sample_rate, speed)
        drawn = Perturbation.draw(
            self.utt_ids, options, seed=seed, whole_pass=whole_pass
        )
        is_too_short = self.lengths_at(drawn.speed) < 1
        return replace(drawn, speed=np.where(is_too_short, 1.0, drawn.speed))

    def lengths_at(self, speed: np.ndarray) -> np.ndarray:
        """Return the frames of the utterances at speeds, int64 [N] of float64 [N]."""
        counts = [
            self._geometry.num_frames(num_samples_at(n, s))
            for n, s in zip(self._num_samples.tolist(), speed.tolist(), strict=True)
        ]
        return np.array(counts, np.int64)

    def get(
        self,
        numbers: Sequence[int],
        perturbation: Perturbation | None = None,
        simulation: Simulation | None = None,
    ) -> list[np.ndarray]:
        """Return the frames of utterances, computing together those not at hand.

        Args:
            numbers: of the utterances.
            perturbation: speeds and volumes of all utterances; None for their own.
            simulation: applied after the speed and before the volume; None for none.

        Raises:
            UserError: audio is missing or not readable, or not of the length that its
                manifest says.
        """

        def compute(wanted: Sequence[_Wanted], pool: Executor) -> list[np.ndarray]:
            given = repeat(simulation)
            if isinstance(self._extractor, LhotseExtractor) or self._device == "cpu":
                computed = list(pool.map(self._compute_one, wanted, given))
            else:
                waves = list(pool.map(self._read, wanted, given))
                computed = on_device(self._extractor, waves)
            return [
                np.asarray(normalize(self._checked(key, frames), self._cmvn))
                for key, frames in zip(wanted, computed, strict=True)
            ]

        return self._at_hand(numbers, perturbation, simulation, compute)

    def masks(
        self,
        numbers: Sequence[int],
        perturbation: Perturbation | None,
        parts: Simulation,
        *,
        domain: Domain,
        exponent: float,
    ) -> list[np.ndarray]:
        """Return the ratio masks of utterances (`KaldiFrontEnd.ratio_mask`).

        Args:
            numbers: of the utterances.
            perturbation: see `get`.
            parts: gives [2, L]: what is wanted of an utterance, and the rest.
            domain: of the bins.
            exponent: of the masks.

        Returns:
            float32 [T, K] each.

        Raises:
            UserError: see `get`.
        """

        def compute(wanted: Sequence[_Wanted], pool: Executor) -> list[np.ndarray]:
            def mask(key: _Wanted) -> np.ndarray:
                (speech, rest), _ = self._read(key, parts)
                front_end = self._mask_front_end
                found = front_end.ratio_mask(speech, rest, domain, exponent=exponent)
                return self._checked(key, found)

            return list(pool.map(mask, wanted))

        return self._at_hand(numbers, perturbation, parts, compute)

    def num_bins(self, domain: Domain) -> int:
        """Return the bins of masks, K."""
        return self._mask_front_end.num_bins(domain)

    @cached_property
    def _mask_front_end(self) -> KaldiFrontEnd:
        """The front end on the processor, where masks are made."""
        if isinstance(self._extractor, LhotseExtractor):
            raise UserError(
                f"extractor {self._extractor.name} has no bins that masks could be of",
                remedy="take features of type mfcc, fbank or waveform",
            )
        front_end = self._extractor.front_end
        if self._device == "cpu":
            return front_end
        return KaldiFrontEnd(front_end.options, front_end.sample_rate)

    def _at_hand(
        self,
        numbers: Sequence[int],
        perturbation: Perturbation | None,
        simulation: Simulation | None,
        compute: Callable[[Sequence[_Wanted], Executor], list[np.ndarray]],
    ) -> list[np.ndarray]:
        """Return what is kept, computing together what is not."""
        wanted = [_Wanted.of(i, perturbation, simulation) for i in numbers]
        found = {key: self._cache.get(key) for key in wanted}
        missing = [key for key, frames in found.items() if frames is None]
        if missing:
            quiet = partial(torch.set_num_threads, 1)
            with ThreadPoolExecutor(self._threads, initializer=quiet) as pool:
                computed = compute(missing, pool)
            for key, frames in zip(missing, computed, strict=True):
                kept = np.ascontiguousarray(frames, np.float32)
                kept.flags.writeable = False
                found[key] = kept
                self._cache.put(key, kept)
        return [cast("np.ndarray", found[key]) for key in wanted]

    def _compute_one(
        self, wanted: _Wanted, simulation: Simulation | None
    ) -> np.ndarray:
        """Read and compute one utterance, on the processor."""
        wave, key = self._read(wanted, simulation)
        try:
            return self._extractor.extract_utterance(wave, key)
        except ExtractionError as error:
            utt_id = self.utt_ids[wanted.i]
            raise error.at(file=self.folder / CUTS, utterance=utt_id) from error

    def _checked(self, wanted: _Wanted, frames: np.ndarray) -> np.ndarray:
        """Refuse computed frames that are not as many as promised."""
        num_samples = num_samples_at(int(self._num_samples[wanted.i]), wanted.speed)
        expected = self._geometry.num_frames(num_samples)
        if len(frames) != expected:
            raise UserError(
                f"audio gives {len(frames)} frames, its manifest promises {expected}",
                file=self.folder / CUTS,
                utterance=self.utt_ids[wanted.i],
                remedy="prepare the corpus again",
            )
        return frames

    def _read(
        self, wanted: _Wanted, simulation: Simulation | None
    ) -> tuple[np.ndarray, int]:
        """Return an utterance's samples, see `load_samples`, and its dither's key."""
        cut = self._cut(wanted.i)
        # Simulated, a channel becomes those of the microphones that are simulated.
        channels = self.channels if simulation is None else None
        wave = load_samples(cut, channels, repeat=self._may_repeat)
        wave = change_speed(wave, self.sample_rate, wanted.speed)
        if simulation is not None:
            wave = simulation(wanted.i, wave)
            wave = wave if self.channels is None else wave[list(self.channels)]
        wave = wave * np.float32(volume_of(cut) * wanted.volume)
        return wave, zlib.crc32(cut.id.encode())

    def _cut(self, i: int) -> MonoCut:
        line = self._lines[self._offsets[i] : self._offsets[i + 1]]
        with self._reading():
            return MonoCut.from_dict(json.loads(line.tobytes()))

    def _reading(self) -> AbstractContextManager[None]:
        """Refuse damaged files."""
        remedy = "run the prepare_live_features stage again"
        return reading(self.folder, "not readable as features on the fly", remedy)

    def utt_id(self, i: int) -> str:
        """Return the id of utterance i."""
        return self.utt_ids[i]

    def speaker(self, i: int) -> str:
        """Return the speaker of utterance i."""
        return speaker_of(self._cut(i))

    def num_samples(self, i: int) -> int:
        """Return the samples of utterance i, at its own speed."""
        return int(self._num_samples[i])

    def volume(self, i: int) -> float:
        """Return the volume that the manifest gives utterance i; see `volume_of`."""
        return volume_of(self._cut(i))

    def samples(self, i: int) -> np.ndarray:
        """Return the samples of utterance i at its own speed, one channel.

        Raises:
            UserError: the audio cannot be read.
        """
        return load_samples(self._cut(i))


class _Wanted(NamedTuple):
    """Number, speed and volume of an utterance, and the draws of its simulation."""

    i: int
    speed: float = 1.0
    volume: float = 1.0
    draws: Hashable = None

    @classmethod
    def of(
        cls,
        i: int,
        perturbation: Perturbation | None,
        simulation: Simulation | None,
    ) -> _Wanted:
        """Return utterance i as it is wanted."""
        draws = None if simulation is None else simulation.draws(i)
        if perturbation is None:
            return cls(i, draws=draws)
        speed, volume = perturbation.speed[i], perturbation.volume[i]
        return cls(i, float(speed), float(volume), draws)
