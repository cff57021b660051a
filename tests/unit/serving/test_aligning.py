"""A corpus aligned by a package, of a GMM system and of a network, and exported."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import soundfile
import torch
from fixtures.pretended_device import pretended_device
from fixtures.serving_package import LEXICON, MFCC, RATE

from latflow.align.aligner import Aligner
from latflow.align.corpus import AlignmentArchive, LogLikes
from latflow.align.export import export_alignments
from latflow.align.options import ExportOptions
from latflow.align.timing import AlignedSet
from latflow.cli.main import main
from latflow.corpus.options import FolderSource
from latflow.corpus.prepare import prepare_corpus
from latflow.corpus.textgrid import read_tiers
from latflow.errors import UserError
from latflow.features.cmvn_options import SpeakerCmvn
from latflow.features.extract import extract_features
from latflow.features.normalization import compute_cmvn
from latflow.features.options import ExtractionOptions
from latflow.files import file_digest
from latflow.gmm.alignment import align_gmm
from latflow.gmm.options import AlignAdaptedOptions
from latflow.graphs.options import GraphOptions
from latflow.lang.options import LangOptions
from latflow.lang.vocabulary import prepare_corpus as prepare_spelled
from latflow.ledger import read_ledger
from latflow.nnet.utterances import UtteranceBatches
from latflow.parts import SetJob
from latflow.serving.aligning import AlignmentTask, align_package
from latflow.serving.options import TritonOptions
from latflow.serving.package import Model
from latflow.serving.packaging import PackageFiles, PackageOptions, write_package
from latflow.serving.triton import write_repository


@pytest.fixture
def corpus(digits, tmp_path):
    """Two unheard utterances as a folder, prepared."""
    folder = tmp_path / "audio"
    folder.mkdir()
    for name in list(digits.audio)[:2]:
        shutil.copy(digits.audio[name], folder)
        (folder / f"{name}.txt").write_text(digits.texts[name])
    prepare(tmp_path)
    return tmp_path


def prepare(folder, **how):
    source = FolderSource(path=str(folder / "audio"), **how)
    limits = {"threads": 1, "max_skipped_fraction": 0.0}
    prepare_corpus(source, "train", folder / "corpus", seed=1, **limits)


def align(package, digits, folder, lexicon=None, max_skipped_fraction=0.0):
    align_package(
        AlignmentTask(
            package_dir=package,
            cuts=folder / "corpus/cuts.jsonl.gz",
            lexicon=lexicon or digits.root / "lexicon.txt",
            lang=LangOptions(),
            threads=1,
            max_skipped_fraction=max_skipped_fraction,
        ),
        out_dir=folder / "ali",
        options=AlignAdaptedOptions(),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("system", "frame"), [("mono", 0.01), ("tdnnf", 0.03)])
def test_package_aligns_and_is_exported(corpus, digits, package, system, frame):
    if system == "mono":
        package = digits.package(corpus / "package", system="mono")
    align(package, digits, corpus)
    out = corpus / "out"
    export_alignments(
        AlignedSet(
            alignments=corpus / "ali/ali.ark",
            statistics=corpus / "ali/statistics.json",
            cuts=corpus / "corpus/cuts.jsonl.gz",
            lang_dir=corpus / "ali/lang",
            model_dir=package / "model",
        ),
        out_dir=out,
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


def test_a_device_scores_in_batches_what_the_processor_scores_alone(
    corpus, digits, package, monkeypatch
):
    spoilt = corpus / "audio/spoilt.wav"
    soundfile.write(spoilt, np.zeros(4000), 8000)
    spoilt.with_suffix(".txt").write_text("ONE")
    prepare(corpus)
    spoilt.write_bytes(b"no sound")
    sizes = []

    padded = UtteranceBatches.padded

    def watched(batches, numbers):
        sizes.append(len(numbers))
        return padded(batches, numbers)

    monkeypatch.setattr(UtteranceBatches, "padded", watched)
    found = {}
    with pretended_device() as device:
        for here in (torch.device("cpu"), device):
            monkeypatch.setattr(
                "latflow.serving.package.choose_device", lambda _, here=here: here
            )
            align(package, digits, corpus, max_skipped_fraction=0.5)
            ids = AlignmentArchive(corpus / "ali/ali.ark")
            reasons = [e.reason for e in read_ledger(corpus / "ali/ledger.jsonl")]
            found[here] = [ids.get(u) for u in list(digits.audio)[:2]], reasons
    (alone, why), (together, again) = found.values()
    assert sizes == [3]
    assert why == again
    assert "spoilt.wav: unreadable audio" in why[0]
    for expected, given in zip(alone, together, strict=True):
        np.testing.assert_array_equal(given, expected)


def test_a_device_is_of_a_network(corpus, digits, package, capsys):
    gmm = digits.package(corpus / "gmm", system="mono")
    words = [corpus / "audio", digits.root / "lexicon.txt", corpus / "out"]
    for more in ([], ["--model", gmm]):
        line = ["align", *words, "--device", "cpu", *more]
        assert main([str(word) for word in line]) == 1
        assert "--device is of a network, and none aligns" in capsys.readouterr().err


def test_lexicon_with_phones_of_another_kind_is_refused(corpus, digits, package):
    (corpus / "other.txt").write_text("ONE w ah n\n")
    with pytest.raises(UserError, match="phone w is not among those of the model"):
        align(package, digits, corpus, corpus / "other.txt")


def test_adapted_package_aligns_as_its_system_does(corpus, adapted):
    """Two passes over all speech of a speaker, on frames as the recipe's."""
    prepare(corpus, speaker="single")
    cmvn = SpeakerCmvn()
    package = adapted.package(corpus / "package", system="sat", cmvn=cmvn)
    align(package, adapted, corpus)
    extraction = ExtractionOptions(**MFCC.values(), sample_rate=RATE)
    limit = {"max_skipped_fraction": 0.0}
    extract_features(
        corpus / "corpus/cuts.jsonl.gz", corpus / "feats", options=extraction,
        threads=1, **limit,
    )  # fmt: skip
    compute_cmvn(corpus / "feats", corpus / "frames", cmvn=cmvn)
    align_gmm(
        SetJob(
            frames_dir=corpus / "frames",
            lang_dir=adapted.root / "lang",
            model_dir=adapted.root / "gmm/sat",
            out_dir=corpus / "by_recipe",
            threads=1,
            **limit,
        ),
        options=AlignAdaptedOptions(),
        graph=GraphOptions(),
    )
    found, expected = (corpus / "ali", corpus / "by_recipe")
    for name in ("ali.ark", "trans.ark"):
        assert (found / name).read_bytes() == (expected / name).read_bytes()
    known = json.loads((found / "statistics.json").read_text())
    assert known["adaptation"]["num_frames"] > 0
    assert known["first_middle"] == pytest.approx(0.0125)
    assert (found / "features/ledger.jsonl").read_text() == ""


def test_adapted_package_recognizes_nothing(adapted, tmp_path, capsys):
    package = adapted.package(tmp_path / "package", system="sat")
    assert not (package / "graph").exists()
    said = "recognizes nothing: it adapts to speakers in two passes"
    with pytest.raises(UserError, match=said):
        Model.load(package)
    with pytest.raises(UserError, match=said):
        write_repository({"sat": package}, tmp_path / "out", options=TritonOptions())
    audio = str(next(iter(adapted.audio.values())))
    assert main(["transcribe", str(package), audio]) == 1
    assert main(["serve", str(package), "--port", "0"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert sum(said in line for line in told) == 2
    assert main(["model-info", str(package)]) == 0
    assert "it adapts to speakers" in capsys.readouterr().out


def test_a_system_that_recognizes_needs_a_graph(digits, tmp_path):
    options = PackageOptions(
        experiment="x", name="mono", kind="gmm", front_end=MFCC, sample_rate=RATE
    )
    mono, lang = digits.root / "gmm/mono", digits.root / "lang"
    with pytest.raises(UserError, match="no graph given"):
        write_package(
            PackageFiles(model_dir=mono, graph=None, lang_dir=lang, scales=None),
            out_dir=tmp_path / "out",
            options=options,
        )


@pytest.mark.parametrize(("trained", "self_loops"), [("lfmmi", 1.0), ("ce", 0.1)])
def test_self_loop_scale_is_of_the_training(
    corpus, digits, package, tmp_path, monkeypatch, trained, self_loops
):
    """The acoustic scale, which users may set, says nothing of the training."""
    other = shutil.copytree(package, tmp_path / "other")
    meta = other / "model/meta.json"
    known = json.loads(meta.read_text())
    if trained == "lfmmi":
        known["scores"] = "log_likelihoods"
    info = json.loads((other / "package.json").read_text())
    info["acoustic_scale"] = 0.5 if trained == "lfmmi" else 1.0
    meta.write_text(json.dumps(known))
    info["digests"]["model/meta.json"] = file_digest(meta)
    (other / "package.json").write_text(json.dumps(info))
    found = []

    class Watched(Aligner):
        def __init__(self, model, options, scales, **more):
            found.append((options.acoustic_scale, scales.self_loop_scale))
            super().__init__(model, options, scales, **more)

    monkeypatch.setattr("latflow.serving.aligning.Aligner", Watched)
    align(other, digits, corpus)
    assert found == [(info["acoustic_scale"], self_loops)]


def align_one(digits, package, folder, *further):
    name = next(iter(digits.audio))
    (folder / "one.lab").write_text(digits.texts[name])
    return main([
        "align-one", str(digits.audio[name]), str(folder / "one.lab"),
        str(digits.root / "lexicon.txt"), str(package), *map(str, further),
    ])  # fmt: skip


def test_one_recording_is_aligned_as_with_its_corpus(corpus, digits, package, capsys):
    align(package, digits, corpus)
    aligned = AlignedSet(
        alignments=corpus / "ali/ali.ark",
        statistics=corpus / "ali/statistics.json",
        cuts=corpus / "corpus/cuts.jsonl.gz",
        lang_dir=corpus / "ali/lang",
        model_dir=package / "model",
    )
    export_alignments(aligned, corpus / "out", options=ExportOptions())
    name = next(iter(digits.audio))
    expected = (corpus / f"out/textgrid/{name}.TextGrid").read_text()
    capsys.readouterr()
    assert align_one(digits, package, corpus) == 0
    assert capsys.readouterr().out == expected
    assert align_one(digits, package, corpus, corpus / "a.csv") == 0
    rows = (corpus / "a.csv").read_text().splitlines()
    words = [row.split(",")[2] for row in rows if ",words," in row]
    assert words == digits.texts[name].split()
    assert align_one(digits, package, corpus, corpus / "a.json", "--beam", 5) == 0
    assert json.loads((corpus / "a.json").read_text())["tiers"].keys() == {
        "words", "phones",
    }  # fmt: skip


def test_one_recording_that_cannot_be_aligned(corpus, digits, package, capsys):
    assert align_one(digits, package, corpus, corpus / "a.xyz") == 1
    assert "a form that is not known" in capsys.readouterr().err
    name = next(iter(digits.audio))
    word = digits.texts[name].split()[0]
    digits = dataclasses.replace(digits, texts={name: f"{word} " * 200})
    assert align_one(digits, package, corpus) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "cannot be aligned: too short" in said
    assert "compare the text with the recording" in said
    digits = dataclasses.replace(digits, texts={name: ""})
    assert align_one(digits, package, corpus) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "the transcript is empty - check the recording, and" in said
    assert "ledger" not in said  # no option of this command


def test_a_recording_of_any_name_is_tried_and_named(corpus, digits, package, capsys):
    name = next(iter(digits.audio))
    noise, rate = soundfile.read(digits.audio[name])
    renamed = corpus / "sound.raw"
    shutil.copy(digits.audio[name], renamed)
    named = dataclasses.replace(digits, audio={name: renamed})
    assert align_one(named, package, corpus, corpus / "a.csv") == 0
    noise[0] = np.nan
    for samples, hertz, what in (
        (noise, rate, "NaN"),
        (noise[1:], 1, "has 1 samples a second"),
        (noise[1:], 7919, "sample rate 7919 Hz cannot be resampled"),
    ):
        with renamed.open("wb") as stream:
            soundfile.write(stream, samples, hertz, "FLOAT", format="WAV")
        assert align_one(named, package, corpus) == 1
        said = capsys.readouterr().err.splitlines()[-1]
        assert f"error: {renamed}: " in said
        assert what in said
        assert "/latflow-align-" not in said


def test_a_lexicon_without_one_phone_of_the_model_is_refused(
    corpus, digits, package, capsys
):
    (corpus / "lexicon.txt").write_text("ONE w ah n\nTWO t uw\n")
    other = dataclasses.replace(digits, root=corpus)
    assert align_one(other, package, corpus) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "phone w is not among those of the model - use the model's phones" in said


def test_words_without_pronunciation_are_named(corpus, digits, package, capsys):
    name = next(iter(digits.audio))
    text = f"{digits.texts[name]} flabbergast"
    lexicon = (digits.root / "lexicon.txt").read_text()
    (corpus / "lexicon.txt").write_text(f"{lexicon}JUST JH AH S T\n")
    digits = dataclasses.replace(digits, texts={name: text}, root=corpus)
    assert align_one(digits, package, corpus, corpus / "a.TextGrid", "--short") == 0
    assert "the lexicon lacks them: FLABBERGAST\n" in capsys.readouterr().err


def test_words_with_phones_that_the_model_lacks_are_refused(
    corpus, digits, package, capsys
):
    """By a corpus as by one recording: noise would hide a lexicon of other phones."""
    name = next(iter(digits.audio))
    lexicon = (digits.root / "lexicon.txt").read_text()
    (corpus / "lexicon.txt").write_text(f"{lexicon}JUST JH AH S T\n")
    digits = dataclasses.replace(digits, texts={name: "just"}, root=corpus)
    assert align_one(digits, package, corpus) == 1
    refused = "lexicon.txt: JUST: phone JH is not among those of the model"
    assert refused in capsys.readouterr().err
    (corpus / f"audio/{name}.txt").write_text("JUST")
    prepare(corpus)
    with pytest.raises(UserError, match=refused):
        align(package, digits, corpus)


def test_speakers_are_aligned_by_their_dictionaries(corpus, digits):
    """As if each dictionary were alone; the package has no other phones."""
    package = digits.package(corpus / "package", system="mono")
    first, *_ = list(digits.audio)
    shutil.rmtree(corpus / "audio")
    for speaker in ("ann", "bob"):
        (corpus / "audio" / speaker).mkdir(parents=True)
        shutil.copy(digits.audio[first], corpus / f"audio/{speaker}/{speaker}.wav")
        (corpus / f"audio/{speaker}/{speaker}.txt").write_text(digits.texts[first])
    lines = [line.split(maxsplit=1) for line in LEXICON.splitlines()[:-1]]
    shuffled = [phones for _, phones in (*lines[1:], lines[0])]
    (corpus / "usual.txt").write_text(LEXICON)
    (corpus / "other.txt").write_text(
        "".join(f"{w} {p}\n" for (w, _), p in zip(lines, shuffled, strict=True))
    )
    (corpus / "both.yaml").write_text("default: usual.txt\nbob: other.txt\n")
    found = {}
    for name in ("usual.txt", "other.txt", "both.yaml"):
        prepare_spelled(
            FolderSource(path=str(corpus / "audio")),
            *("train", corpus / "corpus"),
            **{"seed": 1, "threads": 1, "max_skipped_fraction": 0.0},
            vocabulary=corpus / name,
        )
        align(package, digits, corpus, corpus / name)
        archive = AlignmentArchive(corpus / "ali/ali.ark")
        found[name] = {one: archive.get(f"{one}-{one}") for one in ("ann", "bob")}
    usual, other, both = found.values()
    assert (usual["ann"] != other["ann"]).any()
    np.testing.assert_array_equal(both["ann"], usual["ann"])
    np.testing.assert_array_equal(both["bob"], other["bob"])
    aligned = AlignedSet(
        alignments=corpus / "ali/ali.ark",
        statistics=corpus / "ali/statistics.json",
        cuts=corpus / "corpus/cuts.jsonl.gz",
        lang_dir=corpus / "ali/lang",
        model_dir=package / "model",
    )
    formats = ("textgrid", "csv", "ctm", "json", "mfa_json")
    export_alignments(
        aligned, out_dir=corpus / "out", options=ExportOptions(formats=formats)
    )
    words = read_tiers(corpus / "out/textgrid/bob-bob.TextGrid")[0]
    assert [i.text for i in words.intervals] == digits.texts[first].split()
    written = [p for p in (corpus / "out").rglob("*") if p.is_file()]
    assert len(written) >= 2 * 3 + 3
    assert not any("⧼" in p.read_text() for p in written)
