"""Words of lattices that are too large to be determinized."""

import numpy as np
import pytest
from reference.determinize_naive import compact_paths, dense_lattice

from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.determinize import pruned
from latflow.lattice.determinize.pruned import Limits
from latflow.scoring.score import Transcriber


def test_the_best_path_is_left_and_the_utterance_named(monkeypatch, caplog):
    monkeypatch.setattr(pruned, "Limits", lambda: Limits(work=0))
    lattice = dense_lattice(np.random.default_rng(7), 20, 2, noise=1.0)
    scales = Scales(1.0, 0.5, -0.2)
    transcriber = Transcriber(None, None, scales, 0.01, "best_path")
    best = best_paths(lattice, [scales])[0]
    (path,) = compact_paths(transcriber._sequences("u1", lattice, best))
    assert path.words == tuple(best.words.tolist())
    assert path.transition_ids == tuple(best.transition_ids.tolist())
    assert path.acoustic_cost == pytest.approx(best.acoustic_cost, rel=1e-5)
    assert "u1: a lattice too large" in caplog.text
    assert "only its best path counts" in caplog.text


def test_a_narrower_beam_is_logged_with_the_utterance(monkeypatch, caplog):
    monkeypatch.setattr(pruned, "Limits", lambda: Limits(arcs=60))
    lattice = dense_lattice(np.random.default_rng(7), 20, 2, noise=0.3)
    scales = Scales()
    transcriber = Transcriber(None, None, scales, 0.01, "best_path")
    best = best_paths(lattice, [scales])[0]
    transcriber._sequences("u1", lattice, best)
    assert "u1: lattice of" in caplog.text
    assert "not 6" in caplog.text
