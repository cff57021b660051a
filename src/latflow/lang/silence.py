"""Silence around words: the numbers, and Kaldi's files of them.

Speakers pause after some words and before others. What a lexicon can say of that is one
`WordSilence` an entry, and one `SentenceSilence` of the edges of sentences; together
they are the `SilenceModel` that `latflow.lang.lexicon_fst` makes an L of.

Source: Chen, Xu, Wang, Povey and Khudanpur 2015, "Pronunciation and silence probability
modeling for ASR"; Kaldi `utils/dict_dir_add_pronprobs.sh` (the files).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from latflow.errors import UserError
from latflow.files import write_text
from latflow.text_files import read_lines

SILENCE_FILE = "silprob.txt"
_KEYS = ("<s>", "</s>_s", "</s>_n", "overall")  # Kaldi's, in the order of its file


class WordSilence(NamedTuple):
    """Silence around a pronunciation.

    Attributes:
        after: P(silence | w), in (0, 1).
        correction_silence: F(silence | w), of standing after silence; above 0.
        correction_none: F(none | w), of standing right after another word; above 0.
    """

    after: float
    correction_silence: float
    correction_none: float


class SentenceSilence(NamedTuple):
    """Silence at the edges of sentences, and on the whole.

    Attributes:
        overall: P(silence) between any two words, in (0, 1).
        at_start: P(silence | start of the sentence), in (0, 1).
        end_correction_silence: F(silence | end of the sentence); above 0.
        end_correction_none: F(none | end of the sentence); above 0.
    """

    overall: float
    at_start: float
    end_correction_silence: float
    end_correction_none: float


@dataclass(frozen=True)
class SilenceModel:
    """Silence of a whole lexicon.

    Attributes:
        overall: P(silence) between any two words.
        at_start: P(silence | start of the sentence).
        end_correction_silence: F(silence | end of the sentence).
        end_correction_none: F(none | end of the sentence).
        words: one for each entry of the lexicon, in its order.
    """

    overall: float
    at_start: float
    end_correction_silence: float
    end_correction_none: float
    words: tuple[WordSilence, ...]


def read_sentence_silence(path: Path) -> SentenceSilence:
    """Read Kaldi's `silprob.txt`.

    Raises:
        UserError: a line is not one of its four, or a number is out of its range.
    """
    found: dict[str, float] = {}
    for number, line in read_lines(path):
        if line.strip():
            key, value = _edge(line.split(), number, path)
            found[key] = value
    if missing := [key for key in _KEYS if key not in found]:
        raise UserError(
            f"{missing[0]} is missing",
            file=path,
            remedy="copy the file that belongs to the lexicon, or remove it",
        )
    start, silence, none, overall = (found[key] for key in _KEYS)
    return SentenceSilence(overall, start, silence, none)


def write_sentence_silence(path: Path, edges: SentenceSilence | SilenceModel) -> None:
    """Write Kaldi's `silprob.txt`."""
    values = (
        edges.at_start,
        edges.end_correction_silence,
        edges.end_correction_none,
        edges.overall,
    )
    lines = (f"{k} {v:.6g}\n" for k, v in zip(_KEYS, values, strict=True))
    write_text(path, "".join(lines))


def _edge(fields: list[str], number: int, path: Path) -> tuple[str, float]:
    """Return key and number of a line of `silprob.txt`."""
    try:
        key, value = fields[0], float(fields[1])
        is_probability = not key.startswith("</s>")
        is_right = len(fields) == 2 and key in _KEYS
        is_right &= 0.0 < value < (1.0 if is_probability else float("inf"))
    except (IndexError, ValueError):
        is_right, key, value = False, "", 0.0
    if not is_right:
        raise UserError(
            f"line {number} is not <s>, </s>_s, </s>_n or overall with its number "
            "(<s> and overall above 0 and below 1, the others above 0)",
            file=path,
            remedy="copy the file that belongs to the lexicon, or remove it",
        )
    return key, value
