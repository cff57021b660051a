"""The stage `tune_scales`: language model weight and word insertion penalty from dev.

Each lattice of the dev set is read once; its best path under every setting comes from
one sweep. The setting with the fewest word errors is chosen. Word error rates are flat
near their minimum: of equally good settings the middle of the plateau is taken, which
depends least on chance.

Written files:

* `sweep.tsv`: lmwt, wip, wer (per cent), ins, del, sub, words, a row per setting;
* `scales.json`: the chosen `lmwt` and `wip`, their `wer`, and `at_edge`, whether the
  weight lies at an end of those tried (then a better one may lie beyond).

Public: `tune_scales`, `choose`, `read_scales`, `words_of`.

Source: Kaldi `steps/score_kaldi.sh` (LMWT and penalty), which looks at the test set.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.lang.directory import Lang
from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.io import read_lattices
from latflow.lattice.lattice import BestPath
from latflow.logs import progress
from latflow.scoring.alignment import ErrorCounts, count_errors
from latflow.scoring.references import read_references
from latflow.scoring.text import WordFilter

log = logging.getLogger(__name__)

LATTICES = "lattices.ark"
Setting = tuple[int, float]  # language model weight, word insertion penalty


def tune_scales(
    decode_dir: str | Path,
    cuts: str | Path,
    lang_dir: str | Path,
    out_dir: str | Path,
    *,
    options: Mapping[str, Any],
) -> None:
    """Choose the scales with the fewest word errors on a decoded set.

    Args:
        decode_dir: folder with `lattices.ark`.
        cuts: `cuts.jsonl.gz` of the set, with the references.
        lang_dir: language directory that the graph was made of.
        out_dir: folder for the files named in the module's description.
        options: `decode.tune` of the configuration, and from its section `score` how
            words are compared: `alignment`, `ignore_words`, `fold_case`.

    Raises:
        UserError: the lowest weight is above the highest; an utterance has a lattice
            but no reference; the references have no words.
    """
    low, high = options["lmwt"]["min"], options["lmwt"]["max"]
    penalties = [float(penalty) for penalty in options["word_insertion_penalties"]]
    settings = [(lmwt, wip) for lmwt in range(low, high + 1) for wip in penalties]
    if not settings:
        raise UserError(
            f"configuration decode.tune.lmwt: min {low} is above max {high}",
            remedy="swap them",
        )
    counts = _count(Path(decode_dir, LATTICES), cuts, lang_dir, settings, options)
    if counts[0].words == 0:
        raise UserError(
            "the references have no words to count errors on",
            file=cuts,
            remedy="check the texts of the dev set, and score.ignore_words",
        )
    errors = {s: c.errors for s, c in zip(settings, counts, strict=True)}
    lmwt, wip = choose(errors)
    at_edge = low < high and lmwt in (low, high)
    if at_edge:
        log.warning(
            "the best language model weight, %d, is at the edge of %d ... %d: widen "
            "decode.tune.lmwt",
            lmwt,
            low,
            high,
        )
    _write_sweep(Path(out_dir, "sweep.tsv"), settings, counts)
    wer = counts[settings.index((lmwt, wip))].wer
    scales = {"lmwt": lmwt, "wip": wip, "wer": wer, "at_edge": at_edge}
    with atomic_output(Path(out_dir, "scales.json")) as temporary:
        temporary.write_text(json.dumps(scales, indent=2) + "\n", encoding="utf-8")


def choose(errors: Mapping[Setting, int]) -> Setting:
    """Choose the setting with the fewest errors, in the middle of a plateau.

    For each penalty, the weights with the fewest errors form runs of neighbouring
    weights; the longest run of all wins (of equal ones that with the lowest penalty,
    then the lowest weight), and of it the middle weight (the lower of two).

    Args:
        errors: word errors of each (weight, penalty).
    """
    least = min(errors.values())
    weights = sorted({lmwt for lmwt, _ in errors})
    best: tuple[int, list[int], float] = (0, [], 0.0)
    for wip in sorted({wip for _, wip in errors}):
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
        UserError: there is no such file.
    """
    if not Path(path).is_file():
        raise UserError(
            "no such file", file=path, remedy="run the tuning of this system first"
        )
    return json.loads(Path(path).read_text(encoding="utf-8"))


def words_of(
    path: BestPath, lang: Lang, lattices: str | Path, utterance: str
) -> list[str]:
    """The words of a path.

    Args:
        path: through a lattice.
        lang: of the graph that the lattice was made with.
        lattices: where the lattice comes from, for messages.
        utterance: likewise.

    Raises:
        UserError: the lattice has a word that the language directory has not.
    """
    names = lang.words
    unknown = [word for word in path.words.tolist() if word not in names]
    if unknown:
        raise UserError(
            f"word id {unknown[0]} is not in words.txt of {lang.folder}",
            file=lattices,
            utterance=utterance,
            remedy="decode again with a graph made from this lang directory",
        )
    return [names[word] for word in path.words.tolist()]


def _count(
    lattices: Path,
    cuts: str | Path,
    lang_dir: str | Path,
    settings: Sequence[Setting],
    options: Mapping[str, Any],
) -> list[ErrorCounts]:
    """Errors over all utterances under each setting.

    An utterance with a reference but no lattice counts as wholly deleted.
    """
    lang = Lang.load(lang_dir)
    keep = WordFilter.from_options(options)
    references = {u: keep(words) for u, words in read_references(cuts).words.items()}
    scales = [Scales.from_lmwt(lmwt, wip) for lmwt, wip in settings]
    totals = [ErrorCounts()] * len(settings)
    missing = set(references)
    rule = options["alignment"]
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
                hypothesis = keep(words_of(path, lang, lattices, utterance))
                known[id(path)] = count_errors(
                    references[utterance], hypothesis, rule=rule
                )
            totals[k] += known[id(path)]
    for utterance in missing:
        deleted = count_errors(references[utterance], [], rule=rule)
        totals = [total + deleted for total in totals]
    return totals


def _write_sweep(
    path: Path, settings: Sequence[Setting], counts: Sequence[ErrorCounts]
) -> None:
    """Write the table of all settings."""
    with atomic_output(path) as temporary, temporary.open("w") as stream:
        stream.write("lmwt\twip\twer\tins\tdel\tsub\twords\n")
        for (lmwt, wip), c in zip(settings, counts, strict=True):
            stream.write(
                f"{lmwt}\t{wip:g}\t{c.wer:.4f}\t{c.ins}\t{c.del_}\t{c.sub}\t{c.words}\n"
            )
