"""Simulation in the batches of a training: draws by pass, labels of the speech."""

import numpy as np
import pytest
import soundfile
import yaml
from lhotse import MonoCut, Recording, SupervisionSegment

from latflow.cli.main import main
from latflow.corpus.json_lines import ManifestWriter
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.features.live import LiveFrames, prepare_live_features
from latflow.features.options import NoCmvn, StreamOptions
from latflow.nnet.normalization import Normalizer
from latflow.simulation.options import SimulationDraws
from latflow.simulation.records import read_records
from latflow.simulation.simulator import Simulator
from latflow.training.batches import BatchSource, open_batches
from latflow.training.data_options import DataOptions
from latflow.training.labels import LabelStore, LabelWriter
from latflow.training.readers import StoreReader, drawn_records

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
        folder / "frames", labels, data, normalizer=Normalizer(), seed=seed
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
    records = list(drawn_records(folder / "frames", source.options, **given))
    assert {record.utterance: record for record in records} == used
    assert {record.whole_pass for record in records} == {1}
    given["epoch"] = 3
    assert list(drawn_records(folder / "frames", source.options, **given)) == records


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
    drawn = drawn_records(folder / "frames", data, seed=7, epoch=2)
    assert list(drawn) == records
    assert run("clean") == 1
    assert "systems with data.simulation: no 'clean'" in capsys.readouterr().err
    assert run("noisy", "--epoch", "0") == 1


def test_what_is_simulated_is_counted(folder, tmp_path):
    """Each utterance once, in whatever threads and pieces it is read."""
    soundfile.write(tmp_path / "short.wav", np.full(RATE // 4, 0.1), RATE)
    short = {"type": "recorded", "files": str(tmp_path), "probability": 0.5}
    simulation = {"probability": 0.8, "rooms": ROOM, "noises": {"short": short}}
    counts = []
    for threads, cache_mb in ((1, 100), (3, 0)):
        source = source_of(
            folder, seed=5, simulation=simulation,
            sequences={"type": "chunks", "size": 20, "step": 10},
            on_the_fly={"threads": threads, "cache_mb": cache_mb},
        )  # fmt: skip
        assert source.take_statistics() == {}
        contents(source.epoch(1))
        counts.append(source.take_statistics()["simulation"])
    records = list(drawn_records(folder / "frames", source.options, seed=5, epoch=1))
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
        "rooms": len(rooms),
        **({"rooms_drawn_anew": sum(rooms.values())} if any(rooms.values()) else {}),
    }
    assert source.take_statistics()["simulation"]["utterances"] == 0


def test_dev_is_left_alone_and_stored_features_are_refused(folder, tmp_path):
    data = DataOptions.model_validate({"simulation": {"noises": NOISE}})
    assert data.for_evaluation().simulation is None
    with FrameWriter(tmp_path, dim=2, frame_shift=0.01) as writer:
        writer.append("u", "s", "x", np.zeros((5, 2), np.float32))
    source = BatchSource(StoreReader(FrameStore.load(tmp_path)), {}, data)
    with pytest.raises(UserError, match="stored features cannot be simulated"):
        source.epoch(0)
