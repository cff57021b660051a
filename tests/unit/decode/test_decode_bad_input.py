"""Graphs, options and log-likelihoods that the search refuses, by name."""

import numpy as np
import pytest

from latflow.decode.decoder import LatticeDecoder
from latflow.decode.streaming import DeadEndError
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.lattice.best_path import best_path

TID_TO_PDF = np.array([0, 0, 1], np.int32)


def graph(*arcs, final=(np.inf, 0.0), start=0):
    """A graph of (source, input, output, cost, target)."""
    rows = sorted(arcs)
    begin = np.searchsorted([row[0] for row in rows], np.arange(len(final) + 1))
    columns = [np.array(c) for c in zip(*rows, strict=True)] or [np.zeros(0)] * 5
    _, ilabel, olabel, weight, target = columns
    return Graph.from_arrays(
        start, begin, ilabel, olabel, weight, target, np.array(final)
    )


LINE = graph((0, 1, 7, 0.5, 1), (1, 2, 0, 0.25, 1))


def decode(log_likes, decoder=None, **options):
    decoder = decoder or LatticeDecoder(LINE, TID_TO_PDF, **options)
    matrix = np.array(log_likes, np.float32)
    return decoder.decode(matrix, acoustic_scale=0.1, utterance="utt-1")


def test_the_simplest_search():
    found = decode([[-10.0, -20.0], [-30.0, -40.0], [-50.0, -60.0]])
    path = best_path(found.lattice)
    assert found.reached_final
    assert path.transition_ids.tolist() == [1, 2, 2]
    assert (path.graph_cost, path.acoustic_cost) == (1.0, 110.0)
    assert (path.words.tolist(), path.word_begin.tolist()) == ([7], [0])
    assert path.word_end.tolist() == [3]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([np.nan, 0.0], "utt-1: log-likelihoods at frame 1 hold NaN or .inf"),
        ([np.inf, 0.0], "utt-1: log-likelihoods at frame 1 hold NaN or .inf"),
        ([-np.inf, -np.inf], "utt-1: log-likelihoods at frame 1 are all -inf"),
    ],
)
def test_frames_that_are_no_good_are_named(row, message):
    with pytest.raises(UserError, match=message):
        decode([[0.0, 0.0], row, [0.0, 0.0]])


def test_the_frame_is_counted_over_pieces():
    decoder = LatticeDecoder(LINE, TID_TO_PDF)
    pieces = [np.zeros((30, 2)), np.zeros((30, 2)), np.full((2, 2), np.nan)]
    with pytest.raises(UserError, match="at frame 60 hold NaN"):
        decoder.decode_chunks(pieces, acoustic_scale=0.1)
    assert decode(np.zeros((2, 2)), decoder).reached_final


def test_no_frames():
    with pytest.raises(UserError, match="utt-1: no frames to decode"):
        decode(np.zeros((0, 2)))


def test_too_few_pdfs():
    with pytest.raises(UserError, match=r"shape \(3, 1\), where .* has 2 pdfs"):
        decode(np.zeros((3, 1)))


def test_a_frame_that_rules_every_path_out():
    with pytest.raises(DeadEndError, match="utt-1: no path .* survives frame 1 "):
        decode([[0.0, 0.0], [0.0, -np.inf], [0.0, 0.0]])


def test_one_frame_is_enough():
    assert decode([[-1.0, -2.0]]).lattice.num_frames == 1


def test_no_final_state_gives_a_partial_result():
    unreachable = graph((0, 1, 7, 0.5, 1), (1, 2, 0, 0.25, 1), final=(0.0, np.inf))
    found = decode(np.zeros((3, 2)), LatticeDecoder(unreachable, TID_TO_PDF))
    assert not found.reached_final
    assert best_path(found.lattice).transition_ids.tolist() == [1, 2, 2]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (graph((0, 3, 0, 0.0, 1)), "input labels 3 to 3"),
        (graph((0, -1, 0, 0.0, 1)), "input labels -1 to -1"),
        (graph((0, 1, 0, 0.0, 1), start=-1), "graph is empty"),
        (graph((0, 0, 0, -1.0, 1), (1, 0, 0, 0.5, 0)), "cycle of epsilon arcs"),
    ],
)
def test_bad_graphs(bad, message):
    with pytest.raises(UserError, match=message):
        LatticeDecoder(bad, TID_TO_PDF)


def test_a_cycle_that_costs_nothing_is_searched():
    ring = graph(
        (0, 1, 7, 0.5, 1), (1, 0, 0, 0.0, 2), (2, 0, 8, 0.0, 1), (2, 1, 0, 0.5, 0),
        (1, 0, 0, 0.0, 1), final=(np.inf, 0.0, 0.0),
    )  # fmt: skip
    found = decode(np.zeros((3, 2)), LatticeDecoder(ring, TID_TO_PDF))
    path = best_path(found.lattice)
    assert (path.words.tolist(), path.graph_cost) == ([7, 7], 1.5)


@pytest.mark.parametrize(
    "options",
    [
        {"beam": 0.0},
        {"lattice_beam": -1.0},
        {"max_active": 1},
        {"min_active": 300, "max_active": 200},
        {"prune_interval": 0},
        {"beam_delta": 0.0},
    ],
)
def test_bad_options(options):
    with pytest.raises(UserError, match="a search with"):
        LatticeDecoder(LINE, TID_TO_PDF, **options)
