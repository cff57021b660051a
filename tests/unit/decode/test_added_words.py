"""Words added to a composed graph, beside a lexicon that has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from latflow.decode.added_words import pronounced
from latflow.decode.composed_graph import GraphParts, SessionParts
from latflow.decode.decoder import LatticeDecoder
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.graphs.hclg import HclgComposer
from latflow.graphs.options import ChainGraphOptions
from latflow.graphs.sentences import let_sentences_follow
from latflow.hmm.topology import chain_topology
from latflow.hmm.transducer import HmmCache
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang
from latflow.lang.grammar import UNKNOWN_WORD, grammar_graph
from latflow.lang.lexicon import Pronunciation
from latflow.lang.ngram import estimate
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


@pytest.fixture(scope="module", params=["marked", "unmarked", "several sentences"])
def systems(request, tmp_path_factory):
    """(language, decoder) with the words in the lexicon, and with them added."""
    folder, marked = tmp_path_factory.mktemp("words"), request.param != "unmarked"
    whole = make_language(folder / "whole", KNOWN | NEW, is_marked=marked)
    lang = make_language(folder / "base", KNOWN, is_marked=marked)
    classes = dict.fromkeys(lang.topology.phones, 2)
    tree = ContextDependency.full_biphone(lang.phone_sets, classes, [])
    model = TransitionModel.from_tree(tree, lang.topology)

    def parts(lang, grammar):
        hcl = HclgComposer(lang, tree, model, ChainGraphOptions()).compose_lexicon()
        end = lang.word_ids["</s>"]
        if request.param == "several sentences":
            hcl = let_sentences_follow(hcl, end)
        return GraphParts.of(hcl, grammar, None, sentence_end=end)

    own = parts(lang, grammar(lang, list(KNOWN)))
    assert bool(own.back_off) == marked
    decoder = LatticeDecoder(replace(own, model=model), model.pdf, **NO_BEAM)
    hmms = HmmCache(tree, model)

    def compose(lang, grammar):
        """Return the decoder of a grammar, composed by its definition."""
        own = replace(parts(lang, grammar), model=model)
        return LatticeDecoder(own, model.pdf, **NO_BEAM)

    return (whole, compose), model.num_pdfs, (lang, decoder, hmms)


def with_words(system, words, **own):
    """Return language and decoder with words."""
    lang, decoder, hmms = system
    entries = [Pronunciation(w, tuple(phones.split())) for w, phones in words.items()]
    lang = lang.with_words(entries)
    like = {
        new: tuple(sorted(lang.word_ids[word] for word in known))
        for new, known in own.pop("like", {}).items()
    }
    own = {key: value(lang) for key, value in own.items()}
    parts = SessionParts(pronounced(lang, entries, like=like), **own)
    return lang, decoder.with_parts(parts, hmms)


def with_class(lang, plain, new, members):
    """G with the words of a class of members, worked out word by word."""
    listed = [{} for _ in range(plain.num_states)]
    for source, arc in zip(plain.sources(), plain.arcs, strict=True):
        listed[source][int(arc["olabel"])] = arc
    ends = np.exp(-plain.final)

    def probability(state, word):
        if word in listed[state]:
            return np.exp(-float(listed[state][word]["weight"]))
        if 0 not in listed[state]:
            return 0.0
        back = listed[state][0]
        return np.exp(-float(back["weight"])) * probability(back["next_state"], word)

    ids = [lang.word_ids[word] for word in members]
    behind = plain.num_states
    arcs = [(s, tuple(a)) for s, a in zip(plain.sources(), plain.arcs, strict=True)]
    for state, own in enumerate(listed):
        if set(ids) & set(own):
            cost = -np.log(np.mean([probability(state, word) for word in ids]))
            for word in new:
                number = lang.word_ids[word]
                arcs.append((state, (number, number, cost, behind)))
    histories = [int(listed[0][word]["next_state"]) for word in ids]
    back = [np.exp(-float(listed[h][0]["weight"])) for h in histories]
    for word in {word for h in histories for word in listed[h]} - {0}:
        cost = -np.log(np.mean([probability(h, word) for h in histories]))
        arcs.append((behind, (word, word, cost, listed[0][word]["next_state"])))
    if any(set(ids) & set(listed[h]) for h in histories):
        own = [np.mean([probability(h, word) for word in ids]) for h in histories]
        for word in new:
            number = lang.word_ids[word]
            arcs.append((behind, (number, number, -np.log(np.mean(own)), behind)))
    number = lang.word_ids["#0"]
    arcs.append((behind, (number, 0, -np.log(np.mean(back)), 0)))
    final = np.append(plain.final, -np.log(np.mean(ends[histories])))
    source, rows = zip(*arcs, strict=True)
    return Graph.from_arc_list(
        0, np.array(source), np.array(list(rows), ARC), final.astype("f4")
    )


def best(system, scores):
    """Return the words and the cost of the best path."""
    lang, decoder = system
    lattice = decoder.decode(scores, acoustic_scale=1.0).lattice
    path = best_paths(lattice, [Scales()])[0]
    words = [lang.words[word] for word in path.words]
    return words, path.graph_cost + path.acoustic_cost


def compare(reference, own, num_pdfs):
    """Compare two systems on random scores; return the words that were found."""
    found = set()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        scores = rng.normal(scale=3.0, size=(14, num_pdfs)).astype(np.float32)
        words, cost = best(reference, scores)
        own_words, own_cost = best(own, scores)
        assert own_words == words
        assert own_cost == pytest.approx(cost, abs=2e-3)
        found |= set(words)
    return found


def test_added_words_are_as_good_as_those_of_the_lexicon(systems):
    (whole, compose), num_pdfs, system = systems
    reference = whole, compose(whole, grammar(whole, list(KNOWN), list(NEW)))
    added = with_words(
        system, NEW, grammar=lambda lang: grammar(lang, list(KNOWN), list(NEW))
    )
    assert set(NEW) <= compare(reference, added, num_pdfs)


@pytest.mark.parametrize(
    "like",
    [
        dict.fromkeys(NEW, ("ab", "bad", "dc")),
        {"dab": ("ab", "bad"), "dac": ("ab", "bad"), "bcd": ("d",), "acda": ("d",)},
    ],
    ids=["one class", "two classes"],
)
def test_added_words_stand_where_words_like_them_do(systems, like):
    (whole, compose), num_pdfs, system = systems
    expected = grammar(whole, list(KNOWN))
    for members in sorted(set(like.values())):
        new = [word for word in NEW if like[word] == members]
        expected = with_class(whole, expected, new, members)
    added = with_words(system, NEW, like=like)
    found = compare((whole, compose(whole, expected)), added, num_pdfs)
    assert len(set(NEW) & found) >= 3


def trigrams(lang):
    """G of sentences of known words, drawn at random."""
    rng = np.random.default_rng(3)
    sentences = [rng.choice([*KNOWN], rng.integers(1, 6)).tolist() for _ in range(60)]
    return grammar_graph(estimate(sentences, 3, vocabulary=KNOWN), lang.word_ids)


def with_word_beside(plain, new, known):
    """G where a word, by its id, has all n-grams of another one."""
    own = plain.arcs[plain.olabel == known].copy()
    own["ilabel"] = own["olabel"] = new
    source = np.append(plain.sources(), plain.sources()[plain.olabel == known])
    arcs = np.append(plain.arcs, own)
    return Graph.from_arc_list(plain.start, source, arcs, plain.final)


def test_a_word_that_is_like_one_alone_has_its_n_grams(systems):
    (whole, compose), num_pdfs, (lang, _, hmms) = systems
    like = {"dab": ("ab",), "bcd": ("d",), "dac": ("ab",)}
    expected, ids = trigrams(whole), whole.word_ids
    for new, (known,) in like.items():
        expected = with_word_beside(expected, ids[new], ids[known])
    words = {new: NEW[new] for new in like}
    decoder = compose(lang, trigrams(lang))
    added = with_words((lang, decoder, hmms), words, like=like)
    found = compare((whole, compose(whole, expected)), added, num_pdfs)
    assert len(set(NEW) & found) >= 2


def test_unknown_words_of_the_model_are_left_to_added_ones(systems):
    (_, compose), num_pdfs, (lang, _, hmms) = systems
    plain, ids = compose(lang, trigrams(lang)), lang.word_ids
    like = next(ids[word] for word in KNOWN if plain.composed.expects(ids[word]))
    decoder = compose(lang, with_word_beside(trigrams(lang), UNKNOWN_WORD, like))
    assert decoder.composed.expects(UNKNOWN_WORD)
    assert not plain.composed.expects(UNKNOWN_WORD)
    # None is found where no words are added, and nothing else is changed.
    assert compare((lang, plain), (lang, decoder), num_pdfs) <= {*KNOWN}
    entry = Pronunciation("dab", tuple(NEW["dab"].split()))
    longer = lang.with_words([entry])

    def added(decoder, like):
        words = pronounced(longer, [entry], like={"dab": (like,)})
        return longer, decoder.with_parts(SessionParts(words), hmms)

    reference = added(plain, like)
    assert "dab" in compare(reference, added(decoder, UNKNOWN_WORD), num_pdfs)


def test_another_grammar_is_as_if_it_had_been_there_before(systems):
    (_, compose), num_pdfs, (lang, decoder, _) = systems
    other = grammar(lang, ["d", "ba", "eb"])
    own = lang, decoder.with_parts(SessionParts(grammar=other), None)
    found = compare((lang, compose(lang, other)), own, num_pdfs)
    assert found == {"d", "ba", "eb"}


def test_phrases_are_worth_their_boost(systems, request):
    _, num_pdfs, (lang, decoder, _) = systems
    phrases = {("ab", "d"): 1.5, ("d", "d", "ba"): 0.5, ("d",): 0.25}
    # A phrase ends with its sentence, and words alone do not tell where that is.
    is_several = request.node.callspec.params["systems"] == "several sentences"
    sure = {p: b for p, b in phrases.items() if len(p) == 1 or not is_several}
    ids = {
        tuple(lang.word_ids[word] for word in phrase): boost
        for phrase, boost in phrases.items()
    }
    favoured = lang, decoder.with_parts(SessionParts(phrases=ids), None)
    num_better = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        scores = rng.normal(scale=2.0, size=(12, num_pdfs)).astype(np.float32)
        plain_words, plain_cost = best((lang, decoder), scores)
        words, cost = best(favoured, scores)
        assert plain_cost - worth(words, phrases) - 1e-3 <= cost
        assert cost <= plain_cost - worth(plain_words, sure) + 1e-3
        num_better += worth(words, phrases) > worth(plain_words, phrases)
    assert num_better


def worth(words, phrases):
    """Return what all occurrences of phrases are worth."""
    return sum(
        boost * len(phrase)
        for phrase, boost in phrases.items()
        for at in range(len(words))
        if tuple(words[at : at + len(phrase)]) == phrase
    )


def test_a_word_may_end_with_a_phone_that_ends_no_other(systems):
    *_, system = systems
    hmms = system[2]
    lang, decoder = with_words(system, {"ce": "c e"})
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
