"""Training by lattice-free MMI: chunks with supervision, the stage, going on."""

import copy
import json
import logging
import shutil

import numpy as np
import pytest
import torch
from fixtures.lfmmi_task import write_lfmmi_task
from fixtures.training_task import training_options

from latflow.align.supervision_store import Supervisions
from latflow.criteria.denominator import Denominator
from latflow.criteria.lfmmi import LatticeFree, evaluate_lfmmi
from latflow.criteria.options import LfmmiOptions
from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.graphs.chain import ChainGraphs
from latflow.ledger import Ledger
from latflow.nnet.described import OutputLoss
from latflow.nnet.model_dir import load_model
from latflow.nnet.network import Output
from latflow.options import read_options
from latflow.training.checkpoint import CheckpointStore, Position
from latflow.training.data_options import LfmmiDataOptions
from latflow.training.epoch_choice import EpochChoice
from latflow.training.lfmmi import LfmmiJob, train_lfmmi
from latflow.training.options import LfmmiRunOptions
from latflow.training.readers import StoreReader
from latflow.training.supervised import EvenChunker, SupervisedSource

DIM = 5
NETWORK = {
    "edges": "repeat",
    "layers": {
        "near": {"class": "tdnn", "from": "data", "size": 24, "offsets": [-1, 0, 1]},
        "thirds": {"class": "tdnnf", "size": 24, "bottleneck": 8, "stride": 3},
        "output": {"class": "output", "loss": "lfmmi"},
        "xent": {"class": "output", "from": "thirds"},
    },
}


def data_of(**changes):
    small = {
        "sequences": {"type": "chunks", "size": 36},
        "max_sequences": 8,
        "normalization": "none",
    }
    return read_options(LfmmiDataOptions, {**small, **changes}, "data")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """Frames whose mean tells the phone, their supervision, a chain system."""
    folder = tmp_path_factory.mktemp("task")
    means = 1.5 * np.random.default_rng(4).normal(size=(4, DIM))

    def frames(phones, rng):
        return means[phones] + rng.normal(size=(len(phones), DIM))

    write_lfmmi_task(folder, DIM, frames, without="train03")
    (folder / "network.yaml").write_text(json.dumps(NETWORK))
    return folder


def source_of(task, *, context=(4, 4), **changes):
    return SupervisedSource(
        StoreReader(FrameStore.load(task / "train")),
        Supervisions.load(task / "supervisions/train"),
        data_of(**changes),
        context=context,
        subsampling=3,
        seed=2,
    )


@pytest.mark.parametrize("size", [None, 1, 7, 50])
def test_chunks_count_each_frame_once_and_are_of_like_size(size):
    lengths = np.array([1, 3, 49, 50, 74, 75, 260])
    chunker = EvenChunker(lengths, size, subsampling=3)
    chunks = chunker.chunks(np.arange(chunker.begin[-1]))
    for u, total in enumerate(lengths):
        rows = np.flatnonzero(chunks.utterance == u)
        counted = np.concatenate(
            [np.arange(chunks.count_from[i], chunks.count_to[i]) for i in rows]
        )
        assert counted.tolist() == list(range(3 * total))
        assert np.ptp(chunks.length[rows]) <= 3
        if size and len(rows) > 1:
            assert (chunks.length[rows] >= 3 * size // 3 * 2 - 3).all()
            assert (chunks.length[rows] <= 3 * size * 3 // 2 + 3).all()
    assert (chunker.lengths() == chunks.length).all()


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_batches_hold_real_frames_around_chunks_and_copies_of_the_edges(task, epoch):
    source = source_of(task)
    frames = FrameStore.load(task / "train")
    seen, earliest = 0, 1000
    with_epoch = source.epoch(epoch)
    for batch in with_epoch:
        assert batch.features.shape[1] == 4 + 3 * int(batch.counted.max()) + 4
        for b, utterance in enumerate(batch.utterances):
            own = frames.frames(frames.position(utterance))
            times = int(batch.first_frame[b]) - 4 + np.arange(batch.features.shape[1])
            expected = own[times.clip(0, len(own) - 1)]
            assert np.array_equal(batch.features[b].numpy(), expected)
            # 0, 1, -1: at decoding nothing is shifted, on average neither here
            assert (int(batch.first_frame[b]) + 1) % 3 - 1 == (0, 1, -1)[epoch]
            earliest = min(earliest, int(batch.first_frame[b]))
        seen += batch.num_frames
    with_epoch.close()
    assert earliest == (0, 1, -1)[epoch]
    known = Supervisions.load(task / "supervisions/train")
    assert seen == known.num_frames.sum()


@pytest.mark.parametrize("context", [None, (4, 4)])
def test_what_is_read_ahead_is_what_chunks_and_their_context_need(
    task, context, monkeypatch
):
    source = source_of(task, context=context, cache_mb=1, max_sequences=3)
    asked, fill, hold = [], StoreReader.fill, StoreReader.hold

    def note(self, pages, utterance, first, length):
        asked.extend(np.stack([utterance, first, length], 1).tolist())
        return hold(self, pages, utterance, first, length)

    def check(self, utterance, first, length, out):
        for piece in np.stack([utterance, first, length], 1).tolist():
            assert piece in asked
        fill(self, utterance, first, length, out)

    monkeypatch.setattr(StoreReader, "hold", note)
    monkeypatch.setattr(StoreReader, "fill", check)
    for epoch in range(3):
        assert len(list(source.epoch(epoch))) > 1


def test_supervision_of_a_chunk_is_that_of_its_frames(task):
    """In each frame, a chunk allows pdfs that the whole utterance allows."""
    known = Supervisions.load(task / "supervisions/train")
    allowed = {}
    with_epoch = source_of(task).epoch(0)
    for batch in with_epoch:
        for b, utterance in enumerate(batch.utterances):
            graph = batch.supervisions[b]
            times = np.zeros(graph.num_states, int)
            for arc, state in enumerate(graph.sources()):
                times[graph.next_state[arc]] = times[state] + 1
            first = int(batch.first_frame[b]) // 3
            for label, state in zip(graph.ilabel, graph.sources(), strict=True):
                allowed.setdefault((utterance, first + times[state]), set()).add(label)
    with_epoch.close()
    for i, utterance in enumerate(known.utt_ids):
        whole = known.supervision(i)
        for t in range(whole.num_frames):
            first, last = whole.first_arc[whole.first_state[t : t + 2]]
            labels = set(whole.arcs["label"][first:last].tolist())
            assert allowed[utterance, t] <= labels
            assert allowed[utterance, t]


@pytest.mark.parametrize(
    ("split", "subsampling", "told"),
    [
        ("dev", 3, "like train00, which has no supervision - make features and"),
        ("train", 1, "like train00, which has a supervision of .* frames, not "),
    ],
)
def test_why_no_supervision_fits_is_told(task, split, subsampling, told):
    with pytest.raises(UserError, match=f"train: none of .* can be used: .*{told}"):
        SupervisedSource(
            StoreReader(FrameStore.load(task / "train")),
            Supervisions.load(task / f"supervisions/{split}"),
            data_of(),
            context=None,
            subsampling=subsampling,
        )


def test_utterances_without_supervision_are_in_the_ledger(task):
    ledger = Ledger("test")
    SupervisedSource(
        StoreReader(FrameStore.load(task / "train")),
        Supervisions.load(task / "supervisions/train"),
        data_of(),
        context=None,
        subsampling=3,
        ledger=ledger,
    )
    assert [(e.utterance, e.reason) for e in ledger.entries] == [
        ("train03", "has no supervision")
    ]


def test_micro_batches_hold_the_same_chunks(task):
    batches = source_of(task).epoch(0)
    batch = next(batches)
    batches.close()
    for part in batch.split(3):
        longest = 3 * int(part.counted.max())
        assert part.features.shape[1] == 8 + longest
        assert (part.lengths == longest).all()
        for row, graph in enumerate(part.supervisions):
            same = [i for i, g in enumerate(batch.supervisions) if g is graph]
            whole = batch.features[same[0], : 8 + longest]
            assert torch.equal(part.features[row], whole)


def test_the_loss_is_the_criterion_and_the_weighted_cross_entropy(task):
    graphs = ChainGraphs.read(task / "chain")
    denominator = Denominator(graphs.denominator, graphs.initial_probs, 6)
    options = LfmmiOptions(l2=0.01, xent=0.3)
    batches = source_of(task).epoch(0)
    batch = next(batches)
    batches.close()
    num_out = int(batch.counted.max())
    main, side = (torch.randn(len(batch), num_out, 6) for _ in range(2))
    found = evaluate_lfmmi(
        main, batch.supervisions, denominator, options, lengths=batch.counted.tolist()
    )
    logs = torch.log_softmax(side, -1)
    xent = -(logs * found.numerator_posteriors).sum(dtype=torch.float64)
    losses = {
        "output": OutputLoss("lfmmi", "pdf", 1.0),
        "x": OutputLoss("ce", "pdf", 2.0),
    }
    outputs = {"output": Output(main, batch.lengths), "x": Output(side, batch.lengths)}
    wanted = {True: -found.value.sum() + 0.6 * xent, False: -found.objective.sum()}
    for is_training, expected in wanted.items():
        criterion = LatticeFree(losses, denominator, options, is_training=is_training)
        loss = criterion.begin(outputs, batch)()
        criterion.close()
        torch.testing.assert_close(loss.value, expected, rtol=1e-6, atol=0)
        assert loss.num_frames == int(batch.counted.sum())
        torch.testing.assert_close(loss.statistics["xent"], xent)


def options(**training):
    quiet = {"epochs": 3, "learning_rate": 0.01, "max_change": 2.0, "final": "last"}
    return LfmmiRunOptions(
        data=data_of(),
        training=training_options(**{**quiet, **training}),
        device="cpu",
        seed=3,
    )


def train(task, out, **others):
    settings = {
        "options": options(),
        "checkpoints": out.parent / "c",
        "network": task / "network.yaml",
        **others,
    }
    train_lfmmi(
        LfmmiJob(
            **settings,
            frames_dir=task / "train",
            supervisions_dir=task / "supervisions/train",
            dev_frames_dir=task / "dev",
            dev_supervisions_dir=task / "supervisions/dev",
            chain_dir=task / "chain",
            out_dir=out,
        )
    )
    return json.loads((out / "info.json").read_text())


@pytest.fixture(scope="module")
def trained(task, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "model"
    return out, train(task, out)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_ensemble_is_the_mean_of_networks_of_other_seeds(
    task, trained, tmp_path, threads
):
    out = tmp_path / "both"
    train(task, out, options=options(ensemble=2), threads=threads)
    alone = tmp_path / "alone"
    train(task, alone, options=options().replace(seed=4))
    x, lengths = torch.randn(2, 30, DIM), torch.tensor([30, 21])
    both, first, second = (
        load_model(folder).log_likelihoods(x, lengths)[0]
        for folder in (out, trained[0], alone)
    )
    assert not torch.allclose(first, second, atol=0.1)
    torch.testing.assert_close(both, (first + second) / 2)
    (kept,) = (tmp_path / "c").iterdir()  # of the network that was trained alone
    assert kept.name == "finished"
    for name, folder in (("log.jsonl", trained[0]), ("log.member2.jsonl", alone)):
        told, expected = (
            [
                json.loads(line)["train"]
                for line in text.splitlines()
                if '"train"' in line
            ]
            for text in ((out / name).read_text(), (folder / "log.jsonl").read_text())
        )
        assert told == expected
    info = json.loads((out / "info.json").read_text())
    assert info["num_parameters"] == load_model(out).network.num_parameters
    assert info["num_parameters"] > trained[1]["num_parameters"]


def test_training_raises_the_objective_of_dev(trained):
    out, info = trained
    objectives = [epoch["objective"] for epoch in info["history"]]
    assert objectives[-1] > objectives[0]
    lines = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    epochs = [line for line in lines if line["kind"] == "epoch"]
    for split in ("train", "dev"):
        # the cross-entropy of 6 pdfs by chance is 1.79
        assert all(0 < epoch[split]["xent"] < 2.5 for epoch in epochs)
        assert epochs[-1][split]["xent"] < epochs[0][split]["xent"]
    assert info["dev"]["failed_frames"] == 0
    model = load_model(out)
    assert model.log_priors is None
    assert model.meta["scores"] == "log_likelihoods"
    assert (out / "tree").is_file()
    reasons = (out / "ledger.jsonl").read_text()
    assert "train03" in reasons


def test_the_scales_are_told_at_the_start_and_kept(trained, task, tmp_path, caplog):
    expected = {
        "acoustic_scale": 1.0,
        "lm_scale": 1.0,
        "leaky_hmm": 0.1,
        "l2": 0.0,
        "out_of_range": 0.01,
        "xent": 0.1,
        "prior_scale": 0.0,
    }
    assert load_model(trained[0]).meta["scales"] == expected
    told = options(epochs=1).replace(criterion=LfmmiOptions(l2=5e-5, xent=0.3))
    with caplog.at_level(logging.INFO):
        train(task, tmp_path / "m", options=told)
    (line,) = [x for x in caplog.messages if x.startswith("scales of")]
    assert line == (
        "scales of lfmmi: acoustic_scale 1, lm_scale 1, leaky_hmm 0.1, l2 5e-05, "
        "out_of_range 0.01, xent 0.3, prior_scale 0"
    )


def test_a_training_starts_from_its_parent(task, trained, tmp_path):
    still = options(epochs=1, learning_rate=1e-9, constrain_share=0.0)
    out = tmp_path / "model"
    train(task, out, options=still, parent_dir=trained[0])
    before = load_model(trained[0]).network.state_dict()
    for name, value in load_model(out).network.named_parameters():
        torch.testing.assert_close(value, before[name], rtol=1e-4, atol=1e-5)


def stop_after(count, task, out, **settings):
    """Train, and be stopped behind some steps."""
    steps = []

    def stop(self, totals):
        steps.append(totals)
        if len(steps) == count:
            raise RuntimeError("stopped")

    whole = settings.pop("options", options())
    often = whole.replace(training=whole.training.replace(checkpoint_minutes=1e-9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LatticeFree, "stepped", stop)
        with pytest.raises((RuntimeError, UserError)):
            train(task, out, options=often, **settings)


def test_a_training_that_is_stopped_ends_with_the_same_bits(task, trained, tmp_path):
    out, _ = trained
    stopped = tmp_path / "model"
    stop_after(4, task, stopped)
    train(task, stopped)
    first, second = (
        load_model(folder).network.state_dict() for folder in (out, stopped)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


ZIPFORMER = {
    "layers": {
        "thirds": {"class": "conv1d", "size": 16, "stride": 3},
        "swoosh": {"class": "activation", "function": "swoosh_r"},
        "norm": {"class": "bias_norm"},
        **{
            f"stack{factor}": {
                "class": "zipformer", "downsampling": factor, "size": 12 + 4 * factor,
                "heads": 2, "query": 8, "feed_forward": 32, "kernel": 5,
                "positions": "relative", "dropout": 0.1,
            }
            for factor in (1, 2)
        },
        "output": {"class": "output", "loss": "lfmmi"},
        "xent": {"class": "output", "from": "stack2"},
    },
}  # fmt: skip


def test_a_zipformer_learns_by_scaled_adam_and_goes_on_with_the_same_bits(
    task, tmp_path
):
    (tmp_path / "zipformer.yaml").write_text(json.dumps(ZIPFORMER))
    scaled = {
        "optimizer": {"type": "scaled_adam", "clip_history": 4},
        "schedule": {"type": "eden", "steps": 20.0},
        "learning_rate": 0.045,
        "max_change": None,
        "clip_norm": None,
    }
    whole = options(**scaled)
    whole = whole.replace(data=data_of(sequences={"type": "utterances"}))
    settings = {"options": whole, "network": tmp_path / "zipformer.yaml"}
    info = train(task, tmp_path / "whole/model", **settings)
    objectives = [epoch["objective"] for epoch in info["history"]]
    assert objectives[-1] > objectives[0] + 0.1
    stop_after(4, task, tmp_path / "model", **settings)
    train(task, tmp_path / "model", **settings)
    first, second = (
        load_model(tmp_path / folder).network.state_dict()
        for folder in ("whole/model", "model")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_network_of_another_training_is_refused(task, tmp_path):
    layers = {**NETWORK["layers"], "output": {"class": "output"}}
    network = tmp_path / "network.yaml"
    network.write_text(json.dumps({**NETWORK, "layers": layers}))
    shutil.copytree(task, tmp_path / "task")
    shutil.copy(network, tmp_path / "task/network.yaml")
    with pytest.raises(UserError, match="has outputs with the losses ce, ce"):
        train(tmp_path / "task", tmp_path / "model")


def test_the_last_networks_are_averaged(task, trained, tmp_path):
    written, save = {}, CheckpointStore.save

    def note(self, position, state, wanted):
        written[position] = copy.deepcopy(state["model"])
        assert state["scales"]["leaky_hmm"] == 0.1
        save(self, position, state, wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointStore, "save", note)
        # on dev the last one alone is better
        patch.setattr(EpochChoice, "candidates", [[2, 3]])
        info = train(task, tmp_path / "m", options=options(final="average", average=2))
    out, last = trained
    assert info["chosen_epoch"] == 0
    assert info["history"] == last["history"]
    ends = [written[Position(epoch + 1)] for epoch in (2, 3)]
    final = load_model(out).network.state_dict()
    for name, value in load_model(tmp_path / "m").network.state_dict().items():
        assert torch.equal(ends[1][name], final[name])
        mean = (ends[0][name].double() + ends[1][name].double()) / 2
        torch.testing.assert_close(value.double(), mean, rtol=1e-6, atol=1e-7)
        if name.endswith("weight"):
            assert not torch.equal(value, final[name])
