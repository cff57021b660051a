"""The stages `score_wer` and `summarise_wer`: from lattices to word error rates.

`score` takes the words of a decoded set at the scales that were chosen on dev, and
compares them with the references. It writes, into one folder:

* `hyp.txt`: recognised words, Kaldi's text form;
* `hyp.ctm`: words with times and confidences; `hyp_phones.ctm`: phones with times;
* `wer.json`: counts, word error rate and its confidence interval;
* `per_utterance.tsv`, `per_speaker.tsv`, `confusions.tsv`.

An utterance that has a reference but no lattice counts as wholly deleted, and is named
in `wer.json`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from latflow.decode.tune import read_scales
from latflow.files import atomic_output
from latflow.lattice.best_path import Scales
from latflow.lattice.io import read_lattices
from latflow.logs import progress
from latflow.parallel import map_in_order
from latflow.scoring import results
from latflow.scoring.ctm import ctm_line
from latflow.scoring.references import read_references
from latflow.scoring.summary import COLUMNS, percent, read_wer
from latflow.scoring.text import write_text
from latflow.scoring.transcribe import Transcriber, Transcript

log = logging.getLogger(__name__)


def score(
    lattices: str | Path,
    cuts: str | Path,
    lang_dir: str | Path,
    model_dir: str | Path,
    scales: str | Path,
    out_dir: str | Path,
    *,
    options: Mapping[str, Any],
    threads: int = 1,
) -> None:
    """Score what was recognised of a decoded set.

    Args:
        lattices: `lattices.ark` of the set.
        cuts: `cuts.jsonl.gz` of the set: references, speakers, frame shift.
        lang_dir: language directory that the graph was made of.
        model_dir: folder with the `final.mdl` that decoded.
        scales: `scales.json` with the chosen `lmwt` and `wip`.
        out_dir: folder for the files named in the module's description.
        options: section `score` of the configuration, with the experiment's `seed`.
        threads: lattices worked on at a time.

    Raises:
        UserError: there is no utterance to score; a lattice has no reference.
    """
    references = read_references(cuts)
    chosen = read_scales(scales)
    transcriber = Transcriber.load(
        lang_dir,
        model_dir,
        scales=Scales.from_lmwt(chosen["lmwt"], chosen["wip"]),
        frame_shift=references.frame_shift,
        decision=options["decision"],
    )
    items = progress(read_lattices(lattices), "score", total=len(references.words))
    transcripts = map_in_order(transcriber, items, threads)
    recognised = _write_times(Path(out_dir), transcripts)
    scores = results.score_utterances(
        references.words, recognised, references.speakers, options=options
    )
    missing = sorted(references.words.keys() - recognised.keys())
    if missing:
        log.warning(
            "%d of %d utterances have no lattice and count as deleted, first: %s",
            len(missing),
            len(scores),
            missing[0],
        )
    write_text(Path(out_dir, "hyp.txt"), recognised)
    _write_tables(Path(out_dir), scores, options)
    summary = _summary(scores, missing, chosen, options)
    with atomic_output(Path(out_dir, "wer.json")) as temporary:
        temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def summarise_wer(
    scores: Mapping[tuple[str, str], str | Path], out_tsv: str | Path
) -> None:
    """Collect the word error rates of all systems and sets into one table.

    Args:
        scores: folder that `score` wrote, of each (system, set), in the order wanted.
        out_tsv: table to write, with the columns `latflow.scoring.summary.COLUMNS`;
            rates and bounds in per cent.

    Raises:
        UserError: a folder has no `wer.json`.
    """
    rows = []
    for (system, name), folder in scores.items():
        result = read_wer(folder)
        fields = {
            **result,
            "system": system,
            "set": name,
            "wer": percent(result["wer"]),
            "ci_low": percent(result["confidence_interval"]["low"]),
            "ci_high": percent(result["confidence_interval"]["high"]),
        }
        rows.append([fields[column] for column in COLUMNS])
    results.write_tsv(out_tsv, COLUMNS, rows)


def _write_times(
    folder: Path, transcripts: Iterable[Transcript]
) -> dict[str, list[str]]:
    """Write `hyp.ctm` and `hyp_phones.ctm`; return the words of each utterance."""
    texts: dict[str, list[str]] = {}
    with ExitStack() as stack:
        names = ("hyp.ctm", "hyp_phones.ctm")
        parts = [stack.enter_context(atomic_output(folder / name)) for name in names]
        outs = [stack.enter_context(part.open("w", encoding="utf-8")) for part in parts]
        for transcript in transcripts:
            texts[transcript.utterance] = [word.word for word in transcript.words]
            timed = (transcript.words, transcript.phones)
            for out, labels in zip(outs, timed, strict=True):
                out.writelines(map(ctm_line, labels))
    return texts


def _write_tables(
    folder: Path, scores: list[results.UtteranceScore], options: Mapping[str, Any]
) -> None:
    """Write the tables by utterance, by speaker and by word pair."""
    results.write_per_utterance(folder / "per_utterance.tsv", scores)
    results.write_per_speaker(folder / "per_speaker.tsv", scores)
    results.write_confusions(
        folder / "confusions.tsv", scores, limit=options["max_confusions"]
    )


def _summary(
    scores: list[results.UtteranceScore],
    missing: list[str],
    scales: Mapping[str, Any],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """The contents of `wer.json`; rates in per cent, null where there is no word."""
    counts = results.total(scores)
    bounds = results.interval(scores, options=options)
    bootstrap = options["bootstrap"]
    has_words = counts.words > 0
    return {
        "wer": counts.wer if has_words else None,
        "ins": counts.ins,
        "del": counts.del_,
        "sub": counts.sub,
        "words": counts.words,
        "sentences": len(scores),
        "sentence_errors": results.num_sentence_errors(scores),
        "speakers": len(results.by_speaker(scores)),
        "lmwt": scales["lmwt"],
        "wip": scales["wip"],
        "confidence_interval": {
            "low": bounds.low if has_words else None,
            "high": bounds.high if has_words else None,
            **bootstrap,
        },
        "alignment": options["alignment"],
        "decision": options["decision"],
        "without_lattice": missing,
    }
