"""A model package in Python: transcribe, stream and align with it; score what comes.

    import latflow

    recognizer = latflow.load("results/mine/package/chain")
    print(recognizer.transcribe("a.wav").text)

It is made of what the commands are made of; see docs/python.md.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from latflow.align.timing import AlignedUtterance
from latflow.decode.options import TranscribeOptions
from latflow.errors import UserError
from latflow.options import read_options
from latflow.scoring.options import ComparisonOptions
from latflow.serving.align_one import RecordingAligner
from latflow.serving.aligning import refuse_ctc
from latflow.serving.formats import Transcription
from latflow.serving.options import LanguageOptions, SessionOptions
from latflow.serving.package import (
    GmmPackage,
    Model,
)
from latflow.serving.package_info import (
    check_recognizing,
    read_info,
)
from latflow.serving.recording import Recording
from latflow.serving.session import Session
from latflow.serving.transcribe import Fault, transcriptions

_AUDIO = "audio is named by its file"
_TEXT = "give its words as one str, with blanks between them"
_TEXTS = "give a dict: the id of each utterance, and its words as one str"


def load(
    path: str | Path, *, device: str = "cpu", trust_code: bool = False
) -> Recognizer:
    """Load a model package; arguments and errors as of `Model.load`.

    One that only aligns is loaded, too.
    """
    folder = _path(path, "a package is named by its folder")
    if read_info(folder).lmwt is None:
        return Recognizer(GmmPackage.load(folder, trust_code=trust_code))
    return Recognizer(Model.load(folder, device=device, trust_code=trust_code))


class Recognizer:
    """A model package at work; shared by all threads.

    Args:
        model: the package.
    """

    def __init__(self, model: Model | GmmPackage) -> None:
        self._package = model
        self._aligners: dict[Path, RecordingAligner] = {}

    @property
    def model(self) -> Model:
        """The package, if it recognizes.

        Raises:
            UserError: it only aligns.
        """
        if isinstance(self._package, GmmPackage):
            check_recognizing(self._package.info, self._package.folder)
        return cast("Model", self._package)

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
        path = _path(audio, _AUDIO)
        if not isinstance(threads, int) or threads < 1:
            raise UserError(f"threads: {threads!r}", remedy="give a number from 1 on")
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
        self,
        audio: str | Path,
        text: str,
        *,
        lexicon: str | Path | None = None,
        channel: int = 1,
    ) -> AlignedUtterance:
        """Find the times of the words and phones of a recording.

        Args:
            audio: the file.
            text: the transcript.
            lexicon: of its words, with the phones of the package; None for that of the
                package.
            channel: of the file, from 1.

        Returns:
            Words with their phones, silences between them. Times are those of frames,
            or as the package has learnt to set them.

        Raises:
            UserError: a word has no pronunciation, the file is damaged, the channel is
                silent and another one is not, the text does not fit the audio, or the
                package was trained by CTC.
        """
        package = self._package
        recording = _path(audio, _AUDIO)
        if not isinstance(text, str):
            raise UserError(f"the text is a {_kind(text)}", remedy=_TEXT)
        path = package.folder / "lang/lexiconp.txt"
        if lexicon is not None:
            path = _path(lexicon, "a lexicon is named by its file")
        if path not in self._aligners:
            refuse_ctc(package.info, package.folder)
            if isinstance(package, Model) and package.info.kind == "gmm":
                package = GmmPackage.load(package.folder, trust_code=True)  # it was
            self._aligners[path] = RecordingAligner(package, path)
        return self._aligners[path].align(recording, text, channel)


def score(references: Mapping[str, str], hypotheses: Mapping[str, str]) -> Any:
    """Return the word errors of utterances together, as the workflow counts them.

    Args:
        references: transcript of each utterance; letters with marks are the same in
            any of Unicode's forms.
        hypotheses: recognized words; a reference without one counts as all deleted.

    Returns:
        `latflow.lattice.edit_distance.ErrorCounts`: `wer` in per cent, `words`, `ins`,
        `del_`, `sub`, `errors`.

    Raises:
        UserError: a hypothesis has no reference, or these are not texts by utterance.
    """
    from latflow.scoring.results import score_utterances, totals

    words = _words(references, "references")
    return totals(
        score_utterances(
            words,
            _words(hypotheses, "hypotheses"),
            dict.fromkeys(words, ""),
            options=ComparisonOptions(),
        )
    )


def _path(given: Any, named: str) -> Path:
    """Return a path, in whatever form it is given.

    Args:
        given: text, bytes or a path.
        named: how it is to be named, for the message.

    Raises:
        UserError: it is not a path.
    """
    if not isinstance(given, str | bytes | os.PathLike):
        raise UserError(f"{named}, not a {_kind(given)}", remedy="give its path")
    return Path(os.fsdecode(given))


def _words(texts: Any, which: str) -> dict[str, list[str]]:
    """Return the words of each text.

    Raises:
        UserError: these are not texts by utterance.
    """
    if not hasattr(texts, "items"):
        raise UserError(f"the {which} are a {_kind(texts)}", remedy=_TEXTS)
    found: dict[str, list[str]] = {}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise UserError(
                f"one of the {which} is a {_kind(text)}",
                utterance=str(name),
                remedy=_TEXTS,
            )
        found[name] = unicodedata.normalize("NFC", text).split()
    return found


def _kind(value: Any) -> str:
    """Return what a value is, for messages."""
    return type(value).__name__
