"""The stage `tune_scales`: language model weight and word insertion penalty from dev.

Each lattice of the dev set is read once; its best path under every setting comes from
one sweep. The setting with the fewest word errors is chosen. Word error rates are flat
near their minimum: of equally good settings the middle of the plateau is taken, which
depends least on chance. While the best weight or the best penalty lies at an end of
those tried, the sweep continues beyond it.

Written files:

* `sweep.tsv`: lmwt, wip, wer (per cent), ins, del, sub, words, a row per setting;
* `scales.json`: the chosen `lmwt` and `wip`, their `wer`, and `at_edge`, which of the
  two lie at an end of those tried (only where the sweep may not go further; a weight of
  1, the least there is, is no such end).

Source: Kaldi `steps/score_kaldi.sh` (LMWT and penalty), which looks at the test set.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from latflow.errors import UserError
from latflow.files import reading, write_json
from latflow.lang.directory import Lang
from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.edit_distance import ErrorCounts, count_errors
from latflow.lattice.io.archives import read_lattices
from latflow.logs import progress
from latflow.scoring.options import (
    MAX_LMWT,
    MAX_PENALTY,
    ComparisonOptions,
    TuneOptions,
)
from latflow.scoring.results import write_rows
from latflow.scoring.transcripts import names_of, read_references

log = logging.getLogger(__name__)

COLUMNS = ("lmwt", "wip", "wer", "ins", "del", "sub", "words")
SCALES = {"lmwt": "language model weight", "wip": "word insertion penalty"}
Setting = tuple[int, float]  # language model weight, word insertion penalty


def tune_scales(
    lattices: Path,
    cuts: Path,
    lang_dir: Path,
    out_dir: Path,
    *,
    options: TuneOptions,
    comparison: ComparisonOptions,
    features_dir: Path | None = None,
) -> None:
    """Choose the scales with the fewest word errors on a decoded set.

    Args:
        lattices: `lattices.ark` of the set.
        cuts: `cuts.jsonl.gz` of the set, with the references.
        lang_dir: language directory that the graph was made of.
        out_dir: folder for the files named in the module's description.
        options: settings that are tried.
        comparison: words that count, and costs of their alignment.
        features_dir: features of the set; see `read_references`.

    Raises:
        UserError: the lowest weight is above the highest; an utterance has a lattice
            but no reference; the references have no words.
    """
    low, high = options.lmwt.min, options.lmwt.max
    if low > high:
        raise UserError(
            f"configuration decode.tune.lmwt: min {low} is above max {high}",
            remedy="swap them",
        )
    references = read_references(cuts, features_dir).words

    def count(settings: list[Setting]) -> list[ErrorCounts]:
        counts = _count(lattices, references, lang_dir, settings, comparison)
        if counts[0].words == 0:
            raise UserError(
                "the references have no words to count errors on",
                file=cuts,
                remedy="check the texts of the dev set, and score.ignore_words",
            )
        return counts

    by_setting, (lmwt, wip), at_edge = _sweep(count, options)
    rows = [
        (lmwt, f"{wip:g}", c.wer, c.ins, c.del_, c.sub, c.words)
        for (lmwt, wip), c in sorted(by_setting.items())
    ]
    write_rows(out_dir / "sweep.tsv", COLUMNS, rows, {"wer": 4})
    wer = by_setting[lmwt, wip].wer
    chosen = {"lmwt": lmwt, "wip": wip, "wer": wer, "at_edge": at_edge}
    write_json(out_dir / "scales.json", chosen)


def _sweep(
    count: Callable[[list[Setting]], list[ErrorCounts]], options: TuneOptions
) -> tuple[dict[Setting, ErrorCounts], Setting, list[str]]:
    """Count the errors of a grid of settings, widened while its edge is best.

    Returns:
        (counts by setting, the best setting, which of its scales lie at an edge).
    """
    weights = list(range(options.lmwt.min, options.lmwt.max + 1))
    penalties = sorted(options.word_insertion_penalties)
    widens_weights = options.widen and len(weights) > 1
    widens_penalties = options.widen and len(penalties) > 1
    if widens_penalties:
        # the least is often the best: with one below it lattices are read but once
        penalties = [*penalties_beyond(penalties, penalties[0])[-1:], *penalties]
    by_setting: dict[Setting, ErrorCounts] = {}
    while True:
        grid = [(weight, penalty) for weight in weights for penalty in penalties]
        settings = [setting for setting in grid if setting not in by_setting]
        by_setting.update(zip(settings, count(settings), strict=True))
        lmwt, wip = choose({setting: c.errors for setting, c in by_setting.items()})
        further = weights_beyond(weights, lmwt) if widens_weights else range(0)
        costlier = penalties_beyond(penalties, wip) if widens_penalties else []
        if not further and not costlier:
            found = {"lmwt": (lmwt, weights), "wip": (wip, penalties)}
            return by_setting, (lmwt, wip), _at_edge(found)
        for name, best, fresh in (("lmwt", lmwt, further), ("wip", wip, costlier)):
            if fresh:
                log.info(
                    "the best %s, %g, is the last one tried: continuing with %g ... %g",
                    *(SCALES[name], best, fresh[0], fresh[-1]),
                )
        weights = sorted({*weights, *further})
        penalties = sorted({*penalties, *costlier})


def weights_beyond(tried: Sequence[int], best: int) -> range:
    """Return the weights to try next, where the best one is the first or the last.

    Below: down to half of it; above: up to twice.

    Args:
        tried: weights tried so far, ascending and without gaps.
        best: the best of them.
    """
    if best == tried[0]:
        return range(max(1, tried[0] // 2), tried[0])
    if best == tried[-1]:
        return range(tried[-1] + 1, min(MAX_LMWT, 2 * tried[-1]) + 1)
    return range(0)


def penalties_beyond(tried: Sequence[float], best: float) -> list[float]:
    """Return the penalties to try next, where the best one is the first or the last.

    As far beyond it as those tried reach, at the distance of the last two.

    Args:
        tried: penalties tried so far, ascending, two or more.
        best: the best of them.
    """
    if best not in (tried[0], tried[-1]):
        return []
    step = tried[1] - tried[0] if best == tried[0] else tried[-1] - tried[-2]
    count = max(1, round((tried[-1] - tried[0]) / step))
    sign = -1 if best == tried[0] else 1
    fresh = (round(best + sign * step * k, 6) for k in range(1, count + 1))
    return sorted(penalty for penalty in fresh if abs(penalty) <= MAX_PENALTY)


def choose(errors: Mapping[Setting, int]) -> Setting:
    """Choose the setting with the fewest errors, in the middle of a plateau.

    For each penalty, the weights with the fewest errors form runs of neighbouring
    weights; the longest run of all wins (of equal ones that with the penalty nearest to
    0, then the lowest weight), and of it the middle weight (the lower of two).

    Args:
        errors: word errors of each (weight, penalty).
    """
    least = min(errors.values())
    weights = sorted({lmwt for lmwt, _ in errors})
    best: tuple[int, list[int], float] = (0, [], 0.0)
    for wip in sorted({wip for _, wip in errors}, key=lambda wip: (abs(wip), wip)):
        run: list[int] = []
        for lmwt in weights:
            run = [*run, lmwt] if errors.get((lmwt, wip)) == least else []
            if len(run) > best[0]:
                best = (len(run), run, wip)
    _, run, wip = best
    return run[(len(run) - 1) // 2], wip


def _at_edge(found: Mapping[str, tuple[float, Sequence[float]]]) -> list[str]:
    """Return the scales whose best value is an end of those tried, and warn of each."""
    names: list[str] = []
    for name, (best, tried) in found.items():
        is_least = name == "lmwt" and best == 1
        if len(tried) > 1 and best in (tried[0], tried[-1]) and not is_least:
            names.append(name)
            log.warning(
                "the best %s, %g, is at the edge of %g ... %g",
                *(SCALES[name], best, tried[0], tried[-1]),
            )
    return names


def read_scales(path: str | Path) -> dict[str, Any]:
    """Read the chosen language model weight and word insertion penalty.

    Raises:
        UserError: there is no such file, or it is damaged.
    """
    if not Path(path).is_file():
        raise UserError(
            "no such file", file=path, remedy="run the tuning of this system first"
        )
    remedy = "remove the file and tune this system again"
    with reading(path, "no scales are in it", remedy):
        chosen = json.loads(Path(path).read_text(encoding="utf-8"))
        _, scale, penalty = Scales.from_lmwt(chosen["lmwt"], chosen["wip"])
        if not (0 < scale < math.inf and math.isfinite(penalty)):
            raise ValueError(f"lmwt {chosen['lmwt']}, wip {penalty}")
        return chosen


def _count(
    lattices: Path,
    references: Mapping[str, list[str]],
    lang_dir: Path,
    settings: list[Setting],
    comparison: ComparisonOptions,
) -> list[ErrorCounts]:
    """Count errors over all utterances under each setting.

    An utterance with a reference but no lattice counts as wholly deleted.
    """
    lang = Lang.load(lang_dir)
    keep, rule = comparison.filter, comparison.alignment
    references = {u: keep(words) for u, words in references.items()}
    scales = [Scales.from_lmwt(lmwt, wip) for lmwt, wip in settings]
    totals = [ErrorCounts()] * len(settings)
    missing = set(references)
    for utterance, lattice in progress(
        read_lattices(lattices), "tune", total=len(references)
    ):
        if utterance not in references:
            raise UserError(
                "a lattice without a reference",
                file=lattices,
                utterance=utterance,
                remedy="decode the set that the references are of",
            )
        missing.discard(utterance)
        known: dict[int, ErrorCounts] = {}
        for k, path in enumerate(best_paths(lattice, scales)):
            if id(path) not in known:
                words = names_of(
                    path.words, lang.words, file=lattices, utterance=utterance
                )
                hypothesis = keep(words)
                known[id(path)] = count_errors(
                    references[utterance], hypothesis, rule=rule
                )
            totals[k] += known[id(path)]
    for utterance in missing:
        deleted = count_errors(references[utterance], [], rule=rule)
        totals = [total + deleted for total in totals]
    return totals
