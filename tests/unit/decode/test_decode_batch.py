"""Batches on threads, and what is done about searches that come to no good end."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from reference.decode_paths import endless_graph

from latflow.decode.decoder import (
    LatticeDecoder,
    RetryPolicy,
    decode_batch,
)
from latflow.decode.options import SearchOptions
from latflow.decode.search_graph import GraphFile
from latflow.decode.streaming import DeadEndError, Decoded
from latflow.errors import UserError
from latflow.fst.graph import Graph

TID_TO_PDF = np.array([0, 0, 1, 2, 1], np.int32)
SCALE = 0.5
GRAPH = endless_graph(np.random.default_rng(11), 30)


def matrices(count):
    generator = np.random.default_rng(4)
    return [
        generator.normal(size=(length, 3)).astype(np.float32)
        for length in generator.integers(1, 30, count)
    ]


def same(one, other):
    return all(
        np.array_equal(value, vars(other)[name]) for name, value in vars(one).items()
    )


@pytest.fixture(scope="module")
def decoder():
    return LatticeDecoder(GRAPH, TID_TO_PDF, beam=50.0)


def test_a_batch_is_its_utterances_in_order(decoder):
    batch = matrices(12)
    expected = [decoder.decode(x, acoustic_scale=SCALE).lattice for x in batch]
    with ThreadPoolExecutor(3) as pool:
        runs = [
            decode_batch(decoder, batch, acoustic_scale=SCALE),
            decode_batch(decoder, batch, acoustic_scale=SCALE, threads=2),
            decode_batch(decoder, batch, acoustic_scale=SCALE, pool=pool),
        ]
    for found in runs:
        for result, lattice in zip(found, expected, strict=True):
            assert isinstance(result, Decoded)
            assert same(result.lattice, lattice)


def test_an_error_stays_in_its_place(decoder):
    batch = matrices(4)
    batch[2] = np.full((3, 3), np.nan)
    found = decode_batch(decoder, batch, acoustic_scale=SCALE)
    assert [isinstance(x, Decoded) for x in found] == [True, True, False, True]
    assert "utterance 2 of the batch: log-likelihoods at frame 0" in str(found[2])
    names = ["a", "b", "c", "d"]
    found = decode_batch(decoder, batch, acoustic_scale=SCALE, utterances=names)
    assert str(found[2]).startswith("c: ")
    assert decode_batch(decoder, [], acoustic_scale=SCALE) == []


def outcome(*results):
    """A search that gives these results in turn; and the beams it was called with."""
    left, beams = list(results), []

    def search(beam):
        beams.append(beam)
        result = left.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    return search, beams


DEAD = DeadEndError("no way", utterance="u")


def decoded(*, reached_final):
    lattice = LatticeDecoder(GRAPH, TID_TO_PDF, beam=50.0).decode(
        matrices(1)[0], acoustic_scale=SCALE
    )
    return Decoded(lattice.lattice, reached_final, 1.0)


WHOLE, PARTIAL = decoded(reached_final=True), decoded(reached_final=False)


@pytest.mark.parametrize(
    ("results", "allow", "taken", "tries"),
    [
        ([WHOLE], True, WHOLE, 1),
        ([DEAD, WHOLE], True, WHOLE, 2),
        ([PARTIAL, WHOLE], True, WHOLE, 2),
        ([PARTIAL, PARTIAL], True, PARTIAL, 2),
        ([PARTIAL, DEAD], True, PARTIAL, 2),
        ([PARTIAL, PARTIAL], False, "no final state .* within beam 20", 2),
        ([DEAD, DEAD], True, "no way", 2),
    ],
)
def test_beams_are_tried_in_turn(results, allow, taken, tries):
    search, beams = outcome(*results)
    attempt = RetryPolicy((10.0, 20.0), allow_partial=allow).run(search, utterance="u")
    assert (attempt.num_tries, attempt.beam) == (tries, beams[-1])
    assert beams == [10.0, 20.0][:tries]
    assert attempt.was_retried == (tries > 1)
    if isinstance(taken, str):
        assert attempt.decoded is None
        assert attempt.error is not None
        with pytest.raises(UserError, match=taken):
            raise attempt.error
    else:
        assert attempt.decoded is taken
        assert attempt.is_partial == (taken is PARTIAL)


def test_policies_of_the_configuration():
    assert RetryPolicy.from_options(SearchOptions()) == RetryPolicy((13.0, 26.0))
    assert RetryPolicy.from_options(
        SearchOptions(on_no_final="partial")
    ) == RetryPolicy((13.0,))
    assert not RetryPolicy.from_options(SearchOptions(on_no_final="fail")).allow_partial
    for beams in ((), (0.0,), (5.0, 5.0)):
        with pytest.raises(UserError, match="beams"):
            RetryPolicy(beams)


def test_the_packed_graph_is_kept_beside_the_graph(tmp_path):
    path = tmp_path / "HCLG.fst"
    GRAPH.save(path)
    graph = Graph.load(path)
    log_likes = matrices(1)[0]
    plain = LatticeDecoder(graph, TID_TO_PDF).decode(log_likes, acoustic_scale=SCALE)
    written = []
    for _ in range(2):
        decoder = LatticeDecoder(GraphFile(graph, path), TID_TO_PDF)
        written.append((tmp_path / "HCLG.fst.packed").stat().st_mtime_ns)
        found = decoder.decode(log_likes, acoustic_scale=SCALE)
        assert same(found.lattice, plain.lattice)
    assert written[0] == written[1]


@pytest.mark.parametrize(
    "damage", ["other model", "other graph", "cut", "empty", "bit"]
)
def test_a_packed_graph_that_does_not_fit_is_made_anew(tmp_path, damage):
    path, packed = tmp_path / "HCLG.fst", tmp_path / "HCLG.fst.packed"
    GRAPH.save(path)
    graph, pdfs = GRAPH, TID_TO_PDF
    LatticeDecoder(GraphFile(graph, path), pdfs)
    before = packed.read_bytes()
    if damage == "other model":
        pdfs = np.array([0, 2, 1, 0, 1], np.int32)
    elif damage == "other graph":
        graph = endless_graph(np.random.default_rng(12), 31)
        graph.save(path)
    else:
        whole = bytearray(before)
        whole[200] ^= 4
        damaged = {"cut": before[:200], "empty": b"", "bit": bytes(whole)}
        packed.write_bytes(damaged[damage])
    log_likes = matrices(1)[0]
    found = LatticeDecoder(GraphFile(graph, path), pdfs).decode(
        log_likes, acoustic_scale=SCALE
    )
    plain = LatticeDecoder(graph, pdfs).decode(log_likes, acoustic_scale=SCALE)
    assert same(found.lattice, plain.lattice)
    assert (packed.read_bytes() == before) == (damage in ("cut", "empty", "bit"))
