"""Words added to a composed graph, beside a lexicon that has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from latflow.decode.added_words import pronounced
from latflow.decode.composed_graph import GraphParts
from latflow.decode.decoder import LatticeDecoder
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.graphs.hclg import HclgComposer
from latflow.graphs.options import ChainGraphOptions
from latflow.hmm.topology import chain_topology
from latflow.hmm.transducer import HmmCache
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang
from latflow.lang.lexicon import Pronunciation
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang
from latflow.lattice.best_path import Scales, best_paths

NO_BEAM = {"beam": 1e9, "lattice_beam": 1e9, "max_active": 10**9, "min_active": 0}
KNOWN = {
    "ab": "a b",
    "ba": "b a",
    "cab": "c a b",
    "d": "d",
    "bad": "b a d",
    "dc": "d c",
    "eb": "e b",
}
NEW = {"dab": "d a b", "dac": "d a c", "bcd": "b c d", "acda": "a c d a"}
COST = 1.5  # of a word without a history


def make_language(folder, words, *, is_marked=True):
    """Make a lang directory whose phones have HMMs of one state."""
    folder.mkdir()
    lexicon = folder / "lexicon.txt"
    lines = [f"{word} {phones}\n" for word, phones in words.items()]
    lexicon.write_text("".join([*lines, "<SIL> SIL\n", "<UNK> SPN\n"]))
    make_lang(lexicon, folder / "lang", options=LangOptions())
    lang = Lang.load(folder / "lang")
    if not is_marked:
        path = folder / "lang/L_disambig.fst"
        fst = Graph.load(path)
        kept = fst.olabel != lang.word_ids["#0"]
        graph = Graph.from_arc_list(
            fst.start, fst.sources()[kept], fst.arcs[kept], fst.final
        )
        graph.to_fst().write(str(path))
    phones = [*lang.silence_phones, *lang.nonsilence_phones]
    return replace(lang, topology=chain_topology(phones))


def grammar(lang, known, new=()):
    """G: bigrams of known words that back off; others without a history alone."""
    back_off = lang.word_ids["#0"]
    rng = np.random.default_rng(5)
    arcs, source = [], []
    for n, word in enumerate(known, start=1):
        number = lang.word_ids[word]
        arcs.append((number, number, COST, n))
        source.append(0)
        arcs.append((back_off, 0, float(rng.uniform(0.2, 1)), 0))
        source.append(n)
        for other in rng.choice(len(known), 2, replace=False):
            follower = lang.word_ids[known[other]]
            arcs.append((follower, follower, float(rng.uniform(0, 2)), int(other) + 1))
            source.append(n)
    for word in new:
        number = lang.word_ids[word]
        arcs.append((number, number, COST, 0))
        source.append(0)
    final = np.full(len(known) + 1, 0.5, np.float32)
    return Graph.from_arc_list(0, np.array(source), np.array(arcs, ARC), final)


@pytest.fixture(scope="module", params=[True, False], ids=["marked", "unmarked"])
def systems(request, tmp_path_factory):
    """(language, decoder) with the words in the lexicon, and with them added."""
    folder, marked = tmp_path_factory.mktemp("words"), request.param
    whole = make_language(folder / "whole", KNOWN | NEW, is_marked=marked)
    lang = make_language(folder / "base", KNOWN, is_marked=marked)
    classes = dict.fromkeys(lang.topology.phones, 2)
    tree = ContextDependency.full_biphone(lang.phone_sets, classes, [])
    model = TransitionModel.from_tree(tree, lang.topology)

    def parts(lang, new):
        hcl = HclgComposer(lang, tree, model, ChainGraphOptions()).compose_lexicon()
        found = GraphParts.of(hcl, grammar(lang, list(KNOWN), new), None)
        assert bool(found.back_off) == marked
        return found

    reference = LatticeDecoder(parts(whole, list(NEW)), model.pdf, **NO_BEAM)
    decoder = LatticeDecoder(
        replace(parts(lang, []), model=model), model.pdf, **NO_BEAM
    )
    hmms = HmmCache(tree, model)
    added = with_words(lang, decoder, hmms, NEW)
    return (whole, reference), added, model.num_pdfs, (lang, decoder, hmms)


def with_words(lang, decoder, hmms, words):
    """Return language and decoder with words."""
    entries = [Pronunciation(w, tuple(phones.split())) for w, phones in words.items()]
    lang = lang.with_words(entries)
    return lang, decoder.with_words(pronounced(lang, entries), hmms)


def best(system, scores):
    """Return the words and the cost of the best path."""
    lang, decoder = system
    lattice = decoder.decode(scores, acoustic_scale=1.0).lattice
    path = best_paths(lattice, [Scales()])[0]
    words = [lang.words[word] for word in path.words]
    return words, path.graph_cost + path.acoustic_cost


def test_added_words_are_as_good_as_those_of_the_lexicon(systems):
    reference, added, num_pdfs, _ = systems
    found = set()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        scores = rng.normal(scale=3.0, size=(14, num_pdfs)).astype(np.float32)
        words, cost = best(reference, scores)
        own, own_cost = best(added, scores)
        assert own == words
        assert own_cost == pytest.approx(cost, abs=2e-3)
        found |= set(words)
    assert set(NEW) <= found


def test_a_word_may_end_with_a_phone_that_ends_no_other(systems):
    *_, (lang, decoder, hmms) = systems
    lang, decoder = with_words(lang, decoder, hmms, {"ce": "c e"})
    most = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        scores = rng.normal(size=(14, hmms.model.num_pdfs)).astype(np.float32)
        # The best pdfs are those of c behind e, and of e behind c.
        for before, phone in (("c_B", "e_E"), ("e_E", "c_B")):
            window = lang.phone_ids[before], lang.phone_ids[phone]
            for pdf_class in range(2):
                scores[:, hmms.tree.pdf(window, pdf_class)] += 9.0
        words, _ = best((lang, decoder), scores)
        assert set(words) == {"ce"}
        most = max(most, len(words))
    assert most >= 2
