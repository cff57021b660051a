"""Stage `score_served`: word errors of a package that recognizes sets as a server does.

The workflow decodes utterances as they were cut, each as a whole. Who uses a package
sends it audio of any length, in which speech is looked for first; what comes of that is
known by doing it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from lhotse import MonoCut

from latflow.corpus.ctm import TimedWord, ctm_line
from latflow.corpus.manifests import load_samples, read_cuts
from latflow.decode.options import SegmentationOptions
from latflow.files import atomic_output
from latflow.logs import progress
from latflow.parallel import in_order, worker_pool
from latflow.scoring.options import ScoreOptions
from latflow.scoring.score import write_scores
from latflow.scoring.transcripts import read_references
from latflow.serving.options import SessionOptions
from latflow.serving.package import Model
from latflow.serving.results import Final, Segment
from latflow.serving.session import Session

log = logging.getLogger(__name__)


def score_served(
    package_dir: Path,
    cuts: Path,
    out_dir: Path,
    *,
    options: ScoreOptions,
    seed: int,
    threads: int,
    features_dir: Path | None = None,
) -> None:
    """Recognize each utterance of a set as its own stream, and score the words.

    Segments are those of `latflow serve` and `latflow transcribe` with their defaults.

    Args:
        package_dir: the model package.
        cuts: `cuts.jsonl.gz` of the set.
        out_dir: folder for `hyp.txt`, `hyp.ctm` (its confidences are posteriors, which
            the package has not calibrated yet), `wer.json`, `per_utterance.tsv`,
            `per_speaker.tsv` and `confusions.tsv`, see `latflow.scoring.score`.
        options: section `score` of the recipe.
        seed: of the bootstrap's draws.
        threads: utterances at a time.
        features_dir: features of the set; see `read_references`.

    Raises:
        UserError: audio cannot be read, or there is no utterance.
    """
    references = read_references(cuts, features_dir)
    chosen = (cut for cut in read_cuts(cuts) if cut.id in references.words)
    model = Model.load(package_dir, trust_code=True)  # of this experiment
    listen = _Listener(replace(model, transcriber=replace(model.transcriber, curve=())))
    with worker_pool(threads) as pool:
        results = in_order(pool, listen, chosen, ahead=2 * threads)
        results = progress(results, "score served", total=len(references.words))
        recognized = _write_words(out_dir / "hyp.ctm", results)
    scales = {"lmwt": model.info.lmwt, "wip": model.info.wip}
    write_scores(out_dir, references, recognized, scales, options=options, seed=seed)


@dataclass(frozen=True)
class _Listener:
    """Recognizes utterances; may be called from many threads at once.

    Attributes:
        model: the package.
    """

    model: Model

    def __call__(self, cut: MonoCut) -> tuple[str, list[TimedWord]]:
        """Return the id of an utterance, and its words."""
        options = SessionOptions(
            sample_rate=int(cut.sampling_rate),
            partials=False,
            vad=SegmentationOptions(),
        )
        with Session(self.model, options, cut.id) as session:
            events = session.accept(load_samples(cut)) + session.finish()
        segments = [event.segment for event in events if isinstance(event, Final)]
        return cut.id, [word for each in segments for word in _words_of(cut.id, each)]


def _words_of(utterance: str, segment: Segment) -> Iterable[TimedWord]:
    """Return the words of a segment; log why a search that failed has none."""
    if segment.warning:
        log.warning("%s, %.2f s: %s", utterance, segment.start, segment.warning)
    return segment.best.words


def _write_words(
    ctm: Path, results: Iterable[tuple[str, list[TimedWord]]]
) -> dict[str, list[str]]:
    """Write words with times; return the words of each utterance."""
    texts: dict[str, list[str]] = {}
    with atomic_output(ctm) as temporary, temporary.open("w", encoding="utf-8") as out:
        for utterance, words in results:
            texts[utterance] = [word.word for word in words]
            out.writelines(map(ctm_line, words))
    return texts
