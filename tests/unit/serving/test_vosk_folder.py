"""Graphs in two parts, in a folder of Vosk's."""

import numpy as np
import pytest
from fixtures.openfst_files import WORDS, write_files

from latflow.errors import UserError
from latflow.serving.vosk_folder import (
    find_folder,
    in_one_numbering,
    read_graph_parts,
    read_words,
)

DISAMBIG = (201, 202, 203, 204)


@pytest.fixture
def folder(tmp_path):
    """A folder with an n-gram model."""
    graph = tmp_path / "graph"
    graph.mkdir()
    write_files(graph)
    (graph / "HCL.fst").rename(graph / "HCLr.fst")
    (graph / "HCLG.fst").unlink()
    (graph / "G.fst").rename(graph / "Gr.fst")
    (graph / "disambig_tid.int").write_text("".join(f"{n}\n" for n in DISAMBIG))
    return find_folder(tmp_path)


def with_acceptor(folder):
    """Put a grammar there that gives other numbers than it takes."""
    (folder.graph / "A.fst").rename(folder.graph / "Gr.fst")
    lines = ["<eps> 0", *(f"w{n} {n}" for n in range(1, 8)), "#0 8"]
    (folder.graph / "words.txt").write_text("\n".join(lines) + "\n")


def test_words_are_those_of_the_ngram_model(folder):
    parts = read_graph_parts(folder)
    assert {word: parts.words[word] for word in WORDS} == WORDS
    assert not np.isin(parts.hcl.ilabel, DISAMBIG).any()
    hcl, grammar = in_one_numbering(parts)
    assert (hcl, grammar) == (parts.hcl, parts.grammar)


def test_an_acceptor_of_new_numbers_gives_those_of_the_table(folder):
    ngram = read_graph_parts(folder)
    with_acceptor(folder)
    hcl, grammar = in_one_numbering(read_graph_parts(folder))
    np.testing.assert_array_equal(grammar.ilabel, grammar.olabel)
    old = {number: int(word[1:]) for word, number in WORDS.items() if number}
    wanted = [old.get(label, 0) for label in ngram.hcl.olabel.tolist()]
    assert hcl.olabel.tolist() == wanted


def test_of_two_words_with_one_id_the_last_stays(folder, caplog):
    raw = (folder.graph / "Gr.fst").read_bytes()
    first = raw.index(b"w1") + 2  # behind it its number, of eight bytes
    number = (2).to_bytes(8, "little")
    changed = raw.replace(b"w1" + raw[first : first + 8], b"w1" + number)
    (folder.graph / "Gr.fst").write_bytes(changed)
    words = read_words(folder)
    assert "w1" not in words
    assert words["w4"] == 2
    assert "1 words have the id of another" in caplog.text


def test_missing_files_are_named(folder):
    (folder.graph / "Gr.fst").unlink()
    with pytest.raises(UserError, match=r"Gr\.fst"):
        read_graph_parts(folder)
    (folder.graph / "disambig_tid.int").unlink()
    with pytest.raises(UserError, match=r"disambig_tid\.int"):
        read_graph_parts(folder)
