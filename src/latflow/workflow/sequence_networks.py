"""Networks that are trained on lattices, from the parameters of another network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from latflow.criteria.options import MweOptions, PathOptions, TeacherOptions
from latflow.errors import UserError
from latflow.graphs.options import GraphOptions
from latflow.scoring.options import ComparisonOptions
from latflow.training.options import SequenceSystemOptions
from latflow.workflow.networks import BaseNetwork, Network
from latflow.workflow.systems import GmmSystem, System, unless_set


@dataclass(frozen=True, eq=False)
class SequenceNetwork(Network):
    """A network that continues from another by a criterion of whole sequences.

    Attributes:
        teacher: the network that it learns from, if the criterion has one.
    """

    options: SequenceSystemOptions
    parent: Network
    teacher: Network | None

    @property
    def has_own_tree(self) -> bool:
        """Tell that it works with the tree of its alignments."""
        return False

    @property
    def base(self) -> BaseNetwork:
        """The network that its parents go back to."""
        return self.parent.base

    @property
    def gmm_ancestor(self) -> GmmSystem | None:
        """The GMM system that its base goes back to; None if it started without one."""
        return self.base.gmm_ancestor

    @property
    def training_set(self) -> str:
        """Name of the set that it is trained on."""
        return self.options.training_set or self.parent.training_set

    @property
    def built_on(self) -> list[System]:
        """The systems that it names."""
        return [self.parent, *([self.teacher] if self.teacher else [])]

    @property
    def split_options(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Settings of its training, and those of them that make no training new."""
        bound, free = super().split_options
        score = self.experiment.score.part(ComparisonOptions)
        graph = self.denominator_options.part(GraphOptions)
        return {**bound, "score": score.values(), "graph": graph.values()}, free

    @property
    def parent_scales(self) -> str:
        """Scales that the decoding of its parent has chosen on dev."""
        return f"{self.results}/tune/{self.parent.name}/scales.json"

    @property
    def denominator(self) -> str:
        """Graph that lattices are made with in training."""
        return f"{self.results}/denominator/{self.tree_owner.name}/HCLG.fst"

    @property
    def training_graphs(self) -> list[str]:
        """Graphs of the transcripts, where the training aligns on the fly."""
        folder = f"{self.results}/denominator/{self.tree_owner.name}/transcripts"
        is_static = self.options.sequence.alignments.source == "static"
        return [] if is_static else [f"{folder}/{self.training_set}/meta.json"]

    @property
    def teacher_weights(self) -> list[str]:
        """File of the parameters of the network that it learns from, if any."""
        return [] if self.teacher is None else [self.teacher.weights]

    @property
    def criterion_files(self) -> list[str]:
        """Files of the user's own that its criterion has, if any."""
        return [str(path) for path in self.options.criterion.files]

    def check(self) -> None:
        """Refuse what contradicts its parent, its teacher, the data, or itself.

        Raises:
            UserError: names the key.
        """
        self.base.check_scores_frames(f"{self.key}.parent")
        if self.base.kind == "ctc":
            raise UserError(
                f"{self.key}.parent: {self.parent.name} was trained by CTC, "
                "whose frames have no alignment that lattices could be compared with",
                remedy="take a parent of type ce or lfmmi",
            )
        if self.teacher is not None:
            self._check_teacher(self.teacher)
        self._check_phone_criterion()
        self._check_unused("set it in the parent's training")
        if getattr(self.options.training.schedule, "measure", "loss") != "loss":
            raise UserError(
                f"{self.key}.training.schedule.measure: dev is judged by its word "
                "errors alone",
                remedy="set it to loss, which they are here",
            )
        super().check()

    def check_description(self) -> None:
        """Refuse a description that no network can be made of; see `Network`."""
        if self.description is not None:  # its base is refused
            super().check_description()

    def _check_teacher(self, teacher: Network) -> None:
        """Refuse a teacher that has other inputs or outputs."""
        key = f"{self.key}.criterion.teacher"
        teacher.check_scores_frames(key)
        for what, theirs, ours in (
            ("other features", teacher.frames.name, self.frames.name),
            ("another tree", teacher.tree_owner.name, self.tree_owner.name),
            ("another frame rate", teacher.subsampling, self.subsampling),
        ):
            if theirs != ours:
                raise UserError(
                    f"{key}: {teacher.name} has {what} than {self.name}",
                    remedy=f"take one with that of {self.name}: {ours}",
                )

    def _check_phone_criterion(self) -> None:
        """Refuse phones of alignments of which the network's frames are but a part."""
        criterion, alignments = self.options.criterion, self.options.sequence.alignments
        counts_phones = criterion.type == "phone_mpe" or (
            isinstance(criterion, MweOptions) and criterion.unit == "phone"
        )
        assert self.aligner is not None
        has_whole = self.aligner.subsampling == self.subsampling
        is_fresh = alignments.source == "on_the_fly" and alignments.on_failure == "skip"
        if counts_phones and not has_whole and not is_fresh:
            raise UserError(
                f"{self.key}.criterion: counts phones, and {self.name} sees one frame "
                f"in {self.subsampling} of the alignments of {self.aligner.name}, "
                "which may miss some",
                remedy="set sequence.alignments to {source: on_the_fly, on_failure: "
                "skip}, or take another criterion",
            )


def full_scale_options(options: SequenceSystemOptions) -> SequenceSystemOptions:
    """Return options with acoustic scales of 1, but for those that the recipe sets."""
    criterion, sequence = options.criterion, options.sequence
    if isinstance(criterion, PathOptions):
        is_teacher = isinstance(criterion, TeacherOptions)
        more = {"teacher_scale": 1.0} if is_teacher else {}
        criterion = unless_set(criterion, acoustic_scale=1.0, **more)
    searches = {
        name: unless_set(getattr(sequence, name), acoustic_scale=1.0)
        for name in ("lattices", "alignments", "dev_search")
    }
    return options.replace(criterion=criterion, sequence=sequence.replace(**searches))
