"""Stage that trains on speaker-adapted features (speaker adaptive training, SAT).

Every speaker has an fMLLR transform. The first ones fit the source system; a tree is
grown on the features after them; and in some iterations of training they are estimated
anew with the present model, each on top of the last. In the end the same Gaussians are
estimated once more from unadapted features, for first passes over new speakers.

Public: `train_sat`.

Source: Kaldi `steps/train_sat.sh`; T. Anastasakos et al., A compact model for
speaker-adaptive training, ICSLP 1996; M. Gales 1998 (see `latflow.gmm.fmllr`) for
training with feature transforms.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latflow.features.frames import FrameStore
from latflow.files import atomic_output
from latflow.gmm.adaptation import (
    SPEAKER_TRANSFORMS,
    Adaptation,
    FmllrAccumulator,
    adapt_to_alignments,
)
from latflow.gmm.alignment_model import estimate_alignment_model
from latflow.gmm.fmllr import FmllrOptions
from latflow.gmm.model import AcousticModel
from latflow.gmm.schedule import Training, run_schedule
from latflow.gmm.source import FrameSource
from latflow.gmm.speaker_transforms import SpeakerTransforms
from latflow.gmm.system import ALIGNMENT_MODEL, GmmSystem
from latflow.gmm.train import (
    System,
    known_alignments,
    model_of_tree,
    shortest,
    take_alignments,
)
from latflow.lang.directory import Lang
from latflow.parallel import worker_pool

log = logging.getLogger(__name__)

_COPIED = ("full.mat", "splice_opts")  # what belongs to a source's matrix, if any


def train_sat(
    frames_dir: str | Path,
    lang_dir: str | Path,
    alignments: str | Path,
    source_dir: str | Path,
    out_dir: str | Path,
    *,
    options: Mapping[str, Any],
    threads: int,
    max_skipped_fraction: float,
) -> None:
    """Train a triphone system on features adapted to each speaker.

    Writes `final.mdl`, `final.alimdl` (for unadapted features), `tree`, `trans.ark`
    (transforms by speaker), `iterations.tsv`, `ledger.jsonl` and `info.json`; and the
    feature transform of the source system, which is this system's too.

    Args:
        frames_dir: the `FrameStore` of the training data.
        lang_dir: the lang directory.
        alignments: `ali.ark` of the training data, made with the source system; if
            `trans.ark` is beside it, these are the first transforms.
        source_dir: folder of the source system.
        out_dir: where the system goes.
        options: of the system (type `sat` in `workflow/schemas/gmm.yaml`), with
            `graph`, `seed` and `device`; `transform`, which serves other types, does
            not apply.
        threads: number of threads.
        max_skipped_fraction: share of the utterances that may fail to align.

    Raises:
        UserError: no usable data or alignments, or too many utterances fail.
    """
    began = time.perf_counter()
    options = {key: value for key, value in options.items() if key != "transform"}
    store, lang = FrameStore.load(frames_dir), Lang.load(lang_dir)
    behind = GmmSystem.load(source_dir)
    utterances = shortest(store, options["subset_shortest"])
    # Unadapted frames are needed at the beginning and the end alone.
    plain = FrameSource(store, behind.transform, utterances, cache_bytes=0)
    refine = Fmllr.from_options(options, lang)
    first = _first_transforms(plain, alignments, behind, refine, threads=threads)
    source = FrameSource(store, behind.transform, utterances, speaker_transforms=first)
    refine.transforms = first
    old = behind.model.transitions
    tree, model, _ = model_of_tree(source, alignments, old, lang, options)
    system = System(Path(out_dir), tree, options, max_skipped_fraction)
    with system.training(source, lang, model, threads) as training:
        take_alignments(training, alignments, old, model.transitions, tree)
        model = run_schedule(
            model,
            training,
            system.schedule,
            name=system.name,
            initial_gaussians=options["num_leaves"],
            refine=refine,
        )
        twin = estimate_alignment_model(model, training, plain)
        twin.save(system.folder / ALIGNMENT_MODEL)
        refine.transforms.save(system.folder / SPEAKER_TRANSFORMS)
        _copy_beside_matrix(Path(source_dir), system.folder)
        seconds = time.perf_counter() - began
        system.finish(model, training, seconds=seconds, facts=refine.facts())


@dataclass
class Fmllr:
    """Adapts features in some iterations of training: a `refine` of `run_schedule`.

    Attributes:
        iterations: when.
        silence_phones: phones whose frames are weighted.
        silence_weight: their weight.
        options: what is estimated.
        transforms: of all speakers so far, from unadapted features.
        history: what each estimate was worth.
    """

    iterations: frozenset[int]
    silence_phones: tuple[int, ...]
    silence_weight: float
    options: FmllrOptions
    transforms: SpeakerTransforms = field(default_factory=lambda: SpeakerTransforms({}))
    history: list[Adaptation] = field(default_factory=list)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], lang: Lang) -> Fmllr:
        """Take them out of the options of a system."""
        return cls(
            frozenset(options["fmllr_iterations"]),
            tuple(lang.silence_phones),
            options["fmllr"]["silence_weight"],
            FmllrOptions.from_options(options["fmllr"]),
        )

    def accumulator(self, model: AcousticModel) -> FmllrAccumulator:
        """What makes statistics with a model."""
        return FmllrAccumulator.of(model, self.silence_phones, self.silence_weight)

    def __call__(
        self, model: AcousticModel, training: Training, iteration: int
    ) -> AcousticModel:
        """Adapt the features further, if it is time for that."""
        if iteration not in self.iterations:
            return model
        adaptation = adapt_to_alignments(
            training.source,
            ((u, training.alignment_of(u)) for u in range(len(training.source))),
            self.accumulator(model),
            self.options,
            training.pool,
            what=f"iteration {iteration}",
        )
        self.history.append(adaptation)
        self.transforms = adaptation.transforms.after(self.transforms)
        training.source = training.source.with_speaker_transforms(self.transforms)
        training.transform_gain = adaptation.gain_per_frame
        return model

    def facts(self) -> dict[str, Any]:
        """What `info.json` is to say of the adaptation."""
        return {
            "num_speakers": len(self.transforms),
            "num_unadapted_speakers": self.history[-1].num_unadapted
            if self.history
            else 0,
            "fmllr_gain_per_frame": sum(a.gain_per_frame for a in self.history),
        }


def _first_transforms(
    plain: FrameSource,
    alignments: str | Path,
    behind: GmmSystem,
    fmllr: Fmllr,
    *,
    threads: int,
) -> SpeakerTransforms:
    """Transforms that the tree is grown with: those of the alignments, or estimated.

    Args:
        plain: unadapted features.
        alignments: archive of alignments of their utterances.
        behind: the system that made them.
        fmllr: what is estimated.
        threads: number of threads.
    """
    known = Path(alignments).with_name(SPEAKER_TRANSFORMS)
    if known.exists():
        log.info("the first speaker transforms are those of %s", known)
        return SpeakerTransforms.load(known)
    with worker_pool(threads) as pool:
        adaptation = adapt_to_alignments(
            plain,
            known_alignments(plain, alignments),
            fmllr.accumulator(behind.model),
            fmllr.options,
            pool,
            what="source system",
        )
    fmllr.history.append(adaptation)
    return adaptation.transforms


def _copy_beside_matrix(source: Path, folder: Path) -> None:
    """Copy what belongs to the source's feature transform."""
    for name in _COPIED:
        if (source / name).exists():
            with atomic_output(folder / name) as temporary:
                temporary.write_bytes((source / name).read_bytes())
