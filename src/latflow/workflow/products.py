"""What is made of the systems of a recipe: refusals of what cannot be made."""

from __future__ import annotations

from latflow.errors import UserError
from latflow.options import check_choice
from latflow.workflow.language import Language
from latflow.workflow.packages import PackagePlan, check_capacity, check_packages
from latflow.workflow.resolve import Systems


def check_products(recipe: Systems, language: Language) -> None:
    """Refuse names that stand for nothing, and what sets or systems cannot give.

    Raises:
        UserError: names the key, and what may stand there.
    """
    _check_systems(recipe, language)
    _check_simulated(recipe)
    _check_without_audio(recipe)
    _check_rescorings(recipe, language)
    check_packages(recipe)
    _check_transcriptions(recipe)
    check_capacity(recipe)
    _check_export(recipe)
    _check_report(recipe)
    _check_suspects(recipe)
    _check_without_dev(recipe)
    _check_dictionaries(recipe, language)


def _check_systems(recipe: Systems, language: Language) -> None:
    """Refuse a recipe without systems, and to add to the lexicon of an imported one."""
    if not recipe.systems:
        raise UserError(
            "configuration gmm.systems is empty",
            remedy="describe a system, or import one with gmm.import, or a network of "
            "nnet.systems that starts without (type lfmmi, no alignments)",
        )
    if recipe.imported_system and language.generates_pronunciations:
        raise UserError(
            "configuration lang.g2p: the lexicon of an imported system stays as it is",
            remedy="set lang.g2p.num_pronunciations to 0",
        )


def _check_simulated(recipe: Systems) -> None:
    """Refuse features of channels that simulated sets do not have."""
    for name, made in recipe.options.corpus.simulated.items():
        number = made.num_channels
        for frames in recipe.extracted.values():
            options = frames.options
            if options.channels is None:
                continue
            if number == 1 and options.single_channel == "repeat":
                continue
            if max(options.channels) >= number:
                raise UserError(
                    f"configuration {frames.key}.channels: the simulated set {name} "
                    f"has {number} ({max(options.channels)} is named, from 0)",
                    remedy=f"set channels: null, or give corpus.simulated.{name}.array "
                    "more microphones",
                )


def _check_without_audio(recipe: Systems) -> None:
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
                all(
                    part.name not in options.nnet.hdf5 for part in network.frames.parts
                ),
            )
            for name, network in recipe.networks.items()
        ),
    ):
        if reads_audio:
            raise UserError(
                f"configuration {key}: is of audio, and sets of type hdf5 have none",
                remedy="name features of nnet.hdf5 in `features` of networks, and set "
                "`gmm: {systems: {}}`",
            )


def _check_rescorings(recipe: Systems, language: Language) -> None:
    """Refuse rescoring that names an unknown system or the first model, or no text."""
    for lm, rescoring in recipe.rescorings.items():
        language.models[lm].check_name()
        for name in rescoring.systems:
            if name not in recipe.systems:
                raise UserError(
                    f"configuration decode.rescore.{lm}.systems: no {name!r}",
                    remedy=f"choose from: {', '.join(recipe.systems)}",
                )


def _check_transcriptions(recipe: Systems) -> None:
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


def _check_export(recipe: Systems) -> None:
    """Refuse to export alignments of systems or sets that are not there."""
    export = recipe.options.export_alignments
    for name in export.systems:
        key = "configuration export_alignments.systems"
        check_choice(key, name, list(recipe.systems))
        system = recipe.systems[name]
        system.check_scores_frames(key)
        network = recipe.networks.get(name)
        if network is not None and network.base.kind == "ctc":
            raise UserError(
                f"{key}: {name} was trained by CTC, whose labels have no times of "
                "phones",
                remedy="take a GMM system, or a network of type ce or lfmmi",
            )
    for name in export.sets:
        check_choice("configuration export_alignments.sets", name, recipe.splits)
        is_used = bool(export.systems) or export.package is not None
        is_refined = is_used and export.boundaries == "refined"
        if is_refined and not recipe.has_audio(name):
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
    if export.package is not None and "package" in recipe.systems:
        raise UserError(
            "configuration export_alignments.package: a system is called package",
            remedy="give the system another name",
        )


def _check_report(recipe: Systems) -> None:
    """Refuse to show, or compare, systems and sets that are not there."""
    report = recipe.options.report
    key = "configuration report"
    if report.example_system is not None:
        choices = list(recipe.systems)
        check_choice(f"{key}.example_system", report.example_system, choices)
    if report.example_set is not None:
        check_choice(f"{key}.example_set", report.example_set, recipe.evaluation_sets)
    for system, baseline in report.baselines.items():
        check_choice(f"{key}.baselines", system, recipe.decodings)
        others = [name for name in recipe.decodings if name != system]
        check_choice(f"{key}.baselines.{system}", baseline, others)


def _check_suspects(recipe: Systems) -> None:
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
    if suspects.system is not None or not recipe.gmms:
        check_choice("configuration suspects.system", system, list(recipe.gmms))


def _check_without_dev(recipe: Systems) -> None:
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


def _check_dictionaries(recipe: Systems, language: Language) -> None:
    """Refuse to recognize speech where speakers have their own dictionaries.

    The search knows no speaker, whose words it could keep apart.
    """
    if recipe.has_dev and len(language.dictionaries) > 1:
        raise UserError(
            "configuration lang.lexicon: dictionaries of speakers are for alignment",
            file=language.options.lexicon,
            remedy="set corpus.dev to {type: none}, or name one dictionary",
        )
