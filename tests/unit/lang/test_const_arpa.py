"""Kaldi's `G.carpa`, written here as its description says."""

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.const_arpa_writer import write_const_arpa

from latflow.errors import UserError
from latflow.lang.const_arpa import read_const_arpa
from latflow.lang.lm_trie import LmTrie
from latflow.lang.ngram import estimate

TEXTS = st.lists(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=6), min_size=1, max_size=12
)


def model_of(sentences, order):
    """Return a model, and words.txt with more words than it has."""
    model = estimate(sentences, order, unknown_word="<unk>")
    ids = {word: 3 * n + 1 for n, word in enumerate(model.words)}
    return model, ids | {"<eps>": 0, "other": 2}


def by_id(word_ids):
    return {number: word for word, number in word_ids.items()}


@settings(max_examples=60)
@given(
    sentences=TEXTS,
    order=st.integers(1, 4),
    farthest=st.sampled_from([2**30 - 1, 9, 3]),
    old=st.booleans(),
)
def test_probabilities_are_those_of_the_model(
    tmp_path_factory, sentences, order, farthest, old
):
    path = tmp_path_factory.mktemp("carpa") / "G.carpa"
    model, ids = model_of(sentences, order)
    write_const_arpa(path, model, ids, farthest=farthest, old=old)
    found = read_const_arpa(path, by_id(ids))
    assert found.words == model.words
    for got, expected in zip(found.levels, model.levels, strict=True):
        np.testing.assert_array_equal(got.prefix, expected.prefix)
        np.testing.assert_array_equal(got.word, expected.word)
        np.testing.assert_allclose(got.log_prob, expected.log_prob, rtol=1e-6)
    ours, theirs = (LmTrie.from_model(one, ids) for one in (found, model))
    for sentence in [*sentences, ["other", "a"], []]:
        words = np.array([ids.get(word, 2) for word in sentence], np.int32)
        np.testing.assert_allclose(
            ours.sentence_costs(words), theirs.sentence_costs(words), rtol=1e-5
        )


def write(path):
    """Write a small model with references of both kinds; return its words by id."""
    model, ids = model_of(["abca", "bcd", "ab"], 3)
    write_const_arpa(path, model, ids, farthest=9)
    return by_id(ids)


@given(data=st.data())
@settings(max_examples=200)
def test_damaged_files_are_read_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("carpa") / "G.carpa"
    names = write(path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.sampled_from([0, 1, 4, 127, 128, 255]))
    path.write_bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))])
    with contextlib.suppress(UserError):
        LmTrie.from_model(read_const_arpa(path, names), {"a": 1})


def test_histories_that_lead_to_themselves_are_refused(tmp_path):
    written = tmp_path / "G.carpa"
    names = write(written)
    content = bytearray(written.read_bytes())
    start = content.index(b"<LmStates> ") + len(b"<LmStates> ") + 9
    end = content.index(b"</LmStates>")
    entries = np.frombuffer(bytes(content[start:end]), "<i4").copy()
    is_near = (entries % 2 == 1) & (entries > 0) & (entries < 200)
    entries[is_near] = 1  # the distance 0
    content[start:end] = entries.tobytes()
    written.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        read_const_arpa(written, names)


def test_what_is_no_such_file_is_refused(tmp_path):
    names = write(tmp_path / "G.carpa")
    lacking = {number: word for number, word in names.items() if word != "b"}
    with pytest.raises(UserError, match="which words.txt lacks"):
        read_const_arpa(tmp_path / "G.carpa", lacking)
    text = tmp_path / "G.arpa"
    text.write_text("\\data\\\nngram 1=1\n")
    with pytest.raises(UserError, match="no binary file of Kaldi's"):
        read_const_arpa(text, names)
    huge = tmp_path / "huge.carpa"
    head = b"\0B<ConstArpaLm> <LmInfo> " + b"".join(
        b"\4" + struct.pack("<i", n) for n in (4, 1, -1, 3)
    )
    huge.write_bytes(head + b"</LmInfo> <LmStates> \10" + struct.pack("<q", 1 << 60))
    with pytest.raises(UserError, match="file ends"):
        read_const_arpa(huge, names)
