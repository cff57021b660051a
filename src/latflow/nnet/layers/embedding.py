"""Labels as input: a learnt vector for each class."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from latflow.errors import UserError
from latflow.nnet.layer import Layer, LayerError, Padded, Shape
from latflow.nnet.layers.simple import ACTIVATIONS
from latflow.nnet.options import Activation as ActivationName
from latflow.nnet.options import Size
from latflow.options import Options, PositiveInt


class EmbeddingOptions(Options):
    """Options of `Embedding`."""

    classes: PositiveInt
    """classes of the labels, which are 0 to one less"""
    size: Size
    activation: ActivationName = "none"


class Embedding(Layer):
    """A learnt vector for the label of each frame: RETURNN's `linear` on sparse data.

    The input is one number a frame, the label: features of `nnet.hdf5` with `sparse`,
    alone or taken by `slice` from those side by side. -1, no label, gives zeros.

    Source: Bengio et al. 2003, "A neural probabilistic language model".
    """

    USES_CONTEXT: ClassVar[bool] = True
    IN_LOOPS: ClassVar[bool] = True
    HAS_OWN_START: ClassVar[bool] = True
    OPTIONS = EmbeddingOptions

    def __init__(self, shape: Shape, options: EmbeddingOptions) -> None:
        super().__init__(shape)
        if shape.dim != 1:
            raise LayerError(f"its input has {shape.dim} numbers a frame, not a label")
        self.vectors = nn.Embedding(options.classes, options.size)
        nn.init.xavier_uniform_(self.vectors.weight)
        self.activation = ACTIVATIONS[options.activation]
        self.shape = Shape(options.size)

    def forward(self, batch: Padded) -> Padded:
        """Look the vectors up: [B, T, 1] -> [B, T, size]."""
        given = batch.values[:, :, 0]
        if batch.padding is not None:  # where anything may stand
            given = given.masked_fill(batch.padding[:, :, 0], 0)
        if not given.is_meta:
            self._check(given)
        is_label = given >= 0
        labels = given.long().clamp(min=0)
        found = functional.embedding(labels, self.vectors.weight)
        found = self.activation(found).masked_fill(~is_label[:, :, None], 0.0)
        return batch.with_values(found)

    @torch.no_grad()
    def _check(self, given: Tensor) -> None:
        """Refuse numbers that are not labels.

        Raises:
            UserError: one is not a whole number from -1 on, or too large.
        """
        classes = self.vectors.num_embeddings
        is_wrong = (given < -1) | (given >= classes) | (given != given.round())
        if bool(is_wrong.any()):
            raise UserError(
                f"{given[is_wrong][0]:g} in a layer of class embedding is no label of "
                f"{classes} classes",
                remedy="give it labels (nnet.hdf5.<name>.sparse), not normalized, and "
                "set classes to their number",
            )
