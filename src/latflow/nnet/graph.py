"""Layers connected: descriptions of layers, and the module that they become."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from latflow.nnet.described import OutputLoss
from latflow.nnet.layer import Context, Layer, LayerError, Padded, Shape
from latflow.nnet.layers.simple import SemiOrthogonal
from latflow.nnet.options import MOST_LAYERS, Location
from latflow.nnet.streams import Piece, together
from latflow.options import Options

DATA = "data"  # the name of the features
PREVIOUS = "prev:"  # before the name of a layer: what it gave for the frame before


@dataclass(frozen=True)
class LayerDescription:
    """One layer, checked.

    Attributes:
        name: its name.
        class_name: its class, as the description says.
        layer_class: the class itself.
        inputs: names of its inputs.
        options: of the class.
        has_classes: whether `size` is the number of classes of the output's target.
        reuse: the layer whose module this one uses, or None.
        initial_state: the layer whose last state this one begins with, or None.
        loss: None for a hidden layer.
        location: for messages.
        inside: layers of a subnetwork, whose result is that of the only end.
    """

    name: str
    class_name: str
    layer_class: type[Layer]
    inputs: tuple[str, ...]
    options: Options
    has_classes: bool
    reuse: str | None
    loss: OutputLoss | None
    location: Location
    inside: Plan | None = None
    initial_state: str | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """Layers, or `data`, without which it is nothing; in a loop also `prev:x`."""
        others = (self.initial_state, self.reuse)
        return (*self.inputs, *(name for name in others if name is not None))


@dataclass(frozen=True)
class Plan:
    """Layers in an order in which they can be computed.

    Attributes:
        layers: each after its inputs and after the layer that it reuses.
        ends: the layers whose results are wanted.
    """

    layers: tuple[LayerDescription, ...]
    ends: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The layers' names, in order."""
        return [layer.name for layer in self.layers]

    def behind(self, end: str) -> list[LayerDescription]:
        """Return the layers that a layer needs and itself, each after its inputs."""
        needed, found = {end}, []
        for layer in reversed(self.layers):
            if layer.name in needed:
                needed |= {*layer.needs}
                found.append(layer)
        return found[::-1]


class LayerGraph(nn.Module):
    """The layers of a plan.

    Args:
        plan: the layers.
        shape: the shape of `data`.
        sizes: numbers of classes of the outputs, by layer.
        seed: each layer starts from its own stream of numbers, of the seed and the
            layer's name, so that a change elsewhere leaves it alone; None continues
            the present stream (layers inside a subnetwork).
        previous: shapes of what is read of the frame before, in a loop, by `prev:x`.

    Attributes:
        layers: the modules, by layer; a layer that reuses another has none.
        shapes, contexts: what each layer gives, seen from `data`.

    Raises:
        UserError: shapes that do not fit (names the layer).
    """

    def __init__(
        self,
        plan: Plan,
        shape: Shape,
        sizes: Mapping[str, int] | None = None,
        *,
        seed: int | None = None,
        previous: Mapping[str, Shape] | None = None,
    ) -> None:
        super().__init__()
        self.plan = plan
        self.layers = nn.ModuleDict()
        self.shapes = {DATA: shape, **(previous or {})}
        self.contexts = {name: Context() for name in self.shapes}
        self._input_shapes: dict[str, Shape] = {}
        for layer in plan.layers:
            if seed is not None:
                start = [seed & 0xFFFFFFFF, zlib.crc32(layer.name.encode())]
                # not torch.manual_seed: that would reseed a GPU's generator too
                torch.default_generator.manual_seed(start[0] << 31 | start[1] >> 1)
            self._add(layer, sizes or {})

    def _add(self, layer: LayerDescription, sizes: Mapping[str, int]) -> None:
        """Build one layer, or take over the one that it reuses."""
        shape = self._joined_shape(layer)
        self._input_shapes[layer.name] = shape
        if layer.reuse is None:
            module = _build(layer, shape, sizes)
            self.layers[layer.name] = module
        else:
            module = self.module_of(layer)
            wanted = self._input_shapes[layer.reuse]
            if shape.dim != wanted.dim:
                raise layer.location.error(
                    f"its input has {shape.dim} numbers a frame, "
                    f"that of {layer.reuse}, whose parameters it shares, {wanted.dim}"
                )
        self.shapes[layer.name] = module.shape
        before = self.contexts[layer.inputs[0]]
        for source in layer.inputs[1:]:
            before = before.joined(self.contexts[source])
        self.contexts[layer.name] = before.then(module.context)
        if layer.initial_state is not None:
            self._connect_state(layer, layer.initial_state, module)

    def _connect_state(self, layer: LayerDescription, name: str, module: Layer) -> None:
        """Start a layer with the state that another ends in: it sees all."""
        source = next(one for one in self.plan.layers if one.name == name)
        giver = self.module_of(source)
        if giver.state_form != module.state_form or module.state_form == "none":
            raise layer.location.error(
                f"initial_state: the state of {name} is of {giver.state_form}, its own "
                f"of {module.state_form}",
                "give both the same unit (lstm or gru), size and number of layers",
            )
        giver.keeps_state = True
        stride = self.contexts[layer.name].stride
        self.contexts[layer.name] = Context(None, None, stride)

    def module_of(self, layer: LayerDescription) -> Layer:
        """Return the module that computes a layer."""
        module = self.layers[layer.reuse or layer.name]
        assert isinstance(module, Layer)
        return module

    def _joined_shape(self, layer: LayerDescription) -> Shape:
        """Return the shape of a layer's joined inputs."""
        shapes = [self.shapes[source] for source in layer.inputs]
        strides = [self.contexts[source].stride for source in layer.inputs]
        if len(set(strides)) > 1:
            text = ", ".join(
                map(" 1/".join, zip(layer.inputs, map(str, strides), strict=True))
            )
            raise layer.location.error(f"its inputs have different frame rates: {text}")
        dims = [shape.dim for shape in shapes]
        if layer.layer_class.COMBINE != "concat":
            if len(set(dims)) > 1:
                raise layer.location.error(f"its inputs have unequal sizes: {dims}")
            return shapes[0]
        heights = {shape.dim // shape.channels for shape in shapes}
        channels = sum(shape.channels for shape in shapes) if len(heights) == 1 else 1
        return Shape(sum(dims), channels)

    def forward(
        self, batch: Padded, wanted: Sequence[str] | None = None
    ) -> dict[str, Padded]:
        """Compute the plan's ends, or what other layers give, by name."""
        results = {DATA: batch}
        for layer in self.plan.layers:
            state = None
            if layer.initial_state is not None:
                state = results[layer.initial_state].state
            results[layer.name] = self.compute(layer, results, state)
        return {name: results[name] for name in wanted or self.plan.ends}

    def compute(
        self,
        layer: LayerDescription,
        results: Mapping[str, Padded],
        state: Tensor | None = None,
    ) -> Padded:
        """Compute one layer.

        Args:
            layer: of the plan.
            results: what its inputs give, by name.
            state: [B, S], that it begins with; None for zeros.
        """
        inputs = [results[source] for source in layer.inputs]
        joined = _join(inputs, layer.layer_class.COMBINE)
        module = self.module_of(layer)
        return module(joined) if state is None else module(joined, state)

    def can_stream(self, end: str, *, has_context: bool) -> bool:
        """Return whether streams of `data` go through all layers before an end."""
        layers = map(self.module_of, self.plan.behind(end))
        return all(layer.can_stream(has_context=has_context) for layer in layers)

    def stream(self, piece: Piece, end: str) -> Piece:
        """Compute what an end gives of the next piece of `data`."""
        results = {DATA: piece}
        for layer in self.plan.behind(end):
            inputs = [results[source] for source in layer.inputs]
            joined = _join_pieces(inputs, layer.layer_class.COMBINE)
            results[layer.name] = self.module_of(layer).stream(joined)
        return results[end]


def _build(layer: LayerDescription, shape: Shape, sizes: Mapping[str, int]) -> Layer:
    """Make the module of a layer, initialized."""
    options = layer.options
    if layer.has_classes:
        options = options.replace(size=sizes[layer.name])
    try:
        inside = () if layer.inside is None else (layer.inside,)
        if layer.layer_class.HAS_CLASSES:
            inside = (sizes[layer.name],)
        # a user's class is called in the same way as a built-in one
        module = layer.layer_class(shape, options, *inside)  # pyright: ignore[reportCallIssue]
    except LayerError as error:
        raise layer.location.error(str(error)) from error
    except (MemoryError, RuntimeError) as error:
        if "allocate memory" not in str(error):
            raise
        what = "it needs more memory than there is"
        raise layer.location.error(what, "make it smaller") from error
    is_ours = layer.layer_class.__module__.startswith("latflow.nnet.")
    # what is inside another layer has its start already
    if is_ours and not layer.layer_class.HAS_OWN_START and layer.inside is None:
        initialize(module)
    return module


def _join(inputs: list[Padded], how: str) -> Padded:
    """Return one batch of several inputs: their sum, product, or side by side."""
    first, *others = inputs
    if not others:
        return first
    if first.before is not None:
        inputs = _in_common(inputs)
        first = inputs[0]
    return first.with_values(_combined([batch.values for batch in inputs], how))


def _combined(values: Sequence[Tensor], how: str) -> Tensor:
    """Return the sum or product of tensors [B, T, D], or them side by side."""
    if how == "add":
        return torch.stack([*values]).sum(0)
    if how == "multiply":
        return reduce(torch.mul, values)
    return torch.cat([*values], 2)


def _join_pieces(inputs: list[Piece], how: str) -> Piece:
    """Return one piece of several inputs, see `_join`; they may come at any time."""
    if len(inputs) == 1:
        return inputs[0]
    before = inputs[0].before
    if before is not None:
        before = min(piece.before or 0 for piece in inputs)
        inputs = [piece.skipped((piece.before or 0) - before) for piece in inputs]
    return inputs[0].with_values(_combined(together(inputs), how))


def _in_common(inputs: list[Padded]) -> list[Padded]:
    """Return the frames that all inputs have, where there is context."""
    before = min(batch.before or 0 for batch in inputs)
    inputs = [batch.cut(before) for batch in inputs]
    lengths = torch.stack([batch.lengths for batch in inputs]).amin(0)
    longest, padding = int(lengths.max()), None
    if bool((lengths < longest).any()):
        marks = [b.padding[:, :longest] for b in inputs if b.padding is not None]
        padding = reduce(torch.logical_or, marks)
    return [batch.shortened(lengths, padding) for batch in inputs]


class SubnetworkOptions(Options):
    """Options of `Subnetwork`."""

    layers: dict[str, Any]
    """the layers inside"""
    repeat: Annotated[int, Field(ge=1, le=MOST_LAYERS)] = 1
    """copies one after another, each its own"""


class Subnetwork(Layer):
    """A network as a layer: `data` inside is the input outside.

    Its result is that of the layer `output`, or of the last one in the file.
    """

    IS_CAPTURABLE: ClassVar[bool] = True  # what is inside is asked for itself
    STACK: ClassVar[str | None] = "repeat"
    USES_CONTEXT: ClassVar[bool] = True
    OPTIONS = SubnetworkOptions

    def __init__(self, shape: Shape, options: SubnetworkOptions, plan: Plan) -> None:
        super().__init__(shape)
        self.copies = nn.ModuleList()
        (self.end,) = plan.ends
        for _ in range(options.repeat):
            copy = LayerGraph(plan, self.shape)
            self.copies.append(copy)
            self.shape = copy.shapes[self.end]
            self.context = self.context.then(copy.contexts[self.end])

    def forward(self, batch: Padded) -> Padded:
        """Run the copies."""
        for copy in self.copies:
            batch = copy(batch)[self.end]
        return batch

    def can_stream(self, *, has_context: bool) -> bool:
        """Return whether all layers inside can."""
        return all(
            isinstance(copy, LayerGraph)
            and copy.can_stream(self.end, has_context=has_context)
            for copy in self.copies
        )

    def stream(self, piece: Piece) -> Piece:
        """Run the copies, whose layers keep their own frames."""
        for copy in self.copies:
            assert isinstance(copy, LayerGraph)
            piece = copy.stream(piece, self.end)
        return piece


@torch.no_grad()
def initialize(module: nn.Module) -> None:
    """Set the parameters of a module and of all within, from torch's CPU generator.

    | parameters | start |
    |---|---|
    | linear maps, convolutions, attention | Glorot uniform; offsets 0 |
    | LSTM, GRU: from the input | Glorot uniform, each gate by itself; offsets 0 |
    | LSTM, GRU: from the step before | orthogonal, each gate by itself; offsets 0 |
    | LSTM: offset of the forget gate | 1, so that it remembers at first |
    | semi-orthogonal factors (tdnnf) | normal, deviation 1 / sqrt(inputs), as Kaldi |
    | norms | scale 1, offset 0 |

    Sources: Glorot & Bengio 2010; Saxe, McClelland & Ganguli 2014; Jozefowicz,
    Zaremba & Sutskever 2015 (forget gate).
    """
    for part in module.modules():
        if isinstance(part, SemiOrthogonal):
            nn.init.normal_(part.weight, std=part.in_features**-0.5)
        elif isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.LSTM | nn.GRU | nn.LSTMCell):
            _initialize_recurrent(part)


def _initialize_recurrent(rnn: nn.LSTM | nn.GRU | nn.LSTMCell) -> None:
    """Set the parameters of a stack of recurrent layers, or of a cell."""
    is_lstm = isinstance(rnn, nn.LSTM | nn.LSTMCell)
    num_gates = 4 if is_lstm else 3
    for name, parameter in rnn.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
            if is_lstm and name.startswith("bias_ih"):
                parameter.chunk(num_gates)[1].fill_(1.0)  # gates: input, forget, ...
        elif name.startswith("weight_hr"):  # the projection
            nn.init.xavier_uniform_(parameter)
        else:
            start = nn.init.orthogonal_
            if name.startswith("weight_ih"):
                start = nn.init.xavier_uniform_
            for gate in parameter.chunk(num_gates):
                start(gate)
