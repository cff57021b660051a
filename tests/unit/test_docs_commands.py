"""The commands that the documents show: all are parsed, those of marked blocks run.

A block of code after the line `<!-- run -->` runs as it stands, in a folder with the
files of `FILES`; of a line what stands behind a # is a comment.
"""

import shlex

import pytest

from latflow.cli.main import _parser, main

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
    "test.txt": TEXT,
    "text.txt": TEXT,
    "words.txt": "TAC\nGAT\n",
}
MARK = "<!-- run -->"


def code_lines(text, *, marked):
    """Yield the lines of blocks of code, indented or fenced; of marked ones alone."""
    is_fenced = is_marked = was_code = False
    for line in text.replace("\\\n", " ").splitlines():
        is_fence = line.startswith("```")
        is_code = is_fenced or line.startswith("    ")
        if line == MARK:
            is_marked, was_code = True, False
        elif is_code and not is_fence:
            was_code = True
            if is_marked or not marked:
                yield line.strip()
        elif was_code:
            is_marked = was_code = False
        is_fenced ^= is_fence


def commands(text, *, marked):
    """Yield the commands of latflow in a document, as lists of words."""
    for line in code_lines(text, marked=marked):
        for part in line.partition(" #")[0].split("&&"):
            if part.strip().startswith("latflow "):
                yield shlex.split(part)[1:]


def documents(repository):
    return [repository / "README.md", *sorted((repository / "docs").glob("*.md"))]


def test_every_command_is_one_that_the_program_takes(repository, capsys):
    parser, number, wrong = _parser(), 0, []
    for path in documents(repository):
        for command in commands(path.read_text(), marked=False):
            number += 1
            try:
                parser.parse_args(command)
            except SystemExit:
                wrong.append((path.name, command, capsys.readouterr().err))
    assert not wrong
    assert number > 60


@pytest.mark.parametrize(
    "name",
    ["language_models", "lexicon", "networks", "returnn"],
)
def test_marked_commands_run(repository, tmp_path, monkeypatch, capsys, name):
    found = list(commands((repository / f"docs/{name}.md").read_text(), marked=True))
    assert found
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    (tmp_path / "config").symlink_to(repository / "config")
    monkeypatch.chdir(tmp_path)
    for command in found:
        assert main(command) == 0, (command, capsys.readouterr().err)


def test_all_marked_documents_are_run(repository):
    marked = {p.stem for p in documents(repository) if MARK in p.read_text()}
    (runs,) = (
        m for m in test_marked_commands_run.pytestmark if m.name == "parametrize"
    )
    assert marked == set(runs.args[1])
