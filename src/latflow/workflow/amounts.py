"""Hours of speech and utterances of an experiment's sets, before they are prepared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from latflow.corpus import grammar
from latflow.corpus.derived_options import PausedSetOptions
from latflow.corpus.options import (
    DevSource,
    HoldOutSource,
    LhotseSource,
    SyntheticSource,
)
from latflow.errors import UserError
from latflow.features.frame_times import Amount, frames_amount
from latflow.workflow.recipe import Recipe
from latflow.workflow.survey import Survey, survey_source

# Mean length of what eSpeak NG says of the orders of `type: synthetic`.
SYNTHETIC_SECONDS = 2.5


def split_sizes(results: Path) -> dict[str, Amount]:
    """Return hours and utterances of each split that has frames.

    Where the dev set was held out, what it was held out of is called `full`.
    """
    sizes: dict[str, Amount] = {}
    for path in sorted(results.glob("streams/gmm/frames/*/meta.json")):
        sizes[path.parent.name] = frames_amount(path)
    if (results / "corpus/full").is_dir() and {"train", "dev"} <= sizes.keys():
        (train, first), (dev, second) = sizes["train"], sizes["dev"]
        sizes["full"] = train + dev, (first or 0) + (second or 0) or None
    return sizes


def split_amounts(
    recipe: Recipe,
    hours: Mapping[str, float],
    utterances: Mapping[str, float],
) -> dict[str, Amount]:
    """Return hours and utterances of each split: given, prepared, or of its source.

    Args:
        recipe: the experiment.
        hours: what the user says of sets that are not here.
        utterances: the same.

    Raises:
        UserError: a name that is not a split, or hours that are not known.
    """
    corpus = recipe.options.corpus
    known = {*recipe.sources, *recipe.splits, *recipe.training_sets}
    for name in (*hours, *utterances):
        if name not in known:
            raise UserError(
                f"--hours, --utterances: {name} is not a set of the recipe",
                remedy=f"name one of {', '.join(sorted(known))}",
            )
    counts = {name: round(number) for name, number in utterances.items()}
    amounts = split_sizes(Path("results", recipe.experiment))
    amounts |= {name: (number, counts.get(name)) for name, number in hours.items()}
    if isinstance(corpus.dev, HoldOutSource):
        _hold_out(recipe, corpus.dev.fraction, amounts, counts)
    else:
        for name, source in recipe.sources.items():
            if name not in amounts:
                amounts[name] = _surveyed(recipe, name, source)
    for name in corpus.cleaned:  # what will be dropped is not known
        amounts.setdefault(name, amounts["train"])
    for name, options in corpus.paused.items():
        amounts.setdefault(name, _with_pauses(options, amounts[options.of]))
    for name, options in corpus.perturbed.items():
        total, count = amounts[options.of]
        longer = sum(1 / speed for speed in options.speeds)
        number = None if count is None else count * len(options.speeds)
        amounts.setdefault(name, (longer * total, number))
    for name, options in corpus.simulated.items():
        amounts.setdefault(name, amounts[options.of])
    return amounts


def _with_pauses(options: PausedSetOptions, given: Amount) -> Amount:
    """Return hours and recordings of a set whose utterances are joined by pauses."""
    total, count = given
    if count is None:
        return total, None
    recordings = count / (sum(options.utterances) / 2)
    between = (count - recordings) * (1 - options.no_pause)
    pauses = (between + 2 * recordings) * sum(options.pause) / 2
    made = total + pauses / 3600, round(recordings)
    return (made[0] + total, made[1] + count) if options.alone else made


def _hold_out(
    recipe: Recipe,
    share: float,
    amounts: dict[str, Amount],
    counts: Mapping[str, int],
) -> None:
    """Add the sets of a recipe whose dev set is a share of the training speech."""
    if "train" in amounts:
        total, count = amounts["train"]
        whole = None if count is None else round(count / (1 - share))
        amounts.setdefault("full", (total / (1 - share), whole))
    for name, source in recipe.sources.items():
        if name not in amounts:
            amounts[name] = _surveyed(recipe, name, source)
    total, count = amounts["full"]
    for name, part in (("train", 1 - share), ("dev", share)):
        number = None if count is None else round(part * count)
        amounts.setdefault(name, (part * total, counts.get(name, number)))


def synthetic_lexicon(recipe: Recipe) -> dict[str, float]:
    """Return the size in MiB of the lexicon of synthetic speech, by its path.

    A small part of what its job writes: the rest is text for the language model.
    """
    if not isinstance(recipe.options.corpus.train, SyntheticSource):
        return {}
    size = sum(len(line.encode()) + 1 for line in grammar.lexicon_lines())
    return {f"{recipe.results}/corpus/language/lexicon.txt": size / 2**20}


def _surveyed(recipe: Recipe, name: str, source: DevSource) -> Amount:
    """Return hours and utterances of a source, by its files or its settings."""
    if isinstance(source, SyntheticSource):
        return source.utterances * SYNTHETIC_SECONDS / 3600, source.utterances
    survey = Survey(name, name, None, recipe.options.features)
    if not isinstance(source, LhotseSource):
        survey_source(source, survey)
    if not survey.seconds:
        raise UserError(
            f"the hours of {name} are not known before its corpus is prepared",
            remedy=f"--hours {name}=10",
        )
    return survey.seconds / 3600, survey.num_utterances
