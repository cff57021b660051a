"""Kaldi's `LatticeFasterDecoder` from the wheel kaldi-hmm-gmm, run by ctypes.

The wheel's Python class takes an FST of its own build of OpenFst (where an arc type has
one parameter) and the present kaldifst makes FSTs of another (where it has three), so
that Python cannot bring the two together. But the wheel's shared libraries hold all
that is needed, down to reading the graph, under their C++ names; these are called here.
The decoder is a program of its own, since the wheel and kaldifst do not bear each other
in one process in every order.

    kaldi_lattice_decoder.py FOLDER BEAM LATTICE_BEAM MAX_ACTIVE REPEATS

FOLDER has `graph.fst` (OpenFst `vector`) and `<name>.npy`, scaled log-likelihoods by
transition-id (column i - 1), decoded in the order of names. Left there are
`<name>.lat`, raw lattices with scaled acoustic costs; printed is JSON: the least
processor time of each utterance, for the search and for search and lattice.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

import _kaldi_hmm_gmm as wheel
import numpy as np

_LIBRARIES = Path(str(wheel.__file__)).parent / "kaldi_hmm_gmm" / "lib"
_STRING = "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
_GRAPH = "NS_3FstINS_6ArcTplINS_17TropicalWeightTplIfEEEEEE"
_DECODER = (
    "N{const}3khg23LatticeFasterDecoderTplIN3fst8ConstFstINS1_6ArcTplINS1_"
    "17TropicalWeightTplIfEEEEjEENS_7decoder8StdTokenEE"
)
_LATTICE = (
    "N{const}3fst9VectorFstINS_6ArcTplINS_16LatticeWeightTplIfEEEE"
    "NS_11VectorStateIS4_SaIS4_EEEE"
)
_LATTICE_ARGUMENT = (
    "PNS1_9VectorFstINS3_INS1_16LatticeWeightTplIfEEEENS1_11VectorStateISE_SaISE_EEEE"
)
_BYTES = 4096  # more than any of the objects takes


class _String(ctypes.Structure):
    """A `std::string` of the GNU library, longer than 15 characters."""

    _fields_ = [
        ("data", ctypes.c_char_p),
        ("size", ctypes.c_size_t),
        ("capacity", ctypes.c_size_t),
        ("rest", ctypes.c_size_t),
    ]


def _string(text: str) -> _String:
    """Make one; such a short one would be laid out otherwise."""
    raw = text.encode()
    if len(raw) < 16:
        raise ValueError(f"{text} is too short")
    return _String(raw, len(raw), len(raw), 0)


def _function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    """Return a C++ function by its mangled name."""
    function = getattr(library, f"_Z{name}")
    function.restype, function.argtypes = result, arguments
    return function


def _pointer(instance: Any) -> int:
    """Return the C++ object in one of pybind11: the first word behind its head."""
    return ctypes.c_void_p.from_address(id(instance) + 16).value or 0


class Decoder:
    """A `LatticeFasterDecoder` on the graph in a file."""

    def __init__(
        self, graph: Path, beam: float, lattice_beam: float, max_active: int
    ) -> None:
        # Python has the libraries loaded already; this only finds them.
        core = ctypes.CDLL(str(_LIBRARIES / "libkaldi-hmm-gmm-core.so"))
        fst = ctypes.CDLL(str(_LIBRARIES / "libkaldi-hmm-gmm-kaldi-fst-core.so"))
        any_pointer, yes = ctypes.c_void_p, ctypes.c_bool
        read = _function(
            fst, f"N3fst12ReadFstKaldiE{_STRING}", any_pointer, any_pointer
        )
        as_const = _function(
            fst, f"N3fst23CastOrConvertToConstFstEP{_GRAPH}", any_pointer, any_pointer
        )
        decoder, constant = _DECODER.format(const=""), _DECODER.format(const="K")
        make = _function(
            core,
            f"{decoder}C1ERKS7_RKNS_26LatticeFasterDecoderConfigE",
            None,
            any_pointer,
            any_pointer,
            any_pointer,
        )
        self._decode = _function(
            core,
            f"{decoder}6DecodeEPNS_18DecodableInterfaceE",
            yes,
            any_pointer,
            any_pointer,
        )
        self._raw_lattice = _function(
            core,
            f"{constant}13GetRawLatticeE{_LATTICE_ARGUMENT}Eb",
            yes,
            any_pointer,
            any_pointer,
            yes,
        )
        lattice = _LATTICE.format(const="")
        self._new = _function(core, f"{lattice}C1Ev", None, any_pointer)
        self._delete = _function(core, f"{lattice}D1Ev", None, any_pointer)
        self._write = _function(
            core,
            f"{_LATTICE.format(const='K')}5WriteERK{_STRING}",
            yes,
            any_pointer,
            any_pointer,
        )
        name = _string(str(graph.resolve()))
        self._graph = as_const(read(ctypes.addressof(name)))
        self._config = wheel.LatticeFasterDecoderConfig(
            beam=beam,
            lattice_beam=lattice_beam,
            max_active=max_active,
            determinize_lattice=False,
        )
        self._memory = ctypes.create_string_buffer(_BYTES)
        self._self = ctypes.addressof(self._memory)
        make(self._self, self._graph, _pointer(self._config))

    def decode(self, log_likes: np.ndarray, path: Path, repeats: int) -> list[float]:
        """Decode, write the raw lattice, return the least times in seconds."""
        # DecodableCtc: the log-likelihood of label i is column i - 1.
        decodable = wheel.DecodableCtc(log_likes)
        memory = ctypes.create_string_buffer(_BYTES)
        lattice = ctypes.addressof(memory)
        self._new(lattice)
        times = []
        for _ in range(repeats):
            begun = time.thread_time()
            self._decode(self._self, _pointer(decodable))
            searched = time.thread_time()
            self._raw_lattice(self._self, lattice, ctypes.c_bool(True))  # noqa: FBT003
            times.append((searched - begun, time.thread_time() - begun))
        name = _string(str(path.resolve()))
        self._write(lattice, ctypes.addressof(name))
        self._delete(lattice)
        return np.min(times, axis=0).tolist()


def main() -> None:
    folder = Path(sys.argv[1])
    beam, lattice_beam, max_active, repeats = sys.argv[2:]
    decoder = Decoder(
        folder / "graph.fst", float(beam), float(lattice_beam), int(max_active)
    )
    times = {
        path.stem: decoder.decode(np.load(path), path.with_suffix(".lat"), int(repeats))
        for path in sorted(folder.glob("*.npy"))
    }
    print(json.dumps(times))


if __name__ == "__main__":
    main()
