"""A search that fails, of memory above all, leaves nothing that others would find."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from reference.decode_paths import endless_graph

from latflow.decode import passing, pruning, tracing
from latflow.decode.decoder import LatticeDecoder

TID_TO_PDF = np.array([0, 0, 1, 2, 1], np.int32)
SCALE = 0.5


def scores(num_frames, seed=0):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(num_frames, 3)).astype(np.float32) * 3


def make():
    graph = endless_graph(np.random.default_rng(5), 60)
    return LatticeDecoder(graph, TID_TO_PDF, beam=8.0, prune_interval=7)


def found(decoder):
    lattice = decoder.decode(scores(40), acoustic_scale=SCALE).lattice
    return [np.asarray(value).tobytes() for value in vars(lattice).values()]


@pytest.mark.parametrize(
    ("module", "name"),
    [(passing, "begin"), (passing, "advance"), (pruning, "prune"),
     (pruning, "finish"), (tracing, "collect")],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_search_that_fails_poisons_no_other(monkeypatch, module, name, error):
    decoder = make()
    expected = found(decoder)

    def fail(*arguments, **_):
        """Leave scratch and store as a kernel does that stops amid a frame."""
        for one in arguments:
            if hasattr(one, "serial"):
                one.serial[:] = one.clock[0] + 10**6
                one.clock[1] = 999
            if hasattr(one, "counts"):
                one.counts[:] = 77
                one.token_begin[:] = 88
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(module, name, fail)
        for _ in range(3):
            with pytest.raises(error):
                found(decoder)
    for _ in range(6):
        assert found(decoder) == expected


def test_a_session_that_failed_is_over(monkeypatch):
    decoder = make()
    session = decoder.session(acoustic_scale=SCALE)
    with monkeypatch.context() as patch:
        patch.setattr(passing, "advance", lambda *_: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            session.advance(scores(3))
    with pytest.raises(RuntimeError, match="this session is over"):
        session.advance(scores(3))
    session.close()
    assert len(decoder._engine.stores) == 0


@pytest.mark.parametrize("most", [1, 400_000, 600_000])
def test_a_search_beyond_its_limit_fails_alone(most):
    decoder = make()
    expected = found(decoder)
    session = decoder.session(acoustic_scale=SCALE, beam=1e6)
    before = session.num_bytes
    session.limit(most)
    with pytest.raises(MemoryError):
        for seed in range(200):
            session.advance(scores(40, seed))
            assert before <= session.num_bytes <= max(before, most)
    assert session.num_bytes == 0
    session.close()
    assert all(found(decoder) == expected for _ in range(3))
    decoder.free()
    assert not decoder._engine.stores.num_bytes
    assert found(decoder) == expected


LIMITED = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]).parents[1])]
from test_decode_memory import found, make, scores

decoder = make()
expected = found(decoder)
wide = make()
wide._engine = wide._engine.__class__(**{
    **vars(wide._engine), "lattice_beam": 1e6, "prune_interval": 10**9,
    "limits": wide._engine.limits._replace(beam=1e6),
})
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
failed = right = 0
with ThreadPoolExecutor(4) as pool:
    list(pool.map(lambda _: found(decoder), range(8)))  # its threads are there
    limit = size + (400 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def work(number):
        if number % 2:
            return found(decoder) == expected
        try:
            wide.decode(scores(200_000), acoustic_scale=0.5)
        except MemoryError:
            return "failed"

    results = list(pool.map(work, range(24)))
    assert results.count("failed") > 6, results
    assert results.count(False) == 0, results
    results = list(pool.map(lambda _: found(wide) is not None, range(40)))
    assert all(results)
print("lived")
"""


def test_searches_beyond_the_memory_of_the_process_fail_alone():
    command = [sys.executable, "-c", LIMITED, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "lived\n", done.stderr[-3000:]
