"""Sizes of an experiment's networks, and what their trainings take of memory.

Public: `NetworkSizes`.
"""

from __future__ import annotations

from collections.abc import Mapping

from latflow.errors import UserError
from latflow.features.frame_times import Amount, feature_dim
from latflow.nnet.description import NetworkDescription
from latflow.nnet.footprint import Footprint, footprint_of
from latflow.sequence.options import SequenceSystemOptions
from latflow.training.memory import TrainingMemory, memory_of
from latflow.workflow.recipe import Recipe

# Features of a GMM system that networks read, unless it says so itself: LDA's.
ADAPTED_DIM = 40
# Classes of a network whose tree is not grown to a number of leaves.
FEW_CLASSES = 100
FRAMES_PER_SECOND = 100
LONGEST = 3.0  # the longest utterance, by the mean of all
USUAL_SECONDS = 7.0  # mean of a set that nothing is known of


class NetworkSizes:
    """Sizes of a recipe's networks.

    Args:
        recipe: the experiment.
        splits: hours and utterances of sets, where they are known: utterances are taken
            to be up to `LONGEST` times their mean.
    """

    def __init__(self, recipe: Recipe, splits: Mapping[str, Amount]) -> None:
        self._recipe, self._splits = recipe, splits
        self._found: dict[str, Footprint | None] = {}

    def memory(self, name: str) -> TrainingMemory | None:
        """Return what a training takes; None where there is no description yet.

        The networks of an ensemble count together.
        """
        options, seed = self._recipe.networks[name], name
        while isinstance(parent := self._recipe.networks[seed], SequenceSystemOptions):
            seed = parent.parent
        if seed not in self._found:
            self._found[seed] = self._footprint(seed)
        footprint = self._found[seed]
        if footprint is None:
            return None
        longest = self._longest(name)
        one = memory_of(footprint, options.training, options.data, longest)
        return one.times(options.training.ensemble)

    def _longest(self, name: str) -> int:
        """Return about how many frames the longest utterance has that is trained on."""
        amount = self._splits.get(self._recipe.training_set_of(name))
        hours, count = (0.0, None) if amount is None else amount
        mean = 3600 * hours / count if count else USUAL_SECONDS
        return max(1, round(LONGEST * mean * FRAMES_PER_SECOND))

    def _footprint(self, name: str) -> Footprint | None:
        """Count a network with the classes that its tree will have."""
        file = self._recipe.description_of(name)
        if file is None:
            return None
        description = NetworkDescription.load(file)
        targets = {loss.target for loss in description.outputs.values()}
        classes = dict.fromkeys(targets, self._leaves(name))
        parts = {x: self._dim(x) for x in self._recipe.streams_read(name) or ("",)}
        try:
            description = description.with_parts(parts if len(parts) > 1 else {})
            return footprint_of(description, sum(parts.values()), classes)
        except (UserError, ValueError):
            return None

    def _leaves(self, name: str) -> int:
        """Return the leaves that a network's tree is grown to."""
        recipe = self._recipe
        if recipe.has_own_tree(name):
            tree = getattr(recipe.networks[name], "tree", None)
            return int(getattr(tree, "num_leaves", 0) or FEW_CLASSES)
        source = recipe.gmm_behind(name)
        options = recipe.options.gmm.systems.get(source or "")
        return int(getattr(options, "num_leaves", 0) or FEW_CLASSES)

    def _dim(self, stream: str) -> int:
        """Return features a frame."""
        nnet, below = self._recipe.options.nnet, 0
        if stream in nnet.ivectors:
            below = nnet.ivectors[stream].dim
            stream = nnet.ivectors[stream].features
        options = nnet.features.get(stream)
        return below + (ADAPTED_DIM if options is None else feature_dim(options))
