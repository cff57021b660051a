"""What training a network takes of memory, counted without making it.

The network is made, and fed a batch, on torch's device `meta`, where tensors have sizes
and no contents: a network that no machine could hold is counted in a second.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from latflow.errors import UserError
from latflow.nnet.description import NetworkDescription
from latflow.nnet.network import Network

log = logging.getLogger(__name__)
_SEQUENCES = 2  # some layers want more than one for their statistics
_FRAMES = 60  # of the shorter of two batches; a multiple of usual subsamplings


class Footprint(NamedTuple):
    """Size of a network, and of what its forward pass keeps for the backward pass.

    A sequence of n frames keeps n x `per_frame` + n^2 x `per_pair` bytes.

    Attributes:
        parameters: their number.
        per_frame: bytes for a frame of the features.
        per_pair: bytes for a pair of frames, as attention has them.
    """

    parameters: int
    per_frame: float
    per_pair: float

    def kept(self, sequences: int, frames: int) -> float:
        """Return the bytes that a batch keeps."""
        return sequences * frames * (self.per_frame + frames * self.per_pair)


def footprint_of(
    description: NetworkDescription, dim_in: int, classes: Mapping[str, int]
) -> Footprint:
    """Return what a network takes; see `Network` for the arguments.

    Where a layer of the user's own can't do without contents, the network is made after
    all, parameters alone are counted, and the log says so.

    Raises:
        UserError: as `Network`.
    """
    try:
        with torch.device("meta"):
            network = Network(description, dim_in, classes)
        one, two = (
            _bytes_kept(network, frames) / (_SEQUENCES * frames)
            for frames in (_FRAMES, 2 * _FRAMES)
        )
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - own layers may raise anything
        log.warning("what a pass keeps is not counted (%s)", error)
        network = Network(description, dim_in, classes)
        return Footprint(_num_parameters(network), 0.0, 0.0)
    # Without attention it is less for each frame of a longer sequence, whose edges
    # weigh less.
    per_pair = max(0.0, (two - one) / _FRAMES)
    return Footprint(_num_parameters(network), two - 2 * _FRAMES * per_pair, per_pair)


def _num_parameters(network: Network) -> int:
    return sum(value.numel() for value in network.parameters())


def _bytes_kept(network: Network, frames: int) -> int:
    """Return the bytes of all that a forward pass keeps, but for the parameters."""
    own = {_id_of(value) for value in network.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def note(tensor: Tensor) -> Tensor:
        if _id_of(tensor) not in own:
            kept[_id_of(tensor)] = tensor.untyped_storage()  # alive, so that ids differ
        return tensor

    features = torch.zeros(_SEQUENCES, frames, network.dim_in, device="meta")
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        network(features, torch.tensor([frames] * _SEQUENCES))
    return sum(storage.nbytes() for storage in kept.values())


def _id_of(tensor: Tensor) -> int:
    """Return a key of the storage of a tensor, unique while it lives."""
    return tensor.untyped_storage()._cdata
