"""HCLG: the decoding graph of a language, a grammar and an acoustic model.

    LG    min(det(L o G)), pushed      words of the grammar as phones
    CLG   C o LG                       phones in context
    HCLG  self-loops(min(det(H o CLG)))  transition-ids

L carries disambiguation symbols, which make the lexicon determinizable; they travel
through C and H and become epsilon at the end. Path weights are costs.

Source: Kaldi `utils/mkgraph.sh`, step for step; Mohri, Pereira, Riley 2002, "Weighted
finite-state transducers in speech recognition".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kaldifst
import numpy as np

from latflow.errors import UserError
from latflow.files import write_json
from latflow.fst.graph import Graph
from latflow.fst.minimize import minimize_encoded
from latflow.fst.optimize import (
    connect,
    push_special,
    remove_epsilons_locally,
    remove_input_symbols,
)
from latflow.graphs.options import Composition, GraphOptions, Sentences
from latflow.graphs.sentences import let_sentences_follow
from latflow.hmm.transducer import HmmCache, add_self_loops, compose_hmms
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang
from latflow.lang.lexicon import SENTENCE_END

log = logging.getLogger(__name__)

# Determinization of a graph that cannot be determinized never ends. A determinized
# graph is hardly ever larger than its source; these bounds allow for those that are.
_MAX_GROWTH = 10
_MIN_BOUND = 1_000_000  # states


def build_hclg(
    lang_dir: str | Path,
    grammar: str | Path,
    tree: ContextDependency,
    model: TransitionModel,
    scales: GraphOptions,
) -> Graph:
    """Compose the decoding graph.

    Args:
        lang_dir: lang directory; `L_disambig.fst` and `phones/disambig.int` are used.
        grammar: G, an acceptor of words (epsilon arcs of back-off have input #0).
        tree: the tree; gives the context width.
        model: the transition model of the same system.
        scales: of the transition probabilities.

    Returns:
        HCLG: input labels transition-ids, output labels words.

    Raises:
        UserError: a file is missing; lexicon and grammar have no word sequence in
            common; or lexicon or grammar cannot be determinized.
    """
    composer = HclgComposer(Lang.load(lang_dir), tree, model, scales)
    graph = composer.compose(_read_fst(grammar), file=grammar)
    log.info("HCLG: %d states, %d arcs", graph.num_states, graph.num_arcs)
    return graph


class HclgComposer:
    """Composes the decoding graphs of many grammars of one language and model.

    Lexicon and HMMs are kept from one graph to the next.

    Args:
        lang: the language directory; its `L_disambig.fst` is read.
        tree: the tree; gives the context width.
        model: the transition model of the same system.
        scales: of the transition probabilities.

    Raises:
        UserError: a file is missing.
    """

    def __init__(
        self,
        lang: Lang,
        tree: ContextDependency,
        model: TransitionModel,
        scales: GraphOptions,
    ) -> None:
        self.lang = lang
        self._tree, self._model, self._scales = tree, model, scales
        self._lexicon = _read_fst(lang.folder / "L_disambig.fst")
        self._hmms = HmmCache(tree, model, scales.transition_scale)

    def compose(
        self, grammar: kaldifst.StdVectorFst, *, file: str | Path | None = None
    ) -> Graph:
        """Return HCLG.

        Args:
            grammar: G; its arcs are sorted here if need be.
            file: the grammar's file, for messages.

        Raises:
            UserError: lexicon and grammar have no word sequence in common, or cannot be
                determinized.
        """
        lg = compose_lexicon_grammar(self._lexicon, grammar, file=file)
        return self._expand(lg)

    def compose_lexicon(self) -> Graph:
        """Return HCL, whose words may be any; with #0 among them where G may back off.

        Determinized in the tropical semiring: in the log semiring an arc to k words
        costs ln k less, and a search, which takes words for as likely as G says,
        would prefer beginnings that many words have.

        Raises:
            UserError: the lexicon cannot be determinized.
        """
        lexicon = _back_off_once(self._lexicon, self.lang.word_ids["#0"])
        _determinize(lexicon, "L", self.lang.folder / "L_disambig.fst", use_log=False)
        graph = minimize_encoded(connect(Graph.from_fst(lexicon, is_emptied=True)))
        lexicon = graph.to_fst()
        kaldifst.arcsort(lexicon, "ilabel")
        return self._expand(lexicon, use_log=False)

    def _expand(self, lg: kaldifst.StdVectorFst, *, use_log: bool = True) -> Graph:
        """Return H o C o lg, a transducer of phones to words; `lg` is emptied."""
        # Of a large graph each form takes gigabytes: one goes before the next is made.
        folder = self.lang.folder
        graph, windows = self._compose_context(lg)
        graph, symbols = compose_hmms(graph, windows, self._hmms)
        _require_paths(graph, "language directory and acoustic model", folder)
        hclg = graph.to_fst()
        del graph
        _determinize(hclg, "H o C o L o G", folder, use_log=use_log)
        graph = Graph.from_fst(hclg, is_emptied=True)
        graph = remove_input_symbols(graph, symbols)
        graph = remove_epsilons_locally(graph)
        graph = minimize_encoded(graph)
        return add_self_loops(
            graph, self._model, self_loop_scale=self._scales.self_loop_scale
        )

    def _compose_context(
        self, lg: kaldifst.StdVectorFst
    ) -> tuple[Graph, list[list[int]]]:
        """Return C o lg, connected, and what its input labels stand for."""
        clg, windows = kaldifst.compose_context(
            self.lang.disambig_phones,
            self._tree.context_width,
            self._tree.central_position,
            lg,
        )
        _log_size("CLG", clg)
        return connect(Graph.from_fst(clg, is_emptied=True)), windows


def compose_lexicon_grammar(
    lexicon: kaldifst.StdVectorFst,
    grammar: kaldifst.StdVectorFst,
    *,
    file: str | Path | None = None,
) -> kaldifst.StdVectorFst:
    """Make LG: determinized, minimized, pushed, sorted by input label.

    Args:
        lexicon: L with disambiguation symbols; its arcs are sorted here if need be.
        grammar: G.
        file: the grammar's file, for messages.

    Raises:
        UserError: they have no word sequence in common, or the result cannot be
            determinized.
    """
    kaldifst.arcsort(lexicon, "olabel")
    kaldifst.arcsort(grammar, "ilabel")
    lg = _vector(kaldifst.compose(lexicon, grammar))
    _determinize(lg, "L o G", file)
    graph = connect(Graph.from_fst(lg, is_emptied=True))
    _require_paths(graph, "lexicon and grammar", file)
    lg = push_special(minimize_encoded(graph)).to_fst()
    kaldifst.arcsort(lg, "ilabel")
    _log_size("LG", lg)
    return lg


def _back_off_once(
    lexicon: kaldifst.StdVectorFst, back_off: int
) -> kaldifst.StdVectorFst:
    """Return L with arcs of #0 that lead on where there were loops.

    Loops would make HCL indeterminable where phones in context have a common HMM: words
    of one phone each, distinguished by the next one only, and any number of #0.
    """
    graph = Graph.from_fst(lexicon)
    source = graph.sources()
    is_loop = (graph.olabel == back_off) & (graph.next_state == source)
    ends = source[is_loop]
    behind = np.full(graph.num_states, -1, np.int32)
    behind[ends] = graph.num_states + np.arange(len(ends), dtype=np.int32)
    first = np.array(graph.arcs)
    first["next_state"][is_loop] = behind[ends]
    again = (behind[source] >= 0) & ~is_loop
    return Graph.from_arc_list(
        graph.start,
        np.concatenate([source, behind[source[again]]]),
        np.concatenate([first, graph.arcs[again]]),
        np.concatenate([graph.final, graph.final[ends]]),
    ).to_fst()


def _vector(fst: kaldifst.StdFst) -> kaldifst.StdVectorFst:
    """Return the same FST as the type that kaldifst's functions take."""
    return fst if isinstance(fst, kaldifst.StdVectorFst) else kaldifst.StdVectorFst(fst)


def _read_fst(path: str | Path) -> kaldifst.StdVectorFst:
    """Read an FST file of either type, checked."""
    return Graph.load(path).to_fst()


def _log_size(name: str, fst: kaldifst.StdVectorFst) -> None:
    log.debug("%s: %d states", name, fst.num_states)


def _require_paths(graph: Graph, what: str, file: str | Path | None) -> None:
    if graph.start < 0:
        raise UserError(
            f"{what} have no word sequence in common: the graph is empty",
            file=file,
            remedy="make both from the same words.txt and phones.txt",
        )


def _determinize(
    fst: kaldifst.StdVectorFst,
    name: str,
    file: str | Path | None,
    *,
    use_log: bool = True,
) -> None:
    """Determinize in the log or tropical semiring, in place; bounded.

    Epsilons are removed.

    Source: Kaldi `fstdeterminizestar --use-log=true`.
    """
    bound = max(_MIN_BOUND, _MAX_GROWTH * fst.num_states)
    fault = None
    try:
        if kaldifst.determinize_star(fst, max_states=bound, use_log=use_log):
            fault = f"determinization did not end within {bound} states"
    except RuntimeError as error:
        fault = f"determinization failed: {str(error).strip().splitlines()[-1]}"
    if fault:
        raise UserError(
            f"{name}: {fault}",
            file=file,
            remedy="the usual reasons: two words with the same pronunciation and no "
            "disambiguation symbol, a pronunciation without phones, or a grammar with "
            "an epsilon cycle; make the lang directory and G again",
        )


def load_model(model_dir: str | Path) -> tuple[ContextDependency, TransitionModel]:
    """Read the tree and the head of the model in a folder.

    Raises:
        UserError: `tree` or `final.mdl` is missing or garbled, or they do not have the
            same pdfs.
    """
    folder = Path(model_dir)
    tree = ContextDependency.load(folder / "tree")
    model = TransitionModel.load(folder / "final.mdl")
    if tree.num_pdfs != model.num_pdfs:
        raise UserError(
            f"{model.num_pdfs} pdfs, but the tree beside it has {tree.num_pdfs}",
            file=folder / "final.mdl",
            remedy="take all files of a folder from one training",
        )
    return tree, model


def make_graph(
    lang_dir: Path,
    grammar: Path,
    model_dir: Path,
    graph: Path,
    *,
    options: GraphOptions,
    sentences: Sentences = "one",
    composition: Composition = "static",
) -> None:
    """Build HCLG, or its parts HCL and G, and write it (stage).

    Args:
        lang_dir: lang directory.
        grammar: G.
        model_dir: folder with `final.mdl` and `tree`.
        graph: where to write, see `save_graph`.
        options: scales.
        sentences: that an utterance may hold, see `latflow.graphs.sentences`.
        composition: `lookahead` writes HCL and, behind it, G: see
            `latflow.decode.composition`.

    Raises:
        UserError: as `build_hclg`; or the disk is full.
    """
    began = time.monotonic()
    if composition == "lookahead":
        lang = Lang.load(lang_dir)
        hcl = HclgComposer(lang, *load_model(model_dir), options).compose_lexicon()
        if sentences == "several":
            hcl = let_sentences_follow(hcl, lang.word_ids[SENTENCE_END])
        facts = {"composition": composition, "sentences": sentences}
        save_graph([hcl, Graph.load(grammar)], graph, options, facts, began)
        return
    hclg = build_hclg(lang_dir, grammar, *load_model(model_dir), options)
    if sentences == "several":
        hclg = let_sentences_follow(hclg)
    facts = {
        "input_epsilons": int(hclg.num_input_epsilons.sum()),
        "sentences": sentences,
    }
    save_graph([hclg], graph, options, facts, began)


def save_graph(
    parts: Sequence[Graph],
    path: Path,
    scales: GraphOptions,
    facts: Mapping[str, Any],
    began: float,
) -> None:
    """Write a graph as aligned OpenFst `const` FSTs, which decoders map into memory.

    Args:
        parts: HCLG, or HCL and G, which then stand one behind the other.
        path: where to write; `<path without .fst>.json` gets counts and scales.
        scales: of the transition probabilities.
        facts: further facts for the second file.
        began: when the work began, as `time.monotonic` has it.

    Raises:
        UserError: the disk is full.
    """
    Graph.save_all(parts, path, is_aligned=True)
    known = {
        "states": sum(part.num_states for part in parts),
        "arcs": sum(part.num_arcs for part in parts),
        "final_states": parts[0].num_final_states,
        "transition_scale": scales.transition_scale,
        "self_loop_scale": scales.self_loop_scale,
        **facts,
        "seconds": round(time.monotonic() - began, 3),
    }
    write_json(path.with_suffix(".json"), known)
