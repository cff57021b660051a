"""Training graphs by kaldifst's general operations: the slow twin of lang.graphs."""

import kaldifst

from latflow.fst.graph import Graph
from latflow.fst.optimize import remove_input_symbols
from latflow.hmm.transducer import add_self_loops, h_transducer


def compile_training_graph(lang, tree, model, words, *, scales=(0.0, 0.0)) -> Graph:
    """Kaldi's CompileGraphFromText, operation by operation."""
    transition_scale, self_loop_scale = scales
    lexicon = Graph.load(lang.folder / "L.fst").to_fst()
    kaldifst.arcsort(lexicon, "olabel")
    phones = kaldifst.compose(lexicon, kaldifst.make_linear_acceptor(words))
    context, ilabels = kaldifst.compose_context(
        lang.disambig_phones,
        tree.context_width,
        tree.central_position,
        kaldifst.StdVectorFst(phones),
    )
    kaldifst.arcsort(context, "ilabel")
    h, disambig = h_transducer(ilabels, tree, model, transition_scale=transition_scale)
    graph = kaldifst.StdVectorFst(kaldifst.compose(h, context))
    assert not kaldifst.determinize_star(graph, use_log=True)
    graph = remove_input_symbols(Graph.from_fst(graph), disambig).to_fst()
    kaldifst.minimize_encoded(graph)
    return add_self_loops(Graph.from_fst(graph), model, self_loop_scale=self_loop_scale)
