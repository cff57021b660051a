"""Beam search of a decoder with attention against brute force; its lattices."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.attention_search_naive import every_sequence, greedy

from latflow.decode.attention import spread
from latflow.decode.options import AttentionDecodeOptions
from latflow.decode.unit_search import Entry, PrefixTree, search
from latflow.lang.arpa import read_arpa
from latflow.lang.lm_trie import LmTrie
from latflow.nnet.layer import Shape
from latflow.nnet.layers.decoder import AttentionDecoder, AttentionDecoderOptions

ARPA = """\\data\\
ngram 1=6
ngram 2=3

\\1-grams:
-0.9 <s> -0.3
-0.6 </s>
-0.7 a -0.2
-0.9 an -0.4
-1.1 ann
-0.8 b

\\2-grams:
-0.2 <s> an
-0.3 an b
-0.5 a </s>

\\end\\
"""
WORD_IDS = {"<eps>": 0, "a": 1, "an": 2, "ann": 3, "b": 4, "<s>": 5, "</s>": 6}
# `an` and `ann` sound alike, and `an` has a second pronunciation.
ENTRIES = [
    Entry((1,), 1, 1),
    Entry((1, 2), 2, 2),
    Entry((3, 2), 2, 2),
    Entry((1, 2), 3, 2),
    Entry((4,), 4, 1),
]
WIDE = {"beam": 100000, "margin": 1e9}


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    file = tmp_path_factory.mktemp("lm") / "lm.arpa"
    file.write_text(ARPA)
    return LmTrie.from_model(read_arpa(file), WORD_IDS)


def decoder_of(seed, **options):
    """A small decoder whose parameters are so large that units differ."""
    torch.manual_seed(seed)
    small = {"units": 5, "embedding": 3, "attention_size": 4, "filters": 2, "reach": 1}
    chosen = AttentionDecoderOptions(**{**small, **options})
    decoder = AttentionDecoder(Shape(3), chosen, 5).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(3.0)
    return decoder


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lm_scale": 0.0},
        {"lm_scale": 1.5, "length_bonus": 0.7},
        {"coverage": 0.9, "coverage_threshold": 0.3, "length_bonus": -0.4},
    ],
)
@pytest.mark.parametrize(("num_frames", "heads"), [(1, 1), (3, 1), (3, 3)])
def test_a_beam_without_bounds_finds_what_enumeration_finds(
    lm, options, num_frames, heads
):
    tree = PrefixTree(ENTRIES, lm)
    decoder = decoder_of(4, num_layers=2, heads=heads, attention_size=6)
    values = torch.randn(num_frames, 3)
    chosen = AttentionDecodeOptions(**WIDE, **options)
    (found,) = search(decoder, values[None], [num_frames], tree, chosen)
    wanted = every_sequence(decoder, values, tree, chosen)
    own = {tuple(tree.entries[e].word for e in one.entries): one for one in found}
    assert own.keys() == {one.words for one in wanted}
    assert [one.score for one in found] == sorted(
        (o.score for o in found), reverse=True
    )
    assert found[0].score == pytest.approx(wanted[0].score, abs=1e-4)
    for other in wanted:
        one = own[other.words]
        assert one.score == pytest.approx(other.score, abs=1e-4)
        assert one.acoustic == pytest.approx(other.acoustic, abs=1e-4)
        assert one.lm_cost == pytest.approx(other.lm_cost, abs=1e-4)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), num_frames=st.integers(1, 9))
def test_a_beam_of_one_is_the_greedy_search(lm, seed, num_frames):
    entries = [ENTRIES[i] for i in (0, 1, 2, 4)]
    entries[2] = entries[2]._replace(word=3)  # no word and no spelling twice
    tree = PrefixTree(entries, lm)
    decoder = decoder_of(seed, attention="content")
    values = torch.randn(num_frames, 3)
    options = AttentionDecodeOptions(beam=1)
    (found,) = search(decoder, values[None], [num_frames], tree, options)
    words = greedy(decoder, values, tree, options.lm_scale)
    own = [tuple(tree.entries[e].word for e in one.entries) for one in found]
    assert own == ([] if words is None else [words])


def test_utterances_do_not_change_each_other(lm):
    tree, decoder = PrefixTree(ENTRIES, lm), decoder_of(9)
    lengths = [3, 7, 1, 5]
    values = torch.randn(4, 7, 3)
    options = AttentionDecodeOptions(beam=3, coverage=0.3)
    together = search(decoder, values, lengths, tree, options)
    for row, length, found in zip(values, lengths, together, strict=True):
        (alone,) = search(decoder, row[None, :length], [length], tree, options)
        assert [one.entries for one in found] == [one.entries for one in alone]
        assert [one.peaks for one in found] == [one.peaks for one in alone]
        scores = [one.score for one in found]
        assert scores == pytest.approx([one.score for one in alone], abs=1e-4)
        assert all(max(one.peaks, default=0) < length for one in found)


def test_a_narrow_margin_drops_what_is_far_behind(lm):
    tree, decoder = PrefixTree(ENTRIES, lm), decoder_of(2)
    values = torch.randn(1, 6, 3)
    (wide,) = search(decoder, values, [6], tree, AttentionDecodeOptions(**WIDE))
    narrow = AttentionDecodeOptions(beam=100000, margin=0.5)
    (found,) = search(decoder, values, [6], tree, narrow)
    assert 0 < len(found) < len(wide)
    assert found[0].score <= wide[0].score


@given(
    starts=st.lists(st.floats(0, 30), max_size=8).map(sorted), more=st.integers(0, 30)
)
def test_spread_starts_rise_within_the_utterance(starts, more):
    num_frames = max(1, len(starts)) + more
    found = spread(np.array(starts), num_frames).tolist()
    assert all(a < b for a, b in pairwise(found))
    assert all(0 <= frame < num_frames for frame in found)
    whole = [math.floor(start) for start in starts]
    if len(set(whole)) == len(whole) and (not whole or whole[-1] < num_frames):
        assert found == whole
