"""Lexica: round trips, disambiguation, and what L accepts."""

import math

import kaldifst
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latflow.lang.lexicon import (
    Lexicon,
    Pronunciation,
    read_lexicon,
    write_lexicon,
)
from latflow.lang.lexicon_fst import add_disambiguation, lexicon_fst
from latflow.lang.phones import place_markers

words = st.text("ABCäß'-", min_size=1, max_size=3)
phones = st.lists(st.sampled_from(["p", "t", "k"]), min_size=1, max_size=4).map(tuple)
probabilities = st.floats(0.001, 1.0)
entries = st.lists(
    st.builds(Pronunciation, words, phones, probabilities),
    min_size=1,
    max_size=8,
    unique_by=lambda entry: (entry.word, entry.phones),
)


@given(entries)
def test_reading_a_written_lexicon_gives_it_back(tmp_path_factory, found):
    path = tmp_path_factory.mktemp("lexicon") / "lexiconp.txt"
    write_lexicon(Lexicon(tuple(found)), path, with_probabilities=True)
    again = read_lexicon(path, has_probabilities=True, max_normalize=False)
    assert again.entries == tuple(found)


@given(entries)
def test_max_normalized_probabilities_have_a_one_for_each_word(tmp_path_factory, found):
    path = tmp_path_factory.mktemp("lexicon") / "lexiconp.txt"
    write_lexicon(Lexicon(tuple(found)), path, with_probabilities=True)
    for alternatives in read_lexicon(path, has_probabilities=True).by_word().values():
        assert max(probability for probability, _ in alternatives) == 1.0


@given(entries)
def test_disambiguated_pronunciations_are_prefix_free(found):
    changed, highest = add_disambiguation(found)
    sequences = [entry.phones for entry in changed]
    assert len(set(sequences)) == len(sequences)
    for one in sequences:
        for other in sequences:
            assert one == other or other[: len(one)] != one
    used = {int(s[1:]) for phones in sequences for s in phones if s[0] == "#"}
    assert highest == max(used, default=0)
    for before, after in zip(found, changed, strict=True):
        assert after.phones[: len(before.phones)] == before.phones
        assert len(after.phones) - len(before.phones) in (0, 1)


@given(entries, st.data(), st.sampled_from([0.0, 0.3]))
def test_lexicon_fst_maps_phones_to_words_at_the_stated_cost(found, data, silence):
    marked = [
        Pronunciation(e.word, place_markers(e.phones), e.probability) for e in found
    ]
    names = sorted({phone for e in marked for phone in e.phones})
    phone_ids = {n: i for i, n in enumerate(["<eps>", "SIL", *names])}
    word_ids = {w: i for i, w in enumerate(["<eps>", *sorted({e.word for e in found})])}
    fst = lexicon_fst(
        marked,
        phone_ids,
        word_ids,
        silence_phone="SIL",
        silence_probability=silence,
    )
    path = data.draw(st.lists(st.sampled_from(marked), min_size=1, max_size=3))
    labels = [phone_ids[phone] for e in path for phone in e.phones]
    acceptor = kaldifst.make_linear_acceptor(labels)
    both = kaldifst.compose(acceptor, fst)
    _, _, outputs, total = kaldifst.get_linear_symbol_sequence(
        kaldifst.shortest_path(both)
    )
    # other words may have the same phones; the best path is at least as good
    cost = -sum(math.log(e.probability) for e in path)
    if silence:
        cost -= (len(path) + 1) * math.log(1 - silence)
    assert total.value <= cost + 1e-4
    if len({e.phones for e in marked}) == len(marked):
        inverse = {number: word for word, number in word_ids.items()}
        assert [inverse[o] for o in outputs] == [e.word for e in path]
        assert total.value == pytest.approx(cost, abs=1e-4)
