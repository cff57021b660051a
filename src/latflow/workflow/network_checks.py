"""Refuse networks that contradict themselves or the rest of a recipe.

Public: `check_parents`, `check_networks`, `check_descriptions`,
`check_scores_frames`.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from latflow.criteria.options import MweOptions
from latflow.errors import UserError
from latflow.nnet.described import OutputLoss
from latflow.options import check_choice
from latflow.sequence.options import SequenceSystemOptions
from latflow.training.options import (
    AttentionSystemOptions,
    CeSystemOptions,
    CtcSystemOptions,
    LfmmiSystemOptions,
    TrainingOptions,
)
from latflow.workflow.data_checks import check_data
from latflow.workflow.simulation_checks import check_simulation
from latflow.workflow.transcript_checks import check_from_transcripts

if TYPE_CHECKING:
    from latflow.workflow.recipe import Recipe


# Options of `training` that other trainings do not read, and what they are there.
_CROSS_ENTROPY_ONLY = {"label_smoothing": 0.0, "pretraining": 0, "priors": "posteriors"}

# Targets of cross-entropy (those of latflow.training.labels, which reads no recipes).
_TARGETS = ("pdf", "phone")

# Phones of the widest context whose windows can all have pdfs of their own.
_FULL_CONTEXT = 2


def check_parents(recipe: Recipe) -> None:
    """Refuse a parent that is no network before its child, the rest can ask for.

    Raises:
        UserError: names the key.
    """
    earlier: list[str] = []
    for name, network in recipe.networks.items():
        if network.parent is not None:
            key = f"configuration nnet.systems.{name}.parent"
            _check_earlier(recipe, key, network.parent, earlier)
        earlier.append(name)


def check_networks(recipe: Recipe) -> None:
    """Refuse a network that names what is not there, or has a system's name."""
    earlier: list[str] = []
    for name, network in recipe.networks.items():
        key = f"configuration nnet.systems.{name}"
        if name in recipe.systems:
            raise UserError(
                f"{key}: a GMM system has this name",
                remedy="give the network another",
            )
        if network.training_set is not None:
            known = recipe.training_sets
            check_choice(f"{key}.training_set", network.training_set, known)
        if isinstance(network, SequenceSystemOptions):
            _check_parent(recipe, name, network.parent)
            _check_teacher(recipe, name, earlier)
            _check_phone_criterion(recipe, name, network)
            _check_sequence_training(f"{key}.training", network.training)
        else:
            _check_start(recipe, name, network.parent)
            if network.alignments is not None:
                check_scores_frames(recipe, f"{key}.alignments", network.alignments)
                aligners = [*recipe.systems, *earlier]
                _check_earlier(
                    recipe, f"{key}.alignments", network.alignments, aligners
                )
                _check_rates(recipe, name, network.alignments)
                _check_shifts(recipe, name, network.alignments)
            if network.features is not None:
                nnet = recipe.options.nnet
                streams = [*nnet.features, *nnet.ivectors, *nnet.hdf5, *nnet.pasted]
                known = [*streams, *recipe.systems]
                check_choice(f"{key}.features", network.features, known)
            if isinstance(network, LfmmiSystemOptions):
                _check_flat_start(recipe, name, network)
                _check_lattice_free(recipe, name, network)
            else:
                _check_outputs(recipe, name, network)
        _check_hdf5_files(recipe, name)
        _check_layers(recipe, name)
        _check_parts(recipe, name)
        _check_own_files(recipe, name)
        check_simulation(recipe, name)
        check_data(recipe, name)
        earlier.append(name)


def check_descriptions(recipe: Recipe) -> None:
    """Refuse descriptions of networks that no network can be made of.

    Not part of `check_networks`: it takes torch, which reading a recipe does without.

    Raises:
        UserError: names the file, the layer and the key.
    """
    try:
        from latflow.nnet.description import NetworkDescription
        from latflow.nnet.pretraining import first_whole_epoch
        from latflow.nnet.score_fusion import linear_output
    except ModuleNotFoundError:  # torch is in the environments of the jobs alone
        return
    for name, network in recipe.networks.items():
        file, training = recipe.description_of(name), network.training
        if file is None:
            if isinstance(network, SequenceSystemOptions):
                continue  # its seed is refused
            raise UserError(
                f"configuration nnet.systems.{name}.network: no such file "
                f"{network.network}",
                remedy="check the path, which is relative to the folder of the run",
            )
        description = NetworkDescription.load(file)
        if training.ensemble > 1:
            linear_output(description)
        if training.pretraining:
            first_whole_epoch(description, training.pretraining, training.epochs)


def _check_layers(recipe: Recipe, name: str) -> None:
    """Refuse to freeze, or to train otherwise, layers that a network has not."""
    training, known = recipe.networks[name].training, recipe.layers_of(name)
    key = f"configuration nnet.systems.{name}.training"
    for layer in training.learning_rate_factors if known else ():
        check_choice(f"{key}.learning_rate_factors", layer, known)
    for pattern in training.freeze if known else ():
        if not fnmatch.filter(known, pattern):
            check_choice(f"{key}.freeze", pattern, known)


def _check_hdf5_files(recipe: Recipe, name: str) -> None:
    """Refuse HDF5 files that lack a set which the network is trained on or decodes."""
    for stream in recipe.streams_read(name):
        if stream in recipe.options.nnet.hdf5:
            for split in (recipe.training_set_of(name), *recipe.decoded_sets):
                recipe.hdf5_files(stream, split)


def _check_parts(recipe: Recipe, name: str) -> None:
    """Refuse to take features apart that do not stand side by side."""
    pasted = recipe.options.nnet.pasted.get(recipe.stream_of(name) or "")
    for layer, part in recipe.parts_of(name).items():
        key = f"configuration nnet.systems.{name}.network: features of layer {layer}"
        if pasted is None:
            raise UserError(
                f"{key}: the network reads one stream alone",
                remedy="name one of nnet.pasted in features of the system",
            )
        check_choice(key, part, pasted.features)


def _check_own_files(recipe: Recipe, name: str) -> None:
    """Refuse functions of the user's own in files that are not there."""
    network = recipe.networks[name]
    criterion = getattr(network, "criterion", None)
    for key, own in (
        ("training.schedule", network.training.schedule),
        ("criterion", criterion),
    ):
        file, _, _ = getattr(own, "path", "").rpartition(":")
        if file.endswith(".py") and not Path(file).is_file():
            raise UserError(
                f"configuration nnet.systems.{name}.{key}.path: no such file {file}",
                remedy="name a file that is there, or a module",
            )


def _check_parent(recipe: Recipe, name: str, parent: str) -> None:
    """Refuse sequence training on top of CTC, or of a decoder with attention."""
    key = f"configuration nnet.systems.{name}.parent"
    check_scores_frames(recipe, key, recipe.seed_of(parent))
    if recipe.networks[recipe.seed_of(parent)].type == "ctc":
        raise UserError(
            f"{key}: {parent} was trained by CTC, "
            "whose frames have no alignment that lattices could be compared with",
            remedy="take a parent of type ce or lfmmi",
        )


def _check_start(recipe: Recipe, name: str, parent: str | None) -> None:
    """Refuse a network to start from that cannot be learnt from."""
    if parent is None:
        return
    key = f"configuration nnet.systems.{name}"
    if recipe.networks[name].training.pretraining:
        raise UserError(
            f"{key}.training.pretraining: layers come one by one, and do not start as "
            f"those of the parent {parent}",
            remedy="leave out one of the two",
        )
    if recipe.networks[parent].training.ensemble > 1:
        raise UserError(
            f"{key}.parent: {parent} is several networks side by side, whose layers "
            "have other names",
            remedy="name a network without training.ensemble",
        )


def _check_outputs(
    recipe: Recipe,
    name: str,
    network: AttentionSystemOptions | CeSystemOptions | CtcSystemOptions,
) -> None:
    """Refuse outputs that a network cannot be trained on, or decoded with."""
    key = f"configuration nnet.systems.{name}"
    if not isinstance(network, CeSystemOptions):
        check_from_transcripts(recipe, name, network)
    outputs = recipe.outputs_of(name)
    if not outputs:
        return
    decoded, loss = next(iter(outputs.items()))
    if loss.name != network.type or not loss.is_decodable:
        is_frames = network.type == "ce"
        wanted = "loss: ce, target: pdf" if is_frames else f"loss: {network.type}"
        raise UserError(
            f"{key}.network: its decoded output {decoded} has loss {loss.name}, target "
            f"{loss.target}",
            remedy=f"give one `{wanted}`, and name it in `decode` of the description",
        )
    for output, loss in outputs.items():
        given = recipe.targets_given(name)
        what = f"{key}.network: output {output}"
        if loss.name == "attention" and network.type != "attention":
            raise UserError(f"{what} has loss attention", remedy="set type: attention")
        _check_output(what, loss, network.alignments, given)
    for target in recipe.features_learnt(name):
        stored = recipe.streams_of(stored=True)
        known = [*stored, *recipe.simulated_targets(name)]
        check_choice(f"{key}.network: target of the loss mse", target, known)
        if network.data.perturbation is not None:
            raise UserError(
                f"{key}.data.perturbation: an output learns stored features, which do "
                "not follow",
                remedy="leave it out, or take a training_set of corpus.perturbed",
            )
    if recipe.learns_by_ctc(name) and network.data.chunks is not None:
        raise UserError(
            f"{key}.data.sequences: an output learns by CTC, from whole utterances",
            remedy="set it to {type: utterances}",
        )


def _check_output(
    what: str, loss: OutputLoss, alignments: str | None, given: Sequence[str]
) -> None:
    """Refuse an output whose loss has no targets; some are given by HDF5 files."""
    if loss.name == "lfmmi":
        raise UserError(f"{what} has loss lfmmi", remedy="set type: lfmmi")
    if loss.name != "ce" or loss.target in given:
        return
    if alignments is None:
        raise UserError(
            f"{what} has loss ce, which needs alignments",
            remedy="name a system in alignments, or leave the output out",
        )
    if loss.target not in _TARGETS:
        raise UserError(
            f"{what}: no labels for the target {loss.target}",
            remedy=f"alignments give: {', '.join(_TARGETS)}; files of nnet.hdf5 what "
            "their `targets` say",
        )


def _check_lattice_free(recipe: Recipe, name: str, network: LfmmiSystemOptions) -> None:
    """Refuse LF-MMI with settings of cross-entropy, or a network of another rate."""
    key = f"configuration nnet.systems.{name}"
    _check_unused(f"{key}.training", network.training, "it would do nothing: leave it")
    if getattr(network.training.schedule, "measure", "loss") != "loss":
        raise UserError(
            f"{key}.training.schedule.measure: LF-MMI counts no frame errors",
            remedy="set it to loss",
        )
    phone_lm = network.tree.phone_lm
    if phone_lm.no_prune_ngram_order > phone_lm.ngram_order:
        raise UserError(
            f"{key}.tree.phone_lm.no_prune_ngram_order: is above ngram_order",
            remedy=f"set it to {phone_lm.ngram_order} or less",
        )
    rate, wanted = recipe.subsampling_of(name), network.tree.frame_subsampling
    if rate != wanted and recipe.describes_network(name):
        raise UserError(
            f"{key}: the network scores one frame in {rate}, "
            f"tree.frame_subsampling is {wanted}",
            remedy="make them the same",
        )


def _check_flat_start(recipe: Recipe, name: str, network: LfmmiSystemOptions) -> None:
    """Refuse settings of alignments where there are none, and no GMM to grow trees."""
    key = f"configuration nnet.systems.{name}"
    if network.alignments is not None:
        if recipe.gmm_behind(name) is None:
            raise UserError(
                f"{key}.alignments: no GMM system is behind {network.alignments}, and "
                "the tree is made from its alignments",
                remedy="leave alignments out, or take those of a GMM system",
            )
        if network.supervision_lattices and recipe.is_network(network.alignments):
            raise UserError(
                f"{key}.supervision_lattices: {network.alignments} is a network, and "
                "lattices of pronunciations are made by GMM systems",
                remedy="leave it out, or name a GMM system in alignments",
            )
        return
    if network.supervision_lattices is not None:
        raise UserError(
            f"{key}.supervision_lattices: without alignments supervision has all "
            "pronunciations as it is",
            remedy="leave it out, or name a GMM system in alignments",
        )
    unused = {"supervision": ["left_tolerance", "right_tolerance"]}
    unused["tree"] = ["num_leaves", "split_threshold", "cluster_threshold"]
    for section, names in unused.items():
        for option in names:
            if option in getattr(network, section).model_fields_set:
                raise UserError(
                    f"{key}.{section}.{option}: is of alignments, and there are none",
                    remedy="leave it out, or name a system in alignments",
                )
    options = recipe.chain_system(name)
    if options.data.chunk_size is not None:
        raise UserError(
            f"{key}.data.sequences: without alignments utterances cannot be cut",
            remedy="leave it out, or set its type to utterances",
        )
    if options.tree.context_width > _FULL_CONTEXT:
        raise UserError(
            f"{key}.tree.context_width: without alignments a tree has all contexts, "
            f"of at most {_FULL_CONTEXT} phones",
            remedy="set it to 1 or 2",
        )


def _check_sequence_training(key: str, training: TrainingOptions) -> None:
    """Refuse what goes with cross-entropy alone, and would do nothing."""
    _check_unused(key, training, "set it in the parent's training")
    if getattr(training.schedule, "measure", "loss") != "loss":
        raise UserError(
            f"{key}.schedule.measure: dev is judged by its word errors alone",
            remedy="set it to loss, which they are here",
        )


def _check_unused(key: str, training: TrainingOptions, remedy: str) -> None:
    """Refuse what only training by cross-entropy reads."""
    for name, unused in _CROSS_ENTROPY_ONLY.items():
        if getattr(training, name) != unused:
            raise UserError(
                f"{key}.{name}: is of cross-entropy training only", remedy=remedy
            )


def _check_teacher(recipe: Recipe, name: str, earlier: list[str]) -> None:
    """Refuse a teacher that is not there, or that reads or tells something else."""
    key = f"configuration nnet.systems.{name}.criterion.teacher"
    teacher = recipe.teacher_of(name)
    if teacher is None:
        return
    _check_earlier(recipe, key, teacher, earlier)
    check_scores_frames(recipe, key, teacher)
    for what, of in (
        ("other features", recipe.stream_of),
        ("another tree", recipe.tree_owner),
        ("another frame rate", recipe.subsampling_of),
    ):
        if of(teacher) != of(name):
            raise UserError(
                f"{key}: {teacher} has {what} than {name}",
                remedy=f"take one with that of {name}: {of(name)}",
            )


def _check_rates(recipe: Recipe, name: str, aligner: str) -> None:
    """Refuse alignments with fewer frames than a network is to learn from."""
    theirs, ours = recipe.subsampling_of(aligner), recipe.subsampling_of(name)
    is_lattice_free = recipe.networks[name].type == "lfmmi"
    if theirs == 1 or (theirs == ours and not is_lattice_free):
        return
    raise UserError(
        f"configuration nnet.systems.{name}.alignments: {aligner} aligns one frame in "
        f"{theirs}, and {name} needs a label for each frame of "
        f"{'the features' if is_lattice_free else 'its own output'}",
        remedy="take the alignments of a GMM system, or of a network that scores "
        "every frame",
    )


def _check_shifts(recipe: Recipe, name: str, aligner: str) -> None:
    """Refuse alignments whose labels are of other times than a network's frames.

    Frames of Lhotse's extractors, which take torch to be known, are left to the job.
    """
    learnt = [
        loss.target
        for loss in recipe.outputs_of(name).values()
        if loss.name in {"ce", "lfmmi"}
    ]
    if set(learnt) <= {*recipe.targets_given(name)}:
        return  # the alignments give the tree alone
    if any(map(recipe.extracts_by_lhotse, (name, aligner))):
        return
    ours, rate = recipe.feature_shift(name), recipe.subsampling_of(name)
    labels = recipe.feature_shift(aligner) * recipe.subsampling_of(aligner)
    fitting = [ours] if recipe.networks[name].type == "lfmmi" else [ours, rate * ours]
    if not any(math.isclose(labels, shift, rel_tol=1e-3) for shift in fitting):
        raise UserError(
            f"configuration nnet.systems.{name}.alignments: {aligner} has a label each "
            f"{1000 * labels:g} ms, and the features of {name} a frame each "
            f"{1000 * ours:g} ms",
            remedy="give both features the same frame_shift_ms",
        )


def _check_phone_criterion(
    recipe: Recipe, name: str, network: SequenceSystemOptions
) -> None:
    """Refuse phones of alignments of which the network's frames are but a part."""
    criterion, alignments = network.criterion, network.sequence.alignments
    counts_phones = criterion.type == "phone_mpe" or (
        isinstance(criterion, MweOptions) and criterion.unit == "phone"
    )
    aligner = recipe.aligner_of(name)
    has_whole = recipe.subsampling_of(aligner) == recipe.subsampling_of(name)
    is_fresh = alignments.source == "on_the_fly" and alignments.on_failure == "skip"
    if counts_phones and not has_whole and not is_fresh:
        raise UserError(
            f"configuration nnet.systems.{name}.criterion: counts phones, and {name} "
            f"sees one frame in {recipe.subsampling_of(name)} of the alignments of "
            f"{aligner}, which may miss some",
            remedy="set sequence.alignments to {source: on_the_fly, on_failure: skip}, "
            "or take another criterion",
        )


def _check_earlier(recipe: Recipe, key: str, chosen: str, known: list[str]) -> None:
    """Refuse a name that is not among those of the systems before."""
    if chosen in recipe.networks and chosen not in known:
        raise UserError(
            f"{key}: {chosen!r} does not come before it",
            remedy=f"move it up, or choose from: {', '.join(known) or 'none'}",
        )
    check_choice(key, chosen, known)


def check_scores_frames(recipe: Recipe, key: str, system: str) -> None:
    """Refuse a decoder with attention where scores of frames are needed."""
    if recipe.has_decoder(system):
        raise UserError(
            f"{key}: {system} is a decoder with attention, which scores no frames",
            remedy="take a system of another type",
        )
