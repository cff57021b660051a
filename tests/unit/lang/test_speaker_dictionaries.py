"""MFA's YAML files with dictionaries by speaker."""

import pytest

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.lang.lexicon import read_lexicon
from latflow.lang.speaker_dictionaries import find_dictionary


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MFA_ROOT_DIR", str(tmp_path / "mfa"))
    downloads = tmp_path / "mfa/pretrained_models/dictionary"
    downloads.mkdir(parents=True)
    (downloads / "english_us_mfa.dict").write_text("yes j ɛ s\n")
    (tmp_path / "own.txt").write_text("no n oʊ\n")
    return tmp_path


def given(folder, text):
    (folder / "by_speaker.yaml").write_text(text)
    return folder / "by_speaker.yaml"


def test_one_dictionary_for_all(folder):
    """The first is a file of MFA's own tests."""
    found = find_dictionary(given(folder, "default: english_us_mfa\n"))
    assert found.name == "english_us_mfa.dict"
    found = find_dictionary(given(folder, "default: own.txt\nann: own.txt\n"))
    assert found == folder / "own.txt"
    assert find_dictionary(folder / "own.txt") == folder / "own.txt"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("default: english_us_mfa\nann: own.txt\n", "speakers have different dict"),
        ("default: english_uk_mfa\n", "no dictionary english_uk_mfa"),
        ("default: [a, b]\n", "not the name of one"),
        ("- own.txt\n", "no mapping of speakers"),
        ("default: {\n", "not a list of dictionaries by speaker"),
        ("", "no mapping of speakers"),
    ],
)
def test_others_are_refused(folder, text, said):
    with pytest.raises(UserError, match=said):
        find_dictionary(given(folder, text))


def test_none_is_read_as_a_lexicon(folder):
    with pytest.raises(UserError, match="dictionaries of speakers"):
        read_lexicon(given(folder, "default: english_us_mfa\n"))


def test_commands_take_it(folder, capsys):
    (folder / "corpus").mkdir()
    (folder / "corpus/a.txt").write_text("yes")
    path = given(folder, "default: own.txt\nann: english_us_mfa\n")
    for command in ("validate", "find-oovs"):
        assert main([command, str(folder / "corpus"), str(path)]) == 1
        assert "speakers have different dictionaries" in capsys.readouterr().err
