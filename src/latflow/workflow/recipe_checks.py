"""Refuse recipes that contradict themselves, beyond what types can say.

Public: `check`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from latflow.errors import UserError
from latflow.lang.options import NeuralLmOptions, TextLm, TranscriptsLm
from latflow.options import check_choice
from latflow.workflow.extractor_checks import check_extractor_uses
from latflow.workflow.network_checks import (
    check_networks,
    check_parents,
    check_scores_frames,
)
from latflow.workflow.packages import PackagePlan, check_capacity, check_packages

if TYPE_CHECKING:
    from latflow.workflow.recipe import Recipe


def check(recipe: Recipe) -> None:
    """Refuse names that stand for nothing, or for two things.

    Raises:
        UserError: names the key, and what may stand there.
    """
    _check_import(recipe)
    _check_systems(recipe)
    check_parents(recipe)
    _check_streams(recipe)
    check_extractor_uses(recipe)
    _check_simulated(recipe)
    _check_ivectors(recipe)
    _check_hdf5(recipe)
    _check_pasted(recipe)
    check_networks(recipe)
    _check_without_audio(recipe)
    _check_rescorings(recipe)
    check_packages(recipe)
    _check_transcriptions(recipe)
    check_capacity(recipe)
    _check_export(recipe)
    _check_report(recipe)
    _check_suspects(recipe)
    _check_without_dev(recipe)


def _check_suspects(recipe: Recipe) -> None:
    """Refuse to search sets without transcripts, or with a system that is not there.

    Sets are cleaned with the same system.
    """
    suspects = recipe.options.suspects
    if not (suspects.sets or recipe.options.corpus.cleaned):
        return
    known = [name for name in recipe.splits if name not in recipe.untranscribed_sets]
    for name in suspects.sets:
        check_choice("configuration suspects.sets", name, known)
    system = suspects.system or ""
    if suspects.system is not None or not recipe.systems:
        check_choice("configuration suspects.system", system, list(recipe.systems))


def _check_export(recipe: Recipe) -> None:
    """Refuse to export alignments of systems or sets that are not there."""
    export = recipe.options.export_alignments
    for system in export.systems:
        check_choice(
            "configuration export_alignments.systems", system, recipe.decoded_systems
        )
        check_scores_frames(recipe, "configuration export_alignments.systems", system)
        if (
            recipe.is_network(system)
            and recipe.networks[recipe.seed_of(system)].type == "ctc"
        ):
            raise UserError(
                f"configuration export_alignments.systems: {system} was trained by "
                "CTC, whose labels have no times of phones",
                remedy="take a GMM system, or a network of type ce or lfmmi",
            )
    for name in export.sets:
        check_choice("configuration export_alignments.sets", name, recipe.splits)
        if (
            recipe.exported_systems
            and export.boundaries == "refined"
            and not recipe.has_audio(name)
        ):
            raise UserError(
                f"configuration export_alignments.boundaries: {name} has no audio, in "
                "which they could be refined",
                remedy="set it to frames",
            )
    if export.adapt is not None and export.package is None:
        raise UserError(
            "configuration export_alignments.adapt: there is no package to adapt",
            remedy="name one in export_alignments.package",
        )
    if export.package is not None and "package" in recipe.decoded_systems:
        raise UserError(
            "configuration export_alignments.package: a system is called package",
            remedy="give the system another name",
        )


def _check_report(recipe: Recipe) -> None:
    """Refuse to show, or compare, systems and sets that are not there."""
    report = recipe.options.report
    key = "configuration report"
    if report.example_system is not None:
        choices = recipe.decoded_systems
        check_choice(f"{key}.example_system", report.example_system, choices)
    if report.example_set is not None:
        check_choice(f"{key}.example_set", report.example_set, recipe.evaluation_sets)
    for system, baseline in report.baselines.items():
        check_choice(f"{key}.baselines", system, recipe.decodings)
        others = [name for name in recipe.decodings if name != system]
        check_choice(f"{key}.baselines.{system}", baseline, others)


def _check_without_dev(recipe: Recipe) -> None:
    """Refuse what needs a dev set where there is none."""
    if recipe.has_dev:
        return
    options, packaged = recipe.options, recipe.options.package.systems
    for key, needs in (
        ("nnet.systems", options.nnet.systems),
        (
            "package.systems",
            [name for name in packaged if not PackagePlan(recipe, name).only_aligns],
        ),
        ("transcribe", options.transcribe),
    ):
        if needs:
            raise UserError(
                f"configuration {key}: needs a dev set, and there is none",
                remedy="leave corpus.dev out, which holds one out of train",
            )


def _check_systems(recipe: Recipe) -> None:
    """Refuse a system that builds on a later, an unknown, or its own system."""
    earlier: list[str] = []
    for name, system in recipe.systems.items():
        for key in ("alignments", "lexicon"):  # monophones have neither
            source = getattr(system, key, None)
            if source is not None and source not in earlier:
                raise UserError(
                    f"configuration gmm.systems.{name}.{key}: no system "
                    f"{source!r} before it",
                    remedy=f"choose one of: {', '.join(earlier) or 'none yet'}",
                )
        earlier.append(name)


def _check_import(recipe: Recipe) -> None:
    """Refuse an imported system without its language, or with a name twice."""
    gmm = recipe.options.gmm
    if (gmm.import_ is None) != (gmm.lang is None):
        raise UserError(
            "configuration gmm: `import` and `lang` go together",
            remedy="name the folders of both the system and its language",
        )
    if not recipe.decoded_systems:
        raise UserError(
            "configuration gmm.systems is empty",
            remedy="describe a system, or import one with gmm.import, or a network of "
            "nnet.systems that starts without (type lfmmi, no alignments)",
        )
    if recipe.imported_system and recipe.generates_pronunciations:
        raise UserError(
            "configuration lang.g2p: the lexicon of an imported system stays as it is",
            remedy="set lang.g2p.num_pronunciations to 0",
        )
    if recipe.imported_system in gmm.systems:
        raise UserError(
            f"configuration gmm.systems.{recipe.imported_system}: the imported "
            "system has this name",
            remedy="give the system of your own another name",
        )


def _check_streams(recipe: Recipe) -> None:
    """Refuse features with a system's name, or that cannot be made on the fly."""
    for name, stream in recipe.feature_streams.items():
        key = f"configuration nnet.features.{name}"
        if name in recipe.systems:
            raise UserError(
                f"{key}: a GMM system has this name",
                remedy="give the features another",
            )
        cmvn = stream.cmvn.type
        if cmvn in {"speaker", "global", "online"} and not stream.stored:
            raise UserError(
                f"{key}.cmvn: statistics of type {cmvn} need stored features",
                remedy="set its type to utterance, sliding or none, or `stored: true`",
            )


def _check_simulated(recipe: Recipe) -> None:
    """Refuse features of channels that simulated sets do not have."""
    features = {"features": recipe.options.features} | {
        f"nnet.features.{name}": stream
        for name, stream in recipe.feature_streams.items()
    }
    for name, made in recipe.options.corpus.simulated.items():
        number = made.num_channels
        for key, options in features.items():
            if options.channels is None:
                continue
            if number == 1 and options.single_channel == "repeat":
                continue
            if max(options.channels) >= number:
                raise UserError(
                    f"configuration {key}.channels: the simulated set {name} has "
                    f"{number} ({max(options.channels)} is named, from 0)",
                    remedy=f"set channels: null, or give corpus.simulated.{name}.array "
                    "more microphones",
                )


def _check_ivectors(recipe: Recipe) -> None:
    """Refuse i-vectors with others' names, or of features that are not stored."""
    stored = recipe.streams_of(stored=True)
    for name, ivectors in recipe.options.nnet.ivectors.items():
        key = f"configuration nnet.ivectors.{name}"
        if name in {*recipe.systems, *recipe.feature_streams}:
            raise UserError(
                f"{key}: a GMM system or other features have this name",
                remedy="give the i-vectors another",
            )
        check_choice(f"{key}.features", ivectors.features, stored)
        if recipe.feature_streams[ivectors.features].type == "waveform":
            raise UserError(
                f"{key}.features: {ivectors.features} are samples",
                remedy="take features of type mfcc or fbank",
            )


def _check_hdf5(recipe: Recipe) -> None:
    """Refuse HDF5 features with others' names, or of sets that are not there."""
    nnet = recipe.options.nnet
    taken = {*recipe.systems, *recipe.feature_streams, *nnet.ivectors}
    sets = [*recipe.splits, *recipe.training_sets[1:]]
    for name, hdf5 in nnet.hdf5.items():
        key = f"configuration nnet.hdf5.{name}"
        if name in taken:
            raise UserError(
                f"{key}: a GMM system or other features have this name",
                remedy="give these another",
            )
        for split in hdf5.files:
            check_choice(f"{key}.files", split, sets)


def _check_pasted(recipe: Recipe) -> None:
    """Refuse features side by side with others' names, or not stored as frames."""
    nnet = recipe.options.nnet
    others = [*nnet.ivectors, *nnet.hdf5, *recipe.systems]
    known = [*recipe.streams_of(stored=True), *others]
    for name, pasted in nnet.pasted.items():
        key = f"configuration nnet.pasted.{name}"
        if name in {*recipe.feature_streams, *others}:
            raise UserError(
                f"{key}: a GMM system or other features have this name",
                remedy="give these another",
            )
        for chosen in pasted.features:
            if chosen in recipe.streams_of(stored=False):
                raise UserError(
                    f"{key}.features: {chosen} are computed when they are read",
                    remedy=f"set stored: true in nnet.features.{chosen}",
                )
            if chosen in nnet.pasted:
                raise UserError(
                    f"{key}.features: {chosen} stand side by side already",
                    remedy="name each of their features here",
                )
            check_choice(f"{key}.features", chosen, known)


def _check_without_audio(recipe: Recipe) -> None:
    """Refuse what reads audio where sets have none, being HDF5 files."""
    if all(map(recipe.has_audio, recipe.splits)):
        return
    options = recipe.options
    for key, reads_audio in (
        ("gmm.systems", options.gmm.systems),
        ("gmm.import", options.gmm.import_),
        ("corpus.perturbed", options.corpus.perturbed),
        ("corpus.simulated", options.corpus.simulated),
        ("corpus.paused", options.corpus.paused),
        ("nnet.features", options.nnet.features),
        *(
            (
                f"nnet.systems.{name}.features",
                not options.nnet.hdf5.keys() & set(recipe.streams_read(name)),
            )
            for name in recipe.networks
        ),
    ):
        if reads_audio:
            raise UserError(
                f"configuration {key}: is of audio, and sets of type hdf5 have none",
                remedy="name features of nnet.hdf5 in `features` of networks, and set "
                "`gmm: {systems: {}}`",
            )


def _check_rescorings(recipe: Recipe) -> None:
    """Refuse rescoring that names an unknown system or the first model, or no text."""
    for lm, rescoring in recipe.rescorings.items():
        if lm == "lm":
            raise UserError(
                "configuration decode.rescore.lm: the first model has this name",
                remedy="give the second one another",
            )
        if isinstance(rescoring.lm, NeuralLmOptions):
            _check_text(recipe, lm, rescoring.lm)
        for name in rescoring.systems:
            if name not in recipe.decoded_systems:
                raise UserError(
                    f"configuration decode.rescore.{lm}.systems: no {name!r}",
                    remedy=f"choose from: {', '.join(recipe.decoded_systems)}",
                )


def _check_text(recipe: Recipe, lm: str, options: NeuralLmOptions) -> None:
    """Refuse a neural language model without a text of its own, or of the first one."""
    first = recipe.options.lm
    if options.path is None and not isinstance(first, TextLm | TranscriptsLm):
        raise UserError(
            f"configuration decode.rescore.{lm}.lm.path is not set, and the first "
            f"language model (lm, type {first.type}) has no text",
            remedy="name a text with one sentence a line",
        )


def _check_transcriptions(recipe: Recipe) -> None:
    """Refuse recordings for a system without such a package, or of an unknown set."""
    packaged = recipe.options.package.systems
    for name, options in recipe.options.transcribe.items():
        key = f"configuration transcribe.{name}"
        check_choice(f"{key}.system", options.system, packaged)
        try:
            PackagePlan(recipe, options.system).check_recognizes()
        except UserError as error:
            raise UserError(
                f"{key}.system: {error.what}", remedy=error.remedy
            ) from None
        if options.set is not None:
            check_choice(f"{key}.set", options.set, recipe.splits)
