"""The acoustic network: features of a batch in, scores of the outputs' classes out."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from latflow.errors import UserError
from latflow.nnet.described import OutputLoss
from latflow.nnet.description import NetworkDescription
from latflow.nnet.drawing import NetworkGraph, format_table, network_graph
from latflow.nnet.draws import RowDraws
from latflow.nnet.graph import LayerDescription, LayerGraph
from latflow.nnet.layer import (
    Context,
    Layer,
    Padded,
    Shape,
    check_result,
    padding_of,
    zero,
)
from latflow.nnet.layers.augment import SpecAugment
from latflow.nnet.layers.decoder import AttentionDecoder
from latflow.nnet.layers.pretrained import Pretrained
from latflow.nnet.layers.simple import SemiOrthogonal, constrain
from latflow.nnet.options import Location
from latflow.nnet.streams import Memory, Pass, Piece, after


class Output(NamedTuple):
    """The result of an output.

    Attributes:
        logits: [B, T', K], scores before the softmax; 0 beyond the ends. Of the loss
            `attention` the encoder's frames, [B, T', D].
        lengths: int64 [B], frames of each sequence, on the device of the given lengths.
    """

    logits: Tensor
    lengths: Tensor


def log_likelihoods_of(
    logits: Tensor, log_priors: Tensor | None = None, *, softmax: bool = True
) -> Tensor:
    """Return log posteriors less log priors, float32 or float64 as given [..., K].

    Args:
        logits: of a network's output, [..., K].
        log_priors: scaled, [K]; None takes nothing off.
        softmax: False takes the logits as they are, normalized or not.
    """
    scores = logits if logits.dtype == torch.float64 else logits.float()
    if softmax:
        scores = functional.log_softmax(scores, -1)
    return scores if log_priors is None else scores - log_priors.to(scores)


class ReceptiveField(NamedTuple):
    """Frames of the features that an output frame sees; None = all.

    Attributes:
        left: frames before.
        right: frames after.
    """

    left: int | None
    right: int | None


@dataclass(frozen=True)
class OutputInfo:
    """An output of a network.

    Attributes:
        loss: its criterion, the name of its labels and its weight.
        num_classes: K.
    """

    loss: OutputLoss
    num_classes: int


class Network(nn.Module):
    """A network made from its description.

    A batch gives each sequence what it would give alone (in evaluation; in training
    batch normalization and dropout tie a batch together, padding still does not
    count). Output frame t' belongs to the features' frame `subsampling` x t'.

    Attributes:
        outputs: what they are, by name; the first one is decoded.
        subsampling: frames of the features for one of the outputs.
        context: with `edges: repeat`, frames before and behind a sequence that the
            outputs see: copies of its edge frames, or what `forward` is given.

    Args:
        description: the layers.
        dim_in: features per frame.
        classes: number of classes of each output, by the output's or its target's name.
        seed: of the parameters' start; the same seed gives the same network.

    Raises:
        UserError: layers that do not fit each other, or an output without its number
            of classes.
    """

    def __init__(
        self,
        description: NetworkDescription,
        dim_in: int,
        classes: Mapping[str, int],
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.description = description
        self.dim_in = dim_in
        self._frozen: set[str] = set()
        location = Location(description.file)
        sizes = _num_classes(description.outputs, classes, location)
        with torch.random.fork_rng(devices=[]):
            self.body = LayerGraph(description.plan, Shape(dim_in), sizes, seed=seed)
        self.outputs = {
            name: OutputInfo(loss, sizes[name])
            for name, loss in description.outputs.items()
        }
        for name, size in sizes.items():
            given = self.body.shapes[name].dim
            if given != size and self.outputs[name].loss.name != "attention":
                what = f"gives {given} numbers a frame, its target has {size} classes"
                raise location.inside(name).error(what)
        strides = {name: self.body.contexts[name].stride for name in sizes}
        if len(set(strides.values())) > 1:
            raise location.error(f"its outputs have different frame rates: {strides}")
        self.subsampling = next(iter(strides.values()))
        self.context = (0, 0)
        if description.repeats_edges:
            left, right = self.receptive_field
            assert left is not None
            assert right is not None
            self.context = (left, right)

    def forward(
        self,
        features: Tensor,
        lengths: Tensor,
        *,
        has_context: bool = False,
        draws: RowDraws | None = None,
        layers: Sequence[str] | None = None,
        lengths_there: Tensor | None = None,
    ) -> dict[str, Output]:
        """Score the classes of every output, or give what some layers give.

        Args:
            features: [B, T, dim_in]; anything may stand beyond the ends.
            lengths: integers [B], 1..T; on the CPU no transfer is needed.
            has_context: the features have the frames of `context` before and behind
                each sequence; lengths do not count them, nor does T here.
            draws: random numbers of the sequences, for masks in training, whose
                `num_frames` do not count context; None for torch's generator.
            layers: names of layers; None for the outputs.
            lengths_there: the lengths on the device of the features, where they are
                there already.

        Returns:
            The outputs by name, T' = ceil(T / subsampling); of other layers their
            values, with the stride that they have.

        Raises:
            ValueError: shapes that do not fit.
        """
        if features.shape[-1] != self.dim_in:
            raise ValueError(f"need {self.dim_in} features, not {features.shape[-1]}")
        self._set_draws(draws, features.device)
        there = lengths_there
        if there is None:
            there = lengths.to(features.device, torch.int64, non_blocking=True)
        if not self.description.repeats_edges:
            results = self.body(Padded.of(features, lengths, there), layers)
        else:
            if not has_context:
                features = repeat_edges(features, there, *self.context)
            lengths_here = lengths.to("cpu", torch.int64)
            results = self._with_context(features, lengths_here, there, layers)
        return {
            name: Output(batch.values, batch.lengths.to(lengths.device))
            for name, batch in results.items()
        }

    @cached_property
    def can_stream(self) -> bool:
        """Return whether `stream` takes streams: all layers say that they can."""
        has_context = self.description.repeats_edges
        return self.body.can_stream(next(iter(self.outputs)), has_context=has_context)

    def stream(
        self, features: Tensor, memory: Memory, rows: int, *, is_last: bool
    ) -> tuple[Tensor, Memory]:
        """Score the next pieces of streams side by side, for the first output.

        The rows are those of `forward` for the whole streams, whatever the pieces.

        Args:
            features: [B, T, dim_in], the frames that follow; at the beginning some.
            memory: what was returned with the pieces before; `Memory()` at first.
            rows: how many are wanted: of frames whose receptive field has come.
            is_last: whether the streams end with these pieces; more rows may be asked
                for after that, with T = 0.

        Returns:
            The next rows, [B, rows, K], and what is kept for those that follow.

        Raises:
            ValueError: that many rows have not come.
        """
        slots, waiting = memory.slots, memory.rows
        if not memory.has_ended:
            run = Pass(slots, is_last=is_last)
            piece = Piece(features, run)
            if self.description.repeats_edges:
                piece = self._edges_repeated(piece)
            found = self.body.stream(piece, next(iter(self.outputs)))
            found = found.skipped(found.before or 0).values
            waiting = found if waiting is None else after(waiting, found)
            slots = () if is_last else tuple(run.kept)
        if waiting is None or waiting.shape[1] < rows:
            raise ValueError(f"{rows} rows are asked for before they have come")
        kept = Memory(slots, waiting[:, rows:], is_last or memory.has_ended)
        return waiting[:, :rows], kept

    def _edges_repeated(self, piece: Piece) -> Piece:
        """Put copies of streams' first and last frames before and behind them."""
        (left, right), run, values = self.context, piece.run, piece.values
        found = run.recall()
        parts = [values]
        if found is None:
            parts.insert(0, values[:, :1].expand(-1, left, -1))
        last = values[:, -1:] if values.shape[1] or found is None else found[0]
        assert isinstance(last, Tensor)
        run.keep(last)
        if run.is_last:
            parts.append(last.expand(-1, right, -1))
        return Piece(torch.cat(parts, 1), run, left)

    def _set_draws(self, draws: RowDraws | None, device: torch.device) -> None:
        """Give each layer that masks features the numbers of its name."""
        if draws is not None:
            draws = draws.to(device)
        if draws is not None and draws.num_frames is not None:
            draws = RowDraws(draws.keys, draws.num_frames + sum(self.context))
        for name, module in self.named_modules():
            if isinstance(module, SpecAugment | Pretrained):
                module.draws = None if draws is None else draws.named(name)

    def _with_context(
        self,
        features: Tensor,
        lengths: Tensor,
        there: Tensor,
        layers: Sequence[str] | None,
    ) -> dict[str, Padded]:
        """Compute the outputs where context stands around the sequences.

        Args:
            features: [B, left + T + right, dim_in].
            lengths: int64 [B], on the CPU.
            there: the same on the device of the features.
            layers: see `forward`.
        """
        (left, right), device = self.context, features.device
        around = left + right
        padding = padding_of(
            lengths + around, features.shape[1], device, there + around
        )
        results = self.body(Padded(features, lengths + around, padding, left), layers)
        found = {}
        for name, result in results.items():
            stride = self.body.contexts[name].stride
            num_frames, frames_there = (
                (frames + stride - 1) // stride for frames in (lengths, there)
            )
            longest = int(num_frames.max())
            padding = padding_of(num_frames, longest, device, frames_there)
            inner = result.cut(0).shortened(num_frames, padding)
            found[name] = Padded(zero(inner.values, padding), num_frames, padding)
        return found

    @torch.no_grad()
    def try_out(self) -> None:
        """Pass two sequences of zeros, to find layers that give not what they say.

        Raises:
            UserError: a layer fails, or gives other sizes (names the layer).
        """
        reach = sum(side or 0 for side in self.receptive_field)
        lengths = torch.tensor([reach + 20 * self.subsampling, reach + 1])
        layers: dict[nn.Module, LayerDescription] = {
            self.body.module_of(layer): layer
            for layer in reversed(self.description.plan.layers)
        }
        entered: list[nn.Module] = []
        hooks = [module.register_forward_hook(check_result) for module in layers]
        hooks += [
            module.register_forward_pre_hook(lambda module, _: entered.append(module))
            for module in layers
        ]
        was_training = self.training
        try:
            self.eval()(torch.zeros(2, int(lengths[0]), self.dim_in), lengths)
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as e:
            raise layers[entered[-1]].location.error(f"cannot be computed: {e}") from e
        finally:
            self.train(was_training)
            for hook in hooks:
                hook.remove()

    def losses_of(self, kind: str) -> dict[str, OutputLoss]:
        """Return the losses of one kind (`ce`, `ctc`, ...), by their outputs."""
        outputs = self.outputs.items()
        return {name: o.loss for name, o in outputs if o.loss.name == kind}

    @property
    def decoder(self) -> tuple[str, AttentionDecoder]:
        """The output with a decoder, and the decoder.

        Raises:
            UserError: none was found.
        """
        for name, output in self.outputs.items():
            if output.loss.name == "attention":
                module = self.body.module_of(self.layer(name))
                assert isinstance(module, AttentionDecoder)
                return name, module
        raise UserError(
            "no output of the network has the loss attention",
            file=self.description.file,
            remedy="add a layer {class: attention_decoder, loss: attention}",
        )

    @property
    def num_parameters(self) -> int:
        """Numbers that training changes; shared ones count once."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    @property
    def receptive_field(self) -> ReceptiveField:
        """The frames that an output frame sees, the widest of the outputs'."""
        whole = Context()
        for name in self.outputs:
            whole = whole.joined(self.body.contexts[name])
        return ReceptiveField(whole.left, whole.right)

    @property
    def period(self) -> int:
        """Frames of the features in chunks that see alike; a multiple of subsampling.

        With more than `subsampling` the receptive field counts from a chunk's edges.
        """
        periods = [self.body.contexts[name].period for name in self.outputs]
        return math.lcm(self.subsampling, *periods)

    def freeze(self, names: Iterable[str]) -> None:
        """Keep layers as they are: parameters, and statistics of normalization.

        They are in evaluation mode from now on: nothing is dropped or masked there.

        Args:
            names: of layers, `*` for any part of a name.

        Raises:
            UserError: a name that no layer with its own module has, or nothing is left
                to learn.
        """
        names, layers = tuple(names), list(self.body.layers)
        for name in names:
            if not fnmatch.filter(layers, name):
                raise UserError(
                    f"training.freeze: no layer {name} in the network",
                    remedy=f"name layers that have parameters: {', '.join(layers)}",
                )
        self._frozen = {x for name in names for x in fnmatch.filter(layers, name)}
        for name in self._frozen:
            self.body.layers[name].requires_grad_(False)  # noqa: FBT003 - torch's form
        if names and not self.num_parameters:
            raise UserError(
                "training.freeze: nothing is left to learn",
                remedy="leave a layer with parameters out",
            )
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 - torch's form
        """Go into training mode, but for frozen layers; see `nn.Module.train`."""
        super().train(mode)
        for name in self._frozen:
            self.body.layers[name].eval()
        return self

    def at_step(self, step: int) -> None:
        """Let layers do what falls due before a step; frozen ones stay.

        Args:
            step: of the optimizer, counted from 1.
        """
        for layer in self._free_layers():
            layer.at_step(step)

    def learning_rate_factors(self) -> dict[str, float]:
        """Return factors of layers on the learning rate, by parameter."""
        prefixes = {id(part): name for name, part in self.named_modules()}
        return {
            f"{prefixes[id(layer)]}.{name}": factor
            for layer in self._free_layers()
            for name, factor in layer.learning_rate_factors().items()
        }

    def _free_layers(self) -> Iterator[Layer]:
        """Yield the layers that are not frozen, those inside others too."""
        for name, layer in self.body.layers.items():
            if name not in self._frozen:
                yield from (part for part in layer.modules() if isinstance(part, Layer))

    @torch.no_grad()
    def constrain(self) -> None:
        """Move semi-orthogonal factors that are not frozen one step towards being so.

        For the trainer, after a step of the optimizer; Kaldi does so after a quarter
        of the steps, drawn at random. Nothing happens where there is no such factor.
        """
        maps = (part for part in self.modules() if isinstance(part, SemiOrthogonal))
        constrain(part for part in maps if part.weight.requires_grad)

    def summary(self) -> str:
        """Return a table of layers: class, inputs, size, parameters, context."""
        return format_table(self.graph(), self)

    def graph(self) -> NetworkGraph:
        """Return the layers and connections, for a drawing."""
        return network_graph(self.body, self.dim_in)

    def layer(self, name: str) -> LayerDescription:
        """Return the description of a layer.

        Raises:
            KeyError: no such layer.
        """
        return {layer.name: layer for layer in self.description.plan.layers}[name]


def repeat_edges(values: Tensor, lengths: Tensor, left: int, right: int) -> Tensor:
    """Put copies of each sequence's first and last frame before and behind it.

    Args:
        values: [B, T, D].
        lengths: int64 [B], 1..T, on the device of the values.
        left: copies of the first frame.
        right: copies of the last frame, at least.

    Returns:
        [B, left + T + right, D].
    """
    times = torch.arange(-left, values.shape[1] + right, device=values.device)
    source = times.clamp(min=0).minimum(lengths[:, None] - 1)
    return values.gather(1, source.unsqueeze(2).expand(-1, -1, values.shape[2]))


def _num_classes(
    outputs: Mapping[str, OutputLoss], classes: Mapping[str, int], location: Location
) -> dict[str, int]:
    """Return the number of classes of each output."""
    sizes = {}
    for name, loss in outputs.items():
        size = classes.get(name, classes.get(loss.target))
        if size is None:
            known = ", ".join(classes) or "none"
            raise location.inside(name).error(
                f"the number of classes of its target {loss.target} is not known",
                f"known targets: {known}",
            )
        if size < 1:
            raise location.inside(name).error(f"its target has {size} classes")
        sizes[name] = int(size)
    return sizes
