"""Options of optimizers, of schedules of the learning rate, and of outliers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from latflow.options import (
    Fraction,
    NonNegativeFloat,
    Options,
    PositiveFloat,
    PositiveInt,
    ProperFraction,
)
from latflow.user_code import LOCATION, file_of

# Keys that several optimizers have.
Betas = Annotated[
    tuple[ProperFraction, ProperFraction],
    Field(description="Decay of the first and the second moment, per step."),
]
Eps = Annotated[
    PositiveFloat, Field(description="Added to the root of the second moment.")
]
Momentum = Annotated[
    ProperFraction, Field(description="Share of the step before that is kept.")
]
WeightDecay = Annotated[
    NonNegativeFloat,
    Field(description="Factor of the parameters that is added to the gradient."),
]


class AdamOptions(Options):
    """Adam."""

    type: Literal["adam"] = "adam"
    betas: Betas = (0.9, 0.999)
    eps: Eps = 1e-08
    weight_decay: WeightDecay = 0.0
    amsgrad: bool = False
    """Use the greatest second moment so far."""


class AdamWOptions(Options):
    """Adam with decoupled weight decay."""

    type: Literal["adamw"] = "adamw"
    betas: Betas = (0.9, 0.999)
    eps: Eps = 1e-08
    weight_decay: NonNegativeFloat = 0.01
    """Share of the parameters taken off per step, times the learning rate."""
    amsgrad: bool = False
    """Use the greatest second moment so far."""


class SgdOptions(Options):
    """Stochastic gradient descent."""

    type: Literal["sgd"] = "sgd"
    momentum: Momentum = 0.0
    nesterov: bool = False
    """Nesterov's momentum; needs a momentum above 0."""
    weight_decay: WeightDecay = 0.0

    @model_validator(mode="after")
    def _check_momentum(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0, for example 0.9")
        return self


class NaturalGradientOptions(Options):
    """Stochastic gradient descent along the natural gradient, as Kaldi trains.

    Its learning rate is some 2: of a mean over frames, and the gradient as long as it
    is. Best with `max_change: 2` of the training and a `weight_decay` of 0.001.
    """

    type: Literal["natural_gradient"] = "natural_gradient"
    alpha: PositiveFloat = 4.0
    """Smoothing of the moments, in means of their diagonals (Kaldi's alpha)."""
    history: PositiveFloat = 2000.0
    """Frames after which the weight of what was seen has fallen to 1 / e (Kaldi's
    num-samples-history)."""
    period: PositiveInt = 4
    """Steps from one look at inputs and derivatives to the next (Kaldi's
    update-period)."""
    momentum: Momentum = 0.0
    weight_decay: NonNegativeFloat = 0.0
    """Factor of the parameters that is added to the gradient, after it is changed."""


class AdagradOptions(Options):
    """Adagrad."""

    type: Literal["adagrad"] = "adagrad"
    lr_decay: NonNegativeFloat = 0.0
    """Decay of the learning rate per step."""
    eps: PositiveFloat = 1e-10
    """Added to the root of the sum of squares."""
    weight_decay: WeightDecay = 0.0


class RmspropOptions(Options):
    """RMSprop."""

    type: Literal["rmsprop"] = "rmsprop"
    alpha: ProperFraction = 0.99
    """Decay of the mean of squares, per step."""
    eps: Eps = 1e-08
    momentum: Momentum = 0.0
    centered: bool = False
    """Divide by the standard deviation, not by the root of the mean of squares."""
    weight_decay: WeightDecay = 0.0


class NadamOptions(Options):
    """Adam with Nesterov's momentum."""

    type: Literal["nadam"] = "nadam"
    betas: Betas = (0.9, 0.999)
    eps: Eps = 1e-08
    momentum_decay: NonNegativeFloat = 0.004
    """Decay of the momentum's warm-up, per step."""
    weight_decay: WeightDecay = 0.0


class RadamOptions(Options):
    """Adam with rectified variance."""

    type: Literal["radam"] = "radam"
    betas: Betas = (0.9, 0.999)
    eps: Eps = 1e-08
    weight_decay: WeightDecay = 0.0


class AdadeltaOptions(Options):
    """Adadelta; its learning rate is a factor on the steps that it computes, 1."""

    type: Literal["adadelta"] = "adadelta"
    rho: ProperFraction = 0.9
    """Decay of the means of squares, per step (RETURNN's adadelta_decay)."""
    eps: PositiveFloat = 1e-06
    """Added to the means of squares (RETURNN's adadelta_offset)."""
    weight_decay: WeightDecay = 0.0


class AdamaxOptions(Options):
    """Adam with the greatest size of the gradient instead of its second moment."""

    type: Literal["adamax"] = "adamax"
    betas: tuple[ProperFraction, ProperFraction] = (0.9, 0.999)
    """Decay of the first moment and of the greatest size, per step."""
    eps: PositiveFloat = 1e-08
    """Added to the greatest size."""
    weight_decay: WeightDecay = 0.0


class ScaledAdamOptions(Options):
    """Adam whose steps are as long as the parameters are large (Zipformer's).

    Its learning rate is some 0.045, with `schedule: {type: eden}`, a `warmup_steps` of
    500 and `clip_norm: null`.
    """

    type: Literal["scaled_adam"] = "scaled_adam"
    betas: Betas = (0.9, 0.98)
    eps: Eps = 1e-08
    scale_rate: PositiveFloat = 0.1
    """Learning rate of a parameter's size over that of its shape, and of parameters
    that are a single number."""
    clip_scale: PositiveFloat | None = 2.0
    """Gradients longer than this many times the median of the last steps are shortened
    to it; null for never."""
    clip_history: Annotated[int, Field(ge=4, le=10000)] = 100
    """Steps that the median is taken of; before this many, none is shortened."""


OptimizerOptions = Annotated[
    AdamOptions
    | AdamWOptions
    | SgdOptions
    | NaturalGradientOptions
    | AdagradOptions
    | RmspropOptions
    | AdadeltaOptions
    | AdamaxOptions
    | NadamOptions
    | RadamOptions
    | ScaledAdamOptions,
    Field(discriminator="type"),
]


class ConstantSchedule(Options):
    """It does not change."""

    type: Literal["constant"] = "constant"


class HalvingSchedule(Options):
    """It falls by a factor in each epoch from one on."""

    type: Literal["halving"] = "halving"
    first_epoch: Annotated[int, Field(ge=2)] = 4
    """First epoch with a smaller learning rate, counted from 1."""
    ratio: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Learning rate of an epoch over that of the epoch before."""


class NewbobSchedule(Options):
    """It falls after each epoch in which the dev error fell too little."""

    type: Literal["newbob"] = "newbob"
    measure: Literal["loss", "frame_errors"] = "loss"
    """Measure on dev, per frame."""
    relative: bool = True
    """Take changes as shares of the error before."""
    threshold: Annotated[float, Field(le=0)] = -0.01
    """An epoch's change above this (less improvement) lets the learning rate fall."""
    epochs: PositiveInt = 1
    """Epochs whose changes are averaged before the threshold is applied: the last so
    many (RETURNN's newbob_multi_num_epochs, 5 there)."""
    interval: PositiveInt = 1
    """Epochs from one decision to the next (RETURNN's newbob_multi_update_interval)."""
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """New learning rate over the old one."""
    min_learning_rate: NonNegativeFloat = 0.0
    """The learning rate stays above this."""


class NoamSchedule(Options):
    """The transformer's, min(s^-0.5, s x warmup^-1.5) in step s."""

    type: Literal["noam"] = "noam"
    warmup: PositiveInt = 4000
    """Steps in which it rises."""


class CosineSchedule(Options):
    """It falls as half a cosine over the whole training."""

    type: Literal["cosine"] = "cosine"
    final_ratio: Fraction = 0.0
    """Learning rate at the end over that at the start."""


class ExponentialSchedule(Options):
    """It falls by the same factor in each step of the training (Kaldi's nnet3)."""

    type: Literal["exponential"] = "exponential"
    final_ratio: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Learning rate at the end over that at the start."""


class EdenSchedule(Options):
    """It falls with steps and with epochs, in the end as the root of each (icefall's).

    In step s, after e epochs: (1 + (s / steps)^2)^-1/4 x (1 + (e / epochs)^2)^-1/4.
    """

    type: Literal["eden"] = "eden"
    steps: PositiveFloat = 7500.0
    """Steps after which it falls quickly."""
    epochs: PositiveFloat = 3.5
    """Epochs after which it falls quickly; more for small corpora."""


class CustomSchedule(Options):
    """A custom function, see docs/training.md."""

    type: Literal["custom"] = "custom"
    path: Annotated[str, Field(pattern=LOCATION)]
    """Location of the function: `module:function`, or `folder/file.py:function`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keywords that the function is given, unchanged."""

    @property
    def files(self) -> list[Path]:
        """The function's file, where the path names it."""
        return file_of(self.path)


ScheduleOptions = Annotated[
    ConstantSchedule
    | HalvingSchedule
    | NewbobSchedule
    | NoamSchedule
    | CosineSchedule
    | ExponentialSchedule
    | EdenSchedule
    | CustomSchedule,
    Field(discriminator="type"),
]


class OutlierOptions(Options):
    """Steps that are far from those before, and what becomes of them.

    Far is this many deviations above the median of the last steps; a deviation is
    1.4826 times the median distance from it.
    """

    action: Literal["skip", "clip"] = "skip"
    """`skip`: the step changes no parameter; `clip`: its gradient is shortened to the
    median length of the last steps."""
    loss: PositiveFloat | None = 10.0
    """Deviations above which the loss per frame is far; null for any loss."""
    gradient_norm: PositiveFloat | None = 10.0
    """Deviations above which the length of the gradient is far; null for any length."""
    history: Annotated[int, Field(ge=4, le=10000)] = 100
    """Steps that are looked back at; before this many, none is an outlier."""

    @model_validator(mode="after")
    def _check_measures(self) -> Self:
        if self.loss is None and self.gradient_norm is None:
            raise ValueError("loss and gradient_norm are both null: nothing is far")
        return self
