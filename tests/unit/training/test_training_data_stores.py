"""Labels, joins, normalization, HDF5: round trips and what is refused."""

import json
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures.small_model import small_model
from reference.training_data_naive import data_of

from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.kaldi.io import write_int_vectors
from latflow.ledger import Ledger
from latflow.nnet.normalization import Normalizer
from latflow.options import read_options
from latflow.training import labels as labelling
from latflow.training.batches import BatchSource, Targets, open_batches
from latflow.training.chunks import match_labels
from latflow.training.data_options import DataOptions
from latflow.training.evaluation import priors_of_labels
from latflow.training.labels import LabelStore, LabelWriter
from latflow.training.readers import StoreReader, open_features
from latflow.training.sampling import UtteranceWeights


def write_labels(folder: Path, labels: dict[str, list[int]], classes: int = 9) -> Path:
    with LabelWriter(folder, classes) as writer:
        for utt_id, values in labels.items():
            writer.append(utt_id, np.array(values, np.int32))
    return folder


def write_frames(
    folder: Path, lengths: dict[str, int], dim: int = 2, *, speakers: int = 1
) -> Path:
    generator = np.random.default_rng(0)
    with FrameWriter(folder, dim=dim) as writer:
        for i, (utt_id, length) in enumerate(lengths.items()):
            values = generator.normal(3.0, 2.0, (length, dim))
            speaker = f"speaker{min(i, speakers - 1)}"
            writer.append(utt_id, speaker, "text", values)
    return folder


def test_labels_come_back_in_any_order(tmp_path: Path) -> None:
    wanted = {"b": [1, -1, 8], "a": [], "c": [0, 0]}
    store = LabelStore.load(write_labels(tmp_path / "labels", wanted))
    assert store.utt_ids == ["b", "a", "c"]
    assert store.num_classes == 9
    assert [store.labels(i).tolist() for i in range(3)] == [[1, -1, 8], [], [0, 0]]
    assert store.counts().tolist() == [2, 1, 0, 0, 0, 0, 0, 0, 1]
    again = pickle.loads(pickle.dumps(store))
    assert again.labels(0).tolist() == [1, -1, 8]
    assert not again.labels(0).flags.writeable


def test_classes_count_by_the_weights_of_their_utterances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Priors of a network that sees one corpus more often than another."""
    wanted = {"tv-b": [1, -1, 8], "web-a": [], "web-c": [0, 0, 8]}
    store = LabelStore.load(write_labels(tmp_path / "labels", wanted))
    weights = UtteranceWeights(np.array([-1, 0, 0]), [(2.0, 0.5)], 1).final()
    monkeypatch.setattr(labelling, "_BLOCK", 2)
    assert store.counts(weights).tolist() == [1.0, 1.0, *[0.0] * 6, 1.5]
    assert priors_of_labels(store, weights)[8] == 1.5 / 3.5


def test_an_empty_label_store_is_one(tmp_path: Path) -> None:
    store = LabelStore.load(write_labels(tmp_path / "labels", {}))
    assert (len(store), store.utt_ids, store.counts().sum()) == (0, [], 0)


@pytest.mark.parametrize(
    ("labels", "message"),
    [({"a": [9]}, "a: label 9, but there are 9"), ({"a": [-2]}, "a: label -2, but")],
)
def test_labels_out_of_range_are_refused(
    tmp_path: Path, labels: dict[str, list[int]], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        write_labels(tmp_path / "labels", labels)


def test_an_utterance_with_labels_twice_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match="a: has labels twice"),
        LabelWriter(tmp_path, 3) as writer,
    ):
        for utt_id in ("a", "b", "a"):
            writer.append(utt_id, np.zeros(2, np.int32))


def test_a_damaged_label_store_is_refused(tmp_path: Path) -> None:
    folder = write_labels(tmp_path / "labels", {"a": [1, 2]})
    np.save(folder / "labels.npy", np.zeros(3, np.int32))
    with pytest.raises(UserError, match="labels and index differ"):
        LabelStore.load(folder)
    for told in ('{"num_classes": -1}', f'{{"num_classes": {2**70}}}', None):
        meta = folder / "meta.json"
        if told is None:
            meta.unlink()
        else:
            meta.write_text(json.dumps(json.loads(meta.read_text()) | json.loads(told)))
        with pytest.raises(UserError, match="not a readable label store"):
            LabelStore.load(folder)


def test_pdf_labels_are_those_of_the_transition_ids(tmp_path: Path) -> None:
    model = small_model()
    ids = np.arange(1, model.num_transition_ids + 1, dtype=np.int32)
    write_int_vectors(tmp_path / "ali.ark", [("a", ids), ("b", ids[::-1])])
    store = labelling.write_labels(tmp_path / "ali.ark", model, tmp_path / "labels")
    assert store.num_classes == model.num_pdfs
    assert store.labels(0).tolist() == model.pdf[1:].tolist()
    assert store.labels(1).tolist() == model.pdf[:0:-1].tolist()
    again = labelling.write_labels(store.folder, model, tmp_path / "again")
    assert again.utt_ids == store.utt_ids
    assert again.flat.tolist() == store.flat.tolist()
    # labels of another tree may all be pdfs of this one
    for num_classes in (model.num_pdfs - 1, 999):
        others = write_labels(tmp_path / "others", {"a": [0]}, num_classes)
        told = f"others: has labels of {num_classes} pdfs, and the tree has"
        with pytest.raises(UserError, match=told):
            labelling.write_labels(others, model, tmp_path / "labels")
    write_int_vectors(tmp_path / "bad.ark", [("a", ids + 1)])
    with pytest.raises(UserError, match=r"bad.ark: a: an alignment with transi"):
        labelling.write_labels(tmp_path / "bad.ark", model, tmp_path / "labels")


def test_the_ledger_has_the_utterances_that_cannot_be_used(tmp_path: Path) -> None:
    lengths = {"a": 4, "b": 4, "c": 4, "d": 4, "e": 2, "f": 9}
    frames = FrameStore.load(write_frames(tmp_path / "frames", lengths))
    labels = {"a": [0] * 4, "c": [1] * 2, "d": [1] * 3, "e": [1] * 2, "f": [1] * 9}
    store = LabelStore.load(write_labels(tmp_path / "labels", labels))
    ledger = Ledger("train")
    joined = match_labels(
        frames.utt_ids,
        np.diff(frames.begin),
        {"pdf": store},
        data_of(min_length=3, max_length=8),
        subsampling=2,
        ledger=ledger,
    )
    # c has a label for two frames; e and f are too short and too long, on purpose
    assert joined.utterance.tolist() == [0, 2]
    assert joined.targets["pdf"].step.tolist() == [1, 2]
    assert joined.outside.number == 2
    assert [(e.utterance, e.reason) for e in ledger.entries] == [
        ("b", "has no labels (pdf)"),
        ("d", "has 3 labels (pdf), but 4 frames"),
    ]


@pytest.mark.parametrize(
    ("labels", "bounds", "told"),
    [
        (
            {"z": [0]},
            {},
            "2 like a, which has no labels (pdf) - make features and labels",
        ),
        (
            {"a": [0] * 8, "b": [0] * 12},
            {},
            "2 like a, which has 8 labels (pdf), but 4 frames - take labels of "
            "features with the same frame shift",
        ),
        (
            {"a": [0] * 4, "b": [0] * 6},
            {"min_length": 7, "max_length": 9},
            "2 of 4 to 6 frames, where data.min_length and data.max_length want 7 and "
            "at most 9 - set them to",
        ),
        (
            {"a": [0] * 9},
            {"min_length": 5},
            "1 of 4 to 4 frames, where data.min_length and data.max_length want 5 and "
            "more, 1 like b, which has no labels (pdf) - ",
        ),
    ],
)
def test_why_no_utterance_can_be_used_is_told(tmp_path, labels, bounds, told):
    frames = FrameStore.load(write_frames(tmp_path / "dev", {"a": 4, "b": 6}))
    store = LabelStore.load(write_labels(tmp_path / "labels", labels))
    with pytest.raises(UserError) as caught:
        BatchSource(StoreReader(frames), Targets({"pdf": store}), data_of(**bounds))
    start = f"{tmp_path}/dev: none of 2 utterances can be used: "
    assert str(caught.value).startswith(start + told)


def test_parts_of_passes_without_sequences_are_refused(tmp_path: Path) -> None:
    """Kaldi-like counts of parts, far above a small corpus, would train nothing."""
    frames = FrameStore.load(write_frames(tmp_path / "frames", {"a": 4, "b": 6}))

    def batches(**options):
        return len(BatchSource(StoreReader(frames), Targets(), data_of(**options)))

    assert batches(partition_epoch=2) == 1
    with pytest.raises(UserError, match="epoch 1 has none of 2 utterances: data.part"):
        batches(partition_epoch=3)
    with pytest.raises(UserError, match="cuts each pass into 2"):
        batches(partition_epoch=2, subsets=[0.5, 1.0])


def test_with_a_tolerance_frames_beyond_the_labels_do_not_count(tmp_path: Path) -> None:
    frames = FrameStore.load(write_frames(tmp_path / "frames", {"a": 5, "b": 3}))
    labels = write_labels(tmp_path / "labels", {"a": [1, 2, 3], "b": [4, 5, 6, 7]})
    options = data_of(order="default", length_tolerance=2)
    source = BatchSource(
        StoreReader(frames), Targets({"pdf": LabelStore.load(labels)}), options
    )
    (batch,) = source.epoch(0)
    assert batch is not None
    wanted = [[1, 2, 3, -1, -1], [4, 5, 6, -1, -1]]
    assert batch.targets["pdf"].tolist() == wanted
    assert batch.counted.tolist() == [3, 3]


def test_labels_at_the_rate_of_the_output_are_taken_as_they_are(tmp_path: Path) -> None:
    frames = FrameStore.load(write_frames(tmp_path / "frames", {"a": 7}))
    slow = write_labels(tmp_path / "slow", {"a": [1, 2, 3]})
    options = data_of(3, order="default")
    source = BatchSource(
        StoreReader(frames),
        Targets({"x": LabelStore.load(slow)}),
        options,
        subsampling=3,
    )
    (batch,) = source.epoch(0)
    assert batch is not None
    # the last chunk counts frame 6; it reaches back to the frame 3 to be a whole one
    assert batch.first_frame.tolist() == [0, 3, 3]
    assert batch.targets["x"].tolist() == [[1, -1], [2, -1], [-1, 3]]


def test_several_targets_share_the_frames(tmp_path: Path) -> None:
    frames = FrameStore.load(write_frames(tmp_path / "frames", {"a": 3}))
    stores = {
        "pdf": LabelStore.load(write_labels(tmp_path / "p", {"a": [1, -1, -1]})),
        "phone": LabelStore.load(write_labels(tmp_path / "q", {"a": [-1, 5, -1]}, 6)),
    }
    source = BatchSource(StoreReader(frames), Targets(stores), data_of())
    assert source.num_classes == {"pdf": 9, "phone": 6}
    (batch,) = source.epoch(0)
    assert batch is not None
    assert batch.targets["phone"].tolist() == [[-1, 5, -1]]
    assert batch.num_frames == 2


def test_chunks_that_do_not_fit_the_subsampling_are_refused(tmp_path: Path) -> None:
    reader = StoreReader(FrameStore.load(write_frames(tmp_path / "f", {"a": 9})))
    with pytest.raises(UserError, match="size 80 is not a multiple .* subsampling 3"):
        BatchSource(reader, Targets(), data_of(80), subsampling=3)
    with pytest.raises(UserError, match="left 1 is not a multiple"):
        BatchSource(reader, Targets(), data_of(81, left=1), subsampling=3)
    with pytest.raises(UserError, match="step 82 is more than size 80"):
        BatchSource(reader, Targets(), data_of(80, 82))


class BrokenReader(StoreReader):
    """Fails at the frames of one utterance."""

    def fill(self, utterance, first, length, out):
        if 2 in utterance:
            raise UserError("disk gone", utterance=self.utt_ids[2])
        super().fill(utterance, first, length, out)


@pytest.mark.parametrize("prefetch", [0, 1, 9])
def test_an_error_of_the_background_comes_in_its_turn(
    tmp_path: Path, prefetch: int
) -> None:
    lengths = {f"u{i}": 4 for i in range(6)}
    store = FrameStore.load(write_frames(tmp_path / "frames", lengths))
    options = data_of(order="default", max_sequences=1, prefetch=prefetch)
    batches = BatchSource(BrokenReader(store), Targets(), options).epoch(0)
    assert [next(batches).utterances for _ in range(2)] == [("u0",), ("u1",)]
    with pytest.raises(UserError, match="u2: disk gone"):
        next(batches)


def test_closing_an_epoch_ends_its_thread(tmp_path: Path) -> None:
    lengths = {f"u{i}": 4 for i in range(6)}
    store = FrameStore.load(write_frames(tmp_path / "frames", lengths))
    options = data_of(max_sequences=1, prefetch=2)
    before = threading.active_count()
    batches = BatchSource(StoreReader(store), Targets(), options).epoch(0)
    next(batches)
    assert threading.active_count() == before + 1
    batches.close()
    assert threading.active_count() == before


def test_a_batch_moves_as_a_whole(tmp_path: Path) -> None:
    reader = StoreReader(FrameStore.load(write_frames(tmp_path / "f", {"a": 9})))
    labels = LabelStore.load(write_labels(tmp_path / "l", {"a": [1] * 9}))
    (batch,) = BatchSource(reader, Targets({"pdf": labels}), data_of()).epoch(0)
    moved = batch.to("meta")
    assert moved.features.device == moved.targets["pdf"].device == torch.device("meta")
    assert moved.lengths.device == torch.device("cpu")
    assert moved.num_frames == 9


@pytest.mark.parametrize("kind", ["none", "mean", "mean_variance", "global"])
def test_a_normalization_travels_with_the_model(tmp_path: Path, kind: str) -> None:
    store = FrameStore.load(write_frames(tmp_path / "frames", {"a": 50, "b": 70}))
    normalizer = Normalizer.estimate(kind, store)
    again = Normalizer.from_meta(json.loads(json.dumps(normalizer.to_meta())))
    frames = store.frames(1)
    np.testing.assert_array_equal(again(frames), normalizer(frames))
    everything = normalizer(store.block(0, 2) if kind == "global" else frames)
    if kind != "none":
        np.testing.assert_allclose(everything.mean(0), 0, atol=1e-5)
    if kind in {"mean_variance", "global"}:
        np.testing.assert_allclose(everything.std(0), 1, atol=1e-4)


def test_a_constant_feature_becomes_zero_not_noise() -> None:
    frames = np.full((20, 2), 0.1, np.float32)
    assert np.abs(Normalizer("mean_variance")(frames)).max() < 1e-4


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"type": "variance"},
        {"type": "global"},
        {"type": "global", "mean": [1], "scale": [1, 2]},
        {"type": "global", "mean": ["x"], "scale": [1]},
    ],
)
def test_unknown_normalizations_are_refused(meta: dict[str, object]) -> None:
    with pytest.raises(UserError, match="normalization"):
        Normalizer.from_meta(meta)


def test_every_key_of_the_section_is_used(tmp_path: Path) -> None:
    lengths = {f"u{i}": 10 + i for i in range(8)}
    frames = write_frames(tmp_path / "frames", lengths, speakers=3)

    def batches(values: dict[str, object], epoch: int = 0) -> list[object]:
        options = read_options(DataOptions, values, "data")
        features = open_features(frames, options)
        normalizer = Normalizer.estimate(options.normalization, features)
        source = open_batches(frames, Targets(), options, normalizer=normalizer, seed=1)
        assert source.options.prefetch == options.prefetch
        return [
            (
                b.utterances,
                b.first_frame.tolist(),
                b.features.sum().item(),
                b.counted.tolist(),
            )
            for b in source.epoch(epoch)
        ]

    plain = batches({})
    assert plain == batches({"prefetch": 0}) == batches({"cache_mb": 1})
    for values in (
        {"sequences": {"type": "utterances"}, "max_sequences": 3},
        {"max_sequences": 2},
        {"max_frames": 30},
        {"min_length": 12},
        {"max_length": 12},
        {"order": "sorted"},
        {"order": "laplace:2"},
        {"max_sequences": 3, "buckets": 2},
        {"partition_epoch": 2},
        {"subsets": [0.5]},
        {"source_weights": {"u3": [2]}},
        {"sampling": {"speaker_power": 0.5}},
        {"sampling": {"length_power": 2.0}},
        {"normalization": "none"},
        {"normalization": "global"},
        {"sequences": {"type": "chunks", "size": 5}},
        {"sequences": {"type": "chunks", "size": 5, "step": 2}},
        {"sequences": {"type": "chunks", "size": 5, "context": {"left": 2}}},
        {"sequences": {"type": "chunks", "size": 5, "context": {"right": 2}}},
    ):
        assert batches(values) != plain, values
    few = {"sequences": {"type": "chunks", "size": 5}}
    assert batches({**few, "pool": 1}) != batches(few)
    quadratic = {"max_frames": 40, "quadratic_frames": 10}
    assert batches(quadratic) != batches({"max_frames": 40})
    with pytest.raises(UserError, match="order"):
        read_options(DataOptions, {"order": "laplace"}, "data")
