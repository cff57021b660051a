"""The doctor: each ailment is found, and named with file and remedy."""

import gzip
import json
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from latflow.corpus.kaldi_dir import import_kaldi_dir
from latflow.corpus.options import CorpusOptions, GivenSource
from latflow.features.frame_times import FrameTimes
from latflow.features.options import FeatureOptions
from latflow.hmm.topology import Topology
from latflow.lang.options import LangOptions
from latflow.options import read_options
from latflow.workflow import doctor
from latflow.workflow.doctor import examine, examine_sources, render
from latflow.workflow.findings import Finding

RATE = 8000


SECTIONS = {"lang": LangOptions, "features": FeatureOptions, "corpus": CorpusOptions}


@pytest.fixture
def options():
    return lambda section, values: read_options(SECTIONS[section], values, section)


def put(folder, name, lines):
    (folder / name).write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def make(tmp_path):
    """Make a Kaldi directory: (utterance, speaker, seconds, words) each."""

    def directory(name, utterances, rate=RATE):
        folder = tmp_path / name
        folder.mkdir()
        for utt_id, _, seconds, _ in utterances:
            samples = np.ones(int(seconds * rate), np.int16)
            soundfile.write(folder / f"{utt_id}.flac", samples, rate)
        put(folder, "wav.scp", [f"{u} {u}.flac" for u, *_ in utterances])
        put(folder, "text", [f"{u} {w}" for u, _, _, w in utterances])
        put(folder, "utt2spk", [f"{u} {s}" for u, s, _, _ in utterances])
        return folder

    return directory


@pytest.fixture
def lexicon(tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_text("ONE W AH1 N\nTWO T UW1\nTWO T AH0\nFISH F IH1 SH\n")
    return path


@pytest.fixture
def prepared(make, tmp_path):
    """Cut manifests of a train and a test set."""

    def prepare(train, test, rates=(RATE, RATE)):
        cuts = {}
        for name, utterances, rate in (
            ("train", train, rates[0]),
            ("test", test, rates[1]),
        ):
            data = make(f"data_{name}", utterances, rate)
            import_kaldi_dir(
                data, tmp_path / name, checks=GivenSource(min_duration=0.0)
            )
            cuts[name] = tmp_path / name / "cuts.jsonl.gz"
        return cuts

    return prepare


TRAIN = [("a-1", "a", 1, "ONE TWO FISH"), ("a-2", "a", 1, "TWO")]
TEST = [("b-1", "b", 1, "TWO ONE")]


@pytest.fixture
def look(options, lexicon):
    def run(cuts, *, lang=None, features=None, **more):
        return examine(
            cuts,
            **{"lexicon": lexicon, **more},
            lang=options("lang", lang or {}),
            features=options("features", features or {}),
        )

    return run


def ailments(findings):
    """Findings but for notes."""
    return [finding for finding in findings if finding.severity != "note"]


def only(findings, text):
    """The one finding that says this."""
    found = [f for f in findings if text in str(f)]
    assert len(found) == 1, render(findings)
    assert found[0].file
    assert found[0].remedy
    return found[0]


def test_healthy_data_give_no_findings(prepared, look):
    assert look(prepared(TRAIN, TEST)) == []


def test_a_cut_without_supervision_is_a_finding(prepared, look):
    cuts = prepared(TRAIN, TEST)
    values = json.loads(gzip.decompress(cuts["test"].read_bytes()))
    line = json.dumps(values | {"supervisions": []}).encode()
    cuts["test"].write_bytes(gzip.compress(line))
    found = only(look(cuts), "b-1: the cut has no supervision")
    assert found.severity == "error"


def test_oov_words_are_counted_and_named(prepared, look):
    train = [*TRAIN, ("a-3", "a", 1, "CAT CAT DOG")]
    finding = only(look(prepared(train, TEST)), "without pronunciation")
    assert finding.severity == "warning"
    assert (
        "2 words without pronunciation, 3 of 7 running words (42.86 %)" in finding.what
    )
    assert "CAT (2), DOG (1)" in finding.what


def test_oov_words_of_a_test_set_are_a_note(prepared, look):
    findings = look(prepared(TRAIN, [("b-1", "b", 1, "CAT")]))
    assert only(findings, "test: 1 words").severity == "note"


def test_unknown_and_silence_words_are_not_oov(prepared, look):
    assert look(prepared(TRAIN, [("b-1", "b", 1, "<UNK> <SIL> ONE")])) == []


def test_too_short_utterances_are_found(prepared, look):
    # ONE TWO: 5 phones of 3 states need 15 frames; 0.16 s has 14, 0.17 s has 15.
    test = [("b-1", "b", 0.16, "ONE TWO"), ("b-2", "b", 0.17, "ONE TWO")]
    finding = only(look(prepared(TRAIN, test)), "shortest pronunciation")
    assert "test: 1 utterances" in finding.what
    assert "b-1 (14 of 15 frames)" in finding.what
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    ("seconds", "snip", "frames"),
    [(0.024, True, 0), (0.025, True, 1), (0.16, True, 14), (0.16, False, 16)],
)
def test_frames_are_counted_as_kaldi_does(options, seconds, snip, frames):
    times = FrameTimes.of(options("features", {"snip_edges": snip}))
    assert times.num_frames(seconds) == frames


def test_shared_speakers_and_utterances_are_told(prepared, look):
    findings = look(prepared(TRAIN, [("a-1", "a", 1, "ONE")]))
    assert only(findings, "1 speakers are in train and in test: a").severity == "note"
    assert only(findings, "1 utterance ids are in train").severity == "warning"


def test_phones_without_speech_are_told(prepared, look):
    finding = only(look(prepared(TEST, TRAIN)), "phones are in no word of train")
    assert "F, IH1, SH" in finding.what


def test_different_sample_rates_are_an_error(prepared, look):
    cuts = prepared(TRAIN, TEST, rates=(16000, 8000))
    errors = [f for f in look(cuts) if f.severity == "error"]
    assert len(errors) == 2
    assert "train: 2 at 16000 Hz" in errors[0].what
    assert "features.sample_rate" in errors[0].remedy


def test_sample_rate_of_features_is_compared(prepared, look):
    cuts = prepared(TRAIN, TEST, rates=(16000, 8000))
    findings = look(cuts, features={"sample_rate": 16000})
    assert only(findings, "test: 1 at 8000 Hz").severity == "warning"
    findings = look(cuts, features={"sample_rate": 8000})
    assert only(findings, "train: 2 at 16000 Hz").severity == "note"


@pytest.mark.parametrize(
    ("line", "message"),
    [("FOUR\n", "line 5: word FOUR has no pronunciation"), ("X #1\n", "reserved")],
)
def test_malformed_lexicon_is_an_error(prepared, look, lexicon, line, message):
    lexicon.write_text(lexicon.read_text() + line)
    assert only(look(prepared(TRAIN, TEST)), message).severity == "error"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("X N_B\n", "line 5: word X: phone N_B ends like a marker"),
        ("X N SIL\n", "line 5: word X: SIL is the name of a silence phone"),
        ("X N 0.5\n", "line 5: word X: phone 0.5 is a number"),
        ("<s> N\n", "line 5: <s> is a reserved symbol"),
    ],
)
def test_a_lexicon_that_make_lang_refuses_is_an_error(
    prepared, look, lexicon, line, message
):
    lexicon.write_text(lexicon.read_text() + line)
    assert only(look(prepared(TRAIN, TEST)), message).severity == "error"


def test_the_unknown_word_of_the_lexicon_is_not_oov(make, look, lexicon, prepared):
    lexicon.write_text(lexicon.read_text() + "<unk> spn\n!SIL sil\n")
    train = [("u1", "s1", 2.0, "ONE <unk> !SIL TWO FISH <UNK>")]
    findings = look(prepared(train, TEST))
    assert "1 words without pronunciation" in only(findings, "train: 1 words").what


def test_missing_lexicon_is_an_error(prepared, look, tmp_path):
    path = tmp_path / "librispeech-lexicon.txt"
    finding = only(look(prepared(TRAIN, TEST), lexicon=path), "no such file")
    assert "OpenSLR resource 11" in finding.remedy


def test_phones_that_the_configuration_does_not_list(prepared, look):
    lang = {"strip_stress": True, "nonsilence_phones": ["W", "AH", "N", "T UW", "F IH"]}
    finding = only(look(prepared(TRAIN, TEST), lang=lang), "unknown phone")
    assert finding.severity == "error"
    assert finding.what == "line 4: word FISH: unknown phone SH"


def test_phones_without_topology(prepared, look, tmp_path):
    folder = tmp_path / "lang"
    folder.mkdir()
    phones = ["<eps>", "SIL", "W_B", "AH_I", "N_E", "T_B", "UW_E", "F_B", "IH_I"]
    put(folder, "phones.txt", [f"{phone} {i}" for i, phone in enumerate(phones)])
    Topology.standard([2, 3, 4, 5, 6, 7], [1]).save(folder / "topo")
    cuts = prepared(TRAIN, TEST)
    findings = look(cuts, lang={"strip_stress": True}, lang_dir=folder)
    finding = only(findings, "without topology")
    assert finding.what.endswith("IH, SH")
    assert finding.severity == "error"


@pytest.mark.parametrize(
    ("free", "severity"), [(10, "error"), (60_000, "warning"), (10**9, "note")]
)
def test_disk_space(tmp_path, monkeypatch, free, severity):
    usage = SimpleNamespace(free=free)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    found = doctor.examine_disk(55_000, tmp_path / "results/new")
    assert found.severity == severity
    assert "about 55 kB" in found.what


def test_unreadable_manifest_is_an_error(prepared, look, tmp_path):
    cuts = {**prepared(TRAIN, TEST), "dev": tmp_path / "none.jsonl.gz"}
    assert only(look(cuts), "none.jsonl.gz").severity == "error"


@pytest.fixture
def look_before(options, lexicon):
    def run(train, test, **more):
        corpus = options(
            "corpus",
            {
                "train": {"type": "kaldi", "path": str(train), **more},
                "test": {"test": {"type": "kaldi", "path": str(test)}},
            },
        )
        return examine_sources(corpus, lexicon=lexicon, lang=options("lang", {}),
                               features=options("features", {}))  # fmt: skip

    return run


def test_healthy_sources_give_nothing(make, look_before):
    assert ailments(look_before(make("train", TRAIN), make("test", TEST))) == []


def test_ailments_of_kaldi_directories(make, look_before):
    train, test = make("train", TRAIN), make("test", TEST)
    put(train, "text", ["a-1 ONE CAT", "a-2", "zz ONE"])
    put(train, "utt2spk", ["a-1 a", "yy y"])
    (train / "a-2.flac").unlink()
    (train / "a-1.flac").write_bytes(b"")
    findings = look_before(train, test)
    for text in (
        "unknown utterance: it is not in wav.scp (2): zz, yy",
        "the transcript is empty (1): a-2",
        "a-2.flac does not exist (1): a-2",
        "a-1.flac is empty (0 bytes) (1): a-1",
    ):
        assert only(findings, text).severity == "error"
    assert only(findings, "CAT (1)").severity == "warning"


def test_commands_are_told_apart(make, look_before):
    train, test = make("train", TRAIN), make("test", TEST)
    put(train, "wav.scp", ["a-1 a-1.flac", "a-2 cat a-2.flac |"])
    assert only(look_before(train, test), "runs a command").severity == "error"
    assert ailments(look_before(train, test, allow_commands=True)) == []


def test_missing_sources_are_errors(look_before, make, tmp_path):
    findings = look_before(tmp_path / "none", make("test", TEST))
    assert only(findings, "no such folder").severity == "error"


def test_other_kinds_of_sources(options, lexicon, tmp_path, make):
    import_kaldi_dir(make("data", TRAIN), tmp_path / "m")
    manifests = {
        "type": "manifests",
        "recordings": str(tmp_path / "gone.jsonl.gz"),
        "supervisions": str(tmp_path / "m/supervisions.jsonl.gz"),
    }
    recipe = {"type": "lhotse", "recipe": "librispeech", "root": str(tmp_path / "x")}
    corpus = options(
        "corpus",
        {"train": manifests, "dev": {"type": "synthetic"}, "test": {"t": recipe}},
    )
    findings = examine_sources(
        corpus,
        lexicon=lexicon,
        lang=options("lang", {}),
        features=options("features", {}),
    )
    assert only(findings, "gone.jsonl.gz: no such file").severity == "error"
    assert only(findings, "no corpus librispeech").severity == "error"
    assert len(ailments(findings)) == 2


def test_findings_are_rendered_worst_first():
    findings = [Finding("note", "f", "a", "r"), Finding("error", "g", "b", "s")]
    assert render(findings).splitlines() == [
        "error: g: b - s", "note: f: a - r", "1 error, 0 warnings, 1 note",
    ]  # fmt: skip


def test_real_corpora_pass(corpora, options):
    """speechocean's test set has words that its lexicon has; all its ids agree."""
    values = {
        "train": {"type": "kaldi", "path": str(corpora / "speechocean/train")},
        "test": {"test": {"type": "kaldi", "path": str(corpora / "speechocean/test")}},
    }
    findings = examine_sources(
        options("corpus", values),
        lexicon=corpora / "speechocean/lexicon.txt",
        lang=options("lang", {"strip_stress": True}),
        features=options("features", {}),
    )
    assert not [f for f in findings if f.severity == "error"], render(findings)
