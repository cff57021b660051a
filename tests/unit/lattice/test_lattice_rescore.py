"""Rescoring by hand, its faults; the stage's files."""

import json

import numpy as np
import pytest

from latflow.decode.rescore import RescoreJob, rescore_lattices
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.lang.lm_trie import LmTrie
from latflow.lattice.determinize import pruned
from latflow.lattice.determinize.pruned import Limits
from latflow.lattice.io.archives import read_compact_lattices, write_lattices
from latflow.lattice.lattice import CompactLattice, Lattice, Strings
from latflow.lattice.n_best import n_best
from latflow.lattice.rescore import rescore
from latflow.ledger import read_ledger

INF = np.inf
WORD_IDS = {"<eps>": 0, "a": 1, "b": 2, "c": 3, "#0": 4, "<s>": 5, "</s>": 6}


def arpa_text(words, bigrams=""):
    """Each word costs its log10; `a b` may be listed."""
    lines = ["\\data\\", f"ngram 1={len(words) + 2}"]
    lines += [f"ngram 2={bigrams.count('-')}"] if bigrams else []
    lines += ["", "\\1-grams:", "-99 <s>", "-1 </s>"]
    lines += [f"{log10} {word}" for word, log10 in words.items()]
    lines += ["", "\\2-grams:", bigrams] if bigrams else []
    return "\n".join([*lines, "", "\\end\\", ""])


def trie(tmp_path, words, bigrams=""):
    path = tmp_path / "lm.arpa"
    path.write_text(arpa_text(words, bigrams))
    return LmTrie.load(path, WORD_IDS)


def loop(costs, final=0.5):
    """A grammar with one state and an arc for each word."""
    words = np.array(list(costs), np.int32)
    weights = np.array(list(costs.values()), np.float32)
    zeros = np.zeros(len(words), np.int32)
    ends = np.array([final], np.float32)
    begin = np.array([0, len(words)])
    return Graph.from_arrays(0, begin, words, words, weights, zeros, ends)


def lattice():
    """0 -(7:a)-> 1 -(8:b)-> 3, 0 -(7:b)-> 2 -(8:b)-> 3 and 1 -(8:-)-> 3; 3 is final."""
    arcs = [(0, 1, 7, 1), (0, 2, 7, 2), (1, 3, 8, 2), (1, 3, 8, 0), (2, 3, 8, 2)]
    costs = np.arange(10, dtype=np.float32).reshape(5, 2)
    finals = np.array([[INF, INF]] * 3 + [[1.0, 2.0]], np.float32)
    return Lattice.from_arcs(np.array(arcs, np.int32), costs, finals)


def test_costs_are_exchanged_word_by_word(tmp_path):
    new = trie(tmp_path, {"a": -0.5, "b": -0.25}, "-0.125 a b")
    found = rescore(lattice(), loop({1: 2.0, 2: 3.0}), new)
    # behind `a` the model has a history of its own: state 3 is there twice
    assert found.num_states == 5
    assert found.frame.tolist() == [0, 1, 1, 2, 2]
    ln10 = np.log(10.0)
    columns = (found.word, found.acoustic_cost, found.graph_cost)
    rows = sorted(zip(*(column.tolist() for column in columns), strict=True))
    expected = [
        (0, 7.0, 6.0),
        (1, 1.0, 0.0 - 2.0 + 0.5 * ln10),
        (2, 3.0, 2.0 - 3.0 + 0.25 * ln10),
        (2, 5.0, 4.0 - 3.0 + 0.125 * ln10),
        (2, 9.0, 8.0 - 3.0 + 0.25 * ln10),
    ]
    np.testing.assert_allclose(rows, expected, rtol=1e-6)
    ends = found.final_graph_cost[np.isfinite(found.final_graph_cost)]
    np.testing.assert_allclose(ends, 1.0 - 0.5 + ln10, rtol=1e-6)
    assert found.final_acoustic_cost.tolist() == [INF] * 3 + [2.0] * 2


def test_paths_that_a_model_has_not_are_dropped(tmp_path):
    new = trie(tmp_path, {"a": -0.5, "b": -0.25})
    # after b no second b, and no end after a alone
    start, word = [0, 2, 3, 3], [1, 2, 2]
    old = Graph.from_arrays(
        0, np.array(start), np.array(word), np.array(word), np.zeros(3),
        np.array([1, 2, 2]), np.array([INF, INF, 0.0]),
    )  # fmt: skip
    found = rescore(lattice(), old, new)
    assert found.word.tolist() == [1, 2]
    assert found.num_states == 3


def test_strings_stay_with_their_arcs_and_ends(tmp_path):
    new = trie(tmp_path, {"a": -0.5, "b": -0.25}, "-0.125 a b")
    compact = CompactLattice.from_arcs(
        np.array([(0, 1, 1), (0, 1, 2), (1, 2, 2)], np.int32),
        np.zeros((3, 2), np.float32),
        Strings(np.array([0, 1, 2, 5]), np.array([7, 8, 1, 2, 3], np.int32)),
        np.array([[INF, INF], [0, 0], [0, 0]], np.float32),
        Strings(np.array([0, 0, 3, 3]), np.array([4, 5, 6], np.int32)),
    )
    found = rescore(compact, loop({1: 2.0, 2: 3.0}), new)
    rows = [
        (int(found.word[arc]), found.arc_string(arc).tolist())
        for arc in range(found.num_arcs)
    ]
    assert sorted(rows) == [(1, [7]), (2, [1, 2, 3]), (2, [1, 2, 3]), (2, [8])]
    ends = [found.state_string(state).tolist() for state in range(found.num_states)]
    assert sorted(ends) == [[], [], [4, 5, 6], [4, 5, 6]]
    assert found.num_frames == 4


def test_an_end_that_is_none_any_more_has_no_string(tmp_path):
    new = trie(tmp_path, {"a": -0.5})
    compact = CompactLattice.from_arcs(
        np.array([(0, 1, 1)], np.int32),
        np.zeros((1, 2), np.float32),
        Strings(np.array([0, 1]), np.array([7], np.int32)),
        np.array([[0, 0], [0, 0]], np.float32),
        Strings(np.array([0, 1, 1]), np.array([4], np.int32)),
    )
    old = Graph.from_arrays(
        0, np.array([0, 1, 1]), np.array([1]), np.array([1]), np.zeros(1),
        np.array([1]), np.array([INF, 0.0]),
    )  # fmt: skip
    found = rescore(compact, old, new)
    assert found.is_final.tolist() == [False, True]
    assert len(found.final_string) == 0


def test_words_that_a_model_lacks_are_named(tmp_path):
    new = trie(tmp_path, {"a": -0.5})
    old = LmTrie.from_graph(loop({1: 2.0, 2: 3.0}), WORD_IDS)
    with pytest.raises(UserError, match="the language model lacks the word 'b'"):
        rescore(lattice(), old, new)
    old = LmTrie.from_graph(loop({1: 2.0}), WORD_IDS)
    with pytest.raises(UserError, match="old language model lacks the word 'b'"):
        rescore(lattice(), old, trie(tmp_path, {"a": -0.5, "b": -0.25}))


def test_a_lattice_without_a_path_is_an_error(tmp_path):
    new = trie(tmp_path, {"a": -0.5, "b": -0.25})
    grammar = loop({1: 2.0, 2: 3.0}, final=INF)
    with pytest.raises(UserError, match="no path of the lattice is a sentence of both"):
        rescore(lattice(), grammar, new)


def test_many_histories_outgrow_the_first_arrays(tmp_path):
    words = {1: 0.0, 2: 0.0, 3: 0.0}
    steps = 8
    arcs = np.array(
        [(t, t + 1, 1 + t, word) for t in range(steps) for word in words], np.int32
    )
    finals = np.full((steps + 1, 2), INF, np.float32)
    finals[-1] = 0.0
    dense = Lattice.from_arcs(arcs, np.zeros((len(arcs), 2), np.float32), finals)
    # a grammar that keeps all words apart: a tree
    nodes = [()]
    for node in nodes:
        nodes += [(*node, word) for word in words] if len(node) < steps else []
    number = {node: k for k, node in enumerate(nodes)}
    inner = [node for node in nodes if len(node) < steps]
    label = np.array([word for _ in inner for word in words], np.int32)
    target = np.array([number[*node, word] for node in inner for word in words])
    counts = [len(words) if len(node) < steps else 0 for node in nodes]
    cost = np.arange(len(label)) % 7
    tree = Graph.from_arrays(
        0, np.cumsum([0, *counts]), label, label, cost, target, np.zeros(len(nodes))
    )
    new = trie(tmp_path, {"a": -0.5, "b": -0.25, "c": -0.125})
    found = rescore(dense, tree, new)
    assert found.num_states == len(nodes)
    assert found.num_arcs == len(label)
    expected = np.log(10.0) * np.array([0.5, 0.25, 0.125])[found.word - 1]
    old = np.sort(expected - found.graph_cost)
    np.testing.assert_allclose(old, np.sort(cost), atol=1e-5)


def files(tmp_path, new_text):
    """Lattices, grammar, model and words of a stage's call."""
    (tmp_path / "lang").mkdir()
    words = "".join(f"{word} {number}\n" for word, number in WORD_IDS.items())
    (tmp_path / "lang" / "words.txt").write_text(words)
    (tmp_path / "new.arpa").write_text(new_text)
    loop({1: 2.0, 2: 3.0}).save(tmp_path / "G.fst")
    good, bad = lattice(), lattice()
    bad.final_graph_cost[:] = INF
    items = [("u1", good), ("u2", bad), ("u3", good)]
    write_lattices(tmp_path / "lattices.ark", items)
    names = ("lattices.ark", "G.fst", "new.arpa", "lang", "out")
    return [tmp_path / name for name in names]


OPTIONS = {"beam": 8.0, "acoustic_scale": 1.0}


def run(paths, *, acoustic_scale, **options):
    lattices, grammar, arpa, lang, out = paths
    job = RescoreJob(
        lattices=lattices, grammar=grammar, lang_dir=lang, out_dir=out, **options
    )
    rescore_lattices(job, arpa, acoustic_scale=acoustic_scale)


def test_the_stage_counts_what_it_leaves_out(tmp_path):
    paths = files(tmp_path, arpa_text({"a": -0.5, "b": -0.25}))
    run(paths, **OPTIONS, threads=1, max_skipped_fraction=0.5)
    found = dict(read_compact_lattices(tmp_path / "out" / "lattices.ark"))
    assert list(found) == ["u1", "u3"]
    (entry,) = read_ledger(tmp_path / "out" / "ledger.jsonl")
    assert (entry.stage, entry.utterance) == ("rescore_lattices", "u2")
    summary = json.loads((tmp_path / "out" / "rescore.json").read_text())
    assert (summary["utterances"], summary["skipped"]) == (3, 1)
    assert summary["frames"] == 4


@pytest.mark.parametrize(
    ("limits", "action", "told"),
    [
        (Limits(work=0), "skipped", "too large to be determinized within the limits"),
        (Limits(arcs=2), "noted", "determinized to a beam of"),
    ],
)
def test_the_stage_goes_on_where_a_lattice_is_too_large(
    tmp_path, monkeypatch, limits, action, told
):
    monkeypatch.setattr(pruned, "Limits", lambda: limits)
    paths = files(tmp_path, arpa_text({"a": -0.5, "b": -0.25}))
    options = {"beam": 30.0, "acoustic_scale": 1.0}
    run(paths, **options, threads=1, max_skipped_fraction=1.0)
    entries = {e.utterance: e for e in read_ledger(tmp_path / "out" / "ledger.jsonl")}
    assert list(entries) == ["u1", "u2", "u3"]
    assert entries["u1"].action == entries["u3"].action == action
    assert told in entries["u1"].reason
    found = dict(read_compact_lattices(tmp_path / "out" / "lattices.ark"))
    assert list(found) == ([] if action == "skipped" else ["u1", "u3"])


@pytest.mark.parametrize(("beam", "num_sentences"), [(13.0, 2), (30.0, 3)])
def test_the_stage_prunes_what_has_become_costly(tmp_path, beam, num_sentences):
    # `a b` costs 13, `a` 17, `b b` 25; with the new model 20.2, 18 and 39.2
    paths = files(tmp_path, arpa_text({"a": -0.5, "b": -4.0}))
    options = {"beam": beam, "acoustic_scale": 1.0}
    run(paths, **options, threads=1, max_skipped_fraction=0.5)
    for _, found in read_compact_lattices(tmp_path / "out" / "lattices.ark"):
        paths = n_best(found, 10)
        assert len(paths) == num_sentences
        assert paths[0].words.tolist() == [1]
        cost = paths[0].graph_cost + paths[0].acoustic_cost
        assert cost == pytest.approx(17 - 2.5 + 1.5 * np.log(10.0))


def test_the_stage_fails_where_too_many_are_left_out(tmp_path):
    paths = files(tmp_path, arpa_text({"a": -0.5, "b": -0.25}))
    with pytest.raises(UserError, match="skipped 1 of 3"):
        run(paths, **OPTIONS, threads=1)
    assert not (tmp_path / "out" / "lattices.ark").exists()


def test_the_stage_refuses_a_model_that_lacks_words_before_it_starts(tmp_path):
    paths = files(tmp_path, arpa_text({"a": -0.5}))
    with pytest.raises(UserError, match=r"new\.arpa: .*lacks the word 'b'"):
        run(paths, **OPTIONS, threads=1)


def test_the_stage_says_how_many_words_count_as_unknown(tmp_path, caplog):
    paths = files(tmp_path, arpa_text({"a": -0.5, "<unk>": -2}))
    run(paths, **OPTIONS, threads=1, max_skipped_fraction=0.5)
    assert "lacks 1 of the 2 words" in caplog.text
