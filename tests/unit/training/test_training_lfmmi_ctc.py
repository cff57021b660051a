"""LF-MMI with CTC beside it: both losses in a batch, the stage, going on."""

import json

import numpy as np
import pytest
import torch
from fixtures.lfmmi_task import write_lfmmi_task
from fixtures.training_task import training_options

from latflow.align.ctc import CtcGraphs, ctc_graph
from latflow.align.supervision_store import Supervisions
from latflow.criteria.batch import SupervisedBatch
from latflow.criteria.ctc import evaluate_ctc
from latflow.criteria.lfmmi import LatticeFree
from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.fst.graph import ARC, Graph
from latflow.nnet.model_dir import load_model
from latflow.options import read_options
from latflow.ragged import RaggedWriter
from latflow.training.data_options import LfmmiDataOptions
from latflow.training.lfmmi import LfmmiJob, LfmmiTask, train_lfmmi
from latflow.training.options import LfmmiRunOptions

DIM, LABELS = 5, 4
WITHOUT = "train05"


def network(*, edges, xent=True):
    layers = {
        "near": {"class": "tdnn", "from": "data", "size": 24, "offsets": [-1, 0, 1]},
        "thirds": {"class": "tdnnf", "size": 24, "bottleneck": 8, "stride": 3},
        "output": {"class": "output", "loss": "lfmmi"},
        "ctc": {
            "class": "output",
            "from": "thirds",
            "loss": "ctc",
            "loss_scale": 0.5,
        },
    }
    if xent:
        layers["xent"] = {"class": "output", "from": "thirds"}
    return {"edges": edges, "layers": layers}


def linear(labels):
    """Return the CTC graph of a label sequence."""
    arcs = np.zeros(len(labels), ARC)
    arcs["ilabel"] = arcs["olabel"] = labels
    arcs["next_state"] = 1 + np.arange(len(labels))
    final = np.full(len(labels) + 1, np.inf, np.float32)
    final[-1] = 0.0
    return ctc_graph(Graph.from_arc_list(0, np.arange(len(labels)), arcs, final))


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """The task of LF-MMI, and graphs of short transcripts; one lacks its own."""
    folder = tmp_path_factory.mktemp("task")
    means = 1.5 * np.random.default_rng(4).normal(size=(4, DIM))

    def frames(phones, rng):
        return means[phones] + rng.normal(size=(len(phones), DIM))

    write_lfmmi_task(folder, DIM, frames, without="train03")
    meta = {"num_pdfs": LABELS, "subsampling": 3}
    for split in ("train", "dev"):
        store = folder / "ctc" / split
        store.mkdir(parents=True)
        with RaggedWriter(store, CtcGraphs, meta=meta) as writer:
            ids = [x for x in FrameStore.load(folder / split).utt_ids if x != WITHOUT]
            graphs = [linear(labels_of(name)) for name in ids]
            for name, graph in zip(ids, graphs, strict=True):
                writer.write(name, graph.arcs, graph.states)
            writer.index["starts"] = np.array([g.start for g in graphs], np.int64)
            writer.index["num_frames"] = np.full(len(ids), 9, np.int64)
    return folder


def labels_of(utterance):
    """Return the labels of an utterance, few enough for its frames."""
    return [1 + int(utterance[-1]) % 3]


def job_of(task, out, *, edges="zeros", xent=True, sequences=None, **training):
    quiet = {"epochs": 3, "learning_rate": 0.01, "max_change": 2.0, "final": "last"}
    data = {
        "sequences": sequences or {"type": "utterances"},
        "max_sequences": 5,
        "normalization": "none",
    }
    description = out.parent / f"{edges}.yaml"
    description.write_text(json.dumps(network(edges=edges, xent=xent)))
    return LfmmiJob(
        options=LfmmiRunOptions(
            data=read_options(LfmmiDataOptions, data, "data"),
            training=training_options(**{**quiet, **training}),
            device="cpu",
            seed=3,
        ),
        checkpoints=out.parent / "c",
        frames_dir=task / "train",
        supervisions_dir=task / "supervisions/train",
        dev_frames_dir=task / "dev",
        dev_supervisions_dir=task / "supervisions/dev",
        chain_dir=task / "chain",
        graphs_dir=task / "ctc/train",
        dev_graphs_dir=task / "ctc/dev",
        network=description,
        out_dir=out,
    )


@pytest.mark.parametrize("edges", ["zeros", "repeat"])
def test_each_sequence_has_its_own_transcript_and_both_losses(task, tmp_path, edges):
    made = LfmmiTask(job_of(task, tmp_path / "m", edges=edges), torch.device("cpu"))
    source = made.batches[0]
    batches = list(source.epoch(0))
    seen = [name for batch in batches for name in batch.utterances]
    assert len(seen) == 14
    assert not {"train03", WITHOUT} & {*seen}
    batch = batches[0].select([2, 0, 1])
    assert isinstance(batch, SupervisedBatch)
    for name, graph in zip(batch.utterances, batch.graphs, strict=True):
        assert np.array_equal(graph.ilabel, linear(labels_of(name)).ilabel)
    outputs = made.network(batch.features, batch.lengths, has_context=batch.has_context)
    frames = Supervisions.load(task / "supervisions/train")
    counted = [frames.num_frames[frames.positions([u])[0]] for u in batch.utterances]
    assert batch.counted.tolist() == counted
    ctc = evaluate_ctc(outputs["ctc"].logits, batch.graphs, counted)
    alone = LatticeFree(
        {k: v for k, v in made.network.description.outputs.items() if k != "ctc"},
        made.criterion.parts[0]._denominator,
        made.criterion.parts[0]._options,
    )
    wanted = alone.begin(outputs, batch)()
    loss = made.criterion.begin(outputs, batch)()
    torch.testing.assert_close(loss.value, wanted.value - 0.5 * ctc.log_prob.sum())
    assert set(loss.statistics) == {*made.criterion.statistics}
    on_dev = made.dev_criterion.begin(outputs, batch)()
    torch.testing.assert_close(
        on_dev.value, -wanted.statistics["objective"].to(on_dev.value)
    )
    torch.testing.assert_close(on_dev.statistics["ctc"], loss.statistics["ctc"])
    for criterion in (alone, made.criterion, made.dev_criterion):
        criterion.close()


def test_the_gradient_is_that_of_the_value(task, tmp_path):
    # posteriors that cross-entropy learns are no function of the network there
    job = job_of(task, tmp_path / "m", xent=False)
    made = LfmmiTask(job, torch.device("cpu"))
    network = made.network.double().eval()
    batch = next(iter(made.batches[0].epoch(0))).select([0, 1])
    features = batch.features.double()

    def value():
        outputs = network(features, batch.lengths)
        return made.criterion.begin(outputs, batch)().value

    shared = network.body.layers["near"].get_parameter(
        next(n for n, _ in network.body.layers["near"].named_parameters())
    )
    (gradient,) = torch.autograd.grad(value(), shared)
    direction = torch.randn(
        shared.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    step = 1e-6
    with torch.no_grad():
        shared.add_(direction, alpha=step)
        above = value()
        shared.add_(direction, alpha=-2 * step)
        below = value()
    slope = (above - below) / (2 * step)
    torch.testing.assert_close(slope, (gradient * direction).sum(), rtol=1e-4, atol=0)
    made.criterion.close()
    made.dev_criterion.close()


def test_both_are_learnt_and_a_stopped_training_ends_with_the_same_bits(task, tmp_path):
    out = tmp_path / "whole/model"
    out.parent.mkdir()
    train_lfmmi(job_of(task, out))
    info = json.loads((out / "info.json").read_text())
    first, *_, last = info["history"]
    assert last["objective"] > first["objective"]
    assert last["ctc"] < first["ctc"]
    assert last["loss"] == pytest.approx(-last["objective"])
    assert load_model(out).meta["scales"]["loss of ctc"] == 0.5

    stopped, steps = tmp_path / "stopped/model", []
    stopped.parent.mkdir()

    def stop(self, *arguments):
        steps.append(1)
        if len(steps) == 4:
            raise RuntimeError("stopped")
        return begin(self, *arguments)

    begin = LatticeFree.begin
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LatticeFree, "begin", stop)
        with pytest.raises((RuntimeError, UserError)):
            train_lfmmi(job_of(task, stopped, checkpoint_minutes=1e-9))
    train_lfmmi(job_of(task, stopped))
    one, other = (load_model(x).network.state_dict() for x in (out, stopped))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_pieces_of_utterances_are_refused(task, tmp_path):
    pieces = {"type": "chunks", "size": 36}
    with pytest.raises(UserError, match="learnt from whole utterances"):
        LfmmiTask(job_of(task, tmp_path / "m", sequences=pieces), torch.device("cpu"))
