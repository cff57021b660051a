"""Completion of the command line in bash, zsh and fish.

The scripts follow from the commands as `latflow.cli.main` has them: names of commands,
of their options, values of options that have a choice, recipes that come with latflow,
and files for all else. In zsh bash's works, by `bashcompinit`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from latflow.cli.commands import Arguments, Group, option

COMMANDS = Group()

_SCRIPT = """\
# Completion of latflow's commands, options and their values.
_latflow() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    local command="" word words=""
    for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD-1))}}"; do
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


_ZSH = """\
#compdef latflow
autoload -U +X compinit && compinit
autoload -U +X bashcompinit && bashcompinit
"""


@COMMANDS.command(
    "completion",
    option("shell", "the shell", choices=("bash", "zsh", "fish")),
    example="""completion bash > ~/.local/share/bash-completion/completions/latflow
  source <(latflow completion zsh)
  latflow completion fish > ~/.config/fish/completions/latflow.fish""",
)
def _completion(arguments: Arguments) -> None:
    """Print the script that completes latflow's command lines, for a shell."""
    from latflow.workflow.settings import recipe_names

    make = fish_completion if arguments.shell == "fish" else bash_completion
    script = make(arguments.groups, recipe_names())
    sys.stdout.write(_ZSH + script if arguments.shell == "zsh" else script)


def fish_completion(groups: Sequence[Group], recipes: Iterable[str]) -> str:
    """Return a script for fish; arguments as of `bash_completion`."""
    lines = [_fish("__fish_use_subcommand", "-l version", "-l help")]
    names = " ".join(recipes)
    for group in groups:
        first = "__fish_use_subcommand"
        if group.name:
            lines.append(_fish(first, f"-f -a {group.name}"))
            verbs = " ".join(group.commands)
            first = f"{_seen(group.name)}; and not {_seen(verbs)}"
        for verb, (run, *_) in group.commands.items():
            about = shlex.quote(" ".join((run.__doc__ or "").split()))
            lines.append(_fish(first, f"-f -a {verb} -d {about}"))
            above = f"{_seen(group.name)}; and " if group.name else ""
            here = f"{above}{_seen(verb)}"
            if not group.name and _names_recipe_first(group, verb):
                lines.append(_fish(here, f"-a {shlex.quote(names)}"))
            lines += [
                _fish(here, _fish_option(flag, keywords))
                for flag, keywords in group.options(verb)
                if flag.startswith("-")
            ]
    return "\n".join(lines) + "\n"


def _seen(commands: str) -> str:
    """Return fish's condition that one of some commands has been given."""
    return f"__fish_seen_subcommand_from {commands}"


def _fish(condition: str, *given: str) -> str:
    """Return lines of fish that complete under a condition."""
    start = f"complete -c latflow -n {shlex.quote(condition)}"
    return "\n".join(f"{start} {words}" for words in given)


def _fish_option(flag: str, keywords: dict[str, Any]) -> str:
    """Return fish's line on an option: its name, values and help."""
    kind = "-l" if flag.startswith("--") else "-s"
    words = [kind, flag.lstrip("-")]
    if choices := keywords.get("choices"):
        words += ["-x", "-a", shlex.quote(" ".join(map(str, choices)))]
    elif keywords.get("action") != "store_true":
        words.append("-r")
    return " ".join([*words, "-d", shlex.quote(" ".join(keywords["help"].split()))])


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
    """Return whether a command takes the recipe before all other arguments."""
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
