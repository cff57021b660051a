"""Commands as functions of their parsed arguments, with their options beside them.

Numerical libraries take seconds to load, and help should not wait for them: a command
imports what it calls when it runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

from latflow.errors import UserError
from latflow.own_folder import PACKAGE, check_own_folder

if TYPE_CHECKING:
    from latflow.options import Options
    from latflow.workflow.recipe import Recipe

Arguments = argparse.Namespace
Action = Callable[[Arguments], int | None]  # returns the exit status; None is 0
Option = tuple[str, dict[str, Any]]  # name or flag, keywords of `add_argument`
# Or what gives several, asked when the command is used: it imports typed options.
LateOptions = Callable[[], tuple[Option, ...]]


def option(name: str, text: str, default: Any = None, **keywords: Any) -> Option:
    """Return an argument with its help; its type is that of the default."""
    if default is not None:
        keywords["default"] = default
        if "nargs" not in keywords:
            keywords["type"] = type(default)
    return name, {"help": text, **keywords}


def file_name(given: str) -> str:
    """Return the argument of an option that takes a file, which may not be empty."""
    if not given:
        raise UserError(
            "an option that takes a file has an empty one",
            remedy="name a file, or leave the option out",
        )
    return given


def own_folder(*marks: str) -> Callable[[str], str]:
    """Return the type of an argument that names a folder to write, as a whole.

    Args:
        marks: of a folder that the command wrote, see `check_own_folder`.
    """

    def check(given: str) -> str:
        check_own_folder(given, *marks)
        return given

    return check


#: Of folders of packages.
PACKAGE_FOLDER = own_folder(*PACKAGE)


def flag(name: str, text: str) -> Option:
    """Return an option without a value."""
    return name, {"help": text, "action": "store_true"}


def options_of(model: type[Options]) -> tuple[Option, ...]:
    """Return an argument for each field of typed options, whose values are plain."""
    arguments, descriptions = [], model.descriptions()
    for field, info in model.model_fields.items():
        name = "--" + field.replace("_", "-")
        text = " ".join(descriptions.get(field, "").split())
        keywords: dict[str, Any] = {}
        if get_origin(info.annotation) is Literal:
            keywords["choices"] = get_args(info.annotation)
        is_flag = info.annotation is bool
        arguments.append(
            flag(name, text)
            if is_flag
            else option(name, text, info.default, **keywords)
        )
    return tuple(arguments)


Model = TypeVar("Model", bound="Options")


def read_flags(model: type[Model], arguments: Arguments) -> Model:
    """Return typed options as `options_of` has the command line give them.

    Raises:
        UserError: a value is out of range.
    """
    from latflow.options import read_options

    return read_options(
        model, {name: getattr(arguments, name) for name in model.model_fields}
    )


#: An option for one setting within sections of a recipe; see `nested_setting`.
OVERRIDE = (
    "-o",
    {
        "dest": "overrides",
        "action": "append",
        "default": [],
        "metavar": "KEY.KEY=VALUE",
        "help": "setting within a section, e.g. nnet.systems.tdnnf.training.epochs=3; "
        "may be repeated; comes after --config",
    },
)

#: Keys of a source of recordings that have no option of their own.
SOURCE_KEYS = option(
    "--set",
    "further keys of the source, e.g. min_duration=0.5 (config/README.md, "
    "corpus.train)",
    [],
    nargs="*",
    metavar="KEY=VALUE",
)

_NAMED = "recipe, results/<experiment>, or the name of a recipe of latflow's"

#: Arguments that name an experiment; see `read_recipe`.
RECIPE = (
    option("recipe", f"{_NAMED}; by default recipe.yaml of this folder", nargs="?"),
    option("--configfile", "the recipe, as snakemake has it named"),
    option(
        "--config",
        "settings that override the recipe's, e.g. corpora=../shared/corpora",
        [],
        action="extend",
        nargs="*",
        metavar="KEY=VALUE",
    ),
    OVERRIDE,
)


def named_experiment(arguments: Arguments) -> str | None:
    """Return the name that the command line gives a recipe by, if any.

    Raises:
        UserError: it gives two.
    """
    from latflow.workflow.settings import is_results

    first, second = arguments.recipe, arguments.configfile
    if first and second and not is_results(first):
        raise UserError(f"two recipes are named: {first} and {second}")
    return second or first


def read_recipe(arguments: Arguments, otherwise: str | None = None) -> Recipe:
    """Return the checked recipe that the command line names.

    Args:
        otherwise: a recipe that comes with latflow, for where none is named or here.
    """
    from latflow.workflow.recipe import Recipe
    from latflow.workflow.settings import (
        check_overrides,
        find_recipe,
        nested_setting,
        read_config,
    )

    named = named_experiment(arguments)
    try:
        recipe = find_recipe(named)
    except UserError:
        if named is not None or otherwise is None:
            raise
        recipe = find_recipe(otherwise)
    check_overrides(read_config(recipe, arguments.config), arguments.overrides)
    settings = [*arguments.config, *map(nested_setting, arguments.overrides)]
    return Recipe.from_config(read_config(recipe, settings))


def results_folder(arguments: Arguments) -> Path:
    """Return the folder of results of the experiment that the command line names."""
    from latflow.workflow.settings import is_results

    if is_results(arguments.recipe):
        return Path(arguments.recipe)
    return Path(read_recipe(arguments).results)


class Group:
    """Commands under a name, or of the program itself.

    Args:
        name: the name; none for commands of the program itself.
        text: what they have in common, a sentence.
    """

    def __init__(self, name: str = "", text: str = "") -> None:
        self.name, self._text = name, text
        self.commands: dict[
            str, tuple[Action, tuple[Option | LateOptions, ...], str]
        ] = {}

    def command(
        self, name: str, *options: Option | LateOptions, example: str = ""
    ) -> Callable[[Action], Action]:
        """Make a command of a function, whose docstring is the help.

        Args:
            name: of the command.
            options: its arguments in order.
            example: a command line, without the name of the program.
        """

        def add(run: Action) -> Action:
            self.commands[name] = run, options, example
            return run

        return add

    def options(self, name: str) -> list[Option]:
        """Return the arguments of a command, those that are asked for late too."""
        found: list[Option] = []
        for given in self.commands[name][1]:
            found += given() if callable(given) else [given]
        return found

    def add_to(self, commands: Any) -> None:
        """Add the group to the subcommands of a parser."""
        if self.name:
            group = commands.add_parser(
                self.name, help=self._text, description=self._text
            )
            commands = group.add_subparsers(
                required=True, metavar="<verb>", parser_class=CommandParser
            )
        for name, (run, options, example) in self.commands.items():
            command = commands.add_parser(
                name,
                help=run.__doc__,
                description=run.__doc__,
                epilog=f"example:\n  latflow {example}" if example else None,
                formatter_class=_HelpFormat,
            )
            command.set_defaults(run=run)
            for given in options:
                if callable(given):
                    command.late.append(given)
                else:
                    command.add_argument(given[0], **given[1])
                    if given[1].get("nargs") == argparse.REMAINDER:
                        command.rest = given[0]


class CommandParser(argparse.ArgumentParser):
    """Parser of a command; some of its options are asked for when it is used.

    Attributes:
        late: what gives those options.
        rest: argument that takes the whole command line, if there is one.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.late: list[LateOptions] = []
        self.rest: str | None = None
        self._mixes = False

    def parse_known_args(self, *given: Any, **keywords: Any) -> Any:
        """Add the late options, then parse; options may stand between the words."""
        while self.late:
            for argument, settings in self.late.pop(0)():
                self.add_argument(argument, **settings)
        args = given[0] if given else None
        if self.rest is not None and args and args[0] not in {"-h", "--help"}:
            # argparse keeps options that begin a line from an argument of all the rest
            found = argparse.Namespace(**self._defaults)
            setattr(found, self.rest, list(args))
            return found, []
        if self._mixes or self.rest is not None or self._subparsers is not None:
            return super().parse_known_args(*given, **keywords)
        self._mixes = True  # argparse's own way there may come by here again
        try:
            return self.parse_known_intermixed_args(*given, **keywords)
        finally:
            self._mixes = False


class _HelpFormat(
    argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter
):
    """Defaults behind the options; examples as they are written."""
