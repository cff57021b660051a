"""Lang directories and grammars against Kaldi's prepare_lang.sh (`golden/lang`)."""

import kaldifst
import numpy as np
import pytest

from latflow.fst.graph import Graph
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions, UniformLm
from latflow.lang.prepare import make_grammar, make_lang, make_lm

OTHERWISE_MADE = {"G.fst", "silence.csl"}


@pytest.fixture(scope="module")
def made(golden, repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden") / "lang"
    options = LangOptions()
    make_lang(golden / "lang/lexicon.txt", folder, options=options)
    return folder


def test_every_file_equals_kaldis_byte_for_byte(golden, made):
    names = [
        path.relative_to(golden / "lang")
        for path in sorted((golden / "lang").rglob("*"))
        if path.is_file() and path.name not in OTHERWISE_MADE
    ]
    assert len(names) > 30
    names.append("phones/silence.csl")
    for name in names:
        assert (made / name).read_bytes() == (golden / "lang" / name).read_bytes(), name


def test_lexicon_without_silence_and_unknown_words_gives_the_same(
    golden, corpora, repository, made, tmp_path
):
    options = LangOptions()
    make_lang(corpora / "digits/lexicon.txt", tmp_path / "lang", options=options)
    for path in sorted(made.rglob("*")):
        if path.is_file():
            other = tmp_path / "lang" / path.relative_to(made)
            assert other.read_bytes() == path.read_bytes(), path


def test_kaldis_directory_and_ours_are_read_alike(golden, made):
    ours, theirs = Lang.load(made), Lang.load(golden / "lang")
    ours.validate()
    theirs.validate()
    for name in (
        "phone_ids", "word_ids", "oov_word", "oov_id", "silence_phones",
        "nonsilence_phones", "disambig_phones", "context_independent",
        "optional_silence", "phone_sets", "roots", "extra_questions", "word_boundary",
        "topology", "lexicon", "speech_words",
    ):  # fmt: skip
        assert getattr(ours, name) == getattr(theirs, name), name


def test_uniform_grammar_equals_kaldis(golden, repository, tmp_path):
    options = UniformLm()
    lang = golden / "lang"
    make_lm(tmp_path / "lm.arpa", options=options, lang_dir=lang, text=[])
    make_grammar(tmp_path / "lm.arpa", lang, tmp_path / "G.fst")
    ours, theirs = Graph.load(tmp_path / "G.fst"), Graph.load(lang / "G.fst")
    assert ours.num_states == theirs.num_states == 1
    np.testing.assert_array_equal(ours.ilabel, theirs.ilabel)
    np.testing.assert_array_equal(ours.olabel, theirs.olabel)
    np.testing.assert_array_equal(ours.next_state, theirs.next_state)
    np.testing.assert_allclose(ours.weight, theirs.weight, atol=5e-7)
    np.testing.assert_allclose(ours.final, theirs.final, atol=5e-7)
    assert kaldifst.StdVectorFst.read(str(tmp_path / "G.fst")).is_ilabel_sorted
