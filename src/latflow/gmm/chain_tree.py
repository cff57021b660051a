"""Stage that makes the tree and the graphs of a network for lattice-free MMI.

The network gives an output for every third frame or so, and its phones have one HMM
state with two pdfs, of the first frame and of those that follow. The tree is grown on
the features and alignments of a GMM system, of which only as many frames are left; the
phone language model behind the denominator has the phones of the same alignments.

Source: Kaldi `steps/nnet3/chain/build_tree.sh`, `chainbin/chain-est-phone-lm.cc`,
`chainbin/chain-make-den-fst.cc`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from latflow.files import write_json
from latflow.gmm.apply import open_adapted
from latflow.gmm.source import FrameSource
from latflow.gmm.train import grow_tree, known_alignments
from latflow.graphs.chain import note_missing_pdfs, save_chain_system
from latflow.graphs.options import ChainTreeOptions
from latflow.hmm.alignment import segments, subsampled_lengths
from latflow.hmm.topology import chain_topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.hmm.tree_statistics import (
    StatisticsArrays,
    TreeStatistics,
)
from latflow.lang.directory import Lang
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import in_order, worker_pool


def build_chain_tree(
    frames_dir: Path,
    lang_dir: Path,
    alignments: Path,
    source_dir: Path,
    transforms: Path | None,
    out_dir: Path,
    *,
    options: ChainTreeOptions,
    threads: int,
) -> None:
    """Make the tree, the phone language model and the graphs of a network (stage).

    Writes `tree`, `final.mdl` (the transition model alone), `phone_lm.fst`, `den.fst`,
    `normalization.fst`, `ledger.jsonl` and `info.json`.

    Args:
        frames_dir: the `FrameStore` of the training data of a GMM system.
        lang_dir: the lang directory; its phones get the topology of lattice-free MMI.
        alignments: `ali.ark` of the training data, made with this system.
        source_dir: folder of this system.
        transforms: its `trans.ark` for the training data; None where it does not adapt.
        out_dir: folder of the network's tree; its name is the network's.
        options: of tree and language model.
        threads: utterances worked on at a time.

    Raises:
        UserError: no utterance is aligned, the system adapts but no transforms are
            given, or a phone of the alignments has no root in the language directory.
    """
    began = time.perf_counter()
    lang, ledger = Lang.load(lang_dir), Ledger("build_chain_tree")
    source, system = open_adapted(source_dir, frames_dir, transforms)
    old = system.model.transitions
    statistics = _tree_statistics(
        source, alignments, old, lang, options, ledger, threads
    )
    topology = chain_topology(lang.topology.phones)
    tree = grow_tree(statistics, lang, topology, options)
    transitions = TransitionModel.from_tree(tree, topology)
    phones = (segments(ids, old)[0] for _, ids in known_alignments(source, alignments))
    sizes = save_chain_system(out_dir, phones, options.phone_lm, tree, transitions)
    note_missing_pdfs(ledger, out_dir.name, sizes)
    ledger.write(out_dir / "ledger.jsonl")
    facts = {
        "options": options.values(),
        "tree_frames": int(statistics.moments[:, 0].sum()),
        **sizes,
        "seconds": round(time.perf_counter() - began, 3),
    }
    write_json(out_dir / "info.json", facts)


@dataclass(frozen=True, eq=False)
class _OneState:
    """Alignments with one HMM state a phone, without context.

    Attributes:
        transitions: what they are ids of.
        first: int32[highest phone + 1], the id of a phone's first frame.
        more: of the frames that follow.
    """

    transitions: TransitionModel
    first: np.ndarray
    more: np.ndarray

    @classmethod
    def of(cls, lang: Lang) -> _OneState:
        """Return the alignments of the phones of a language."""
        topology = chain_topology(lang.topology.phones)
        classes = topology.pdf_class_counts()
        tree = ContextDependency.monophone(lang.phone_sets, classes)
        transitions = TransitionModel.from_tree(tree, topology)
        first = np.zeros(max(topology.phones) + 1, np.int32)
        more = first.copy()
        ids = np.arange(transitions.num_transition_ids + 1, dtype=np.int32)
        loops, leaves = transitions.is_self_loop, transitions.is_final
        first[transitions.phone[leaves]] = ids[leaves]
        more[transitions.phone[loops]] = ids[loops]
        return cls(transitions, first, more)

    def align(self, phones: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the transition-ids of phones with these lengths, all > 0."""
        ids = np.repeat(self.more[phones], lengths)
        ids[np.cumsum(lengths) - lengths] = self.first[phones]
        return ids


def _tree_statistics(
    source: FrameSource,
    alignments: Path,
    old: TransitionModel,
    lang: Lang,
    options: ChainTreeOptions,
    ledger: Ledger,
    threads: int,
) -> StatisticsArrays:
    """Gather the statistics of phones in context, of the frames that are left."""
    new, factor = _OneState.of(lang), options.frame_subsampling
    width = options.context_width
    statistics = TreeStatistics(context_width=width, central_position=width // 2)

    def subsampled(item: tuple[int, np.ndarray]) -> tuple[int, Any, np.ndarray]:
        u, ids = item
        phones, _, lengths = segments(ids, old)
        left = subsampled_lengths(lengths, np.ones_like(lengths), factor)
        new_ids = None if left is None else new.align(phones, left)
        return u, new_ids, source.frames(u)[::factor]

    with worker_pool(threads) as pool:
        known = known_alignments(source, alignments)
        items = in_order(pool, subsampled, known, ahead=2 * threads)
        for u, ids, frames in progress(items, "tree statistics", len(source)):
            if ids is None:
                reason = f"more phones than frames, of which one in {factor} is left"
                ledger.record(source.utt_id(u), reason)
            else:
                statistics.accumulate(
                    frames, ids, new.transitions, lang.context_independent
                )
    return statistics.arrays()
