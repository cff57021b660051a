"""Mutated GMMs, networks and checkpoints, and systems that decode."""

import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from fixtures.mutations import check, of_each, write_system
from fixtures.small_model import small_model

from latflow.criteria.external import MessageError, write_message
from latflow.criteria.external import read_message as read_answer
from latflow.decode.align import align_network
from latflow.decode.lattices import decode_lattices
from latflow.decode.options import AlignNetworkOptions, SearchOptions
from latflow.features.frames import FrameWriter
from latflow.features.transform import Linear
from latflow.gmm.alignment import align_gmm
from latflow.gmm.apply import adapt_frames, write_log_likes
from latflow.gmm.model import AcousticModel, DiagGmms, save_transform
from latflow.gmm.options import AlignAdaptedOptions
from latflow.graphs.hclg import load_model as load_transitions
from latflow.graphs.options import GraphOptions
from latflow.hmm.topology import Topology
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import write_matrices
from latflow.nnet.described import (
    described_layers,
    described_outputs,
    described_parts,
    described_sample_rates,
    described_subsampling,
)
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import average_models, load_model, save_model
from latflow.nnet.network import Network
from latflow.nnet.pretraining import shallower
from latflow.parts import SetJob
from latflow.training.checkpoint import CheckpointStore, Position
from latflow.training.forward import ScoreFile, forward
from latflow.training.task import load_matching


def write_gmm(folder, rng):
    topology = Topology.standard([2, 3], [1], 2, 1)
    tree = ContextDependency.monophone([[1], [2, 3]], topology.pdf_class_counts())
    n = tree.num_pdfs
    gmms = DiagGmms.from_moments(
        np.arange(n + 1), np.ones(n), rng.normal(size=(n, 2)), np.full((n, 2), 3.0)
    )
    AcousticModel(small_model(), gmms).save(folder / "final.mdl")
    tree.save(folder / "tree")


def use_gmm(folder):
    model = AcousticModel.load(folder / "final.mdl")
    load_transitions(folder)
    model.gmms.log_likelihoods(np.zeros((3, model.gmms.dim), np.float32))


def write_network(folder, rng):
    layers = {
        "hidden": {"class": "linear", "size": 4, "activation": "relu"},
        "rec": {"class": "rec", "size": 3},
        "output": {"class": "output"},
    }
    description = NetworkDescription.from_config({"layers": layers})
    network = Network(description, 3, {"pdf": 4}, seed=3)
    save_model(folder / "m", network, description, np.ones(4), {"criterion": "ce"})


def use_network(folder):
    model = load_model(folder / "m")
    with torch.inference_mode():
        model.network(torch.zeros(1, 5, model.network.dim_in), torch.tensor([5]))


def write_checkpoint(folder, rng):
    store = CheckpointStore(folder, {"seed": 1})
    state = {"weights": torch.zeros(3), "step": 4}
    store.save(Position(1, 0), state, ())


def use_checkpoint(folder):
    store = CheckpointStore(folder, {"seed": 1})
    for position in store.positions():
        store.load(position)


def write_text_gmm(folder, rng):
    """Write a GMM and its tree as text, and the matrix before it."""
    write_gmm(folder, rng)
    model = AcousticModel.load(folder / "final.mdl")
    model.save(folder / "final.mdl", binary=False)
    tree = ContextDependency.load(folder / "tree")
    tree.save(folder / "tree", binary=False)


def write_untransformed(folder, rng):
    """Write a system of GMMs that adapts to speakers, and its transforms."""
    write_gmm(folder, rng)
    shutil.copy(folder / "final.mdl", folder / "final.alimdl")
    save_transform(folder, Linear(rng.normal(size=(2, 3))))
    identity = np.eye(2, 3)
    write_matrices(folder / "trans.ark", [(speaker, identity) for speaker in "st"])
    given = folder.parent / "frames"
    with FrameWriter(given, dim=3) as writer:
        for name, speaker in (("u0", "s"), ("u1", "t")):
            writer.append(name, speaker, "", rng.normal(size=(5, 3)).astype("f4"))


def use_untransformed(folder):
    given = folder.parent / "frames"
    transforms = folder / "trans.ark"
    adapt_frames(given, folder, transforms, folder / "out", threads=1)
    write_log_likes(folder, given, folder / "a.ark")


def write_decoded(folder, rng, *, kind):
    """Write frames and a system that decodes and aligns them."""
    given = folder.parent / "given"
    given.mkdir()
    write_system(given, rng, kind=kind)
    (folder / "system").mkdir()
    shutil.move(given / "HCLG.fst", folder / "HCLG.fst")
    for path in (given / "model").iterdir():
        shutil.move(path, folder / "system" / path.name)
    with FrameWriter(folder / "frames", dim=13) as writer:
        for i, text in enumerate(("ONE", "TWO ONE")):
            frames = rng.normal(size=(40, 13)).astype(np.float32)
            writer.append(f"u{i}", "s", text, frames)


def use_decoded(folder, align, options):
    lang, system = folder.parent / "given/lang", folder / "system"
    decode_lattices(
        SetJob(
            frames_dir=folder / "frames",
            model_dir=system,
            lang_dir=lang,
            out_dir=folder / "decoded",
            threads=1,
            max_skipped_fraction=1.0,
        ),
        graph=folder / "HCLG.fst",
        options=SearchOptions(beam=6.0, lattice_beam=2.0),
    )
    align(
        SetJob(
            frames_dir=folder / "frames", lang_dir=lang, model_dir=system,
            out_dir=folder / "ali", threads=1, max_skipped_fraction=1.0,
        ),
        options=options, graph=GraphOptions(),
    )  # fmt: skip


def use_answer(path):
    with suppress(MessageError), path.open("rb") as stream:
        read_answer(stream)


def write_answer(path, rng):
    with path.open("wb") as stream:
        arrays = {"objectives": np.ones(3), "lengths": np.array([1, 2], np.int64)}
        write_message(stream, "scores", {}, arrays)


def write_networks(folder, rng):
    """Write a network with its tree, and what it is used on."""
    write_decoded(folder, rng, kind="lfmmi")
    shutil.rmtree(folder / "frames")
    with FrameWriter(folder.parent / "frames", dim=13) as writer:
        writer.append("u0", "s", "ONE", rng.normal(size=(9, 13)).astype(np.float32))
    (folder / "HCLG.fst").unlink()


def use_networks(folder):
    given, system = folder.parent / "frames", folder / "system"
    average_models([system, system], folder / "mean")
    forward(given, folder / "mean", ScoreFile(folder / "a.ark"), device="cpu")
    described = folder / "mean/network.yaml"
    described_subsampling(described)
    described_outputs(described)
    described_layers(described)
    load_matching(load_model(folder / "mean").network, system)


NETWORK = """edges: repeat
layers:
  near: {class: tdnn, size: 8, offsets: [-2, 0, 2], activation: relu}
  second: {class: subsample, factor: 2, from: near}
  both: {class: concat, from: [second, second]}
  output: {class: output, loss: lfmmi, from: both}
  xent: {class: output, from: both}
decode: output
"""


#: Layers of all kinds, with options of all types.
LAYERS = """layers:
  augment: {class: specaugment, time_warp: 2, frequency_width: 1, time_share: 0.5}
  around: {class: splice, left: 1, right: 2, edges: zeros}
  norm: {class: batch_norm, momentum: 0.2, affine: false}
  images: {class: conv2d, channels: 1, size: 4, kernel: 3, stride: 2}
  part: {class: slice, begin: 1, size: 8}
  factored: {class: tdnnf, size: 8, bottleneck: 4, num_layers: 2, dropout: 0.1}
  sum: {class: add, from: [factored, factored]}
  rec: {class: rec, unit: gru, size: 4, projection: null, num_layers: 2}
  places: {class: positional_encoding, scale: 0.5}
  attention: {class: transformer, heads: 2, feed_forward: 8, look_back: 5}
  conformer: {class: conformer, heads: 2, kernel: 3, positions: relative}
  mean: {class: layer_norm}
  drop: {class: dropout, rate: 0.1}
  output: {class: output, loss: ce, from: drop}
"""


def use_description(path):
    described_subsampling(path)
    described_outputs(path)
    described_sample_rates(path)
    described_parts(path)
    description = NetworkDescription.load(path)
    shallower(description, 0)
    network = Network(description, 3, {"pdf": 4}, seed=3).eval()
    with torch.inference_mode():
        network(torch.zeros(2, 9, 3), torch.tensor([9, 7]))


#: Name of file or folder, how it is written, how it is used.
KINDS = {
    "GMM and tree": ("", write_gmm, use_gmm),
    "network": ("", write_network, use_network),
    "checkpoint": ("", write_checkpoint, use_checkpoint),
    "topology": (
        "topo",
        lambda p, _: Topology.standard([2, 3], [1], 2, 1).save(p),
        Topology.load,
    ),
    "GMM and tree as text": ("", write_text_gmm, use_gmm),
    "GMM system that adapts": ("", write_untransformed, use_untransformed),
    "frames, graph and GMM system": (
        "",
        lambda p, rng: write_decoded(p, rng, kind="gmm"),
        lambda p: use_decoded(p, align_gmm, AlignAdaptedOptions()),
    ),
    "frames, graph and network": (
        "",
        lambda p, rng: write_decoded(p, rng, kind="lfmmi"),
        lambda p: use_decoded(p, align_network, AlignNetworkOptions()),
    ),
    "answer of a criterion": ("answer", write_answer, use_answer),
    "networks to average": ("", write_networks, use_networks),
    "network's description": (
        "network.yaml",
        lambda p, _: p.write_text(NETWORK),
        use_description,
    ),
    "network's description, all layers": (
        "network.yaml",
        lambda p, _: p.write_text(LAYERS),
        use_description,
    ),
}


@of_each(KINDS)
def test_a_mutated_file_gives_a_result_or_one_clear_line(tmp_path: Path, kind, cases):
    check(KINDS, kind, tmp_path, cases)
