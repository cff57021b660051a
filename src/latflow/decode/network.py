"""The stage `decode_network`: from frames to lattices with a network's scores.

Written are the files of `latflow.decode.run`.

Public: `decode_network`, `NetworkScorer`.

Source: Kaldi `latgen-faster-mapped.cc`; PyKaldi2 `bin/latgen.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from latflow.decode.recogniser import Recogniser
from latflow.decode.run import write_lattices
from latflow.errors import UserError
from latflow.features.live import Frames, open_frames
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.composition import load_model as load_transitions
from latflow.lang.directory import Lang
from latflow.nnet.model_dir import AcousticNetwork, load_model
from latflow.training.device import choose_device
from latflow.training.normalisation import Normaliser


def decode_network(
    frames_dir: str | Path,
    graph: str | Path,
    model_dir: str | Path,
    lang_dir: str | Path,
    out_dir: str | Path,
    *,
    options: Mapping[str, Any],
    threads: int,
    max_skipped_fraction: float,
) -> None:
    """Decode all utterances of a frame store with a network.

    Each thread scores and searches an utterance of its own; the network lies in memory
    once.

    Args:
        frames_dir: the network's features, stored or described for the fly.
        graph: `HCLG.fst` of the system whose alignments the network was trained on.
        model_dir: the network's folder, with `final.mdl` (transition model) and `tree`.
        lang_dir: language directory that the graph was made of.
        out_dir: folder for the files named in `latflow.decode.run`.
        options: section `decode` of the configuration without `tune`, with
            `prior_scale` and `device`.
        threads: utterances worked on at a time.
        max_skipped_fraction: share of utterances that may be left out.

    Raises:
        UserError: see `latflow.decode.run.decode`.
    """
    store = open_frames(frames_dir)
    scorer = NetworkScorer.load(
        store, model_dir, options["device"], prior_scale=options["prior_scale"]
    )
    write_lattices(
        Recogniser.load(scorer, graph, Lang.load(lang_dir), options),
        out_dir,
        options=options,
        threads=threads,
        max_skipped_fraction=max_skipped_fraction,
    )


@dataclass(frozen=True, eq=False)
class NetworkScorer:
    """Scores of a network: its log posteriors less the scaled log priors.

    Attributes:
        store: the frames.
        network: on its device.
        normalisation: of the network's input.
        transitions: of the system whose alignments the network was trained on.
        prior_scale: factor on the log priors.
        device: where the network is.
    """

    store: Frames
    network: AcousticNetwork
    normalisation: Normaliser
    transitions: TransitionModel
    prior_scale: float
    device: torch.device

    @classmethod
    def load(
        cls,
        store: Frames,
        model_dir: str | Path,
        device: str = "auto",
        *,
        prior_scale: float = 1.0,
    ) -> NetworkScorer:
        """Read a network's folder.

        Args:
            store: the frames.
            model_dir: as training wrote it.
            device: `cpu`, `cuda` or `auto`.
            prior_scale: factor on the log priors.

        Raises:
            UserError: a file is missing or broken, or the parts do not fit.
        """
        chosen = choose_device(device)
        network = load_model(model_dir, chosen)
        _, transitions = load_transitions(model_dir)
        normalisation = Normaliser.from_meta(network.meta["normalisation"])
        return cls(store, network, normalisation, transitions, prior_scale, chosen)

    def __post_init__(self) -> None:
        """Check that the parts belong together.

        Raises:
            UserError: features, classes or frame rate do not fit.
        """
        network = self.network.network
        if network.dim_in != self.store.dim:
            raise UserError(
                f"features have dimension {self.store.dim}, but the network takes "
                f"{network.dim_in}",
                file=self.store.folder,
                remedy="decode with the features that the network was trained on",
            )
        num_classes = next(iter(network.outputs.values())).num_classes
        if num_classes != self.transitions.num_pdfs:
            raise UserError(
                f"the network has {num_classes} classes, the tree "
                f"{self.transitions.num_pdfs} pdfs",
                remedy="tree and network must be of the same training",
            )
        if network.subsampling != 1:
            raise UserError(
                f"the network scores one frame in {network.subsampling}; decoding "
                "needs a score for each",
                remedy="use a network without subsampling",
            )

    def log_likes(self, index: int) -> Iterator[np.ndarray]:
        """Log-likelihoods of an utterance, float32[T, P] in one piece."""
        frames = self.normalisation(self.store.frames(index))
        yield self._score(frames)

    def warm_up(self) -> np.ndarray:
        """Run the network once; scores of a frame of zeros."""
        return self._score(np.zeros((1, self.store.dim), np.float32))

    def _score(self, frames: np.ndarray) -> np.ndarray:
        """float32[T, P] of float32[T, D]."""
        batch = torch.from_numpy(frames).to(self.device).unsqueeze(0)
        lengths = torch.tensor([len(frames)])
        scores, _ = self.network.log_likelihoods(
            batch, lengths, prior_scale=self.prior_scale
        )
        return scores[0].cpu().numpy()
