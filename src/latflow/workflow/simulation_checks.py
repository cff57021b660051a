"""Refuse simulation of training data that a system cannot have, or learn from.

Public: `check_simulation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from latflow.errors import UserError
from latflow.simulation.options import MaskTarget

if TYPE_CHECKING:
    from latflow.workflow.recipe import Recipe


def check_simulation(recipe: Recipe, name: str) -> None:
    """Refuse simulation that features cannot have, and targets that nothing learns.

    Args:
        recipe: all of it.
        name: of the system with a network.

    Raises:
        UserError: names the key.
    """
    simulation = recipe.networks[name].data.simulation
    if simulation is None:
        return
    key = f"configuration nnet.systems.{name}.data.simulation"
    if recipe.stream_of(name) not in recipe.streams_of(stored=False):
        raise UserError(
            f"{key}: its features are stored",
            remedy="take features of nnet.features with `stored: false`",
        )
    stream = recipe.feature_streams.get(recipe.stream_of(name) or "")
    if stream is not None and (told := simulation.why_not_of(stream.channels)):
        what, remedy = told
        raise UserError(f"{key}: {what}", remedy=remedy)
    for target, options in simulation.targets.items():
        is_mask = isinstance(options, MaskTarget)
        if is_mask and stream is not None and stream.type == "lhotse":
            raise UserError(
                f"{key}.targets.{target}: the extractor {stream.extractor} has no bins "
                "that masks could be of",
                remedy="take features of type mfcc, fbank or waveform",
            )
        is_mel = isinstance(options, MaskTarget) and options.domain == "mel"
        if is_mel and stream is not None and stream.type == "waveform":
            raise UserError(
                f"{key}.targets.{target}.domain: features of type waveform have no mel "
                "filters",
                remedy="set it to stft",
            )
    if simulation.targets:
        _check_learnt(recipe, name, f"{key}.targets")


def _check_learnt(recipe: Recipe, name: str, key: str) -> None:
    """Refuse targets that no output of a network learns."""
    network = recipe.networks[name]
    if network.type not in {"attention", "ce", "ctc"}:
        raise UserError(
            f"{key}: outputs of a system of type {network.type} learn no features",
            remedy="leave it out, or train a system of type ce, ctc or attention",
        )
    outputs = recipe.outputs_of(name)
    learnt = {loss.target for loss in outputs.values() if loss.name == "mse"}
    for target in recipe.simulated_targets(name):
        if target in recipe.options.nnet.features:
            raise UserError(
                f"{key}.{target}: features of nnet.features have this name",
                remedy="give the target another",
            )
        if outputs and target not in learnt:
            raise UserError(
                f"{key}.{target}: no output of the network learns it",
                remedy=f"give an output `loss: mse, target: {target}`, or leave it out",
            )
