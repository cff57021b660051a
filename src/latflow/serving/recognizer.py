"""A model package in Python: transcribe, stream and align with it; score what comes.

    import latflow

    recognizer = latflow.load("results/mine/package/chain")
    print(recognizer.transcribe("a.wav").text)

It is made of what the commands are made of; see docs/python.md.
"""

from __future__ import annotations

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


def load(
    path: str | Path, *, device: str = "cpu", trust_code: bool = False
) -> Recognizer:
    """Load a model package; arguments and errors as of `Model.load`.

    One that only aligns is loaded, too.
    """
    if read_info(path).lmwt is None:
        return Recognizer(GmmPackage.load(path, trust_code=trust_code))
    return Recognizer(Model.load(path, device=device, trust_code=trust_code))


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
            Words with their phones, silences between them. Times are those of frames,
            or as the package has learnt to set them.

        Raises:
            UserError: a word has no pronunciation, the file is damaged, the text does
                not fit the audio, or the package was trained by CTC.
        """
        package = self._package
        path = Path(lexicon or package.folder / "lang/lexiconp.txt")
        if path not in self._aligners:
            refuse_ctc(package.info, package.folder)
            if isinstance(package, Model) and package.info.kind == "gmm":
                package = GmmPackage.load(package.folder, trust_code=True)  # it was
            self._aligners[path] = RecordingAligner(package, path)
        return self._aligners[path].align(Path(audio), text)


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
