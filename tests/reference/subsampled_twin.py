"""Networks that score one frame in three, as twins of networks that score each."""

import shutil

import numpy as np
import torch

from latflow.features.frames import FrameStore, FrameWriter
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import load_model, save_model
from latflow.nnet.network import Network

FACTOR = 3


def write_slow_frames(frames, out):
    """Write frames with two of noise behind each, but for some at the end."""
    store = FrameStore.load(frames)
    rng = np.random.default_rng(1)
    with FrameWriter(out, dim=store.dim) as writer:
        for u, utterance in enumerate(store.utt_ids):
            kept = store.frames(u)
            slow = rng.normal(size=(FACTOR * len(kept), store.dim))
            slow[::FACTOR] = kept
            cut = slow[: len(slow) - u % FACTOR].astype(np.float32)
            writer.append(utterance, "s", store.texts[u], cut)


def write_subsampling(folder, out, **meta):
    """Write a network that does what that of a folder does for one frame in three."""
    source = load_model(folder)
    layers = {
        "slow": {"class": "subsample", "factor": FACTOR},
        "out": {"class": "output"},
    }
    description = NetworkDescription.from_config({"layers": layers})
    classes = source.meta["classes"]["out"]
    network = Network(description, source.network.dim_in, {"out": classes})
    parameters = dict(source.network.named_parameters())
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(parameters[name])
    priors = np.load(folder / "priors.npy")
    save_model(out, network, description, priors, {**source.meta, **meta})
    for name in ("tree", "final.mdl"):
        shutil.copyfile(folder / name, out / name)
