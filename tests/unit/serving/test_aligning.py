"""A corpus aligned by a package, of a GMM system and of a network, and exported."""

import json
import shutil

import pytest

from latflow.align.corpus import AlignmentArchive, LogLikes
from latflow.align.export import export_alignments
from latflow.align.options import AlignSplitOptions, ExportOptions
from latflow.corpus.options import FolderSource
from latflow.corpus.prepare import prepare_corpus
from latflow.corpus.textgrid import read_tiers
from latflow.errors import UserError
from latflow.lang.options import LangOptions
from latflow.serving.aligning import align_package


@pytest.fixture
def corpus(digits, tmp_path):
    """Two unheard utterances as a folder, prepared."""
    folder = tmp_path / "audio"
    folder.mkdir()
    for name in list(digits.audio)[:2]:
        shutil.copy(digits.audio[name], folder)
        (folder / f"{name}.txt").write_text(digits.texts[name])
    how = {"seed": 1, "threads": 1, "max_skipped_fraction": 0.0}
    prepare_corpus(FolderSource(path=str(folder)), "train", tmp_path / "corpus", **how)
    return tmp_path


def align(package, digits, folder, lexicon=None):
    align_package(
        package,
        folder / "corpus/cuts.jsonl.gz",
        lexicon or digits.root / "lexicon.txt",
        folder / "ali",
        options=AlignSplitOptions(),
        lang=LangOptions(),
        threads=1,
        max_skipped_fraction=0.0,
    )


@pytest.mark.parametrize(("system", "frame"), [("mono", 0.01), ("tdnnf", 0.03)])
def test_package_aligns_and_is_exported(corpus, digits, package, system, frame):
    if system == "mono":
        package = digits.package(corpus / "package", system="mono")
    align(package, digits, corpus)
    out = corpus / "out"
    export_alignments(
        corpus / "ali/ali.ark",
        corpus / "ali/statistics.json",
        corpus / "corpus/cuts.jsonl.gz",
        corpus / "ali/lang",
        package / "model",
        out,
        options=ExportOptions(),
        log_likes_dir=corpus / "ali/log_likes",
    )
    known = json.loads((corpus / "ali/statistics.json").read_text())
    assert known["frame_shift"] == pytest.approx(frame)
    ids, scores = (
        AlignmentArchive(corpus / "ali/ali.ark"),
        LogLikes.load(corpus / "ali/log_likes"),
    )
    for name in list(digits.audio)[:2]:
        assert len(ids.get(name)) == len(scores.get(name))
        words = read_tiers(out / f"textgrid/{name}.TextGrid")[0]
        assert [i.text for i in words.intervals] == digits.texts[name].split()
        # 0.2 to 0.5 s of silence are around the speech.
        assert 0.1 < words.intervals[0].start < 0.7


def test_lexicon_with_phones_of_another_kind_is_refused(corpus, digits, package):
    (corpus / "other.txt").write_text("ONE w ah n\n")
    with pytest.raises(UserError, match="phone w is not among those of the model"):
        align(package, digits, corpus, corpus / "other.txt")
