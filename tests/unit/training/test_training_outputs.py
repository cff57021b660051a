"""Outputs with losses of their own: features as targets, and sums of losses."""

from contextlib import closing

import numpy as np
import pytest
import torch
from torch.nn import functional

from latflow.criteria.batch import Batch
from latflow.criteria.losses import CrossEntropy, Joint, SquaredError
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.features.options import PerturbationDraws
from latflow.ledger import Ledger
from latflow.nnet.described import OutputLoss
from latflow.nnet.network import Output
from latflow.nnet.normalization import Normalizer
from latflow.training.batches import BatchSource, Targets
from latflow.training.data_options import (
    ChunkOptions,
    ContextOptions,
    DataOptions,
    UtteranceOptions,
)
from latflow.training.frame_targets import StoredTargets, is_counted
from latflow.training.labels import LabelStore, LabelWriter
from latflow.training.readers import StoreReader

LENGTHS = {"u0": 17, "u1": 8, "u2": 23}


def write_frames(folder, dim, lengths, seed=1):
    rng = np.random.default_rng(seed)
    with FrameWriter(folder, dim=dim) as writer:
        for name, length in lengths.items():
            frames = rng.normal(3.0, 2.0, (length, dim)).astype(np.float32)
            writer.append(name, "s", "", frames)
    return FrameStore.load(folder)


@pytest.fixture
def stores(tmp_path):
    own = write_frames(tmp_path / "own", 4, LENGTHS)
    return own, write_frames(tmp_path / "clean", 3, {**LENGTHS, "u9": 5}, seed=2)


def source(stores, options, **given):
    own, clean = stores
    targets = StoredTargets.open(clean.folder, clean.folder)["train"]
    reader = StoreReader(own, Normalizer())
    return BatchSource(reader, Targets(frames={"clean": targets}), options, **given)


def batches(made, epoch=0):
    with closing(made.epoch(epoch)) as found:
        return [batch for batch in found if batch is not None]


@pytest.mark.parametrize("subsampling", [1, 3])
@pytest.mark.parametrize(
    "sequences",
    [
        UtteranceOptions(),
        ChunkOptions(size=6, context=ContextOptions(left=3, right=2)),
    ],
)
def test_targets_are_those_of_the_frames(stores, sequences, subsampling):
    """Each counted frame of the output has the features of its place, normalized."""
    options = DataOptions(sequences=sequences, max_sequences=2, shift_frames=True)
    made = source(stores, options, subsampling=subsampling)
    _, clean = stores
    flat = np.concatenate([clean.frames(i) for i in range(4)]).astype(np.float64)
    mean, deviation = flat.mean(0), flat.std(0)
    for epoch in range(subsampling):
        seen = {name: [] for name in LENGTHS}
        for batch in batches(made, epoch):
            target = batch.targets["clean"]
            counted = is_counted(target)
            assert counted.sum(1).tolist() == batch.counted.tolist()
            for row, name in enumerate(batch.utterances):
                index = clean.utt_ids.index(name)
                for t in counted[row].nonzero().flatten().tolist():
                    frame = int(batch.first_frame[row]) + t * subsampling
                    wanted = (clean.frames(index)[frame] - mean) / deviation
                    np.testing.assert_allclose(target[row, t], wanted, atol=1e-4)
                    seen[name].append(frame)
        for name, length in LENGTHS.items():
            assert sorted(seen[name]) == list(range(epoch, length, subsampling))


def test_utterances_without_targets_are_left_out(stores, tmp_path):
    own, _ = stores
    clean = write_frames(tmp_path / "other", 3, {"u0": 17, "u1": 9})
    ledger = Ledger("test")
    made = source((own, clean), DataOptions(), ledger=ledger)
    assert made.num_utterances == 1
    assert {entry.utterance for entry in ledger.entries} == {"u1", "u2"}
    with pytest.raises(
        UserError, match="none of 3 utterances can be used: 3 have not clean"
    ):
        source((own, write_frames(tmp_path / "none", 3, {"x": 4})), DataOptions())


def test_speeds_cannot_be_drawn(stores):
    draws = PerturbationDraws(speeds=(0.9, 1.0), volume=None)
    with pytest.raises(UserError, match="do not follow"):
        source(stores, DataOptions(perturbation=draws))


def batch_of(targets, counted):
    size = len(counted)
    features = torch.zeros(size, 4, 2)
    zeros = torch.zeros(size, dtype=torch.int64)
    names = tuple(f"u{n}" for n in range(size))
    lengths = torch.full((size,), 4)
    return Batch(names, features, lengths, targets, zeros, zeros, torch.tensor(counted))


def test_squared_error():
    torch.manual_seed(1)
    found = torch.randn(2, 4, 3, requires_grad=True)
    target = torch.randn(2, 4, 3)
    target[1, 2:] = torch.nan
    criterion = SquaredError({"clean": OutputLoss("mse", "clean", 0.5)})
    lengths = torch.tensor([4, 4])
    batch = batch_of({"clean": target}, [4, 2])
    loss = criterion.begin({"clean": Output(found, lengths)}, batch)()
    wanted = (
        0.5
        * 6
        * functional.mse_loss(
            torch.cat([found[0], found[1, :2]]), torch.cat([target[0], target[1, :2]])
        )
    )
    torch.testing.assert_close(loss.value, wanted.double())
    gradient = torch.autograd.grad(loss.value, found, retain_graph=True)[0]
    torch.testing.assert_close(gradient, torch.autograd.grad(wanted, found)[0])
    assert not gradient[1, 2:].any()
    with pytest.raises(UserError, match="no targets called clean"):
        criterion.begin({"clean": Output(found, lengths)}, batch_of({}, [4, 2]))


def test_the_sum_of_losses():
    torch.manual_seed(2)
    outputs = {
        "pdfs": Output(torch.randn(2, 4, 5), torch.tensor([4, 4])),
        "clean": Output(torch.randn(2, 4, 3), torch.tensor([4, 4])),
    }
    labels = torch.randint(5, (2, 4))
    batch = batch_of({"pdf": labels, "clean": torch.randn(2, 4, 3)}, [4, 4])
    ce = CrossEntropy({"pdfs": OutputLoss("ce", "pdf", 1.0)})
    mse = SquaredError({"clean": OutputLoss("mse", "clean", 0.1)})
    joint = Joint([ce, mse])
    loss = joint.begin(outputs, batch)()
    alone = [part.begin(outputs, batch)() for part in (ce, mse)]
    torch.testing.assert_close(loss.value, alone[0].value + alone[1].value)
    assert loss.by_sequence is not None
    torch.testing.assert_close(loss.by_sequence.sum(), loss.value)
    assert set(loss.statistics) <= set(joint.statistics)
    assert loss.statistics["mse"] == alone[1].value
    assert loss.statistics["ce"] == alone[0].value
    assert joint.state() == {"ce": {}, "mse": {}}


def test_frames_without_a_label_still_have_features(stores, tmp_path):
    """A frame counts if it has a target for one output at least."""
    own, clean = stores
    with LabelWriter(tmp_path / "labels", 2) as writer:
        for name, length in LENGTHS.items():
            writer.append(name, np.full(length, -1, np.int32))

    store = LabelStore.load(tmp_path / "labels")
    targets = StoredTargets.open(clean.folder, clean.folder)["train"]
    options = DataOptions(sequences=UtteranceOptions())
    made = BatchSource(
        StoreReader(own, Normalizer()),
        Targets({"pdf": store}, frames={"clean": targets}),
        options,
    )
    [batch] = batches(made)
    assert batch.num_frames == sum(LENGTHS.values())
