"""A word language model: an LSTM that predicts the next word from those before it.

Its classes are the sentence end and the words of its vocabulary. A word outside is an
input (all such words share an embedding) but has no probability, as in n-gram models
with a closed vocabulary; of the words within and the sentence end the probabilities sum
to one after any history. So perplexities over the same words may be compared with those
of n-grams, and be mixed:

    p(w | h) = weight p_neural(w | h) + (1 - weight) p_ngram(w | h).

A folder holds `weights.safetensors`, `words.txt` (a word a line, in the order of the
classes, the sentence end first) and `meta.json` (options, and facts of training).

Source: Mikolov et al. 2010 (recurrent models, interpolation); Press & Wolf 2017 (shared
embeddings); Jelinek & Mercer 1980 (the weight, by expectation maximization).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from latflow.errors import UserError
from latflow.files import atomic_directory, write_text
from latflow.lang.arpa import NgramModel, Perplexity
from latflow.lang.lexicon import SENTENCE_END, SENTENCE_START
from latflow.lang.options import LstmLmOptions
from latflow.nnet.graph import initialize
from latflow.nnet.options import MOST_LAYERS
from latflow.text_files import read_lines

END = 0  # class of the sentence end; as an input, the sentence start
OUTSIDE = -1  # a word outside the vocabulary
_SCORES = 1 << 24  # scores of classes that are computed at once
_BLOCK = 4096  # sentences that are scored together
_LN_10 = float(np.log(10.0))
# What is raised of a damaged description, or of parameters that do not fit it.
_GARBLED = (
    AttributeError,
    KeyError,
    RuntimeError,
    SafetensorError,
    TypeError,
    ValueError,
)


class WordLstm(nn.Module):
    """The network: numbers of words in, scores of the next ones out.

    Args:
        num_classes: K: words, and the sentence end.
        options: of the layers.
        seed: of the parameters' start.
    """

    def __init__(
        self, num_classes: int, options: LstmLmOptions, *, seed: int = 0
    ) -> None:
        super().__init__()
        size = options.size
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.embedding = nn.Embedding(num_classes + 1, size)
            between = options.dropout if options.num_layers > 1 else 0.0
            self.rnn = nn.LSTM(
                size, size, options.num_layers, batch_first=True, dropout=between
            )
            self.output = nn.Linear(size, num_classes) if options.untied else None
            initialize(self)
            nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.bias = nn.Parameter(torch.zeros(num_classes)) if not self.output else None
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, words: Tensor) -> Tensor:
        """Return scores before the softmax, [B, T, K].

        Args:
            words: int64 [B, T], the sentence start and words; K for one outside. What
                stands behind a sentence changes nothing in it.
        """
        values, _ = self.rnn(self.dropout(self.embedding(words)))
        values = self.dropout(values)
        if self.output is not None:
            return self.output(values)
        return nn.functional.linear(values, self.embedding.weight[:-1], self.bias)


def framed(sentences: Sequence[np.ndarray], num_classes: int) -> tuple[Tensor, Tensor]:
    """Return sentences as inputs and as targets.

    Args:
        sentences: int [N_b] each, classes of words; `OUTSIDE` for others.
        num_classes: K.

    Returns:
        (int64 [B, T], T = 1 + the greatest N; int64 [B, T], -1 where nothing counts).
    """
    longest = max(map(len, sentences)) + 1
    inputs = np.full((len(sentences), longest), END, np.int64)
    targets = np.full((len(sentences), longest), -1, np.int64)
    for row, words in enumerate(sentences):
        inputs[row, 1 : len(words) + 1] = np.where(words == OUTSIDE, num_classes, words)
        targets[row, : len(words)] = words
        targets[row, len(words)] = END
    return torch.from_numpy(inputs), torch.from_numpy(targets)


@dataclass(frozen=True, eq=False)
class NeuralLm:
    """A trained model.

    Attributes:
        network: in evaluation mode, on its device.
        words: class -> word; the first is `</s>`.
        options: of the layers.
        meta: facts of training.
    """

    network: WordLstm
    words: list[str]
    options: LstmLmOptions
    meta: Mapping[str, Any]

    @cached_property
    def _classes(self) -> dict[str, int]:
        """Word -> class."""
        return {word: number for number, word in enumerate(self.words) if number}

    def classes(self, words: Sequence[str]) -> np.ndarray:
        """Return the classes of words, int64 [N]; `OUTSIDE` for those it lacks."""
        return np.array([self._classes.get(word, OUTSIDE) for word in words], np.int64)

    @torch.no_grad()
    def log_probs(self, sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Score sentences.

        Returns:
            Of each, float64 [N + 1]: ln p of its words and of its end; NaN for words
            outside the vocabulary.
        """
        ids = [self.classes(words) for words in sentences]
        found: list[np.ndarray] = [np.empty(0)] * len(ids)
        device = next(self.network.parameters()).device
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        first = 0
        while first < len(order):
            width = (len(ids[order[first]]) + 1) * len(self.words)
            rows = order[first : first + max(1, _SCORES // width)]
            first += len(rows)
            inputs, targets = framed([ids[i] for i in rows], len(self.words))
            scores = self.network(inputs.to(device)).float()
            picked = scores.gather(2, targets.clamp(min=0).to(device)[:, :, None])
            values = (picked[:, :, 0] - scores.logsumexp(2)).double().cpu().numpy()
            values[targets.numpy() < 0] = np.nan
            for row, i in enumerate(rows):
                found[i] = values[row, : len(ids[i]) + 1]
        return found

    def save(self, folder: str | Path) -> None:
        """Write the folder atomically."""
        state = self.network.state_dict()
        weights = {name: v.detach().to("cpu", copy=True) for name, v in state.items()}
        meta = {**self.meta, "options": self.options.values()}
        with atomic_directory(folder) as temporary:
            save_file(weights, temporary / "weights.safetensors")
            lines = "".join(f"{word}\n" for word in self.words)
            write_text(temporary / "words.txt", lines)
            write_text(temporary / "meta.json", json.dumps(meta, indent=1) + "\n")

    @classmethod
    def load(cls, folder: str | Path, device: str | torch.device = "cpu") -> NeuralLm:
        """Read a folder.

        Raises:
            UserError: a file is missing or broken, or they do not fit each other.
        """
        folder = Path(folder)
        for name in ("weights.safetensors", "words.txt", "meta.json"):
            if not (folder / name).is_file():
                raise UserError(
                    "no such file",
                    file=folder / name,
                    remedy="name a folder that `latflow train-lm` has written",
                )
        words = [line for _, line in read_lines(folder / "words.txt")]
        try:
            meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            options = LstmLmOptions.model_validate(meta.pop("options"))
            if options.num_layers > MOST_LAYERS:
                raise ValueError(f"{options.num_layers} layers")
            network = WordLstm(len(words), options)
            network.load_state_dict(load_file(folder / "weights.safetensors"))
        except _GARBLED as error:
            what = " ".join(str(error).split())
            raise UserError(
                f"not a readable language model: {what}",
                file=folder,
                remedy="train it again",
            ) from error
        return cls(network.to(device).eval(), words, options, meta)


# -- beside an n-gram model, and mixed with it ---------------------------------------


@dataclass(frozen=True, eq=False)
class Mixture:
    """A neural model and an n-gram model over the words that both know.

    Attributes:
        neural: its probabilities have `weight`.
        ngram: its have the rest; None for the neural one alone.
    """

    neural: NeuralLm
    ngram: NgramModel | None = None

    def log_probs(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """Return ln p of words and sentence ends, float64 [2, M]; neural, then n-gram.

        Sentences stand one behind the other; NaN in both for a word that one lacks.
        """
        if not sentences:
            return np.empty((2, 0))
        neural = np.concatenate(self.neural.log_probs(sentences))
        if self.ngram is None:
            return np.stack([neural, neural])
        known = dict(self.ngram.word_ids)
        start, end = known.pop(SENTENCE_START), known.pop(SENTENCE_END)
        ids = np.array(
            [
                number
                for words in sentences
                for number in (start, *(known.get(w, -1) for w in words), end)
            ]
        )
        ngram = self.ngram.log_probs(ids)[ids != start] * _LN_10
        both = np.stack([neural, ngram])
        both[:, np.isnan(both).any(0)] = np.nan
        return both


def best_weight(log_probs: np.ndarray, *, tolerance: float = 1e-4) -> float:
    """Return the weight of the neural model that makes a text most probable, by EM.

    Args:
        log_probs: [2, M], see `Mixture.log_probs`; NaN does not count.
        tolerance: change below which EM ends.

    Raises:
        UserError: no word counts.
    """
    counted = log_probs[:, ~np.isnan(log_probs).any(0)]
    if not counted.shape[1]:
        raise UserError("no sentence to choose the weight on", remedy="name a text")
    ratio = np.exp(np.clip(counted[1] - counted[0], -700, 700))
    weight = 0.5
    for _ in range(1000):
        before = weight
        weight = float(np.mean(weight / (weight + (1.0 - weight) * ratio)))
        if abs(weight - before) < tolerance:
            break
    return weight


def weight_on(models: Mixture, sentences: Iterable[Sequence[str]]) -> float:
    """Return the weight of the neural model that is best on a text, see `best_weight`.

    Memory holds two numbers a word of the text.
    """
    parts = [models.log_probs(block) for block in blocks(sentences)]
    return best_weight(np.concatenate(parts, axis=1) if parts else np.empty((2, 0)))


def mixed(log_probs: np.ndarray, weight: float) -> np.ndarray:
    """Return ln of the mixed probabilities, [M].

    Args:
        log_probs: [2, M], see `Mixture.log_probs`.
        weight: of the first row, in [0, 1].
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # a weight of 0; NaN
        logs = np.log([weight, 1.0 - weight])
        return np.logaddexp(log_probs[0] + logs[0], log_probs[1] + logs[1])


def perplexities(
    models: Mixture, sentences: Iterable[Sequence[str]], weight: float
) -> dict[str, Perplexity]:
    """Score a text, which is streamed, by the neural model, the n-gram, the mixture.

    A word that either lacks is an OOV of all three.

    Args:
        models: the models.
        sentences: empty ones are left out.
        weight: of the neural one in the mixture.
    """
    sums, counts = np.zeros(3), np.zeros(3, np.int64)
    for block in blocks(sentences):
        both = models.log_probs(block)
        sums += np.nansum([*both, mixed(both, weight)], axis=1) / _LN_10
        num_words = sum(map(len, block))
        counts += len(block), num_words, int(np.isnan(both[0]).sum())
    names = ("neural", "ngram", "mixture")
    if models.ngram is None:
        names = names[:1]
    sizes = counts.tolist()
    return {
        name: Perplexity(*sizes, log10_prob=float(total))
        for name, total in zip(names, sums.tolist(), strict=False)
    }


def blocks(sentences: Iterable[Sequence[str]]) -> Iterator[list[Sequence[str]]]:
    """Yield sentences with words, some thousands at a time."""
    left = iter(words for words in sentences if words)
    while block := list(islice(left, _BLOCK)):
        yield block
