"""Training graphs by transcript: compiled once, kept on disk, shared by readers.

Utterances of the same words share a graph. Graphs hold no transition probabilities, so
that one store serves all iterations of a training and every network on the same tree;
the aligner adds the present ones arc by arc. Ranks and threads map the same files.

Source: Kaldi `bin/compile-train-graphs.cc`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from latflow.align.transcript_graphs import GraphStore
from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.features.source import open_frames
from latflow.files import atomic_directory
from latflow.fst.graph import Graph
from latflow.graphs.hclg import load_model
from latflow.graphs.training import TrainingGraphCompiler
from latflow.lang.directory import Lang
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import in_order, worker_pool
from latflow.ragged import RaggedWriter

log = logging.getLogger(__name__)

Words = Sequence[int] | np.ndarray
#: Gives the training graph of a transcript, or the reason why it has none.
Graphs = Callable[[Words], Graph | str]


class TrainingGraphs(GraphStore):
    """The training graphs of transcripts; keys are word ids joined by blanks."""

    FORMAT = "latflow-training-graphs-1"
    KIND = "store of training graphs"
    FACTS: ClassVar = {"failures": dict}

    @classmethod
    def write(
        cls,
        folder: str | Path,
        transcripts: Iterable[Words],
        compiler: TrainingGraphCompiler,
        *,
        threads: int,
    ) -> TrainingGraphs:
        """Compile the graph of every transcript.

        Args:
            transcripts: word ids; repeated ones are compiled once.
            compiler: of the system, with both scales 0.

        Raises:
            UserError: the disk is full.
        """

        def compiled(item: tuple[str, Words]) -> tuple[str, Graph | str]:
            key, words = item
            return key, compiler.graph_or_reason(words)

        starts: list[int] = []
        failures: dict[str, str] = {}
        with worker_pool(threads) as pool, RaggedWriter(folder, cls) as writer:
            for key, graph in in_order(pool, compiled, _distinct(transcripts)):
                if isinstance(graph, str):
                    failures[key] = graph
                else:
                    writer.write(key, graph.arcs, graph.states)
                    starts.append(graph.start)
            writer.index["starts"] = np.array(starts, np.int64)
            writer.meta["failures"] = failures
        return cls.load(folder)

    @property
    def failures(self) -> Mapping[str, str]:
        """Reasons by key of the transcripts that no graph can be made of."""
        return self.meta["failures"]

    def get(self, word_ids: Words) -> Graph | str:
        """Return the graph of a transcript, or the reason why there is none."""
        key = transcript_key(word_ids)
        if key not in self:
            return self.failures.get(key, "no training graph for its transcript")
        return self.graph(self.position(key))


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
        """Return the word ids of an utterance, int32[N].

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


def compile_transcripts(
    frames_dir: Path, lang_dir: Path, model_dir: Path, out_dir: Path, *, threads: int
) -> None:
    """Compile the training graph of every transcript (stage).

    Writes `ledger.jsonl` beside the graphs: the first utterance of each transcript that
    has none.

    Args:
        frames_dir: the `FrameStore` whose utterances are to be aligned.
        model_dir: folder of the system whose tree and transition model are used.
        out_dir: the store, replaced as a whole.

    Raises:
        UserError: a file is missing or garbled, or the disk is full.
    """
    lang, store = Lang.load(lang_dir), FrameStore.load(frames_dir)
    compiler = TrainingGraphCompiler(lang, *load_model(model_dir))
    first: dict[str, str] = {}  # key of a transcript -> the first utterance of it

    def transcripts() -> Iterator[list[int]]:
        for utterance, text in zip(store.utt_ids, store.texts, strict=True):
            words = lang.words_to_ids(text)
            first.setdefault(transcript_key(words), utterance)
            yield words

    texts = progress(transcripts(), "training graphs", len(store))
    ledger = Ledger("compile_transcripts")
    with atomic_directory(out_dir) as folder:
        graphs = TrainingGraphs.write(folder, texts, compiler, threads=threads)
        for key, reason in graphs.failures.items():
            ledger.record(first[key], reason, action="noted")
        ledger.write(folder / "ledger.jsonl")
    log.info(
        "training graphs of %d transcripts, for %d utterances", len(graphs), len(store)
    )


def transcript_key(word_ids: Words) -> str:
    """Return the key of a transcript's graph."""
    return " ".join(map(str, word_ids))


def _distinct(transcripts: Iterable[Words]) -> Iterator[tuple[str, Words]]:
    """Yield (key, word ids) of each transcript when it comes first."""
    seen: set[str] = set()
    for words in transcripts:
        key = transcript_key(words)
        if key not in seen:
            seen.add(key)
            yield key, words
