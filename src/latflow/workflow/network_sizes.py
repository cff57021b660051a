"""Sizes of an experiment's networks, and what their trainings take of memory."""

from __future__ import annotations

from collections.abc import Mapping

from latflow.errors import UserError
from latflow.features.frame_times import Amount, feature_dim
from latflow.features.options import ExtractionOptions, FrameGeometry
from latflow.nnet.description import NetworkDescription
from latflow.nnet.footprint import Footprint, footprint_of
from latflow.training.memory import TrainingMemory, memory_of
from latflow.workflow.frames import ExtractedFrames, Frames, IvectorFrames
from latflow.workflow.networks import BaseNetwork, Network
from latflow.workflow.resolve import Systems

# Features of a GMM system that networks read, unless it says so itself: LDA's.
ADAPTED_DIM = 40
# Classes of a network whose tree is not grown to a number of leaves.
FEW_CLASSES = 100
FRAMES_PER_SECOND = 100
LONGEST = 3.0  # the longest utterance, by the mean of all
USUAL_RATE = 16000  # Hz, of samples that a network reads, where no layer says it
USUAL_SECONDS = 7.0  # mean of a set that nothing is known of


class NetworkSizes:
    """Sizes of a recipe's networks.

    Args:
        recipe: the experiment.
        splits: hours and utterances of sets, where they are known: utterances are taken
            to be up to `LONGEST` times their mean.
    """

    def __init__(self, recipe: Systems, splits: Mapping[str, Amount]) -> None:
        self._networks, self._splits = recipe.networks, splits
        self._found: dict[str, Footprint | None] = {}

    def memory(self, name: str) -> TrainingMemory | None:
        """Return what a training takes; None where there is no description yet.

        The networks of an ensemble count together.
        """
        network = self._networks[name]
        footprint, options = self._of(network.base), network.options
        if footprint is None:
            return None
        longest = self._longest(network)
        one = memory_of(footprint, options.training, options.data, longest)
        return one.times(options.training.ensemble)

    def _of(self, base: BaseNetwork) -> Footprint | None:
        """Return the counted network; it is counted once."""
        if base.name not in self._found:
            self._found[base.name] = _footprint(base)
        return self._found[base.name]

    def _longest(self, network: Network) -> int:
        """Return about how many frames the longest utterance has that is trained on."""
        amount = self._splits.get(network.training_set)
        hours, count = (0.0, None) if amount is None else amount
        mean = 3600 * hours / count if count else USUAL_SECONDS
        return max(1, round(LONGEST * mean * FRAMES_PER_SECOND))


def _footprint(network: BaseNetwork) -> Footprint | None:
    """Count a network with the classes that its tree will have."""
    if network.description is None:
        return None
    description = NetworkDescription.load(network.description)
    targets = {loss.target for loss in description.outputs.values()}
    classes = dict.fromkeys(targets, _leaves(network))
    rate = next(iter(network.sample_rates.values()), USUAL_RATE)
    try:
        parts = {part.name: _dim(part, rate) for part in network.frames.parts}
        description = description.with_parts(parts if len(parts) > 1 else {})
        return footprint_of(description, sum(parts.values()), classes)
    except (UserError, ValueError):
        return None


def _leaves(network: BaseNetwork) -> int:
    """Return the leaves that a network's tree is grown to."""
    ancestor = network.gmm_ancestor
    gmm = None if ancestor is None else ancestor.options
    tree = getattr(network.options, "tree", None) if network.has_own_tree else gmm
    return int(getattr(tree, "num_leaves", 0) or FEW_CLASSES)


def _dim(frames: Frames, sample_rate: int) -> int:
    """Return features per frame; those of a window of samples depend on their rate."""
    if isinstance(frames, IvectorFrames):
        return frames.options.dim + _dim(frames.below, sample_rate)
    if not isinstance(frames, ExtractedFrames) or frames.is_of_gmms:
        return ADAPTED_DIM
    options = frames.options
    if isinstance(options, ExtractionOptions) and options.type == "waveform":
        length = FrameGeometry.of(options, options.sample_rate or sample_rate).length
        return length * len(options.channels or (0,))
    return feature_dim(options)
