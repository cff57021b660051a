"""A transition model of three phones, small enough for random lattices over its ids."""

from latflow.hmm.topology import Topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency

SILENCE = [1]


def small_model() -> TransitionModel:
    """Silence (1) of one state; phones 2 and 3 of two states with the same pdfs."""
    topology = Topology.standard([2, 3], SILENCE, 2, 1)
    tree = ContextDependency.monophone([[1], [2, 3]], topology.pdf_class_counts())
    return TransitionModel.from_tree(tree, topology)
