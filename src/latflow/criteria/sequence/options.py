"""Options of sequence training: lattices and alignments made on the fly."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from latflow.align.options import AlignOptions
from latflow.decode.options import BeamOptions
from latflow.options import (
    Fraction,
    NonNegativeInt,
    Options,
    PositiveFloat,
)


class DepthOptions(Options):
    """Lets the lattice beam follow a wanted depth of the lattices."""

    target: PositiveFloat | None = None
    """Arcs per frame that are wanted; null keeps the lattice beam as it is."""
    min_lattice_beam: PositiveFloat = 2.0
    """The lattice beam is never less (negated log, scaled)."""
    max_lattice_beam: PositiveFloat = 12.0
    """The lattice beam is never more (negated log, scaled)."""
    rate: Annotated[float, Field(gt=0, le=1)] = 0.1
    """After a step the lattice beam is multiplied by (target / depth) to this power."""


class LatticeSearchOptions(BeamOptions):
    """The search for lattices, in each step, with the current network."""

    lattice_beam: PositiveFloat = 8.0
    """Paths costing more than the best of the utterance plus this are left out of the
    lattice (negated log, scaled); where `depth.target` is set, at the start."""
    max_active: Annotated[int, Field(ge=2)] = 5000
    """Graph states followed per frame, at most."""
    acoustic_scale: PositiveFloat = 0.1
    """Factor of acoustic log-likelihoods in the search; the criterion has its own. On
    top of LF-MMI the default is 1.0, as for all scales of sequence training."""
    retry_beam_factor: Annotated[float, Field(ge=1)] = 2.0
    """Factor of the beam in a second search, where the first ends in no final state; 1
    = no second search."""
    on_no_final: Literal["partial", "skip"] = "skip"
    """Treatment of an utterance whose last search ends in no final state. `partial`
    takes the incomplete paths, `skip` leaves the utterance out of the step. The ledger
    names it."""
    depth: DepthOptions = DepthOptions()
    """Lets the lattice beam follow a wanted depth of the lattices."""
    oracle_every: NonNegativeInt = 10
    """Every n-th utterance, always the same ones, has the least word error rate of
    all paths of its lattice measured; 0 = none."""
    max_failed_fraction: Fraction = 0.02
    """Share of utterances that may give no lattice or no alignment before the training
    stops."""


class AlignmentOptions(AlignOptions):
    """The alignments that say what is right; those on the fly have the search below."""

    source: Literal["static", "on_the_fly"] = "static"
    """`static` takes those that the network's seed was trained on; `on_the_fly` aligns
    each utterance in each step with the current network."""
    on_failure: Literal["static", "skip"] = "static"
    """Treatment of an utterance that cannot be aligned. `static` takes its static
    alignment, if it has one; `skip` leaves it out of the step. The ledger names it."""


class DevSearchOptions(BeamOptions):
    """Decoding of dev after each epoch, to count its word errors.

    With the language model weight and the insertion penalty that were chosen for the
    network that training starts from.
    """

    acoustic_scale: PositiveFloat = 0.083333
    """Factor of acoustic log-likelihoods in the search."""
    retry_beam_factor: Annotated[float, Field(ge=1)] = 2.0
    """Factor of the beam in a second search, where the first ends in no final state; 1
    = no second search."""


class SequenceOptions(Options):
    """Sequence training: lattices and alignments made on the fly."""

    lattices: LatticeSearchOptions = LatticeSearchOptions()
    """The search for lattices, in each step, with the current network."""
    alignments: AlignmentOptions = AlignmentOptions()
    """The alignments that say what is right."""
    dev_search: DevSearchOptions = DevSearchOptions()
    """Decoding of dev after each epoch, to count its word errors; with the language
    model weight and the insertion penalty that were chosen for the network that
    training starts from."""
    prior_scale: Annotated[float, Field(ge=0, le=2)] | None = None
    """Factor of the log priors that are taken off the network's log posteriors; null
    for 1, or 0 where its outputs are log-likelihoods (LF-MMI)."""
    max_pending: Annotated[int, Field(ge=1, le=8)] = 2
    """Parts of a batch that are worked on at a time: while lattices of one are made,
    the network's forward pass of the next runs. Needs a batch in several parts
    (`micro_sequences`)."""
