"""Refuse what does not go with networks that learn from transcripts alone.

Public: `check_from_transcripts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from latflow.errors import UserError
from latflow.training.options import AttentionSystemOptions, CtcSystemOptions

if TYPE_CHECKING:
    from latflow.workflow.recipe import Recipe


def check_from_transcripts(
    recipe: Recipe, name: str, network: AttentionSystemOptions | CtcSystemOptions
) -> None:
    """Refuse settings of labels of frames, or a description that is not there."""
    key = f"configuration nnet.systems.{name}"
    if not recipe.describes_network(name):
        raise UserError(
            f"{key}.network: no such file {network.network}",
            remedy="it must be there when the recipe is read: graphs of transcripts "
            "depend on its frame subsampling",
        )
    what, losses = "CTC", {loss.name for loss in recipe.outputs_of(name).values()}
    if isinstance(network, AttentionSystemOptions):
        what = "a decoder with attention"
        losses |= {"ce"}  # of units
        if network.training.pretraining:
            raise UserError(
                f"{key}.training.pretraining: a decoder cannot be trained on a part of "
                "its encoder's layers",
                remedy="leave it out",
            )
    if network.training.priors != "posteriors":
        raise UserError(
            f"{key}.training.priors: {what} has no labels of frames to count",
            remedy="set it to posteriors",
        )
    if network.training.label_smoothing and "ce" not in losses:
        raise UserError(
            f"{key}.training.label_smoothing: is of cross-entropy, which no output of "
            "the network has",
            remedy="leave it out",
        )
    if getattr(network.training.schedule, "measure", "loss") != "loss":
        raise UserError(
            f"{key}.training.schedule.measure: {what} counts no frame errors",
            remedy="set it to loss",
        )
