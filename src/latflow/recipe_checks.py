"""What makes a configuration contradict itself, beyond what its schemas can say.

Public: `check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from latflow.errors import UserError

if TYPE_CHECKING:
    from latflow.recipe import Recipe


# Options of `training` that sequence training does not read, and what they are there.
_CROSS_ENTROPY_ONLY = {"label_smoothing": 0.0, "pretraining": 0, "priors": "posteriors"}


def check(recipe: Recipe) -> None:
    """Refuse names that stand for nothing, or for two things.

    Raises:
        UserError: names the key, and what may stand there.
    """
    _check_import(recipe)
    _check_systems(recipe)
    _check_streams(recipe)
    _check_networks(recipe)
    _check_rescorings(recipe)


def _check_systems(recipe: Recipe) -> None:
    """Refuse a system that builds on a later, an unknown, or its own system."""
    earlier: list[str] = []
    for name, system in recipe.systems.items():
        for key in ("alignments", "lexicon"):
            source = system.get(key)
            if source is not None and source not in earlier:
                raise UserError(
                    f"configuration gmm.systems.{name}.{key}: no system "
                    f"{source!r} before it",
                    remedy=f"choose one of: {', '.join(earlier) or 'none yet'}",
                )
        earlier.append(name)


def _check_import(recipe: Recipe) -> None:
    """Refuse an imported system without its language, or with a name twice."""
    gmm = recipe.config["gmm"]
    if (gmm["import"] is None) != (gmm["lang"] is None):
        raise UserError(
            "configuration gmm: `import` and `lang` go together",
            remedy="name the folders of both the system and its language",
        )
    if not recipe.systems:
        raise UserError(
            "configuration gmm.systems is empty",
            remedy="describe a system, or import one with gmm.import",
        )
    if recipe.imported_system in gmm["systems"]:
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
        cmvn = stream["cmvn"]["type"]
        if cmvn in {"speaker", "global"} and not stream["stored"]:
            raise UserError(
                f"{key}.cmvn: statistics of type {cmvn} need stored features",
                remedy="set its type to utterance, sliding or none, or `stored: true`",
            )


def _check_networks(recipe: Recipe) -> None:
    """Refuse a network that names what is not there, or has a system's name."""
    earlier: list[str] = []
    for name, network in recipe.networks.items():
        key = f"configuration nnet.systems.{name}"
        if name in recipe.systems:
            raise UserError(
                f"{key}: a GMM system has this name",
                remedy="give the network another",
            )
        if network["type"] == "sequence":
            _check_choice(f"{key}.parent", network["parent"], earlier)
            _check_teacher(recipe, name, earlier)
            _check_sequence_training(f"{key}.training", network["training"])
        else:
            _check_choice(f"{key}.alignments", network["alignments"], recipe.systems)
            if network["features"] is not None:
                known = [*recipe.feature_streams, *recipe.systems]
                _check_choice(f"{key}.features", network["features"], known)
        earlier.append(name)


def _check_sequence_training(key: str, training: Mapping[str, Any]) -> None:
    """Refuse what goes with cross-entropy alone, and would do nothing."""
    for name, unused in _CROSS_ENTROPY_ONLY.items():
        if training[name] != unused:
            raise UserError(
                f"{key}.{name}: is of cross-entropy training only",
                remedy="set it in the parent's training",
            )
    if training["schedule"].get("measure", "loss") != "loss":
        raise UserError(
            f"{key}.schedule.measure: dev is judged by its word errors alone",
            remedy="set it to loss, which they are here",
        )
    if training["parameter_averaging"] is not None:
        raise UserError(
            f"{key}.parameter_averaging: the ranks of a sequence training decide "
            "together on beams and failures in each step",
            remedy="leave it out: gradients are averaged",
        )


def _check_teacher(recipe: Recipe, name: str, earlier: Sequence[str]) -> None:
    """Refuse a teacher that is not there, or that reads or tells something else."""
    criterion = recipe.networks[name]["criterion"]
    key = f"configuration nnet.systems.{name}.criterion.teacher"
    teacher = criterion["teacher"]
    if (criterion["type"] == "teacher") != (teacher is not None):
        raise UserError(
            f"{key}: goes with the type teacher, and only with it",
            remedy="name a network for that type, and none for others",
        )
    if teacher is None:
        return
    _check_choice(key, teacher, earlier)
    for what, of in (("features", recipe.stream_of), ("alignments", recipe.gmm_behind)):
        if of(teacher) != of(name):
            raise UserError(
                f"{key}: {teacher} has other {what} than {name}",
                remedy=f"take a teacher with the {what} {of(name)}",
            )


def _check_rescorings(recipe: Recipe) -> None:
    """Refuse rescoring that names an unknown system or the first model."""
    for lm, rescoring in recipe.rescorings.items():
        if lm == "lm":
            raise UserError(
                "configuration decode.rescore.lm: the first model has this name",
                remedy="give the second one another",
            )
        for name in rescoring["systems"]:
            if name not in recipe.decoded_systems:
                raise UserError(
                    f"configuration decode.rescore.{lm}.systems: no {name!r}",
                    remedy=f"choose from: {', '.join(recipe.decoded_systems)}",
                )


def _check_choice(key: str, chosen: str, known: Iterable[str]) -> None:
    """Refuse a name that is not among the known ones."""
    if chosen not in known:
        raise UserError(
            f"{key}: no {chosen!r}", remedy=f"choose from: {', '.join(known) or 'none'}"
        )
