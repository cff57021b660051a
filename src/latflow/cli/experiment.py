"""Commands about a whole experiment: begin, run, and look at results."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pydoc
import shlex
import sys
from pathlib import Path

import yaml

from latflow.cli.commands import (
    RECIPE,
    Arguments,
    Group,
    flag,
    named_experiment,
    option,
    read_recipe,
    results_folder,
)
from latflow.errors import UserError
from latflow.files import write_text

COMMANDS = Group()

_RUN_EXAMPLES = """run recipe.yaml -n                       what would be done
  latflow run recipe.yaml gmm_tri1 --cores 8       a part of the job
  latflow run demo --config seed=2                 a recipe that comes with latflow
  latflow run recipe.yaml -o nnet.systems.tdnnf.training.epochs=3
  latflow run recipe.yaml --workflow-profile slurm on a cluster"""
_OUT = option("--out", "file to write instead of standard output")


@COMMANDS.command(
    "init",
    option("folder", "for the recipe and its networks"),
    option(
        "--audio",
        "recordings with transcripts that the recipe is to be of: a folder in any of "
        "the usual layouts, or a table",
        metavar="DIR",
    ),
    option(
        "--lexicon",
        "its pronunciations, WORD PHONE PHONE ... lines; without one words are spelled "
        "by their letters",
        metavar="FILE",
    ),
    flag("--serve", "the model is to recognize while one speaks"),
    example="init mine --audio recordings/ --lexicon lexicon.txt --serve",
)
def _init(arguments: Arguments) -> None:
    """Write a recipe to begin with, full of comments, for data that is looked at."""
    from latflow.workflow.doctor import render
    from latflow.workflow.start import write_start

    files, found = write_start(
        arguments.folder, arguments.audio, arguments.lexicon, serve=arguments.serve
    )
    if found is not None:
        serious = [one for one in found.findings if one.severity != "note"]
        lines = [*found.facts, *([render(serious)] if serious else [])]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.write("".join(f"wrote {path}\n" for path in files))
    sys.stdout.write(
        f"{'Then' if found else 'Set the paths in recipe.yaml, then'}:\n"
        f"  cd {shlex.quote(arguments.folder)}\n"
        "  latflow doctor     # looks for mistakes in the data\n"
        "  latflow run        # does the whole job; a second run continues\n"
    )


@COMMANDS.command(
    "run",
    option(
        "further",
        "recipe (a file, results/<experiment>, or the name of one of latflow's; by "
        "default recipe.yaml of this folder), then targets, then options for snakemake",
        nargs=argparse.REMAINDER,
        metavar="[recipe] ...",
    ),
    example=_RUN_EXAMPLES,
)
def _run(arguments: Arguments) -> None:
    """Run a recipe by Snakemake in this folder; results are in results/<experiment>."""
    from latflow.workflow.settings import (
        find_recipe,
        give_cache,
        recipe_and_targets,
        workflow_folder,
    )

    give_cache()
    snakefile = workflow_folder() / "Snakefile"
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name, keywords in RECIPE[1:]:
        parser.add_argument(name, **keywords)
    rest = arguments.further
    end = rest.index("--") if "--" in rest else len(rest)
    given, further = parser.parse_known_args(rest[:end])
    words = list(itertools.takewhile(lambda word: word[:1] != "-", further))
    given.recipe, targets = recipe_and_targets(words)
    targets += rest[end + 1 :]  # behind `--`, as Snakemake has it
    further = [*targets, *further[len(words) :]]
    recipe = find_recipe(named_experiment(given))
    settings = _settings(recipe, given)
    if "package" in targets:
        _check_packages(recipe, settings[1:])
    _name_results(recipe, settings[1:])
    # Options last: `--config` takes what follows it, up to the next option.
    command = ["snakemake", *further, *settings, "--snakefile", str(snakefile)]
    command += ["--configfile", str(recipe)]
    sys.stderr.write(f"{shlex.join(command)}\n")
    sys.stderr.flush()
    start = [sys.executable, "-m", "latflow.interruption", *command]
    os.execv(sys.executable, start)  # noqa: S606


def _name_results(recipe: Path, settings: list[str]) -> None:
    """Tell the run's log where results lie, for a run with nothing left to do."""
    from latflow.workflow.settings import read_config

    name = read_config(recipe, settings).get("experiment")
    os.environ["LATFLOW_RESULTS"] = f"results/{name}"


def _check_packages(recipe: Path, settings: list[str]) -> None:
    """Refuse the target `package` where the recipe packages nothing.

    Raises:
        UserError: names the systems that could be packaged.
    """
    from latflow.workflow.packages import PackagePlan
    from latflow.workflow.recipe import Recipe
    from latflow.workflow.settings import read_config

    found = Recipe.from_config(read_config(recipe, settings))
    if found.options.package.systems:
        return
    able = []
    for name in found.systems:
        with contextlib.suppress(UserError):
            PackagePlan(found, name, offline=True).check()
            able.append(name)
    raise UserError(
        "configuration package.systems names no system, so that there is nothing to "
        "package",
        file=recipe,
        remedy=f"name one there, or here: -o package.systems=[{[*able, 'NAME'][-1]}]"
        + (f"; there are: {', '.join(able)}" if able else ""),
    )


def _settings(recipe: Path, given: Arguments) -> list[str]:
    """Return options of Snakemake for the settings of the command line, `-o` too.

    Of several `--config` Snakemake takes the last alone, so that all become one.
    """
    from latflow.workflow.settings import (
        check_overrides,
        nested_setting,
        read_config,
    )

    check_overrides(read_config(recipe), given.overrides)
    settings = [*given.config, *map(nested_setting, given.overrides)]
    return ["--config", *settings] if settings else []


@COMMANDS.command("config", *RECIPE)
def _config(arguments: Arguments) -> None:
    """Print the complete configuration, defaults filled."""
    config = read_recipe(arguments).options.values()
    sys.stdout.write(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))


@COMMANDS.command(
    "explain",
    option("key", "sections and names with points between them", nargs="?"),
    example="explain corpus.train.table",
)
def _explain(arguments: Arguments) -> None:
    """Explain a key of a recipe: type, default, values, and keys below it."""
    from latflow.workflow.documentation import explain

    sys.stdout.write(explain(arguments.key or ""))


@COMMANDS.command(
    "docs",
    option("topic", "its name; without one all are listed", nargs="?"),
    option("section", "words of a heading: this part alone", nargs="*"),
    example="docs serving pauses",
)
def _docs(arguments: Arguments) -> None:
    """Show the documents that come with latflow, in Markdown."""
    from latflow.workflow.pages import list_pages, read_page

    if arguments.topic is None:
        width = max(map(len, list_pages()))
        for name, title in list_pages().items():
            sys.stdout.write(f"{name:{width}}  {title}\n")
        return
    text = read_page(arguments.topic, " ".join(arguments.section))
    if sys.stdout.isatty():
        pydoc.pager(text)
    else:
        sys.stdout.write(text)


@COMMANDS.command("config-readme", _OUT)
def _config_readme(arguments: Arguments) -> None:
    """Describe all configuration keys."""
    from latflow.workflow.documentation import document

    _write(document(), arguments.out)


@COMMANDS.command("config-schema", _OUT)
def _config_schema(arguments: Arguments) -> None:
    """Write the JSON schema of recipes, for editors."""
    from latflow.workflow.experiment import json_schema

    _write(json.dumps(json_schema(), indent=1) + "\n", arguments.out)


def _write(text: str, out: str | None) -> None:
    """Write a text to a file, or to standard output where there is none."""
    if out is None:
        sys.stdout.write(text)
        return
    write_text(out, text)


@COMMANDS.command("show", *RECIPE)
def _show(arguments: Arguments) -> None:
    """Print the WER table of what is scored so far, and what to do with it."""
    from latflow.report.outcome import outcome_text

    folder = results_folder(arguments)
    outcome = outcome_text(folder)
    if not outcome:
        raise UserError("no results yet", file=folder, remedy="latflow run does it")
    sys.stdout.write(outcome)


@COMMANDS.command(
    "report",
    option(
        "--out",
        "HTML file, RESULTS.md goes beside it; <results>/report.html by default",
    ),
    *RECIPE,
)
def _report(arguments: Arguments) -> None:
    """Write the HTML report of what exists so far, and its outcome as Markdown."""
    from latflow.report.build import make_report

    folder = results_folder(arguments)
    if not folder.is_dir():
        raise UserError("no results yet", file=folder, remedy="latflow run does it")
    out = Path(arguments.out) if arguments.out else folder / "report.html"
    markdown = out.with_name("RESULTS.md")
    slices = out.with_name("slices.tsv")
    make_report(folder, out, markdown, slices, config=read_recipe(arguments).options)
    sys.stdout.write(f"report: {out.resolve()}\n")


@COMMANDS.command(
    "compare",
    option("old", "results/<experiment> of the run compared with"),
    option(
        "new",
        "results/<experiment> of the run in question; by default, for two systems of "
        "one run, the same",
        nargs="?",
    ),
    option(
        "--systems",
        "compare this system of the old run with that of the new one, instead of those "
        "of the same name",
        nargs=2,
        metavar="SYSTEM",
    ),
    option("--out", "HTML file to write instead of text on standard output"),
    option("--samples", "sets drawn for each paired comparison", 10000),
    option("--seed", "of the draws", 1),
    example="compare results/before results/after --out compare.html",
)
def _compare(arguments: Arguments) -> None:
    """Put two runs or systems side by side: errors, settings, code, training, costs."""
    from latflow.options import read_options
    from latflow.report.build import now, write_page
    from latflow.report.comparison import comparison_sections
    from latflow.report.page import markdown
    from latflow.scoring.options import BootstrapOptions

    draws = read_options(BootstrapOptions, {"samples": arguments.samples}, "--samples")
    old, new = Path(arguments.old), Path(arguments.new or arguments.old)
    systems = tuple(arguments.systems) if arguments.systems else None
    sections = comparison_sections(
        old, new, systems=systems, bootstrap=draws, seed=arguments.seed
    )
    sides = [str(old), str(new)]
    if systems:
        sides = [f"{name} of {run}" for name, run in zip(systems, sides, strict=True)]
    title = " and ".join(sides)
    summary = f"{sides[1]} (new) compared with {sides[0]} (old)."
    if arguments.out is None:
        sys.stdout.write(markdown(title, summary, sections))
        return
    write_page(Path(arguments.out), title, summary, sections, date=now())
    sys.stdout.write(f"comparison: {Path(arguments.out).resolve()}\n")


@COMMANDS.command("provenance", option("file", "any file under results/<name>"))
def _provenance(arguments: Arguments) -> int:
    """Print what made a file of the results; status 1 if it is not that any more."""
    from latflow.workflow.jobs import describe, find_record

    found = find_record(arguments.file)
    sys.stdout.write(describe(found))
    return int(found.state in {"changed", "gone"})


@COMMANDS.command(
    "compile-kernels",
    option("--processes", "how many at a time", os.cpu_count() or 1),
    flag("--update", "write the list of kernels from what has been compiled here"),
)
def _compile_kernels(arguments: Arguments) -> None:
    """Compile the numerical kernels now, not when a job first needs them."""
    from latflow.kernels import compile_kernels, write_signatures

    if arguments.update:
        sys.stdout.write(f"wrote {write_signatures()} signatures of kernels\n")
        return
    failed = compile_kernels(arguments.processes)
    for package, count in sorted(failed.items()):
        if count:
            sys.stderr.write(
                f"warning: {package}: {count} kernels are not as listed and will be "
                "compiled when they are called; to list them again, run make demo in a "
                "fresh checkout, then latflow compile-kernels --update\n"
            )
