"""Simulation in the batches of a training: draws by pass, labels of the speech."""

import numpy as np
import pytest
import soundfile
import torch
import yaml
from lhotse import MonoCut, Recording, SupervisionSegment

from latflow.cli.main import main
from latflow.corpus.json_lines import ManifestWriter
from latflow.corpus.manifests import read_cuts
from latflow.errors import UserError
from latflow.features.cmvn_options import NoCmvn
from latflow.features.frames import FrameStore, FrameWriter
from latflow.features.live import LiveFrames, prepare_live_features
from latflow.features.options import StreamOptions
from latflow.nnet.normalization import Normalizer
from latflow.simulation.options import SimulationDraws
from latflow.simulation.records import AudioFiles, read_records, record_line
from latflow.simulation.replay import write_audio
from latflow.simulation.simulator import Simulator
from latflow.training.batches import BatchSource, Targets, open_batches
from latflow.training.data_options import DataOptions
from latflow.training.labels import LabelStore, LabelWriter
from latflow.training.readers import LiveReader, StoreReader, in_pass
from latflow.training.records import DrawnRecords

RATE = 8000
FBANK = StreamOptions(
    type="fbank", num_ceps=13, stored=False, cmvn=NoCmvn(), num_mel_bins=13
)
ROOM = {
    "type": "generated",
    "number": 3,
    "t60": {"type": "uniform", "low": 0.1, "high": 0.3},
    "distance": {"type": "choice", "of": [0.5]},
}
NOISE = {"hiss": {"type": "generated", "snr": {"type": "choice", "of": [10.0]}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Bursts of noise in faint noise, by two speakers; features on the fly, labels."""
    folder = tmp_path_factory.mktemp("live")
    rng = np.random.default_rng(5)
    with ManifestWriter(folder / "cuts.jsonl.gz") as writer:
        for i in range(6):
            length = RATE + 500 * i
            loud = np.repeat(rng.random(length // 1600 + 1) < 0.4, 1600)[:length]
            loud[1600:3200] = True
            wave = np.where(loud, 0.1, 1e-4) * rng.standard_normal(length)
            path = folder / f"u{i}.wav"
            soundfile.write(path, wave, RATE, subtype="FLOAT")
            recording = Recording.from_file(path, recording_id=f"u{i}")
            seconds = recording.duration
            said = SupervisionSegment(
                f"u{i}", f"u{i}", 0, seconds, speaker=f"s{i % 2}", text="x"
            )
            cut = MonoCut(f"u{i}", 0, seconds, 0, [said], recording=recording)
            writer.write(cut)
    prepare_live_features(
        folder / "cuts.jsonl.gz", folder / "frames", options=FBANK,
        max_skipped_fraction=0,
    )  # fmt: skip
    live = LiveFrames(folder / "frames")
    with LabelWriter(folder / "labels", 2) as labels:
        for i, utt_id in enumerate(live.utt_ids):
            labels.append(utt_id, is_loud(live.frames(i)).astype(np.int32))
    return folder


def is_loud(frames):
    return frames.mean(-1) > frames.mean(-1).max() - 5


def source_of(folder, seed=3, simulation=None, **options):
    given = {"rooms": ROOM, "noises": NOISE} if simulation is None else simulation
    data = DataOptions.model_validate(
        {
            "sequences": {"type": "utterances"},
            "normalization": "none",
            "simulation": given,
            **options,
        }
    )
    labels = {"pdf": LabelStore.load(folder / "labels")}
    return open_batches(
        folder / "frames", Targets(labels), data, normalizer=Normalizer(), seed=seed
    )


def contents(batches):
    """What batches hold, whatever their order."""
    return {
        (utt_id, batch.features[row, : batch.lengths[row]].numpy().tobytes())
        for batch in batches
        if batch is not None
        for row, utt_id in enumerate(batch.utterances)
    }


def test_ranks_workers_and_parts_of_a_pass_have_the_same_draws(folder):
    one = contents(source_of(folder).epoch(0))
    several = source_of(folder, prefetch=0, on_the_fly={"threads": 3, "cache_mb": 0})
    ranks = [contents(several.epoch(0, rank=r, size=3)) for r in range(3)]
    assert set.union(*ranks) == one
    parts = source_of(folder, partition_epoch=2)
    assert contents(parts.epoch(0)) | contents(parts.epoch(1)) == one
    assert not contents(parts.epoch(2)) & one
    assert not contents(source_of(folder, seed=4).epoch(0)) & one


def test_draws_are_kept_for_the_passes_asked_for(folder):
    simulation = {"noises": NOISE, "fresh_every": 2}
    source = source_of(folder, simulation=simulation)
    passes = [contents(source.epoch(epoch)) for epoch in range(3)]
    assert passes[0] == passes[1]
    assert not passes[1] & passes[2]


def test_utterances_left_alone_are_computed_once(folder, monkeypatch):
    computed = []
    compute = LiveFrames._compute_one

    def counted(self, wanted, simulation):
        computed.append(wanted.i)
        return compute(self, wanted, simulation)

    monkeypatch.setattr(LiveFrames, "_compute_one", counted)
    source = source_of(folder, simulation={"noises": NOISE, "probability": 0.5})
    passes = [contents(source.epoch(epoch)) for epoch in range(3)]
    alone = set(
        contents(
            source_of(folder, simulation={"noises": NOISE, "probability": 0}).epoch(0)
        )
    )
    simulated = [len(held - alone) for held in passes]
    once = set.union(*passes) & alone
    assert 0 < sum(simulated) < 18
    assert len(computed) - 6 == sum(simulated) + len(once)


def test_speeds_and_simulation_go_together(folder):
    speeds = {"speeds": [0.9, 1.1], "volume": [0.5, 2.0]}
    nothing = {"probability": 0.0, "noises": NOISE}
    both = source_of(folder, perturbation=speeds)
    plain = source_of(folder, perturbation=speeds, simulation=nothing)
    lengths = [
        {
            utt_id: int(length)
            for batch in source.epoch(0)
            for utt_id, length in zip(batch.utterances, batch.lengths, strict=True)
        }
        for source in (both, plain)
    ]
    assert lengths[0] == lengths[1]
    assert not contents(both.epoch(0)) & contents(plain.epoch(0))


def test_labels_are_those_of_the_speech_in_its_room(folder):
    """Bursts begin within the frame that the clean ones begin in."""
    source = source_of(folder, simulation={"rooms": ROOM})
    onsets = 0
    for batch in source.epoch(0):
        for row, length in enumerate(batch.lengths.tolist()):
            label = batch.targets["pdf"][row, :length].numpy()
            level = batch.features[row, :length].numpy().mean(-1)
            (starts,) = np.nonzero(np.diff(label) == 1)
            for t in starts[(starts > 15) & (starts < length - 3)]:
                if label[t - 15 : t + 1].any():
                    continue  # the burst before is still heard
                rise = np.diff(level[t - 3 : t + 4])
                assert abs(int(rise.argmax()) - 3) <= 1
                onsets += 1
    assert onsets >= 3


def test_records_of_an_epoch_are_those_that_training_draws(folder, monkeypatch):
    """Of each part of the pass, and at the speeds that the pass has."""
    used = {}
    apply = Simulator.apply

    def noted(self, record, samples, **keywords):
        assert record.num_samples == len(samples)
        used[record.utterance] = record
        return apply(self, record, samples, **keywords)

    monkeypatch.setattr(Simulator, "apply", noted)
    source = source_of(
        folder, partition_epoch=2, perturbation={"speeds": [0.9, 1.1], "volume": None}
    )
    for epoch in (2, 3):
        contents(source.epoch(epoch))
    given = {"seed": 3, "epoch": 2}
    records = list(DrawnRecords(folder / "frames", source.options, **given))
    assert {record.speed for record in records} == {0.9, 1.1}
    assert {record.volume for record in records} == {None}
    assert used == {
        record.utterance: record.model_copy(update={"speed": None})
        for record in records
    }
    assert {record.whole_pass for record in records} == {1}
    given["epoch"] = 3
    assert list(DrawnRecords(folder / "frames", source.options, **given)) == records


STREET = {"type": "recorded", "files": "noise", "probability": 0.5}
EVERYTHING = {
    "probability": 0.7, "rooms": ROOM, "noises": {**NOISE, "street": STREET},
    "speakers": {"probability": 0.5}, "device": {"telephone": 0.5},
}  # fmt: skip
PAIR = {"microphones": [[-0.1, 0, 0], [0.1, 0, 0]]}
DRAWS = {
    "everything": (EVERYTHING, {"speeds": [0.9, 1.0, 1.1], "volume": [0.3, 20.0]}),
    "speeds": ({"noises": NOISE}, {"speeds": [0.9, 1.1], "volume": None}),
    "array": ({"rooms": ROOM, "array": PAIR}, {"volume": [0.5, 2.0]}),
    "neither": ({"noises": NOISE, "fresh_every": 2}, None),
}


@pytest.mark.parametrize("volume", [None, 0.7], ids=["as_recorded", "manifest_volume"])
@pytest.mark.parametrize("kind", DRAWS)
def test_replayed_records_give_the_features_of_training(
    folder, tmp_path, monkeypatch, kind, volume
):
    """To the bit: from a file, in any number of threads, above full scale, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise").mkdir()
    soundfile.write(tmp_path / "noise/a.wav", np.linspace(-0.1, 0.1, RATE), RATE)
    simulation, perturbation = DRAWS[kind]
    stream = FBANK.replace(channels=(0, 1) if kind == "array" else None)
    cuts = list(read_cuts(folder / "cuts.jsonl.gz"))
    for cut in cuts:
        cut.custom = volume and {"volume": volume}
    write_cuts(tmp_path / "cuts.jsonl.gz", cuts)
    frames = tmp_path / "frames"
    prepare_live_features(
        tmp_path / "cuts.jsonl.gz", frames, options=stream, max_skipped_fraction=0
    )
    data = DataOptions.model_validate(
        {"simulation": simulation, "perturbation": perturbation}
    )
    drawn = DrawnRecords(frames, data, seed=3, epoch=3)
    (tmp_path / "records.jsonl").write_text("".join(map(record_line, drawn)))
    records = list(read_records(tmp_path / "records.jsonl"))
    assert records == list(drawn)
    torch.set_num_threads(2)  # which resampling must not take
    write_audio(
        records, tmp_path / "heard", speech=drawn.speech,
        audio=AudioFiles(data.simulation), rate=RATE, threads=2,
    )  # fmt: skip
    heard = sorted((tmp_path / "heard").glob("*.simulated.wav"))
    for i, (path, record) in enumerate(zip(heard, records, strict=True)):
        recording = Recording.from_file(path, recording_id=record.utterance)
        assert recording.num_samples == record.num_samples
        assert path.name == f"{i:06d}-{record.utterance}.simulated.wav"
        clean, _ = soundfile.read(str(path).replace("simulated", "clean"))
        np.testing.assert_array_equal(clean, drawn.speech.samples(i))
        whole = recording.duration
        said = SupervisionSegment(record.utterance, record.utterance, 0, whole)
        cuts[i] = MonoCut(record.utterance, 0, whole, 0, [said], recording=recording)
    write_cuts(tmp_path / "heard/cuts.jsonl.gz", cuts)
    prepare_live_features(
        tmp_path / "heard/cuts.jsonl.gz", tmp_path / "again", options=stream,
        max_skipped_fraction=0,
    )  # fmt: skip
    again = LiveFrames(tmp_path / "again")
    for threads in (1, 3):
        live = LiveFrames(frames, threads=threads, cache_bytes=0)
        reader = in_pass(LiveReader(live), data, 3, data.pass_of(3))
        lengths = reader.lengths
        trained = np.empty((6, lengths.max(), live.dim), np.float32)
        reader.fill(np.arange(6), np.zeros(6, np.int64), lengths, trained)
        for i in range(6):
            np.testing.assert_array_equal(trained[i, : lengths[i]], again.frames(i))
    if kind == "everything":
        assert len({record.speed for record in records}) > 1
        assert 0 < sum(record.is_simulated for record in records) < 6
        assert max(np.abs(soundfile.read(path)[0]).max() for path in heard) > 1
    drawn_volumes = perturbation and perturbation["volume"]
    has_volumes = bool(drawn_volumes or volume)
    assert {record.volume is not None for record in records} == {has_volumes}


def write_cuts(path, cuts):
    with ManifestWriter(path) as writer:
        for cut in cuts:
            writer.write(cut)


def test_records_of_an_epoch_are_written(repository, folder, tmp_path, capsys):
    """By a command, for a system of a recipe; noises relative to their folder."""
    (tmp_path / "noise/street").mkdir(parents=True)
    soundfile.write(tmp_path / "noise/street/a.wav", np.full(RATE, 0.1), RATE)
    config = yaml.safe_load((repository / "tests/e2e/tiny.yaml").read_text())
    street = {"type": "recorded", "files": str(tmp_path / "noise")}
    stream = {"type": "fbank", "stored": False, "cmvn": {"type": "none"}}
    system = {
        "type": "ce",
        "network": "x.yaml",
        "alignments": "tri1",
        "features": "mel",
    }
    simulated = {"data": {"simulation": {"rooms": ROOM, "noises": {"street": street}}}}
    systems = {"clean": system, "noisy": {**system, **simulated}}
    config |= {"nnet": {"features": {"mel": stream}, "systems": systems}, "seed": 7}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(config))

    def run(name, *further):
        out = tmp_path / "records.jsonl"
        arguments = [name, folder / "frames", out, "--configfile", recipe, *further]
        return main(["simulation-records", *map(str, arguments)])

    assert run("noisy", "--epoch", "3") == 0
    records = list(read_records(tmp_path / "records.jsonl"))
    assert [record.utterance for record in records] == [f"u{i}" for i in range(6)]
    assert {record.whole_pass for record in records} == {2}
    assert {record.noises[0].file for record in records} == {"street/a.wav"}
    simulation = SimulationDraws.model_validate(simulated["data"]["simulation"])
    data = DataOptions(simulation=simulation)
    drawn = DrawnRecords(folder / "frames", data, seed=7, epoch=2)
    assert list(drawn) == records
    assert run("clean") == 1
    assert "systems with data.simulation: no 'clean'" in capsys.readouterr().err
    assert run("noisy", "--epoch", "0") == 1
    assert "--epoch is 0, below 1" in capsys.readouterr().err
    there = tmp_path / "heard"
    assert run("noisy", "--audio", there, "--number", "2") == 0
    assert [path.name for path in sorted(there.iterdir())] == [
        f"00000{i}-u{i}.{kind}.wav" for i in (1, 4) for kind in ("clean", "simulated")
    ]
    assert run("noisy", "--audio", there, "--number", "0") == 1


def test_what_is_simulated_is_counted(folder, tmp_path):
    """Each utterance once, in whatever threads and pieces it is read."""
    soundfile.write(tmp_path / "short.wav", np.full(RATE // 2, 0.1), 2 * RATE)
    short = {"type": "recorded", "files": str(tmp_path), "probability": 0.5}
    simulation = {"probability": 0.8, "rooms": ROOM, "noises": {"short": short}}
    counts = []
    for threads, cache_mb in ((1, 100), (3, 0)):
        source = source_of(
            folder, seed=5, simulation=simulation,
            sequences={"type": "chunks", "size": 20, "step": 10},
            on_the_fly={"threads": threads, "cache_mb": cache_mb},
        )  # fmt: skip
        assert source.pop_statistics() == {}
        contents(source.epoch(1))
        counts.append(source.pop_statistics()["simulation"])
    records = list(DrawnRecords(folder / "frames", source.options, seed=5, epoch=1))
    simulated = [record for record in records if record.is_simulated]
    with_noise = sum(bool(record.noises) for record in records)
    assert 0 < with_noise < len(simulated) < 6
    assert counts[0] == counts[1]
    rooms = {record.room.number: record.room.redraws for record in simulated}
    assert {name: n for name, n in counts[0].items() if n} == {
        "utterances": 6,
        "simulated": len(simulated),
        "with_room": len(simulated),
        "with_noises": with_noise,
        "noises_repeated": with_noise,
        "files_resampled": 1,
        "rooms": len(rooms),
        **({"rooms_drawn_anew": sum(rooms.values())} if any(rooms.values()) else {}),
    }
    assert source.pop_statistics()["simulation"]["utterances"] == 0


def test_dev_is_left_alone_and_stored_features_are_refused(folder, tmp_path):
    data = DataOptions.model_validate({"simulation": {"noises": NOISE}})
    assert data.for_evaluation().simulation is None
    with FrameWriter(tmp_path, dim=2, frame_shift=0.01) as writer:
        writer.append("u", "s", "x", np.zeros((5, 2), np.float32))
    source = BatchSource(StoreReader(FrameStore.load(tmp_path)), Targets(), data)
    with pytest.raises(
        UserError, match="data.simulation is for features that are computed"
    ):
        source.epoch(0)
