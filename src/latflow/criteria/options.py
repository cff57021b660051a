"""Options of sequence criteria."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from latflow.options import (
    Fraction,
    NonNegativeFloat,
    Options,
    PositiveFloat,
    PositiveInt,
    Text,
)
from latflow.user_code import LOCATION, file_of

#: What weighs acoustics, language model, priors, silence and terms of a loss: numbers,
#: or in words what is done, by the names that options have where there are any.
Scales: TypeAlias = dict[str, float | str]


class LossOptions(Options):
    """Terms that are added to the loss, whatever the criterion."""

    ce_weight: NonNegativeFloat = 0.1
    """Weight of the frames' cross-entropy, added to the loss."""
    l2: NonNegativeFloat = 0.0
    """Half of it times the squares of the outputs before the softmax is added to the
    loss."""

    @property
    def files(self) -> list[Path]:
        """Files of the user's own that the criterion depends on."""
        return []

    @property
    def scales(self) -> Scales:
        """Factors that the criterion works with, by name; see `Scales`."""
        return {"ce_weight": self.ce_weight, "l2": self.l2}


class PathOptions(LossOptions):
    """Scales with which paths are weighed."""

    acoustic_scale: PositiveFloat = 0.1
    """Factor on log-likelihoods where paths are weighed (PyKaldi2's MMI has 0.2, its
    sMBR and MPFE 1.0). On top of LF-MMI the default is 1.0."""
    lm_scale: NonNegativeFloat = 1.0
    """Factor on graph costs (language model, lexicon, transitions) where paths are
    weighed."""

    @property
    def scales(self) -> Scales:
        """See `LossOptions.scales`."""
        paths = {"acoustic_scale": self.acoustic_scale, "lm_scale": self.lm_scale}
        return {**paths, **super().scales}


class MmiOptions(PathOptions):
    """Maximum mutual information, boosted where `boost` is above 0."""

    type: Literal["mmi"] = "mmi"
    boost: NonNegativeFloat = 0.0
    """Nats that a wrong frame adds to the log score of a path, not scaled; 0.1 is
    usual, 0 = no boosting."""
    max_silence_error: Fraction = 0.0
    """Share of `boost` for wrong frames that are silence in the lattice."""
    numerator: Literal["alignment", "words"] = "alignment"
    """The reference. `alignment` takes the one path of the alignment, `words` all paths
    of the lattice with the words of the transcript, whatever their times; where it has
    none of these, the alignment."""
    absent_numerator: Literal["drop", "keep", "add"] = "drop"
    """Treatment of a lattice that lacks the alignment. `drop` gives frames whose
    aligned pdf is nowhere in the lattice no gradient, `keep` does nothing, `add` adds
    the alignment as a path."""
    drop_by: Literal["pdf", "transition_id"] = "pdf"
    """With `drop`: what is looked for in the lattice (PyKaldi2 looks for
    transition-ids)."""

    @property
    def scales(self) -> Scales:
        """See `LossOptions.scales`."""
        silence = self.boost * self.max_silence_error
        return {**super().scales, "boost": self.boost, "boost_of_silence": silence}


class MbrOptions(PathOptions):
    """Expected right frames.

    smbr = by pdf; mpfe = by phone (mpe is another name of it, as in PyKaldi2).
    """

    type: Literal["smbr", "mpfe", "mpe"] = "smbr"
    """smbr compares pdfs, mpfe and mpe phones."""
    one_silence_class: bool = True
    """True = any silence phone for any is right; false = silence is never right."""

    @property
    def scales(self) -> Scales:
        """See `LossOptions.scales`."""
        rule = "one class" if self.one_silence_class else "never right"
        return {**super().scales, "silence": rule}


class PhoneMpeOptions(PathOptions):
    """Expected raw phone accuracy, as in Povey's thesis."""

    type: Literal["phone_mpe"] = "phone_mpe"
    ignore_silence: bool = True
    """Leave silence out of the count, in the lattice and in the alignment."""
    max_arcs: PositiveInt = 2_000_000
    """Arcs that an utterance's lattice may have once its phones are distinguished,
    which take some 100 bytes and 1 us each; deeper ones are pruned first, and counted
    (`pruned_utterances`)."""

    @property
    def scales(self) -> Scales:
        """See `LossOptions.scales`."""
        rule = "not counted" if self.ignore_silence else "counted"
        return {**super().scales, "silence": rule}


class MweOptions(PathOptions):
    """Expected word errors over a list of paths."""

    type: Literal["mwe"] = "mwe"
    num_paths: Annotated[int, Field(ge=2)] = 10
    """Paths in the list."""
    draw: Literal["best", "random"] = "best"
    """`best` = the best word sequences, `random` = paths drawn by their posterior."""
    unit: Literal["word", "phone"] = "word"
    """Unit that errors are counted on; phones without silence."""


class TeacherOptions(PathOptions):
    """Path posteriors of another network, over lattices made with its scores."""

    type: Literal["teacher"] = "teacher"
    teacher: str
    """The network that is learnt from, of `nnet.systems`; with the same features,
    alignments and normalization as the one that learns."""
    teacher_scale: PositiveFloat = 0.1
    """Factor on the teacher's log-likelihoods where its paths are weighed; less is
    softer."""

    @property
    def scales(self) -> Scales:
        """See `LossOptions.scales`."""
        return {**super().scales, "teacher_scale": self.teacher_scale}


class LfmmiOptions(Options):
    """Lattice-free maximum mutual information (Kaldi's chain models)."""

    leaky_hmm: NonNegativeFloat = 0.1
    """Coefficient of the leaky HMM: at each frame, share of the denominator's
    probability that jumps to any state, by initial probabilities."""
    l2: NonNegativeFloat = 0.0
    """Half of it times the squares of the outputs is taken from the objective (Kaldi's
    l2-regularize; 5e-5 is usual without weight decay)."""
    out_of_range: NonNegativeFloat = 0.01
    """Half of it times the squares of what outputs are above 30 or below -30 is taken
    from the objective (Kaldi's out-of-range-regularize)."""
    xent: NonNegativeFloat = 0.1
    """Weight of the cross-entropy of the second output with the numerator's posteriors
    (Kaldi's xent-regularize)."""

    @property
    def scales(self) -> Scales:
        """See `LossOptions.scales`: outputs, and costs of the graphs, unchanged."""
        return {"acoustic_scale": 1.0, "lm_scale": 1.0, **self.values()}


class CustomOptions(LossOptions):
    """A custom class, see docs/criteria.md."""

    type: Literal["custom"] = "custom"
    path: Annotated[str, Field(pattern=LOCATION)]
    """Location of the class: `module:Class`, or `folder/file.py:Class`; it derives from
    `latflow.criteria.criterion.LatticeCriterion`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options that the class is given, unchanged."""

    @property
    def files(self) -> list[Path]:
        """The class's file, where the path names it."""
        return file_of(self.path)


class ExternalOptions(LossOptions):
    """A custom program, spoken to over pipes, see docs/criteria.md."""

    type: Literal["external"] = "external"
    command: Annotated[tuple[Text, ...], Field(min_length=1)]
    """The program and its arguments; no shell reads them."""
    timeout: PositiveInt = 600
    """Seconds that an answer may take."""

    @property
    def files(self) -> list[Path]:
        """Parts of the command that are files: a program, a script, its settings."""
        return [path for path in map(Path, self.command) if path.is_file()]


CriterionOptions = Annotated[
    MmiOptions
    | MbrOptions
    | PhoneMpeOptions
    | MweOptions
    | TeacherOptions
    | CustomOptions
    | ExternalOptions,
    Field(discriminator="type"),
]
