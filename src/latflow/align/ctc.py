"""CTC (connectionist temporal classification): labels, HMMs, graphs of transcripts.

Pdf 0 is the blank. All variants of a phone (by its position in the word) are one label;
the optional silence has none, its frames are blanks.

*Training.* The graph of an utterance has all frame sequences that its pronunciations
allow: labels in order, each for one frame or more, blanks anywhere, and at least one
between equal labels that follow each other. Each frame sequence is there once, without
a weight, so that the sum over the graph's paths is the probability that CTC gives to
the transcript; where a word has several pronunciations, to any of them.

*Decoding.* The same as HMMs, so that graphs, search, lattices and alignments are those
of all systems: a label is one state that may stay, followed by an optional state of the
blank, and the optional silence is a state of the blank. One thing is less strict than
in training: two equal labels in a row may be recognized without a blank between them.

Source: Graves et al. 2006, "Connectionist temporal classification"; Miao et al. 2015,
"EESEN" (decoding with graphs).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import kaldifst
import numpy as np

from latflow.align.transcript_graphs import (
    Compilation,
    TranscriptGraphs,
    fewest_frames,
    write_transcript_graphs,
)
from latflow.errors import UserError
from latflow.files import atomic_directory, write_json
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.graphs.training import TrainingGraphCompiler
from latflow.hmm.event_map import PDF_CLASS, Constant, EventMap, Table
from latflow.hmm.topology import ctc_topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang
from latflow.ledger import Ledger

BLANK = 0


def ctc_system(lang: Lang) -> tuple[ContextDependency, TransitionModel]:
    """Return the tree and the transition model of the labels of a language.

    Labels are numbered from 1 in the order of `phones/sets.int`.
    """
    labels, blanks = [], []
    for phones in lang.phone_sets:
        is_blank = lang.optional_silence in phones
        (blanks if is_blank else labels).append(sorted(phones))
    branches: list[EventMap | None] = [None] * (1 + max(lang.topology.phones))
    for phone in blanks[0]:
        branches[phone] = Table(PDF_CLASS, [Constant(BLANK)])
    for number, phones in enumerate(labels, start=1):
        for phone in phones:
            classes = [Constant(number), Constant(BLANK)]
            branches[phone] = Table(PDF_CLASS, classes)
    tree = ContextDependency(1, 0, Table(0, branches))
    topology = ctc_topology([p for phones in labels for p in phones], blanks[0])
    return tree, TransitionModel.from_tree(tree, topology)


class CtcCompiler:
    """Compiles transcripts to graphs of CTC; see the module. Safe to share.

    Args:
        lang: a lang directory; `L.fst` is used.

    Attributes:
        num_labels: labels and the blank: the classes of a network's output.
    """

    def __init__(self, lang: Lang) -> None:
        tree, model = ctc_system(lang)
        self._graphs = TrainingGraphCompiler(lang, tree, model)
        self.num_labels = tree.num_pdfs
        self._label_of = np.zeros(1 + max(lang.phone_ids.values()), np.int64)
        for phone in model.topology.phones:
            self._label_of[phone] = tree.pdf([phone], 0)

    def compile(self, word_ids: Sequence[int] | np.ndarray) -> Graph | str:
        """Return the graph of a transcript, or the reason why it has none.

        Args:
            word_ids: ids of `words.txt`.

        Returns:
            Cyclic, deterministic, without epsilons and weights; symbols are label + 1.
        """
        try:
            links, _, final = self._graphs.spell(word_ids)
        except UserError as error:
            return error.what
        arcs = np.zeros(len(links), ARC)
        arcs["ilabel"] = arcs["olabel"] = self._label_of[links["label"]]
        arcs["next_state"] = links["target"]
        ends = np.where(np.isfinite(final), 0.0, np.inf).astype(np.float32)
        spelled = Graph.from_arc_list(0, links["source"], arcs, ends).to_fst()
        kaldifst.rmepsilon(spelled)
        labels = kaldifst.determinize(spelled)
        kaldifst.minimize(labels)
        return ctc_graph(Graph.from_fst(labels))


def ctc_graph(labels: Graph) -> Graph:
    """Return all frame sequences that CTC reads as one of some label sequences.

    A state of the result is one of the acceptor after a blank (or at the start), or
    with the label that leads there after that label.

    Args:
        labels: acceptor of labels 1, 2, ..., deterministic, without epsilons; its
            weights are left out.

    Returns:
        Deterministic; symbols are label + 1.
    """
    source, label, target = labels.sources(), labels.ilabel, labels.next_state
    num_nodes, base = labels.num_states, int(label.max(initial=0)) + 1
    keys, pair = np.unique(target * np.int64(base) + label, return_inverse=True)
    node, last = keys // base, keys % base
    behind = num_nodes + pair  # after an arc's label
    nodes, pairs = np.arange(num_nodes), num_nodes + np.arange(len(keys))
    # the arcs that may follow each pair at once: all but those of the same label
    begin, count = labels.arc_begin[node], np.diff(labels.arc_begin)[node]
    pair = np.repeat(np.arange(len(keys)), count)
    first = np.repeat(begin - np.cumsum(count) + count, count)
    next_arc = first + np.arange(len(pair))
    is_other = label[next_arc] != last[pair]
    pair, next_arc = pair[is_other], next_arc[is_other]
    rows = (
        (nodes, np.full(num_nodes, BLANK), nodes),
        (source, label, behind),
        (pairs, last, pairs),
        (pairs, np.full(len(keys), BLANK), node),
        (num_nodes + pair, label[next_arc], behind[next_arc]),
    )
    sources, symbols, targets = (
        np.concatenate(column) for column in zip(*rows, strict=True)
    )
    arcs = np.zeros(len(sources), ARC)
    arcs["ilabel"] = arcs["olabel"] = symbols + 1
    arcs["next_state"] = targets
    ends = np.where(np.isfinite(labels.final), 0.0, np.inf)
    final = np.concatenate((ends, ends[node])).astype(np.float32)
    return Graph.from_arc_list(labels.start, sources, arcs, final)


class CtcGraphs(TranscriptGraphs):
    """The graphs of the utterances of a split."""

    FORMAT = "latflow-ctc-1"
    KIND = "store of CTC graphs"
    FACTS: ClassVar = {**TranscriptGraphs.FACTS, "num_pdfs": int}

    @property
    def num_classes(self) -> int:
        """Labels and the blank."""
        return int(self.meta["num_pdfs"])


def build_ctc_tree(lang_dir: Path, out_dir: Path) -> None:
    """Write `tree`, `final.mdl` and `info.json` of a network of CTC (stage).

    Args:
        lang_dir: the lang directory.
        out_dir: a folder, replaced as a whole.
    """
    lang = Lang.load(lang_dir)
    tree, model = ctc_system(lang)
    names = {
        tree.pdf(phones[:1], 0): lang.base_phone(phones[0])
        for phones in lang.phone_sets
    }
    with atomic_directory(out_dir) as folder:
        tree.save(folder / "tree")
        model.save(folder / "final.mdl")
        info = {"num_pdfs": tree.num_pdfs, "labels": [names[n] for n in sorted(names)]}
        write_json(folder / "info.json", info)


def compile_ctc(
    frames_dir: Path,
    lang_dir: Path,
    out_dir: Path,
    *,
    subsampling: int = 1,
    max_skipped_fraction: float = 1.0,
    threads: int = 1,
) -> None:
    """Write the CTC graph of every transcribed utterance (stage).

    Writes `ledger.jsonl` beside them: utterances that have none, since a word has no
    pronunciation or there are more labels than frames.

    Args:
        frames_dir: the features of a split.
        lang_dir: the lang directory.
        out_dir: the store, replaced as a whole.
        subsampling: input frames per output frame.
        max_skipped_fraction: share of the utterances that may have none.
        threads: utterances at a time.

    Raises:
        UserError: a file is missing or garbled, more utterances than that are skipped,
            or the disk is full.
    """
    lang = Lang.load(lang_dir)
    compiler = CtcCompiler(lang)

    def make(text: str, num_frames: int) -> Graph | str:
        graph = compiler.compile(lang.words_to_ids(text))
        if isinstance(graph, str):
            return graph
        needed = fewest_frames(graph)
        if needed > num_frames:
            return f"has {num_frames} frames, its labels need {needed:.0f}"
        return graph

    write_transcript_graphs(
        Compilation(
            kind=CtcGraphs,
            make=make,
            meta={"subsampling": subsampling, "num_pdfs": compiler.num_labels},
            ledger=Ledger("compile_ctc"),
        ),
        frames_dir=frames_dir,
        out_dir=out_dir,
        max_skipped_fraction=max_skipped_fraction,
        threads=threads,
    )
