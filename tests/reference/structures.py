"""Mutations of files that stay whole: values and arrays of other kinds and sizes.

Of JSON, a JSON value a line, YAML, numpy's arrays, safetensors, HDF5, and the headers
of WAVE files.
"""

import copy
import gzip
import io
import json
import struct
from contextlib import suppress

import h5py
import numpy as np
import safetensors.torch as safetensors
import torch
import yaml

#: What is put in the place of a value of JSON, YAML and the like.
VALUES = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**70), 1e999, -0.5, 1e-300),
    *("", "x", "a", "nan", "0", "\0", "\ud800", "../x", "y" * 3000),
    *([], {}, [None], ["a"], [[]], {"a": 1}, [{}], {"": []}, [1, 2, 3]),
)
_KINDS = ("f4", "f8", "i1", "i4", "i8", "u4", "?", "U3", "c8", "M8[s]", ">f4")


def restructured(path, raw, rng):
    """Return a file whose parts are whole and of wrong kinds; None for other files."""
    with suppress(ValueError, TypeError, KeyError, IndexError, OSError):
        name = path.name
        if name.endswith(".jsonl.gz"):
            return gzip.compress(_changed_lines(gzip.decompress(raw), rng), mtime=0)
        for end, change in _FORMS.items():
            if name.endswith(end):
                return change(raw, rng)
    return None


def _any(rng):
    return copy.deepcopy(VALUES[rng.integers(len(VALUES))])


def _places(value, found):
    """All (container, key) below a value."""
    for key in value if isinstance(value, dict) else range(len(value)):
        found.append((value, key))
        if isinstance(value[key], dict | list):
            _places(value[key], found)
    return found


def _changed(value, rng):
    """Change a value that JSON or YAML told, in one place or two."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.03:
        return _any(rng)
    for _ in range(rng.choice([1, 1, 2])):
        places = _places(value, [])
        if not places:
            break
        container, key = places[rng.integers(len(places))]
        kind = rng.integers(8)
        if kind == 0:
            del container[key]
        elif kind == 1 and isinstance(container, dict):
            container[str(_any(rng))] = container.pop(key)
        elif kind == 2:
            container[key] = [copy.deepcopy(container[key])]
        elif kind == 3:
            container[key] = str(container[key])
        elif kind == 4 and isinstance(container, list):
            container.insert(key, copy.deepcopy(container[key]))
        else:
            container[key] = _any(rng)
    return value


def _changed_array(array, rng):
    """Change an array: kind, shape, length, or values."""
    kind = rng.integers(9)
    if kind == 0:
        with np.errstate(all="ignore"):
            return array.astype(_KINDS[rng.integers(len(_KINDS))])
    shapes = (
        lambda: array[..., None],
        lambda: array[None],
        lambda: array[:-1] if array.ndim else np.empty(0, array.dtype),
        lambda: np.empty((0, *array.shape[1:]), array.dtype),
        lambda: array.reshape(-1)[:1].reshape(()) if array.size else array,
        lambda: np.concatenate([array, array]) if array.ndim else array[None],
        lambda: array.T,
    )
    if kind <= len(shapes):
        return shapes[kind - 1]()
    array = array.copy()
    if array.size and array.dtype.kind in "fiu":
        flat = array.reshape(-1)
        worst = [np.nan, np.inf, -np.inf, 1e38, 0.0, -1.0]
        if array.dtype.kind in "iu":
            limits = np.iinfo(array.dtype)
            worst = [limits.min, limits.max, 0, 1, flat.max()]
        flat[rng.integers(len(flat))] = worst[rng.integers(len(worst))]
    return array


def _changed_file(raw, rng):
    """Change a file that is an array."""
    stream = io.BytesIO()
    array = np.load(io.BytesIO(raw), allow_pickle=False)
    np.save(stream, _changed_array(array, rng))
    return stream.getvalue()


def _one_changed(arrays, rng):
    """Drop an array, give it another's contents, or change it."""
    names, kind = list(arrays), rng.integers(8)
    name = names[rng.integers(len(names))]
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[name] = arrays[names[rng.integers(len(names))]]
    else:
        arrays[name] = _changed_array(arrays[name], rng)
    return arrays


def _changed_arrays(raw, rng):
    """Change an archive of arrays."""
    with np.load(io.BytesIO(raw), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    stream = io.BytesIO()
    np.savez(stream, **_one_changed(arrays, rng))
    return stream.getvalue()


def _changed_tensors(raw, rng):
    """Change a file of tensors."""
    arrays = {name: value.numpy() for name, value in safetensors.load(raw).items()}
    changed = _one_changed(arrays, rng)
    return safetensors.save(
        {k: torch.from_numpy(np.array(v, order="C")) for k, v in changed.items()}
    )


def _changed_lines(raw, rng):
    """Change a line of a file with a JSON value in each."""
    lines = raw.splitlines()
    at = int(rng.integers(len(lines)))
    lines[at] = json.dumps(_changed(json.loads(lines[at]), rng)).encode()
    return b"\n".join(lines) + b"\n"


def _changed_hdf(raw, rng):
    """Change a data set or an attribute of an HDF5 file, or drop it."""
    stream = io.BytesIO(raw)
    with h5py.File(stream, "r+") as file:
        names = []
        file.visit(names.append)
        name = names[rng.integers(len(names))]
        kind, item = rng.integers(8), file[name]
        if kind == 0:
            del file[name]
        elif isinstance(item, h5py.Group) or kind == 1:
            owner = item if len(item.attrs) else file
            key = (list(owner.attrs) or ["inputPattSize"])[0]
            owner.attrs[key] = VALUES[rng.integers(len(VALUES))]
        else:
            other = file[names[rng.integers(len(names))]]
            is_set = kind == 2 and isinstance(other, h5py.Dataset)
            array = other[()] if is_set else _changed_array(item[()], rng)
            del file[name]
            file[name] = array
    return stream.getvalue()


def _changed_wave(raw, rng):
    """Change a number of a WAVE file's header: of its chunks, format and lengths."""
    data = bytearray(raw)
    at, form = [(4, "<I"), (16, "<I"), *_FORMAT, (40, "<I")][rng.integers(9)]
    size = struct.calcsize(form)
    (value,) = struct.unpack_from(form, data, at)
    values = (0, 1, 2, 3, 85, 255, 65534, 2**31, 2**32 - 1, value + 1, 2 * value)
    struct.pack_into(form, data, at, values[rng.integers(len(values))] % 256**size)
    return bytes(data)


#: Format, channels, rate, bytes a second, bytes a frame and bits of a WAVE file.
_FORMAT = [(20, "<H"), (22, "<H"), (24, "<I"), (28, "<I"), (32, "<H"), (34, "<H")]


def _changed_yaml(raw, rng):
    changed = _changed(yaml.safe_load(raw), rng)
    return yaml.dump(changed, sort_keys=False).encode()


def _changed_json(raw, rng):
    return json.dumps(_changed(json.loads(raw), rng)).encode()


_FORMS = {
    ".jsonl": _changed_lines,
    ".npz": _changed_arrays,
    ".npy": _changed_file,
    ".safetensors": _changed_tensors,
    ".yaml": _changed_yaml,
    ".json": _changed_json,
    ".hdf": _changed_hdf,
    ".wav": _changed_wave,
}
