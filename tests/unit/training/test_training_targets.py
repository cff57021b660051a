"""What simulation knows as targets: clean and early features, ideal ratio masks."""

import json
from contextlib import closing

import numpy as np
import pytest
import soundfile
from fixtures.small_model import small_model
from fixtures.training_task import training_options
from lhotse import MonoCut, Recording, SupervisionSegment

from latflow.corpus.json_lines import ManifestWriter
from latflow.errors import UserError
from latflow.features.cmvn_options import NoCmvn
from latflow.features.live import LiveFrames, prepare_live_features
from latflow.features.options import StreamOptions
from latflow.hmm.topology import Topology
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import KaldiWriter, write_int_vectors
from latflow.nnet.model_dir import load_model
from latflow.nnet.normalization import Normalizer
from latflow.simulation.on_the_fly import SimulationOnTheFly
from latflow.simulation.options import SimulationDraws
from latflow.training.batches import BatchSource, Targets, open_batches
from latflow.training.data_options import DataOptions
from latflow.training.forward import Forward
from latflow.training.frame_targets import SimulatedTargets, is_counted
from latflow.training.options import CeRunOptions
from latflow.training.readers import LiveReader, in_pass
from latflow.training.train import NetworkJob, train_network

RATE, BINS = 8000, 12
FBANK = StreamOptions(
    type="fbank", num_mel_bins=BINS, dither=0.0, stored=False, cmvn=NoCmvn()
)
EARLY, LATE = int(0.030 * RATE), int(0.080 * RATE)  # of the reflections below
TARGETS = {
    "clean": {"type": "clean"},
    "early": {"type": "early"},
    "mel": {"type": "ratio_mask"},
    "lines": {"type": "ratio_mask", "domain": "stft", "exponent": 1.0},
    "whole": {"type": "ratio_mask", "early_ms": None},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Utterances whose features are computed on the fly, a response of a room."""
    folder = tmp_path_factory.mktemp("targets")
    rng = np.random.default_rng(5)
    with ManifestWriter(folder / "cuts.jsonl.gz") as writer:
        for i in range(6):
            length = RATE // 2 + 500 * i
            tone = np.sin(np.arange(length) * (0.2 + 0.1 * i))
            wave = 0.3 * tone * np.hanning(length) + 0.01 * rng.standard_normal(length)
            path = folder / f"u{i}.wav"
            soundfile.write(path, wave, RATE, subtype="FLOAT")
            recording = Recording.from_file(path, recording_id=f"u{i}")
            whole = recording.duration
            said = SupervisionSegment(
                f"u{i}", f"u{i}", 0, whole, speaker=f"s{i % 2}", text="x"
            )
            writer.write(MonoCut(f"u{i}", 0, whole, 0, [said], recording=recording))
    prepare_live_features(
        folder / "cuts.jsonl.gz", folder / "frames", options=FBANK,
        max_skipped_fraction=0,
    )  # fmt: skip
    response = np.zeros(LATE + 1)
    response[[0, EARLY, LATE]] = 0.5, 0.3, -0.25
    soundfile.write(folder / "room.wav", response, RATE, subtype="FLOAT")
    return folder


def draws_of(folder, targets=TARGETS, **changes):
    """Rooms, noise and another speaker, all of them for all utterances."""
    given = {
        "rooms": {"type": "measured", "files": str(folder / "room.wav")},
        "noises": {"hiss": {"type": "generated", "snr": {"type": "choice", "of": [0]}}},
        "speakers": {"overlap": {"type": "choice", "of": [0.5]}},
        "targets": targets,
        **changes,
    }
    return SimulationDraws.model_validate(given)


def source_of(folder, draws, threads=1, **options):
    """Batches of whole utterances with all targets of the draws."""
    data = DataOptions.model_validate(
        {"sequences": {"type": "utterances"}, "normalization": "none", **options}
    ).replace(simulation=draws)
    live = LiveFrames(folder / "frames", threads=threads, cache_bytes=10**6)
    frames = {
        name: SimulatedTargets(target, live, Normalizer())
        for name, target in draws.targets.items()
    }
    return BatchSource(LiveReader(live), Targets(frames=frames), data, seed=3)


def contents(source, epoch=0, **share):
    """Features and targets by utterance."""
    with closing(source.epoch(epoch, **share)) as batches:
        return {
            utt_id: {
                "features": batch.features[row, : batch.lengths[row]].numpy(),
                **{
                    name: target[row][is_counted(target)[row]].numpy()
                    for name, target in batch.targets.items()
                },
            }
            for batch in batches
            if batch is not None
            for row, utt_id in enumerate(batch.utterances)
        }


def power_by_hand(wave):
    """Spectrum of frames as Kaldi has it, float64 [T, lines]."""
    length, shift = RATE // 40, RATE // 100
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / (length - 1))) ** 0.85
    rows = []
    for first in range(0, len(wave) - length + 1, shift):
        piece = wave[first : first + length].astype(np.float64)
        piece = piece - piece.mean()
        piece = (piece - 0.97 * np.append(piece[0], piece[:-1])) * window
        rows.append(np.abs(np.fft.rfft(piece, 256)) ** 2)
    return np.stack(rows)


def test_targets_are_those_of_the_record(folder):
    """Computed by hand from the response, the level and what is heard."""
    draws = draws_of(folder)
    live = LiveFrames(folder / "frames")
    simulation = SimulationOnTheFly(draws, live, rate=RATE, seed=3).in_pass(0)
    front_end = live._extractor.front_end
    statistics = Normalizer.estimate("global", live)
    found = contents(source_of(folder, draws))
    assert sorted(found) == live.utt_ids
    for utt_id, got in found.items():
        i = live.position(utt_id)
        dry = live.samples(i).astype(np.float64)
        heard = simulation(i, live.samples(i))
        reflections = np.zeros((2, len(dry)))
        reflections[0, EARLY:] = 0.6 * dry[:-EARLY]
        reflections[1, LATE:] = -0.5 * dry[:-LATE]
        early = dry + reflections[0]
        speech = early + reflections[1]
        level = np.sqrt(np.square(dry).mean() / np.square(speech).mean())
        record = simulation.record(i, len(dry))
        alone = simulation.simulator.apply(
            record.model_copy(update={"noises": (), "speakers": ()}), live.samples(i)
        )
        np.testing.assert_allclose(alone, level * speech, atol=1e-5)
        assert np.abs(heard).max() < 1  # so that nothing was scaled down
        for name, wave in (("clean", dry), ("early", level * early)):
            features = front_end.extract(wave.astype(np.float32))
            np.testing.assert_allclose(got[name], statistics(features), atol=2e-3)
        mel = front_end.mel.numpy().astype(np.float64)
        for name, wave, exponent, filters in (
            ("mel", level * early, 0.5, mel),
            ("whole", level * speech, 0.5, mel),
            ("lines", level * early, 1.0, np.eye(129)),
        ):
            power, rest = (
                power_by_hand(each) @ filters for each in (wave, heard - wave)
            )
            wanted = (power / (power + rest)) ** exponent
            assert got[name].shape == wanted.shape
            np.testing.assert_allclose(got[name], wanted, atol=2e-3)
            assert 0.01 < got[name].mean() < 0.99


def test_the_mask_is_one_where_there_is_nothing_else(folder):
    nothing = draws_of(folder, probability=0.0)
    room = draws_of(folder, noises={}, speakers=None)
    for utt_id, got in contents(source_of(folder, nothing)).items():
        assert all((got[name] == 1.0).all() for name in ("mel", "lines", "whole"))
        live = LiveFrames(folder / "frames")
        clean = Normalizer.estimate("global", live)(live.frames(live.position(utt_id)))
        for name in ("clean", "early"):
            np.testing.assert_array_equal(got[name], clean)
    for got in contents(source_of(folder, room)).values():
        assert (got["whole"] == 1.0).all()
        assert got["mel"].min() < 0.9  # the late reflection is not wanted


def test_targets_follow_what_is_scaled_down_to_full_scale(folder):
    """Levels are those that speech has in the mixture."""
    snr = {"type": "choice", "of": [-30.0]}
    loud = draws_of(folder, noises={"hiss": {"type": "generated", "snr": snr}})
    live = LiveFrames(folder / "frames")
    simulation = SimulationOnTheFly(loud, live, rate=RATE, seed=3).in_pass(0)
    samples = live.samples(0)
    record = simulation.record(0, len(samples))
    heard = simulation(0, samples)
    assert np.abs(heard).max() == 1.0
    wanted, rest = simulation.simulator.split(record, samples, early=0.0)
    np.testing.assert_allclose(wanted + rest, heard, atol=1e-6)
    factor = wanted.max() / samples.max()
    assert factor < 0.5
    np.testing.assert_allclose(wanted, factor * samples, atol=1e-6)


def test_early_speech_of_a_speaker_who_walks(folder):
    """It begins as all that is heard does, and is part of it."""
    walk = {"speed": {"type": "choice", "of": [1.0]}}
    t60 = {"type": "choice", "of": [0.2]}
    room = {"type": "generated", "number": 1, "t60": t60, "movement": walk}
    draws = draws_of(folder, rooms=room, noises={}, speakers=None)
    live = LiveFrames(folder / "frames")
    simulation = SimulationOnTheFly(draws, live, rate=RATE, seed=3).in_pass(0)
    samples = live.samples(0)
    record = simulation.record(0, len(samples))
    assert record.movement is not None
    heard = simulation(0, samples)
    wanted, rest = simulation.simulator.split(record, samples, early=0.05)
    np.testing.assert_allclose(wanted + rest, heard, atol=1e-6)
    np.testing.assert_allclose(wanted[: RATE // 20], heard[: RATE // 20], atol=1e-4)
    assert np.abs(rest).max() > 1e-3


def test_workers_ranks_and_the_cache_change_no_bit(folder):
    draws = draws_of(folder, fresh_every=2)
    one, again = (contents(source_of(folder, draws), epoch) for epoch in (0, 1))
    several = source_of(folder, draws, threads=3, prefetch=0)
    ranks = [contents(several, rank=r, size=3) for r in range(3)]
    shared = {utt_id: got for rank in ranks for utt_id, got in rank.items()}
    fresh = contents(several, 2)
    for utt_id, wanted in one.items():
        for name, value in wanted.items():
            np.testing.assert_array_equal(shared[utt_id][name], value)
            np.testing.assert_array_equal(again[utt_id][name], value)
        assert not np.array_equal(fresh[utt_id]["mel"], wanted["mel"])
        np.testing.assert_array_equal(fresh[utt_id]["clean"], wanted["clean"])


@pytest.mark.parametrize(
    "sequences",
    [{"type": "utterances"}, {"type": "chunks", "size": 9, "context": {"left": 3}}],
)
def test_targets_follow_speeds_and_chunks(folder, sequences):
    draws = draws_of(folder)
    speeds = {"speeds": [0.9, 1.1], "volume": [0.5, 2.0]}
    source = source_of(folder, draws, perturbation=speeds, sequences=sequences)
    reader = source._reader(0)
    assert isinstance(reader, LiveReader)
    counted = 0
    with closing(source.epoch(0)) as batches:
        for batch in batches:
            assert batch is not None
            for row, i in enumerate(batch.indices.tolist()):
                (whole,) = reader.learnt(draws.targets["mel"], [i])
                assert len(whole) == reader.lengths[i]
                target = batch.targets["mel"][row]
                places = is_counted(target[None])[0].nonzero().flatten()
                first = int(batch.first_frame[row])
                wanted = whole[first + places.numpy()]
                np.testing.assert_array_equal(target[places].numpy(), wanted)
                counted += len(places)
    assert counted == reader.lengths.sum()


def test_features_that_are_not_simulated_have_no_such_targets(folder):
    live = LiveFrames(folder / "frames")
    frames = {"mel": SimulatedTargets(draws_of(folder).targets["mel"], live,
                                      Normalizer())}  # fmt: skip
    with pytest.raises(UserError, match="the features are not simulated"):
        BatchSource(LiveReader(live), Targets(frames=frames), DataOptions())


def test_targets_are_of_one_microphone(folder):
    pair = {"microphones": [[-0.1, 0, 0], [0.1, 0, 0]]}
    with pytest.raises(ValueError, match="targets: are of one microphone"):
        draws_of(folder, rooms=None, array=pair)


def test_dev_is_simulated_where_outputs_learn_of_it(folder):
    with_targets = DataOptions(simulation=draws_of(folder))
    without = DataOptions(simulation=draws_of(folder, targets={}))
    assert with_targets.for_evaluation().simulation is not None
    assert without.for_evaluation().simulation is None


def test_dev_is_in_other_rooms_than_training(folder):
    rooms = {"type": "generated", "number": 2}
    data = DataOptions.model_validate(
        {
            "sequences": {"type": "utterances"},
            "normalization": "none",
            "simulation": draws_of(folder, rooms=rooms).values(),
        }
    )
    sizes = []
    for is_training in (True, False):
        source = open_batches(
            folder / "frames",
            Targets(),
            data,
            normalizer=Normalizer(),
            seed=3,
            is_training=is_training,
        )
        reader = in_pass(source.reader, source.options, seed=3, whole_pass=0)
        drawn = [reader.simulation.record(i, 4000).room for i in range(6)]
        sizes.append({room.size for room in drawn})
    assert [len(rooms_of) for rooms_of in sizes] == [2, 2]
    assert not sizes[0] & sizes[1]


def test_a_training_learns_masks_and_clean_features(folder, tmp_path):
    """And `Forward` gives them: masks as they are, features in their own units."""
    live = LiveFrames(folder / "frames")
    model = small_model()
    tree = ContextDependency.monophone(
        [[1], [2, 3]], Topology.standard([2, 3], [1], 2, 1).pdf_class_counts()
    )
    with KaldiWriter.open(tmp_path / "gmm/final.mdl") as writer:
        model.write(writer)
    tree.save(tmp_path / "gmm/tree")
    rng = np.random.default_rng(1)
    labels = [
        (utt_id, rng.integers(1, model.num_transition_ids + 1, n).astype(np.int32))
        for utt_id, n in zip(live.utt_ids, np.diff(live.begin), strict=True)
    ]
    write_int_vectors(tmp_path / "ali.ark", labels)
    hidden = {"class": "linear", "from": "data", "size": 24, "activation": "relu"}
    enhanced = {"class": "output", "from": "hidden", "loss": "mse"}
    layers = {
        "hidden": hidden,
        "output": {"class": "output", "loss_scale": 0.01},
        "mask": {**enhanced, "target": "mel"},
        "speech": {**enhanced, "target": "clean"},
    }
    (tmp_path / "net.yaml").write_text(json.dumps({"layers": layers}))
    targets = {name: TARGETS[name] for name in ("mel", "clean")}
    noises = draws_of(folder, targets, rooms=None, speakers=None)
    data = {
        "sequences": {"type": "utterances"},
        "max_sequences": 3,
        "normalization": "global",
        "simulation": noises.values(),
    }
    training = training_options(epochs=8, learning_rate=0.01, final="last")
    options = CeRunOptions.model_validate(
        {"data": data, "training": training, "device": "cpu", "seed": 3}
    )
    train_network(
        NetworkJob(
            frames_dir=folder / "frames",
            alignments=tmp_path / "ali.ark",
            source_dir=tmp_path / "gmm",
            dev_frames_dir=folder / "frames",
            dev_alignments=tmp_path / "ali.ark",
            network=tmp_path / "net.yaml",
            out_dir=tmp_path / "model",
            options=options,
            checkpoints=tmp_path / "checkpoints",
        )
    )
    info = json.loads((tmp_path / "model/info.json").read_text())
    for name in ("mse", "mse.mask", "mse.speech"):
        losses = [epoch[name] for epoch in info["history"]]
        assert losses[-1] < 0.6 * losses[0]
    lines = (tmp_path / "model/log.jsonl").read_text().splitlines()
    epochs = [line for line in map(json.loads, lines) if line["kind"] == "epoch"]
    assert len(epochs) == 8
    for line in epochs:
        counts = line["simulation"]
        assert counts["utterances"] == counts["simulated"] == counts["with_noises"] == 6
    meta = load_model(tmp_path / "model").meta["targets"]
    assert meta["mel"] == {"type": "none"}
    level = np.concatenate([live.frames(i) for i in range(len(live))]).mean()
    assert level > 5.0
    for output, middle in (("mask", 0.5), ("speech", level)):
        scored = Forward.load(live, tmp_path / "model", device="cpu", output=output)
        for utt_id, found in scored:
            assert found.shape == live.frames(live.position(utt_id)).shape
            assert abs(found.mean() - middle) < 2.0
