"""make_lm and make_grammar: every source of models, and models that do not fit."""

import gzip
import json
import math
import shutil

import kaldifst
import pytest
from reference.kneser_ney import table

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.lang import prepare
from latflow.lang.arpa import read_arpa
from latflow.lang.directory import Lang
from latflow.lang.grammar import UNKNOWN_WORD, check_grammar
from latflow.lang.ngram import estimate
from latflow.lang.ngram_counts import encode
from latflow.lang.options import LangOptions, LmOptions
from latflow.lang.prepare import make_grammar, make_lang, make_lm
from latflow.options import read_options

TEXT = "A B A\nB\n\nA X B\nB B\n"


@pytest.fixture(scope="module")
def lang_dir(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm")
    (folder / "lexicon.txt").write_text("A a\nB b\nC a b\n[NOISE] SPN\nHM SPN SPN\n")
    options = LangOptions()
    make_lang(folder / "lexicon.txt", folder / "lang", options=options)
    return folder / "lang"


@pytest.fixture
def make(repository, lang_dir, tmp_path):
    def call(settings, texts=(), **more):
        options = read_options(LmOptions, settings)
        out = tmp_path / "lm.arpa"
        make_lm(out, options=options, lang_dir=lang_dir, text=list(texts), **more)
        return read_arpa(out)

    return call


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_text_with_the_vocabulary_of_the_lexicon(make, text):
    model = make({"type": "text", "path": str(text), "order": 2})
    # C is unseen; silence and noise words are not expected unless the text has them
    assert set(model.words) == {"<s>", "</s>", "A", "B", "C"}
    assert not any("X" in gram for gram in table(model))


def test_noise_words_of_the_text_are_in_the_vocabulary(make, tmp_path):
    path = tmp_path / "noisy.txt"
    path.write_text("A [NOISE]\n<UNK> A\n")
    model = make({"type": "text", "path": str(path), "order": 2})
    assert set(model.words) == {"<s>", "</s>", "A", "B", "C", "[NOISE]"}


def test_text_with_its_own_vocabulary_and_an_unknown_word(make, text):
    options = {"type": "text", "path": str(text), "vocabulary": "text"}
    assert set(make(options).words) == {"<s>", "</s>", "A", "B", "X"}
    model = make({**options, "unknown_word": "<UNK>", "min_counts": [2, 2, 2]})
    assert set(model.words) == {"<s>", "</s>", "A", "B", "<UNK>"}


def test_unknown_words_stand_beside_a_model_for_searches_that_get_words(
    make, text, lang_dir, tmp_path, monkeypatch
):
    options = {"type": "text", "path": str(text), "order": 3}
    closed, whole = table(make(options)), table(make({**options, "unknown_word": "U"}))
    passes = []
    monkeypatch.setattr(
        prepare, "encode", lambda *a, **k: passes.append(encode(*a, **k)) or passes[-1]
    )
    both = table(make(options, adds_words=True))
    assert len(passes) == 1  # the text is counted once for both
    assert {gram: both[gram] for gram in closed} == closed
    unknown = {gram for gram in whole if "U" in gram}
    assert ("A", "U", "B") in unknown
    for gram in unknown:
        own = tuple("<unk>" if word == "U" else word for word in gram)
        assert both[own] == whole[gram]
    assert len(both) == len(closed) + len(unknown)
    arpa, labels = tmp_path / "lm.arpa", []
    for adds_words in (False, True):
        make_grammar(arpa, lang_dir, tmp_path / "G.fst", adds_words=adds_words)
        labels.append(Graph.load(tmp_path / "G.fst").olabel)
    assert UNKNOWN_WORD not in labels[0]
    assert (labels[1] == UNKNOWN_WORD).sum() == sum(g[-1] == "U" for g in unknown)
    # A text without any leaves the model as it is; so does a name for them.
    for settings in (
        {**options, "unknown_word": "U"},
        {**options, "vocabulary": "text"},
    ):
        assert table(make(settings, adds_words=True)) == table(make(settings))


def test_transcripts_of_manifests(make, text, tmp_path):
    expected = table(make({"type": "text", "path": str(text)}))
    paths = []
    for part, sentences in enumerate((TEXT.splitlines()[:2], TEXT.splitlines()[2:])):
        path = tmp_path / f"cuts{part}.jsonl.gz"
        cuts = [
            json.dumps({"id": "u", "supervisions": [{"text": s}]}) for s in sentences
        ]
        path.write_bytes(gzip.compress("".join(f"{c}\n" for c in cuts).encode()))
        paths.append(path)
    assert table(make({"type": "transcripts"}, paths)) == expected


def test_uniform_model(make):
    model = make({"type": "uniform"})
    probs = {gram[0]: log_prob for gram, (log_prob, _) in table(model).items()}
    assert probs.pop("<s>") == -99.0
    assert set(probs) == {"</s>", "A", "B", "C"}
    assert list(probs.values()) == pytest.approx([math.log10(1 / 4)] * 4, abs=1e-7)


def test_given_model_is_copied_as_it_is(make, text, tmp_path):
    make({"type": "text", "path": str(text)})
    original = (tmp_path / "lm.arpa").read_bytes()
    (tmp_path / "given.arpa.gz").write_bytes(gzip.compress(original))
    make({"type": "arpa", "path": str(tmp_path / "given.arpa.gz")})
    assert (tmp_path / "lm.arpa").read_bytes() == original


def test_grammar_gives_the_models_probabilities(make, text, lang_dir, tmp_path):
    model = make({"type": "text", "path": str(text), "order": 2})
    make_grammar(tmp_path / "lm.arpa", lang_dir, tmp_path / "G.fst")
    lang = Lang.load(lang_dir)
    fst = kaldifst.StdVectorFst.read(str(tmp_path / "G.fst"))
    assert fst.is_ilabel_sorted
    for state in kaldifst.StateIterator(fst):
        for arc in kaldifst.ArcIterator(fst, state):
            expected = 0 if arc.ilabel == lang.word_ids["#0"] else arc.ilabel
            assert arc.olabel == expected
    grams = table(model)
    sentence = [lang.word_ids[w] for w in ("A", "B")]
    cost = best_cost(fst, sentence, lang.word_ids["#0"])
    # <s> A, A B, B </s> are all in the text
    log10 = sum(grams[g][0] for g in (("<s>", "A"), ("A", "B"), ("B", "</s>")))
    assert cost == pytest.approx(-log10 * math.log(10), abs=1e-5)


def best_cost(fst, words, backoff):
    """Least cost of a word sequence in G (dynamic programming over its states)."""
    costs = follow_backoff(fst, {fst.start: 0.0}, backoff)
    for word in words:
        following = {}
        for state, cost in costs.items():
            for arc in kaldifst.ArcIterator(fst, state):
                if arc.ilabel == word:
                    total = cost + arc.weight.value
                    at = arc.nextstate
                    following[at] = min(total, following.get(at, math.inf))
        costs = follow_backoff(fst, following, backoff)
    return min(c + fst.final(s).value for s, c in costs.items())


def follow_backoff(fst, costs, backoff):
    """States that back-off arcs reach from these."""
    reached, pending = dict(costs), list(costs)
    while pending:
        state = pending.pop()
        for arc in kaldifst.ArcIterator(fst, state):
            total = reached[state] + arc.weight.value
            if arc.ilabel == backoff and total < reached.get(arc.nextstate, math.inf):
                reached[arc.nextstate] = total
                pending.append(arc.nextstate)
    return reached


def test_words_outside_the_lexicon_are_dropped_and_counted(
    make, text, lang_dir, tmp_path, caplog
):
    make({"type": "text", "path": str(text), "vocabulary": "text", "order": 2})
    make_grammar(tmp_path / "lm.arpa", lang_dir, tmp_path / "G.fst")
    assert "1 of its 3 words are not in the lexicon, e.g. X" in caplog.text
    assert "1 of 5 1-grams dropped" in caplog.text
    assert "2 of 9 2-grams dropped" in caplog.text
    graph = Graph.load(tmp_path / "G.fst")
    assert set(graph.ilabel.tolist()) <= {
        Lang.load(lang_dir).word_ids[w] for w in ("A", "B", "#0")
    }


HEAD = "\\data\\\nngram 1={}\n\n\\1-grams:\n{}\n\\end\\\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["<s>", "</s>", "x"], "no word of the language model is in the lexicon"),
        (["<s>", "A"], "no sentence end </s>"),
        (["</s>", "A"], "no sentence start <s>"),
        (["<s>", "</s>", "A", "<eps>"], "the language model has the word <eps>"),
        (["<s>", "</s>", "A", "#0"], "the language model has the word #0"),
    ],
)
def test_models_that_do_not_fit_are_refused(lang_dir, tmp_path, words, message):
    arpa = tmp_path / "bad.arpa"
    body = "".join(f"-0.5 {word}\n" for word in words)
    arpa.write_text(HEAD.format(len(words), body))
    with pytest.raises(UserError) as caught:
        make_grammar(arpa, lang_dir, tmp_path / "G.fst")
    assert message in str(caught.value)
    assert str(arpa) in str(caught.value)
    assert not (tmp_path / "G.fst").exists()


def test_given_models_without_a_word_of_the_lexicon_are_refused_at_once(make, tmp_path):
    arpa = tmp_path / "given.arpa"
    arpa.write_text(HEAD.format(3, "-99 <s>\n-0.5 </s>\n-0.5 a\n"))
    with pytest.raises(UserError, match="the model has a, the lexicon A"):
        make({"type": "arpa", "path": str(arpa)})


def test_words_txt_may_have_any_ends_of_lines(make, text, lang_dir, tmp_path):
    make({"type": "text", "path": str(text)})
    make_grammar(tmp_path / "lm.arpa", lang_dir, tmp_path / "G.fst")
    shutil.copytree(lang_dir, tmp_path / "lang")
    words = tmp_path / "lang/words.txt"
    words.write_bytes(words.read_bytes().replace(b"\n", b"\r\n"))
    make_grammar(tmp_path / "lm.arpa", tmp_path / "lang", tmp_path / "crlf.fst")
    assert (tmp_path / "crlf.fst").read_bytes() == (tmp_path / "G.fst").read_bytes()


def test_faulty_arpa_is_refused_before_a_grammar_is_written(lang_dir, tmp_path):
    arpa = tmp_path / "bad.arpa"
    arpa.write_text("no model\n")
    with pytest.raises(UserError, match="not an ARPA file"):
        make_grammar(arpa, lang_dir, tmp_path / "G.fst")
    assert not (tmp_path / "G.fst").exists()


def test_grammars_are_checked(lang_dir):
    word_ids = Lang.load(lang_dir).word_ids
    fst = kaldifst.StdVectorFst()
    fst.start = fst.add_state()
    fst.add_arc(0, kaldifst.StdArc(1, 1, 0.5, 0))
    with pytest.raises(UserError, match="no sentence of the grammar ends"):
        check_grammar(Graph.from_fst(fst), word_ids, "lm")
    fst.set_final(0, 0.0)
    least, largest = check_grammar(Graph.from_fst(fst), word_ids, "lm")
    assert least == largest == pytest.approx(-math.log(1 + math.exp(-0.5)))
    fst.add_arc(0, kaldifst.StdArc(1, 1, 0.5, 0))
    with pytest.raises(UserError, match="not deterministic"):
        check_grammar(Graph.from_fst(fst), word_ids, "lm")


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "has no words"), ("\n\n", "has no words"), ("A <s> B\n", "symbol <s> in: A")],
)
def test_texts_that_teach_nothing_are_refused(make, tmp_path, content, message):
    path = tmp_path / "text.txt"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        make({"type": "text", "path": str(path), "vocabulary": "text"})
    with pytest.raises(UserError, match="no such file"):
        make({"type": "text", "path": str(tmp_path / "none.txt")})
    with pytest.raises(UserError, match=r"lm\.path is not set"):
        make({"type": "text"})


def test_text_of_another_language_is_refused(make, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("x y z\n")
    with pytest.raises(UserError, match="no word of the text .* in the vocabulary"):
        make({"type": "text", "path": str(path)})


def test_manifests_that_are_none_are_refused(make, tmp_path):
    path = tmp_path / "cuts.jsonl.gz"
    path.write_bytes(gzip.compress(b"no json\n"))
    with pytest.raises(UserError, match="line 1 is not a cut"):
        make({"type": "transcripts"}, [path])


def test_falling_min_counts_are_refused():
    with pytest.raises(UserError, match="fall with length"):
        estimate([["a"]], 3, min_counts=[2, 1])


def test_closed_vocabulary_counts_unknown_words():
    corpus = encode([["a", "b", "x"]], vocabulary=["a", "b"])
    assert corpus.num_unknown == 1
    assert corpus.ids.tolist() == [0, 2, 3, 4, 1]
