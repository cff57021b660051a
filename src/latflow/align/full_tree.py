"""Stage that makes the tree and the graphs of a network that no alignments precede.

The tree asks no questions: each phone has its own pdfs, or each phone behind each other
one. The phone language model has phone sequences that are drawn from the
transcripts: pronunciations and optional silences, as the lexicon weighs them.

Source: Hadian et al. 2018, "End-to-end speech recognition using lattice-free MMI";
Kaldi `steps/nnet3/chain/e2e/prepare_e2e.sh`, `gmmbin/gmm-init-biphone.cc`.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.features.source import open_frames
from latflow.files import write_json
from latflow.fst.determinize import by_source
from latflow.graphs.chain import note_missing_pdfs, save_chain_system
from latflow.graphs.options import ChainTreeOptions
from latflow.graphs.training import TrainingGraphCompiler
from latflow.hmm.topology import chain_topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.jit import njit
from latflow.lang.directory import Lang
from latflow.ledger import Ledger
from latflow.logs import progress

# Draws from each transcript, so that also a small corpus has silences and
# pronunciations in most places that the supervision allows them in.
_DRAWS = 5


class PhoneSampler:
    """Draws phone sequences of transcripts.

    Args:
        graphs: of the language and the tree.
        seed: of the draws.
    """

    def __init__(self, graphs: TrainingGraphCompiler, *, seed: int) -> None:
        self._graphs, self._seed = graphs, seed

    def draw(
        self, utterance: str, word_ids: Sequence[int], count: int
    ) -> list[np.ndarray]:
        """Return phone sequences of an utterance.

        Args:
            utterance: its id; the same one draws the same.
            word_ids: its transcript.
            count: how many.

        Raises:
            UserError: there are no words, or one of them has no pronunciation.
        """
        links, _, final = self._graphs.spell(word_ids, utterance=utterance)
        begin, links = by_source(links, len(final))
        rng = np.random.default_rng([self._seed, zlib.crc32(utterance.encode())])
        # Optional silences and words put each state on a path once.
        uniform = rng.random((count, len(final)))
        labels, targets = links["label"], links["target"]
        return [
            _walk(begin, labels, targets, links["weight"], final, u) for u in uniform
        ]


@njit(cache=True, nogil=True)
def _walk(
    begin: np.ndarray,
    label: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray,
    final: np.ndarray,
    uniform: np.ndarray,
) -> np.ndarray:
    """Walk from state 0 to an end; each step by the arcs' share of exp(-weight)."""
    phones = np.empty(len(uniform), np.int32)
    used, state = 0, 0
    for draw in uniform:
        total = np.exp(-final[state])
        for arc in range(begin[state], begin[state + 1]):
            total += np.exp(-weight[arc])
        left = draw * total
        chosen = -1
        for arc in range(begin[state], begin[state + 1]):
            chosen = arc
            left -= np.exp(-weight[arc])
            if left < 0.0:
                break
        if chosen < 0 or (left >= 0.0 and final[state] != np.inf):
            break
        if label[chosen] > 0:
            phones[used] = label[chosen]
            used += 1
        state = target[chosen]
    return phones[:used]


def build_full_tree(
    frames_dir: Path,
    lang_dir: Path,
    out_dir: Path,
    *,
    options: ChainTreeOptions,
    seed: int = 0,
) -> None:
    """Make the tree, the phone language model and the graphs of a network (stage).

    Writes `tree`, `final.mdl` (the transition model alone), `phone_lm.fst`, `den.fst`,
    `normalization.fst`, `ledger.jsonl` and `info.json`.

    Args:
        frames_dir: the features of the training data, for their transcripts.
        lang_dir: the lang directory; its phones get the topology of lattice-free MMI.
        out_dir: folder of the network's tree; its name is the network's.
        options: context (1 or 2 phones) and language model.
        seed: of the phone sequences that are drawn.

    Raises:
        UserError: no transcript has a pronunciation.
    """
    began = time.perf_counter()
    lang, frames = Lang.load(lang_dir), open_frames(frames_dir)
    ledger = Ledger("build_full_tree")
    topology = chain_topology(lang.topology.phones)
    classes = topology.pdf_class_counts()
    if options.context_width == 1:
        tree = ContextDependency.monophone(lang.phone_sets, classes)
    else:
        tree = ContextDependency.full_biphone(
            lang.phone_sets, classes, lang.context_independent
        )
    transitions = TransitionModel.from_tree(tree, topology)
    sampler = PhoneSampler(TrainingGraphCompiler(lang, tree, transitions), seed=seed)

    def sequences() -> Iterator[np.ndarray]:
        texts = zip(frames.utt_ids, frames.texts, strict=True)
        for utterance, text in progress(texts, "phone sequences", len(frames.utt_ids)):
            try:
                yield from sampler.draw(utterance, lang.words_to_ids(text), _DRAWS)
            except UserError as error:
                ledger.record(utterance, error.what)

    sizes = save_chain_system(out_dir, sequences(), options.phone_lm, tree, transitions)
    note_missing_pdfs(ledger, out_dir.name, sizes)
    ledger.write(out_dir / "ledger.jsonl")
    facts = {
        "options": options.values(),
        **sizes,
        "seconds": round(time.perf_counter() - began, 3),
    }
    write_json(out_dir / "info.json", facts)
