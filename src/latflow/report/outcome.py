"""Print the results of a run: error rates, report, what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from latflow.errors import UserError
from latflow.report.choice import chosen_on_dev, rates_of
from latflow.scoring.results import format_rates, read_rates
from latflow.workflow.packages import PackagePlan
from latflow.workflow.recipe import Recipe


def outcome_text(folder: str | Path, recipe: Recipe | None = None) -> str:
    """Return what a person wants to know at the end of a run.

    Args:
        folder: results of the experiment.
        recipe: the experiment, to say which of its systems can be packaged.

    Returns:
        Lines, each with its end; nothing where nothing is scored yet.
    """
    folder = Path(folder)
    table = read_rates(folder)
    if table is None:
        return ""
    lines = [format_rates(table), ""]
    if (report := folder / "report.html").is_file():
        lines.append(f"report: {report.resolve()}")
    packages = sorted(path.parent for path in folder.glob("package/*/package.json"))
    best = _best(folder, [path.name for path in packages])
    if best is not None:
        lines += _uses(folder / "package" / best)
    elif recipe is not None:
        lines += _packing(folder, recipe)
    return "\n".join(lines) + "\n"


def _best(folder: Path, systems: list[str]) -> str | None:
    """Return the one of some systems that dev is best with, or the first of them."""
    table = read_rates(folder)
    if table is None:
        return None
    rates = rates_of(table)
    among = {key: rate for key, rate in rates.items() if key[0] in systems}
    return chosen_on_dev(among, "dev") or next(iter(systems), None)


def _uses(package: Path) -> Iterator[str]:
    """Yield the commands that use a package."""
    name = shlex.quote(str(package))
    yield f"transcribe: latflow transcribe {name} RECORDING ..."
    yield f"serve: latflow serve {name}"


def _packing(folder: Path, recipe: Recipe) -> Iterator[str]:
    """Yield the command that packages the best system that can be streamed."""
    systems = [name for name in recipe.systems if _can_stream(recipe, name)]
    if best := _best(folder, systems):
        yield f"package, to transcribe and serve: latflow package {best} {folder}"


def _can_stream(recipe: Recipe, system: str) -> bool:
    """Return whether a system can be packaged, and its package transcribes streams."""
    plan = PackagePlan(recipe, system, offline=False)
    try:
        plan.check_recognizes()
        plan.check()
    except UserError:
        return False
    return True
