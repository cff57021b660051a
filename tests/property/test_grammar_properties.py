"""G of random models, pruned at random, is arc for arc what kaldilm makes of them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.lang.arpa import write_arpa
from latflow.lang.arpa_file import arpa_entries
from latflow.lang.grammar import write_grammar
from latflow.lang.ngram import estimate

kaldilm = pytest.importorskip("kaldilm")


def pruned(generator, source, target):
    """Write a part of a model: any n-grams whose first words are kept."""
    kept: list[dict[tuple[str, ...], str]] = []
    for log_prob, words, backoff in arpa_entries(source):
        gram = tuple(words)
        while len(kept) < len(gram):
            kept.append({})
        if len(gram) > 1 and (
            gram[:-1] not in kept[len(gram) - 2] or generator.random() < 0.3
        ):
            continue
        is_impossible = words[-1] != "</s>" and generator.random() < 0.05
        line = f"{-99 if is_impossible else log_prob:.7f}\t{' '.join(gram)}"
        if not math.isnan(backoff) and generator.random() < 0.8:
            line += f"\t{backoff:.6f}"
        kept[len(gram) - 1][gram] = line
    while not kept[-1]:
        kept.pop()
    kept[-1] = {g: "\t".join(line.split("\t")[:2]) for g, line in kept[-1].items()}
    counts = "".join(f"ngram {n}={len(part)}\n" for n, part in enumerate(kept, 1))
    body = "".join(
        f"\n\\{n}-grams:\n" + "".join(f"{line}\n" for line in part.values())
        for n, part in enumerate(kept, 1)
    )
    target.write_text(f"\\data\\\n{counts}{body}\n\\end\\\n")


def assert_same(ours, theirs):
    """Walk through both; states may have other numbers."""
    assert (ours.num_states, ours.num_arcs) == (theirs.num_states, theirs.num_arcs)
    state_of, pending = {ours.start: theirs.start}, [ours.start]
    while pending:
        one = pending.pop()
        two = state_of[one]
        assert ours.final[one] == theirs.final[two]
        ours_arcs = ours.arcs[ours.arc_begin[one] : ours.arc_begin[one + 1]]
        their_arcs = theirs.arcs[theirs.arc_begin[two] : theirs.arc_begin[two + 1]]
        for name in ("ilabel", "olabel", "weight"):
            np.testing.assert_array_equal(ours_arcs[name], their_arcs[name])
        pairs = zip(ours_arcs["next_state"], their_arcs["next_state"], strict=True)
        for target, their_target in pairs:
            if target not in state_of:
                state_of[target] = their_target
                pending.append(target)
            assert state_of[target] == their_target
    assert len(state_of) == ours.num_states


@given(
    seed=st.integers(0, 2**32 - 1),
    order=st.integers(1, 5),
    num_words=st.integers(1, 6),
    is_pruned=st.booleans(),
)
def test_grammars_are_those_of_kaldilm(
    tmp_path_factory, seed, order, num_words, is_pruned
):
    folder, generator = tmp_path_factory.mktemp("g"), np.random.default_rng(seed)
    sentences = [
        [f"w{word}" for word in generator.integers(0, num_words, length)]
        for length in generator.integers(1, 8, 12)
    ]
    write_arpa(estimate(sentences, order), folder / "lm.arpa")
    if is_pruned:
        pruned(generator, folder / "lm.arpa", folder / "lm.arpa")
    listed = [f"w{n}" for n in range(num_words) if generator.random() < 0.85]
    words = ["<eps>", *listed, "#0", "<s>", "</s>"]
    table = {word: number for number, word in enumerate(words)}
    (folder / "words.txt").write_text("".join(f"{w} {n}\n" for w, n in table.items()))
    try:
        write_grammar(folder / "lm.arpa", folder, table, folder / "G.fst")
    except UserError as error:
        assert "no word" in str(error)  # noqa: PT017
        return
    kaldilm.arpa2fst(
        input_arpa=str(folder / "lm.arpa"),
        output_fst=str(folder / "peer.fst"),
        disambig_symbol="#0",
        read_symbol_table=str(folder / "words.txt"),
        max_arpa_warnings=0,
    )
    assert_same(Graph.load(folder / "G.fst"), Graph.load(folder / "peer.fst"))
