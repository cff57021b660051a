"""The recipe behind `latflow align`: from a corpus and a lexicon to TextGrids."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import yaml

from latflow.corpus.options import CorpusOptions
from latflow.errors import UserError
from latflow.features.options import FeatureOptions
from latflow.lang.options import LangOptions
from latflow.options import read_options
from latflow.workflow.doctor import examine_corpus
from latflow.workflow.findings import Finding
from latflow.workflow.settings import workflow_folder
from latflow.workflow.sizes import gmm_systems
from latflow.workflow.survey import Survey

RECIPE_NAME = "recipe.yaml"
EXPERIMENT = "align"
ALIGNER = "sat"  # the last system, which aligns and is packaged
_PRONUNCIATIONS = 3  # of a word that the lexicon lacks, at most
# What the workflow's profile has Snakemake say of its progress.
# A share or, before jobs are estimated, blanks in its place; see run_progress.
_PROGRESS = re.compile(r"\s*\d+%| {6}\S|\d+ of \d+ jobs done")


def g2p_settings(given: str | None) -> dict[str, Any]:
    """Return the section `lang.g2p` of what `--g2p` says.

    Args:
        given: a model's file, or `train` for one trained on the lexicon; None for no
            generated pronunciations.

    Raises:
        UserError: there is no such file.
    """
    if given is None:
        return {}
    if given == "train":
        return {"num_pronunciations": _PRONUNCIATIONS}
    if not Path(given).is_file():
        raise UserError(
            "no such model",
            file=given,
            remedy="latflow g2p train makes one; --g2p train learns from the lexicon",
        )
    return {"num_pronunciations": _PRONUNCIATIONS, "model": os.path.abspath(given)}


def survey_corpus(
    source: Mapping[str, Any],
    lexicon: str | Path,
    lang: LangOptions | None = None,
    *,
    max_skipped_fraction: float = 1.0,
) -> tuple[list[Finding], Survey]:
    """Look over a corpus and a lexicon before anything is computed.

    Args:
        source: as from `latflow.workflow.layout.find_source`.
        lang: how the lexicon is read, and what is added to it.
        max_skipped_fraction: share of the utterances that may be skipped.

    Returns:
        (findings, the worst first; what was counted).
    """
    corpus = read_options(
        CorpusOptions, {"train": source, "dev": {"type": "none"}}, "corpus"
    )
    features, lang = FeatureOptions(), lang or LangOptions()
    given = (corpus, lexicon, lang)
    found = examine_corpus(*given, features, max_skipped_fraction)
    rates = found[1].sample_rates
    if len(rates) > 1:  # `align_recipe` resamples to the lowest
        features = features.replace(sample_rate=min(rates))
        found = examine_corpus(*given, features, max_skipped_fraction)
    return found


@dataclass(frozen=True)
class AligningPackage:
    """A model package that aligns a corpus."""

    path: str | Path
    """Its folder."""
    adapts: bool = False
    """Whether it is adapted to the corpus before."""
    trust_code: bool = False
    """Whether code may run that it names."""
    device: str = "auto"
    """Of a network."""


def align_recipe(
    source: Mapping[str, Any],
    lexicon: str | Path,
    survey: Survey,
    *,
    package: AligningPackage | None = None,
    g2p: Mapping[str, Any] | None = None,
    search: Mapping[str, Any] | None = None,
    export: Mapping[str, Any] | None = None,
    max_skipped_fraction: float,
) -> dict[str, Any]:
    """Return a recipe that aligns a corpus with systems trained on it, or a package.

    Systems have leaves and Gaussians as the amount of speech bears them; the last one
    is packaged, to align other corpora.

    Args:
        source: as from `find_source`.
        survey: of the corpus.
        package: what aligns; None for systems of the corpus's own.
        g2p: section `lang.g2p`, see `g2p_settings`.
        search: beams, as section `gmm.align`.
        export: forms and times of phones, as section `export_alignments`.
        max_skipped_fraction: share of the utterances that a stage may leave out.
    """
    rates = sorted(survey.sample_rates)
    recipe: dict[str, Any] = {
        "experiment": EXPERIMENT,
        "corpus": {"train": dict(source), "dev": {"type": "none"}},
        "lang": {
            "lexicon": os.path.abspath(lexicon),
            **({"g2p": dict(g2p)} if g2p else {}),
        },
        "lm": {"type": "uniform"},
        "ledger": {"max_skipped_fraction": max_skipped_fraction},
    }
    if len(rates) > 1:
        recipe["features"] = {"sample_rate": rates[0]}
    is_listed = source["type"] in {"folder", "table"}
    names = "path" if is_listed else "recording"
    exported: dict[str, Any] = {"names": names, **(export or {})}
    if is_listed:
        path = Path(source["path"])
        top = path if source["type"] == "folder" else source.get("audio", path.parent)
        exported["folder"] = os.path.abspath(top)
    if search:
        recipe["gmm"] = {"align": dict(search)}
    if package is None:
        systems = gmm_systems(survey.seconds / 3600, ALIGNER)
        recipe["gmm"] = {**recipe.get("gmm", {}), "systems": systems}
        recipe["package"] = {"systems": [ALIGNER]}
        exported["systems"] = [ALIGNER]
    else:
        exported |= {
            "package": os.path.abspath(package.path),
            "trust_code": package.trust_code,
        }
        if package.device != "auto":
            recipe["nnet"] = {"device": package.device}
        if package.adapts:
            exported["adapt"] = {}
    return {**recipe, "export_alignments": exported}


def run_recipe(
    recipe: Mapping[str, Any],
    out: Path,
    *,
    cores: int,
    stream: TextIO,
    is_dry: bool = False,
) -> int:
    """Run a recipe with Snakemake in its own folder, and report its progress.

    Args:
        recipe: written to the folder; a run with the same one does what is left.
        out: the folder; Snakemake's output is added to its `latflow.log`.
        cores: processor cores to use.
        stream: where a line for each step goes.
        is_dry: only say what would be done.

    Returns:
        Snakemake's exit status.
    """
    out.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True)
    (out / RECIPE_NAME).write_text(text, encoding="utf-8")
    dry = ["--dry-run"] if is_dry else []
    command = [sys.executable, "-m", "latflow.interruption", "snakemake"]
    command += ["--directory", str(out)]
    command += ["--snakefile", str(workflow_folder() / "Snakefile")]
    command += ["--configfile", str(out / RECIPE_NAME)]
    command += ["--cores", str(cores), "--nocolor", "--rerun-incomplete", *dry]
    with (
        (out / "latflow.log").open("a", encoding="utf-8") as log,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
        _ending_with_us(process, stream),
    ):
        assert process.stdout is not None
        last: deque[str] = deque(maxlen=15)
        errors: list[str] = []
        for line in process.stdout:
            log.write(line)
            last.append(line)
            if line.startswith("error: "):
                errors.append(line)
            if is_dry or _PROGRESS.match(line):
                stream.write(line)
                stream.flush()
    if process.returncode:
        stream.writelines(dict.fromkeys(errors) if errors else last)
        if any("ledger.max_skipped_fraction" in line for line in errors):
            stream.write("it is --max-skipped of latflow align\n")
        stream.write(f"the whole log: {out / 'latflow.log'}\n")
    return int(process.returncode)


@contextmanager
def _ending_with_us(process: subprocess.Popen[str], stream: TextIO) -> Iterator[None]:
    """Pass signals of this process on to Snakemake, and end by them after it.

    A signal to this process alone would else leave Snakemake and its jobs behind.
    """
    received: list[int] = []

    def pass_on(number: int, _: object) -> None:
        received.append(number)
        process.terminate()

    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    # What a shell runs in the background ignores Ctrl-C, and still shall.
    handled = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in handled}
    try:
        yield
        process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            stream.write("Run the command again: what is done is kept.\n")
            stream.flush()
            signal.raise_signal(received[0])
