"""Sizes of systems by the amount of speech that there is to train them on.

Source: docs/decisions/0008-small-systems-for-small-corpora.md, and the recipes that
come with latflow, whose sizes were found by trying.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Leaves of a corpus of 0.4 hours, whose systems were sized by hand.
_HOURS, _LEAVES, _MOST_LEAVES, _GAUSSIANS = 0.4, 400, 4200, 6
_LDA_HOURS = 0.2  # with less speech LDA has too little to learn from
# Trees of networks for lattice-free MMI.
_CHAIN_HOURS, _CHAIN_LEAVES, _MOST_CHAIN_LEAVES = 2.0, 600, 7000
# Contexts of a phone that differ, of a word that is always between others.
_LEAVES_PER_PHONE, _CHAIN_LEAVES_PER_PHONE = 4.0, 2.5


@dataclass(frozen=True)
class NetworkSize:
    """Sizes of a network for lattice-free MMI, and of its training."""

    leaves: int
    """Pdfs of its tree, at most."""
    width: int
    """Size of its hidden layers."""
    bottleneck: int
    """Size of the bottlenecks of its factorized layers."""
    layers: int
    """Number of these layers."""
    epochs: int
    """Passes over the training set, at three speeds."""
    max_sequences: int
    """Utterances of a batch, at most."""
    warmup_steps: int
    """Steps until the learning rate is the full one."""


def gmm_systems(
    hours: float, last: str, phones: int | None = None
) -> dict[str, dict[str, Any]]:
    """Return systems from monophones to speaker-adapted triphones, as of a recipe.

    Args:
        hours: of speech.
        last: name of the last one.
        phones: of the words that occur, each spelled once; few words have few contexts.
            None for many.
    """
    leaves = round(_LEAVES * (hours / _HOURS) ** 0.6)
    leaves = max(30, min(_MOST_LEAVES, leaves))
    if phones is not None:
        leaves = min(leaves, max(20, round(_LEAVES_PER_PHONE * phones)))
    size = {"num_leaves": leaves, "num_gaussians": _GAUSSIANS * leaves}
    systems: dict[str, dict[str, Any]] = {
        "mono": {"type": "mono", "num_gaussians": min(1000, max(100, 2 * leaves))},
        "tri1": {"type": "deltas", "alignments": "mono", **size},
    }
    if hours >= _LDA_HOURS:
        systems["tri2"] = {"type": "lda_mllt", "alignments": "tri1", **size}
    before = list(systems)[-1]
    return {**systems, last: {"type": "sat", "alignments": before, **size}}


def network_size(hours: float, phones: int) -> NetworkSize:
    """Return the size of a network for lattice-free MMI.

    Args:
        hours: of speech.
        phones: see `gmm_systems`.
    """
    leaves = round(_CHAIN_LEAVES * (hours / _CHAIN_HOURS) ** 0.75)
    leaves = min(leaves, _MOST_CHAIN_LEAVES, round(_CHAIN_LEAVES_PER_PHONE * phones))
    leaves = max(20, leaves)
    if hours < 0.3:
        return NetworkSize(leaves, 256, 64, 5, 12, 4, 20)
    if hours < 1.0:
        return NetworkSize(leaves, 320, 64, 6, 12, 8, 50)
    if hours < 50:
        return NetworkSize(leaves, 384, 80, 7, 12, 16, 100)
    if hours < 300:
        return NetworkSize(leaves, 768, 96, 10, 6, 64, 200)
    return NetworkSize(leaves, 1536, 160, 12, 4, 64, 500)
