"""The stage `decode_attention`: a split decoded by a decoder with attention.

What the beam search finds of an utterance (`latflow.decode.unit_search`) is written as
a lattice with one linear path for each sequence of words, so that tuning, scoring and
rescoring are those of all systems. Graph costs are those of the language model alone,
acoustic costs all the rest, times 10, as of other networks that learnt whole sequences.

*Times.* A path has as many frames as the encoder's output. The first phone of a word
begins at the frame that its first unit attended to most; phones in between share the
frames evenly where units are not phones; a phone lasts until the next one, the last one
until the end, and what is before the first is silence. So times are where the attention
was, no boundaries that were aligned.

Written files:

* `lattices.ark`: Kaldi's binary form;
* `ledger.jsonl`: utterances of which no sequence of words was finished;
* `decode.json`: sizes and times.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from latflow.align.units import Units
from latflow.archive_sizes import archive_sizes
from latflow.decode.options import AttentionDecodeOptions
from latflow.decode.unit_search import Entry, Hypothesis, PrefixTree, search
from latflow.errors import UserError
from latflow.features.source import open_frames
from latflow.files import write_json
from latflow.fst.graph import Graph
from latflow.graphs.hclg import load_model as load_transitions
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.directory import Lang
from latflow.lang.lm_trie import LmTrie
from latflow.lang.phones import place_markers
from latflow.lattice.io.archives import LatticeWriter
from latflow.lattice.lattice import Lattice
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.nnet.model_dir import AcousticNetwork, choose_device, load_model
from latflow.nnet.normalization import Normalizer
from latflow.parts import SetJob

_UNFINISHED = "no sequence of words was finished: a wider beam may help"


@dataclass(frozen=True, eq=False)
class AttentionRecognizer:
    """A decoder with attention, its words and its language model.

    Attributes:
        model: the network, in evaluation mode.
        normalizer: of its input.
        tree: spellings of the words.
        phones: of each entry of the tree, ids.
        clock: transition-ids of phones.
        options: of the search.
    """

    model: AcousticNetwork
    normalizer: Normalizer
    tree: PrefixTree
    phones: Sequence[tuple[int, ...]]
    clock: PhoneClock
    options: AttentionDecodeOptions

    @classmethod
    def load(
        cls,
        model_dir: Path,
        lang_dir: Path,
        grammar: Path,
        options: AttentionDecodeOptions,
        device: str = "auto",
    ) -> AttentionRecognizer:
        """Read a model folder, its language and the grammar.

        Raises:
            UserError: a file is missing or broken, the network has no decoder, its
                units are not those of the language, or no word is in both lexicon and
                grammar.
        """
        model = load_model(model_dir, choose_device(device))
        if "units" not in model.meta:
            raise UserError(
                "was not trained with a decoder with attention",
                file=model_dir,
                remedy="decode it with its graph",
            )
        lang = Lang.load(lang_dir)
        units = Units.of(lang, model.meta["units"]["kind"])
        units.check(model.meta["units"]["names"], model_dir)
        lm = LmTrie.from_graph(Graph.load(grammar), lang.word_ids, file=grammar)
        entries, phones = _entries(units, lm)
        if not entries:
            raise UserError(
                "lists no word of the lexicon",
                file=grammar,
                remedy="name a language model of the lexicon's words",
            )
        _, transitions = load_transitions(model_dir)
        return cls(
            model,
            model.normalizer,
            PrefixTree(entries, lm),
            phones,
            PhoneClock.of(transitions, lang.optional_silence),
            options,
        )

    @torch.no_grad()
    def encode(self, frames: Sequence[np.ndarray]) -> tuple[torch.Tensor, list[int]]:
        """Return what the decoder attends to, [B, T', D], and the lengths.

        Args:
            frames: features of B utterances, float32 [T, D] each.
        """
        name, decoder = self.model.network.decoder
        rows = [torch.from_numpy(self.normalizer(one).copy()) for one in frames]
        lengths = torch.tensor([len(row) for row in rows])
        batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        device = decoder.output.weight.device
        output = self.model.network(batch.to(device), lengths)[name]
        return output.logits.float(), output.lengths.tolist()

    def search(
        self, values: torch.Tensor, lengths: Sequence[int]
    ) -> list[list[Hypothesis]]:
        """Find the best sequences of words; see `latflow.decode.unit_search.search`."""
        _, decoder = self.model.network.decoder
        return search(decoder, values, lengths, self.tree, self.options)

    def lattice(self, hypotheses: Sequence[Hypothesis], num_frames: int) -> Lattice:
        """Return the union of some sequences of words, as linear paths.

        Args:
            hypotheses: at least one.
            num_frames: of the encoder's output.
        """
        arcs = np.zeros((len(hypotheses), num_frames, 4), np.int32)
        costs = np.zeros((len(hypotheses), num_frames, 2), np.float32)
        states = 1 + np.arange(len(hypotheses) * num_frames).reshape(
            len(hypotheses), -1
        )
        arcs[:, 1:, 0], arcs[:, :, 1] = states[:, :-1], states
        for path, cost, one in zip(arcs, costs, hypotheses, strict=True):
            path[:, 2], begins = self._frames_of(one, num_frames)
            words = [self.tree.entries[number].word for number in one.entries]
            path[begins, 3] = words
            cost[0] = one.lm_cost, -one.acoustic * self.model.lattice_scale
        final_costs = np.full((states.size + 1, 2), np.inf, np.float32)
        final_costs[states[:, -1]] = 0.0
        flat = arcs.reshape(-1, 4), costs.reshape(-1, 2)
        return Lattice.from_arcs(*flat, final_costs)

    def _frames_of(
        self, one: Hypothesis, num_frames: int
    ) -> tuple[np.ndarray, list[int]]:
        """Return the transition-ids of a path, and the first frame of each word."""
        peaks = np.maximum.accumulate(np.array(one.peaks, np.float64))
        phones: list[int] = []
        starts: list[float] = []
        firsts: list[int] = []  # phone of each word
        place = 0
        for number in one.entries:
            count, own = len(self.tree.entries[number].units), self.phones[number]
            at = np.arange(len(own)) * (count / len(own))
            there = peaks[place : place + count]
            starts += np.interp(at, np.arange(count), there).tolist()
            firsts.append(len(phones))
            phones += own
            place += count
        begins = spread(np.array(starts), num_frames)
        return self.clock(phones, begins, num_frames), begins[firsts].tolist()


def _entries(units: Units, lm: LmTrie) -> tuple[list[Entry], list[tuple[int, ...]]]:
    """Return the words of lexicon and language model, and the phones of each entry.

    Of phones there is an entry a pronunciation, else one a word, with the shortest.
    """
    lang, entries, phones = units.lang, [], []
    for word in lang.speech_words:
        if word not in lang.word_ids or lm.lacks(np.array([lang.word_ids[word]]))[0]:
            continue
        known = [spoken for _, spoken in lang.lexicon[word]]
        if units.kind != "phone":
            known = [min(known, key=len)]
        pairs = zip(units.spellings(word), known, strict=True)
        # pronunciations that differ in stress alone may have the same units
        for spelled, spoken in dict(reversed([*pairs])).items():
            ids = _phone_ids(lang, spoken)
            entries.append(Entry(spelled, lang.word_ids[word], len(ids)))
            phones.append(ids)
    return entries, phones


def _phone_ids(lang: Lang, phones: Sequence[str]) -> tuple[int, ...]:
    """Return the ids of a word's phones, by their places in it."""
    is_marked = lang.word_boundary is not None
    names = place_markers(phones) if is_marked else phones
    return tuple(lang.phone_ids[name] for name in names)


def spread(starts: np.ndarray, num_frames: int) -> np.ndarray:
    """Return whole frames that rise, near given ones.

    Args:
        starts: [n], n <= num_frames; not falling.
        num_frames: results are below.

    Returns:
        int64 [n].
    """
    order = np.arange(len(starts))
    rising = np.maximum.accumulate(starts.astype(np.int64) - order) + order
    return np.minimum(rising, num_frames - len(starts) + order)


@dataclass(frozen=True)
class PhoneClock:
    """Transition-ids of phones that last some frames.

    Attributes:
        silence: phone before the first one.
        leaves: by phone, of the arc that ends it from its first state.
        stays: by phone, of that state's self-loop.
    """

    silence: int
    leaves: np.ndarray
    stays: np.ndarray

    @classmethod
    def of(cls, model: TransitionModel, silence: int) -> PhoneClock:
        """Look them up in a transition model of labels (`latflow.align.ctc`)."""
        highest = max(model.topology.phones)
        leaves, stays = np.zeros((2, highest + 1), np.int32)
        for table, kind in ((leaves, model.is_final), (stays, model.is_self_loop)):
            ids = np.flatnonzero(kind & (model.hmm_state == 0))
            table[model.phone[ids]] = ids
        return cls(silence, leaves, stays)

    def __call__(
        self, phones: Sequence[int], begins: np.ndarray, num_frames: int
    ) -> np.ndarray:
        """Return the transition-ids of all frames, int32 [num_frames].

        Args:
            phones: n of them.
            begins: [n], their first frames, rising.
            num_frames: of the utterance.
        """
        if not len(phones) or begins[0] > 0:
            phones, begins = [self.silence, *phones], np.append(0, begins)
        lengths = [b - a for a, b in pairwise([*begins.tolist(), num_frames])]
        ids = np.repeat(self.stays[phones], lengths)
        ids[begins.astype(np.int64)] = self.leaves[phones]
        return ids


def decode_attention(
    job: SetJob, grammar: Path, *, options: AttentionDecodeOptions, device: str = "auto"
) -> None:
    """Decode all utterances of a split with a decoder with attention (stage).

    Args:
        job: the set and the system; `threads` are the network's.
        grammar: `G.fst`, the language model.
        options: of the search.
        device: of the network: `cpu`, `cuda` or `auto`.

    Raises:
        UserError: model, features, words and language model do not fit; more utterances
            than allowed are skipped.
    """
    recognizer = AttentionRecognizer.load(
        job.model_dir, job.lang_dir, grammar, options, device
    )
    store = open_frames(job.frames_dir)
    dim = recognizer.model.network.dim_in
    if dim != store.dim:
        raise UserError(
            f"features have dimension {store.dim}, but the network takes {dim}",
            file=job.frames_dir,
            remedy="decode with the features that the network was trained on",
        )
    started, frames = time.perf_counter(), 0
    seconds = {"log_likelihoods": 0.0, "search": 0.0}
    ledger = Ledger("decode")
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, job.threads))
    try:
        with LatticeWriter.open(job.out_dir / "lattices.ark") as writer:
            for batch in progress(
                _batches(len(store), options.max_sequences), "decode"
            ):
                features = [store.frames(i) for i in batch]
                frames += sum(map(len, features))
                begun = time.process_time()
                values, lengths = recognizer.encode(features)
                encoded = time.process_time()
                hypotheses = recognizer.search(values, lengths)
                seconds["log_likelihoods"] += encoded - begun
                seconds["search"] += time.process_time() - encoded
                for i, length, paths in zip(batch, lengths, hypotheses, strict=True):
                    if paths:
                        writer.write(
                            store.utt_ids[i], recognizer.lattice(paths, length)
                        )
                    else:
                        ledger.record(store.utt_ids[i], _UNFINISHED)
            ledger.write(job.out_dir / "ledger.jsonl")
            ledger.check(len(store), max_skipped_fraction=job.max_skipped_fraction)
    finally:
        torch.set_num_threads(before)
    audio = frames * store.frame_shift
    factors = {name: spent / audio for name, spent in seconds.items()}
    summary: dict[str, Any] = {
        "utterances": len(store),
        "skipped": ledger.num_skipped(),
        "frames": frames,
        "audio_seconds": audio,
        "wall_seconds": time.perf_counter() - started,
        "threads": job.threads,
        "cpu_seconds": seconds,
        "real_time_factor_per_core": {**factors, "both": sum(factors.values())},
        **options.values(),
        "lattice_scale": recognizer.model.lattice_scale,
    }
    archives = archive_sizes(job.out_dir, {"lattices.ark": writer.entries})
    write_json(job.out_dir / "decode.json", {**summary, **archives})


def _batches(count: int, size: int) -> Iterator[range]:
    """Yield numbers of utterances, this many at a time, in order."""
    for first in range(0, count, size):
        yield range(first, min(first + size, count))
