"""What graphs cannot be made of: each fault is one clear line."""

import kaldifst
import numpy as np
import pytest

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC
from latflow.graphs import hclg as composition
from latflow.graphs.hclg import compose_lexicon_grammar, load_model, make_graph
from latflow.graphs.options import GraphOptions
from latflow.graphs.training import TrainingGraphCompiler
from latflow.options import read_options


def fst(num_states, rows, final):
    costs = np.full(num_states, np.inf, np.float32)
    costs[final] = 0.0
    sources = np.array([row[0] for row in rows])
    arcs = np.array([row[1:] for row in rows], ARC)
    return Graph.from_arc_list(0, sources, arcs, costs).to_fst()


def test_lexicon_and_grammar_without_common_words():
    lexicon = fst(1, [(0, 1, 1, 0.0, 0)], [0])
    grammar = fst(2, [(0, 2, 2, 0.0, 1)], [1])
    with pytest.raises(UserError, match="no word sequence in common") as caught:
        compose_lexicon_grammar(lexicon, grammar, file="G.fst")
    assert caught.value.file == "G.fst"


def test_homophones_without_disambiguation_are_named_as_reason(monkeypatch):
    monkeypatch.setattr(composition, "_MIN_BOUND", 200)
    lexicon = fst(1, [(0, 1, 1, 0.0, 0), (0, 1, 2, 0.0, 0)], [0])
    grammar = fst(1, [(0, 1, 1, 0.5, 0), (0, 2, 2, 0.7, 0)], [0])
    with pytest.raises(UserError, match="same pronunciation and no disambiguation"):
        compose_lexicon_grammar(lexicon, grammar)


def test_grammar_loop_without_words_does_not_hang(monkeypatch):
    monkeypatch.setattr(composition, "_MIN_BOUND", 200)
    lexicon = fst(1, [(0, 1, 1, 0.0, 0), (0, 9, 13, 0.0, 0)], [0])
    rows = [(0, 13, 0, 0.5, 1), (1, 13, 0, 0.5, 0), (0, 1, 1, 0.5, 0)]
    lg = compose_lexicon_grammar(lexicon, fst(2, rows, [0]))
    assert isinstance(lg, kaldifst.StdVectorFst)


def test_missing_files_are_named(golden, tmp_path):
    with pytest.raises(UserError, match="no such file") as caught:
        load_model(tmp_path)
    assert caught.value.file == str(tmp_path / "tree")
    with pytest.raises(UserError, match="no such file"):
        make_graph(
            golden / "lang",
            tmp_path / "G.fst",
            golden / "gmm/mono",
            tmp_path / "HCLG.fst",
            options=GraphOptions(),
        )
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def compiler(golden):
    return TrainingGraphCompiler(golden / "lang", *load_model(golden / "gmm/tri1"))


def test_empty_transcript_names_the_utterance(compiler):
    with pytest.raises(UserError, match="utt-1: the transcript is empty"):
        compiler.compile([], utterance="utt-1")


@pytest.mark.parametrize("position", [0, 1, 3])
def test_word_without_pronunciation_is_named(compiler, position):
    words = [7, 12, 8]
    words.insert(position, 14)  # <s> is not a word of the lexicon
    with pytest.raises(UserError, match="utt-2: word <s> has no pronunciation"):
        compiler.compile(words, utterance="utt-2")


def test_single_word_has_a_graph(compiler):
    assert compiler.compile([3]).num_final_states > 0


def test_scales_of_the_configuration_default_to_those_of_mkgraph():
    options = GraphOptions().values()
    assert options == {"transition_scale": 1.0, "self_loop_scale": 0.1}
    with pytest.raises(UserError, match="did you mean self_loop_scale"):
        read_options(GraphOptions, {"selfloop_scale": 1}, "graph")
