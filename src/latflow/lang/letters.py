"""A lexicon whose phones are letters, for a language that no dictionary is at hand for.

Such systems ("graphemic" ones) lose little where spelling follows sound, and more data
makes good for much of it in English. Source: Kanthak and Ney 2002, "Context-dependent
acoustic modeling using graphemes for large vocabulary speech recognition"; Le et al.
2019, "From senones to chenones: tied context-dependent graphemes for hybrid speech
recognition".
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from latflow.errors import UserError

# Names of characters of writing that does not part words by blanks.
_UNPARTED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")


def letter_lexicon(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return lines `word letter letter ...` for words, and words without a spelling.

    Words that differ in the case of letters are one, in small letters. Marks within a
    word (`don't`) are not spoken; words with digits have no spelling.

    Raises:
        UserError: the words are of writing that does not part words by blanks.
    """
    lines, others, unparted, count = [], [], 0, 0
    for word in sorted({unicodedata.normalize("NFC", w.lower()) for w in words}):
        letters = [c for c in word if unicodedata.category(c)[0] in "LM"]
        count += 1
        unparted += bool(letters) and unicodedata.name(letters[0], "").startswith(
            _UNPARTED
        )
        if letters and not any(c.isdigit() for c in word):
            lines.append(" ".join([word, *letters]))
        else:
            others.append(word)
    if unparted > count / 2:
        raise UserError(
            "words of this writing are not parted by blanks, so that they can't be "
            "spelled out",
            remedy="part them, and name a lexicon of them: --lexicon FILE",
        )
    return lines, others
