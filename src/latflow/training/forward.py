"""Scores of a trained network for all utterances of a corpus.

    score = log posterior - prior_scale x log prior

as the decoder takes them (natural logarithms, not scaled acoustically); of a network
whose outputs are log-likelihoods (LF-MMI), the outputs. A network with frame
subsampling gives a row for each frame of its output. Outputs that are not decoded are
given by name: log posteriors, or features in their own units (squared error); so are
layers, whose values come as they are.
Utterances go through the network in batches of like length, and come out in the
store's order; what is in memory is bounded, whatever the corpus.

Source: PyKaldi2 `bin/dump_loglikes.py`; RETURNN's task `forward`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import torch
from torch import Tensor

from latflow.errors import UserError
from latflow.features.source import Frames, open_frames
from latflow.files import atomic_directory, atomic_output
from latflow.kaldi.io import KaldiWriter
from latflow.logs import progress
from latflow.nnet.model_dir import AcousticNetwork, choose_device, load_model
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.nnet.utterances import UtteranceBatches
from latflow.own_folder import check_own_folder

_WINDOW_BYTES = 1 << 28  # scores that may wait for their turn
Scores = tuple[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Forward:
    """A network, ready to score a frame store.

    Attributes:
        store: the frames.
        model: the network and its priors.
        normalizer: of the network's features.
        prior_scale: factor on the log priors; 0 gives log posteriors.
        max_frames: frames that go through the network at once, padding counted.
        output: an output or a layer; None for the decoded output, less priors.
    """

    store: Frames
    model: AcousticNetwork
    normalizer: Normalizer
    prior_scale: float = 1.0
    max_frames: int = 8000
    output: str | None = None

    @classmethod
    def load(
        cls,
        store: Frames,
        model_dir: str | Path,
        *,
        device: str = "auto",
        prior_scale: float | None = None,
        max_frames: int = 8000,
        output: str | None = None,
    ) -> Forward:
        """Read a model folder.

        Args:
            store: the frames.
            model_dir: the network's folder.
            device: `cpu`, `cuda` or `auto`.
            prior_scale: None for what the network was trained to.
            max_frames: see the class.
            output: see the class.

        Raises:
            UserError: it is broken, does not fit the frames, or has no such output or
                layer.
        """
        model = load_model(model_dir, choose_device(device))
        check_features(model.network, store)
        try:
            scale = 0.0 if output is not None else model.prior_scale(prior_scale)
            normalizer = model.normalizer
        except UserError as error:
            raise error.at(file=model_dir) from None
        names = model.network.body.plan.names
        if output is not None and output not in names:
            raise UserError(
                f"the network has no output or layer {output}",
                file=model_dir,
                remedy=f"choose one of: {', '.join(names)}",
            )
        return cls(store, model, normalizer, scale, max_frames, output)

    @property
    def dim(self) -> int:
        """Numbers a frame of the output (classes, where it has some), K."""
        network = self.model.network
        return network.body.shapes[self.output or next(iter(network.outputs))].dim

    @property
    def frame_shift(self) -> float:
        """Time from one frame of the output to the next, seconds."""
        network = self.model.network
        name = self.output or next(iter(network.outputs))
        return self.store.frame_shift * network.body.contexts[name].stride

    def __iter__(self) -> Iterator[Scores]:
        """Yield (utterance, float32 [T', K]) in the store's order."""
        for found in self._utterances.scored(
            self._score, self._numbers, self._window_frames
        ):
            utterance, scores = self.store.utt_ids[found.index], found.wait()
            if not (scores < np.inf).all():  # NaN neither
                raise self._not_finite(utterance)
            yield utterance, scores

    def _not_finite(self, utterance: str) -> UserError:
        """Return the error of scores that are not numbers, by what they come of."""
        for name, value in self.model.network.state_dict().items():
            if not value.isfinite().all():
                return UserError(
                    f"the network's {name} has values that are not finite",
                    remedy="train it again, with a lower learning rate",
                )
        return UserError(
            "the network's scores are not finite",
            file=self.store.folder,
            utterance=utterance,
            remedy="look at the features of the utterance",
        )

    @property
    def _utterances(self) -> UtteranceBatches:
        """Return the utterances as they go through the network."""
        device = next(self.model.network.parameters()).device
        return UtteranceBatches(self.store, self.normalizer, device, self.max_frames)

    @property
    def _numbers(self) -> range:
        """Return the numbers of all utterances."""
        return range(len(self.store))

    @property
    def _window_frames(self) -> int:
        """Return the frames of utterances whose scores are in memory together."""
        return max(self.max_frames, _WINDOW_BYTES // (4 * self.dim))

    def batches(self) -> Iterator[list[int]]:
        """Yield the numbers of utterances that go through the network together."""
        utterances = self._utterances
        for window in utterances.windows(self._numbers, self._window_frames):
            yield from utterances.batches(window)

    def padded(self, numbers: list[int]) -> tuple[Tensor, Tensor]:
        """Return the features of some utterances, see `UtteranceBatches.padded`."""
        return self._utterances.padded(numbers)

    def _score(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of a batch, float32 [B, T', K], and their lengths."""
        if self.output is not None:
            return self._of_output(self.output, features, lengths)
        return self.model.log_likelihoods(
            features, lengths, prior_scale=self.prior_scale
        )

    @torch.no_grad()
    def _of_output(
        self, name: str, features: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return an output as its loss sees it, float32 [B, T', K], and its lengths."""
        network = self.model.network
        values, ends = network(features, lengths, layers=[name])[name]
        values = values.float()
        if name not in network.outputs:
            return values, ends
        loss = network.outputs[name].loss
        if loss.name in {"ce", "ctc"}:
            values = torch.log_softmax(values, -1)
        elif loss.name == "mse":
            targets = self.model.meta.get("targets")
            known = targets if isinstance(targets, Mapping) else {}
            learnt = Normalizer.from_meta(known.get(loss.target))
            if learnt.mean is not None and learnt.scale is not None:
                scale, mean = map(torch.from_numpy, (learnt.scale, learnt.mean))
                values = values / scale.to(values) + mean.to(values)
        return values, ends


@dataclass(frozen=True)
class ScoreFile:
    """Where scores go, and in which form.

    Raises:
        UserError: an option belongs to another form, or cuts are missing.
    """

    path: Path
    """The file; of the form `lhotse` a folder, new or empty."""
    form: Literal["ark", "hdf5", "lhotse"] = "ark"
    """`ark`: Kaldi's archive of float matrices; `hdf5`: RETURNN's layout with the
    scores as `inputs`; `lhotse`: `cuts.jsonl.gz` with the scores as a temporal array,
    `scores` or the name of the output, and their storage."""
    cuts: str | Path | None = None
    """`cuts.jsonl.gz` of the utterances, sorted by id, for the form `lhotse`."""
    scp: str | Path | None = None
    """List of places in the archive to write, too."""

    def __post_init__(self) -> None:
        """Check that the options fit the form."""
        if self.form != "ark" and self.scp is not None:
            raise UserError("a list of places belongs to an archive", file=self.scp)
        if (self.form == "lhotse") != (self.cuts is not None):
            raise UserError(
                "cuts and the form lhotse belong together",
                remedy="name the cuts.jsonl.gz of the utterances, or choose another "
                "form",
            )


def forward(
    frames_dir: str | Path,
    model_dir: str | Path,
    to: ScoreFile,
    *,
    prior_scale: float | None = None,
    max_frames: int = 8000,
    output: str | None = None,
    device: str = "auto",
    threads: int = 1,
) -> None:
    """Write a network's scores of all utterances of a frame store.

    Args:
        frames_dir: the network's features, stored or described for the fly.
        model_dir: the network's folder.
        to: where the scores go.
        prior_scale: factor on the log priors; 0 gives log posteriors; None what the
            network was trained to: 1, or 0 where its outputs are log-likelihoods.
        max_frames: frames that go through the network at once, padding counted.
        output: see `Forward`.
        device: `cpu`, `cuda` or `auto`.
        threads: of torch, on the CPU.

    Raises:
        UserError: model and frames do not fit, or a scale of the priors is given for
            an output that has none.
    """
    if output is not None and prior_scale is not None:
        raise UserError(
            f"priors are not taken off output {output}",
            remedy="leave out the scale of the priors, or the output",
        )
    store = open_frames(frames_dir)
    scores = Forward.load(
        store,
        model_dir,
        device=device,
        prior_scale=prior_scale,
        max_frames=max_frames,
        output=output,
    )
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, threads))
    try:
        if to.cuts is not None:
            name = output or "scores"
            writer = _lhotse(to.path, to.cuts, name, scores.frame_shift)
        elif to.form == "ark":
            writer = _ark(to.path, to.scp)
        else:
            writer = _hdf5(to.path, scores.dim)
        with writer as write:
            for name, matrix in progress(scores, "forward", len(store)):
                write(name, matrix)
    finally:
        torch.set_num_threads(before)


def check_features(network: Network, store: Frames) -> None:
    """Refuse features of another size than a network reads.

    Raises:
        UserError: names their folder.
    """
    if network.dim_in != store.dim:
        raise UserError(
            f"features have {store.dim} numbers a frame, the network takes "
            f"{network.dim_in}",
            file=store.folder,
            remedy="take the features that the network was trained on",
        )


Write = Callable[[str, np.ndarray], None]


@contextmanager
def _ark(out: str | Path, scp: str | Path | None) -> Iterator[Write]:
    """Write Kaldi's archive, and its list if there is to be one."""
    with ExitStack() as stack:
        stream = stack.enter_context(stack.enter_context(atomic_output(out)).open("wb"))
        lines = None
        if scp is not None:
            listed = stack.enter_context(atomic_output(scp))
            lines = stack.enter_context(listed.open("w", encoding="utf-8"))

        def write(name: str, matrix: np.ndarray) -> None:
            stream.write(f"{name} ".encode())
            if lines is not None:
                lines.write(f"{name} {out}:{stream.tell()}\n")
            KaldiWriter(stream).write_float_matrix(matrix)

        yield write


@contextmanager
def _hdf5(out: str | Path, num_classes: int) -> Iterator[Write]:
    """Write `inputs`, `seqLengths` and `seqTags` as RETURNN's `SimpleHDFWriter`."""
    lengths: list[int] = []
    tags: list[bytes] = []
    with atomic_output(out) as temporary, h5py.File(temporary, "w") as file:
        shape: Any = (0, num_classes)
        inputs = file.create_dataset(
            "inputs", shape, np.float32, maxshape=(None, num_classes)
        )

        def write(name: str, matrix: np.ndarray) -> None:
            begin = inputs.shape[0]
            inputs.resize(begin + len(matrix), axis=0)
            inputs[begin:] = matrix
            lengths.append(len(matrix))
            tags.append(name.encode("utf-8"))

        yield write
        # RETURNN's readers expect a column of a target all the same
        file["seqLengths"] = np.array([lengths, lengths], np.int32).T
        file.create_dataset("seqTags", data=tags, dtype=h5py.string_dtype())
        file.attrs["numSeqs"] = len(lengths)
        file.attrs["numTimesteps"] = sum(lengths)
        file.attrs["inputPattSize"] = num_classes
        file.attrs["numLabels"] = num_classes


@contextmanager
def _lhotse(
    out: str | Path, cuts: str | Path, name: str, frame_shift: float
) -> Iterator[Write]:
    """Write cuts with an array each, and the arrays in Lhotse's storage."""
    # Imported here: other forms of stored features do without Lhotse.
    from lhotse import MonoCut
    from lhotse.array import Array, TemporalArray
    from lhotse.utils import fastcopy

    from latflow.corpus.json_lines import ManifestWriter
    from latflow.corpus.manifests import read_cuts
    from latflow.features.storage import FeatureStorage

    if hasattr(MonoCut, name) or not name.isidentifier():
        raise UserError(
            f"cuts cannot have an array called {name}",
            remedy="choose another form, or rename the layer",
        )
    check_own_folder(target := Path(out))
    with atomic_directory(target) as folder:
        storage = FeatureStorage("numpy_hdf5", folder / "storage", target / "storage")
        with closing(storage), ManifestWriter(folder / "cuts.jsonl.gz") as manifest:
            given = read_cuts(cuts)

            def write(utt_id: str, matrix: np.ndarray) -> None:
                cut = next((cut for cut in given if cut.id == utt_id), None)
                if cut is None:
                    raise UserError(
                        "no such cut",
                        file=cuts,
                        utterance=utt_id,
                        remedy="name the "
                        "cuts.jsonl.gz of the set that the features are of",
                    )
                key = storage.write(utt_id, matrix)
                array = Array(storage.kind, storage.path, key, list(matrix.shape))
                there = TemporalArray(array, 0, frame_shift, cut.start)
                custom = {**(cut.custom or {}), name: there}
                manifest.write(fastcopy(cut, custom=custom))

            yield write
