"""Masks of features follow from seed, epoch, utterance and chunk, and nothing else."""

from contextlib import closing

import pytest
import torch
from fixtures.training_task import data_options, make_trainer, write_task

from latflow.nnet.layers.augment import SpecAugment
from latflow.nnet.normalization import Normalizer
from latflow.training.batches import Targets, open_batches
from latflow.training.labels import LabelStore

LAYERS = {
    "mask": {"class": "specaugment", "from": "data", "time_warp": 2, "time_width": 3},
    "hidden": {"class": "linear", "size": 12, "activation": "tanh"},
    "output": {"class": "output"},
}
BATCHES = ({"max_sequences": 3}, {"order": "sorted"}, {"max_sequences": 100})


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def keys_of(task, epoch, *, seed=3, ranks=1, first_batch=0, **data):
    """Keys of the chunks of an epoch, by utterance and first frame."""
    source = open_batches(
        task / "frames",
        Targets({"pdf": LabelStore.load(task / "labels")}),
        data_options(**data),
        normalizer=Normalizer(),
        seed=seed,
    )
    found = {}
    for rank in range(ranks):
        with closing(
            source.epoch(epoch, first_batch=first_batch, rank=rank, size=ranks)
        ) as batches:
            for batch in batches:
                for part in [] if batch is None else batch.split(2):
                    places = zip(
                        part.utterances, part.first_frame.tolist(), strict=True
                    )
                    found.update(zip(places, part.keys.tolist(), strict=True))
    return found


@pytest.mark.parametrize("data", BATCHES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_keys_of_chunks_are_the_same_in_any_batch_order_and_rank(task, data, ranks):
    expected = keys_of(task, 1)
    assert len(set(expected.values())) == len(expected) > 12
    assert keys_of(task, 1, ranks=ranks, **data) == expected


def test_keys_are_those_of_the_epoch_and_the_seed(task):
    whole = keys_of(task, 1)
    rest = keys_of(task, 1, first_batch=2)
    assert 0 < len(rest) < len(whole)
    assert rest.items() <= whole.items()
    for other in (keys_of(task, 2), keys_of(task, 1, seed=4)):
        assert other.keys() == whole.keys()
        assert not set(other.values()) & set(whole.values())


def masks_of(task, folder, monkeypatch, **settings):
    """What the masks make of each chunk's features, by what these were."""
    seen, forward = {}, SpecAugment.forward

    def note(self, batch):
        found = forward(self, batch)
        if self.training:
            for b, length in enumerate(batch.lengths.tolist()):
                name = batch.values[b, :length].numpy().tobytes()
                seen.setdefault(name, []).append(found.values[b, :length])
        return found

    with monkeypatch.context() as patch:
        patch.setattr(SpecAugment, "forward", note)
        make_trainer(task, folder, layers=LAYERS, **settings).run()
    return seen


@pytest.mark.parametrize("data", BATCHES)
def test_the_trainer_masks_a_chunk_alike_in_any_batch(
    task, tmp_path, monkeypatch, data
):
    training = {"epochs": 2, "micro_sequences": 2}
    expected = masks_of(task, tmp_path / "a", monkeypatch, training={"epochs": 2})
    found = masks_of(task, tmp_path / "b", monkeypatch, training=training, data=data)
    assert found.keys() == expected.keys()
    changed = 0
    for name, (first, second) in expected.items():
        assert torch.equal(found[name][0], first)
        assert torch.equal(found[name][1], second)
        changed += not torch.equal(first, second)
    assert changed > len(expected) / 2
