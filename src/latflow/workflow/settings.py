"""Recipes as the command line names them, and the files of the workflow.

`Snakefile`, `workflow`, `config`, `envs` and `profiles` are at the top of the
repository; a wheel has them in `latflow/_workflow` (see `setup.py`). Recipes are read
exactly as Snakemake reads them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from latflow.errors import UserError
from latflow.files import write_text
from latflow.provenance import PACKAGE_ROOT, WORKFLOW_FOLDER
from latflow.yaml_files import read_yaml

DEMO = "demo"
RECIPE = "recipe.yaml"  # in the folder that a user works in
USED = "config.yaml"  # in the folder of results: the recipe of the latest run
log = logging.getLogger(__name__)


def find_recipe(name: str | Path | None = None) -> Path:
    """Return the path of a recipe.

    Args:
        name: a path from here or from beside the Snakefile, the folder of a recipe or
            of an experiment's results, or the name of a recipe that comes with latflow
            (`digits` for `config/recipes/digits.yaml`). By default that of this folder:
            `recipe.yaml`, or in a checkout `config/config.yaml`.

    Raises:
        UserError: none was found.
    """
    brought = _brought()
    known = f"name a file, or one that comes with latflow: {', '.join(brought)}"
    if name is None:
        for path in (Path(RECIPE), Path("config", USED)):
            if path.is_file():
                return path
        raise UserError(f"no {RECIPE} is in this folder", remedy=known)
    folder = Path(name)
    files = (folder, folder / RECIPE, folder / USED, workflow_folder() / name)
    for path in (*files, brought.get(str(name))):
        if path is not None and path.is_file():
            return path
    if folder.is_dir():
        what, known = f"neither {RECIPE} nor {USED} is in it", "name the recipe's file"
        raise UserError(what, file=name, remedy=known)
    raise UserError("no such recipe", file=name, remedy=known)


def is_results(name: str | Path | None) -> bool:
    """Return whether the command line names an experiment by the folder of its results.

    Args:
        name: see `find_recipe`.
    """
    return name is not None and Path(name).is_dir() and not Path(name, RECIPE).is_file()


def keep_config(config: Mapping[str, Any], results: str | Path) -> None:
    """Write the settings of a run beside its results, which name the experiment.

    Args:
        config: the recipe, with the settings of the command line.
        results: folder of the experiment.
    """
    values = json.loads(json.dumps(config, default=str))
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    write_text(Path(results, USED), f"# The recipe of the latest run.\n{text}")


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with latflow."""
    return list(_brought())


def _brought() -> dict[str, Path]:
    """Return the recipes that come with latflow, by name."""
    folder = workflow_folder() / "config"
    found = {path.stem: path for path in sorted(folder.glob("recipes/*.yaml"))}
    return {**found, DEMO: folder / "config.yaml"}


def read_config(recipe: str | Path, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a recipe and settings of the command line say together.

    Args:
        settings: `KEY=VALUE`, as `snakemake --config` takes them. Mappings are merged
            into the recipe's, to any depth.

    Raises:
        UserError: the file is not a mapping in YAML, or a setting is not `KEY=VALUE`.
    """
    from snakemake.common.configfile import load_configfile
    from snakemake.utils import update_config
    from snakemake_interface_common.exceptions import WorkflowError

    check_keys(recipe)
    faults = (WorkflowError, yaml.YAMLError, RecursionError, TypeError, ValueError)
    try:
        config = load_configfile(Path(recipe))
        json.dumps(config, default=str)  # an alias within what it stands for has no end
    except faults as error:
        raise UserError(" ".join(str(error).split()), file=recipe) from None
    if settings:
        update_config(config, nested_values(read_settings(settings)))
    return config


def check_keys(recipe: str | Path) -> None:
    """Refuse a recipe that has a key twice, of which Snakemake would take the last.

    Templates (YTE), which decide what stands there, and JSON are left to Snakemake.

    Raises:
        UserError: names both lines; or the file is not YAML.
    """
    path = Path(recipe)
    is_yaml = path.suffix in {".yaml", ".yml"} and path.is_file()
    if is_yaml and b"__use_yte__" not in path.read_bytes():
        read_yaml(path)


def check_overrides(config: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuse a key of the command line within a system that the recipe does not have.

    Args:
        config: the recipe.
        overrides: `KEY.KEY=VALUE`.

    Raises:
        UserError: names the system, and those that there are.
    """
    for override in overrides:
        section, systems, name, *deeper = [
            *override.partition("=")[0].split("."),
            "",
            "",
        ]
        if systems != "systems" or not any(deeper):
            continue
        there = (config.get(section) or {}).get(systems)
        if isinstance(there, Mapping) and name not in there:
            known = ", ".join(map(str, there)) or "none"
            raise UserError(
                f"-o {override}: the recipe has no system {name} in {section}.systems",
                remedy=f"choose from: {known}",
            )


def recipe_and_targets(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the recipe that words name first, if they do, and the targets behind it.

    In a folder with a recipe the first word may be a target.
    """
    first = next(iter(words), None)
    if first is None or not Path(RECIPE).is_file():
        return first, list(words[1:])
    is_named = Path(first).suffix in {".yaml", ".yml", ".json"}
    if not (is_named or Path(first).suffix):
        with contextlib.suppress(UserError):
            is_named = bool(find_recipe(first))
    return (first, list(words[1:])) if is_named else (None, list(words))


def nested_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with numbers and booleans read within mappings and lists too.

    Snakemake reads those of `seed=7` and leaves those of `decode={beam: 11}`, and
    `true` of `cut=true`, strings.
    """
    return {key: _read(value, is_nested=False) for key, value in settings.items()}


def nested_setting(override: str) -> str:
    """Return a setting of a key within sections as `--config` takes it.

    `nnet.systems.tdnnf.training.epochs=3` becomes `nnet={"systems": {"tdnnf": ...}}`,
    so that it is parsed and merged as any setting of the command line is. (RETURNN:
    `++key value`, of keys at the top alone.)

    Args:
        override: `KEY.KEY=VALUE`; a value that is a mapping is merged, none is null.

    Raises:
        UserError: it is not of this form.
    """
    path, sign, value = override.partition("=")
    first, *deeper = path.split(".")
    if not (sign and first and all(deeper)):
        raise UserError(
            f"override {override!r} is not KEY.KEY=VALUE",
            remedy="for example -o nnet.systems.tdnnf.training.epochs=3",
        )
    if not deeper:
        return override
    try:
        read = yaml.load(value, yaml.BaseLoader) if value else ""  # noqa: S506 - strings
    except yaml.YAMLError:
        read = value
    for key in reversed(deeper):
        read = {key: read}
    return f"{first}={json.dumps(read, ensure_ascii=False)}"


def _read(value: Any, *, is_nested: bool = True) -> Any:
    """Return a value with the strings in it read as Snakemake reads those outside."""
    if isinstance(value, Mapping):
        return {key: _read(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_read(item) for item in value]
    if value in {"true", "false"}:  # as YAML writes them; Snakemake knows True, False
        return value == "true"
    if not (is_nested and isinstance(value, str)):
        return value
    read = read_settings([f"value={value}"])["value"]
    return read if read is None or isinstance(read, bool | int | float) else value


def read_settings(settings: Sequence[str], option: str = "--config") -> dict[str, Any]:
    """Return settings of the command line as Snakemake parses them.

    Args:
        settings: `KEY=VALUE`.
        option: that they are given by, for the message.

    Raises:
        UserError: one is of another form.
    """
    if not settings:
        return {}
    from snakemake.cli import parse_config  # a second

    try:
        return parse_config(list(settings))
    except ValueError as error:
        dotted = next((s for s in settings if "." in s.partition("=")[0]), None)
        remedy = f"keys within sections are set by -o {dotted}" if dotted else None
        raise UserError(f"{option}: {error}", remedy=remedy) from None


def workflow_folder() -> Path:
    """Return the folder that holds the Snakefile.

    Raises:
        UserError: the package has been copied without its workflow.
    """
    for folder in (PACKAGE_ROOT / WORKFLOW_FOLDER, PACKAGE_ROOT.parents[1]):
        if (folder / "Snakefile").is_file():
            return folder
    raise UserError(
        "the Snakefile is not here", file=PACKAGE_ROOT, remedy="install latflow by pip"
    )


def search_path(folder: str | Path = ".") -> Path:
    """Return a folder that holds this package alone, for Pythons of `--sdm conda`.

    Args:
        folder: where Snakemake runs; gets a link to the package where that lies among
            others, in site-packages.
    """
    if PACKAGE_ROOT.parent.name == "src":
        return PACKAGE_ROOT.parent
    alone = Path(folder, ".snakemake", "latflow").absolute()
    link = alone / PACKAGE_ROOT.name
    alone.mkdir(parents=True, exist_ok=True)
    if not link.exists() or link.resolve() != PACKAGE_ROOT.resolve():
        link.unlink(missing_ok=True)
        link.symlink_to(PACKAGE_ROOT.resolve(), target_is_directory=True)
    return alone


def give_cache() -> None:
    """Give Snakemake a cache here where that of the user may not be written.

    It makes a folder in it before all else: without a home nothing would run. Jobs on
    other machines inherit the variable.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    try:
        folder = Path(home, "snakemake")
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return
    except OSError:
        pass
    own = Path(".snakemake", "cache").absolute()
    log.warning("%s may not be written: Snakemake's cache is in %s", home, own)
    os.environ["XDG_CACHE_HOME"] = str(own)
    # Else each process that matplotlib is loaded in makes, and removes, one of its own.
    os.environ.setdefault("MPLCONFIGDIR", str(own / "matplotlib"))
