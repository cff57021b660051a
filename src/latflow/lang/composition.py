"""HCLG: the decoding graph of a language, a grammar and an acoustic model.

    LG    min(det(L o G)), pushed      words of the grammar as phones
    CLG   C o LG                       phones in context
    HCLG  self-loops(min(det(H o CLG)))  transition-ids

L carries disambiguation symbols, which make the lexicon determinisable; they travel
through C and H and become epsilon at the end. Path weights are costs.

Public: `build_hclg`, `make_graph` (stage), `compose_lexicon_grammar`.

Source: Kaldi `utils/mkgraph.sh`, step for step; Mohri, Pereira, Riley 2002, "Weighted
finite-state transducers in speech recognition".
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import kaldifst

from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.fst.graph import Graph
from latflow.fst.optimise import (
    push_special,
    remove_epsilons_locally,
    remove_input_symbols,
)
from latflow.hmm.transducer import add_self_loops, h_transducer
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.kaldi_io import KaldiReader
from latflow.lang.directory import Lang

log = logging.getLogger(__name__)

# Determinisation of a graph that cannot be determinised never ends. A determinised
# graph is hardly ever larger than its source; these bounds leave room where it is.
_MAX_GROWTH = 10
_MIN_BOUND = 1_000_000  # states


def build_hclg(
    lang_dir: str | Path,
    grammar: str | Path,
    tree: ContextDependency,
    model: TransitionModel,
    *,
    transition_scale: float = 1.0,
    self_loop_scale: float = 0.1,
) -> Graph:
    """Compose the decoding graph.

    Args:
        lang_dir: lang directory; `L_disambig.fst` and `phones/disambig.int` are used.
        grammar: G, an acceptor of words (epsilon arcs of back-off have input #0).
        tree: the tree; gives the context width.
        model: the transition model of the same system.
        transition_scale: factor on the log-probabilities of transitions between HMM
            states, given that the state is left.
        self_loop_scale: factor on the log-probabilities of staying and of leaving.

    Returns:
        HCLG: input labels transition-ids, output labels words.

    Raises:
        UserError: a file is missing; lexicon and grammar have no word sequence in
            common; or lexicon or grammar cannot be determinised.
    """
    lang = Lang.load(lang_dir)
    lexicon = _read_fst(Path(lang_dir) / "L_disambig.fst")
    lg = compose_lexicon_grammar(lexicon, _read_fst(grammar), file=grammar)
    clg, ilabels = kaldifst.compose_context(
        lang.disambig_phones, tree.context_width, tree.central_position, lg
    )
    kaldifst.arcsort(clg, "ilabel")
    _log_size("CLG", clg)
    h, disambig_tids = h_transducer(
        ilabels, tree, model, transition_scale=transition_scale
    )
    hclg = _vector(kaldifst.compose(h, clg))
    _require_paths(hclg, "language directory and acoustic model", lang_dir)
    del h, clg
    _determinise(hclg, "H o C o L o G", lang_dir)
    reduced = remove_epsilons_locally(
        remove_input_symbols(Graph.from_fst(hclg), disambig_tids)
    ).to_fst()
    kaldifst.minimize_encoded(reduced)
    graph = add_self_loops(
        Graph.from_fst(reduced), model, self_loop_scale=self_loop_scale
    )
    log.info("HCLG: %d states, %d arcs", graph.num_states, graph.num_arcs)
    return graph


def compose_lexicon_grammar(
    lexicon: kaldifst.StdVectorFst,
    grammar: kaldifst.StdVectorFst,
    *,
    file: str | Path | None = None,
) -> kaldifst.StdVectorFst:
    """Make LG: determinised, minimised, pushed, sorted by input label.

    Args:
        lexicon: L with disambiguation symbols; its arcs are sorted here if need be.
        grammar: G.
        file: the grammar's file, for messages.

    Raises:
        UserError: they have no word sequence in common, or the result cannot be
            determinised.
    """
    kaldifst.arcsort(lexicon, "olabel")
    kaldifst.arcsort(grammar, "ilabel")
    lg = _vector(kaldifst.compose(lexicon, grammar))
    _require_paths(lg, "lexicon and grammar", file)
    _determinise(lg, "L o G", file)
    kaldifst.minimize_encoded(lg)
    lg = push_special(Graph.from_fst(lg)).to_fst()
    kaldifst.arcsort(lg, "ilabel")
    _log_size("LG", lg)
    return lg


def _vector(fst: kaldifst.StdFst) -> kaldifst.StdVectorFst:
    """The same FST as the type that kaldifst's functions take."""
    return fst if isinstance(fst, kaldifst.StdVectorFst) else kaldifst.StdVectorFst(fst)


def _read_fst(path: str | Path) -> kaldifst.StdVectorFst:
    """Read an FST file of either type, checked."""
    return Graph.load(path).to_fst()


def _log_size(name: str, fst: kaldifst.StdVectorFst) -> None:
    log.info("%s: %d states", name, fst.num_states)


def _require_paths(
    fst: kaldifst.StdVectorFst, what: str, file: str | Path | None
) -> None:
    if fst.start < 0 or not fst.num_states:
        raise UserError(
            f"{what} have no word sequence in common: the graph is empty",
            file=file,
            remedy="make both from the same words.txt and phones.txt",
        )


def _determinise(
    fst: kaldifst.StdVectorFst, name: str, file: str | Path | None
) -> None:
    """Determinise in the log semiring, removing epsilons, in place; bounded.

    Source: Kaldi `fstdeterminizestar --use-log=true`.
    """
    bound = max(_MIN_BOUND, _MAX_GROWTH * fst.num_states)
    fault = None
    try:
        if kaldifst.determinize_star(fst, max_states=bound, use_log=True):
            fault = f"determinisation did not end within {bound} states"
    except RuntimeError as error:
        fault = f"determinisation failed: {str(error).strip().splitlines()[-1]}"
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
        UserError: `tree` or `final.mdl` is missing or garbled.
    """
    folder = Path(model_dir)
    tree = ContextDependency.load(folder / "tree")
    with KaldiReader.open(folder / "final.mdl") as reader:
        return tree, TransitionModel.read(reader)


def make_graph(
    lang_dir: str | Path,
    grammar: str | Path,
    model_dir: str | Path,
    out_fst: str | Path,
    *,
    transition_scale: float,
    self_loop_scale: float,
) -> None:
    """Build HCLG and write it, with its size beside it in a `.json` file (stage).

    The file is an aligned OpenFst `const` FST, which decoders map into memory.

    Args:
        lang_dir: lang directory.
        grammar: G.
        model_dir: folder with `final.mdl` and `tree`.
        out_fst: where to write; `<out_fst without .fst>.json` gets counts and scales.
        transition_scale: as in `build_hclg`.
        self_loop_scale: as in `build_hclg`.

    Raises:
        UserError: as `build_hclg`; or the disk is full.
    """
    began = time.monotonic()
    tree, model = load_model(model_dir)
    graph = build_hclg(
        lang_dir,
        grammar,
        tree,
        model,
        transition_scale=transition_scale,
        self_loop_scale=self_loop_scale,
    )
    target = Path(out_fst)
    graph.save(target, is_aligned=True)
    facts = {
        "states": graph.num_states,
        "arcs": graph.num_arcs,
        "final_states": graph.num_final_states,
        "input_epsilons": int(graph.num_input_epsilons.sum()),
        "transition_scale": transition_scale,
        "self_loop_scale": self_loop_scale,
        "seconds": round(time.monotonic() - began, 3),
    }
    with atomic_output(target.with_suffix(".json")) as temporary:
        temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


__all__: Sequence[str] = (
    "build_hclg",
    "compose_lexicon_grammar",
    "load_model",
    "make_graph",
)
