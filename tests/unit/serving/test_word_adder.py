"""Words that a package gets while it is used."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import numpy as np
import pytest
from reference.serving_package import LEXICON, words_of
from reference.serving_process import pcm
from reference.serving_server import running_server
from websockets.sync.client import connect as connect_client

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.optimize import connect
from latflow.graphs.hclg import make_graph
from latflow.graphs.options import GraphOptions
from latflow.lang.directory import Lang
from latflow.lang.lexicon import read_entry
from latflow.serving.options import SessionOptions
from latflow.serving.package import Model
from latflow.serving.results import Partial
from latflow.serving.session import Session


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


def entry_of(word, name=None):
    """Return the line of a word in the lexicon, with another spelling maybe."""
    lines = [line.split() for line in LEXICON.splitlines()]
    phones = next(line[1:] for line in lines if line and line[0] == word)
    return " ".join([name or word, *phones])


def test_an_added_word_is_recognized_as_one_of_the_lexicon(lacking, digits):
    word, model, whole = lacking
    added = model.with_words([read_entry(entry_of(word, "NEW"))])
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


def test_sessions_with_the_same_words_share_what_they_compose(lacking):
    word, model, _ = lacking
    entries = [read_entry(entry_of(word, "NEW"))]
    first, second = (model.with_words(entries).decoder for _ in range(2))
    assert first is second
    assert model.with_words(entries, boost=1.0).decoder is not first


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


def test_what_cannot_be_added_is_refused_in_a_line(lacking):
    _, model, whole = lacking
    assert model.with_words([]) is model
    with pytest.raises(UserError, match="has a whole graph"):
        whole.with_words([read_entry("new N UW")])
    with pytest.raises(UserError, match="word new: phone X is not among"):
        model.with_words([read_entry("new N X")])
    with pytest.raises(UserError, match="the word <s> is reserved"):
        model.with_words([read_entry("<s> N UW")])
    with pytest.raises(UserError, match="'new' is not a word and its phones"):
        read_entry("new")
