"""The commands that the documents show: all are parsed, and a test runs each.

Those that need recordings run in tests/e2e/test_e2e_align.py, those that need a
finished experiment in tests/e2e/test_e2e_demo.py.
"""

import shlex

import pytest
from fixtures.documented import in_seconds
from fixtures.documents import NOT_RUN, RUN, UNMARKED, commands, documents, marked

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
