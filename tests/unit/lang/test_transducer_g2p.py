"""Pronunciations by transducers, as MFA's G2P models have them."""

import math
import zipfile

import kaldifst
import pytest
from conftest import shared_folder

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.lang.g2p import Guess
from latflow.lang.transducer_g2p import TransducerG2p

# a -> 1 (0.8) or 2 (0.2); b -> 1 2; ab -> 3 (0.05), by labels 5, 6, 7
ARCS = [("a", "1", 0.8), ("a", "2", 0.2), ("b", "1|2", 0.5), ("a|b", "3", 0.05)]
LETTERS = {"<eps>": 0, "a": 5, "b": 6, "a|b": 7}
PHONES = {"<eps>": 0, "1": 1, "2": 2, "3": 3, "1|2": 4, "_": 5}


def write_model(folder, letters=None, phones=PHONES, arcs=ARCS):
    """Write a model with symbols beside it; without `letters` they are code points."""
    folder.mkdir()
    fst = kaldifst.StdVectorFst()
    fst.start = fst.add_state()
    fst.set_final(0, 0.0)
    for letter, phone, share in arcs:
        label = letters[letter] if letters else ord(letter)
        arc = kaldifst.StdArc(label, PHONES[phone], -math.log(share), 0)
        fst.add_arc(0, arc)
    fst.write(str(folder / "model.fst"))
    for name, table in (("phones.sym", phones), ("graphemes.sym", letters)):
        if table:
            lines = "".join(f"{symbol}\t{n}\n" for symbol, n in table.items())
            (folder / name).write_text(lines)
    return folder


def test_letters_of_several_are_read_at_once(tmp_path):
    model = TransducerG2p.load(write_model(tmp_path / "m", LETTERS))
    found = model.pronounce("ab", 3)
    assert [guess.phones for guess in found] == [
        ("1", "1", "2"), ("2", "1", "2"), ("3",),
    ]  # fmt: skip
    weights = [0.8 * 0.5, 0.2 * 0.5, 0.05]
    expected = [weight / sum(weights) for weight in weights]
    assert [guess.probability for guess in found] == pytest.approx(expected, rel=1e-5)
    assert model.phones == ["1", "2", "3"]
    assert model.pronounce("ac", 1) == []
    assert model.pronounce("", 1) == []


def test_labels_without_a_table_are_code_points(tmp_path):
    arcs = [("a", "1", 0.8), ("ÿ", "2", 0.5), ("я", "3", 0.5)]
    model = TransducerG2p.load(write_model(tmp_path / "m", arcs=arcs))
    assert model.pronounce("яaÿ", 1) == [Guess(1.0, ("3", "1", "2"))]


def test_phones_may_come_without_a_letter(tmp_path):
    """Arcs without a letter lead around in circles; the cheapest way is found."""
    arcs = [("a", "1", 0.5), ("<eps>", "3", 0.25), ("b", "_", 0.5)]
    model = TransducerG2p.load(write_model(tmp_path / "m", LETTERS, arcs=arcs))
    best, *others = model.pronounce("ab", 3)
    assert best.phones == ("1",)
    assert {guess.phones for guess in others} == {("1", "3"), ("3", "1")}


def test_archive_is_applied_by_the_command(tmp_path, capsys):
    folder = write_model(tmp_path / "m", LETTERS)
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"x_g2p/{file.name}")
    (tmp_path / "words.txt").write_text("ab\n")
    given = ["g2p", "apply", str(tmp_path / "m.zip"), str(tmp_path / "words.txt")]
    assert main([*given, "--number", "2"]) == 0
    assert capsys.readouterr().out == "ab 0.727273 1 1 2\nab 0.181818 2 1 2\n"


@pytest.mark.parametrize(
    ("phones", "message"),
    [({"<eps>": 0, "1": 1}, "output label 2 has no symbol"), (None, "no phones.sym")],
)
def test_symbols_must_be_those_of_the_transducer(tmp_path, phones, message):
    folder = write_model(tmp_path / "m", LETTERS, phones)
    with pytest.raises(UserError, match=message):
        TransducerG2p.load(folder)


def test_damaged_archives_are_refused(tmp_path):
    folder = write_model(tmp_path / "m", LETTERS)
    whole = (folder / "model.fst").read_bytes()
    for size in range(0, len(whole), 7):
        (folder / "model.fst").write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"m: "):
            TransducerG2p.load(folder)


def test_model_of_mfa_itself():
    model = TransducerG2p.load(shared_folder("models/mfa") / "swahili_g2p.zip")
    assert model.pronounce("nyumba", 1)[0].phones == ("ny", "u", "mb", "a")
    assert "ng~" in model.phones
