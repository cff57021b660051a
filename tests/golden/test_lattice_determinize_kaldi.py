"""Determinized lattices against Kaldi's, and lattices too large to list."""

import numpy as np
import pytest
from reference.determinize_naive import compact_paths

from latflow.hmm.alignment import segments
from latflow.lattice.best_path import best_path
from latflow.lattice.determinize.pruned import Limits, determinize
from latflow.lattice.io.archives import read_compact_lattices

BEAM, SCALE = 7.0, 0.1  # of latgen-faster-mapped, see the README of the golden data


def assert_same_paths(ours, theirs):
    found = {path.words: path for path in compact_paths(ours)}
    wanted = {path.words: path for path in compact_paths(theirs)}
    assert len(found) == len(compact_paths(ours))
    assert found.keys() == wanted.keys()
    for words, path in found.items():
        assert path.transition_ids == wanted[words].transition_ids
        assert path.graph_cost == pytest.approx(wanted[words].graph_cost, rel=1e-5)
        assert path.acoustic_cost == pytest.approx(
            wanted[words].acoustic_cost, rel=1e-5
        )


@pytest.mark.parametrize("is_in_two_passes", [False, True])
def test_paths_are_those_of_kaldi(golden, raw, model, is_in_two_passes):
    kaldi = read_compact_lattices(golden / "lattice" / "compact_beam13.txt")
    for utterance, theirs in kaldi:
        passes = model if is_in_two_passes else None
        ours = determinize(raw[utterance], passes, beam=BEAM, acoustic_scale=SCALE)
        assert_same_paths(ours, theirs)
        assert (ours.num_states, ours.num_arcs) == (theirs.num_states, theirs.num_arcs)


@pytest.mark.parametrize("beam", [1.0, 6.0, np.inf])
def test_the_best_path_stays(raw, model, beam):
    for lattice in raw.values():
        best = best_path(lattice, acoustic_scale=SCALE)
        options = {"beam": beam, "acoustic_scale": SCALE}
        for result in (
            determinize(lattice, **options),
            determinize(lattice, model, **options),
            determinize(lattice, model, on_words=False, **options),
        ):
            found = best_path(result.to_lattice(), acoustic_scale=SCALE)
            np.testing.assert_array_equal(found.words, best.words)
            np.testing.assert_array_equal(found.transition_ids, best.transition_ids)
            assert found.graph_cost == pytest.approx(best.graph_cost, rel=1e-5)
            assert found.acoustic_cost == pytest.approx(best.acoustic_cost, rel=1e-5)


def test_the_pass_on_phones_keeps_the_ways_to_say_the_words(raw, model):
    num_ways = 0
    for utterance in ("jackson-test-0001", "nicolas-test-0003", "yweweler-test-0005"):
        options = {"beam": 6.9, "acoustic_scale": SCALE}
        by_words = determinize(raw[utterance], **options)
        by_phones = determinize(raw[utterance], model, on_words=False, **options)
        said, best = set(), {}
        for path in compact_paths(by_phones):
            phones, _, _ = segments(np.array(path.transition_ids), model)
            said.add((path.words, *phones[1:].tolist()))  # the first has no label
            old = best.get(path.words, path)
            best[path.words] = min(path, old, key=lambda p: p.order(1.0, SCALE))
        assert len(said) == len(compact_paths(by_phones))
        for path in compact_paths(by_words):
            assert best[path.words].transition_ids == path.transition_ids
        num_ways += len(said) - len(best)
    assert num_ways > 10


def test_memory_is_bounded_by_a_narrower_beam(raw, caplog):
    lattice = raw["lucas-test-0002"]
    free = determinize(lattice, beam=BEAM, acoustic_scale=SCALE)
    tight = determinize(
        lattice,
        beam=BEAM,
        acoustic_scale=SCALE,
        limits=Limits(bytes=36 * lattice.num_states),
    )
    assert "determinized to a beam of" in caplog.text
    best = best_path(free.to_lattice(), acoustic_scale=SCALE)
    found = best_path(tight.to_lattice(), acoustic_scale=SCALE)
    np.testing.assert_array_equal(found.transition_ids, best.transition_ids)
