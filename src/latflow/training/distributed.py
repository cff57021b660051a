"""The ranks of a training and their communication: one small interface.

Three back ends: none (one rank), torch.distributed (gloo on CPU, NCCL on GPUs) and
Horovod. A rank is a process; `launch.py` starts them. All operations are collective:
every rank calls them in the same order. An error on another rank ends them with an
exception or a signal, not with a wait: launchers end all ranks when one dies.

Source: Sergeev and Del Balso 2018 (Horovod); docs of `torch.distributed`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor

from latflow.errors import UserError
from latflow.training.slurm import horovod_place

TIMEOUT = timedelta(minutes=30)  # a rank may evaluate or read this long, alone
RANK = "LATFLOW_RANK"  # the variable with the number of a process that we start
RENDEZVOUS = "LATFLOW_RENDEZVOUS"


class Backend:
    """One rank, alone; the base of the others.

    Attributes:
        name: `none`, `torch` or `horovod`.
        rank: number of this process, from 0; rank 0 writes files.
        size: number of ranks.
        local_rank: number of this process on its machine, which is its GPU's number.
    """

    name = "none"
    rank = 0
    size = 1
    local_rank = 0

    def all_reduce_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the ranks (float32, float64, int64)."""

    def broadcast_(self, tensors: Sequence[Tensor], root: int = 0) -> None:
        """Replace each tensor by that of the rank `root`."""

    def broadcast_object(self, item: Any, root: int = 0) -> Any:  # noqa: ARG002 - one rank alone
        """Return what the rank `root` calls with; others' items are not looked at.

        Args:
            item: anything that can be pickled.
            root: whose item it is.
        """
        return item

    def gather(self, item: Any) -> list[Any]:
        """Return the items of all ranks, in their order (pickled)."""
        return [item]

    def barrier(self) -> None:
        """Wait until all ranks are here."""

    def accept_new_ranks(self) -> None:
        """Let ranks in that have come since; all ranks ask, after a checkpoint.

        With Horovod's elastic mode this may end the training's function with an
        exception, after which it is called again with the new ranks.
        """

    def close(self) -> None:
        """End the communication; all ranks do."""

    @property
    def is_main(self) -> bool:
        """Return whether this is the rank that writes files."""
        return self.rank == 0

    def all_reduce_numbers(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums of some numbers over the ranks."""
        sums = torch.tensor(list(numbers), dtype=torch.float64)
        self.all_reduce_([sums])
        return sums.tolist()

    def any(self, flag: bool) -> bool:  # noqa: FBT001 - a flag is the matter
        """Return whether a flag is true on some rank."""
        return self.all_reduce_numbers([float(flag)])[0] > 0


class TorchBackend(Backend):
    """Ranks joined by torch.distributed.

    Args:
        rank: this rank among the others.
        rendezvous: `host:port` at which they meet, that of `launch`.
        device: tensors on it are reduced on it.

    Raises:
        UserError: the ranks do not find each other.
    """

    name = "torch"

    def __init__(self, rank: Rank, rendezvous: str, device: torch.device) -> None:
        self.rank, self.size, self.local_rank = rank
        self._torch = importlib.import_module("torch.distributed")
        transport = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        host, _, port = rendezvous.rpartition(":")
        try:
            self._torch.init_process_group(
                transport,
                store=self._torch.TCPStore(host, int(port), timeout=TIMEOUT),
                rank=self.rank,
                world_size=self.size,
                timeout=TIMEOUT,
            )
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"rank {self.rank} of {self.size} does not find the others at "
                f"{rendezvous}: {error}",
                remedy="check that the machines reach each other, and start again",
            ) from error

    def all_reduce_(self, tensors: Sequence[Tensor]) -> None:
        """See `Backend`."""
        handles = [self._torch.all_reduce(tensor, async_op=True) for tensor in tensors]
        for handle in handles:
            handle.wait()

    def broadcast_(self, tensors: Sequence[Tensor], root: int = 0) -> None:
        """See `Backend`."""
        for tensor in tensors:
            self._torch.broadcast(tensor, root)

    def broadcast_object(self, item: Any, root: int = 0) -> Any:
        """See `Backend`."""
        items = [item if self.rank == root else None]
        self._torch.broadcast_object_list(items, root, device=torch.device("cpu"))
        return items[0]

    def gather(self, item: Any) -> list[Any]:
        """See `Backend`."""
        items: list[Any] = [None] * self.size
        self._torch.all_gather_object(items, item)
        return items

    def barrier(self) -> None:
        """See `Backend`."""
        self.any(flag=False)

    def close(self) -> None:
        """See `Backend`."""
        if self._torch.is_initialized():
            self._torch.destroy_process_group()


class HorovodBackend(Backend):
    """Ranks joined by Horovod, started by `horovodrun` or `srun`.

    Operations have names that count up alike on all ranks, and that start again
    (`renew`) when the set of ranks changes.

    Attributes:
        on_admit: what `admit` does, in elastic mode.
    """

    name = "horovod"

    def __init__(self) -> None:
        self._horovod = _horovod()
        self._horovod.init()
        self._has_nccl = bool(self._horovod.nccl_built())
        self.on_admit: Callable[[], None] = _nothing
        self.renew()

    def renew(self) -> None:
        """Take up rank and size, which change when ranks come or go (elastic)."""
        self.rank = self._horovod.rank()
        self.size = self._horovod.size()
        self.local_rank = self._horovod.local_rank()
        self._count = 0

    def _name(self, what: str) -> str:
        """Return a name that all ranks give to the same operation."""
        self._count += 1
        return f"latflow.{what}.{self._count % 1024}"

    def all_reduce_(self, tensors: Sequence[Tensor]) -> None:
        """See `Backend`."""
        horovod = self._horovod
        carried = [self._reachable(tensor) for tensor in tensors]
        handles = [
            horovod.allreduce_async_(tensor, name=self._name("sum"), op=horovod.Sum)
            for tensor in carried
        ]
        for handle in handles:
            horovod.synchronize(handle)
        _copy_back(carried, tensors)

    def broadcast_(self, tensors: Sequence[Tensor], root: int = 0) -> None:
        """See `Backend`."""
        carried = [self._reachable(tensor) for tensor in tensors]
        for tensor in carried:
            self._horovod.broadcast_(tensor, root, name=self._name("copy"))
        _copy_back(carried, tensors)

    def _reachable(self, tensor: Tensor) -> Tensor:
        """Return the tensor, or its copy on the CPU where Horovod has no NCCL."""
        return tensor.cpu() if tensor.is_cuda and not self._has_nccl else tensor

    def broadcast_object(self, item: Any, root: int = 0) -> Any:
        """See `Backend`."""
        name = self._name("share")
        return self._horovod.broadcast_object(item, root_rank=root, name=name)

    def gather(self, item: Any) -> list[Any]:
        """See `Backend`."""
        return self._horovod.allgather_object(item, name=self._name("gather"))

    def barrier(self) -> None:
        """See `Backend`."""
        self.any(flag=False)

    def accept_new_ranks(self) -> None:
        """See `Backend`."""
        self.on_admit()

    def close(self) -> None:
        """See `Backend`."""
        self._horovod.shutdown()


class Rank(NamedTuple):
    """The number of a process among the ranks.

    Attributes:
        rank: its number, from 0.
        size: number of ranks.
        local_rank: its number on its machine.
    """

    rank: int
    size: int
    local_rank: int

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Rank:
        """Read it from the variables of our launcher, or of SLURM's `srun`.

        Raises:
            UserError: neither is there.
        """
        for names in (
            (RANK, "LATFLOW_SIZE", "LATFLOW_LOCAL_RANK"),
            ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
        ):
            if all(name in environment for name in names):
                return cls(*(int(environment[name]) for name in names))
        raise UserError(
            "this process does not know its rank",
            remedy="start the ranks by latflow.training.launch, or by srun",
        )


def open_backend(name: str, device: torch.device) -> Backend:
    """Join the other ranks.

    Args:
        name: `none`, `torch` or `horovod`.
        device: where gradients will be.

    Raises:
        UserError: no such back end, not installed, or the ranks do not meet.
    """
    if name == "none":
        return Backend()
    if name == "horovod":
        if "HOROVOD_RANK" not in os.environ and "SLURM_PROCID" in os.environ:
            os.environ.update(horovod_place(os.environ))
        return HorovodBackend()
    if name != "torch":
        raise UserError(f"no back end {name!r}", remedy="none, torch or horovod")
    rendezvous = os.environ.get(RENDEZVOUS)
    if rendezvous is None:
        raise UserError(
            f"the variable {RENDEZVOUS} is not set",
            remedy="start the ranks by latflow.training.launch",
        )
    return TorchBackend(Rank.of(), rendezvous, device)


def meeting_place(address: str) -> Any:
    """Return a store where the ranks of torch.distributed meet, at a free port.

    Args:
        address: of this machine, by which the ranks reach it.
    """
    store = importlib.import_module("torch.distributed").TCPStore
    return store(address, 0, is_master=True, wait_for_workers=False)


def resolve_backend(name: str, ranks: int) -> str:
    """Return the back end that `auto` stands for; one rank needs none.

    Args:
        name: `auto`, `torch`, `horovod` or `none`.
        ranks: number of ranks.

    Raises:
        UserError: several ranks without a back end.
    """
    if ranks == 1:
        return "none"
    if name == "none":
        raise UserError(f"{ranks} ranks need a back end", remedy="torch or horovod")
    if name == "auto":
        return "horovod" if importlib.util.find_spec("horovod") else "torch"
    return name


def _copy_back(carried: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy what was carried elsewhere into the tensors themselves."""
    for source, tensor in zip(carried, tensors, strict=True):
        if source is not tensor:
            tensor.copy_(source)


def _nothing() -> None:
    """Admit nobody: the ranks are those that have been started."""


def _horovod() -> Any:
    """Return Horovod's module for torch.

    Raises:
        UserError: it is not installed.
    """
    try:
        return importlib.import_module("horovod.torch")
    except ImportError as error:
        raise UserError(
            f"Horovod is not installed ({error})",
            remedy="see envs/install_horovod.sh, or use the back end torch",
        ) from error
