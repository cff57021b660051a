"""Networks of cross-entropy, of CTC, and with a decoder with attention."""

from __future__ import annotations

from dataclasses import dataclass

from latflow.errors import UserError
from latflow.nnet.described import OutputLoss
from latflow.options import check_choice
from latflow.training.options import (
    AttentionSystemOptions,
    CeSystemOptions,
    CtcSystemOptions,
)
from latflow.workflow.networks import BaseNetwork

# Targets of cross-entropy (those of latflow.training.labels, which reads no recipes).
_TARGETS = ("pdf", "phone")


@dataclass(frozen=True, eq=False)
class FrameNetwork(BaseNetwork):
    """A network of cross-entropy, CTC, or with a decoder with attention.

    Each frame's output has its own target, or the transcript is what it learns.
    """

    options: AttentionSystemOptions | CeSystemOptions | CtcSystemOptions

    @property
    def has_decoder(self) -> bool:
        """Return whether it is a decoder with attention."""
        return self.kind == "attention"

    @property
    def has_own_tree(self) -> bool:
        """Return whether it has its own tree.

        So have those of CTC, and one with a decoder has the labels of CTC, for the
        phones of what it finds.
        """
        return self.kind != "ce"

    @property
    def learns_by_ctc(self) -> bool:
        """Return whether an output learns from transcripts, by CTC."""
        losses = {loss.name for loss in self.outputs.values()}
        return self.kind == "ctc" or (self.kind == "ce" and "ctc" in losses)

    def transcripts(self, split: str) -> list[str]:
        """Return the transcripts of a set, as graphs of CTC or a decoder's units."""
        folder = f"{'units' if self.has_decoder else 'ctc'}/{self.name}"
        has_some = self.has_decoder or self.learns_by_ctc
        return [f"{self.results}/{folder}/{split}/meta.json"] if has_some else []

    def labels(self, split: str) -> list[str]:
        """Return the alignments of a set that outputs learn, if any do."""
        losses = self.outputs.values()
        learnt = {loss.target for loss in losses if loss.name == "ce"}
        are_given = bool(learnt) and learnt <= {*self.given_targets}
        if self.aligner is None or are_given:
            return []
        return [self.aligner.alignments(split)]

    @property
    def transition_source(self) -> str:
        """Model of its own tree, or the one that made its alignments."""
        if self.has_own_tree:
            return self.tree_model
        assert self.aligner is not None
        return self.aligner.model

    @property
    def other_aligner(self) -> list[str]:
        """Model that made its alignments, where its own tree is another."""
        is_other = self.has_own_tree and self.aligner is not None
        return [self.aligner.model] if is_other and self.aligner else []

    def _check_kind(self) -> None:
        """Refuse outputs that it cannot be trained on, or decoded with."""
        if self.kind != "ce":
            self._check_from_transcripts()
        if not self.outputs:
            return
        self._check_decoded_output()
        for name, loss in self.outputs.items():
            self._check_output(f"{self.key}.network: output {name}", loss)
        for target in self.mse_targets:
            streams = self.experiment.nnet.features.items()
            stored = [name for name, stream in streams if stream.stored]
            known = [*stored, *self.simulated_targets]
            check_choice(f"{self.key}.network: target of the loss mse", target, known)
            if self.options.data.perturbation is not None:
                raise UserError(
                    f"{self.key}.data.perturbation: an output learns stored features, "
                    "which do not follow",
                    remedy="leave it out, or take a training_set of corpus.perturbed",
                )
        if self.learns_by_ctc and self.options.data.chunks is not None:
            raise UserError(
                f"{self.key}.data.sequences: an output learns by CTC, from whole "
                "utterances",
                remedy="set it to {type: utterances}",
            )

    def _check_decoded_output(self) -> None:
        """Refuse to decode an output of another loss than its type says."""
        decoded, loss = next(iter(self.outputs.items()))
        if loss.name == self.kind and loss.is_decodable:
            return
        is_frames = self.kind == "ce"
        wanted = "loss: ce, target: pdf" if is_frames else f"loss: {self.kind}"
        raise UserError(
            f"{self.key}.network: its decoded output {decoded} has loss {loss.name}, "
            f"target {loss.target}",
            remedy=f"give one `{wanted}`, and name it in `decode` of the description",
        )

    def _check_output(self, what: str, loss: OutputLoss) -> None:
        """Refuse an output whose loss has no targets; some are given by HDF5 files."""
        if loss.name == "attention" and not self.has_decoder:
            raise UserError(f"{what} has loss attention", remedy="set type: attention")
        if loss.name == "lfmmi":
            raise UserError(f"{what} has loss lfmmi", remedy="set type: lfmmi")
        if loss.name != "ce" or loss.target in self.given_targets:
            return
        if self.aligner is None:
            raise UserError(
                f"{what} has loss ce, which needs alignments",
                remedy="name a system in alignments, or leave the output out",
            )
        if loss.target not in _TARGETS:
            raise UserError(
                f"{what}: no labels for the target {loss.target}",
                remedy=f"alignments give: {', '.join(_TARGETS)}; files of nnet.hdf5 "
                "what their `targets` say",
            )

    def _check_from_transcripts(self) -> None:
        """Refuse settings of labels of frames, or a description that is not there."""
        training = self.options.training
        if self.description is None:
            raise UserError(
                f"{self.key}.network: no such file {self.options.network}",
                remedy="it must be there when the recipe is read: graphs of "
                "transcripts depend on its frame subsampling",
            )
        what, losses = "CTC", {loss.name for loss in self.outputs.values()}
        if training.focal and "ce" not in losses:
            raise UserError(
                f"{self.key}.training.focal: is of cross-entropy of frames, which no "
                "output of the network has",
                remedy="leave it out",
            )
        if self.has_decoder:
            what = "a decoder with attention"
            losses |= {"ce"}  # of units
            if training.pretraining:
                raise UserError(
                    f"{self.key}.training.pretraining: a decoder cannot be trained on "
                    "a part of its encoder's layers",
                    remedy="leave it out",
                )
        if training.priors != "posteriors":
            raise UserError(
                f"{self.key}.training.priors: {what} has no labels of frames to count",
                remedy="set it to posteriors",
            )
        if training.label_smoothing and "ce" not in losses:
            raise UserError(
                f"{self.key}.training.label_smoothing: is of cross-entropy, which no "
                "output of the network has",
                remedy="leave it out",
            )
        if getattr(training.schedule, "measure", "loss") != "loss":
            raise UserError(
                f"{self.key}.training.schedule.measure: {what} counts no frame errors",
                remedy="set it to loss",
            )
