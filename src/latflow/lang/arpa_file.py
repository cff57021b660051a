r"""The n-grams of ARPA files, as tools and people write them.

ARPA format: `\data\`, lines `ngram N=COUNT`, for each N a section `\N-grams:` with
lines `log10(probability) WORDS [log10(back-off weight)]`, and `\end\`. A back-off
weight that is missing is 0. Files may be compressed (gzip, bzip2, xz). What tools write
beside that is read too: text before `\data\`, blank lines, comments after `#` and
blanks anywhere, keywords in any case, a weight of 0 at the longest n-grams,
probabilities a little above 1 by rounding, -inf. Words are put into Unicode's normal
form NFC.

Source: SRILM, ngram-format(5); Kaldi `lm/arpa-file-parser.cc`.
"""

from __future__ import annotations

import logging
import math
import re
import unicodedata
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NoReturn

from latflow.errors import UserError
from latflow.lang.lexicon import SENTENCE_START
from latflow.text_files import open_text, read_lines

log = logging.getLogger(__name__)

LOG_ZERO = -99.0  # stands for log10(0) in ARPA files
_MOST = 99.0  # log10 that no back-off weight reaches
_COMMENT = "#"
_COUNT = re.compile(r"ngram\s+(\d{1,9})\s*=\s*(\d{1,18})", re.IGNORECASE)
_SECTION = re.compile(r"\\(\d{1,9})-grams:", re.IGNORECASE)
_BLANK = " \t\r\f\v"
_BLANKS = re.compile(f"[{_BLANK}]+")
_ROUNDED = 1e-4  # log-probabilities up to here are 0, rounded by who wrote them
# Probabilities of words that add up to 1 less this, as natural logarithms to 1 within
# the other, were written as natural logarithms.
_LOST, _EXACT = 0.1, 0.001
_DATA, END = "\\data\\", "\\end\\"
_UNPACK = "unpack it, and name the ARPA file in it"
_KINDS = (
    (b"mmap lm http", "a binary model of KenLM", "give the ARPA file that it is of"),
    (
        b"Trie Language Model",
        "a binary model of Sphinx",
        "sphinx_lm_convert it to ARPA",
    ),
    (b"Darpa Trigram LM", "a binary model of Sphinx", "sphinx_lm_convert it to ARPA"),
    (b"iARPA", "an intermediate file of IRSTLM", "make it ARPA: compile-lm --text=yes"),
    (b"blmt", "a binary model of IRSTLM", "make it ARPA: compile-lm --text=yes"),
    (
        b"\\interpolated",
        "an interpolated model of VariKN, not a back-off model",
        "make it ARPA: arpa2arpa",
    ),
    (b"\xd6\xfd\xb2\x7e", "an FST of OpenFst", "print it as ARPA: ngramprint --ARPA"),
    (b"PK\x03\x04", "a zip archive", _UNPACK),
    (b"<!DOCTYPE", "a page of the web", "download the file itself"),
    (b"<html", "a page of the web", "download the file itself"),
    (b"7z\xbc\xaf", "a 7z archive", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", _UNPACK),
)
_REMEDY = "give an n-gram model in ARPA format (SRILM, KenLM, lmplz -o N --arpa)"


def arpa_entries(path: str | Path) -> Iterator[tuple[float, list[str], float]]:
    """Yield (log10 probability, words, log10 back-off or NaN) of each n-gram of a file.

    The n-grams come in the order of the file, short ones first.

    Raises:
        UserError: the file is missing, not ARPA, cut off, or its header's counts are
            not those of its body; a line is garbled.
    """
    return (entry for _, entry in ArpaFile(Path(path)))


Entry = tuple[float, list[str], float]


class ArpaFile:
    r"""The n-grams of a file, each with the number of its line; goes over it once.

    Attributes:
        counts: n-grams of each length, as in the header; empty before it is read.
        rounded: log-probabilities just above 0, taken as 0.
        impossible: probabilities or weights of 0 (-inf), taken as 10^-99.
        composed: lines with letters and marks apart, put into normal form NFC.
        comments: lines after `\data\` that begin with `#`, where no n-gram does.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.counts: list[int] = []
        self.rounded = self.impossible = self.composed = self.comments = 0

    def __iter__(self) -> Iterator[tuple[int, Entry]]:
        """Yield (line number, n-gram); log at the end what was changed."""
        _check_kind(self.file)
        lines = self._lines()
        self.counts, following = _header(lines, self.file)
        for length in range(1, len(self.counts) + 1):
            following = yield from self._section(lines, length, following)
        if following[1].lower() != END:
            number, line = following
            refuse(
                self.file, f"line {number}: {line} is a section that the header lacks"
            )
        rest = next(lines, None)
        if rest is not None:
            log.warning(
                "%s: what follows \\end\\ is not read (line %d)", self.file, rest[0]
            )
        self._log_changes()

    def _lines(self) -> Iterator[tuple[int, str]]:
        r"""Yield the lines from `\data\` on that are not blank or comments."""
        is_model = False
        for number, raw in read_lines(self.file):
            line = raw.strip(_BLANK)
            if is_model and line.startswith(_COMMENT):
                self.comments += 1
            elif line and (is_model := is_model or line.lower() == _DATA):
                yield number, line

    def _section(
        self, lines: Iterator[tuple[int, str]], length: int, head: tuple[int, str]
    ) -> Generator[tuple[int, Entry], None, tuple[int, str]]:
        """Yield the n-grams of one length; return the line behind them."""
        match = _SECTION.fullmatch(head[1])
        if match is None or int(match[1]) != length:
            refuse(self.file, f"line {head[0]}: \\{length}-grams: expected here")
        found, expected = 0, self.counts[length - 1]
        mass = [0.0, 0.0]
        for number, line in lines:
            if line[0] == "\\" and (line.lower() == END or _SECTION.fullmatch(line)):
                break
            found += 1
            entry = self._entry(line, number, length)
            if length == 1 and entry[1][0] != SENTENCE_START:
                mass = [mass[0] + 10.0 ** entry[0], mass[1] + math.exp(entry[0])]
            yield number, entry
        else:
            refuse(self.file, "the file is cut off: \\end\\ is missing")
        if found != expected:
            refuse(
                self.file,
                f"the header says {expected} {length}-grams, the body has {found}",
            )
        if mass[0] < 1.0 - _LOST and abs(mass[1] - 1.0) < _EXACT:
            refuse(
                self.file,
                f"its log-probabilities are natural logarithms: the words' exp(x) add "
                f"up to {mass[1]:.4f}, their 10^x to {mass[0]:.4f}",
                "divide all log-probabilities and back-off weights by ln 10 = 2.302585",
            )
        return number, line

    def _entry(self, line: str, number: int, length: int) -> Entry:
        """Take one n-gram line apart."""
        if not line.isascii() and not unicodedata.is_normalized("NFC", line):
            line = unicodedata.normalize("NFC", line)
            self.composed += 1
        # Blanks of other scripts are letters of a word, as for KenLM and SRILM.
        fields = line.split() if line.isascii() else _BLANKS.split(line)
        extra = len(fields) - length - 1
        if extra not in (0, 1):
            self._refuse(number, f"is no {length}-gram with its log-probability")
        try:
            log_prob = float(fields[0])
            backoff = float(fields[-1]) if extra else math.nan
        except ValueError:
            self._refuse(number, "a log-probability is not a number")
        if not LOG_ZERO <= log_prob <= 0.0 or (extra and not -99.0 <= backoff < _MOST):
            log_prob, backoff = self._mended(log_prob, backoff, number, extra)
        if extra and backoff != 0.0 and length == len(self.counts):
            self._refuse(
                number, "a back-off weight in the last section that the header lists"
            )
        return log_prob, fields[1:-1] if extra else fields[1:], backoff

    def _mended(
        self, log_prob: float, backoff: float, number: int, extra: int
    ) -> tuple[float, float]:
        """Return unusual numbers as what they stand for."""
        if 0.0 < log_prob <= _ROUNDED:
            self.rounded += 1
            log_prob = 0.0
        if log_prob == -math.inf or (extra and backoff == -math.inf):
            self.impossible += 1
            log_prob, backoff = max(log_prob, LOG_ZERO), max(backoff, LOG_ZERO)
        if not -math.inf < log_prob <= 0.0 or (extra and not math.isfinite(backoff)):
            self._refuse(number, "a log-probability is positive or not finite")
        if backoff >= _MOST:
            self._refuse(number, f"a back-off weight of 10^{backoff:g} is none")
        return log_prob, backoff

    def _refuse(self, number: int, what: str) -> NoReturn:
        refuse(self.file, f"line {number}{'' if what[:2] == 'is' else ':'} {what}")

    def _log_changes(self) -> None:
        """Log what was read as something else."""
        for count, what in (
            (self.rounded, "log-probabilities just above 0 are taken as 0"),
            (self.impossible, f"lines with -inf, which is taken as {LOG_ZERO:g}"),
            (self.composed, "lines put into Unicode's normal form NFC"),
            (self.comments, "comment lines passed over"),
        ):
            if count:
                log.info("%s: %d %s", self.file, count, what)


def _check_kind(file: Path) -> None:
    """Refuse a file whose first bytes show that it is of another kind."""
    with open_text(file) as stream:
        head = stream.read(64)
    for magic, kind, remedy in _KINDS:
        if magic in head[:24]:
            raise UserError(f"is {kind}", file=file, remedy=remedy)


def _header(
    lines: Iterator[tuple[int, str]], file: Path
) -> tuple[list[int], tuple[int, str]]:
    """Return the counts of the header, whose lines these are, and what follows it."""
    if next(lines, None) is None:
        refuse(file, "not an ARPA file: there is no line \\data\\")
    counts: list[int] = []
    for number, line in lines:
        match = _COUNT.fullmatch(line)
        if match is None:
            if not counts:
                refuse(file, f"line {number}: 'ngram 1=COUNT' expected here")
            return counts, (number, line)
        if int(match[1]) != len(counts) + 1:
            refuse(file, f"line {number}: 'ngram {len(counts) + 1}=' expected here")
        counts.append(int(match[2]))
    refuse(file, "the file ends in the header after \\data\\")


def refuse(file: Path, what: str, remedy: str = _REMEDY) -> NoReturn:
    """Raise the error about a file that is no ARPA file, or a faulty one."""
    raise UserError(what, file=file, remedy=remedy)
