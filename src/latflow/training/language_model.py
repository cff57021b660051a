"""Training of a neural language model on a text.

The text is read once, into a file of int32 numbers that is mapped into memory; memory
holds 8 bytes a sentence. The batches of an epoch follow from (text, seed, epoch):
sentences are shuffled, those of a window are sorted by length and cut into batches, and
the batches shuffled. Adam's learning rate falls by the newbob rule on the dev text, and
the parameters of the best epoch are kept. Without a dev text, a share of the text is
held out for it.

A killed training continues from its last checkpoint and, on the processor, ends with
the same bits.
"""

from __future__ import annotations

import hashlib
import logging
import math
import shutil
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from latflow.corpus.words import WordForms
from latflow.errors import Interrupted, UserError
from latflow.lang.directory import Lang
from latflow.lang.lexicon import RESERVED_WORDS, SENTENCE_END
from latflow.lang.ngram_counts import (
    text_sentences,
    transcript_sentences,
)
from latflow.lang.options import LmRunOptions, LstmLmOptions
from latflow.logs import progress
from latflow.nnet.draws import mixed_seed
from latflow.nnet.language_model import (
    OUTSIDE,
    NeuralLm,
    WordLstm,
    framed,
)
from latflow.nnet.model_dir import choose_device
from latflow.training.checkpoint import CheckpointStore, Position, digest_of
from latflow.training.launch import stop_requests
from latflow.training.memory import enough_memory
from latflow.training.optimizers import (
    Moment,
    is_exhausted,
    learning_rate,
    set_learning_rate,
)
from latflow.training.options import TrainingOptions

log = logging.getLogger(__name__)

_WINDOW = 8192  # sentences that are sorted by length together


def train_language_model(
    text: str | Path,
    out_dir: str | Path,
    *,
    options: LmRunOptions,
    dev_text: str | Path | None = None,
    held_out: float = 0.1,
    lang_dir: str | Path | None = None,
    checkpoints: str | Path | None = None,
) -> NeuralLm:
    """Train a model, and write its folder (stage).

    Args:
        text: one sentence a line (`.gz` too), or a manifest (`cuts.jsonl.gz`) whose
            transcripts are the text.
        out_dir: folder to write, see `latflow.nnet.language_model`.
        options: of layers and training.
        dev_text: likewise; the learning rate and the epoch are chosen on it.
        held_out: without `dev_text`, share of the sentences of `text` that takes its
            place: with 0.1 the tenth of each ten.
        lang_dir: the vocabulary is its words with a speech phone, and its other words
            that the text has; None takes the words of the text.
        checkpoints: folder for those of trainings of this model, removed at the end;
            None for `<out_dir>.checkpoints`.

    Raises:
        UserError: a file is missing or has no sentence; the loss is not finite.
        Interrupted: SIGTERM came; the checkpoint is written.
    """
    out_dir = Path(out_dir)
    folder = Path(checkpoints or out_dir.with_name(f"{out_dir.name}.checkpoints"))
    folder.mkdir(parents=True, exist_ok=True)
    lang = None if lang_dir is None else Lang.load(lang_dir)
    known = None if lang is None else lang.word_ids.keys() - set(RESERVED_WORDS)
    if dev_text is None:
        sources = {
            "train": _Source(text, held_out, is_held_out=False, known=known),
            "dev": _Source(text, held_out, is_held_out=True, known=known),
        }
    else:
        sources = {
            "train": _Source(text, known=known),
            "dev": _Source(dev_text, known=known),
        }
    words = _vocabulary(sources["train"], lang)
    train, dev = (
        _EncodedText.write(source, words, folder / f"{name}.i32")
        for name, source in sources.items()
    )
    bound, _ = options.split()
    identity = {
        "options": bound,
        "words": digest_of({"words": words}),
        "texts": [train.digest, dev.digest],
    }
    device = choose_device(options.device)
    layers = options.part(LstmLmOptions)
    network = WordLstm(len(words), layers, seed=options.seed).to(device)
    store = CheckpointStore(folder / digest_of(identity), identity, keep=1)
    with stop_requests() as should_stop:
        trainer = _Trainer(network, train, dev, options, store, len(words), should_stop)
        meta = trainer.run()
    model = NeuralLm(network.eval(), words, layers, meta)
    model.save(out_dir)
    shutil.rmtree(folder)
    return model


@dataclass(frozen=True)
class _Source:
    """Sentences of a file, or a share of them; empty ones are left out.

    Attributes:
        path: a text, or a manifest whose transcripts count.
        share: of the sentences that is held out, spread evenly over the file.
        is_held_out: whether these, or the others, are meant.
        known: words whose spelling those of a text take on; None to leave them.
    """

    path: str | Path
    share: float = 0.0
    is_held_out: bool = False
    known: Collection[str] | None = None

    def __iter__(self) -> Iterator[list[str]]:
        """Yield the words of each sentence."""
        is_manifest = Path(self.path).name.removesuffix(".gz").endswith(".jsonl")
        sentences = (
            transcript_sentences([self.path])
            if is_manifest
            else text_sentences(
                self.path, None if self.known is None else WordForms(self.known)
            )
        )
        for number, words in enumerate(filter(None, sentences)):
            is_out = int((number + 1) * self.share) > int(number * self.share)
            if is_out == self.is_held_out:
                yield words


def _vocabulary(text: Iterable[list[str]], lang: Lang | None) -> list[str]:
    """Return the classes' words, the sentence end first."""
    of_text = {word for words in text for word in words}
    if lang is not None:
        of_text = {word for word in of_text if lang.is_known(word)}
        of_text = (of_text | set(lang.speech_words)) - {lang.oov_word}
    return [SENTENCE_END, *sorted(of_text - set(RESERVED_WORDS), key=str.encode)]


@dataclass(frozen=True, eq=False)
class _EncodedText:
    """A text as classes of words.

    Attributes:
        ids: int32 [words], mapped.
        begin: int64 [sentences + 1].
        digest: of both.
    """

    ids: np.ndarray
    begin: np.ndarray
    digest: str

    @classmethod
    def write(cls, text: _Source, words: Sequence[str], file: Path) -> _EncodedText:
        """Encode a text into a file, and map it."""
        known = {word: number for number, word in enumerate(words) if number}
        begin, digest, total = array("q", [0]), hashlib.sha256(), 0
        with file.open("wb") as stream:
            for sentence in text:
                row = array("i", [known.get(word, OUTSIDE) for word in sentence])
                total += len(row)
                begin.append(total)
                stream.write(row.tobytes())
                digest.update(row.tobytes())
        if not total:
            what = "no sentence to hold out" if text.is_held_out else "no sentence"
            raise UserError(what, file=text.path, remedy="name a text with more")
        offsets = np.frombuffer(begin, np.int64)
        digest.update(offsets.tobytes())
        ids = np.memmap(file, np.int32, "r", shape=(total,))
        return cls(ids, offsets, digest.hexdigest())

    @property
    def lengths(self) -> np.ndarray:
        """Words of each sentence and its end, int64 [sentences]."""
        return np.diff(self.begin) + 1

    def sentences(self, numbers: Iterable[int]) -> list[np.ndarray]:
        """Return sentences by their numbers."""
        return [self.ids[self.begin[i] : self.begin[i + 1]] for i in numbers]


def epoch_batches(
    lengths: np.ndarray, batch_words: int, *, seed: int, epoch: int
) -> list[np.ndarray]:
    """Return the sentences of each batch of an epoch; each sentence comes once.

    Args:
        lengths: int [N], words of the sentences with their ends.
        batch_words: sentences x longest of a batch, at most; a longer sentence is its
            own batch.
        seed: of the training.
        epoch: from 1; 0 for the order of the lengths (evaluation).
    """
    generator = np.random.default_rng([seed, epoch])
    count = len(lengths)
    order = generator.permutation(count) if epoch else np.arange(count)
    found: list[np.ndarray] = []
    for first in range(0, count, _WINDOW):
        window = order[first : first + _WINDOW]
        window = window[np.argsort(-lengths[window], kind="stable")]
        at = 0
        while at < len(window):
            fits = max(1, batch_words // int(lengths[window[at]]))
            found.append(window[at : at + fits])
            at += fits
    if epoch:
        found = [found[i] for i in generator.permutation(len(found)).tolist()]
    return found


@dataclass(eq=False)
class _Trainer:
    """The loop; a checkpoint holds all that changes in it.

    Attributes:
        network: on its device, trained in place.
        train, dev: the texts.
        num_classes: words and the sentence end.
        should_stop: asked once a batch.
        history: means on dev after each epoch.
        step: of the optimizer, the last one made.
        sums: loss and words of the epoch so far.
    """

    network: WordLstm
    train: _EncodedText
    dev: _EncodedText
    options: LmRunOptions
    store: CheckpointStore
    num_classes: int
    should_stop: Callable[[], bool]
    history: list[dict[str, float]] = field(default_factory=list)
    step: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def __post_init__(self) -> None:
        self._device = next(self.network.parameters()).device
        self._adam = torch.optim.Adam(self.network.parameters())
        self._schedule = TrainingOptions(
            epochs=self.options.epochs, learning_rate=self.options.learning_rate
        )

    def run(self) -> dict[str, Any]:
        """Train to the end; return the facts for the model's folder."""
        position = self._restore()
        while position.epoch <= self.options.epochs and not is_exhausted(
            self.history, self.options.patience
        ):
            self._run_epoch(position)
            loss = self._evaluate()
            train = self.sums[0] / max(self.sums[1], 1.0)
            self.history.append({"loss": loss, "train_loss": train})
            log.info(
                "epoch %d: perplexity %.2f in training, %.2f on dev",
                position.epoch, math.exp(train), math.exp(loss),
            )  # fmt: skip
            self.sums = [0.0, 0.0]
            position = Position(position.epoch + 1)
            self._save(position)
        best = self._best_epoch()
        self.network.load_state_dict(self.store.load(Position(best + 1))["model"])
        return {
            "epochs": len(self.history),
            "chosen_epoch": best,
            "dev_perplexity": math.exp(self.history[best - 1]["loss"]),
            "history": self.history,
        }

    def _best_epoch(self) -> int:
        losses = [each["loss"] for each in self.history]
        return losses.index(min(losses)) + 1

    def _run_epoch(self, position: Position) -> None:
        """Go on with an epoch to its end."""
        options, epoch = self.options, position.epoch
        plan = epoch_batches(
            self.train.lengths, options.batch_words, seed=options.seed, epoch=epoch
        )
        moment = Moment(1, epoch, (epoch - 1) / options.epochs)
        rate = learning_rate(self._schedule, moment, self.history)
        set_learning_rate(self._adam, rate)
        self.network.train()
        saved_at, left = time.monotonic(), range(position.batch, len(plan))
        for number in progress(left, f"epoch {epoch}", len(left)):
            with enough_memory(
                "a batch of sentences does not fit", "lower batch_words"
            ):
                self._make_step(plan[number])
            is_due = time.monotonic() - saved_at > 60.0 * options.checkpoint_minutes
            is_asked = self.should_stop()
            if is_due or is_asked:
                self._save(Position(epoch, number + 1))
                saved_at = time.monotonic()
            if is_asked:
                raise Interrupted

    def _make_step(self, rows: np.ndarray) -> None:
        self.step += 1
        torch.manual_seed(mixed_seed(self.options.seed, self.step))  # of dropout
        self._adam.zero_grad()
        total, count = self._loss(self.train, rows)
        mean = total / max(count, 1)
        mean.backward()
        limit = self.options.clip_norm
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), limit)
        if not math.isfinite(float(norm)):
            raise UserError(
                f"step {self.step}: the gradient is not finite",
                remedy="lower the learning rate",
            )
        self._adam.step()
        self.sums[0] += float(total.detach())
        self.sums[1] += count

    def _loss(self, text: _EncodedText, rows: np.ndarray) -> tuple[torch.Tensor, int]:
        """Return -ln p of sentences, summed, and how many words and ends count."""
        sentences = text.sentences(rows.tolist())
        inputs, targets = framed(sentences, self.num_classes)
        scores = self.network(inputs.to(self._device))
        total = nn.functional.cross_entropy(
            scores.flatten(0, 1),
            targets.to(self._device).flatten(),
            ignore_index=-1,
            reduction="sum",
        )
        return total, int((targets >= 0).sum())

    @torch.no_grad()
    def _evaluate(self) -> float:
        """Return the mean of -ln p over the words of dev."""
        self.network.eval()
        words = self.options.batch_words
        total, count = 0.0, 0
        for rows in epoch_batches(self.dev.lengths, words, seed=0, epoch=0):
            loss, counted = self._loss(self.dev, rows)
            total, count = total + float(loss), count + counted
        return total / count

    def _save(self, position: Position) -> None:
        state = {
            "model": {k: v.cpu() for k, v in self.network.state_dict().items()},
            "adam": self._adam.state_dict(),
            "history": self.history,
            "step": self.step,
            "sums": self.sums,
        }
        wanted = [self._best_epoch()] if self.history else []
        self.store.save(position, state, wanted)

    def _restore(self) -> Position:
        """Go on from the newest checkpoint; returns where."""
        found = self.store.latest()
        if found is None:
            return Position()
        position, state = found
        self.network.load_state_dict(state["model"])
        self._adam.load_state_dict(state["adam"])
        self.history, self.step = state["history"], state["step"]
        self.sums = state["sums"]
        return position
