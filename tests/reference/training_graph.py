"""Graphs by kaldifst's general operations: slow twins of ours."""

import kaldifst
import numpy as np

from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.fst.optimize import remove_input_symbols
from latflow.hmm.transducer import HmmCache, add_self_loops


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
    cache = HmmCache(tree, model, transition_scale)
    h, disambig = h_transducer(ilabels, cache)
    graph = kaldifst.StdVectorFst(kaldifst.compose(h, context))
    assert not kaldifst.determinize_star(graph, use_log=True)
    graph = remove_input_symbols(Graph.from_fst(graph), disambig).to_fst()
    kaldifst.minimize_encoded(graph)
    return add_self_loops(Graph.from_fst(graph), model, self_loop_scale=self_loop_scale)


def h_transducer(windows, cache):
    """(H, olabel-sorted; its disambiguation symbols): Kaldi's GetHTransducer.

    One state from which the HMM of each label starts and to which it returns.
    """
    rows, disambig, entries, num_states = [], [], {}, 1
    for label, window in enumerate(windows):
        if label == 0:
            continue
        if len(window) == 1 and window[0] <= 0:
            disambig.append(cache.model.num_transition_ids + 1 + len(disambig))
            rows += [
                (0, disambig[-1], label, 0.0, num_states),
                (num_states, 0, 0, 0.0, 0),
            ]
            num_states += 1
            continue
        number = cache.index(window)
        if number not in entries:
            hmm = cache.hmms[number]
            entries[number] = num_states
            rows += [
                (num_states + source, tid, 0, cost, num_states + target)
                for source, tid, cost, target in hmm.arcs
            ]
            num_states += hmm.num_states
            rows.append((num_states - 1, 0, 0, 0.0, 0))
        rows.append((0, 0, label, 0.0, entries[number]))
    final = np.full(num_states, np.inf, np.float32)
    final[0] = 0.0
    sources = np.array([row[0] for row in rows])
    arcs = np.array([row[1:] for row in rows], ARC)
    fst = Graph.from_arc_list(0, sources, arcs, final).to_fst()
    kaldifst.arcsort(fst, "olabel")
    return fst, disambig
