"""Options of decoding, training, denominator and chain graphs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from latflow.options import NonNegativeFloat, NonNegativeInt, Options, PositiveInt

Sentences = Literal["one", "several"]
Composition = Literal["static", "lookahead"]


class GraphOptions(Options):
    """Scales of the transition probabilities in graphs (Kaldi's mkgraph.sh)."""

    transition_scale: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Factor on the log-probabilities of transitions between HMM states, given that a
    state is left; dimensionless. 1 keeps them as trained, 0 leaves them out."""
    self_loop_scale: Annotated[float, Field(ge=0, le=10)] = 0.1
    """Factor on the log-probabilities of staying in an HMM state and of leaving it;
    dimensionless. Near the acoustic scale of decoding, so that durations count as
    little as the acoustics do."""


class ChainGraphOptions(GraphOptions):
    """Scales of the transition probabilities in graphs of LF-MMI networks."""

    self_loop_scale: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Factor on the log-probabilities of staying in an HMM state and of leaving it;
    dimensionless. Such networks are decoded with an acoustic scale of 1, and so is
    this."""


class CtcGraphOptions(GraphOptions):
    """Scales of the transition probabilities in graphs of CTC, which has none."""

    transition_scale: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Factor on the log-probabilities of transitions between the states of a label and
    its blank, which are even; dimensionless. CTC has none: 0."""
    self_loop_scale: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Factor on the log-probabilities of staying in a label or blank and of leaving it,
    which are even; dimensionless. CTC has none: 0."""


class DenominatorOptions(GraphOptions):
    """The graph that lattices are made with in training.

    It has a weak language model of the training transcripts. Alignments on the fly
    have its scales of transition probabilities too.
    """

    order: Annotated[int, Field(ge=1, le=2)] = 1
    """Words in its longest n-grams. 1 = words by their frequency (as Kaldi's
    make_denlats.sh), 2 = pairs of words (modified Kneser-Ney)."""


class PhoneLmOptions(Options):
    """The phone language model behind the denominator of lattice-free MMI.

    It is not smoothed, so that its graph has few arcs.
    """

    ngram_order: Annotated[int, Field(ge=2, le=6)] = 4
    """Phones in its longest n-grams."""
    no_prune_ngram_order: Annotated[int, Field(ge=1, le=6)] = 3
    """N-grams up to this order have their own states, however rare they are."""
    num_extra_lm_states: NonNegativeInt = 2000
    """Most states of higher order that are kept beside these; the others, whose
    histories say the least about the next phone, are merged with the shorter
    history."""


class ChainTreeOptions(Options):
    """Tree and denominator of a network trained with lattice-free MMI."""

    num_leaves: PositiveInt = 2000
    """Leaves of the tree at which splitting ends, before leaves are merged."""
    context_width: Literal[1, 2, 3] = 2
    """Phones in the context window: 1 without context, 2 with the phone before, 3 with
    the one behind too."""
    frame_subsampling: Annotated[int, Field(ge=1, le=10)] = 3
    """Frames of the features for one of the network's outputs, whose tree this is."""
    split_threshold: NonNegativeFloat = 300.0
    """Least gain in log-likelihood of a split of the tree, summed over frames."""
    cluster_threshold: float = -1.0
    """Greatest loss of merging leaves; negative for the gain of the least split, 0 to
    merge none."""
    phone_lm: PhoneLmOptions = PhoneLmOptions()
    """Phone language model of the denominator."""


class BiasedGraphOptions(Options):
    """Language models of decoding graphs that are biased to transcripts."""

    order: Annotated[int, Field(ge=1, le=6)] = 4
    """Words in their longest n-grams."""
    num_top_words: NonNegativeInt = 100
    """Most frequent words of the set that are possible everywhere."""
    min_words: PositiveInt = 100
    """Words of the transcripts that share a graph, at least."""
