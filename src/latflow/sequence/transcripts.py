"""Transcripts of a corpus, and their training graphs: compiled once, kept in a file.

Utterances of the same words share a graph: the archive's keys are the word ids of
transcripts, joined by blanks. Ranks and threads map the file into memory and share it.

Public: `compile_transcripts` (stage), `TranscriptGraphs`, `Transcripts`.

Source: Kaldi `bin/compile-train-graphs.cc`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.features.live import open_frames
from latflow.fst.archive import GraphArchive, GraphWriter
from latflow.fst.graph import Graph
from latflow.lang.composition import load_model
from latflow.lang.directory import Lang
from latflow.lang.graphs import TrainingGraphCompiler
from latflow.ledger import Ledger
from latflow.logs import progress

log = logging.getLogger(__name__)


def transcript_key(word_ids: Sequence[int] | np.ndarray) -> str:
    """The key of a transcript's graph in an archive."""
    return " ".join(map(str, word_ids))


def compile_transcripts(
    frames_dirs: Sequence[str | Path],
    lang_dir: str | Path,
    model_dir: str | Path,
    out_file: str | Path,
    *,
    options: Mapping[str, Any],
    threads: int,
) -> None:
    """Compile the training graph of every transcript (stage).

    Writes the archive of graphs, and beside it `<out_file>.ledger.jsonl`: the first
    utterance of each transcript that has no graph.

    Args:
        frames_dirs: `FrameStore` folders whose utterances are to be aligned.
        lang_dir: the lang directory.
        model_dir: folder of the system whose tree and transition model are used.
        out_file: the archive.
        options: `transition_scale` and `self_loop_scale`, as for the denominator.
        threads: graphs compiled at a time.

    Raises:
        UserError: a file is missing or garbled, or the disk is full.
    """
    lang = Lang.load(lang_dir)
    tree, model = load_model(model_dir)
    compiler = TrainingGraphCompiler(
        lang,
        tree,
        model,
        transition_scale=options["transition_scale"],
        self_loop_scale=options["self_loop_scale"],
    )
    stores = [FrameStore.load(folder) for folder in frames_dirs]
    ledger = Ledger("compile_transcripts")
    first: dict[str, str] = {}  # key of a transcript -> the first utterance of it

    def transcripts() -> Iterator[tuple[str, list[int]]]:
        for store in stores:
            for utterance, text in zip(store.utt_ids, store.texts, strict=True):
                words = lang.words_to_ids(text)
                key = transcript_key(words)
                if key not in first:
                    first[key] = utterance
                    yield key, words

    graphs = compiler.compile_all(
        progress(transcripts(), "training graphs"), threads=threads
    )
    written = 0
    with GraphWriter.open(out_file) as writer:
        for key, graph in graphs:
            if isinstance(graph, Graph) and graph.num_states:
                writer.append(key, graph)
                written += 1
                continue
            reason = "no path through the training graph"
            if isinstance(graph, UserError):
                reason = graph.what
            ledger.record(first[key], reason, action="noted")
    ledger.write(Path(f"{out_file}.ledger.jsonl"))
    log.info(
        "training graphs of %d transcripts, for %d utterances",
        written,
        sum(map(len, stores)),
    )


class TranscriptGraphs:
    """The training graphs of an archive, by transcript; safe to share.

    Args:
        path: what `compile_transcripts` wrote.

    Raises:
        UserError: there is no such file, or it is something else.
    """

    def __init__(self, path: str | Path) -> None:
        self._archive = GraphArchive(path)
        self._number = {key: n for n, key in enumerate(self._archive.keys)}

    def __len__(self) -> int:
        return len(self._archive)

    def get(self, word_ids: Sequence[int] | np.ndarray) -> Graph | None:
        """The graph of a transcript; None if there is none."""
        number = self._number.get(transcript_key(word_ids))
        return None if number is None else self._archive[number]


class Transcripts:
    """Word ids of the utterances of some frame stores; safe to share.

    Args:
        frames_dirs: folders of features; an utterance is looked for in their order.
        lang: turns words into ids.
    """

    def __init__(self, frames_dirs: Sequence[str | Path], lang: Lang) -> None:
        self._stores = [open_frames(folder) for folder in frames_dirs]
        self._lang = lang
        for store in self._stores:  # read now, not in the middle of the first batch
            _ = store.texts

    def words(self, utterance: str) -> np.ndarray:
        """Word ids of an utterance, int32[N].

        Raises:
            UserError: no store has it.
        """
        for store in self._stores:
            try:
                text = store.texts[store.position(utterance)]
            except KeyError:
                continue
            return np.array(self._lang.words_to_ids(text), np.int32)
        raise UserError(
            "has no transcript",
            utterance=utterance,
            remedy="name the frame stores of all utterances that are trained on",
        )
