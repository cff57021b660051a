"""The section of utterances that look wrong: a table, and the worst to hear."""

from __future__ import annotations

import pandas as pd
from lhotse.audio.utils import AudioLoadingError, DurationMismatchError
from lhotse.cut import MonoCut

from latflow.corpus.manifests import read_cuts, supervision_of
from latflow.lattice.edit_distance import align_words
from latflow.report.examples import AXIS_LEFT, AXIS_WIDTH, sound_and_picture
from latflow.report.inputs import Results, read_table
from latflow.report.page import Example, Note, Section, Table, Words, missing, rows_of
from latflow.report.scores import aligned
from latflow.scoring.results import GAP
from latflow.text_files import read_lines

MAX_ROWS = 1000
LEAD = (
    "Utterances whose transcript, audio or speaker may be wrong; docs/suspects.md of "
    "latflow explains the reasons. Scores compare within a reason. Listen "
    "before you leave one out."
)


def suspects_section(results: Results) -> Section | None:
    """List utterances that look wrong; None where the recipe searches no set."""
    options = results.options.suspects
    if not options.sets:
        return None
    section = Section("suspects", "Suspects", LEAD)
    for name in options.sets:
        table = read_table(
            results / f"suspects/{name}/suspects.tsv",
            ["utterance", "reason"],
            ["score"],
        )
        if table is None:
            section.blocks.append(missing(f"suspects of {name}", "suspects"))
            continue
        number = table["utterance"].nunique()
        section.blocks.append(
            Note(f"{name}: {number} utterances, listed in suspects/{name}/suspects.txt")
        )
        if number:
            rows = rows_of(table.head(MAX_ROWS))
            text = {"utterance", "reason", "details"}
            section.blocks.append(Table(rows, text))
            section.blocks += _examples(results, name, table, options.num_examples)
    return section


def _examples(
    results: Results, name: str, table: pd.DataFrame, number: int
) -> list[Example | Note]:
    """Return the utterances with the most reasons, then the highest scores, to hear."""
    scores = table.assign(score=table["score"].astype(float))
    ranked = scores.groupby("utterance")["score"].agg(["size", "max"]).reset_index()
    ranked = ranked.sort_values(
        ["size", "max", "utterance"], ascending=[False, False, True]
    )
    chosen: list[str] = ranked["utterance"].head(number).tolist()
    cuts = {
        cut.id: cut
        for cut in read_cuts(results / f"corpus/{name}/cuts.jsonl.gz")
        if cut.id in chosen
    }
    recognized = _recognized(results, name, chosen)
    blocks: list[Example | Note] = []
    for utterance in chosen:
        reasons = table.loc[table["utterance"] == utterance, "reason"]
        if utterance in cuts:
            words = recognized.get(utterance)
            blocks.append(_example(cuts[utterance], ", ".join(reasons), words))
    return blocks


def _recognized(results: Results, name: str, chosen: list[str]) -> dict[str, str]:
    """Return the recognized words of utterances, if the set was decoded."""
    path = results / f"suspects/{name}/biased/hyp.txt"
    if results.options.suspects.biased_decoding is None or not path.is_file():
        return {}
    rows = (line.strip().partition(" ") for _, line in read_lines(path))
    return {utterance: words for utterance, _, words in rows if utterance in chosen}


def _example(cut: MonoCut, reasons: str, recognized: str | None) -> Example | Note:
    """Return one utterance to hear, or why that is not possible."""
    supervision = supervision_of(cut)
    try:
        audio, svg = sound_and_picture(cut, [])
    except (OSError, AudioLoadingError, DurationMismatchError) as error:
        reason = str(error).partition("\n")[0]
        text = f"The recording of {cut.id} cannot be read any more: {reason}"
        return Note(text, is_missing=True)
    reference_text = supervision.text or ""
    reference = Words([(word, "ok") for word in reference_text.split()])
    hypothesis = Words([])
    if recognized is not None:
        pairs = align_words(reference_text.split(), recognized.split()).pairs
        reference, hypothesis = aligned(
            " ".join(word or GAP for word, _ in pairs),
            " ".join(word or GAP for _, word in pairs),
        )
    return Example(
        utterance=cut.id,
        speaker=supervision.speaker or "",
        summary=f"{cut.duration:.1f} s: {reasons}",
        audio=audio,
        svg=svg,
        left=AXIS_LEFT,
        width=AXIS_WIDTH,
        reference=reference,
        hypothesis=hypothesis,
    )
