"""Stage `reestimate_lexicon`: pronunciations and silence counted in alignments.

A lexicon lists the pronunciations of a word; alignments of the training speech show how
often each is used, and where speakers pause. The stage counts both and rewrites the
language directory: `lexiconp.txt` with probabilities of pronunciations, and transducers
in which silence depends on the words around it (`latflow.lang.lexicon_fst`). Symbol
tables, phones and topology stay unchanged, so that models and alignments keep their
meaning.

With counts C, where v is the word before w and s is silence between words:

    P(p | w) = (C(w, p) + 1) / (C(w) + pronunciations of w), then over the largest
    P(s | w) = (C(w, s) + 2 P(s)) / (C(w) + 2)
    F(s | w) = (C(s, w) + 2) / (sum over occurrences of w of P(s | v) + 2)
    F(none | w)  likewise with 1 - P(s | v)

Source: Chen et al. 2015 (equations 2 to 6, lambda 2); Kaldi
`utils/dict_dir_add_pronprobs.sh`, `steps/get_prons.sh`.
"""

from __future__ import annotations

import logging
import shutil
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from latflow.align.word_times import Pronunciations, phone_segments, split_phones
from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.files import atomic_directory
from latflow.graphs.hclg import load_model
from latflow.kaldi.io import read_int_vectors
from latflow.lang.directory import Lang
from latflow.lang.lexicon import Lexicon, Pronunciation, write_lexicon, write_silence
from latflow.lang.lexicon_fst import write_transducers
from latflow.lang.phones import place_markers
from latflow.lang.silence import SilenceModel, WordSilence
from latflow.logs import progress

log = logging.getLogger(__name__)

_SMOOTHING = 2.0  # lambda of the paper
_START, _END = 0, 1  # entries of a sequence that stand for the edges of a sentence


def reestimate_lexicon(
    lang_dir: Path,
    alignments: Path,
    model_dir: Path,
    frames_dir: Path,
    out_dir: Path,
) -> None:
    """Write a language directory whose probabilities come from alignments.

    Args:
        lang_dir: the language directory that the alignments were made with.
        alignments: `ali.ark` of the training data.
        model_dir: folder of the system that aligned.
        frames_dir: the `FrameStore` of the training data, for its transcripts.

    Raises:
        UserError: nothing is aligned, or the lexicon has no optional silence.
    """
    lang = Lang.load(lang_dir)
    entries = [
        Pronunciation(word, phones, probability)
        for word, pronunciations in lang.lexicon.items()
        for probability, phones in pronunciations
    ]
    sequences = _count(lang, entries, alignments, model_dir, frames_dir)
    if not sequences.num_sentences:
        raise UserError(
            "no utterance is aligned with pronunciations of the lexicon",
            file=alignments,
            remedy="align the training data with a model of this lang directory",
        )
    tokens, is_silence = sequences.arrays()
    counts = np.bincount(tokens, minlength=len(entries) + 2)[2:]
    entries = estimate_pronunciations(entries, counts)
    model = estimate_silence(tokens, is_silence, len(entries))
    log.info(
        "%d utterances, %d words: silence follows %.1f %% of the words",
        sequences.num_sentences,
        int(counts.sum()),
        100 * model.overall,
    )
    with atomic_directory(out_dir) as folder:
        shutil.copytree(lang.folder, folder, dirs_exist_ok=True)
        lexicon = Lexicon(tuple(entries))
        write_lexicon(lexicon, folder / "lexiconp.txt", with_probabilities=True)
        write_silence(folder, entries, model)
        _write_transducers(folder, lang, entries, model)


def estimate_pronunciations(
    entries: Sequence[Pronunciation], counts: np.ndarray
) -> list[Pronunciation]:
    """Return pronunciations with probabilities from counts, the best of each word 1.

    Args:
        counts: [len(entries)], number of occurrences of each.
    """
    smoothed = np.asarray(counts, np.float64) + 1.0
    largest: dict[str, float] = {}
    for entry, count in zip(entries, smoothed.tolist(), strict=True):
        largest[entry.word] = max(largest.get(entry.word, 0.0), count)
    return [
        replace(entry, probability=count / largest[entry.word])
        for entry, count in zip(entries, smoothed.tolist(), strict=True)
    ]


def estimate_silence(
    tokens: np.ndarray, is_silence: np.ndarray, num_entries: int
) -> SilenceModel:
    """Estimate silence around each pronunciation.

    Args:
        tokens: int32[N], sentences below each other: 0, then number of the entry + 2 of
            each word, then 1.
        is_silence: bool[N], true where silence follows a token; false behind a 1.
    """
    size = num_entries + 2
    before = np.flatnonzero(tokens != _END)  # each of these is followed by a token
    left, right = tokens[before], tokens[before + 1]
    silent = is_silence[before].astype(np.float64)

    def sums(labels: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(labels, weights, minlength=size)

    overall = (silent.sum() + 1.0) / (len(silent) + 2.0)
    after = (sums(left, silent) + _SMOOTHING * overall) / (sums(left) + _SMOOTHING)
    expected = after[left]
    correction_silence = (sums(right, silent) + _SMOOTHING) / (
        sums(right, expected) + _SMOOTHING
    )
    correction_none = (sums(right, 1.0 - silent) + _SMOOTHING) / (
        sums(right, 1.0 - expected) + _SMOOTHING
    )
    columns = np.stack([after, correction_silence, correction_none], axis=1)
    return SilenceModel(
        overall=float(overall),
        at_start=float(after[_START]),
        end_correction_silence=float(correction_silence[_END]),
        end_correction_none=float(correction_none[_END]),
        words=tuple(WordSilence(*row) for row in columns[2:].tolist()),
    )


@dataclass
class _Sequences:
    """Words and silences of all sentences, five bytes a word."""

    tokens: array[int] = field(default_factory=lambda: array("i"))
    silent: bytearray = field(default_factory=bytearray)
    num_sentences: int = 0

    def add(self, entries: Sequence[int], silent: Sequence[bool]) -> None:
        """Take a sentence in.

        Args:
            entries: number of each word's pronunciation.
            silent: true where silence stands before the first word and after each.
        """
        self.tokens.extend([_START, *(entry + 2 for entry in entries), _END])
        self.silent.extend([*silent, False])
        self.num_sentences += 1

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens, int32[N], and a mark where silence follows, bool[N]."""
        return np.array(self.tokens, np.int32), np.array(self.silent, bool)


def _count(
    lang: Lang,
    entries: Sequence[Pronunciation],
    alignments: Path,
    model_dir: Path,
    frames_dir: Path,
) -> _Sequences:
    """Find the pronunciation of each word, and the silences, in all alignments."""
    number = {(entry.word, entry.phones): k for k, entry in enumerate(entries)}
    pronunciations = Pronunciations(
        {
            word: [phones for _, phones in spoken]
            for word, spoken in lang.lexicon.items()
        },
        [lang.phones[lang.optional_silence]],
        is_position_dependent=lang.word_boundary is not None,
    )
    _, transitions = load_model(model_dir)
    store = FrameStore.load(frames_dir)
    texts = dict(zip(store.utt_ids, store.texts, strict=True))
    sequences, num_strange = _Sequences(), 0
    for utterance, ids in progress(
        read_int_vectors(alignments), "count pronunciations", total=len(texts)
    ):
        words = [lang.words[i] for i in lang.words_to_ids(texts.get(utterance, ""))]
        phones, _, _ = phone_segments(ids, transitions)
        names = [lang.base_phone(phone) for phone in phones]
        spans = split_phones(
            [lang.phones[phone] for phone in phones], words, pronunciations
        )
        if not words or spans is None:
            num_strange += 1
            continue
        spoken = [
            number[word, tuple(names[first:last])]
            for word, (first, last) in zip(words, spans, strict=True)
        ]
        edges = [0, *(end for _, end in spans)]
        begins = [*(first for first, _ in spans), len(names)]
        silent = [b > e for e, b in zip(edges, begins, strict=True)]
        sequences.add(spoken, silent)
    if num_strange:
        log.warning(
            "%d alignments do not spell the words of their transcripts", num_strange
        )
    return sequences


def _write_transducers(
    folder: Path, lang: Lang, entries: Sequence[Pronunciation], model: SilenceModel
) -> None:
    """Write L.fst for training, and L_disambig.fst for decoding graphs."""
    if lang.word_boundary is not None:
        entries = [replace(e, phones=place_markers(e.phones)) for e in entries]
    write_transducers(
        folder,
        entries,
        (lang.phone_ids, lang.word_ids),
        silence_phone=lang.phones[lang.optional_silence],
        silence=model,
        silence_disambig=lang.phones[max(lang.disambig_phones)],
    )
