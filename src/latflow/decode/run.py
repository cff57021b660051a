"""The stage `decode_lattices`: from frames to lattices.

Utterances are taken from a `FrameStore` one by one, searched on a pool of threads, and
their lattices written in order; what is in memory depends on the number of threads and
the longest utterance, not on the corpus.

Written files:

* `lattices.ark`: raw lattices, Kaldi's binary form, acoustic costs unscaled;
* `ledger.jsonl`: utterances skipped, searched twice, or without a complete path;
* `decode.json`: sizes and times, see `_Tally.summary`.

Public: `decode`.

Source: Kaldi `gmmbin/gmm-latgen-faster.cc`, `decoder/decoder-wrappers.cc`
(`DecodeUtteranceLatticeFaster`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from latflow.decode.search import Decoded, LatticeDecoder
from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.features.transform import FeatureTransform
from latflow.files import atomic_output
from latflow.fst.graph import Graph
from latflow.gmm.model import AcousticModel
from latflow.lang.directory import Lang
from latflow.lattice.io import LatticeWriter
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import map_in_order

_CHUNK = 500  # frames whose log-likelihoods are computed and searched at a time


def decode(
    frames_dir: str | Path,
    graph: str | Path,
    model_dir: str | Path,
    lang_dir: str | Path,
    out_dir: str | Path,
    *,
    options: Mapping[str, Any],
    threads: int,
    max_skipped_fraction: float,
) -> None:
    """Decode all utterances of a frame store.

    Args:
        frames_dir: a `FrameStore`.
        graph: `HCLG.fst`.
        model_dir: folder with `final.mdl`.
        lang_dir: language directory that the graph was made of.
        out_dir: folder for the files named in the module's description.
        options: section `decode` of the configuration without `tune`, with `transform`,
            the feature transform of section `features`.
        threads: utterances searched at a time.
        max_skipped_fraction: share of utterances that may be left out.

    Raises:
        UserError: graph, model, features and words do not fit; an utterance reaches no
            final state and `on_no_final` is `fail`; more utterances than allowed are
            skipped.
    """
    started = time.perf_counter()
    out = Path(out_dir)
    store = FrameStore.load(frames_dir)
    recogniser = _Recogniser.load(store, graph, model_dir, lang_dir, options)
    ledger = Ledger("decode")
    tally = _Tally(store.frame_shift, threads)
    with LatticeWriter.open(out / "lattices.ark") as writer:
        results = map_in_order(recogniser.work, range(len(store)), threads)
        for result in progress(results, "decode", total=len(store)):
            _record(ledger, result)
            tally.add(result)
            if result.decoded is not None:
                writer.write(result.utterance, result.decoded.lattice)
        ledger.write(out / "ledger.jsonl")
        ledger.check(len(store), max_skipped_fraction=max_skipped_fraction)
    summary = tally.summary(options, time.perf_counter() - started)
    with atomic_output(out / "decode.json") as temporary:
        temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True, eq=False)
class _Result:
    """What became of one utterance.

    Attributes:
        utterance: its id.
        num_frames: its length.
        decoded: None if it is skipped.
        beam: the last beam tried.
        was_retried: whether it was searched twice.
        reason: why it is skipped.
        log_like_seconds: processor time of log-likelihoods (with the transform).
        search_seconds: processor time of the search.
    """

    utterance: str
    num_frames: int
    decoded: Decoded | None
    beam: float
    was_retried: bool
    reason: str
    log_like_seconds: float
    search_seconds: float


@dataclass(frozen=True, eq=False)
class _Recogniser:
    """Everything that decodes one utterance after the other; shared by threads."""

    store: FrameStore
    transform: FeatureTransform
    model: AcousticModel
    decoder: LatticeDecoder
    options: Mapping[str, Any]

    @classmethod
    def load(
        cls,
        store: FrameStore,
        graph_path: str | Path,
        model_dir: str | Path,
        lang_dir: str | Path,
        options: Mapping[str, Any],
    ) -> _Recogniser:
        """Read graph and model and check that all parts fit each other."""
        model = AcousticModel.load(Path(model_dir, "final.mdl"))
        graph = Graph.load(graph_path)
        transform = FeatureTransform.from_config(options["transform"])
        model.gmms.check_dim(transform.dim_out(store.dim))
        highest = int(np.max(graph.olabel, initial=0))
        if highest > max(Lang.load(lang_dir).words):
            raise UserError(
                f"the graph has word {highest}, which words.txt of {lang_dir} has not",
                file=graph_path,
                remedy="make the graph again from this lang directory",
            )
        try:
            decoder = LatticeDecoder(
                graph,
                model.transitions.pdf,
                beam=options["beam"],
                lattice_beam=options["lattice_beam"],
                max_active=options["max_active"],
                min_active=options["min_active"],
            )
        except UserError as error:
            raise UserError(error.what, file=graph_path, remedy=error.remedy) from None
        return cls(store, transform, model, decoder, options)

    def work(self, index: int) -> _Result:
        """Decode one utterance, a second time with a wider beam if so configured."""
        utterance = self.store.utt_ids[index]
        clock = _Clock()
        beam = float(self.options["beam"])
        policy = self.options["on_no_final"]
        was_retried = False
        decoded, reason = None, ""
        try:
            decoded = self._search(index, beam, clock)
        except UserError as error:
            reason = f"{error.what} - {error.remedy}"
        if policy == "retry" and (decoded is None or not decoded.reached_final):
            beam *= float(self.options["retry_beam_factor"])
            was_retried = True
            try:
                decoded = self._search(index, beam, clock)
            except UserError as error:
                reason = f"{error.what} - {error.remedy}"
        if policy == "fail" and decoded is not None and not decoded.reached_final:
            raise UserError(
                f"no final state of the graph is reached within beam {beam:g}",
                utterance=utterance,
                remedy="widen decode.beam, or set decode.on_no_final to retry",
            )
        return _Result(
            utterance,
            int(self.store.begin[index + 1] - self.store.begin[index]),
            decoded,
            beam,
            was_retried,
            reason,
            clock.log_like_seconds,
            clock.all_seconds() - clock.log_like_seconds,
        )

    def _search(self, index: int, beam: float, clock: _Clock) -> Decoded:
        """Search one utterance, with log-likelihoods made as they are needed."""
        return self.decoder.decode_chunks(
            self._log_likes(index, clock),
            acoustic_scale=self.options["acoustic_scale"],
            utterance=self.store.utt_ids[index],
            beam=beam,
        )

    def _log_likes(self, index: int, clock: _Clock) -> Iterator[np.ndarray]:
        """Log-likelihoods of an utterance, float32[some frames, P] at a time."""
        begun = time.thread_time()
        frames = self.transform(self.store.frames(index))
        for first in range(0, len(frames), _CHUNK):
            log_likes = self.model.gmms.log_likelihoods(frames[first : first + _CHUNK])
            clock.log_like_seconds += time.thread_time() - begun
            yield log_likes
            begun = time.thread_time()


class _Clock:
    """Processor time of the thread that works on an utterance."""

    def __init__(self) -> None:
        self._begun = time.thread_time()
        self.log_like_seconds = 0.0

    def all_seconds(self) -> float:
        """Since the utterance was begun."""
        return time.thread_time() - self._begun


def _record(ledger: Ledger, result: _Result) -> None:
    """Note in the ledger what was not as it should be."""
    if result.decoded is None:
        ledger.record(result.utterance, result.reason, beam=result.beam)
    elif not result.decoded.reached_final:
        reason = "no final state reached: the lattice holds incomplete paths"
        ledger.record(result.utterance, reason, action="partial", beam=result.beam)
    elif result.was_retried:
        reason = "a final state was reached only with a wider beam"
        ledger.record(result.utterance, reason, action="retried", beam=result.beam)


class _Tally:
    """Adds up sizes and times."""

    def __init__(self, frame_shift: float, threads: int) -> None:
        self._frame_shift = frame_shift
        self._threads = threads
        self._utterances = 0
        self._frames = 0
        self._arcs = 0  # that consume a frame
        self._active = 0.0
        self._counts = {"skipped": 0, "retried": 0, "partial": 0}
        self._log_like_seconds = 0.0
        self._search_seconds = 0.0

    def add(self, result: _Result) -> None:
        """Take one utterance in."""
        self._utterances += 1
        self._frames += result.num_frames
        self._log_like_seconds += result.log_like_seconds
        self._search_seconds += result.search_seconds
        self._counts["retried"] += result.was_retried
        if result.decoded is None:
            self._counts["skipped"] += 1
            return
        lattice = result.decoded.lattice
        self._counts["partial"] += not result.decoded.reached_final
        self._arcs += int(np.count_nonzero(lattice.transition_id))
        self._active += result.decoded.mean_active * lattice.num_frames

    def summary(
        self, options: Mapping[str, Any], wall_seconds: float
    ) -> dict[str, Any]:
        """The contents of `decode.json`.

        Real-time factors are processor time over the duration of the audio, so they
        hold for one core whatever the number of threads.
        """
        audio = self._frames * self._frame_shift
        frames = max(self._frames, 1)
        per_audio = 1.0 / audio if audio else 0.0
        return {
            "utterances": self._utterances,
            **self._counts,
            "frames": self._frames,
            "audio_seconds": audio,
            "wall_seconds": wall_seconds,
            "threads": self._threads,
            "cpu_seconds": {
                "log_likelihoods": self._log_like_seconds,
                "search": self._search_seconds,
            },
            "real_time_factor_per_core": {
                "log_likelihoods": self._log_like_seconds * per_audio,
                "search": self._search_seconds * per_audio,
                "both": (self._log_like_seconds + self._search_seconds) * per_audio,
            },
            "mean_lattice_depth": self._arcs / frames,
            "mean_active_tokens": self._active / frames,
            **{
                name: options[name]
                for name in (
                    "beam",
                    "lattice_beam",
                    "max_active",
                    "min_active",
                    "acoustic_scale",
                    "on_no_final",
                    "retry_beam_factor",
                )
            },
        }
