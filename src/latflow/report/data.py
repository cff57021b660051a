"""Sections on what went in (speech, lexicon, graphs, versions) and on packages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import yaml

from latflow.align.cleanup import SUMMARY as CLEANED
from latflow.fst.graph import Graph
from latflow.lang.directory import GENERATED
from latflow.ledger import read_ledger
from latflow.provenance import git_state, versions
from latflow.report.inputs import Results, read_json, read_table
from latflow.report.page import Details, Note, Row, Section, Table, missing, rows_of
from latflow.report.records import Cleaned, Mixture, Package
from latflow.scoring.calibration import ScoredWords, calibration_error
from latflow.text_files import read_lines

MAX_GENERATED = 5000  # pronunciations that are listed
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")


def data_section(results: Results) -> Section:
    """List hours, utterances, speakers, words and unknown words of each part."""
    lead = (
        "The speech of this experiment. Unknown words (OOV) are not in the lexicon, so "
        "they cannot be recognized: in a test set they are errors from the start."
    )
    section = Section("data", "Speech data", lead)
    rows = []
    for split, size in results.split_sizes.items():
        oov = size.oov
        share = "" if oov is None else f"{100 * oov / max(1, size.words):.2f}"
        rows.append(
            {
                "part": split,
                "hours": f"{size.seconds / 3600:.2f}",
                "utterances": size.utterances,
                "speakers": size.speakers,
                "mean length (s)": f"{size.seconds / max(1, size.utterances):.1f}",
                "words": size.words,
                "distinct words": size.distinct_words,
                "OOV (% of words)": share,
            }
        )
    if rows:
        section.blocks.append(Table(rows, {"part"}))
    else:
        section.blocks.append(missing("speech data", "corpus"))
    section.blocks += _cleaned_sets(results)
    section.blocks += _generated_entries(results)
    return section


def _cleaned_sets(results: Results) -> Iterator[Note | Table]:
    """Yield what was dropped of sets that the recipe has cleaned, if it has."""
    rows: list[Row] = []
    for name in results.options.corpus.cleaned:
        cleaned = read_json(results / f"corpus/{name}/{CLEANED}", Cleaned)
        if cleaned is None:
            yield missing(f"cleaned set {name}", "corpus")
            continue
        hours = {
            f"{reason} (h)": f"{seconds / 3600:.3f}"
            for reason, seconds in cleaned.dropped_seconds.items()
        }
        row = {
            "cleaned set": name,
            "kept (h)": f"{cleaned.kept_seconds / 3600:.3f}",
            "of (h)": f"{cleaned.seconds / 3600:.3f}",
            "utterances": cleaned.utterances,
            "kept whole": cleaned.whole_utterances,
            "cut": cleaned.cut_utterances,
        }
        rows.append({**row, **hours})
    if rows:
        yield Note("Speech that differs from its transcript was dropped from train:")
        yield Table(rows, {"cleaned set"})


def _generated_entries(results: Results) -> Iterator[Note | Details]:
    """Yield what `lang.g2p` has added to the lexicon, if the recipe asks for it."""
    if not results.recipe.language.generates_pronunciations:
        return
    table = read_table(results / "lang" / GENERATED, ["word", "phones"])
    if table is None:
        yield missing("generated pronunciations", "lang")
        return
    is_entry = table["phones"] != ""
    yield Note(
        f"{table['word'].nunique()} words of transcripts and language model are not in "
        f"the lexicon; {is_entry.sum()} pronunciations were generated, "
        f"{(~is_entry).sum()} words got none. All are in lang/{GENERATED}."
    )
    if not table.empty:
        shown = table.head(MAX_GENERATED)
        lines = ["\t".join(table.columns), *map("\t".join, shown.to_numpy().tolist())]
        title = f"Generated pronunciations ({len(shown)} of {len(table)})"
        yield Details(title, "\n".join(lines))


def language_section(results: Results) -> Section:
    """List the sizes of lexicon, language model and decoding graphs."""
    lead = (
        "The lexicon says which phones a word may be made of, the language model which "
        "words follow which. Both are composed with the phone models to one decoding "
        "graph a system (HCLG); its size governs memory and speed of decoding."
    )
    section = Section("language", "Lexicon, language model and graphs", lead)
    rows = [*_lexicon_rows(results), *_arpa_rows(results / "lm/lm.arpa")]
    if rows:
        section.blocks.append(Table(rows, {"what"}))
    else:
        section.blocks.append(missing("lexicon and language model", "lang"))
    section.blocks.extend(_mixtures(results))
    graphs = list(_graph_rows(results))
    if graphs:
        section.blocks.append(Table(graphs, {"graph of"}))
    else:
        section.blocks.append(missing("decoding graph", "graphs"))
    return section


def ledger_section(results: Results) -> Section:
    """Return what each stage skipped, retried or cut, and why."""
    lead = (
        "No utterance is dropped in silence: each stage writes what it skipped, tried "
        "again or noticed into its ledger. A stage fails when it skips more than "
        f"{100 * results.options.ledger.max_skipped_fraction:g} % of its "
        "utterances. Numbers within a reason are shown as #."
    )
    section = Section("ledger", "Skipped and repaired utterances", lead)
    paths = sorted(results.folder.rglob("*ledger.jsonl"))
    titles = ["folder", "stage", "action", "reason"]
    entries = pd.DataFrame(
        [
            (
                path.parent.relative_to(results.folder).as_posix(),
                entry.stage,
                entry.action,
                _NUMBER.sub("#", entry.reason),
                entry.utterance,
            )
            for path in paths
            for entry in read_ledger(path)
        ],
        columns=[*titles, "utterance"],
    )
    if not paths:
        section.blocks.append(missing("ledgers", "corpus"))
    elif entries.empty:
        section.blocks.append(Note(f"All {len(paths)} ledgers are empty."))
    else:
        alike = entries.groupby(titles)["utterance"].agg(entries="size", first="first")
        rows = rows_of(alike.reset_index())
        section.blocks.append(Table(rows, {*titles, "first"}))
    return section


def packages_section(results: Results) -> Section | None:
    """Return the packages of finished systems; None where the recipe asks for none."""
    systems = results.options.package.systems
    if not systems:
        return None
    lead = (
        "Folders with all that recognition needs, of systems that are to be used; "
        "see docs/serving.md of latflow. Confidences: their expected calibration "
        "error on test sets, as served, in per cent, of posteriors and, where dev asks "
        "for it, calibrated."
    )
    section = Section("packages", "Model packages", lead)
    rows = []
    for system in systems:
        folder = results / "package" / system
        package = read_json(folder / "package.json", Package)
        if package is not None:
            size = sum(path.stat().st_size for path in folder.rglob("*"))
            row = {
                "system": system,
                "folder": folder.relative_to(results.folder).as_posix(),
                "streams": package.why_not_streaming or "yes",
                "sample rate": f"{package.sample_rate}",
                "LMWT": "" if package.lmwt is None else f"{package.lmwt:g}",
                "WIP": "" if package.wip is None else f"{package.wip:g}",
                "MB": f"{size / 1e6:.1f}",
                "confidences": _calibration(results, system, package),
            }
            rows.append(row)
    words = {"system", "folder", "streams", "confidences"}
    section.blocks.append(
        Table(rows, words) if rows else missing("packages", "package")
    )
    return section


def _calibration(results: Results, system: str, package: Package) -> str:
    """Return the expected calibration error of a package's confidences, by test set.

    Of the posteriors, and of what the package makes of them.
    """
    curve = package.confidences
    found = []
    for folder in sorted((results / "served" / system).glob("*")):
        if (folder / "per_utterance.tsv").is_file():
            words = ScoredWords.read(folder)
            raw, fitted = (100 * calibration_error(words, c) for c in ((), curve))
            after = f" -> {fitted:.1f}" if curve else ""
            found.append(f"{folder.name} {raw:.1f}{after}")
    return ", ".join(found)


def provenance_section(results: Results, *, date: str) -> Section:
    """List configuration and versions, to run the same again.

    Args:
        results: the experiment.
        date: when the report was written.
    """
    lead = "Everything needed to run the same experiment again."
    section = Section("provenance", "Configuration and versions", lead)
    commit = git_state(Path(__file__).resolve().parent)
    found = {"report written": date, "source commit": commit, **versions()}
    rows = [{"what": name, "version": version} for name, version in found.items()]
    section.blocks.append(Table(rows, {"what", "version"}))
    text = yaml.safe_dump(results.options.values(), sort_keys=False, allow_unicode=True)
    section.blocks.append(Details("Complete configuration (YAML)", text))
    return section


def training_hours(results: Results) -> float | None:
    """Return the hours of training speech; None where there is no manifest yet."""
    size = results.split_sizes.get("train")
    return None if size is None else size.seconds / 3600


def _lexicon_rows(results: Results) -> Iterator[Row]:
    """Yield numbers of words, pronunciations and phones."""
    lexicon = results / "lang/lexiconp.txt"
    if lexicon.is_file():
        words = [line.split()[0] for _, line in read_lines(lexicon) if line.strip()]
        yield {"what": "words in the lexicon", "number": len(set(words))}
        yield {"what": "pronunciations", "number": len(words)}
    for name in ("nonsilence", "silence"):
        path = results / f"lang/phones/{name}.txt"
        if path.is_file():
            number = sum(bool(line.strip()) for _, line in read_lines(path))
            yield {"what": f"{name} phones", "number": number}


def _arpa_rows(path: Path) -> Iterator[Row]:
    """Yield numbers of n-grams, from the head of an ARPA file."""
    if not path.is_file():
        return
    for _, line in read_lines(path):
        if line.startswith("ngram "):
            order, _, number = line.removeprefix("ngram ").partition("=")
            what = f"{order.strip()}-grams in the language model"
            yield {"what": what, "number": number.strip()}
        elif line.strip() == "\\1-grams:":
            return


def _mixtures(results: Results) -> Iterator[Note | Table]:
    """Yield weights and perplexities of neural language models, if there are some."""
    rows: list[Row] = []
    for name in results.recipe.language.neural_models:
        found = read_json(results / f"lm/{name}.mixture.json", Mixture)
        if found is None:
            yield missing(f"neural language model {name}", "decode")
            continue
        perplexity = found.perplexity
        rows.append(
            {
                "neural model": name,
                "weight": f"{found.weight:.3f}",
                "alone": f"{perplexity.neural:.1f}",
                "n-gram": f"{perplexity.ngram:.1f}",
                "mixture": f"{perplexity.mixture:.1f}",
            }
        )
    if rows:
        yield Note(
            "Perplexities of the transcripts of dev, over the words that both models "
            "know: a neural model, the n-gram model of the decoding graphs, and their "
            "mixture, in which the neural one has the weight."
        )
        yield Table(rows, {"neural model"})


def _graph_rows(results: Results) -> Iterator[Row]:
    """Yield the sizes of the decoding graphs."""
    for system in results.recipe.graph_owners:
        path = results / f"graph/{system}/HCLG.fst"
        if path.is_file():
            parts = Graph.load_all(path)
            yield {
                "graph of": system,
                "states": " + ".join(str(part.num_states) for part in parts),
                "arcs": " + ".join(str(part.num_arcs) for part in parts),
                "size (MB)": f"{path.stat().st_size / 1e6:.1f}",
            }
