from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.phone_lm_naive import log_like, pruned_states

from latflow.errors import UserError
from latflow.graphs.options import PhoneLmOptions
from latflow.graphs.phone_lm import estimate_phone_lm


def walk(graph, sequence):
    """Yield (state, phone, cost) along a sequence, phone 0 at its end."""
    state = graph.start
    for phone in sequence:
        arcs = range(graph.arc_begin[state], graph.arc_begin[state + 1])
        (arc,) = (a for a in arcs if graph.ilabel[a] == phone)
        yield state, phone, float(graph.weight[arc])
        state = int(graph.next_state[arc])
    yield state, 0, float(graph.final[state])


def random_corpus(seed, count=60, phones=4):
    rng = np.random.default_rng(seed)
    step = rng.dirichlet(np.full(phones, 0.5), size=(phones + 1, phones + 1))
    sequences = []
    for _ in range(count):
        sequence = [0, 0]
        for _ in range(rng.integers(2, 14)):
            weights = step[sequence[-2], sequence[-1]]
            sequence.append(1 + int(rng.choice(phones, p=weights)))
        sequences.append(sequence[2:])
    return sequences


corpora = st.lists(
    st.lists(st.integers(1, 4), min_size=1, max_size=12), min_size=1, max_size=30
)
orders = st.integers(2, 5).flatmap(
    lambda order: st.tuples(st.just(order), st.integers(1, order))
)


@given(corpora, orders, st.integers(0, 20))
def test_weights_are_relative_frequencies_on_the_paths_of_the_data(
    sequences, orders, num_extra
):
    options = PhoneLmOptions(
        ngram_order=orders[0],
        no_prune_ngram_order=orders[1],
        num_extra_lm_states=num_extra,
    )
    graph = estimate_phone_lm(sequences, options)
    counts, costs = Counter(), {}
    for sequence in sequences:
        for state, phone, cost in walk(graph, sequence):
            counts[state, phone] += 1
            costs[state, phone] = cost
    totals = Counter()
    for (state, _), count in counts.items():
        totals[state] += count
    for (state, phone), count in counts.items():
        wanted = -np.log(count / totals[state])
        assert costs[state, phone] == pytest.approx(wanted, abs=1e-6)
    assert len(counts) == graph.num_arcs + graph.num_final_states
    assert len(totals) == graph.num_states


@given(corpora, orders, st.integers(0, 20))
def test_no_more_states_than_allowed_unless_none_may_be_joined(
    sequences, orders, num_extra
):
    order, no_prune = orders
    options = PhoneLmOptions(
        ngram_order=order, no_prune_ngram_order=no_prune, num_extra_lm_states=num_extra
    )
    graph = estimate_phone_lm(sequences, options)
    assert graph.num_states == len(pruned_states(sequences, *orders, num_extra))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("orders", [(3, 2), (4, 3), (4, 2)])
def test_the_cheapest_states_are_joined_first(seed, orders):
    sequences = random_corpus(seed)
    order, no_prune = orders
    for num_extra in (0, 5, 12):
        states = pruned_states(sequences, order, no_prune, num_extra)
        graph = estimate_phone_lm(
            sequences,
            PhoneLmOptions(
                ngram_order=order,
                no_prune_ngram_order=no_prune,
                num_extra_lm_states=num_extra,
            ),
        )
        cost = sum(c for s in sequences for _, _, c in walk(graph, s))
        assert graph.num_states == len(states)
        assert -cost == pytest.approx(log_like(states), rel=1e-6)


def test_silence_between_utterances_is_no_history():
    graph = estimate_phone_lm([[1, 2], [3, 2]], PhoneLmOptions())
    assert graph.num_states == 5  # (0) (0 1) (0 1 2) (0 3) (0 3 2)
    (first, *_) = walk(graph, [1, 2])
    assert first == (graph.start, 1, pytest.approx(np.log(2)))


def test_the_order_of_blocks_does_not_matter(monkeypatch):
    sequences = random_corpus(7)
    whole = estimate_phone_lm(sequences, PhoneLmOptions(num_extra_lm_states=9))
    monkeypatch.setattr("latflow.graphs.phone_lm._BLOCK", 7)
    parts = estimate_phone_lm(iter(sequences), PhoneLmOptions(num_extra_lm_states=9))
    assert whole.num_states == parts.num_states
    assert (whole.arcs == parts.arcs).all()


@pytest.mark.parametrize(
    ("sequences", "fault"),
    [([], "no phone sequences"), ([[]], "no phone sequences"), ([[1, 0]], "positive")],
)
def test_data_without_phones_is_refused(sequences, fault):
    with pytest.raises(UserError, match=fault):
        estimate_phone_lm(sequences, PhoneLmOptions())
