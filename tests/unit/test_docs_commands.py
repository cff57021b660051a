"""The commands that the documents show: all are parsed, and a test runs each.

Those of latflow that need recordings run in tests/e2e/test_e2e_align.py, those that
need a finished experiment in tests/e2e/test_e2e_demo.py. Those of Snakemake and make,
which may take hours, are dry runs.
"""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from fixtures.documented import in_seconds
from fixtures.documents import (
    NOT_RUN,
    RUN,
    UNMARKED,
    commands,
    documents,
    marked,
    mentions,
)
from snakemake.cli import get_argument_parser

from latflow.cli.main import _parser, main

REPOSITORY = Path(__file__).resolve().parents[2]
CAUGHT = {"text": True, "capture_output": True}

RETURNN = """network = {
"fw": {"class": "rec", "unit": "lstmp", "n_out": 8, "direction": 1},
"bw": {"class": "rec", "unit": "lstmp", "n_out": 8, "direction": -1},
"output": {"class": "softmax", "loss": "ce", "from": ["fw", "bw"]}
}
"""
TEXT = "THE CAT SAT\nTHE DOG SAT\nA CAT RAN\nA DOG RAN\n"
LEXICON = "CAT K AE T\nSAT S AE T\nRAN R AE N\nDOG D AO G\nA AH\nTHE DH AH\n"
FILES = {
    "blstm.config": RETURNN,
    "lexicon.txt": LEXICON,
    **dict.fromkeys(("dev.txt", "held_out.txt", "test.txt", "text.txt"), TEXT),
    "train.txt": TEXT,
    "words.txt": "TAC\nGAT\n",
}


def test_every_command_is_one_that_the_program_takes(repository, capsys):
    parser, number, wrong = _parser(), 0, []
    for path in documents(repository):
        for command in commands(path.read_text()):
            number += 1
            try:
                parser.parse_args(command)
            except SystemExit:
                wrong.append((path.name, command, capsys.readouterr().err))
    assert not wrong
    assert number > 60


def test_every_command_is_run_or_said_why_not(repository):
    pages = [path.read_text() for path in documents(repository)]
    assert not [words for page in pages for words in commands(page, UNMARKED)]
    assert {*NOT_RUN} <= {shlex.join(x) for page in pages for x in commands(page)}


@pytest.mark.parametrize(
    "name",
    ["criteria", "language_models", "lexicon", "network_data", "networks", "returnn"],
)
def test_marked_commands_run(repository, tmp_path, monkeypatch, capsys, name):
    found = list(commands((repository / f"docs/{name}.md").read_text(), RUN))
    assert found
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    (tmp_path / "config").symlink_to(repository / "config")
    monkeypatch.chdir(tmp_path)
    for command in map(in_seconds, found):
        assert main(command) == 0, (command, capsys.readouterr().err)


def test_all_marked_documents_are_run(repository):
    (runs,) = (
        m for m in test_marked_commands_run.pytestmark if m.name == "parametrize"
    )
    assert marked(repository, RUN) == runs.args[1]


def test_commands_of_others_name_what_is_there(repository):
    """Extras that pip installs, scripts that Python, pytest and shells run."""
    extras = tomllib.loads((repository / "pyproject.toml").read_text())
    extras = extras["project"]["optional-dependencies"]
    for path in documents(repository):
        text = path.read_text()
        for words in (*commands(text, program="pip"), *mentions(text, "pip")):
            for named in re.findall(r"latflow\[(.*?)\]", " ".join(words)):
                assert {*named.split(",")} <= {*extras}, (path.name, words)
        for program in ("python", "pytest", "taskset", "TRITON_INTERPRET=1", "sh"):
            for words in commands(text, program=program):
                for script in (word for word in words if word.endswith((".py", ".sh"))):
                    assert (repository / script).is_file(), (path.name, words)
                    source = (repository / script).read_text()
                    options = {word for word in words if word.startswith("--")}
                    assert all(f'"{option}"' in source for option in options), words


def each(program, found=commands):
    """A program's commands in all documents, as parameters of a test."""
    shown = dict.fromkeys(
        (path.name, shlex.join(words))
        for path in documents(REPOSITORY)
        for words in found(path.read_text(), program=program)
    )
    return [pytest.param(words, id=f"{name}: {words}") for name, words in shown]


@pytest.mark.slow
@pytest.mark.parametrize("words", each("snakemake"))
def test_commands_of_snakemake_are_planned(repository, tmp_path, words):
    if "image_digits" in words:  # whose data the line before makes
        assert main(["hdf5", "digits", str(tmp_path / "corpora/image_digits")]) == 0
    for name in ("config", "profiles", "Snakefile", "workflow"):
        (tmp_path / name).symlink_to(repository / name)
    command = [sys.executable, "-m", "snakemake", "--dry-run", *shlex.split(words)]
    if "--sdm" in command and not shutil.which("conda"):
        place = command.index("--sdm")
        del command[place : place + 2]
    done = subprocess.run(command, check=False, cwd=tmp_path, **CAUGHT)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "--unlock" in command or "This was a dry-run" in said


@pytest.mark.parametrize("words", each("make") + each("make", mentions))
def test_commands_of_make_name_targets(repository, words):
    command = ["make", "--dry-run", *shlex.split(words)]
    done = subprocess.run(command, check=False, cwd=repository, **CAUGHT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", each("snakemake", mentions))
def test_sentences_name_options_of_snakemake(words):
    get_argument_parser().parse_args(shlex.split(words))


@pytest.mark.parametrize("words", each("latflow", mentions))
def test_sentences_name_commands_and_options_of_latflow(words):
    parser, words = _parser(), shlex.split(words)
    while words and not words[0].startswith("-") and (choices := _choices(parser)):
        assert words[0] in choices
        parser = choices[words.pop(0)]
    options = {word for word in words if word.startswith("--")}
    assert options <= {*parser._option_string_actions}


def _choices(parser):
    """The commands below one of argparse's parsers, by name."""
    kind = argparse._SubParsersAction
    return next((a.choices for a in parser._actions if isinstance(a, kind)), {})
