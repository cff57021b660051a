"""`latflow lattice <verb>` on Kaldi's digit lattices."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from reference.lattice_paths import frame_sums

from latflow.cli.lattice import COMMANDS
from latflow.cli.main import main
from latflow.kaldi.io import read_int_vectors, write_int_vectors
from latflow.lang.directory import Lang, read_symbols
from latflow.lattice.determinize import pruned
from latflow.lattice.determinize.pruned import Limits
from latflow.lattice.io.archives import (
    LatticeArchive,
    read_compact_lattices,
    read_lattices,
)
from latflow.lattice.posteriors import read_posteriors
from latflow.lattice.prune import depth_per_frame

SCALE = ["--acoustic-scale", "0.1"]


@pytest.fixture
def run(capsys):
    """Run `latflow lattice` and give what it prints; it must not fail."""

    def call(*arguments):
        status = main(["lattice", *map(str, arguments)])
        captured = capsys.readouterr()
        assert (status, captured.err) == (0, "")
        return captured.out

    return call


@pytest.fixture
def fail(capsys):
    """Run `latflow lattice` and give its one line of complaint."""

    def call(*arguments):
        status = main(["lattice", *map(str, arguments)])
        captured = capsys.readouterr()
        assert (status, captured.out, captured.err.count("\n")) == (1, "", 1)
        return captured.err

    return call


@pytest.fixture
def raw(golden):
    return golden / "lattice" / "raw_beam13.lats"


@pytest.fixture
def words(golden):
    return golden / "lang" / "words.txt"


@pytest.fixture
def model(golden):
    return golden / "gmm" / "tri1" / "final.mdl"


def kaldi_lines(path):
    """Utterance -> integers of a text file."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {utterance: list(map(int, numbers)) for utterance, *numbers in lines}


def test_every_verb_is_documented_by_an_example(capsys):
    with pytest.raises(SystemExit):
        main(["lattice", "--help"])
    listed = capsys.readouterr().out
    for name in COMMANDS.commands:
        assert f"    {name}" in listed
        with pytest.raises(SystemExit) as stop:
            main(["lattice", name, "--help"])
        assert stop.value.code == 0
        assert f"example:\n  latflow lattice {name} " in capsys.readouterr().out


def test_help_loads_no_numerical_library():
    code = (
        "import sys\nfrom latflow.cli.main import main\n"
        "try: main(['lattice', 'prune', '--help'])\n"
        "except SystemExit: print(sorted({'torch', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("[]\n")


def test_copy_goes_through_all_forms_and_back(run, raw, tmp_path):
    run("copy", raw, tmp_path / "text", "--form", "raw", "--text")
    run("copy", tmp_path / "text", tmp_path / "a.gz", "--form", "raw")
    run("copy", tmp_path / "a.gz", tmp_path / "b.ark", "--form", "raw")
    assert (tmp_path / "b.ark").read_bytes() == raw.read_bytes()
    printed = run("copy", raw, "-", "--form", "raw")
    assert printed == (tmp_path / "text").read_text()


def test_copy_writes_lists_of_places(run, fail, raw, tmp_path):
    scp = tmp_path / "lat.scp"
    run("copy", raw, tmp_path / "lat.ark", "--scp", scp)
    archive = LatticeArchive(scp)
    listed = dict(read_compact_lattices(raw))
    assert list(archive.utterances) == list(listed)
    for utterance, lattice in listed.items():
        assert archive.compact(utterance).string.tolist() == lattice.string.tolist()
    assert run("info", scp) == run("info", raw)
    assert "no scp file" in fail("copy", raw, "-", "--scp", scp)


def test_info_lists_sizes(run, raw):
    lattices = dict(read_lattices(raw))
    head, *rows, total = [
        line.split("\t") for line in run("info", raw, "--form", "raw").splitlines()
    ]
    assert head == ["utterance", "frames", "states", "arcs", "depth"]
    for row, (utterance, lattice) in zip(rows, lattices.items(), strict=True):
        sizes = lattice.num_frames, lattice.num_states, lattice.num_arcs
        assert row == [utterance, *map(str, sizes), f"{lattice.depth:.3f}"]
    assert total[:2] == ["all", str(sum(lat.num_frames for lat in lattices.values()))]
    compact = run("info", raw).splitlines()[-1].split("\t")
    assert int(compact[3]) < int(total[3])
    assert compact[4] == total[4]


def test_depth_counts_arcs_of_frames(run, raw):
    lines = [line.split() for line in run("depth", raw).splitlines()]
    for (utterance, *counts), (name, lattice) in zip(
        lines, read_lattices(raw), strict=True
    ):
        assert utterance == name
        assert list(map(int, counts)) == depth_per_frame(lattice).tolist()


def test_best_path_gives_kaldis_words_and_alignments(run, golden, raw, words, tmp_path):
    ali = tmp_path / "ali.ark"
    out = run("best-path", raw, *SCALE, "--alignments", ali)
    expected = kaldi_lines(golden / "lattice" / "best_words_beam13.int")
    found = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert {u: list(map(int, w)) for u, w in found.items()} == expected
    expected = kaldi_lines(golden / "lattice" / "best_ali_beam13.txt")
    assert {u: a.tolist() for u, a in read_int_vectors(ali)} == expected
    named = run("best-path", raw, *SCALE, "--words", words)
    names = {str(number): word for word, number in read_symbols(words).items()}
    for line, spelt in zip(out.splitlines(), named.splitlines(), strict=True):
        utterance, *ids = line.split()
        assert spelt.split() == [utterance, *(names[word] for word in ids)]


def test_a_penalty_takes_words_away(run, raw):
    def num_words(penalty):
        option = ["--word-insertion-penalty", penalty]
        return len(run("best-path", raw, *SCALE, *option).split())

    assert num_words("-1000") > num_words("0")


def test_n_best_lists_distinct_words_by_cost(run, raw, words):
    out = run("n-best", raw, "-n", "4", "--words", words, *SCALE, "--threads", "1")
    head, *rows = [line.split("\t") for line in out.splitlines()]
    assert head == ["utterance", "rank", "graph_cost", "acoustic_cost", "words"]
    best = run("best-path", raw, "--words", words, *SCALE).splitlines()
    assert [f"{row[0]} {row[4]}" for row in rows if row[1] == "1"] == best
    for one, two in pairwise(rows):
        if one[0] == two[0]:
            assert one[4] != two[4]
            costs = [float(row[2]) + 0.1 * float(row[3]) for row in (one, two)]
            assert costs[0] <= costs[1] + 1e-4
    assert out == run("n-best", raw, "-n", "4", "--words", words, *SCALE)


def test_oracle_counts_errors(run, fail, raw, words, tmp_path):
    best = run("best-path", raw, "--words", words, *SCALE)
    text, out = tmp_path / "text", tmp_path / "out"
    text.write_text(best)
    count = len(best.split()) - len(best.splitlines())
    found = run("oracle", raw, text, "--words", words, "--out", out)
    assert found == f"%WER 0.00 [ 0 / {count}, 0 ins, 0 del, 0 sub ]\n"
    assert out.read_text() == best
    first, *rest = best.splitlines(keepends=True)
    text.write_text(first.rstrip() + " NOISE UNHEARD\n" + "".join(rest))
    found = run("oracle", raw, text, "--words", words, "--ignore", "NOISE")
    assert f"[ 1 / {count + 1}, 0 ins, 1 del, 0 sub ]" in found
    text.write_text("".join(rest))
    message = fail("oracle", raw, text, "--words", words)
    assert f"{first.split()[0]}: a lattice without a reference" in message


def test_mbr_prints_words_or_times_with_confidences(
    run, fail, golden, raw, words, model
):
    lang = golden / "lang"
    best = run("best-path", raw, "--words", words, *SCALE)
    assert run("mbr", raw, "--lang", lang, *SCALE) == best  # clear speech
    assert run("mbr", raw, "--lang", lang, "--keep-best-path", *SCALE) == best
    options = ["--lang", lang, "--model", model, "--ctm", *SCALE]
    rows = [line.split() for line in run("mbr", raw, *options).splitlines()]
    assert [row[4] for row in rows] == [
        word for line in best.splitlines() for word in line.split()[1:]
    ]
    assert all(0.0 <= float(row[5]) <= 1.0 for row in rows)
    twice = run("mbr", raw, *options, "--frame-shift", "0.02").splitlines()
    assert float(twice[3].split()[2]) == pytest.approx(2 * float(rows[3][2]), abs=2e-3)
    narrow = run("mbr", raw, *options, "--beam", "0.001").splitlines()
    assert all(line.endswith(" 1.000") for line in narrow)
    assert "name the --model" in fail("mbr", raw, "--lang", lang, "--ctm")


@pytest.mark.parametrize("form", ["raw", "compact"])
def test_prune_keeps_the_best(run, raw, tmp_path, form):
    out = tmp_path / "lat.ark"
    run("prune", raw, out, "--beam", "1", *SCALE, "--form", form)
    before, after = dict(read_lattices(raw)), dict(read_lattices(out))
    assert sum(lat.num_arcs for lat in after.values()) < sum(
        lat.num_arcs for lat in before.values()
    )
    assert run("best-path", out, *SCALE) == run("best-path", raw, *SCALE)


def test_determinize_keeps_a_path_for_each_word_sequence(run, raw, model, tmp_path):
    one, two = tmp_path / "one.ark", tmp_path / "two.ark"
    run("determinize", raw, one, "--beam", "8", *SCALE)
    run("determinize", raw, two, "--beam", "8", *SCALE, "--model", model)
    for _, lattice in read_compact_lattices(one):
        pairs = list(zip(lattice.source().tolist(), lattice.word.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)
    best = run("best-path", raw, *SCALE)
    assert run("best-path", one, *SCALE) == best
    assert run("best-path", two, *SCALE) == best


def test_lattices_that_are_too_large_are_named_and_left_out(
    raw, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(pruned, "Limits", lambda: Limits(work=0))
    out = tmp_path / "small.ark"
    assert main(["lattice", "determinize", str(raw), str(out), *SCALE]) == 0
    assert list(read_compact_lattices(out)) == []
    told = capsys.readouterr().err
    for utterance, lattice in read_lattices(raw):
        assert f"{utterance}: left out: a lattice too large" in told
        assert f"({lattice.num_states} states, {lattice.num_arcs} arcs)" in told


def test_boost_writes_kaldis_bytes(run, fail, golden, raw, model, tmp_path):
    out, none = tmp_path / "lat.ark", tmp_path / "ali.ark"
    options = [model, out, "--lang", golden / "lang", "--b", "0.1"]
    run("boost", raw, golden / "align" / "ali_tri1.txt", *options)
    expected = golden / "lattice" / "boosted_b0.1.lats"
    assert out.read_bytes() == expected.read_bytes()
    write_int_vectors(none, [])
    assert "a lattice without an alignment" in fail("boost", raw, none, *options)


def write_unigram(path, golden, cost):
    """An ARPA file in which each digit and the end cost as much."""
    digits = [w for w in Lang.load(golden / "lang").word_ids if w.isalpha()]
    rows = [f"{-cost / np.log(10.0):.7f} {word}" for word in [*digits, "</s>"]]
    lines = ["\\data\\", f"ngram 1={len(rows) + 1}", "\\1-grams:", "-99 <s>", *rows]
    path.write_text("\n".join([*lines, "\\end\\", ""]))
    return len(digits)


@pytest.mark.parametrize("form", ["raw", "compact"])
def test_rescore_takes_the_old_costs_out(run, fail, golden, raw, words, tmp_path, form):
    arpa, packed, out = tmp_path / "lm.arpa", tmp_path / "lm", tmp_path / "lat.ark"
    write_unigram(arpa, golden, 2.0)
    run("pack-lm", arpa, packed)
    before = run("n-best", raw, "-n", "3", "--lm-scale", "0", *SCALE)
    options = ["--old", golden / "lang" / "G.fst", "--words", words, "--form", form]
    for new in (arpa, packed):
        for scale in (1.0, 0.5):
            run("rescore", raw, out, *options, "--new", new, "--lm-scale", scale)
            after = run("n-best", out, "-n", "3", "--lm-scale", "0", *SCALE)
            for old_row, new_row in zip(
                before.splitlines()[1:], after.splitlines()[1:], strict=True
            ):
                was, now = old_row.split("\t"), new_row.split("\t")
                assert was[4] == now[4]
                count = len(was[4].split()) + 1
                change = scale * count * (2.0 - np.log(11.0))
                assert float(now[2]) - float(was[2]) == pytest.approx(change, abs=1e-3)
    arpa.write_text(arpa.read_text().replace("ZERO", "NOUGHT"))
    message = fail("rescore", raw, out, *options, "--new", arpa)
    assert "the language model lacks the word 'ZERO'" in message


def test_to_post_gives_kaldis_sums(run, golden, raw, model, tmp_path):
    out, pdfs = tmp_path / "post.ark", tmp_path / "pdfs.gz"
    printed = run("to-post", raw, out, *SCALE)
    rows = (golden / "lattice" / "den_loglike_k0.1.txt").read_text().splitlines()
    expected = sum(float(row.split()[1]) for row in rows)
    assert printed.endswith(" 1758 frames\n")
    assert float(printed.split()[1]) == pytest.approx(expected / 1758, abs=1e-4)
    run("to-post", raw, pdfs, *SCALE, "--pdfs-of", model, "--text")
    for (_, ids), (_, found) in zip(
        read_posteriors(out), read_posteriors(pdfs), strict=True
    ):
        np.testing.assert_allclose(frame_sums(ids), 1.0, atol=1e-5)
        np.testing.assert_allclose(frame_sums(found), 1.0, atol=1e-4)
        assert len(found.ids) <= len(ids.ids)


def test_faults_name_file_and_utterance(fail, raw, tmp_path):
    text = tmp_path / "lat"
    text.write_text("u1 \n0 1 3 1.0,2.0,7\n1 2 4 0,0,8\n\n")  # no final state
    assert fail("prune", text, tmp_path / "out").startswith(f"error: {text}: u1: ")
    assert not (tmp_path / "out").exists()
    table = tmp_path / "words"
    table.write_text("<eps> 0\nA 1\n")
    assert "is not in words.txt" in fail("best-path", raw, "--words", table)
