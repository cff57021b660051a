"""Words, phrases and grammars that sessions bring."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from threading import Event

import httpx
import numpy as np
import pytest
from fixtures.serving_package import LEXICON, words_of
from fixtures.serving_process import pcm
from fixtures.serving_server import connect as connect_client
from fixtures.serving_server import running_server
from fixtures.waiting import PATIENCE

from latflow.cli.main import main
from latflow.decode.added_words import pronounced
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.optimize import connect
from latflow.graphs.hclg import make_graph
from latflow.graphs.options import GraphOptions
from latflow.lang.completion import train_model
from latflow.lang.directory import Lang
from latflow.lang.grammar import UNKNOWN_WORD, grammar_graph
from latflow.lang.lexicon import read_entry
from latflow.lang.ngram import estimate
from latflow.lang.options import LangOptions
from latflow.lattice.best_path import best_paths
from latflow.lattice.lattice import Lattice
from latflow.serving import session_search
from latflow.serving.options import LanguageOptions, SessionOptions
from latflow.serving.package import Model
from latflow.serving.results import Partial
from latflow.serving.session import Session
from latflow.serving.session_search import SessionSearches


def without(graph, word):
    """Return a graph without the arcs of a word."""
    kept = graph.olabel != word
    return connect(
        Graph.from_arc_list(
            graph.start, graph.sources()[kept], np.array(graph.arcs)[kept], graph.final
        )
    )


@pytest.fixture(scope="module")
def lacking(digits, tmp_path_factory):
    """(a word; a package without it; one that has it)."""
    folder = tmp_path_factory.mktemp("lacking")
    counts = Counter(word for text in digits.texts.values() for word in text.split())
    word = counts.most_common(1)[0][0]
    shutil.copytree(digits.root / "lang", folder / "lang")
    number = Lang.load(folder / "lang").word_ids[word]
    lexicon = without(Graph.load(digits.root / "lang/L_disambig.fst"), number)
    lexicon.to_fst().write(str(folder / "lang/L_disambig.fst"))
    without(Graph.load(digits.root / "G.fst"), number).to_fst().write(
        str(folder / "G.fst")
    )
    make_graph(
        *(folder / "lang", folder / "G.fst", digits.root / "gmm/mono"),
        folder / "HCLG.fst",
        options=GraphOptions(),
        composition="lookahead",
    )
    package = digits.package(folder / "package", files={"graph": folder / "HCLG.fst"})
    return word, Model.load(package), Model.load(digits.package(folder / "whole"))


@pytest.fixture(scope="module")
def speller(lacking, digits, tmp_path_factory):
    """The package without the word, and with a G2P model."""
    folder = tmp_path_factory.mktemp("speller")
    train_model(digits.root / "lexicon.txt", folder / "g2p", options=LangOptions())
    files = {"graph": lacking[1].folder / "graph/HCLG.fst", "g2p": folder / "g2p"}
    return Model.load(digits.package(folder / "package", files=files))


def entry_of(word, name=None):
    """Return the line of a word in the lexicon, with another spelling maybe."""
    lines = [line.split() for line in LEXICON.splitlines()]
    phones = next(line[1:] for line in lines if line and line[0] == word)
    return " ".join([name or word, *phones])


def with_words(model, *lines, **options):
    """Return the model of a session with words."""
    return model.for_session(LanguageOptions(new_words=lines, **options))[0]


def test_an_added_word_is_recognized_as_one_of_the_lexicon(lacking, digits):
    word, model, whole = lacking
    added = with_words(model, entry_of(word, "NEW"))
    num_new = 0
    for utterance in digits.audio:
        samples = digits.samples(utterance)
        expected = words_of(whole, samples)
        assert word not in words_of(model, samples)
        found = words_of(added, samples)
        assert found == ["NEW" if one == word else one for one in expected]
        num_new += "NEW" in found
    assert num_new
    assert "NEW" not in model.lang.word_ids


def test_partials_of_a_session_have_its_words_and_others_have_not(lacking, digits):
    word, model, _ = lacking
    utterance = next(u for u, text in digits.texts.items() if word in text.split())
    samples = digits.samples(utterance)
    texts = []
    for words in ((entry_of(word, "NEW"),), ()):
        with Session(model, SessionOptions(new_words=words)) as session:
            events = session.accept(samples) + session.finish()
        partials = [event.text for event in events if isinstance(event, Partial)]
        texts.append((" ".join(partials), events[-1].segment.best.text))
    (partial, final), (plain_partial, plain) = texts
    assert "NEW" in partial
    assert "NEW" in final
    assert "NEW" not in plain_partial + plain


def test_added_words_stay_in_final_results_where_they_are_sure(lacking):
    word, model, _ = lacking
    own = next(one for one in model.lang.speech_words if one != word)
    lines = entry_of(word, "NEW"), entry_of(word, own)
    added = with_words(model, *lines)
    grammar = with_words(model, *lines, grammar='["NEW"]')
    new, known = added.lang.word_ids["NEW"], model.lang.word_ids[own]

    def best(model, first):
        """Words of the best of two paths, which is not much better."""
        other = model.lang.word_ids[model.lang.speech_words[-1]]
        lm_scale = model.scales.lm_scale
        lattice = Lattice.from_arcs(
            np.array([(0, 1, 1, first), (0, 2, 1, other)], np.int32),
            np.array([(0.0, 0.0), (0.5 / lm_scale, 0.0)], "f4"),
            np.array([(np.inf, np.inf), (0.0, 0.0), (0.0, 0.0)], "f4"),
        )
        path = best_paths(model.rescore(lattice), [model.scales])[0]
        return path.words.tolist() == [first]

    assert not best(added, new)
    assert best(added, known)
    assert best(grammar, new)
    assert best(model, known)


def test_sessions_with_the_same_words_share_what_they_compose(lacking):
    word, model, _ = lacking
    line = entry_of(word, "NEW")
    first, second = (with_words(model, line).decoder for _ in range(2))
    assert first is second
    assert with_words(model, line, word_boost=1.0).decoder is not first


def test_a_client_brings_its_words_and_faulty_ones_are_told(lacking, digits):
    word, model, _ = lacking
    utterance = next(u for u, text in digits.texts.items() if word in text.split())
    data = pcm(digits.samples(utterance)).tobytes()

    def told(url, words):
        with connect_client(url) as talk:
            talk.send(json.dumps({"config": {"new_words": words}}))
            talk.send(data)
            replies = [json.loads(talk.recv())]
            if "error" not in replies[0]:
                talk.send('{"eof" : 1}')
                replies.append(json.loads(talk.recv()))
        return replies[-1]

    with running_server(model) as server:
        assert "NEW" in told(server.url, [entry_of(word, "NEW")])["text"]
        assert "NEW" not in told(server.url, [])["text"]
        assert "phone X is not among" in told(server.url, ["NEW N X"])["error"]


def test_transcribe_takes_a_lexicon_of_words(lacking, digits, tmp_path, capsys):
    word, model, _ = lacking
    utterance = next(u for u, text in digits.texts.items() if word in text.split())
    lexicon = tmp_path / "words.txt"
    lexicon.write_text(entry_of(word, "NEW") + "\n")
    command = ["transcribe", str(model.folder), str(digits.audio[utterance])]
    assert main([*command, "--words", str(lexicon), "--segmentation", "none"]) == 0
    assert "NEW" in capsys.readouterr().out.split()


def post(url, audio, **fields):
    """Return what the server answers to a file, by HTTP."""
    reply = httpx.post(
        f"{url}/v1/audio/transcriptions",
        files={"file": (audio.name, audio.read_bytes())},
        data=fields,
        timeout=PATIENCE,
    )
    return reply.json()


def test_words_without_phones_are_pronounced_everywhere(
    lacking, speller, digits, tmp_path, capsys
):
    word, name = lacking[0], lacking[0].lower()  # the lexicon has no small letters
    utterance = next(u for u, text in digits.texts.items() if word in text.split())
    samples, audio = digits.samples(utterance), digits.audio[utterance]
    number = digits.texts[utterance].split().count(word)
    assert best_words(speller, samples, new_words=(name,))[0].count(name) == number
    words = tmp_path / "words.txt"
    words.write_text(f"# mine\n{name}\nKAZOO 0.5 F AO R\n")
    command = ["transcribe", str(speller.folder), str(audio), "--words", str(words)]
    assert main([*command, "--segmentation", "none"]) == 0
    assert name in capsys.readouterr().out.split()
    without_it = missing(speller, word)
    phrases = json.dumps(digits_of(digits))
    assert word in best_words(without_it, samples, grammar=phrases)[0]
    listed = tuple(digits_of(digits))
    assert word in best_words(without_it, samples, phrase_list=listed)[0]
    assert word in best_words(without_it, samples, phrases=(f"{word} :300",))[0]
    for model in (lacking[1], speller):
        with running_server(model) as server, connect_client(server.url) as talk:
            found = post(server.http, audio, new_words=name)
            talk.send(json.dumps({"config": {"new_words": [name]}}))
            talk.send(pcm(samples).tobytes())
            reply = json.loads(talk.recv())
            if model is speller:
                talk.send('{"eof" : 1}')
                assert name in json.loads(talk.recv())["text"].split()
                assert name in found["text"].split()
            else:
                assert "no G2P model" in reply["error"]
                assert "no G2P model" in found["error"]["message"]
    for model, said in (
        (speller, "with their phones, or as the package's G2P model pronounces them"),
        (lacking[1], "with their phones; no G2P model"),
    ):
        assert main(["model-info", str(model.folder)]) == 0
        assert said in capsys.readouterr().out


def test_words_that_no_model_pronounces_are_named(lacking, speller, digits):
    samples = digits.samples(next(iter(digits.audio)))
    with pytest.raises(UserError, match="word q7n: .* does not know Q 7"):
        with_words(speller, "q7n")
    with pytest.raises(UserError, match="word Q7N: .* does not know Q 7"):
        best_words(speller, samples, grammar='["ONE Q7N"]')
    for options in ({"prompt": "Q7N!"}, {"phrase_list": ("ONE Q7N",)}):
        _, warnings = speller.for_session(LanguageOptions(**options))
        assert any("word Q7N: the G2P model can't" in line for line in warnings)
    _, warnings = speller.for_session(LanguageOptions(new_words=("ONE",)))
    assert warnings == ("new_words: the lexicon has the word ONE",)


def test_a_package_takes_a_g2p_model_of_its_phones_for_words_that_it_takes(
    speller, digits, tmp_path
):
    parts = {"graph": speller.folder / "graph/HCLG.fst"}
    (tmp_path / "other.txt").write_text("cat K A2 T\ntack T A2 K\n")
    train_model(tmp_path / "other.txt", tmp_path / "other", options=LangOptions())
    with pytest.raises(UserError, match="phones that the system lacks: A2"):
        digits.package(tmp_path / "p", files={**parts, "g2p": tmp_path / "other"})
    own = speller.folder / "lang/g2p.model"
    with pytest.raises(UserError, match="package: it has a whole graph"):
        digits.package(tmp_path / "p", files={"g2p": own})


def best_words(model, samples, **options):
    """Return the words of a session, and its partial results."""
    options = {"endpoint": "off", "lattices": True, **options}
    with Session(model, SessionOptions(**options)) as session:
        events = session.accept(samples) + session.finish()
    partials = [event.text for event in events if isinstance(event, Partial)]
    segment = events[-1].segment
    assert all(0.0 < word.confidence <= 1.0 for word in segment.best.words)
    in_lattice = {session._model.lang.words[w] for w in segment.lattice.word if w}
    assert {word.word for word in segment.best.words} <= in_lattice
    return segment.best.text.split(), partials, in_lattice


def test_a_session_says_what_its_grammar_allows(lacking, digits):
    word, model, _ = lacking
    known = [one for one in digits_of(digits) if one != word]
    pairs = [f"{one} {two}" for one, two in product(known[:3], known[3:6])]
    said = 0
    for utterance in digits.audio:
        words, partials, in_lattice = best_words(
            model, digits.samples(utterance), grammar=json.dumps(pairs)
        )
        assert len(words) % 2 == 0
        assert {" ".join(words[n : n + 2]) for n in range(0, len(words), 2)} <= {*pairs}
        assert in_lattice <= {*known[:6]}
        assert {one for text in partials for one in text.split()} <= {*known[:6]}
        said += len(words)
    assert said


def digits_of(digits):
    """Return the words of the texts."""
    return sorted({word for text in digits.texts.values() for word in text.split()})


def test_a_grammar_of_all_that_is_said_finds_it(lacking, digits):
    word, model, _ = lacking
    rules = f"#JSGF V1.0; public <said> = ({' | '.join(digits_of(digits))})+;"
    right = 0
    for utterance, text in digits.texts.items():
        options = {"grammar": rules, "new_words": (entry_of(word),)}
        words, _, _ = best_words(model, digits.samples(utterance), **options)
        right += words == text.split()
    assert right > 0.7 * len(digits.texts)
    with pytest.raises(UserError, match=f"words that the lexicon lacks: {word}"):
        Session(missing(model, word), SessionOptions(grammar=f'["{word}"]'))


def missing(model, word):
    """Return a model whose words.txt lacks a word, too."""
    words = {one: n for one, n in model.lang.word_ids.items() if one != word}
    lexicon = {one: found for one, found in model.lang.lexicon.items() if one != word}
    lang = replace(model.lang, word_ids=words)
    lang.__dict__["lexicon"] = lexicon
    return replace(model, lang=lang)


def test_another_language_model_is_as_if_it_were_the_packages(
    lacking, digits, tmp_path, capsys
):
    _, model, _ = lacking
    one, *_ = digits_of(digits)
    arpa = tmp_path / "one.arpa"
    unigrams = f"-99 <s>\n-0.3 </s>\n-0.3 {one}\n"
    arpa.write_text(f"\\data\\\nngram 1=3\n\n\\1-grams:\n{unigrams}\n\\end\\\n")
    utterance = next(iter(digits.audio))
    words, _, _ = best_words(model, digits.samples(utterance), lm=str(arpa))
    assert {*words} <= {one}
    command = ["transcribe", str(model.folder), str(digits.audio[utterance])]
    assert main([*command, "--lm", str(arpa), "--segmentation", "none"]) == 0
    assert {*capsys.readouterr().out.split()} <= {one}
    (tmp_path / "two.arpa").write_text(arpa.read_text().replace(one, "NOWHERE"))
    command += ["--lm", str(tmp_path / "two.arpa")]
    assert main(command) == 1
    assert "no word of the language model is in the lexicon" in capsys.readouterr().err


def test_phrases_act_in_the_search(lacking, digits):
    _, model, _ = lacking
    changed = 0
    for utterance in digits.audio:
        samples = digits.samples(utterance)
        plain, _, _ = best_words(model, samples)
        other = next(one for one in digits_of(digits) if one not in plain)
        words, partials, _ = best_words(model, samples, phrases=(f"{other} :300",))
        changed += other in words and other in " ".join(partials).split()
        again, _, _ = best_words(model, samples, phrases=(f"{other} :0",))
        assert again == plain
    assert changed
    with pytest.raises(UserError, match="is no boost"):
        best_words(model, samples, phrases=("ONE :much",))


def test_clients_bring_grammars_and_phrases(lacking, digits, tmp_path, capsys):
    word, model, whole = lacking
    utterance = next(u for u, text in digits.texts.items() if word in text.split())
    data = pcm(digits.samples(utterance)).tobytes()
    known = [one for one in digits_of(digits) if one != word][:3]

    def told(url, **config):
        with connect_client(url) as talk:
            talk.send(json.dumps({"config": config}))
            talk.send(data)
            replies = [json.loads(talk.recv())]
            if "error" not in replies[0]:
                talk.send('{"eof" : 1}')
                replies.append(json.loads(talk.recv()))
        return replies[-1]

    audio = digits.audio[utterance]
    with running_server(model) as server:
        listed = [*(one.lower() for one in known), "[unk]", "", known[0], "nowhere 7!"]
        allowed = {*known, model.lang.oov_word}
        for config in (
            {"phrase_list": listed},
            {"grammar": listed[:-1]},
            {"grammar": json.dumps(listed[:-1])},
        ):
            assert {*told(server.url, **config)["text"].split()} <= allowed
        assert "lacks: nowhere" in told(server.url, grammar=listed)["error"].lower()
        assert "no such" not in told(server.url, phrases=["nowhere"])["text"]
        found = post(server.http, audio, new_words=entry_of(word, "NEW"))["text"]
        assert "NEW" in found.split()
        rules = f"#JSGF V1.0; public <x> = {known[0]}+;"
        assert {*post(server.http, audio, grammar=rules)["text"].split()} <= {known[0]}
        assert (
            "is public"
            in post(server.http, audio, grammar="#JSGF V1.0;")["error"]["message"]
        )
        hot = post(server.http, audio, hotwords=f"{known[0]} :300,{known[1]} :0")[
            "text"
        ]
        assert known[0] in hot.split()
        for given in ("\n".join(listed), json.dumps(listed)):
            only = post(server.http, audio, phrase_list=given)["text"]
            assert {*only.split()} <= allowed
        hot = post(server.http, audio, hotwords=json.dumps([f"{known[0]} :300"]))
        assert known[0] in hot["text"].split()
        plain = post(server.http, audio)["text"]
        assert post(server.http, audio, prompt="nowhere to go")["text"] == plain
        told_back = post(
            server.http, audio, phrases="no where", response_format="verbose_json"
        )
        assert "no such words: NO, WHERE" in told_back["warnings"][0]
    with running_server(whole) as server:
        assert "has a whole graph" in told(server.url, phrase_list=["ONE"])["error"]
        assert "text" in told(server.url, phrases=["ONE"])


def test_transcribe_takes_phrases_and_a_grammar(lacking, digits, tmp_path, capsys):
    _, model, _ = lacking
    utterance, text = next(iter(digits.texts.items()))
    first = text.split()[0]
    command = ["transcribe", str(model.folder), str(digits.audio[utterance])]
    command += ["--segmentation", "none"]
    grammar = tmp_path / "grammar.txt"
    grammar.write_text(f'["{first.lower()}"]\n')
    assert main([*command, "--grammar", str(grammar)]) == 0
    assert {*capsys.readouterr().out.split()} == {first}
    phrases = tmp_path / "phrases.txt"
    other = next(one for one in digits_of(digits) if one not in text.split())
    phrases.write_text(f"{other} :300\n\nnowhere to go\n")
    assert main([*command, "--phrases", str(phrases)]) == 0
    output = capsys.readouterr()
    assert other in output.out.split()
    assert "no such words: NOWHERE" in output.err
    assert main([*command, "--grammar", str(grammar), "--lm", "x.arpa"]) == 1
    assert "give one language model only" in capsys.readouterr().err
    grammar.write_text("\n")
    assert main([*command, "--grammar", str(grammar)]) == 1
    assert f"{grammar}: the grammar is empty" in capsys.readouterr().err
    for text in ("#JSGF V1.0;\ngrammar g;\npublic <a> = (b;\n", "[1]", '["b"]'):
        grammar.write_text(text)
        assert main([*command, "--grammar", str(grammar)]) == 1
        assert f"{grammar}: the " in capsys.readouterr().err


def test_words_stand_where_the_language_model_expects_unknown_ones(
    lacking, digits, tmp_path, monkeypatch
):
    word, model, _ = lacking
    lang = model.lang

    def package(name, unknown):
        """A package whose G has a word for unknown words, by its label there."""
        ngrams = estimate(
            [text.split() for text in digits.texts.values()],
            2,
            vocabulary=sorted(set(lang.speech_words) - {word, lang.oov_word}),
            unknown_word="<unknown>",
        )
        grammar = grammar_graph(ngrams, {**lang.word_ids, "<unknown>": unknown})
        folder = tmp_path / name
        folder.mkdir()
        grammar.to_fst().write(str(folder / "G.fst"))
        make_graph(
            *(digits.root / "lang", folder / "G.fst", digits.root / "gmm/mono"),
            folder / "HCLG.fst",
            options=GraphOptions(),
            composition="lookahead",
        )
        files = {"graph": folder / "HCLG.fst"}
        return Model.load(digits.package(folder / "own", files=files))

    likes = []

    def noted(lang, entries, *, boost, like):
        likes.append(like)
        return pronounced(lang, entries, boost=boost, like=like)

    monkeypatch.setattr(session_search, "pronounced", noted)
    one = next(other for other in digits_of(digits) if other != word)
    lines = "new N UW", "other W AH N", f"{one} W AH N"
    recognized, hidden = package("one", lang.oov_id), package("two", UNKNOWN_WORD)
    for each in (recognized, hidden, model):
        with_words(each, *lines, words_like=(f"new={one}",))
    known = (lang.word_ids[one],)
    assert likes == [
        {"new": known, "other": usual, one: known}
        for usual in ((lang.oov_id,), (UNKNOWN_WORD,), ())
    ]


def test_another_pronunciation_of_a_word_costs_what_the_word_costs(lacking, digits):
    _, model, _ = lacking
    one, two = model.lang.speech_words[:2]
    _, phones = model.lang.lexicon[one][0]
    entries = [read_entry(f"{word} {' '.join(phones)}") for word in (one, two)]
    ids = model.lang.word_ids
    found = pronounced(
        model.lang, entries, boost=-2.0, like={one: (ids[one],), two: (ids[one],)}
    )
    assert [word.cost for word in found] == [0.0, 2.0]


def test_what_cannot_be_added_is_refused_in_a_line(lacking):
    _, model, whole = lacking
    assert with_words(model) is model
    with pytest.raises(UserError, match="has a whole graph"):
        with_words(whole, "new N UW")
    with pytest.raises(UserError, match="word new: phone X is not among"):
        with_words(model, "new N X")
    with pytest.raises(UserError, match="the word <s> is reserved"):
        with_words(model, "<s> N UW")
    with pytest.raises(UserError, match="the lexicon lacks the word NOWHERE"):
        with_words(model, "new N UW", words_like=("NOWHERE",))
    with pytest.raises(UserError, match="old is no word that is added"):
        with_words(model, "new N UW", words_like=("old=ONE",))
    with pytest.raises(UserError, match="'new' is not a word and its phones"):
        read_entry("new")


def test_words_that_the_lexicon_has_in_another_case_are_told(lacking, speller):
    _, model, _ = lacking
    word = model.lang.speech_words[0]
    _, phones = model.lang.lexicon[word][0]
    other = word.lower()
    entry = f"{other} {' '.join(phones)}"

    def warnings(*lines, **options):
        options = LanguageOptions(new_words=lines, **options)
        return model.for_session(options)[1]

    assert other != word
    beside = "new_words: added beside the lexicon's, in another case: "
    beside += f"{other} ({word})"
    assert warnings(entry, entry) == (beside,)
    options = LanguageOptions(new_words=(other,))
    assert speller.for_session(options)[1] == (beside,)
    assert warnings(entry, words_like=(other,)) == (beside,)
    many = [f"{one.lower()} {' '.join(phones)}" for one in model.lang.speech_words]
    assert warnings(*many)[0].endswith(f" and {len(many) - 5} more")
    with pytest.raises(UserError, match=f"use its phones: .*{phones[0]}"):
        warnings(f"{other} {phones[0]}0")


def test_a_session_waits_for_no_other_search(monkeypatch):
    slow = LanguageOptions(phrase_list=("slow",))
    quick = LanguageOptions(phrase_list=("quick",))
    entered, go_on, made = Event(), Event(), []

    def search(_, options):
        made.append(options)
        if options == slow:
            entered.set()
            assert go_on.wait(PATIENCE)
        return options

    monkeypatch.setattr(SessionSearches, "_search", search)
    searches = SessionSearches(*[None] * 5, can_add=False)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(searches.find, slow)
        assert entered.wait(PATIENCE)
        second = pool.submit(searches.find, slow)
        assert searches.find(quick) == quick
        assert not first.done()
        assert not second.done()
        go_on.set()
        assert first.result() == second.result() == slow
    assert made == [slow, quick]


def test_a_search_that_failed_is_tried_again(monkeypatch):
    results = [UserError("no memory"), "a search"]

    def search(*_):
        result = results.pop(0)
        if isinstance(result, UserError):
            raise result
        return result

    monkeypatch.setattr(SessionSearches, "_search", search)
    searches = SessionSearches(*[None] * 5, can_add=False)
    with pytest.raises(UserError, match="no memory"):
        searches.find(LanguageOptions())
    assert searches.find(LanguageOptions()) == "a search"


@pytest.mark.parametrize("name", ["phrase_boost", "prompt_boost", "word_boost"])
@pytest.mark.parametrize("boost", [1001, -1001, float("inf"), float("nan")])
def test_boosts_are_bounded(name, boost):
    with pytest.raises(ValueError, match=name):
        LanguageOptions(**{name: boost})
