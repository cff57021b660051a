"""Random compact lattices: files give back what was written."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from reference.determinize_naive import tangled_lattice

from latflow.errors import UserError
from latflow.lattice.determinize.pruned import determinize
from latflow.lattice.io.archives import (
    LatticeArchive,
    read_compact_lattices,
    write_lattices,
)


def random_compact(seed, frames):
    """Return a lattice, determinized or made compact, with costs of all digits."""
    generator = np.random.default_rng(seed)
    raw = tangled_lattice(generator, frames)
    try:
        lattice = determinize(raw, beam=np.inf)
    except UserError:  # no path
        lattice = raw.to_compact()
    for costs in (lattice.graph_cost, lattice.final_acoustic_cost):
        scale = 10.0 ** generator.integers(-9, 9)
        costs[:] += scale * generator.normal(0, 1, len(costs)).astype(np.float32)
    return lattice


lattices = st.builds(
    random_compact, seed=st.integers(0, 2**32 - 1), frames=st.integers(1, 5)
)


def assert_equal(before, after):
    for name, value in vars(before).items():
        np.testing.assert_array_equal(value, getattr(after, name), err_msg=name)


@given(
    items=st.lists(lattices, max_size=3),
    suffix=st.sampled_from([".ark", ".gz", ".scp"]),
    binary=st.booleans(),
)
def test_write_then_read_is_the_identity(tmp_path_factory, items, suffix, binary):
    folder = tmp_path_factory.mktemp("lattices")
    path = folder / ("a.gz" if suffix == ".gz" else "a.ark")
    named = [(f"utt-{i}", lattice) for i, lattice in enumerate(items)]
    scp = folder / "a.scp" if suffix == ".scp" else None
    write_lattices(path, named, binary=binary, scp=scp)
    found = list(read_compact_lattices(folder / f"a{suffix}"))
    assert [utterance for utterance, _ in found] == [name for name, _ in named]
    for (_, before), (_, after) in zip(named, found, strict=True):
        assert_equal(before, after)
    if suffix != ".gz":
        places = LatticeArchive(folder / f"a{suffix}")
        assert len(places) == len(named)
        for utterance, before in reversed(named):
            assert_equal(before, places.compact(utterance))
