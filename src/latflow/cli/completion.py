"""Completion of the command line in bash.

The script follows from the commands as `latflow.cli.main` has them: names of commands,
of their options, values of options that have a choice, recipes that come with latflow,
and files for all else.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Sequence

from latflow.cli.commands import Arguments, Group, option

COMMANDS = Group()

_SCRIPT = """\
# Completion of latflow's commands, options and their values.
_latflow() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    local command="" word words=""
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$command|$word" in
{commands}
        esac
    done
    case "$command|$before" in
        {named} | *'|--configfile')
            COMPREPLY=($(compgen -W {recipes} -- "$current"))
            COMPREPLY+=($(compgen -f -- "$current"))
            return
            ;;
{values}
        *)
            case "$command|$current" in
{options}
            esac
            ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o bashdefault -o default -F _latflow latflow
"""


@COMMANDS.command(
    "completion",
    option("shell", "the shell", choices=("bash",)),
    example="completion bash > ~/.local/share/bash-completion/completions/latflow",
)
def _completion(arguments: Arguments) -> None:
    """Print the script that completes latflow's command lines, for bash."""
    from latflow.workflow.settings import recipe_names

    sys.stdout.write(bash_completion(arguments.groups, recipe_names()))


def bash_completion(groups: Sequence[Group], recipes: Iterable[str]) -> str:
    """Return a script for bash that completes command lines.

    Args:
        groups: the commands.
        recipes: names that `run` takes for a recipe.
    """
    top: list[str] = []
    commands: list[str] = []
    values: list[str] = []
    options: list[str] = []
    for group in groups:
        if group.name:
            top.append(group.name)
            commands.append(_case(f"|{group.name}", f"command={group.name}"))
            options.append(_offer(f"{group.name}|", group.commands, is_prefix=True))
        else:
            top += group.commands
        for verb in group.commands:
            name = f"{group.name} {verb}".strip()
            named = f"command={shlex.quote(name)}"
            commands.append(_case(f"{group.name}|{verb}", named))
            given = [o for o in group.options(verb) if o[0].startswith("-")]
            flags = ["--help", *(flag for flag, _ in given)]
            options.append(_offer(f"{name}|-", flags, is_prefix=True))
            values += [
                _offer(f"{name}|{flag}", keywords["choices"])
                for flag, keywords in given
                if keywords.get("choices")
            ]
    named = [
        f"{name}|{name}"
        for group in groups
        for name in group.commands
        if not group.name and _names_recipe_first(group, name)
    ]
    options.append(_offer("|", [*top, "--help", "--version"], is_prefix=True))
    return _SCRIPT.format(
        named=" | ".join(map(shlex.quote, named)),
        recipes=shlex.quote(" ".join(recipes)),
        commands="\n".join(commands),
        values="\n".join(values),
        options="\n".join(options),
    )


def _names_recipe_first(group: Group, command: str) -> bool:
    """Tell whether a command takes the recipe before all other arguments."""
    first = next(iter(group.options(command)), ("", {}))
    return first[0] == "recipe" or first[1].get("nargs") == argparse.REMAINDER


def _offer(pattern: str, words: Iterable[object], *, is_prefix: bool = False) -> str:
    """Return the case of words that may follow."""
    text = shlex.quote(" ".join(map(str, words)))
    return _case(pattern, f"words={text}", is_prefix=is_prefix)


def _case(pattern: str, action: str, *, is_prefix: bool = False) -> str:
    """Return a case of the shell."""
    star = "*" if is_prefix else ""
    return f"            {shlex.quote(pattern)}{star}) {action} ;;"
