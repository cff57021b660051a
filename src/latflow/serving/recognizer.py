"""A model package in Python: transcribe, stream and align with it; score what comes.

    import latflow

    recognizer = latflow.load("results/mine/package/chain")
    print(recognizer.transcribe("a.wav").text)

It is made of what the commands are made of; see docs/python.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from lhotse import AudioSource, MonoCut

from latflow.align.aligner import AlignmentFailure
from latflow.align.options import AlignOptions
from latflow.align.timing import AlignedUtterance, Timer
from latflow.corpus.audio import BadAudio, probe
from latflow.corpus.manifests import at_rate, samples_or_reason
from latflow.corpus.words import WordForms
from latflow.decode.options import TranscribeOptions
from latflow.errors import UserError
from latflow.features.frame_times import FrameTimes
from latflow.lang.directory import Lang
from latflow.lang.extension import extend_lang
from latflow.lang.options import LangOptions
from latflow.options import read_options
from latflow.scoring.options import ComparisonOptions
from latflow.serving.aligning import NetworkAligner
from latflow.serving.formats import Transcription
from latflow.serving.options import LanguageOptions, SessionOptions
from latflow.serving.package import Model
from latflow.serving.session import Session
from latflow.serving.transcribe import Fault, Recording, transcriptions


def load(
    path: str | Path, *, device: str = "cpu", trust_code: bool = False
) -> Recognizer:
    """Load a model package; arguments and errors as of `Model.load`."""
    return Recognizer(Model.load(path, device=device, trust_code=trust_code))


class Recognizer:
    """A model package at work; shared by all threads.

    Args:
        model: the package.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._aligners: dict[Path, _Aligner] = {}

    def transcribe(
        self, audio: str | Path, *, threads: int = 1, **options: Any
    ) -> Transcription:
        """Transcribe a recording.

        Args:
            audio: a file in any format that `latflow transcribe` takes.
            threads: segments recognized at a time.
            options: fields of `TranscribeOptions`, such as `channel`, `segmentation`,
                and of `LanguageOptions`, such as `grammar`, `phrases`.

        Raises:
            UserError: an option is unknown or out of range, or the file is damaged.
        """
        own = {k: v for k, v in options.items() if k in LanguageOptions.model_fields}
        others = {key: value for key, value in options.items() if key not in own}
        given = read_options(TranscribeOptions, others)
        path = Path(audio)
        recordings = [Recording(path, path.stem)]
        (result,) = transcriptions(
            self.model,
            recordings,
            options=given,
            language=read_options(LanguageOptions, own),
            threads=threads,
        )
        if isinstance(result, Fault):
            raise UserError(result.reason, remedy=result.remedy)
        return result

    def stream(self, **options: Any) -> Session:
        """Return a session that recognizes while samples come; close it in the end.

        Args:
            options: fields of `SessionOptions`, such as `sample_rate`, `phrases`.

        Raises:
            UserError: an option is unknown, or does not fit the model.
        """
        return Session(self.model, read_options(SessionOptions, options))

    def align(
        self, audio: str | Path, text: str, *, lexicon: str | Path | None = None
    ) -> AlignedUtterance:
        """Find the times of the words and phones of a recording.

        Args:
            audio: the file; its first channel is taken.
            text: what is said.
            lexicon: of its words, with the phones of the package; None for that of the
                package.

        Returns:
            Words with their phones, silences between them. Times are those of frames.

        Raises:
            UserError: a word has no pronunciation, the file is damaged, the text does
                not fit the audio, or the package was trained by CTC.
        """
        own = self.model.folder / "lang/lexiconp.txt"
        path = Path(own if lexicon is None else lexicon)
        if path not in self._aligners:
            self._aligners[path] = _Aligner(self.model, path)
        return self._aligners[path].align(Path(audio), text)


class _Aligner:
    """Aligns recordings with a network.

    Args:
        model: the package.
        lexicon: of the words.
    """

    def __init__(self, model: Model, lexicon: Path) -> None:
        self._model, self._lexicon = model, lexicon
        with TemporaryDirectory() as scratch:
            folder = Path(scratch, "lang")
            # Needed are the words of texts, which come later.
            extend_lang(
                model.folder / "lang",
                lexicon,
                folder,
                options=LangOptions(),
                needed=(),
            )
            self._lang = Lang.load(folder)
            self._words = frozenset(self._lang.lexicon)  # read while it is there
            self._network = NetworkAligner(model, self._lang, AlignOptions())
        middle = FrameTimes.of(model.info.front_end, model.sample_rate).first_middle
        shift = model.frame_shift * model.subsampling
        self._timer = Timer(
            self._lang,
            self._network.transitions,
            frame_shift=shift,
            offset=middle - shift / 2,
        )

    def align(self, audio: Path, text: str) -> AlignedUtterance:
        """Return words and phones with times; see `Recognizer.align`."""
        words = WordForms(self._words).words(text)
        if unknown := [word for word in words if word not in self._words]:
            raise UserError(
                f"no pronunciation of {', '.join(dict.fromkeys(unknown))}",
                file=self._lexicon,
                remedy="name a lexicon that has one, with the package's phones",
            )
        graph = self._network.graph(" ".join(words))
        if isinstance(graph, str):
            raise self._failed(audio, graph)
        samples = self._samples(audio)
        scores = self._network.scores(samples)
        if isinstance(scores, str):
            raise self._failed(audio, scores)
        found = self._network.aligner.align(graph, scores)
        if isinstance(found, AlignmentFailure):
            raise self._failed(audio, found.reason)
        duration = len(samples) / self._model.sample_rate
        ids, scores = found.transition_ids, found.frame_log_likes
        return self._timer.time(" ".join(words), ids, duration, scores)

    @staticmethod
    def _failed(audio: Path, reason: str) -> UserError:
        """Return the error for a text that cannot be aligned."""
        remedy = "compare the text with what is said"
        return UserError(f"cannot be aligned: {reason}", file=audio, remedy=remedy)

    def _samples(self, path: Path) -> np.ndarray:
        """Return the samples of a file at the model's rate.

        Raises:
            UserError: it is damaged.
        """
        source = AudioSource("file", [0], str(path))
        try:
            cut = probe(path.stem, source, verify=False).recording.to_cut()
        except BadAudio as fault:
            raise UserError(fault.reason, remedy=fault.remedy) from None
        one = cast("MonoCut", cut)
        (cut,) = at_rate([one], self._model.sample_rate, may_resample=True)
        samples = samples_or_reason(cut, [0])
        if isinstance(samples, str):
            raise UserError(samples, file=path, remedy="restore the file")
        return samples[0]


def score(references: Mapping[str, str], hypotheses: Mapping[str, str]) -> Any:
    """Return the word errors of utterances together, as the workflow counts them.

    Args:
        references: transcript of each utterance.
        hypotheses: recognized words; a reference without one counts as all deleted.

    Returns:
        `latflow.lattice.edit_distance.ErrorCounts`: `wer` in per cent, `words`, `ins`,
        `del_`, `sub`, `errors`.

    Raises:
        UserError: a hypothesis has no reference.
    """
    from latflow.scoring.results import score_utterances, totals

    return totals(
        score_utterances(
            {name: text.split() for name, text in references.items()},
            {name: text.split() for name, text in hypotheses.items()},
            dict.fromkeys(references, ""),
            options=ComparisonOptions(),
        )
    )
