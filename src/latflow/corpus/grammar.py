"""Make the sentences of the demo corpus: orders to a kitchen robot.

A small context-free grammar draws sentences such as "my dear robot bring the captain a
cup of tea at half past seven". Its hundred words have hand-made pronunciations in
ARPAbet (the phones of the CMU dictionary, without stress), some with alternatives as
real lexica have them. There are enough sentences that a 3-gram model has something to
generalize, and enough short, similar words (bowl and boil, two and to, ten and then)
that acoustic models have something to distinguish.

Every sentence belongs to one side, train, dev or test, by a checksum of its words: no
sentence of the test set is spoken in training or read by the language model.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np

Production = tuple[int, str]


def _equally(words: str) -> tuple[Production, ...]:
    """Return alternatives of one word each, all as frequent."""
    return tuple((1, word) for word in words.split())


# Alternatives of each symbol as (weight, words and $symbols).
PRODUCTIONS: dict[str, tuple[Production, ...]] = {
    "SENTENCE": (
        (4, "$POLITE $COMMAND"),
        (3, "$COMMAND $TIME"),
        (3, "$POLITE $COMMAND $TIME"),
        (4, "$COMMAND AND THEN $COMMAND"),
        (1, "DO NOT $COMMAND AGAIN"),
        (3, "$QUESTION"),
    ),
    "POLITE": (
        (3, "PLEASE"),
        (2, "ROBOT PLEASE"),
        (1, "MY DEAR ROBOT"),
        (1, "QUICKLY"),
    ),
    "COMMAND": (
        (4, "$COOK $NUMBER $FOODS"),
        (2, "$COOK THE $FOOD"),
        (3, "BRING $PERSON A $VESSEL OF $DRINK"),
        (2, "BRING $PERSON $NUMBER $FOODS"),
        (3, "WASH THE $COLOUR $VESSEL"),
        (3, "PUT THE $FOOD $PLACE"),
        (2, "PUT $NUMBER $FOODS $PLACE"),
        (2, "FEED THE $ANIMAL"),
        (1, "SING TO THE $ANIMAL"),
        (2, "LOOK FOR MY $COLOUR $VESSEL $PLACE"),
    ),
    "QUESTION": (
        (2, "WHERE IS MY $COLOUR $VESSEL"),
        (2, "WHO ATE ALL THE $FOODS"),
        (2, "HOW MANY $FOODS ARE IN THE $FOOD"),
        (1, "WHEN IS $MEAL"),
        (1, "DID YOU FEED THE $ANIMAL $TIME"),
    ),
    "COOK": _equally("COOK PEEL FRY BAKE CHOP BOIL TASTE"),
    "NUMBER": _equally("TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE TEN ELEVEN TWELVE"),
    "FOODS": _equally("POTATOES TOMATOES CARROTS ONIONS EGGS PANCAKES LEMONS BEANS"),
    "FOOD": _equally("SOUP CAKE RICE CHEESE FISH BREAD"),
    "DRINK": _equally("TEA COFFEE MILK WATER JUICE"),
    "VESSEL": _equally("CUP BOWL GLASS POT PAN"),
    "COLOUR": _equally("RED GREEN BLUE YELLOW"),
    "PERSON": (
        (3, "ME"),
        (2, "THE CAPTAIN"),
        (1, "MY SISTER"),
        (1, "MY BROTHER"),
    ),
    "ANIMAL": _equally("CAT DOG PARROT"),
    "PLACE": (
        (2, "ON THE TABLE"),
        (2, "IN THE OVEN"),
        (1, "UNDER THE TABLE"),
        (1, "IN THE $COLOUR $VESSEL"),
    ),
    "MEAL": _equally("BREAKFAST LUNCH DINNER"),
    "TIME": (
        (2, "AT $NUMBER"),
        (2, "AT HALF PAST $NUMBER"),
        (1, "BEFORE $MEAL"),
        (1, "AFTER $MEAL"),
        (1, "TOMORROW"),
        (1, "NOW"),
    ),
}

PRONUNCIATIONS = """
A AH
A EY
AFTER AE F T ER
AFTER AA F T AH
AGAIN AH G EH N
ALL AO L
AND AE N D
AND AH N D
ARE AA R
ARE AA
AT AE T
ATE EY T
ATE EH T
BAKE B EY K
BEANS B IY N Z
BEFORE B IH F AO R
BEFORE B IH F AO
BLUE B L UW
BOIL B OY L
BOWL B OW L
BREAD B R EH D
BREAKFAST B R EH K F AH S T
BRING B R IH NG
BROTHER B R AH DH ER
BROTHER B R AH DH AH
CAKE K EY K
CAPTAIN K AE P T AH N
CARROTS K AE R AH T S
CAT K AE T
CHEESE CH IY Z
CHOP CH AA P
COFFEE K AO F IY
COFFEE K AA F IY
COOK K UH K
CUP K AH P
DEAR D IH R
DEAR D IH AH
DID D IH D
DINNER D IH N ER
DINNER D IH N AH
DO D UW
DOG D AO G
DOG D AA G
EGGS EH G Z
EIGHT EY T
ELEVEN IH L EH V AH N
FEED F IY D
FISH F IH SH
FIVE F AY V
FOR F AO R
FOR F AO
FOUR F AO R
FOUR F AO
FRY F R AY
GLASS G L AE S
GLASS G L AA S
GREEN G R IY N
HALF HH AE F
HALF HH AA F
HOW HH AW
IN IH N
IS IH Z
JUICE JH UW S
LEMONS L EH M AH N Z
LOOK L UH K
LUNCH L AH N CH
MANY M EH N IY
ME M IY
MILK M IH L K
MY M AY
NINE N AY N
NOT N AA T
NOW N AW
OF AH V
ON AA N
ONIONS AH N IY AH N Z
ONIONS AH N Y AH N Z
OVEN AH V AH N
PAN P AE N
PANCAKES P AE N K EY K S
PANCAKES P AE NG K EY K S
PARROT P AE R AH T
PAST P AE S T
PAST P AA S T
PEEL P IY L
PLEASE P L IY Z
POT P AA T
POTATOES P AH T EY T OW Z
PUT P UH T
QUICKLY K W IH K L IY
RED R EH D
RICE R AY S
ROBOT R OW B AA T
SEVEN S EH V AH N
SING S IH NG
SISTER S IH S T ER
SISTER S IH S T AH
SIX S IH K S
SOUP S UW P
TABLE T EY B AH L
TASTE T EY S T
TEA T IY
TEN T EH N
THE DH AH
THE DH IY
THEN DH EH N
THREE TH R IY
TO T UW
TO T AH
TOMATOES T AH M EY T OW Z
TOMATOES T AH M AA T OW Z
TOMORROW T AH M AA R OW
TWELVE T W EH L V
TWO T UW
UNDER AH N D ER
UNDER AH N D AH
WASH W AA SH
WATER W AO T ER
WATER W AO T AH
WHEN W EH N
WHERE W EH R
WHERE W EH AH
WHO HH UW
YELLOW Y EH L OW
YOU Y UW
"""


def lexicon_lines() -> list[str]:
    """Return the lines `WORD PHONE PHONE ...`, sorted."""
    return sorted(line for line in PRONUNCIATIONS.splitlines() if line)


def words() -> list[str]:
    """Return the words that the grammar can say, sorted."""
    found = {
        token
        for alternatives in PRODUCTIONS.values()
        for _, body in alternatives
        for token in body.split()
        if not token.startswith("$")
    }
    return sorted(found)


def draw_sentence(rng: np.random.Generator, side: str) -> str:
    """Draw a sentence that belongs to one side of the corpus.

    Args:
        side: `train`, `dev` or `test`; see `side_of`.

    Returns:
        Words in capitals, separated by single blanks.
    """
    while True:
        sentence = " ".join(_expand("SENTENCE", rng))
        if side_of(sentence) == side:
            return sentence


def side_of(sentence: str) -> str:
    """Return the side, `train`, `dev` or `test`, of a sentence (6 : 1 : 1)."""
    remainder = zlib.crc32(sentence.encode()) % 8
    return {0: "test", 1: "dev"}.get(remainder, "train")


def _expand(symbol: str, rng: np.random.Generator) -> Iterator[str]:
    """Draw an alternative of a symbol and expand what it holds."""
    alternatives = PRODUCTIONS[symbol]
    bounds = np.cumsum([weight for weight, _ in alternatives])
    drawn = int(np.searchsorted(bounds, rng.integers(bounds[-1]), side="right"))
    for token in alternatives[drawn][1].split():
        if token.startswith("$"):
            yield from _expand(token[1:], rng)
        else:
            yield token
