"""The stage `decode_lattices`: from frames to lattices.

Utterances are taken from a `FrameStore` one by one, searched on a pool of threads, and
their lattices written in order; what is in memory depends on the number of threads and
the longest utterance, not on the corpus.

Written files:

* `lattices.ark`: raw lattices, Kaldi's binary form, acoustic costs unscaled;
* `ledger.jsonl`: utterances skipped, searched twice, or without a complete path;
* `decode.json`: sizes and times, see `latflow.decode.tally`.

Public: `decode`, `write_lattices`.

Source: Kaldi `gmmbin/gmm-latgen-faster.cc`, `decoder/decoder-wrappers.cc`
(`DecodeUtteranceLatticeFaster`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latflow.decode.gmm_scorer import GmmScorer
from latflow.decode.recogniser import Recogniser
from latflow.decode.tally import Tally, record
from latflow.features.frames import FrameStore
from latflow.files import atomic_output
from latflow.gmm.system import GmmSystem
from latflow.lang.directory import Lang
from latflow.lattice.io import LatticeWriter
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import map_in_order


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
        model_dir: folder of the system.
        lang_dir: language directory that the graph was made of.
        out_dir: folder for the files named in the module's description.
        options: section `decode` of the configuration without `tune`.
        threads: utterances searched at a time.
        max_skipped_fraction: share of utterances that may be left out.

    Raises:
        UserError: graph, model, features and words do not fit; an utterance reaches no
            final state and `on_no_final` is `fail`; more utterances than allowed are
            skipped.
    """
    store = FrameStore.load(frames_dir)
    system = GmmSystem.load(model_dir)
    scorer = GmmScorer.of(store, system)
    recogniser = Recogniser.load(scorer, graph, Lang.load(lang_dir), options)
    write_lattices(
        recogniser,
        out_dir,
        options=options,
        threads=threads,
        max_skipped_fraction=max_skipped_fraction,
    )


def write_lattices(
    recogniser: Recogniser[Any],
    out_dir: str | Path,
    *,
    options: Mapping[str, Any],
    threads: int,
    max_skipped_fraction: float,
) -> None:
    """Decode all utterances of a recogniser's store; see `decode`."""
    recogniser.warm_up()
    started = time.perf_counter()
    out, store = Path(out_dir), recogniser.store
    ledger = Ledger("decode")
    tally = Tally(store.frame_shift, threads)
    with LatticeWriter.open(out / "lattices.ark") as writer:
        results = map_in_order(recogniser.work, range(len(store)), threads)
        for result in progress(results, "decode", total=len(store)):
            error = result.attempt.error
            if error is not None and options["on_no_final"] == "fail":
                raise error
            record(ledger, result)
            tally.add(result)
            if result.decoded is not None:
                writer.write(result.utterance, result.decoded.lattice)
        ledger.write(out / "ledger.jsonl")
        ledger.check(len(store), max_skipped_fraction=max_skipped_fraction)
    summary = tally.summary(options, time.perf_counter() - started)
    with atomic_output(out / "decode.json") as temporary:
        temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
