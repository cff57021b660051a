"""What Snakemake refuses, as one line: what is missing or wrong, and what to do.

Snakemake's own words come with `--verbose`.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

#: Targets that a person may ask for, as the Snakefile has them.
TARGETS: list[str] = []

_HEAD = re.compile(r"\w+(?: in (?:rule|file) [^\n]*)?:\n")  # WorkflowError in file ...:
_TRACE = re.compile(r"\n\s+File \"[^\n]*")
_RULE = re.compile(r"Missing input files for rule (\w+):")
_FILES = re.compile(r"affected files:\n((?:\s+\S[^\n]*\n?)+)")
_OURS = re.compile(r"error: [^\n]+")
_MADE = re.compile(r"No rule to produce (.+?) \(if you use input functions")


def in_one_line(exception: str, message: str) -> str | None:
    """Return an exception of Snakemake as one line of ours.

    Args:
        exception: name of its class.
        message: of the exception.

    Returns:
        None for what it has no line for.
    """
    words = _WORDS.get(exception)
    return None if words is None else words(message)


def _missing_input(message: str) -> str | None:
    rule, files = _RULE.search(message), _FILES.search(message)
    if rule is None or files is None:
        return None
    first, *others = (line.strip() for line in files[1].splitlines() if line.strip())
    more = f" (and {len(others)} more)" if others else ""
    return (
        f"error: {first}: no such file{more} - {rule[1]} reads it: check the path in "
        "the recipe; latflow doctor finds all such mistakes"
    )


def _missing_rule(message: str) -> str | None:
    found = _MADE.search(message)
    if found is None:
        return None
    name = found[1]
    if "/" in name or "." in name:
        return (
            f"error: {name}: nothing makes this file - latflow run -n names all files"
        )
    near = difflib.get_close_matches(name, TARGETS, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"error: no target {name} - {meant}there are: {', '.join(TARGETS)}"


def _lock(_: str) -> str:
    holders = ", ".join(_runs_here())
    if holders:
        return (
            f"error: another run works in this folder: {holders} - wait until it has "
            "ended, or end it; experiments that are to run side by side need folders "
            "of their own"
        )
    return (
        "error: this folder is locked, but no run of this machine works here - if none "
        "does on another machine either (one was killed, or the power failed): "
        "snakemake's option --unlock, then run again"
    )


def _runs_here() -> Iterator[str]:
    """Yield the other runs of Snakemake whose folder is this one."""
    here = Path.cwd()
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            names = {Path(word).parent.name for word in command[1:2]}
            names |= {Path(word).name for word in command[:3]}
            if "snakemake" not in names or process.pid in ours:
                continue
            if Path(process.cwd()) == here:
                yield f"process {process.pid} ({shlex.join(command[2:])[:100]})"
        except (psutil.Error, OSError):  # of others, or it has just ended
            continue


def _workflow_error(message: str) -> str:
    text = _TRACE.sub("", _HEAD.sub("", message, count=1)).strip()
    return text if text.startswith("error: ") else f"error: {text}"


def _input_function(message: str) -> str | None:
    found = _OURS.search(message)  # what a rule's function refuses
    return found and found[0]


_WORDS: dict[str, Callable[[str], str | None]] = {
    "MissingInputException": _missing_input,
    "MissingRuleException": _missing_rule,
    "LockException": _lock,
    "InputFunctionException": _input_function,
    "WorkflowError": _workflow_error,
}
