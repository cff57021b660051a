"""A package whose graph is composed while it is searched."""

from __future__ import annotations

import numpy as np
import pytest
from fixtures.serving_package import words_of

from latflow.graphs.hclg import make_graph
from latflow.graphs.options import GraphOptions
from latflow.serving.package import Model
from latflow.serving.session import Session


@pytest.fixture(scope="module")
def models(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("composed")
    graph = folder / "HCLG.fst"
    make_graph(
        *(digits.root / "lang", digits.root / "G.fst", digits.root / "gmm/mono", graph),
        options=GraphOptions(),
        composition="lookahead",
    )
    composed = digits.package(folder / "composed", files={"graph": graph})
    return Model.load(digits.package(folder / "whole")), Model.load(composed)


def test_words_are_those_of_a_whole_graph(models, digits):
    whole, composed = models
    for utterance in digits.audio:
        samples = digits.samples(utterance)
        assert words_of(composed, samples) == words_of(whole, samples)


def test_a_stream_ends_with_the_same_words(models, digits):
    utterance = next(iter(digits.audio))
    samples = np.asarray(digits.samples(utterance))
    texts = []
    for model in models:
        with Session(model) as session:
            events = []
            for first in range(0, len(samples), 800):
                events += session.accept(samples[first : first + 800])
            events += session.finish()
        texts.append(events[-1].segment.best.text)
    assert texts[0] == texts[1] != ""
