"""The stage `score_wer`: from lattices to word error rates.

`score` takes the words of a decoded set at the scales that were chosen on dev, and
compares them with the references. It writes, into one folder:

* `hyp.txt`: recognized words, Kaldi's text form;
* `hyp.ctm`: words with times and confidences; `hyp_phones.ctm`: phones with times;
* `wer.json`: counts, word error rate and its confidence interval;
* `per_utterance.tsv`, `per_speaker.tsv`, `confusions.tsv`;
* `lattices.json`, `lattices.tsv`: sizes and least word errors of the lattices, see
  `latflow.scoring.lattice_quality`.

An utterance that has a reference but no lattice counts as wholly deleted, and is named
in `wer.json`.

The words of a lattice are known by one of two decisions. `best_path` takes the path of
least cost, which has the fewest *sentence* errors to expect; `mbr` takes the words with
the fewest *word* errors to expect. Either way a word's confidence is its posterior at
its place in the lattice.

`recognize`, the stage `recognize_words`, writes the first two lines of these for a set
without references.

Source: Kaldi `latbin/lattice-mbr-decode.cc`, `steps/get_ctm_conf.sh`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from latflow.align.word_times import Pronunciations, phone_segments, split_phones
from latflow.corpus.ctm import TimedWord, ctm_line
from latflow.errors import UserError
from latflow.files import atomic_output, write_json
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.directory import Lang
from latflow.lattice.best_path import BestPath, Scales, best_paths, linear_paths
from latflow.lattice.determinize.pruned import TooLargeError, determinize
from latflow.lattice.io.archives import read_lattices
from latflow.lattice.lattice import CompactLattice, Lattice
from latflow.lattice.mbr import minimum_bayes_risk
from latflow.lattice.n_best import n_best
from latflow.lattice.path_sums import forward, forward_sums, scaled_arcs
from latflow.lattice.word_alignment import WordAligner
from latflow.logs import progress
from latflow.nnet.described import frame_subsampling
from latflow.parallel import in_order, worker_pool
from latflow.scoring import results
from latflow.scoring.calibration import Curve, calibrated
from latflow.scoring.lattice_quality import analyze_lattices
from latflow.scoring.options import ScoreOptions
from latflow.scoring.transcripts import (
    References,
    names_of,
    read_references,
    timed_words,
    write_text,
)
from latflow.scoring.tune import read_scales

log = logging.getLogger(__name__)

# Word sequences that cost this much more than the best have no say in confidences.
_BEAM = 6.0
_SOUGHT = 10  # word sequences, for one is chosen by `mbr` that is seldom the best


@dataclass(frozen=True, kw_only=True)
class ScoreJob:
    """A decoded set, whose words are wanted."""

    lattices: Path
    """`lattices.ark` of the set."""
    cuts: Path
    """`cuts.jsonl.gz` of the set: references and speakers."""
    lang_dir: Path
    """Language directory that the graph was made of."""
    model_dir: Path
    """Folder with the `final.mdl` that decoded."""
    scales: Path
    """`scales.json` with the chosen `lmwt` and `wip`."""
    out_dir: Path
    """Folder for the files named in the module's description."""
    threads: int = 1
    """Lattices worked on at a time."""
    features_dir: Path | None = None
    """Features of the set; see `read_references`."""

    @property
    def references(self) -> References:
        """The references of the set."""
        return read_references(self.cuts, self.features_dir)


def score(job: ScoreJob, *, options: ScoreOptions, seed: int) -> None:
    """Score what was recognized of a decoded set.

    Args:
        job: the set.
        options: section `score` of the recipe.
        seed: of the bootstrap's draws.

    Raises:
        UserError: there is no utterance to score; a lattice has no reference.
    """
    references, out_dir = job.references, job.out_dir
    recognized = _recognize(job, references, options.decision)
    chosen = read_scales(job.scales)
    write_scores(out_dir, references, recognized, chosen, options=options, seed=seed)
    analyze_lattices(
        job.lattices,
        references.words,
        job.lang_dir,
        job.scales,
        out_dir,
        options=options,
        threads=job.threads,
    )


def recognize(job: ScoreJob, *, options: ScoreOptions) -> None:
    """Write the words of a decoded set that has no references; see `score`.

    Raises:
        UserError: there is no utterance.
    """
    recognized = _recognize(job, job.references, options.decision)
    write_text(job.out_dir / "hyp.txt", recognized)


def _recognize(
    job: ScoreJob, references: References, decision: str
) -> dict[str, list[str]]:
    """Write words and phones with times; return the words of each utterance."""
    chosen = read_scales(job.scales)
    transcriber = Transcriber.load(
        job.lang_dir,
        job.model_dir,
        scales=Scales.from_lmwt(chosen["lmwt"], chosen["wip"]),
        frame_shift=references.frame_shift,
        decision=decision,
    )
    items = progress(read_lattices(job.lattices), "words", total=len(references.words))
    with worker_pool(job.threads) as pool:
        transcripts = in_order(pool, transcriber, items, ahead=2 * job.threads)
        return _write_times(job.out_dir, transcripts)


def write_scores(
    out_dir: Path,
    references: References,
    recognized: Mapping[str, list[str]],
    scales: Mapping[str, Any],
    *,
    options: ScoreOptions,
    seed: int,
) -> None:
    """Compare recognized words with the references; write the text and all tables.

    Args:
        out_dir: folder for the files, see the module's description.
        references: words and speakers.
        recognized: words of each utterance that has a lattice.
        scales: `lmwt` and `wip` that gave them.
        options: section `score` of the recipe.
        seed: of the bootstrap's draws.

    Raises:
        UserError: recognized words have no reference.
    """
    scores = results.score_utterances(
        references.words, recognized, references.speakers, options=options
    )
    missing = sorted(references.words.keys() - recognized.keys())
    if missing:
        log.warning(
            "%d of %d utterances have no lattice and count as deleted, first: %s",
            len(missing),
            len(scores),
            missing[0],
        )
    write_text(out_dir / "hyp.txt", recognized)
    results.write_tables(out_dir, scores, options.max_confusions)
    summary = {
        **results.summary(scores, options=options.bootstrap, seed=seed),
        "lmwt": scales["lmwt"],
        "wip": scales["wip"],
        "alignment": options.alignment,
        "decision": options.decision,
        "without_lattice": missing,
    }
    write_json(out_dir / "wer.json", summary)


def _write_times(
    folder: Path, transcripts: Iterable[Transcript]
) -> dict[str, list[str]]:
    """Write `hyp.ctm` and `hyp_phones.ctm`; return the words of each utterance."""
    texts: dict[str, list[str]] = {}
    with ExitStack() as stack:
        names = ("hyp.ctm", "hyp_phones.ctm")
        parts = [stack.enter_context(atomic_output(folder / name)) for name in names]
        outs = [stack.enter_context(part.open("w", encoding="utf-8")) for part in parts]
        for transcript in transcripts:
            texts[transcript.utterance] = [word.word for word in transcript.words]
            timed = (transcript.words, transcript.phones)
            for out, labels in zip(outs, timed, strict=True):
                out.writelines(map(ctm_line, labels))
    return texts


@dataclass(frozen=True)
class Transcript:
    """Words and phones recognized in one utterance.

    Attributes:
        utterance: its id.
        words: with times in seconds and confidences.
        phones: of the best path, with times.
    """

    utterance: str
    words: Sequence[TimedWord]
    phones: Sequence[TimedWord]


@dataclass(frozen=True)
class Transcriber:
    """Recognizes words in lattices; may be called from many threads at once.

    Attributes:
        lang: the language directory.
        transitions: of the model that decoded.
        scales: of graph and acoustic costs, and the penalty of a word.
        frame_shift: seconds from frame to frame of the lattices.
        decision: `best_path` or `mbr`.
        curve: that confidences are changed by; posteriors if empty.
    """

    lang: Lang
    transitions: TransitionModel
    scales: Scales
    frame_shift: float
    decision: str
    curve: Curve = ()

    @classmethod
    def load(
        cls,
        lang_dir: str | Path,
        model_dir: str | Path,
        *,
        scales: Scales,
        frame_shift: float,
        decision: str,
    ) -> Transcriber:
        """Read the language directory and the model.

        Args:
            lang_dir: the language directory.
            model_dir: folder of the system; a network with frame subsampling has longer
                frames than its features.
            scales: see the class.
            frame_shift: of the features, seconds.
            decision: see the class.
        """
        transitions = TransitionModel.load(Path(model_dir, "final.mdl"))
        shift = frame_shift * frame_subsampling(model_dir)
        return cls(Lang.load(lang_dir), transitions, scales, shift, decision)

    def __call__(self, item: tuple[str, Lattice]) -> Transcript:
        """Recognize one utterance.

        Args:
            item: its id and lattice.

        Raises:
            UserError: the lattice has no path, or a word that the language directory
                has not.
        """
        utterance, lattice = item
        try:
            path = best_paths(lattice, [self.scales])[0]
            words, phones = self._of_path(utterance, path)
            sure = self._sure(
                utterance, self._sequences(utterance, lattice, path), words
            )
            return Transcript(utterance, sure, phones)
        except UserError as error:
            raise error.at(utterance=utterance) from None

    def alternatives(
        self, utterance: str, lattice: Lattice, n: int
    ) -> list[tuple[list[TimedWord], float]]:
        """Recognize one utterance in up to n ways.

        Args:
            utterance: its id.
            lattice: its lattice.
            n: the most word sequences wanted, >= 1.

        Returns:
            Words and the posterior of their sequence in the lattice. The first has the
            words of `__call__`, with confidences; the others follow by their posterior,
            no two with the same words.

        Raises:
            UserError: as `__call__`.
        """
        path = best_paths(lattice, [self.scales])[0]
        compact = self._sequences(utterance, lattice, path)
        words, _ = self._of_path(utterance, path)
        best = self._sure(utterance, compact, words)
        lm_scale, acoustic_scale, _ = self.scales
        scales = {"lm_scale": lm_scale, "acoustic_scale": acoustic_scale}
        total = forward(compact, **scales).log_like
        found = {}
        for path in n_best(compact, max(n + 1, _SOUGHT), **scales):
            cost = lm_scale * path.graph_cost + acoustic_scale * path.acoustic_cost
            text = tuple(names_of(path.words, self.lang.words))
            found[text] = path, float(np.exp(min(-cost - total, 0.0)))
        chosen = tuple(word.word for word in best)
        _, share = found.pop(chosen, (None, 0.0))
        others = list(found.values())[: n - 1]
        timed = [(self._of_path(utterance, path)[0], p) for path, p in others]
        return [(best, share), *timed]

    def no_words(self, lattice: Lattice) -> float:
        """Return the posterior probability that an utterance has no words.

        Args:
            lattice: its lattice.

        Raises:
            UserError: no path leads to a final state.
        """
        lm_scale, acoustic_scale, penalty = self.scales
        arcs = scaled_arcs(lattice, lm_scale=lm_scale, acoustic_scale=acoustic_scale)
        is_word = lattice.word != 0
        cost = arcs.cost + np.where(is_word, penalty, 0.0)
        total = forward_sums(arcs._replace(cost=cost)).log_like
        silent = arcs._replace(cost=np.where(is_word, np.inf, cost))
        try:
            return float(np.exp(min(forward_sums(silent).log_like - total, 0.0)))
        except UserError:  # each path has a word
            return 0.0

    def _sequences(
        self, utterance: str, lattice: Lattice, best: BestPath
    ) -> CompactLattice:
        """Return the likely word sequences; graph costs have the penalties in them.

        Of a lattice that is too large it is the best path alone, which is logged.
        """
        lm_scale, acoustic_scale, penalty = self.scales
        penalties = np.where(lattice.word != 0, penalty / lm_scale, 0.0)
        graph_cost = (lattice.graph_cost + penalties).astype(np.float32)
        try:
            return determinize(
                replace(lattice, graph_cost=graph_cost),
                beam=_BEAM,
                lm_scale=lm_scale,
                acoustic_scale=acoustic_scale,
                note=lambda line: log.warning("%s: %s", utterance, line),
            )
        except TooLargeError as error:
            log.warning("%s: %s: only its best path counts", utterance, error.what)
            return linear_paths([best], [best.graph_cost])

    def _sure(
        self, utterance: str, compact: CompactLattice, words: list[TimedWord]
    ) -> list[TimedWord]:
        """Return the words with confidences: those of the best path, or better ones."""
        lm_scale, acoustic_scale, _ = self.scales
        is_mbr = self.decision == "mbr"
        found = minimum_bayes_risk(
            self._aligner(compact) if is_mbr else compact,
            lm_scale=lm_scale,
            acoustic_scale=acoustic_scale,
            decode_mbr=is_mbr,
            words=None if is_mbr else [self.lang.word_ids[w.word] for w in words],
        )
        if is_mbr:
            words = timed_words(
                utterance, found, self.lang.words, frame_shift=self.frame_shift
            )
        sure = calibrated(self.curve, np.asarray(found.confidence))
        return [
            replace(word, confidence=float(confidence))
            for word, confidence in zip(words, sure, strict=True)
        ]

    @cached_property
    def _aligner(self) -> WordAligner:
        """Gives words exact times."""
        return WordAligner(self.transitions, self.lang)

    @cached_property
    def _pronunciations(self) -> Pronunciations:
        """Of the language directory's lexicon."""
        return Pronunciations(
            {w: [entry for _, entry in es] for w, es in self.lang.lexicon.items()},
            [self.lang.phones[self.lang.optional_silence]],
            is_position_dependent=self.lang.word_boundary is not None,
        )

    def _of_path(
        self, utterance: str, path: BestPath
    ) -> tuple[list[TimedWord], list[TimedWord]]:
        """Return the words and phones of a path, with times in seconds."""
        words = names_of(path.words, self.lang.words)
        phones, bounds, is_cut_off = phone_segments(
            path.transition_ids, self.transitions
        )
        names = [self.lang.phones[phone] for phone in phones]
        spans = split_phones(names, words, self._pronunciations, is_partial=is_cut_off)
        if spans is None:
            frames = list(
                zip(map(int, path.word_begin), map(int, path.word_end), strict=True)
            )
        else:
            frames = [(bounds[first], bounds[last]) for first, last in spans]
        spoken = list(pairwise(bounds))
        return (
            list(self._timed(utterance, words, frames)),
            list(self._timed(utterance, names, spoken)),
        )

    def _timed(
        self, utterance: str, labels: list[str], frames: list[tuple[int, int]]
    ) -> Iterator[TimedWord]:
        """Return the labels with their frames turned to seconds."""
        for label, (begin, end) in zip(labels, frames, strict=True):
            start = begin * self.frame_shift
            yield TimedWord(utterance, start, (end - begin) * self.frame_shift, label)
