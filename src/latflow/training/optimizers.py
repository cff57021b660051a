"""Optimizers by name, most of torch; learning rates; the gradient before a step.

The parameters' `.grad` are windows on one flat float32 vector: one all-reduce, one norm
and one multiplication serve the whole network. A parameter that a batch does not touch
has a gradient of zeros, on all ranks alike.

Learning rates are pure functions of where the training is and how dev went. Nothing is
kept between calls, so that a resumed training has those of an uninterrupted one.

Sources: Vaswani et al. 2017 (noam); RETURNN `LearningRateControl.py` (newbob);
PyKaldi2 `train_ce.py` (halving); Loshchilov and Hutter 2017 (cosine, no restarts);
Yao et al. 2024, "Zipformer", section 4.1 (eden).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn, optim
from torch.nn import Parameter

from latflow.errors import UserError
from latflow.nnet.draws import RowDraws, mixed_seed
from latflow.nnet.network import Network
from latflow.nnet.stacks import copy_all_
from latflow.training.natural_gradient import NaturalGradient
from latflow.training.optimizer_options import (
    ConstantSchedule,
    CosineSchedule,
    CustomSchedule,
    EdenSchedule,
    ExponentialSchedule,
    HalvingSchedule,
    NewbobSchedule,
    NoamSchedule,
    OptimizerOptions,
)
from latflow.training.options import TrainingOptions
from latflow.training.scaled_adam import ScaledAdam
from latflow.user_code import load_object

_NOISE = -2  # instead of a rank
_DECAY = 0.55  # of the variance of gradient noise, Neelakantan et al. 2015
OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "sgd": optim.SGD,
    "natural_gradient": NaturalGradient,
    "adagrad": optim.Adagrad,
    "rmsprop": optim.RMSprop,
    "adadelta": optim.Adadelta,
    "adamax": optim.Adamax,
    "nadam": optim.NAdam,
    "radam": optim.RAdam,
    "scaled_adam": ScaledAdam,
}
_WITH_FUSED = {"adam", "adamw", "sgd"}


def make_optimizer(
    network: nn.Module,
    options: OptimizerOptions,
    learning_rate: float,
    factors: Mapping[str, float] | None = None,
    dtype: torch.dtype | None = None,
) -> optim.Optimizer:
    """Return an optimizer of a network, with the learning rate of the first step.

    Args:
        network: its parameters.
        options: the optimizer.
        learning_rate: of the first step.
        factors: on the learning rate, by layer, beside those that layers of a
            `Network` have themselves; 1 for the others.
        dtype: of the passes through the network; None for that of its parameters.

    Raises:
        UserError: a factor of a layer that has no parameters.
    """
    params, arguments = list(network.parameters()), options.model_dump(exclude={"type"})
    if options.type in _WITH_FUSED and params and params[0].is_cuda:
        arguments["fused"] = True
    if options.type == "natural_gradient":
        arguments |= {"network": network, "dtype": dtype}
    own = network.learning_rate_factors() if isinstance(network, Network) else {}
    optimizer = OPTIMIZERS[options.type](
        params=_groups(network, factors or {}, own) if factors or own else params,
        lr=learning_rate,
        **arguments,
    )
    set_learning_rate(optimizer, learning_rate)
    return optimizer


def _groups(
    network: nn.Module, factors: Mapping[str, float], own: Mapping[str, float]
) -> list[dict[str, object]]:
    """Return parameters in groups: those without a factor, then of each layer.

    Args:
        network: whose.
        factors: on the learning rate, by layer.
        own: further factors, by parameter.
    """
    rest = dict(network.named_parameters())
    groups: dict[tuple[str, float], list[Parameter]] = {("", 1.0): []}
    for layer in (*factors, ""):
        prefix = f"body.layers.{layer}." if layer else ""
        found = [name for name in rest if name.startswith(prefix)]
        if layer and not found:
            raise UserError(
                f"training.learning_rate_factors: no layer {layer} with parameters",
                remedy="name layers of the network as its file does",
            )
        for name in found:
            group = groups.setdefault((layer, own.get(name, 1.0)), [])
            group.append(rest.pop(name))
    return [
        {"params": params, "factor": factors.get(layer, 1.0) * factor}
        for (layer, factor), params in groups.items()
    ]


def set_learning_rate(optimizer: optim.Optimizer, learning_rate: float) -> None:
    """Use a learning rate from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("factor", 1.0)


@contextmanager
def limit_change(
    parameters: Sequence[Parameter], max_change: float | None
) -> Iterator[None]:
    """Shorten the change of parameters that the block makes, if it is longer.

    Args:
        parameters: changed in the block.
        max_change: greatest Euclidean length of the change of them all; None for any.

    Source: Kaldi `nnet3/nnet-utils.cc:UpdateNnetWithMaxChange`.
    """
    if max_change is None:
        yield
        return
    with torch.no_grad():
        before = [part.clone() for part in _parts(parameters)]
        yield
        pairs = list(zip(before, _parts(parameters), strict=True))
        lengths = [torch.linalg.vector_norm(end - start) for start, end in pairs]
        share = max_change / torch.linalg.vector_norm(torch.stack(lengths))
        if share.is_cpu and not share < 1.0:  # nobody waits for a GPU
            return
        share = share.clamp(max=1.0)  # the whole of a change stays bit by bit
        _set(parameters, [torch.lerp(start, end, share) for start, end in pairs])


def _parts(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return parameters: on a GPU as one vector, for fewer operations."""
    if parameters[0].is_cpu:
        return [p.detach() for p in parameters]
    return [torch.cat([p.detach().flatten() for p in parameters])]


def _set(parameters: Sequence[Tensor], values: list[Tensor]) -> None:
    """Set parameters to values as `_parts` gives them."""
    if not values[0].is_cpu:
        values = list(values[0].split([p.numel() for p in parameters]))
    copy_all_(parameters, values)


@torch.no_grad()
def limit_norms(parameters: Iterable[Parameter], max_norm: float) -> None:
    """Shorten each unit's incoming weights to a length.

    A unit is a row of a weight matrix (of a convolution: a filter); vectors, such as
    biases, stay.

    Args:
        parameters: changed in place.
        max_norm: greatest Euclidean length, > 0.
    """
    for parameter in parameters:
        if parameter.ndim > 1:
            parameter.renorm_(2.0, 0, max_norm)


class FlatGradient:
    """The gradients of some parameters, as windows on one vector.

    Attributes:
        parameters: those that are trained.
        vector: float32 [N], their gradients one after another.
        windows: of each parameter, of its shape.

    Args:
        parameters: of a network, on their device; those without gradient are left out.
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        count = sum(p.numel() for p in self.parameters)
        device = self.parameters[0].device if self.parameters else None
        self.vector = torch.zeros(count, dtype=torch.float32, device=device)
        begin = 0
        self.windows: list[Tensor] = []
        for parameter in self.parameters:
            window = self.vector[begin : begin + parameter.numel()]
            self.windows.append(window.view_as(parameter))
            begin += parameter.numel()

    def clear(self) -> None:
        """Set all to zero, and the parameters' `.grad` to the windows.

        Parameters that stay for now have none, so that no optimizer changes them.
        """
        self.vector.zero_()
        for parameter, window in zip(self.parameters, self.windows, strict=True):
            parameter.grad = window if parameter.requires_grad else None

    def pull(self, factor: float) -> None:
        """Add `factor` times the parameters: the gradient of factor/2 x their square.

        Args:
            factor: of L2 regularization, per frame.
        """
        with torch.no_grad():
            parameters: list[Tensor] = [*self.parameters]
            torch._foreach_add_(self.windows, parameters, alpha=factor)  # pyright: ignore

    def add_noise(self, eta: float, step: int, seed: int) -> None:
        """Add normal noise of variance eta / (1 + step)^0.55, the same on all ranks.

        A GPU draws other numbers than the processor, the same on GPUs of all kinds.

        Args:
            eta: variance in step 0.
            step: of the optimizer, counted from 0.
            seed: of the training.
        """
        sigma = (eta / (1.0 + step) ** _DECAY) ** 0.5
        noise = _normal(self.vector, mixed_seed(seed, step, _NOISE))
        self.vector.add_(noise, alpha=sigma)

    def clip(self, max_norm: float | None, norm: Tensor | None = None) -> Tensor:
        """Shorten the gradient to a length, if it is longer.

        Args:
            max_norm: the length; None only measures.
            norm: its length, where that is known; None measures it.

        Returns:
            The length before, a scalar on the device; nobody waits for it here.
        """
        length = torch.linalg.vector_norm(self.vector) if norm is None else norm
        if max_norm is not None:
            self.vector.mul_(torch.clamp(max_norm / length, max=1.0))
        return length


def _normal(like: Tensor, seed: int) -> Tensor:
    """Draw normal numbers, as many and where a vector [N] has its own.

    Source: Box & Muller 1958 (on a GPU, whose generator depends on its kind).
    """
    if like.is_cpu:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(like.shape, generator=generator)
    key = torch.full((1,), seed, device=like.device)
    radius, angle = RowDraws(key).uniform(2, -(-len(like) // 2))[0]
    radius = radius.neg_().log1p_().mul_(-2.0).sqrt_()
    angle = angle.mul_(2.0 * math.pi)
    both = torch.cat((radius * angle.cos(), radius * angle.sin()))
    return both[: len(like)].to(like.dtype)


@dataclass(frozen=True)
class Moment:
    """The point that a training has reached.

    Attributes:
        step: of the optimizer, counted from 1; the one about to be made.
        epoch: counted from 1.
        progress: share of the whole training that is done, in [0, 1].
    """

    step: int
    epoch: int
    progress: float


History = Sequence[Mapping[str, float]]


def learning_rate(options: TrainingOptions, moment: Moment, history: History) -> float:
    """Return the learning rate of a step.

    Args:
        options: `schedule`, the `learning_rate` that it starts from, and the
            `warmup_steps` over which all is scaled up from 0; the first step's factor
            is 1 / warmup_steps.
        moment: where the training is.
        history: means per frame on dev at the end of each finished epoch.
    """
    rate = options.learning_rate * _factor(options, moment, history)
    if moment.step < options.warmup_steps:
        rate *= moment.step / options.warmup_steps
    return rate


def _factor(options: TrainingOptions, moment: Moment, history: History) -> float:
    """Return what a schedule multiplies the learning rate by."""
    match options.schedule:
        case HalvingSchedule() as halving:
            return halving.ratio ** max(0, moment.epoch - halving.first_epoch + 1)
        case NewbobSchedule() as newbob:
            return _newbob(newbob, options.learning_rate, history)
        case NoamSchedule() | EdenSchedule() as counting:
            return _counting(counting, moment)
        case CosineSchedule() | ExponentialSchedule() as falling:
            return _falling(falling, min(1.0, moment.progress))
        case CustomSchedule() as custom:
            return _custom(custom, moment, history)
        case ConstantSchedule():
            return 1.0


def _counting(schedule: NoamSchedule | EdenSchedule, moment: Moment) -> float:
    """Return a factor that follows from the steps and epochs so far."""
    if isinstance(schedule, NoamSchedule):
        return min(moment.step**-0.5, moment.step * schedule.warmup**-1.5)
    steps = moment.step / schedule.steps
    epochs = (moment.epoch - 1) / schedule.epochs
    return ((1.0 + steps**2) * (1.0 + epochs**2)) ** -0.25


def _falling(schedule: CosineSchedule | ExponentialSchedule, progress: float) -> float:
    """Return a factor that falls from 1 to `final_ratio` over the whole training."""
    if isinstance(schedule, ExponentialSchedule):
        return schedule.final_ratio**progress
    share = 0.5 * (1.0 + math.cos(math.pi * progress))
    return schedule.final_ratio + (1.0 - schedule.final_ratio) * share


def _newbob(schedule: NewbobSchedule, start: float, history: History) -> float:
    """Return a factor that falls with each epoch that changed the error too little.

    Source: RETURNN `LearningRateControl.py`, `NewbobRelative`, `NewbobAbs` and (with
    `epochs` and `interval`) `NewbobMultiEpoch`.
    """
    floor = schedule.min_learning_rate / start
    errors = [epoch[schedule.measure] for epoch in history]
    factor, changes = 1.0, deque[float](maxlen=schedule.epochs)
    for number, (before, after) in enumerate(pairwise(errors), 1):
        change = after - before
        changes.append(change / (abs(before) or 1.0) if schedule.relative else change)
        if number % schedule.interval:
            continue
        if not sum(changes) / len(changes) <= schedule.threshold:
            factor = max(factor * schedule.decay, min(factor, floor))
    return factor


def _custom(schedule: CustomSchedule, moment: Moment, history: History) -> float:
    """Return the factor of a function of the user's own.

    Raises:
        UserError: it cannot be loaded or called, or gives no factor.
    """
    key, remedy = f"schedule {schedule.path}", "see docs/training.md, learning rates"
    try:
        function = load_object(schedule.path)
    except (ImportError, OSError, SyntaxError, AttributeError) as error:
        what = f"{key} cannot be loaded: {error}"
        raise UserError(what, remedy=remedy) from error
    try:
        factor = float(function(moment, history, **schedule.options))
    except Exception as error:  # of the user's own code it may be any
        what = f"{key}: {type(error).__name__}: {error}"
        raise UserError(what, remedy=remedy) from error
    if not (math.isfinite(factor) and factor >= 0.0):
        raise UserError(f"{key} gives {factor:g}, no factor", remedy=remedy)
    return factor


def is_exhausted(history: History, patience: int | None) -> bool:
    """Return whether dev has not become better in the last `patience` epochs.

    Args:
        history: means per frame on dev at the end of each finished epoch.
        patience: None for never.
    """
    if patience is None or len(history) <= patience:
        return False
    losses = [epoch["loss"] for epoch in history]
    return min(losses[-patience:]) >= min(losses[:-patience])
