"""Stage functions: real corpora, manifests, holding out; the schema of the section."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import (
    CutSet,
    MonoCut,
    MultiCut,
    Recording,
    RecordingSet,
    SupervisionSegment,
    SupervisionSet,
)

from latflow.corpus.assemble import SEVERAL_CHANNELS
from latflow.corpus.combine import source_of
from latflow.corpus.derived_options import PerturbationOptions
from latflow.corpus.hold_out import hold_out
from latflow.corpus.json_lines import ManifestWriter, Spool
from latflow.corpus.kaldi_dir import import_kaldi_dir
from latflow.corpus.manifests import read_cuts, read_recordings, read_supervisions
from latflow.corpus.options import (
    CorpusOptions,
    GivenSource,
    HoldOutSource,
)
from latflow.corpus.perturb import perturb_corpus
from latflow.corpus.prepare import prepare_corpus
from latflow.errors import UserError
from latflow.ledger import read_ledger
from latflow.options import read_options

CUTS = "cuts.jsonl.gz"
HOW = {"seed": 1, "threads": 2, "max_skipped_fraction": 0.0}


@pytest.fixture
def resolve(repository):
    def make(source):
        values = {"train": source, "test": {"t": {"type": "synthetic"}}}
        return read_options(CorpusOptions, values, "corpus").train

    return make


@pytest.mark.parametrize(
    ("name", "count", "speakers"),
    [("yesno/train", 31, 1), ("digits/test", 63, 6), ("speechocean/test", 400, 20)],
)
def test_real_corpora_are_prepared(corpora, resolve, tmp_path, name, count, speakers):
    source = resolve({"type": "kaldi", "path": str(corpora / name)})
    prepare_corpus(source, "test", tmp_path / "out", **HOW)
    cuts = list(CutSet.from_jsonl_lazy(tmp_path / "out/cuts.jsonl.gz"))
    assert len(cuts) == count
    assert len({cut.supervisions[0].speaker for cut in cuts}) == speakers
    assert [cut.id for cut in cuts] == sorted(cut.id for cut in cuts)
    assert cuts[0].load_audio().shape[1] == cuts[0].num_samples
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "cuts.jsonl.gz", "ledger.jsonl", "recordings.jsonl.gz", "supervisions.jsonl.gz",
    ]  # fmt: skip


@pytest.fixture
def manifests(tmp_path):
    """Lhotse's own manifests, unsorted, with paths relative to the working folder."""
    recordings, supervisions = [], []
    for name, seconds in (("b", 2), ("a", 3)):
        path = tmp_path / f"{name}.wav"
        noise = np.random.default_rng(seconds).standard_normal(8000 * seconds)
        soundfile.write(path, (noise * 1000).astype(np.int16), 8000)
        recordings.append(Recording.from_file(path))
        supervisions += [
            SupervisionSegment(
                f"{name}{k}", name, float(k), 1.0, 0, f" word \t{k}\n", speaker=name
            )
            for k in (1, 0)
        ]
    RecordingSet.from_recordings(recordings).to_file(tmp_path / "r.jsonl.gz")
    SupervisionSet.from_segments(supervisions).to_file(tmp_path / "s.jsonl.gz")
    return {
        "type": "manifests",
        "recordings": str(tmp_path / "r.jsonl.gz"),
        "supervisions": str(tmp_path / "s.jsonl.gz"),
    }


def test_manifests_are_sorted_and_checked(manifests, resolve, tmp_path):
    prepare_corpus(resolve(manifests), "train", tmp_path / "out", **HOW)
    cuts = list(read_cuts(tmp_path / "out/cuts.jsonl.gz"))
    assert [cut.id for cut in cuts] == ["a0", "a1", "b0", "b1"]
    assert cuts[1].supervisions[0].text == "word 1"
    assert (cuts[1].start, cuts[1].duration) == (1.0, 1.0)
    assert cuts[1].load_audio().shape == (1, 8000)


def test_manifest_that_lies_is_refused(manifests, resolve, tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(4000, np.int16), 8000)
    with pytest.raises(UserError, match="a: .*a.wav holds 4000 samples at 8000 Hz"):
        prepare_corpus(resolve(manifests), "train", tmp_path / "out", **HOW)


def test_listed_utterances_are_left_out(manifests, resolve, tmp_path, caplog):
    listed = tmp_path / "suspects.txt"
    listed.write_text("b1 silence\n\nnobody\n")
    source = resolve({**manifests, "exclude": str(listed)})
    prepare_corpus(source, "train", tmp_path / "out", **HOW)
    before = resolve(manifests)
    prepare_corpus(before, "train", tmp_path / "before", **HOW)
    ids = {
        name: [cut.id for cut in CutSet.from_jsonl_lazy(tmp_path / name / CUTS)]
        for name in ("out", "before")
    }
    assert ids["out"] == [each for each in ids["before"] if each != "b1"]
    (entry,) = read_ledger(tmp_path / "out/ledger.jsonl")
    assert (entry.utterance, entry.action) == ("b1", "excluded")
    assert "1 ids that no utterance has; first: nobody" in caplog.text


def test_supervision_without_recording_is_refused(manifests, resolve, tmp_path):
    stray = SupervisionSegment("z", "zz", 0.0, 1.0, 0, "word", speaker="z")
    SupervisionSet.from_segments([stray]).to_file(tmp_path / "s.jsonl.gz")
    with pytest.raises(UserError, match="z: unknown recording zz"):
        prepare_corpus(resolve(manifests), "train", tmp_path / "out", **HOW)


def test_supervision_on_two_channels_is_refused(manifests, resolve, tmp_path):
    double = SupervisionSegment("z", "a", 0.0, 1.0, [0, 1], "word", speaker="z")
    SupervisionSet.from_segments([double]).to_file(tmp_path / "s.jsonl.gz")
    with pytest.raises(UserError, match=r"is on channel \[0, 1\]"):
        prepare_corpus(resolve(manifests), "train", tmp_path / "out", **HOW)


def test_duplicate_ids_in_manifests_are_refused(manifests, resolve, tmp_path):
    path = tmp_path / "s.jsonl.gz"
    lines = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(lines + lines))
    with pytest.raises(UserError, match="s.jsonl.gz: b1: this id occurs twice"):
        prepare_corpus(resolve(manifests), "train", tmp_path / "out", **HOW)


@pytest.mark.parametrize("line", ["not json", "[1]", '{"id": "a"}'])
def test_garbage_in_manifests_is_refused(manifests, resolve, tmp_path, line):
    (tmp_path / "r.jsonl.gz").write_bytes(gzip.compress(line.encode()))
    with pytest.raises(UserError, match="line 1 is not a Lhotse recording"):
        prepare_corpus(resolve(manifests), "train", tmp_path / "out", **HOW)


def test_missing_manifest_is_refused(manifests, resolve, tmp_path):
    source = resolve({**manifests, "recordings": str(tmp_path / "none.jsonl.gz")})
    with pytest.raises(UserError, match="none.jsonl.gz: no such file"):
        prepare_corpus(source, "train", tmp_path / "out", **HOW)


def test_full_disk_leaves_nothing_behind(manifests, resolve, tmp_path, monkeypatch):
    def full(self, item):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ManifestWriter, "write", full)
    before = set(tmp_path.iterdir())
    with pytest.raises(UserError, match="no space left on the disk"):
        prepare_corpus(resolve(manifests), "train", tmp_path / "out", **HOW)
    assert set(tmp_path.iterdir()) == before


def test_failure_keeps_the_previous_corpus(manifests, resolve, tmp_path):
    prepare_corpus(resolve(manifests), "train", tmp_path / "out", **HOW)
    before = (tmp_path / "out/cuts.jsonl.gz").read_bytes()
    (tmp_path / "a.wav").unlink()
    with pytest.raises(UserError, match="does not exist"):
        prepare_corpus(resolve(manifests), "train", tmp_path / "out", **HOW)
    assert (tmp_path / "out/cuts.jsonl.gz").read_bytes() == before


def test_spool_gives_items_back_by_id_and_sorted(tmp_path):
    items = [SupervisionSegment(i, "r", 0.0, 1.0) for i in ("b", "c", "a")]
    with Spool(tmp_path, SupervisionSegment.from_dict) as spool:
        spool.extend(items)
        assert spool["c"] == items[1]
        assert [item.id for item in spool] == ["a", "b", "c"]
        assert (len(spool), "b" in spool, "d" in spool) == (3, True, False)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def corpus(tmp_path):
    """Ten speakers of one recording each, with different amounts of speech."""
    data = tmp_path / "data"
    data.mkdir()
    scp, segments, text, speakers = [], [], [], []
    for i in range(10):
        soundfile.write(data / f"r{i}.flac", np.ones(8000 * 3, np.int16), 8000)
        scp.append(f"r{i} r{i}.flac")
        for k in range(1 + i % 3):
            segments.append(f"s{i}-{k} r{i} {k} {k + 1}")
            text.append(f"s{i}-{k} word")
            speakers.append(f"s{i}-{k} s{i}")
    for name, lines in (
        ("wav.scp", scp), ("segments", segments), ("text", text), ("utt2spk", speakers)
    ):  # fmt: skip
        (data / name).write_text("\n".join(lines) + "\n")
    import_kaldi_dir(data, tmp_path / "full", checks=GivenSource(verify_audio=False))
    ledger = {"stage": "s", "utterance": "gone", "reason": "r", "action": "skipped"}
    (tmp_path / "full/ledger.jsonl").write_text(json.dumps(ledger) + "\n")
    return tmp_path / "full"


@pytest.mark.parametrize("by", ["speaker", "utterance"])
@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.99])
def test_held_out_parts_are_complete_and_disjoint(corpus, tmp_path, by, fraction):
    how = {"options": HoldOutSource(by=by, fraction=fraction), "seed": 4}
    hold_out(corpus, tmp_path / "train", tmp_path / "dev", **how)
    parts = {}
    for name in ("full", "train", "dev"):
        folder = tmp_path / name
        supervisions = list(read_supervisions(folder / "supervisions.jsonl.gz"))
        cuts = list(read_cuts(folder / "cuts.jsonl.gz"))
        assert [c.id for c in cuts] == [s.id for s in supervisions]
        used = {rec.id for rec in read_recordings(folder / "recordings.jsonl.gz")}
        assert used == {s.recording_id for s in supervisions}
        parts[name] = {s.id: s for s in supervisions}
    assert parts["train"]
    assert parts["dev"]
    assert {**parts["train"], **parts["dev"]} == parts["full"]
    assert not parts["train"].keys() & parts["dev"].keys()
    if by == "speaker":
        speakers = [{s.speaker for s in parts[k].values()} for k in ("train", "dev")]
        assert not speakers[0] & speakers[1]
    if fraction < 0.9:
        assert len(parts["dev"]) >= fraction * len(parts["full"])
    assert "gone" in (tmp_path / "train/ledger.jsonl").read_text()
    assert (tmp_path / "dev/ledger.jsonl").read_text() == ""


def test_a_cut_without_a_supervision_has_no_side(corpus, tmp_path):
    cuts = corpus / CUTS
    first, *others = gzip.decompress(cuts.read_bytes()).splitlines(keepends=True)
    cut = json.loads(first)
    del cut["supervisions"]
    text = json.dumps(cut).encode() + b"\n" + b"".join(others)
    cuts.write_bytes(gzip.compress(text))
    with pytest.raises(UserError, match=f"{CUTS}: {cut['id']}: has no supervision"):
        hold_out(
            corpus, tmp_path / "train", tmp_path / "dev",
            options=HoldOutSource(fraction=0.2), seed=7,
        )  # fmt: skip


def test_holding_out_is_deterministic(corpus, tmp_path):
    for name in ("one", "two"):
        hold_out(
            corpus, tmp_path / f"{name}/train", tmp_path / f"{name}/dev",
            options=HoldOutSource(fraction=0.2), seed=7,
        )  # fmt: skip
    for file in ("train/cuts.jsonl.gz", "dev/recordings.jsonl.gz"):
        assert (tmp_path / "one" / file).read_bytes() == (
            tmp_path / "two" / file
        ).read_bytes()


def test_single_speaker_cannot_be_held_out(corpora, tmp_path):
    import_kaldi_dir(corpora / "yesno/test", tmp_path / "full")
    with pytest.raises(UserError, match="only one speaker.*by: utterance"):
        hold_out(
            tmp_path / "full", tmp_path / "train", tmp_path / "dev",
            options=HoldOutSource(), seed=1,
        )  # fmt: skip


def section(repository, values):
    return read_options(CorpusOptions, values, "corpus")


def test_schema_fills_defaults_of_every_kind_of_source(repository):
    corpus = section(
        repository,
        {
            "train": {"type": "kaldi", "path": "x"},
            "test": {"clean": {"type": "lhotse", "recipe": "librispeech", "root": "r"}},
        },
    )
    assert corpus.dev == HoldOutSource(by="speaker", fraction=0.1)
    assert corpus.train.on_bad_utterance == "fail"
    assert corpus.test["clean"].parts == ()


def test_a_corpus_may_be_for_training_alone(repository):
    values = {"train": {"type": "folder", "path": "x"}, "dev": {"type": "none"}}
    assert section(repository, values).test == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"train": {"type": "kaldi", "pth": "x"}},
            "corpus.train.pth .*did you mean path",
        ),
        ({"train": {"type": "kalid", "path": "x"}}, "corpus.train.type"),
        ({"train": {"type": "kaldi"}}, "corpus.train.path is missing"),
        ({"test": {"train": {"type": "synthetic"}}}, "corpus.test"),
        ({"test": {"Test": {"type": "synthetic"}}}, "corpus.test"),
        ({"dev": {"type": "none"}}, "test sets cannot be scored without"),
        ({"dev": {"type": "hold_out", "by": "day"}}, "corpus.dev.by"),
        ({"dve": {"type": "hold_out"}}, "unknown configuration key corpus.dve"),
    ],
)
def test_schema_refuses(repository, change, message):
    good = {"train": {"type": "synthetic"}, "test": {"test": {"type": "synthetic"}}}
    section(repository, good)
    with pytest.raises(UserError, match=message):
        section(repository, {**good, **change})


def test_sources_are_combined_under_their_names(manifests, resolve, tmp_path):
    """Both have the same ids: names of sources tell them apart, at any speed."""
    listed = tmp_path / "listed.txt"
    listed.write_text("a0\n")
    parts = {"web": {**manifests, "exclude": str(listed)}, "tv_1": manifests}
    source = resolve({"type": "combined", "sources": parts})
    out = tmp_path / "out"
    prepare_corpus(source, "train", out, **HOW)
    assert sorted(path.name for path in out.iterdir()) == [
        "cuts.jsonl.gz", "ledger.jsonl", "recordings.jsonl.gz", "supervisions.jsonl.gz",
    ]  # fmt: skip
    cuts = list(read_cuts(out / CUTS))
    assert [cut.id for cut in cuts] == [
        "tv_1-a0", "tv_1-a1", "tv_1-b0", "tv_1-b1", "web-a1", "web-b0", "web-b1",
    ]  # fmt: skip
    last = cuts[-1]
    assert (last.recording.id, last.supervisions[0].speaker) == ("web-b", "web-b")
    assert last.load_audio().shape == (1, 8000)
    found = [s.recording_id for s in read_supervisions(out / "supervisions.jsonl.gz")]
    assert found == [cut.recording.id for cut in cuts]
    recordings = [one.id for one in read_recordings(out / "recordings.jsonl.gz")]
    assert recordings == ["tv_1-a", "tv_1-b", "web-a", "web-b"]
    (entry,) = read_ledger(out / "ledger.jsonl")
    assert (entry.utterance, entry.action) == ("web-a0", "excluded")
    perturb_corpus(out, tmp_path / "sp", options=PerturbationOptions(), seed=1)
    sources = [source_of(cut.id) for cut in read_cuts(tmp_path / "sp" / CUTS)]
    assert [sources.count(name) for name in ("tv_1", "web")] == [12, 9]


@pytest.mark.parametrize(
    ("sources", "told"),
    [
        ({}, "at least 1 item"),
        ({"sp1": {"type": "kaldi", "path": "a"}}, "ids of utterances at another speed"),
        ({"a-b": {"type": "kaldi", "path": "a"}}, "match pattern"),
        ({"a": {"type": "synthetic"}}, "'synthetic' is not one of"),
        ({"a": {"type": "combined", "sources": {}}}, "'combined' is not one of"),
        (
            {
                "a": {"type": "kaldi", "path": "a", "transcripts": False},
                "b": {"type": "kaldi", "path": "b"},
            },
            "some have transcripts, and some have none",
        ),
    ],
)
def test_sources_that_cannot_be_combined(resolve, sources, told):
    with pytest.raises(UserError, match=told):
        resolve({"type": "combined", "sources": sources})


@pytest.fixture
def cut_set(tmp_path):
    """Cuts of all kinds, of two files of one and two channels."""
    noise = 0.1 * np.random.default_rng(5).standard_normal((16000, 2))
    files = {"mono": noise[:, 0], "stereo": noise}
    recordings = {}
    for name, samples in files.items():
        soundfile.write(tmp_path / f"{name}.wav", samples, 8000, subtype="FLOAT")
        recordings[name] = Recording.from_file(tmp_path / f"{name}.wav")

    def cut(name, start, duration, text="A WORD", recording="mono", channel=0):
        of = recordings[recording]
        said = SupervisionSegment(
            f"{name}-s", of.id, 0.0, duration, channel, text, speaker="ann"
        )
        kind = MonoCut if isinstance(channel, int) else MultiCut
        return kind(name, start, duration, channel, [said], recording=of)

    plain, loud = cut("plain", 0.5, 1.0), cut("loud", 0.0, 0.5, text="")
    mixed = cut("mixed", 0.0, 1.0).mix(loud.drop_supervisions(), snr=3.0)
    cuts = [
        plain,
        cut("both", 0.25, 1.0, recording="stereo", channel=[0, 1]),
        mixed.with_id("mixed/a"),
        cut("fast", 0.0, 1.0).perturb_speed(1.25).with_id("fast"),
        plain.append(cut("next", 1.5, 0.5)).with_id("two"),
    ]
    CutSet.from_cuts(cuts).to_file(tmp_path / "cuts.jsonl.gz")
    return {"type": "cuts", "path": str(tmp_path / "cuts.jsonl.gz")}, cuts


def test_cuts_of_all_kinds_are_utterances(cut_set, resolve, tmp_path):
    given, cuts = cut_set
    source, out = resolve({**given, "on_bad_utterance": "skip"}), tmp_path / "out"
    prepare_corpus(source, "train", out, **{**HOW, "max_skipped_fraction": 0.5})
    found = {cut.id: cut for cut in read_cuts(out / CUTS)}
    assert [*found] == ["both", "fast", "mixed/a", "plain"]
    noted, skipped = sorted(read_ledger(out / "ledger.jsonl"), key=lambda e: e.action)
    assert (noted.action, noted.reason) == ("noted", f"{SEVERAL_CHANNELS} (0)")
    assert skipped.utterance == "two"
    assert "has 2 supervisions with a transcript" in skipped.reason
    for cut in cuts[:4]:
        own = found[cut.id]
        np.testing.assert_allclose(own.load_audio()[0], cut.load_audio()[0], atol=1e-6)
        (said,) = own.supervisions
        assert (said.text, said.speaker, said.id) == ("A WORD", "ann", cut.id)
    assert found["plain"].recording_id == "mono"  # no copy of its audio
    assert found["both"].recording.channel_ids == [0, 1]
    heard = sorted(path.name for path in (out / "audio").iterdir())
    assert heard == ["fast.wav", "mixed%2Fa.wav"]
    with pytest.raises(UserError, match="two: has 2 supervisions.*trim_to_superv"):
        prepare_corpus(resolve(given), "train", tmp_path / "strict", **HOW)


def test_a_cut_with_an_effect_that_is_none_is_told(cut_set, resolve, tmp_path):
    given, _ = cut_set
    path = Path(given["path"])
    lines = gzip.decompress(path.read_bytes()).replace(b"1.25", b"0")
    path.write_bytes(gzip.compress(lines))
    with pytest.raises(UserError, match=r"fast: audio cannot be read \(ZeroDivision"):
        prepare_corpus(resolve(given), "train", tmp_path / "out", **HOW)


def test_cut_sets_are_combined_with_their_audio(cut_set, manifests, resolve, tmp_path):
    """Two sets with cuts of one id: the audio of each is its own."""
    given, cuts = cut_set
    twice = cuts[3].perturb_volume(0.5).with_id("fast")
    CutSet.from_cuts([twice]).to_file(tmp_path / "more.jsonl.gz")
    more = {"type": "cuts", "path": str(tmp_path / "more.jsonl.gz")}
    parts = {"a": {**given, "on_bad_utterance": "skip"}, "b": more, "c": manifests}
    source, out = resolve({"type": "combined", "sources": parts}), tmp_path / "out"
    prepare_corpus(source, "train", out, **{**HOW, "max_skipped_fraction": 0.5})
    found = {cut.id: cut for cut in read_cuts(out / CUTS)}
    ids = [f"a-{cut.id}" for cut in cuts[:4]]
    assert {*found} == {*ids, "b-fast", "c-a0", "c-a1", "c-b0", "c-b1"}
    for utt_id, cut in (*zip(ids, cuts, strict=False), ("b-fast", twice)):
        own, wanted = found[utt_id].load_audio(), cut.load_audio()
        np.testing.assert_allclose(own[0], wanted[0], atol=1e-6)
    heard = sorted(str(p.relative_to(out)) for p in (out / "audio").rglob("*.wav"))
    assert heard == ["audio/a/fast.wav", "audio/a/mixed%2Fa.wav", "audio/b/fast.wav"]
    (skipped,) = (e for e in read_ledger(out / "ledger.jsonl") if e.action == "skipped")
    assert skipped.utterance == "a-two"


def test_files_that_hold_no_cuts_are_refused(resolve, tmp_path):
    for name, content, told in (
        ("absent.jsonl", None, "no such file"),
        ("bad.jsonl", b'{"id": "a"}\n', "line 1 is not a Lhotse cut"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        source = resolve({"type": "cuts", "path": str(path)})
        with pytest.raises(UserError, match=f"{name}: {told}"):
            prepare_corpus(source, "train", tmp_path / "out", **HOW)
