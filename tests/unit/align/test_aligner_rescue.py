"""Attempts beyond the retry beam: what no beam lets through is aligned all the same."""

import numpy as np
import pytest
from fixtures.small_model import small_model

from latflow.align.aligner import Aligner, Alignment, AlignmentFailure
from latflow.align.corpus import AlignmentSummary
from latflow.align.options import AlignOptions, AlignSplitOptions
from latflow.fst.graph import Graph
from latflow.graphs.options import GraphOptions
from latflow.ledger import Ledger

MODEL = small_model()
FRAMES = 3


def graph():
    """A cheap way that never ends (0 -> 1 -> 1), a dear one that does (0 -> 2 -> 2)."""
    cheap, dear = (int(np.flatnonzero(MODEL.pdf[1:] == pdf)[0]) + 1 for pdf in (0, 1))
    return Graph.from_arrays(
        0,
        np.array([0, 2, 3, 4]),
        np.array([cheap, dear, cheap, dear], np.int32),
        np.zeros(4, np.int32),
        np.zeros(4, np.float32),
        np.array([1, 2, 1, 2], np.int32),
        np.array([np.inf, np.inf, 0.0], np.float32),
    )


def scores(cost):
    found = np.zeros((FRAMES, MODEL.num_pdfs), np.float32)
    found[:, 1] = -cost
    return found


def align(options, cost):
    return Aligner(MODEL, options, GraphOptions()).align(graph(), scores(cost))


@pytest.mark.parametrize(
    ("cost", "beam"), [(10, 10), (100, 40), (400, 160), (5e4, np.inf)]
)
def test_beams_widen_until_one_cannot_fail(cost, beam):
    found = align(AlignSplitOptions(), cost)
    assert isinstance(found, Alignment)
    assert found.beam == beam
    assert len(found.transition_ids) == FRAMES
    assert (MODEL.pdf[found.transition_ids] == 1).all()


@pytest.mark.parametrize(
    "options",
    [
        AlignOptions(),
        AlignSplitOptions(rescue_memory_mb=0),
        AlignSplitOptions(retry_beam=0),
    ],
)
def test_no_further_attempt_where_none_is_wanted(options):
    found = align(options, 5e4)
    assert isinstance(found, AlignmentFailure)
    assert found.reason == "no final state was reached within the beam"


def test_attempt_that_would_take_too_much_memory_is_given_up():
    options, cost = AlignSplitOptions(rescue_memory_mb=1), 5e4
    long = np.zeros((30000, MODEL.num_pdfs), np.float32)
    long[:, 1] = -cost
    found = Aligner(MODEL, options, GraphOptions()).align(graph(), long)
    assert isinstance(found, AlignmentFailure)
    assert "needs more memory than is allowed" in found.reason


def test_ledger_tells_how_an_utterance_was_aligned():
    summary, ledger = AlignmentSummary(AlignSplitOptions()), Ledger("align_x")
    for u, cost in enumerate((10, 100, 5e4)):
        summary.add(u, align(AlignSplitOptions(), cost))
    summary.record(ledger, "abc".__getitem__)
    assert [(e.utterance, e.action, e.beam) for e in ledger.entries] == [
        ("b", "retried", 40.0),
        ("c", "retried", None),
    ]
    assert ledger.entries[1].reason.endswith("aligned without a beam")
    counts = summary.as_dict()
    assert (counts["num_retried"], counts["num_rescued"]) == (2, 1)
