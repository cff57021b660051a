"""Planted faults in a made-up set are found, and nothing else."""

import numpy as np
import pytest
import soundfile
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment

from latflow.align.corpus import LogLikes
from latflow.align.options import SuspectOptions
from latflow.align.suspects import _Aligned, deviations, find_suspects
from latflow.corpus.signal_faults import measure_signal
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.hmm.topology import Topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import write_int_vectors
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang
from latflow.ledger import Ledger
from latflow.parts import SetJob
from latflow.ragged import RaggedWriter

RATE = 8000


def noise(seed, seconds=1.0):
    """Noise with quiet ends, as a recording of speech."""
    random = np.random.default_rng(seed)
    signal = 0.1 * random.standard_normal(round(seconds * RATE)).astype(np.float32)
    signal[:800] *= 0.01
    signal[-800:] *= 0.01
    return signal


def test_signals_are_measured():
    clean = measure_signal(noise(1), RATE)
    assert clean.silence == 0
    assert clean.clipping == 0
    assert clean.offset < 0.05
    assert clean.start_db == pytest.approx(-40, abs=4)
    assert clean.end_db == pytest.approx(-40, abs=4)
    assert measure_signal(noise(1), RATE) == clean
    assert measure_signal(noise(2), RATE).digest != clean.digest
    dead = noise(1)
    dead[2000:4000] = 0.25
    assert measure_signal(dead, RATE).silence == pytest.approx(0.25, abs=1e-3)
    assert measure_signal(np.clip(noise(1), -0.05, 0.05), RATE).clipping > 0.1
    assert measure_signal(noise(1) + 0.1, RATE).offset == pytest.approx(1.1, abs=0.1)
    loud = measure_signal(noise(1)[4000:], RATE)
    assert loud.start_db == pytest.approx(0, abs=3)
    assert loud.end_db < -30


@pytest.mark.parametrize("length", [1, 2, 100])
def test_empty_signals_are_all_silence_or_short(length):
    found = measure_signal(np.zeros(length, np.float32), RATE)
    assert found.clipping == 0
    assert found.offset == 0
    assert found.silence in {0.0, 1.0}


def test_deviations_are_robust_and_by_group():
    values = np.concatenate([np.arange(20.0), 100 + np.arange(20.0), [1000.0]])
    groups = np.repeat([0, 1, 2], [20, 20, 1])
    assert np.abs(deviations(values, groups)[:40]).max() < 2.0
    assert deviations(values, groups)[40] > 50
    assert deviations(np.ones(5)).tolist() == [0.0] * 5
    assert np.isnan(deviations(np.array([1.0, 1.0, np.nan]))).tolist() == [0, 0, 1]
    equal = np.concatenate([np.ones(38), [3.0, -9.0]])  # more than half are equal
    away = deviations(equal)
    assert not away[:38].any()
    assert away[38:] == pytest.approx([2 / (0.3 * 1.2533), -10 / (0.3 * 1.2533)])
    assert len(deviations(np.zeros(0))) == 0


def ids_of(model, phones, lengths):
    """Transition-ids of phones that stay in the last state of each."""
    path = []
    for phone, length in zip(phones, lengths, strict=True):
        for state in range(3):
            is_state = (model.phone == phone) & (model.hmm_state == state)
            (onward,) = np.flatnonzero(is_state & ~model.is_self_loop)[:1]
            (loop,) = np.flatnonzero(is_state & model.is_self_loop)[:1]
            path += [onward] + [loop] * (length - 3 if state == 2 else 0)
    return np.array(path, np.int32)


FAULTS = {
    "u05": "silence", "u10": "duplicate", "u15": "likelihood", "u20": "phones",
    "u25": "duration", "u30": "speaker", "u35": "beam", "u39": "not aligned",
}  # fmt: skip


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """Forty utterances of two speakers, some with faults, aligned."""
    folder = tmp_path_factory.mktemp("suspects")
    (folder / "lexicon.txt").write_text("ab A B\nba B A\n")
    options = LangOptions(position_dependent_phones=False, num_silence_states=3)
    make_lang(folder / "lexicon.txt", folder / "lang", options=options)
    lang = Lang.load(folder / "lang")
    numbers = sorted(n for n in lang.phones if n in lang.topology.phones)
    topology = Topology.standard(numbers, [], 3, 3)
    tree = ContextDependency.monophone(
        [[n] for n in numbers], topology.pdf_class_counts()
    )
    model = TransitionModel.from_tree(tree, topology)
    model.save(folder / "final.mdl")
    a, b = (lang.phone_ids[name] for name in "AB")
    (silence,) = (lang.phone_ids["SIL"],)
    cuts, alignments, log_likes = [], [], {}
    ledger = Ledger("align")
    with FrameWriter(folder / "frames", dim=2) as frames:
        for n in range(40):
            name, fault = f"u{n:02d}", FAULTS.get(f"u{n:02d}")
            random = np.random.default_rng(n)
            phones = [silence, a, b, a, b, silence]
            lengths = [10, *random.integers(12, 20, 4), 10]
            if fault == "duration":
                lengths = [10, 3, 60, 3, 60, 10]
            means = {silence: (-3, -3), a: (3, 0), b: (0, 3)}
            said = [silence, b, a, b, a, silence] if fault == "phones" else phones
            x = np.repeat([means[p] for p in said], lengths, axis=0)
            x = x + random.standard_normal(x.shape) + (2.0 if fault == "speaker" else 0)
            x = x * (0.3 if fault == "duplicate" else 1.0)  # fits its phones less
            frames.append(name, f"s{n % 2}", "ab ab", x.astype(np.float32))
            if fault == "not aligned":
                ledger.record(name, "no final state")
            else:
                alignments.append((name, ids_of(model, phones, lengths)))
                worse = 20.0 if fault == "likelihood" else 0.0
                values = random.standard_normal(len(x)) - 50.0 - worse
                log_likes[name] = values.astype(np.float32)
            if fault == "beam":
                ledger.record(name, "wider beam", action="retried", beam=40.0)
            signal = noise(9 if fault == "duplicate" else n)
            if fault == "silence":
                signal[2000:6000] = 0
            soundfile.write(folder / f"{name}.wav", signal, RATE, subtype="FLOAT")
            recording = Recording.from_file(folder / f"{name}.wav")
            text = SupervisionSegment(name, name, 0, 1, text="ab ab", speaker="s")
            cuts.append(
                MonoCut(name, 0, 1, 0, supervisions=[text], recording=recording)
            )
    CutSet.from_cuts(cuts).to_file(folder / "cuts.jsonl.gz")
    (folder / "ali").mkdir()
    write_int_vectors(folder / "ali/ali.ark", alignments)
    with RaggedWriter(folder / "ali/log_likes", LogLikes) as writer:
        for name, values in log_likes.items():
            writer.write(name, values)
    ledger.write(folder / "ali/ledger.jsonl")
    return folder


def job(folder, out, frames=None, threads=1):
    return SetJob(
        frames_dir=frames or folder / "frames",
        lang_dir=folder / "lang",
        model_dir=folder,
        out_dir=out,
        threads=threads,
    )


def search(folder, hypotheses=None, **settings):
    find_suspects(
        job(folder, folder, threads=2),
        folder / "cuts.jsonl.gz",
        folder / "ali",
        options=SuspectOptions(**settings),
        hypotheses=hypotheses,
    )
    rows = (folder / "suspects.tsv").read_text().splitlines()[1:]
    return [row.split("\t") for row in rows]


def test_planted_faults_are_found_and_nothing_else(faulty):
    rows = search(faulty, max_deviation=6.0)
    found = {row[0]: {r[1] for r in rows if r[0] == row[0]} for row in rows}
    assert set(found) == set(FAULTS)
    for name, fault in FAULTS.items():
        assert fault in found[name]
    listed = (faulty / "suspects.txt").read_text().split()
    assert listed == sorted(FAULTS)
    assert all(float(row[2]) >= 0 for row in rows)


def test_bounds_are_options(faulty):
    reasons = {row[1] for row in search(faulty, max_deviation=1e9, max_silence=1.0)}
    assert reasons == {"duplicate", "beam", "not aligned"}


def test_words_that_differ_are_listed_in_the_words_of_the_transcript(faulty, tmp_path):
    heard = {f"u{n:02d}": "ab ab" for n in range(40)}
    heard |= {"u01": "ab ba", "u02": "ba ab ab", "u03": ""}
    del heard["u04"]
    lines = (f"{name} {words}\n" for name, words in sorted(heard.items()))
    (tmp_path / "hyp.txt").write_text("".join(lines))
    common = {
        "max_deviation": 1e9,
        "max_silence": 1.0,
        "hypotheses": tmp_path / "hyp.txt",
    }
    found = [row for row in search(faulty, **common) if row[1] == "words"]
    assert found == [
        ["u01", "words", "0.500", "ab>ba"],
        ["u02", "words", "0.500", "*>ba"],
        ["u03", "words", "1.000", "ab>*, ab>*"],
        ["u04", "words", "1.000", "could not be decoded"],
    ]
    listed = (faulty / "suspects.txt").read_text().split()
    assert {"u01", "u02", "u03", "u04"} <= set(listed)
    fewer = search(faulty, **common, max_word_errors=0.5)
    assert [row[0] for row in fewer if row[1] == "words"] == ["u03", "u04"]


def test_hypotheses_of_another_set_are_refused(faulty, tmp_path):
    (tmp_path / "hyp.txt").write_text("other ab\n")
    with pytest.raises(UserError, match="other: line 1: an utterance that is not in"):
        search(faulty, hypotheses=tmp_path / "hyp.txt")


def test_alignments_of_other_frames_are_refused(faulty, tmp_path):
    with FrameWriter(tmp_path / "frames", dim=2) as frames:
        for n in range(40):
            frames.append(f"u{n:02d}", "s", "ab", np.zeros((5, 2), np.float32))
    with pytest.raises(UserError, match="u00: .* aligned frames, but 5 features"):
        find_suspects(
            job(faulty, tmp_path, frames=tmp_path / "frames"),
            faulty / "cuts.jsonl.gz",
            faulty / "ali",
            options=SuspectOptions(),
        )


def test_damaged_audio_is_suspect_and_missing_audio_one_line(faulty, tmp_path):
    good = CutSet.from_file(faulty / "cuts.jsonl.gz")
    cuts = []
    for number, cut in enumerate(good):
        if number < 2:
            path = tmp_path / f"{number}.wav"
            path.write_bytes(b"RIFF no audio")
            cut.recording.sources[0].source = str(path)
        cuts.append(cut)
    CutSet.from_cuts(cuts).to_file(tmp_path / "cuts.jsonl.gz")

    def found():
        find_suspects(
            job(faulty, tmp_path),
            tmp_path / "cuts.jsonl.gz",
            faulty / "ali",
            options=SuspectOptions(max_deviation=1e9),
        )
        rows = (tmp_path / "suspects.tsv").read_text().splitlines()
        return [row.split("\t")[:2] for row in rows]

    assert [name for name, reason in found() if reason == "unreadable"] == [
        "u00",
        "u01",
    ]
    (tmp_path / "1.wav").unlink()
    with pytest.raises(UserError, match="u01: audio file is missing"):
        found()


def test_phones_keep_names_that_only_look_marked(tmp_path):
    """`A_B` and `A_E` are phones of their own where words have no positions."""
    (tmp_path / "lexicon.txt").write_text("x A_B A_E\n")
    options = LangOptions(position_dependent_phones=False, num_silence_states=3)
    make_lang(tmp_path / "lexicon.txt", tmp_path / "lang", options=options)
    lang = Lang.load(tmp_path / "lang")
    numbers = sorted(n for n in lang.phones if n in lang.topology.phones)
    topology = Topology.standard(numbers, [], 3, 3)
    sets = [[n] for n in numbers]
    tree = ContextDependency.monophone(sets, topology.pdf_class_counts())
    TransitionModel.from_tree(tree, topology).save(tmp_path / "final.mdl")
    with FrameWriter(tmp_path / "frames", dim=1) as frames:
        frames.append("u", "s", "x", np.zeros((3, 1), np.float32))
    (tmp_path / "ali").mkdir()
    write_int_vectors(tmp_path / "ali/ali.ark", [])
    with RaggedWriter(tmp_path / "ali/log_likes", LogLikes):
        pass
    aligned = _Aligned.load(
        FrameStore.load(tmp_path / "frames"), tmp_path / "lang",
        tmp_path / "final.mdl", tmp_path / "ali",
    )  # fmt: skip
    first, last = (aligned.phone_of[lang.phone_ids[name]] for name in ("A_B", "A_E"))
    assert first != last
