"""Kaldi's digit lattices with another language model's costs, against enumeration."""

import json

import numpy as np
import pytest

from latflow.decode.rescore import RescoreJob, rescore_lattices
from latflow.fst.graph import Graph
from latflow.lang.arpa import read_arpa, write_arpa
from latflow.lang.lm_trie import LmTrie
from latflow.lang.ngram import estimate
from latflow.lattice.best_path import best_path
from latflow.lattice.determinize.pruned import determinize
from latflow.lattice.io.archives import (
    read_compact_lattices,
    write_lattices,
)
from latflow.lattice.n_best import n_best
from latflow.lattice.prune import prune
from latflow.lattice.rescore import rescore

SCALE = 0.1
BEAM = 6.0


@pytest.fixture(scope="module")
def old(golden, lang):
    return LmTrie.from_graph(Graph.load(golden / "lang" / "G.fst"), lang.word_ids)


@pytest.fixture(scope="module")
def arpa(lang, tmp_path_factory):
    """A trigram model of digit strings in which a digit likes to come again."""
    generator = np.random.default_rng(1)
    digits = [word for word in lang.word_ids if word.isalpha()]
    sentences = []
    for _ in range(300):
        words = [digits[0]]
        for _ in range(5):
            again = generator.random() < 0.5
            words.append(words[-1] if again else str(generator.choice(digits)))
        sentences.append(words)
    path = tmp_path_factory.mktemp("lm") / "lm.arpa"
    write_arpa(estimate(sentences, 3), path)
    return path


@pytest.fixture(scope="module")
def new(arpa, lang):
    return LmTrie.load(arpa, lang.word_ids)


def new_cost(arpa, lang, words):
    """-ln p of a sentence, by the model as it is read from its file."""
    model = read_arpa(arpa)
    names = {number: word for word, number in lang.word_ids.items()}
    text = ["<s>", *(names[word] for word in words), "</s>"]
    ids = np.array([model.word_ids[word] for word in text])
    return -np.log(10.0) * float(np.nansum(model.log_probs(ids)))


def test_the_digit_loop_costs_ln_11_a_word(old):
    words = np.arange(3, 13, dtype=np.int32)
    np.testing.assert_allclose(old.sentence_costs(words), np.log(11.0), rtol=1e-6)


def test_the_same_model_changes_no_cost(raw, old):
    for lattice in raw.values():
        found = rescore(lattice, old, old)
        assert found.num_arcs == lattice.num_arcs
        assert found.graph_cost.tolist() == lattice.graph_cost.tolist()
        assert found.final_graph_cost.tolist() == lattice.final_graph_cost.tolist()


def test_n_best_lists_are_those_of_rescored_n_best_lists(raw, old, new, arpa, lang):
    changed_order = 0
    for lattice in raw.values():
        listed = n_best(lattice, 1000, acoustic_scale=SCALE)
        assert len(listed) < 1000  # all word sequences of the lattice
        expected = sorted(
            path.graph_cost
            - (len(path.words) + 1) * np.log(11.0)
            + new_cost(arpa, lang, path.words)
            + SCALE * path.acoustic_cost
            for path in listed
        )
        found = n_best(rescore(lattice, old, new), 1000, acoustic_scale=SCALE)
        costs = [path.graph_cost + SCALE * path.acoustic_cost for path in found]
        np.testing.assert_allclose(costs, expected, rtol=1e-5)
        words = [[p.words.tolist() for p in paths] for paths in (listed, found)]
        assert sorted(words[0]) == sorted(words[1])
        changed_order += words[0] != words[1]
    assert changed_order  # or the test shows little


def test_kaldis_compact_lattices_give_the_same_best_paths(golden, raw, old, new):
    path = golden / "lattice" / "compact_beam13.txt"
    for utterance, compact in read_compact_lattices(path):
        found = best_path(rescore(compact, old, new).to_lattice(), acoustic_scale=SCALE)
        other = best_path(rescore(raw[utterance], old, new), acoustic_scale=SCALE)
        assert found.words.tolist() == other.words.tolist()
        np.testing.assert_allclose(found.graph_cost, other.graph_cost, rtol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_stage_determinizes_and_rescores(
    golden, raw, arpa, old, new, tmp_path, threads
):
    write_lattices(tmp_path / "lattices.ark", raw.items())
    rescore_lattices(
        RescoreJob(
            lattices=tmp_path / "lattices.ark",
            grammar=golden / "lang" / "G.fst",
            lang_dir=golden / "lang",
            out_dir=tmp_path / "out",
            beam=BEAM,
            threads=threads,
        ),
        arpa=arpa,
        acoustic_scale=SCALE,
    )
    found = dict(read_compact_lattices(tmp_path / "out" / "lattices.ark"))
    assert list(found) == list(raw)
    for utterance, lattice in raw.items():
        best = best_path(rescore(lattice, old, new), acoustic_scale=SCALE)
        other = best_path(found[utterance].to_lattice(), acoustic_scale=SCALE)
        assert best.words.tolist() == other.words.tolist()
        np.testing.assert_allclose(best.graph_cost, other.graph_cost, rtol=1e-4)
        small = determinize(lattice, beam=BEAM, acoustic_scale=SCALE)
        whole = rescore(small, old, new)
        pruned = prune(whole, BEAM, acoustic_scale=SCALE)
        assert found[utterance].num_arcs == pruned.num_arcs
    summary = json.loads((tmp_path / "out" / "rescore.json").read_text())
    assert summary["utterances"] == len(raw)
    assert summary["skipped"] == 0
    assert summary["frames"] == sum(lattice.num_frames for lattice in raw.values())
    arcs = sum(np.count_nonzero(lattice.transition_id) for lattice in raw.values())
    assert summary["depth_before"] == pytest.approx(arcs / summary["frames"])
    arcs = sum(lattice.depth * lattice.num_frames for lattice in found.values())
    assert summary["depth_after"] == pytest.approx(arcs / summary["frames"])
    assert summary["depth_before"] > summary["depth_determinized"]
    assert (tmp_path / "out" / "ledger.jsonl").read_text() == ""
