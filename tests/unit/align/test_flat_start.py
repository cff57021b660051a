"""Supervision from transcripts: against all label sequences that they allow."""

from itertools import combinations

import numpy as np
import pytest
from reference.supervision_naive import log_sum, total_cost

from latflow.align.flat_start import FlatStartCompiler
from latflow.fst.graph import Graph
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import KaldiReader
from latflow.lang.directory import Lang


@pytest.fixture(scope="module")
def system(golden):
    """Kaldi's language directory and chain system."""
    folder = golden / "chain"
    with KaldiReader.open(folder / "0.trans_mdl") as reader:
        model = TransitionModel.read(reader)
    tree = ContextDependency.load(folder / "tree")
    return golden / "lang", tree, model, Graph.load(folder / "normalization.fst")


def spellings(lang):
    """Phones of each word, with their positions in it."""
    found: dict[str, set[tuple[int, ...]]] = {}
    rows = (lang.folder / "phones/align_lexicon.int").read_text().splitlines()
    for word, _, *phones in (map(int, row.split()) for row in rows):
        found.setdefault(lang.words.get(word, ""), set()).add(tuple(phones))
    return found


def pronounced(lexicon, words, silence):
    """All phone sequences of words, a silence between and around them or not."""
    found = {()}
    for word in words:
        found = {
            (*before, *pause, *phones)
            for before in found
            for pause in ((), (silence,))
            for phones in lexicon[word]
        }
    return found | {(*phones, silence) for phones in found}


def label_sequences(phones, tree, num_frames):
    """All ways in which phones can share the frames."""
    for cuts in combinations(range(1, num_frames), len(phones) - 1):
        bounds = [0, *cuts, num_frames]
        labels = []
        for n, phone in enumerate(phones):
            window = (phones[n - 1] if n else 0, phone)
            length = bounds[n + 1] - bounds[n]
            labels += [tree.pdf(window, 0) + 1]
            labels += [tree.pdf(window, 1) + 1] * (length - 1)
        yield tuple(labels)


@pytest.mark.parametrize("text", ["TWO", "EIGHT TWO", "ZERO"])
def test_all_paths(system, text):
    folder, tree, _, normalization = system
    lang = Lang.load(folder)
    sequences = pronounced(spellings(lang), text.split(), 1)
    compiler = FlatStartCompiler(*system)
    shortest = min(map(len, sequences))
    words = lang.words_to_ids(text)
    graph, has_weights = compiler.compile(words, shortest + 4)
    assert has_weights
    assert isinstance(compiler.compile(words, shortest - 1)[0], str)
    assert not (graph.ilabel == 0).any()
    assert total_cost(graph, shortest - 1) == np.inf
    for num_frames in (shortest, shortest + 2, shortest + 4):
        allowed = {
            labels
            for phones in sequences
            for labels in label_sequences(phones, tree, num_frames)
        }
        wanted = -np.logaddexp.reduce(
            [-log_sum(normalization, labels) for labels in allowed]
        )
        assert total_cost(graph, num_frames) == pytest.approx(wanted, abs=1e-3)


def test_without_pronunciation(system):
    compiler = FlatStartCompiler(*system)
    assert compiler.compile([], 9) == ("the transcript is empty", False)
