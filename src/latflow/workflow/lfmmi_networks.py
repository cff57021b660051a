"""Networks that lattice-free MMI trains, on alignments or from transcripts alone."""

from __future__ import annotations

from dataclasses import dataclass

from latflow.errors import UserError
from latflow.training.data_options import UtteranceOptions
from latflow.training.options import LfmmiSystemOptions
from latflow.workflow.networks import BaseNetwork
from latflow.workflow.systems import System, unless_set

# Phones of the widest context whose windows can all have their own pdfs.
_FULL_CONTEXT = 2


@dataclass(frozen=True, eq=False)
class LfmmiNetwork(BaseNetwork):
    """A network that lattice-free MMI trains."""

    options: LfmmiSystemOptions

    @property
    def is_flat_start(self) -> bool:
        """Return whether it is trained from transcripts alone."""
        return self.aligner is None

    def supervisions(self, split: str) -> str:
        """Return the supervision of a set that it is trained on."""
        folder = f"{self.results}/chain/{self.name}/supervisions"
        return f"{folder}/{split}/meta.json"

    def supervision_inputs(self, split: str) -> dict[str, str]:
        """Return what supervision is made from: alignments, or lattices."""
        assert self.aligner is not None
        if self.options.supervision_lattices is None:
            return {"alignments": self.aligner.alignments(split)}
        folder = f"{self.results}/chain/{self.name}/lattices/{split}"
        return {"lattices": f"{folder}/lattices.ark"}

    @property
    def learns_by_ctc(self) -> bool:
        """Return whether an output beside the decoded one learns by CTC."""
        return any(loss.name == "ctc" for loss in self.outputs.values())

    def transcripts(self, split: str) -> list[str]:
        """Return the transcripts of a set as graphs of CTC, where an output has it."""
        folder = f"{self.results}/ctc/{self.name}"
        return [f"{folder}/{split}/meta.json"] if self.learns_by_ctc else []

    def _check_kind(self) -> None:
        """Refuse settings that do nothing, or that its start cannot have."""
        if self.aligner is None:
            self._check_flat_start()
        else:
            self._check_aligned_start(self.aligner)
        self._check_unused("it would do nothing: leave it")
        if getattr(self.options.training.schedule, "measure", "loss") != "loss":
            raise UserError(
                f"{self.key}.training.schedule.measure: LF-MMI counts no frame errors",
                remedy="set it to loss",
            )
        if self.learns_by_ctc and self.options.data.chunk_size is not None:
            raise UserError(
                f"{self.key}.data.sequences: an output learns by CTC, from whole "
                "utterances",
                remedy="set it to {type: utterances}",
            )
        tree = self.options.tree
        if tree.phone_lm.no_prune_ngram_order > tree.phone_lm.ngram_order:
            raise UserError(
                f"{self.key}.tree.phone_lm.no_prune_ngram_order: is above ngram_order",
                remedy=f"set it to {tree.phone_lm.ngram_order} or less",
            )
        if self.subsampling != tree.frame_subsampling and self.description is not None:
            raise UserError(
                f"{self.key}: the network scores one frame in {self.subsampling}, "
                f"tree.frame_subsampling is {tree.frame_subsampling}",
                remedy="make them the same",
            )

    def _check_aligned_start(self, aligner: System) -> None:
        """Refuse alignments that no tree can be grown from, or lattices be made of."""
        if aligner.gmm_ancestor is None:
            raise UserError(
                f"{self.key}.alignments: no GMM system is behind {aligner.name}, and "
                "the tree is made from its alignments",
                remedy="leave alignments out, or take those of a GMM system",
            )
        if self.options.supervision_lattices and aligner.is_network:
            raise UserError(
                f"{self.key}.supervision_lattices: {aligner.name} is a network, and "
                "lattices of pronunciations are made by GMM systems",
                remedy="leave it out, or name a GMM system in alignments",
            )

    def _check_flat_start(self) -> None:
        """Refuse settings of alignments where there are none."""
        written = self.experiment.nnet.systems[self.name]
        if self.options.supervision_lattices is not None:
            raise UserError(
                f"{self.key}.supervision_lattices: without alignments supervision has "
                "all pronunciations as it is",
                remedy="leave it out, or name a GMM system in alignments",
            )
        unused = {"supervision": ["left_tolerance", "right_tolerance"]}
        unused["tree"] = ["num_leaves", "split_threshold", "cluster_threshold"]
        for section, names in unused.items():
            for option in names:
                if option in getattr(written, section).model_fields_set:
                    raise UserError(
                        f"{self.key}.{section}.{option}: is of alignments, and there "
                        "are none",
                        remedy="leave it out, or name a system in alignments",
                    )
        if self.options.data.chunk_size is not None:
            raise UserError(
                f"{self.key}.data.sequences: without alignments utterances cannot be "
                "cut",
                remedy="leave it out, or set its type to utterances",
            )
        if self.options.tree.context_width > _FULL_CONTEXT:
            raise UserError(
                f"{self.key}.tree.context_width: without alignments a tree has all "
                f"contexts, of at most {_FULL_CONTEXT} phones",
                remedy="set it to 1 or 2",
            )


def flat_start_options(options: LfmmiSystemOptions) -> LfmmiSystemOptions:
    """Return options of a flat start, but for those that the recipe sets (Kaldi's)."""
    return options.replace(
        tree=unless_set(options.tree, context_width=1),
        criterion=unless_set(options.criterion, l2=5e-5),
        data=unless_set(options.data, sequences=UtteranceOptions()),
    )
