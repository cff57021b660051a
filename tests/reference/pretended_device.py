"""A device that is none: its tensors compute on the processor, and mix with no others.

Finds, without a GPU, what fails only with one: operations on tensors of two devices,
random numbers of another device's generator, arrays of tensors that are not here. The
device is called `meta`, the one name besides `cpu` that every build of torch can
differentiate on; unlike torch's own tensors of that name, those here hold numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("meta")
NAME = "pretended"
#: A GPU, as a parameter of tests.
CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    ],
)
# What takes tensors of two devices on a GPU, too.
_TAKES_BOTH = {
    "aten::copy_",
    "aten::_pack_padded_sequence",
    "aten::_pad_packed_sequence",
}
# Below a dispatch mode torch does not look at the mark of a view that is conjugated.
_WITHOUT_MARK = {
    "aten::_conj": torch.ops.aten._conj_physical.default,
    "aten::_neg_view": torch.ops.aten.neg.default,
}


# What gives the host a number, or a tensor whose size depends on numbers.
_WAITED_FOR = {
    "aten::_local_scalar_dense",
    "aten::equal",
    "aten::masked_select",
    "aten::nonzero",
    "aten::unique_consecutive",
    "aten::_unique2",
}


class TwoDevicesError(RuntimeError):
    """An operation got tensors of both devices."""


@dataclass
class Traffic:
    """What the device does within a block, and what goes to it and from it.

    Attributes:
        launches: operations on the device by name, without views.
        waits: operations for whose result the host waits.
        received: shapes of tensors that came from the host.
    """

    launches: Counter[str] = field(default_factory=Counter)
    waits: list[str] = field(default_factory=list)
    received: list[tuple[int, ...]] = field(default_factory=list)

    def note(self, func: Any, given: list[Any], *, is_there: bool) -> None:
        """Note an operation that has to do with the device."""
        name = func._schema.name
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        there = [isinstance(x, Elsewhere) for x in tensors]
        if name == "aten::copy_" and there[0] != there[1]:
            is_there, tensors = there[0], tensors[1:]
        elif name != "aten::_to_copy" or all(there) == is_there:
            self._note_within(name, func, tensors)
            return
        if is_there:
            self.received.append(tuple(tensors[0].shape))
        else:
            self.waits.append(f"{name} {tuple(tensors[0].shape)}")

    def _note_within(self, name: str, func: Any, tensors: list[torch.Tensor]) -> None:
        """Note an operation on tensors that are there."""
        is_masked = name == "aten::index" and any(
            x.dtype == torch.bool for x in tensors[1:]
        )
        if name in _WAITED_FOR or is_masked:
            self.waits.append(name)
        elif not func.is_view:
            self.launches[name] += 1


_counting: list[Traffic] = []


@contextmanager
def traffic() -> Iterator[Traffic]:
    """Count what is done on the pretended device within the block."""
    counted = Traffic()
    _counting.append(counted)
    try:
        yield counted
    finally:
        _counting.remove(counted)


class Elsewhere(torch.Tensor):
    """A tensor on the pretended device.

    Attributes:
        values: its numbers, on the processor.
    """

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> Elsewhere:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=DEVICE,
        )
        made.values = values
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        """Return the numbers; torch refuses that for classes that are not its own."""
        for counted in _counting:
            counted.waits.append(f"tolist {tuple(self.shape)}")
        return self.values.tolist()

    def __repr__(self, *, tensor_contents=None) -> str:
        return f"Elsewhere({self.values!r})"


class _Constants(TorchFunctionMode):
    """Makes tensors of numbers, which torch would make without them."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.new_tensor:
            args, like = args[1:], args[0]
            kwargs = {"dtype": like.dtype, "device": like.device, **kwargs}
            func = torch.tensor
        if (
            func is not torch.tensor
            or torch.device(kwargs.get("device", "cpu")) != DEVICE
        ):
            return func(*args, **kwargs)
        return func(*args, **{**kwargs, "device": "cpu"}).to(DEVICE)


class _Dispatch(TorchDispatchMode):
    """Sends operations that make tensors to the pretended device, too."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


def _run(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Compute an operation on the processor."""
    given = [*_items(args), *_items(kwargs.values())]
    ours = {id(x.values): x for x in given if isinstance(x, Elsewhere)}
    device = kwargs.get("device")
    is_there = bool(ours) if device is None else torch.device(device) == DEVICE
    if not ours and not is_there:
        return func(*args, **kwargs)
    name = func._schema.name
    _check(name, given, is_there=is_there, has_ours=bool(ours))
    for counted in _counting:
        counted.note(func, given, is_there=is_there)
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    func = _WITHOUT_MARK.get(name, func)
    here = {key: _mapped(_values, x) for key, x in kwargs.items()}
    found = func(*_mapped(_values, args), **here)
    if not is_there:
        return found

    def result(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        # An operation in place returns what it was given.
        return ours[id(x)] if id(x) in ours else Elsewhere(x)

    if name == "aten::_pack_padded_sequence":
        return result(found[0]), found[1]  # sizes of batches stay here
    return _mapped(result, found)


def _items(given: Iterable[Any]) -> Iterator[Any]:
    """Yield arguments, and what is in lists of them."""
    for x in given:
        if isinstance(x, list | tuple):
            yield from x
        else:
            yield x


def _mapped(change: Callable[[Any], Any], x: Any) -> Any:
    """Change an argument or result, or what is in lists of them."""
    if isinstance(x, list | tuple):
        return type(x)(_mapped(change, part) for part in x)
    return change(x)


def _values(x: Any) -> Any:
    """Return the numbers of a tensor that is elsewhere."""
    return x.values if isinstance(x, Elsewhere) else x


def _check(name: str, given: list[Any], *, is_there: bool, has_ours: bool) -> None:
    """Refuse what a GPU would."""
    if is_there and any(isinstance(x, torch.Generator) for x in given):
        raise TwoDevicesError(f"{name}: a generator of the processor")
    if not has_ours:
        return
    here = [
        x
        for x in given
        if isinstance(x, torch.Tensor) and not isinstance(x, Elsewhere) and x.ndim
    ]
    if here and name not in _TAKES_BOTH:
        shapes = ", ".join(str(tuple(x.shape)) for x in here)
        raise TwoDevicesError(f"{name}: tensors of shape {shapes} on the processor")


def cases(pretended: Iterable[Any], others: Iterable[Any] = ()) -> list[Any]:
    """Return pairs of a device and a case: `others` are for a GPU alone."""
    both = list(pretended)
    on_gpu = [pytest.param("cuda", x, marks=CUDA.marks) for x in [*both, *others]]
    return [*((NAME, x) for x in both), *on_gpu]


@contextmanager
def pretended_device() -> Iterator[torch.device]:
    """Give the device; it works in this thread, within the block."""
    autocast, overwrites = torch.autocast, torch.__future__
    before = overwrites.get_overwrite_module_params_on_conversion()

    def autocast_of(kind: str, *args: Any, **kwargs: Any) -> Any:
        return autocast("cpu" if kind == DEVICE.type else kind, *args, **kwargs)

    overwrites.set_overwrite_module_params_on_conversion(True)
    try:
        # With threads, torch asks for a queue of the device, which there is none of.
        with (
            patch("torch.autocast", autocast_of),
            torch.autograd.set_multithreading_enabled(False),
            _Constants(),
            _Dispatch(),
        ):
            yield DEVICE
    finally:
        overwrites.set_overwrite_module_params_on_conversion(before)
