"""One recording aligned with a package, without a workflow or a folder of results."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from latflow.align.export import export_alignments
from latflow.align.options import ExportFormat, ExportOptions
from latflow.align.timing import AlignedSet
from latflow.corpus.manifests import read_cuts, text_of
from latflow.corpus.options import FolderSource
from latflow.errors import UserError
from latflow.gmm.options import AlignAdaptedOptions
from latflow.lang.options import LangOptions
from latflow.lang.vocabulary import prepare_corpus, read_vocabulary
from latflow.ledger import read_ledger
from latflow.serving.aligning import AlignmentTask, align_package

_TEXTS = (".txt", ".lab", ".TextGrid")


def align_recording(
    audio: Path,
    text: Path,
    lexicon: Path,
    package: Path,
    *,
    form: ExportFormat = "textgrid",
    search: AlignAdaptedOptions | None = None,
    trust_code: bool = False,
) -> tuple[str, list[str]]:
    """Align one recording with a package; times are those of frames.

    Boundaries aren't refined: that takes a corpus to learn from.

    Args:
        audio: the recording.
        text: its transcript, `.txt` or `.lab`, or a TextGrid whose labelled intervals
            are utterances of one speaker.
        lexicon: pronunciations in the phones of the package.
        package: folder of the package.
        form: that the alignment is written in, of those with a file a recording.
        search: beams; None for the usual ones.
        trust_code: whether code may run that the package names.

    Returns:
        (the alignment as text; words without pronunciation, which are noise).

    Raises:
        UserError: a file is missing or faulty, or the text does not fit the audio.
    """
    for path in (audio, text):
        if not path.is_file():
            raise UserError("no such file", file=path, remedy="check the path")
    if text.suffix not in _TEXTS:
        raise UserError(
            "a transcript ends in .txt, .lab or .TextGrid",
            file=text,
            remedy="rename it",
        )
    with tempfile.TemporaryDirectory(prefix="latflow-align-") as scratch:
        folder = Path(scratch)
        cuts = _prepare(audio, text, lexicon, folder)
        task = AlignmentTask(
            package_dir=package,
            cuts=cuts,
            lexicon=lexicon,
            lang=LangOptions(),
            threads=1,
            max_skipped_fraction=1.0,  # one line below says why
            trust_code=trust_code,
        )
        made = folder / "align"
        align_package(task, made, options=search or AlignAdaptedOptions())
        failed = [
            e for e in read_ledger(made / "ledger.jsonl") if e.action == "skipped"
        ]
        if failed:
            raise UserError(
                f"can't be aligned with {text}: {failed[0].reason}",
                file=audio,
                remedy="check that the text is what is said there",
            )
        export_alignments(
            AlignedSet(
                alignments=made / "ali.ark",
                statistics=made / "statistics.json",
                cuts=cuts,
                lang_dir=made / "lang",
                model_dir=package / "model",
            ),
            folder / "out",
            options=ExportOptions(formats=(form,)),
            log_likes_dir=made / "log_likes",
        )
        (written,) = (p for p in (folder / "out" / form).rglob("*") if p.is_file())
        known = read_vocabulary(lexicon)
        words = {word for cut in read_cuts(cuts) for word in text_of(cut).split()}
        return written.read_text(encoding="utf-8"), sorted(words - known)


def _prepare(audio: Path, text: Path, lexicon: Path, folder: Path) -> Path:
    """Write the manifests of a recording; return the path of its cuts."""
    corpus = folder / "recording"
    corpus.mkdir()
    (corpus / audio.name).symlink_to(os.path.abspath(audio))
    shutil.copyfile(text, corpus / f"{audio.stem}{text.suffix}")
    try:
        prepare_corpus(
            FolderSource(path=str(corpus), speaker="single"),
            "one",
            folder / "corpus",
            seed=0,
            threads=1,
            max_skipped_fraction=0.0,
            vocabulary=lexicon,
        )
    except UserError as error:
        if error.file is None or not error.file.startswith(str(corpus)):
            raise
        raise UserError(
            error.what.replace(f"{corpus}{os.sep}", ""),
            file=audio,
            remedy=f"check the recording, and {text}",
        ) from None
    return folder / "corpus/cuts.jsonl.gz"
