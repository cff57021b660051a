"""Grammars of sessions: lists of phrases, JSGF; what they accept, by listing it."""

import itertools
import json
import math
import tracemalloc

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.lang.directory import Lang
from latflow.lang.jsgf import read_jsgf
from latflow.lang.lm_trie import LmTrie
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang
from latflow.lang.session_grammar import (
    GrammarWords,
    _deterministic,
    bigram_grammar,
    read_grammar,
)

WORDS = ["turn", "on", "off", "the", "lamp", "please", "don't", "naïve"]


@pytest.fixture(scope="module")
def lang(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lang")
    lines = [f"{word} a b\n" for word in WORDS]
    (folder / "lexicon.txt").write_text("".join([*lines, "<SIL> SIL\n", "<UNK> SPN\n"]))
    make_lang(folder / "lexicon.txt", folder / "lang", options=LangOptions())
    return Lang.load(folder / "lang")


def sentences(graph: Graph, most: int, lang=None) -> dict[str, float]:
    """Return the sentences of so many words at most that an acceptor has, with costs.

    Epsilons may be taken anywhere.
    """
    arcs = [[] for _ in range(graph.num_states)]
    for source, arc in zip(graph.sources(), graph.arcs, strict=True):
        arcs[source].append(
            (int(arc["olabel"]), float(arc["weight"]), int(arc["next_state"]))
        )
    found: dict[str, float] = {}
    best: dict[tuple[int, tuple[int, ...]], float] = {}
    todo = [(graph.start, (), 0.0)]
    while todo:
        state, words, cost = todo.pop()
        if best.get((state, words), math.inf) <= cost:
            continue
        best[state, words] = cost
        if np.isfinite(graph.final[state]):
            key = " ".join(lang.words[w] if lang else str(w) for w in words)
            found[key] = min(found.get(key, math.inf), cost + float(graph.final[state]))
        for word, weight, to in arcs[state]:
            longer = (*words, word) if word else words
            if len(longer) <= most:
                todo.append((to, longer, cost + weight))
    return found


def jsgf(rules, lang):
    return read_grammar(f"#JSGF V1.0;\ngrammar lamps;\n{rules}", lang)


def test_rules_become_all_that_they_say(lang):
    graph = jsgf(
        """// a comment
        public <command> = [please] turn (on | off) <thing> { lamp = "\\}"; };
        <thing> = the lamp /* and no other */;""",
        lang,
    )
    every = {
        f"{please}turn {way} the lamp"
        for please in ("", "please ")
        for way in ("on", "off")
    }
    costs = sentences(graph, 9, lang)
    assert costs.keys() == {"", *every}
    assert costs[""] == pytest.approx(math.log(2), abs=2e-3)
    for sentence in every:  # nothing or a command; please or not; on or off
        assert costs[sentence] == pytest.approx(3 * math.log(2), abs=2e-3)


def test_weights_are_relative(lang):
    costs = sentences(
        jsgf("public <x> = /3/ on | /1.0/ off | /0/ lamp;", lang), 3, lang
    )
    assert costs["on"] == pytest.approx(math.log(2) - math.log(0.75), abs=2e-3)
    assert costs["off"] == pytest.approx(math.log(2) - math.log(0.25), abs=2e-3)
    assert "lamp" not in costs


@pytest.mark.parametrize(
    ("rules", "accepted"),
    [
        ("public <x> = on*;", {"", "on", "on on", "on on on"}),
        ("public <x> = (on off)+;", {"", "on off"}),
        ("public <x> = on <x> | off;", {"", "off", "on off", "on on off"}),
        ("public <x> = on <NULL> | off <VOID>;", {"", "on"}),
        ("import <other.y>; public <x> = (on off)+++;", {"", "on off"}),
        (f"public <x> = on{'+*' * 9000};", {"", "on", "on on", "on on on"}),
        ("public <x> = on; public <y> = off; <z> = lamp;", {"", "on", "off"}),
        ('public <x> = "turn on" | "don\'t";', {"", "turn on", "don't"}),
        ("public <x> = on <GARBAGE>;", {"", "on", "on <UNK>", "on <UNK> <UNK>"}),
        ("public <x> = [on [off]];", {"", "on", "on off"}),
        ("public <x> = Turn ON, don’t", {"", "turn on don't"}),
        (f"public <x> = on off{'+*' * 2000};", {"", "on", "on off", "on off off"}),
        ("// only a comment\rpublic <x> = on;", {"", "on"}),
    ],
)  # fmt: skip
def test_what_rules_accept(lang, rules, accepted):
    assert sentences(jsgf(rules, lang), 3, lang).keys() == accepted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("public <x> = on <y> = off;", "line 3: ';' is missing before '='"),
        ("public <x> = /2/ on /3/ off;", "';' is missing before '3'"),
        ("public <x> = (on;", r"'\)' is missing before ';'"),
        ("<x> = on;", "no rule is public"),
        ("public <x> = <y>;", "there is no rule <y>"),
        ("public <x> = <x> on | off;", "elsewhere than at its end"),
        ("public <x> = /-1/ on;", "'-1' is not a weight"),
        ("public <x> = on;\npublic <x> = off;", "line 4: .* comes twice"),
        ("import <other.*>; public <x> = <other.y>;", "no rule <other.y>.*imported"),
        ("public <x> =\n /* a\n */ on // b\r\n^ off > ;", "line 6: it makes no sense"),
        (f"public <x> = {'(' * 200}on{')' * 200};", "more than 100 deep"),
        (
            "public <x> = <s0>; <s60> = on;"
            + "".join(
                f"<s{n}> = {'(on ' * 9}<s{n + 1}>{'| off)' * 9};" for n in range(60)
            ),
            "nested more than 300 deep",
        ),
        ("public <x> = turn it up;", "2 words that the lexicon lacks: it, up"),
        (
            "public <r0> = on;"
            + "".join(f"<s{n}> = <s{n + 1}> on <s{n + 1}>;" for n in range(40))
            + "<s40> = on; public <y> = <s0>;",
            "larger than 200000 states",
        ),
    ],
)
def test_faulty_rules_are_refused_in_a_line(lang, text, message):
    with pytest.raises(UserError, match=message) as caught:
        jsgf(text, lang)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "#JSGF V1.0;",
        "#JSGF v1.0;",  # pocketsphinx's test/data/cards/cards.gram
        "#JSGF V1.0 UTF-8 en;",
        "#JSGF V1.0 ISO8859-1 en",
        "#JSGF V1.0\r",
        "#JSGFv1.0;",
    ],
)
def test_no_rule_is_lost_behind_the_first_line(lang, line):
    graph = read_grammar(f"{line}\n<y> = on; public <x> = <y>;", lang)
    assert sentences(graph, 2, lang).keys() == {"", "on"}


@pytest.mark.parametrize(
    "form", ['["{}", "turn"]', "#JSGF V1.0; public <x> = {} | turn;"]
)
def test_memory_grows_as_the_text_of_a_grammar_does(lang, form):
    text = form.format("on off " * 5000)
    tracemalloc.start()
    graph = read_grammar(text, lang)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert graph.num_states > 10_000
    assert peak < 1000 * len(text)


def test_a_grammar_of_too_many_ways_is_refused():
    # The word twenty words ago: a deterministic acceptor keeps all of them in mind.
    text = f"#JSGF V1.0; public <x> = (1 | 2)* 1 {'(1 | 2) ' * 20};"
    graph = read_jsgf(text, lambda words: [int(word) for word in words.split()], None)
    with pytest.raises(UserError, match="takes more than .* states"):
        _deterministic(graph)


def test_a_list_of_phrases_accepts_whole_phrases_alone(lang):
    phrases = ["turn on", "turn on the lamp", "off", "[unk]", "", "turn on"]
    spoken = ["turn on", "turn on the lamp", "off", "<UNK>"]
    costs = sentences(read_grammar(json.dumps(phrases), lang), 4, lang)
    expected = {
        " ".join(some)
        for number in range(5)
        for some in itertools.product(spoken, repeat=number)
    }
    expected = {text for text in expected if len(text.split()) <= 4}
    assert costs.keys() == expected
    assert costs["turn on off"] == pytest.approx(3 * math.log(5), abs=2e-3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["turn on", 1]', "neither a list of phrases"),
        ('{"turn": "on"}', "neither a list of phrases"),
        ("turn on", "neither a list of phrases"),
        ("[" * 100_000, "neither a list of phrases"),
        ("[]", "no phrase"),
        ('["", "..."]', "no phrase"),
        ('["turn it on"]', "1 words that the lexicon lacks: it"),
    ],
)
def test_faulty_lists_are_refused_in_a_line(lang, text, message):
    with pytest.raises(UserError, match=message):
        read_grammar(text, lang)


def test_words_are_spelled_as_transcripts_are(lang):
    words = GrammarWords(lang)
    named = [lang.words[number] for number in words.ids("TURN on, Don’t NAI\u0308VE!")]
    assert named == ["turn", "on", "don't", "naïve"]
    assert words.find("up [UNK] lamp 42") == (
        [lang.oov_id, lang.word_ids["lamp"]],
        ["up", "42"],
    )
    assert words.missing == ["up", "42"]


def test_bigrams_are_those_of_vosk():
    # Counted by hand: "1 2" and "1 3 1"; words 1 three times, 2 and 3 once, 2 ends.
    graph = bigram_grammar([[1, 2], [1, 3, 1], []])
    trie = LmTrie.from_graph(graph)

    def cost(*words):
        return trie.sentence_costs(np.array(words, np.int32)).tolist()

    def half(share):
        return -math.log(0.5 * share)

    np.testing.assert_allclose(cost(1, 2), [half(3 / 7), half(1 / 3), half(1)])
    # Behind 2 comes the end alone: else one backs off.
    np.testing.assert_allclose(
        cost(2, 3), [half(1 / 7), half(1) + half(1 / 7), half(2 / 7) + half(1)], atol=1
    )
    assert trie.sentence_costs(np.array([], np.int32))[0] == pytest.approx(half(2 / 7))
    with pytest.raises(UserError, match="no word of the list"):
        bigram_grammar([[], []])


@pytest.mark.parametrize(
    "rules",
    [
        "public <a> = <VOID>;",
        "public <a> = ;",
        "public <a> = /0/ on | /0/ off;",
        "public <a> = <VOID> on;",
        "public <a> = <a>;",
    ],
)
def test_a_grammar_by_which_nothing_can_be_said_is_refused(lang, rules):
    with pytest.raises(UserError, match="the grammar has no phrase"):
        jsgf(rules, lang)


@pytest.mark.parametrize("name", ["way", "lamps.way", "com.example.lamps.way"])
def test_rules_may_be_named_with_their_grammar(lang, name):
    text = "#JSGF V1.0;\ngrammar com.example.lamps;\n"
    text += f"public <a> = turn <{name}>;\n<way> = on;\n"
    assert sentences(read_grammar(text, lang), 3, lang).keys() == {"", "turn on"}
