"""The kitchen robot's grammar, its lexicon, and eSpeak's opinion of it."""

import ctypes
import re

import numpy as np
import pytest

from latflow.corpus import grammar
from latflow.corpus.espeak import CHARACTERS_UTF8, Synthesizer

# eSpeak's IPA consonants (American English) as ARPAbet.
CONSONANTS = {
    "p": "P", "b": "B", "t": "T", "d": "D", "k": "K", "ɡ": "G", "f": "F", "v": "V",
    "θ": "TH", "ð": "DH", "s": "S", "z": "Z", "ʃ": "SH", "h": "HH", "tʃ": "CH",
    "dʒ": "JH", "m": "M", "n": "N", "ŋ": "NG", "l": "L", "w": "W", "j": "Y", "ɾ": "T",
}  # fmt: skip
IPA_CONSONANT = re.compile(
    "tʃ|dʒ|[" + "".join(c for c in CONSONANTS if len(c) == 1) + "]"
)


def phonemes(synthesizer, text):
    """Phonemes of a text in the International Phonetic Alphabet, as eSpeak has it."""
    translate = synthesizer._library.espeak_TextToPhonemes
    translate.restype = ctypes.c_char_p
    pointer = ctypes.c_char_p(text.encode())
    return translate(ctypes.byref(pointer), CHARACTERS_UTF8, 2).decode()


def pronunciations():
    found = {}
    for line in grammar.lexicon_lines():
        word, *phones = line.split()
        found.setdefault(word, []).append(phones)
    return found


def test_every_word_has_a_pronunciation_and_no_other_has():
    assert set(pronunciations()) == set(grammar.words())
    assert 50 <= len(grammar.words()) <= 100


def test_no_pronunciation_is_given_twice():
    lines = grammar.lexicon_lines()
    assert len(lines) == len(set(lines))


def test_consonants_agree_with_espeak():
    synthesizer = Synthesizer("en-us")
    disagreeing = []
    for word, variants in pronunciations().items():
        if word == "A":  # eSpeak spells a lone letter
            continue
        spoken = [
            CONSONANTS[c]
            for c in IPA_CONSONANT.findall(phonemes(synthesizer, word.lower()))
        ]
        # ER, R and vowels are written differently: compare other consonants.
        ours = [[p for p in v if p in CONSONANTS.values()] for v in variants]
        if spoken not in ours:
            disagreeing.append((word, spoken, ours))
    assert not disagreeing


@pytest.mark.parametrize("side", ["train", "dev", "test"])
def test_sentences_belong_to_their_side(side):
    rng = np.random.default_rng(0)
    sentences = [grammar.draw_sentence(rng, side) for _ in range(200)]
    assert all(grammar.side_of(s) == side for s in sentences)
    assert {w for s in sentences for w in s.split()} <= set(grammar.words())


def test_all_words_are_said_sooner_or_later():
    rng = np.random.default_rng(1)
    said = {w for _ in range(3000) for w in grammar.draw_sentence(rng, "train").split()}
    assert said == set(grammar.words())
