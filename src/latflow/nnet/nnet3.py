"""A network of ours as Kaldi's nnet3, for recognition.

An nnet3 is named nodes, each a component applied to a descriptor: sums, scalings and
shifts in time of other nodes. All times are those of the features; Kaldi computes the
frames that the outputs need, so that strides of layers only widen the shifts behind
them. Every affine map becomes a `FixedAffineComponent`, batch normalization with its
running statistics a scale and an offset: the same numbers, to be run, not trained on.

The i-vector that follows the features of a frame is its own input, of which Kaldi has
one at a time: `ReplaceIndex(ivector, t, 0)`.

Beyond an utterance's ends Kaldi repeats the features' first and last frame, as
networks with `edges: repeat` do; others cannot be written.

Source: Kaldi `nnet3/nnet-nnet.cc` (`Write`), `nnet3/am-nnet-simple.cc`,
`nnet3/nnet-simple-component.cc`, `nnet3/nnet-descriptor.h`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from latflow.errors import UserError
from latflow.kaldi.io import KaldiWriter
from latflow.nnet.graph import DATA, LayerDescription
from latflow.nnet.layer import Layer
from latflow.nnet.layers import augment, convolution, simple, time_delay
from latflow.nnet.model_dir import AcousticNetwork
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer

_INPUT, _IVECTOR, _OUTPUT = (
    "input",
    "ivector",
    "output",
)  # names that Kaldi's programs look for
_FUNCTIONS = {
    "relu": "RectifiedLinearComponent",
    "sigmoid": "SigmoidComponent",
    "tanh": "TanhComponent",
    "log_softmax": "LogSoftmaxComponent",
}


@dataclass(frozen=True)
class _Component:
    """A component: its type, and its parameters by their tokens."""

    type: str
    values: tuple[tuple[str, int | float | np.ndarray], ...]

    def write(self, writer: KaldiWriter) -> None:
        """Write it as its class in Kaldi does."""
        writer.write_token(f"<{self.type}>")
        for token, value in self.values:
            writer.write_token(f"<{token}>")
            if isinstance(value, int):
                writer.write_int32(value)
            elif isinstance(value, float):
                writer.write_float32(value)
            elif value.ndim == 1:
                writer.write_float_vector(value)
            else:
                writer.write_float_matrix(value)
        writer.write_token(f"</{self.type}>")


class Nnet3:
    """The first output of a network as nnet3.

    Attributes:
        lines: of the configuration: input, component and output nodes.
        context: frames before and behind the present one that the output sees.

    Args:
        model: a network whose outputs are log-likelihoods.
        ivector_dim: how many of the last numbers of a frame are an i-vector.

    Raises:
        UserError: there is no nnet3 of it; names the layer or the option.
    """

    def __init__(self, model: AcousticNetwork, *, ivector_dim: int = 0) -> None:
        network = model.network
        _check(model)
        self.lines: list[str] = []
        self.context = network.context
        self._components: dict[str, _Component] = {}
        frame = self._frame(network.dim_in, ivector_dim)
        normalizer = model.normalizer
        data = self._normalized(frame, normalizer)
        nodes = {DATA: data}
        output = next(iter(network.outputs))
        for layer in network.description.plan.behind(output):
            nodes[layer.name] = self._layer(network, layer, nodes)
        node = nodes[output]
        self.lines.append(f"output-node name={_OUTPUT} input={node} objective=linear")

    def write(self, writer: KaldiWriter) -> None:
        """Write what follows the transition model in a binary `final.mdl`."""
        writer.write_token("<Nnet3>")
        text = "".join(f"{line}\n" for line in self.lines)
        writer.write_bytes(f"\n{text}\n".encode())
        writer.write_token("<NumComponents>")
        writer.write_int32(len(self._components))
        for name, component in self._components.items():
            writer.write_token("<ComponentName>")
            writer.write_token(name)
            component.write(writer)
        writer.write_token("</Nnet3>")
        for token, frames in zip(
            ("<LeftContext>", "<RightContext>"), self.context, strict=True
        ):
            writer.write_token(token)
            writer.write_int32(frames)
        writer.write_token("<Priors>")  # none: the outputs are log-likelihoods
        writer.write_float_vector(np.zeros(0, np.float32))

    def _layer(
        self, network: Network, layer: LayerDescription, nodes: dict[str, str]
    ) -> str:
        """Add the nodes of a layer; return its result's."""
        sources = [nodes[source] for source in layer.inputs]
        body = network.body
        module = body.module_of(layer)
        if len(sources) > 1:
            join = "Sum" if layer.layer_class.COMBINE == "add" else "Append"
            dims = [body.shapes[source].dim for source in layer.inputs]
            dim = dims[0] if join == "Sum" else sum(dims)
            source = self.join(f"{layer.name}.{join.lower()}", join, sources, dim)
        else:
            (source,) = sources
        stride = body.contexts[layer.inputs[0]].stride
        return LAYERS[type(module)](self, layer, module, source, stride)

    # -- nodes, each of which returns its name -----------------------------------------

    def _add(
        self, node: str, descriptor: str, kind: str, **values: int | float | np.ndarray
    ) -> str:
        """Add a component and the node that applies it."""
        self._components[node] = _Component(kind, tuple(values.items()))
        self.lines.append(
            f"component-node name={node} component={node} input={descriptor}"
        )
        return node

    def join(self, node: str, how: str, sources: Sequence[str], dim: int) -> str:
        """Add the `Sum` of descriptors, or `Append` them side by side."""
        descriptor = sources[0]
        if how == "Append":
            descriptor = f"Append({', '.join(sources)})"
        else:
            for source in sources[1:]:
                descriptor = f"Sum({descriptor}, {source})"
        return self._add(node, descriptor, "NoOpComponent", Dim=dim, BackpropScale=1.0)

    def affine(self, node: str, descriptor: str, linear: nn.Linear) -> str:
        """Add an affine map."""
        matrix = _array(linear.weight)
        bias = np.zeros(len(matrix), np.float32)
        if linear.bias is not None:
            bias = _array(linear.bias)
        return self._add(
            node,
            descriptor,
            "FixedAffineComponent",
            LinearParams=matrix,
            BiasParams=bias,
        )

    def scale_and_offset(
        self, node: str, source: str, scale: np.ndarray, offset: np.ndarray
    ) -> str:
        """Add x * scale + offset."""
        scaled = self._add(
            f"{node}.scale", source, "FixedScaleComponent", Scales=_float32(scale)
        )
        return self._add(
            f"{node}.offset", scaled, "FixedBiasComponent", Bias=_float32(offset)
        )

    def function(self, node: str, source: str, function: str, dim: int) -> str:
        """Add a function of each number, or of the frame; nothing for `none`."""
        if function == "none":
            return source
        empty = np.zeros(0, np.float32)
        return self._add(
            f"{node}.{function}",
            source,
            _FUNCTIONS[function],
            Dim=dim,
            ValueAvg=empty,
            DerivAvg=empty,
            Count=0.0,
            NumDimsSelfRepaired=0.0,
            NumDimsProcessed=0.0,
        )

    def batch_norm(self, node: str, source: str, norm: simple.MaskedBatchNorm) -> str:
        """Add batch normalization with its running statistics."""
        scale = (norm.variance.double() + norm.epsilon).rsqrt()
        if norm.scale is not None:
            scale = scale * norm.scale
        offset = -norm.mean.double() * scale
        if norm.offset is not None:
            offset = offset + norm.offset
        return self.scale_and_offset(node, source, _array(scale), _array(offset))

    def bypassed(
        self, node: str, source: str, past: str, factor: float, dim: int
    ) -> str:
        """Add factor * past to the source; nothing for a factor of 0."""
        if not factor:
            return source
        return self.join(
            f"{node}.sum", "Sum", [source, f"Scale({factor:.9g}, {past})"], dim
        )

    def _frame(self, dim: int, ivector_dim: int) -> str:
        """Add the input nodes, and features and i-vector side by side."""
        self.lines.append(f"input-node name={_INPUT} dim={dim - ivector_dim}")
        if not ivector_dim:
            return _INPUT
        self.lines.append(f"input-node name={_IVECTOR} dim={ivector_dim}")
        sources = [_INPUT, f"ReplaceIndex({_IVECTOR}, t, 0)"]
        return self.join(f"{_INPUT}_{_IVECTOR}", "Append", sources, dim)

    def _normalized(self, frame: str, normalizer: Normalizer) -> str:
        """Add the normalization of the frames."""
        if normalizer.mean is None or normalizer.scale is None:
            return frame
        scale = normalizer.scale.astype(np.float64)
        return self.scale_and_offset(
            "normalized", frame, scale, -normalizer.mean * scale
        )


def _check(model: AcousticNetwork) -> None:
    """Refuse networks that no nnet3 computes frame by frame."""
    network, description = model.network, model.network.description
    if not model.gives_log_likelihoods:
        raise UserError(
            "the outputs are not log-likelihoods: nnet3 export is for LF-MMI",
            file=description.file,
            remedy="name a network of type lfmmi, or one trained on top of it",
        )
    if not description.repeats_edges:
        raise UserError(
            "network: zeros stand beyond the ends of an utterance, where Kaldi repeats "
            "frames",
            file=description.file,
            remedy="train a network with edges: repeat",
        )
    kind = model.normalizer.kind
    if kind not in {"none", "global"}:
        raise UserError(
            f"normalization {kind} needs the whole utterance, which nnet3 lacks",
            file=description.file,
            remedy="train with data.normalization: global",
        )
    for layer in network.description.plan.behind(next(iter(network.outputs))):
        _check_layer(layer, network.body.module_of(layer))


def _check_layer(layer: LayerDescription, module: Layer) -> None:
    """Refuse a layer or a function without a component."""
    if type(module) not in LAYERS:
        raise layer.location.error(
            f"no nnet3 component is written for class {layer.class_name}",
            "export networks of tdnnf, tdnn, linear, batch_norm, splice, add, concat",
        )
    name = _function_of(layer)
    if name not in {"none", *_FUNCTIONS}:
        known = ", ".join(_FUNCTIONS)
        raise layer.location.error(f"nnet3 has no {name}", f"it has {known}")


def _function_of(layer: LayerDescription) -> str:
    """Return the function that a layer ends with."""
    for option in ("activation", "function"):
        if hasattr(layer.options, option):
            return str(getattr(layer.options, option))
    return "none"


def _shifted(source: str, frames: int) -> str:
    """Return the descriptor of a node some frames later."""
    return f"Offset({source}, {frames})" if frames else source


def _spliced(source: str, offsets: Sequence[int]) -> str:
    """Return the descriptor of a node's frames side by side."""
    pieces = [_shifted(source, offset) for offset in offsets]
    return pieces[0] if len(pieces) == 1 else f"Append({', '.join(pieces)})"


def _float32(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.float32)


def _array(tensor: Tensor) -> np.ndarray:
    """Return a parameter as float32, on the CPU."""
    return _float32(tensor.detach().cpu().double().numpy())


# -- layers: each adds its nodes, given its input's node and the features' frames for
#    one of its input, and returns the node of its result


def _linear(
    nnet: Nnet3, layer: LayerDescription, module: simple.Linear, source: str, _: int
) -> str:
    node = nnet.affine(f"{layer.name}.affine", source, module.map)
    return nnet.function(layer.name, node, _function_of(layer), module.shape.dim)


def _tdnn(
    nnet: Nnet3,
    layer: LayerDescription,
    module: time_delay.Tdnn,
    source: str,
    stride: int,
) -> str:
    frames = _spliced(source, [stride * offset for offset in module.offsets])
    node = nnet.affine(f"{layer.name}.affine", frames, module.map)
    return nnet.function(layer.name, node, _function_of(layer), module.shape.dim)


def _tdnnf(
    nnet: Nnet3,
    layer: LayerDescription,
    module: time_delay.TdnnF,
    source: str,
    stride: int,
) -> str:
    for number, block in enumerate(module.blocks, start=1):
        assert isinstance(block, time_delay.TdnnFBlock)
        name, reach = f"{layer.name}{number}", stride * block.reach
        before, behind = ([-reach, 0], [0, reach]) if reach else ([0], [0])
        node = nnet.affine(f"{name}.linear", _spliced(source, before), block.narrow)
        node = nnet.affine(f"{name}.affine", _spliced(node, behind), block.widen)
        node = nnet.function(name, node, "relu", module.shape.dim)
        node = nnet.batch_norm(name, node, block.norm)
        source = nnet.bypassed(name, node, source, block.bypass, module.shape.dim)
    return source


def _splice(
    nnet: Nnet3,
    layer: LayerDescription,
    module: convolution.Splice,
    source: str,
    stride: int,
) -> str:
    offsets = [stride * offset for offset in range(-module.left, module.right + 1)]
    pieces = [_shifted(source, offset) for offset in offsets]
    return nnet.join(f"{layer.name}.splice", "Append", pieces, module.shape.dim)


def _batch_norm(
    nnet: Nnet3, layer: LayerDescription, module: simple.BatchNorm, source: str, _: int
) -> str:
    return nnet.batch_norm(layer.name, source, module.norm)


def _activation(
    nnet: Nnet3, layer: LayerDescription, module: simple.Activation, source: str, _: int
) -> str:
    return nnet.function(layer.name, source, _function_of(layer), module.shape.dim)


def _same(
    nnet: Nnet3, layer: LayerDescription, module: Layer, source: str, stride: int
) -> str:
    """Return the input: nothing happens in recognition, or to frames that count."""
    del nnet, layer, module, stride
    return source


LAYERS: dict[type[Layer], Callable[..., str]] = {
    simple.Linear: _linear,
    simple.Activation: _activation,
    simple.BatchNorm: _batch_norm,
    simple.Dropout: _same,
    simple.Concat: _same,
    simple.Add: _same,
    augment.SpecAugment: _same,
    convolution.Splice: _splice,
    convolution.Subsample: _same,
    time_delay.Tdnn: _tdnn,
    time_delay.TdnnF: _tdnnf,
}
