"""The stage `tune_scales`: language model weight and word insertion penalty from dev.

Each lattice of the dev set is read once; its best path under every setting comes from
one sweep. The setting with the fewest word errors is chosen. Word error rates are flat
near their minimum: of equally good settings the middle of the plateau is taken, which
depends least on chance. While the best weight lies at an end of those tried, the sweep
goes on beyond it.

Written files:

* `sweep.tsv`: lmwt, wip, wer (per cent), ins, del, sub, words, a row per setting;
* `scales.json`: the chosen `lmwt` and `wip`, their `wer`, and `at_edge`, whether the
  weight lies at an end of those tried (only where the sweep may not go further; 1, the
  least there is, is no such end).

Public: `tune_scales`, `beyond`, `choose`, `read_scales`.

Source: Kaldi `steps/score_kaldi.sh` (LMWT and penalty), which looks at the test set.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from latflow.errors import UserError
from latflow.files import write_json
from latflow.lang.directory import Lang
from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.edit_distance import ErrorCounts, count_errors
from latflow.lattice.io.archives import read_lattices
from latflow.logs import progress
from latflow.scoring.options import MAX_LMWT, ComparisonOptions, TuneOptions
from latflow.scoring.results import write_rows
from latflow.scoring.transcripts import names_of, read_references

log = logging.getLogger(__name__)

COLUMNS = ("lmwt", "wip", "wer", "ins", "del", "sub", "words")
Setting = tuple[int, float]  # language model weight, word insertion penalty


def tune_scales(
    lattices: Path,
    cuts: Path,
    lang_dir: Path,
    out_dir: Path,
    *,
    options: TuneOptions,
    comparison: ComparisonOptions,
) -> None:
    """Choose the scales with the fewest word errors on a decoded set.

    Args:
        lattices: `lattices.ark` of the set.
        cuts: `cuts.jsonl.gz` of the set, with the references.
        lang_dir: language directory that the graph was made of.
        out_dir: folder for the files named in the module's description.
        options: settings that are tried.
        comparison: words that count, and costs of their alignment.

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
    by_setting: dict[Setting, ErrorCounts] = {}
    fresh, is_fixed = range(low, high + 1), low == high
    while True:
        settings = [(w, wip) for w in fresh for wip in options.word_insertion_penalties]
        counts = _count(lattices, cuts, lang_dir, settings, comparison)
        if counts[0].words == 0:
            raise UserError(
                "the references have no words to count errors on",
                file=cuts,
                remedy="check the texts of the dev set, and score.ignore_words",
            )
        by_setting.update(zip(settings, counts, strict=True))
        lmwt, wip = choose({setting: c.errors for setting, c in by_setting.items()})
        tried = sorted({weight for weight, _ in by_setting})
        fresh = beyond(tried, lmwt) if options.lmwt.widen and not is_fixed else range(0)
        if not fresh:
            break
        log.info("weight %d is the last one tried: going on to %s", lmwt, fresh)
    at_edge = not is_fixed and (lmwt == tried[-1] or lmwt == tried[0] > 1)
    if at_edge:
        log.warning(
            "the best language model weight, %d, is at the edge of %d ... %d",
            lmwt,
            tried[0],
            tried[-1],
        )
    rows = [
        (lmwt, f"{wip:g}", c.wer, c.ins, c.del_, c.sub, c.words)
        for (lmwt, wip), c in sorted(by_setting.items())
    ]
    write_rows(out_dir / "sweep.tsv", COLUMNS, rows, {"wer": 4})
    wer = by_setting[lmwt, wip].wer
    chosen = {"lmwt": lmwt, "wip": wip, "wer": wer, "at_edge": at_edge}
    write_json(out_dir / "scales.json", chosen)


def beyond(tried: Sequence[int], best: int) -> range:
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


def read_scales(path: str | Path) -> dict[str, Any]:
    """Read the chosen language model weight and word insertion penalty.

    Raises:
        UserError: there is no such file, or it is damaged.
    """
    if not Path(path).is_file():
        raise UserError(
            "no such file", file=path, remedy="run the tuning of this system first"
        )
    try:
        chosen = json.loads(Path(path).read_text(encoding="utf-8"))
        Scales.from_lmwt(float(chosen["lmwt"]), float(chosen["wip"]))
    except (ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise UserError(
            f"no scales are in it ({type(error).__name__}: {error})",
            file=path,
            remedy="remove the file and tune this system again",
        ) from error
    return chosen


def _count(
    lattices: Path,
    cuts: Path,
    lang_dir: Path,
    settings: list[Setting],
    comparison: ComparisonOptions,
) -> list[ErrorCounts]:
    """Count errors over all utterances under each setting.

    An utterance with a reference but no lattice counts as wholly deleted.
    """
    lang = Lang.load(lang_dir)
    keep, rule = comparison.filter, comparison.alignment
    references = {u: keep(words) for u, words in read_references(cuts).words.items()}
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
