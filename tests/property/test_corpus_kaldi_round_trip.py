"""Kaldi directory -> manifests -> Kaldi directory and back, for any content."""

import tempfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from lhotse import AudioSource, CutSet, Recording, SupervisionSegment

from latflow.corpus.assemble import CorpusWriter
from latflow.corpus.audio import Found
from latflow.corpus.kaldi_dir import _duration, export_kaldi_dir, import_kaldi_dir
from latflow.corpus.manifests import read_recordings, read_supervisions
from latflow.corpus.options import GivenSource
from latflow.ledger import Ledger

MANIFESTS = ("recordings", "supervisions", "cuts")
NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zs", "Zl", "Zp"]),
    min_size=1,
    max_size=8,
)
WORDS = st.lists(NAMES, min_size=1, max_size=4).map(" ".join)
SECONDS = st.floats(min_value=0, max_value=1e5, allow_nan=False)


@pytest.fixture(scope="module")
def audio(tmp_path_factory):
    """Audio files of different rates and lengths, mono and stereo."""
    folder = tmp_path_factory.mktemp("audio")
    shapes = {"a": (8000, 8000, 1), "b": (22050, 13007, 1), "c": (16000, 9999, 2)}
    paths = {}
    for name, (rate, length, channels) in shapes.items():
        path = folder / f"{name} 1.flac" if name == "a" else folder / f"{name}.flac"
        samples = np.zeros((length, channels), np.int16)
        soundfile.write(path, samples, rate)
        paths[str(path)] = (rate, length, channels)
    return paths


@st.composite
def corpora(draw, audio):
    """Recordings and supervisions that a Kaldi directory can express."""
    recordings, supervisions = [], []
    ids = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    speakers = {
        name: (draw(st.sampled_from([None, "m", "f"])), draw(st.none() | WORDS))
        for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    }
    is_segmented = draw(st.booleans())
    for rec_id in ids:
        path, (rate, length, channels) = draw(st.sampled_from(sorted(audio.items())))
        sources = [AudioSource("file", list(range(channels)), path)]
        rec = Recording(rec_id, sources, rate, length, length / rate)
        recordings.append(rec)
        count = draw(st.integers(1, 3)) if is_segmented else 1
        for k in range(count):
            start, duration = 0.0, rec.duration
            if is_segmented:
                start = draw(st.floats(0, rec.duration - 0.2))
                duration = draw(st.floats(0.1, rec.duration - start))
            speaker = draw(st.sampled_from(sorted(speakers)))
            gender, age = speakers[speaker]
            uniq = draw(st.none() | NAMES)
            custom = {"spk2age": age, "utt2uniq": uniq}
            custom = {key: v for key, v in custom.items() if v is not None}
            supervisions.append(
                SupervisionSegment(
                    id=f"{rec_id}-{k}" if is_segmented else rec_id,
                    recording_id=rec_id,
                    start=start,
                    duration=duration,
                    channel=draw(st.integers(0, channels - 1)) if is_segmented else 0,
                    text=draw(WORDS),
                    speaker=speaker,
                    gender=gender,
                    language=draw(st.none() | NAMES),
                    custom=custom or None,
                )
            )
    return sorted(recordings, key=lambda r: r.id), sorted(
        {s.id: s for s in supervisions}.values(), key=lambda s: s.id
    )


def write_corpus(folder, recordings, supervisions):
    folder.mkdir()
    checks = GivenSource(min_duration=0.0)
    with CorpusWriter(folder, folder, checks, Ledger("test")) as writer:
        jobs = ((rec.id, lambda rec=rec: Found(rec)) for rec in recordings)
        writer.add_recordings(jobs, threads=1)
        writer.add_utterances(supervisions)
        writer.finish(max_skipped_fraction=0.0)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.slow
@given(data=st.data())
def test_going_out_and_in_is_the_identity(audio, data):
    recordings, supervisions = data.draw(corpora(audio))
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_corpus(root / "first", recordings, supervisions)
        export_kaldi_dir(root / "first", root / "kaldi")
        checks = GivenSource(verify_audio=False, min_duration=0.0)
        import_kaldi_dir(root / "kaldi", root / "second", checks=checks)
        assert list(read_recordings(root / "second/recordings.jsonl.gz")) == recordings
        found = list(read_supervisions(root / "second/supervisions.jsonl.gz"))
        assert found == supervisions
        for manifest in MANIFESTS:
            file = f"{manifest}.jsonl.gz"
            assert contents(root / "first")[file] == contents(root / "second")[file]
        cuts = CutSet.from_jsonl_lazy(root / "second/cuts.jsonl.gz")
        assert [cut.id for cut in cuts] == [s.id for s in supervisions]
        # in, out and in again
        export_kaldi_dir(root / "second", root / "kaldi2")
        assert contents(root / "kaldi2") == contents(root / "kaldi")


@given(start=SECONDS, duration=SECONDS)
def test_times_survive_as_text(start, duration):
    from latflow.corpus.kaldi_dir import _EXACT

    end = _EXACT.add(Decimal(repr(start)), Decimal(repr(duration)))
    text = f"{Decimal(repr(start)):f} {end:f}".split()
    assert float(Decimal(text[0])) == start
    assert _duration(Decimal(text[0]), Decimal(text[1]), 0.0) == duration


@pytest.mark.parametrize("name", ["yesno/test", "digits/test", "speechocean/test"])
def test_real_directories_survive(corpora, tmp_path, name):
    source = corpora / name
    import_kaldi_dir(source, tmp_path / "in", checks=GivenSource(verify_audio=False))
    export_kaldi_dir(tmp_path / "in", tmp_path / "out")

    def rows(path):
        return [line.split() for line in path.read_text().splitlines()]

    for file in ("text", "utt2spk", *(p.name for p in source.glob("spk2age"))):
        assert rows(tmp_path / "out" / file) == sorted(rows(source / file)), file
    scp = dict(rows(tmp_path / "out/wav.scp"))
    for utt_id, path in rows(source / "wav.scp"):
        assert Path(scp[utt_id]).samefile(source / path)
