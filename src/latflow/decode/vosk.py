"""An LF-MMI system as a model folder of Vosk, Kaldi's online decoder as a library.

    am/final.mdl          transition model and nnet3
    am/tree
    am/global_cmvn.stats  of the training set, if features are normalized online
    graph/                HCLG.fst, words.txt, phones/ (word_boundary.int), ...
    conf/mfcc.conf        how features are computed (fbank.conf for log-mel energies)
    conf/model.conf       beams, scales, phones of silence for endpoints
    ivector/              i-vectors, if the network takes them: see
                          `latflow.gmm.kaldi_ivector`

Vosk computes plain features, normalizes them online, and computes i-vectors: systems
that normalize by speaker or utterance, or that read transformed or adapted features,
cannot be exported.

Source: what `libvosk` 0.3.45 opens; Kaldi `feat/feature-window.h`,
`feat/feature-{mfcc,fbank}.h`, `online2/online-endpoint.h` for the options' names,
`feat/online-feature.h` for those of online CMVN.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from latflow.decode.options import SearchOptions
from latflow.errors import UserError
from latflow.features.cmvn import read_global_statistics
from latflow.features.cmvn_options import OnlineCmvn
from latflow.features.options import FrontEndOptions
from latflow.files import atomic_directory, write_text
from latflow.gmm.ivector import IvectorModel
from latflow.gmm.kaldi_export import write_graph
from latflow.gmm.kaldi_ivector import write_ivectors
from latflow.gmm.options import IvectorOptions
from latflow.graphs.hclg import load_model as load_transitions
from latflow.kaldi.io import KaldiWriter, write_matrix
from latflow.lang.compatibility import check_phones
from latflow.lang.directory import Lang
from latflow.nnet.model_dir import load_model
from latflow.nnet.nnet3 import Nnet3
from latflow.own_folder import check_own_folder

# How Vosk computes i-vectors, whatever the folder says; and the frames a score that its
# weights of silence count on.
_IVECTOR_OPTIONS = {
    "num_gselect": 5,
    "min_post": 0.025,
    "posterior_scale": 0.1,
    "max_count": 100.0,
}
_SUBSAMPLING = 3
_CMVN = OnlineCmvn()  # whose options are in no file of Vosk's folder either


@dataclass(frozen=True, kw_only=True)
class VoskFiles:
    """Files that a model folder of Vosk is made of."""

    model_dir: Path
    """Folder of an LF-MMI network, with `final.mdl` and `tree`."""
    lang_dir: Path
    """The lang directory of its graph."""
    graph: Path
    """`HCLG.fst`."""
    frames_dir: Path | None = None
    """Folder with the `cmvn.ark` of the training set, where features are normalized."""
    ivectors: Path | None = None
    """`extractor.npz` of the i-vectors that follow the features, if any do."""


def export_vosk(
    files: VoskFiles,
    out_dir: str | Path,
    *,
    features: FrontEndOptions,
    sample_rate: int,
    search: SearchOptions | None = None,
    acoustic_scale: float = 1.0,
    cmvn: OnlineCmvn | None = None,
) -> None:
    """Write a model folder of Vosk, see the module.

    Args:
        files: the network, its graph and its inputs.
        out_dir: the folder to write; must be new or empty.
        features: what the network's features are computed with, before normalization
            by its own global statistics.
        sample_rate: of the features, Hz.
        search: beams; the retries of ours have no counterpart.
        acoustic_scale: factor of the network's outputs in the search.
        cmvn: normalization of the features; None for none.

    Raises:
        UserError: the folder is not empty, parts do not fit each other, Kaldi has no
            form for a layer, or Vosk computes features otherwise.
    """
    check_own_folder(out := Path(out_dir))
    lang = Lang.load(files.lang_dir)
    model = load_model(files.model_dir)
    tree, transitions = load_transitions(files.model_dir)
    check_phones(transitions, lang, files.model_dir / "final.mdl")
    network = model.network
    extractor = None if files.ivectors is None else IvectorModel.load(files.ivectors)
    statistics = None
    if cmvn is not None:
        assert files.frames_dir is not None
        _check_cmvn(files.model_dir, cmvn, extractor)
        statistics = read_global_statistics(files.frames_dir)
    if extractor is not None:
        _check_ivectors(files.model_dir, extractor.options, network.subsampling)
    ivector_dim = 0 if extractor is None else extractor.extractor.dim
    _check_sizes(files.model_dir, features, ivector_dim, network.dim_in)
    num_classes = next(iter(network.outputs.values())).num_classes
    if num_classes != transitions.num_pdfs:
        raise UserError(
            f"the network has {num_classes} classes, the tree {transitions.num_pdfs} "
            "pdfs",
            file=files.model_dir,
            remedy="tree and network must be of the same training",
        )
    nnet = Nnet3(model, ivector_dim=ivector_dim)
    with atomic_directory(out) as folder:
        (folder / "am").mkdir()
        with KaldiWriter.open(folder / "am/final.mdl") as writer:
            transitions.write(writer)
            nnet.write(writer)
        tree.save(folder / "am/tree")
        if statistics is not None:
            write_matrix(folder / "am/global_cmvn.stats", statistics)
        if extractor is not None:
            (folder / "ivector").mkdir()
            write_ivectors(extractor, folder / "ivector")
        (folder / "graph").mkdir()
        write_graph(Path(files.graph), transitions, lang, folder / "graph")
        (folder / "conf").mkdir()
        write_text(
            folder / f"conf/{features.type}.conf", front_end_conf(features, sample_rate)
        )
        lines = [
            *_search_lines(search or SearchOptions(), acoustic_scale),
            f"--frame-subsampling-factor={network.subsampling}",
            f"--endpoint.silence-phones={':'.join(map(str, lang.silence_phones))}",
        ]
        write_text(folder / "conf/model.conf", "".join(f"{line}\n" for line in lines))


def _check_cmvn(
    model_dir: Path, cmvn: OnlineCmvn, extractor: IvectorModel | None
) -> None:
    """Refuse online CMVN that Vosk would compute otherwise."""
    if cmvn != _CMVN:
        given, fixed = cmvn.values(), _CMVN.values()
        name = next(name for name in fixed if given[name] != fixed[name])
        raise UserError(
            f"the features have online CMVN with {name}: {_text_of(given[name])}, and "
            f"Vosk has {_text_of(fixed[name])} built in",
            file=model_dir,
            remedy=f"train the network with {name}: {_text_of(fixed[name])}",
        )
    if extractor is not None:
        raise UserError(
            "the i-vectors are of normalized frames, and Vosk takes them of frames as "
            "they are",
            file=model_dir,
            remedy="train extractor and network with cmvn: {type: none}, or without "
            "i-vectors",
        )


def _check_ivectors(model_dir: Path, options: IvectorOptions, subsampling: int) -> None:
    """Refuse i-vectors that Vosk would compute otherwise."""
    for name, fixed in _IVECTOR_OPTIONS.items():
        if (value := getattr(options, name)) != fixed:
            raise UserError(
                f"the i-vectors were trained with {name}: {_text_of(value)}, and Vosk "
                f"has {_text_of(fixed)} built in",
                file=model_dir,
                remedy=f"train extractor and network with {name}: {_text_of(fixed)}",
            )
    if subsampling != _SUBSAMPLING:
        raise UserError(
            f"the network gives a score for {subsampling} frames, and Vosk weighs the "
            f"frames of i-vectors as if for {_SUBSAMPLING}",
            file=model_dir,
            remedy=f"train a network that subsamples by {_SUBSAMPLING}",
        )


def _check_sizes(
    model_dir: Path, features: FrontEndOptions, ivector_dim: int, dim_in: int
) -> None:
    """Refuse samples, and features of another dimension than the network's."""
    if features.type == "waveform":
        raise UserError(
            "the network reads samples, and Kaldi has no form for its first layers",
            file=model_dir,
            remedy="export a network on features of type mfcc or fbank",
        )
    if features.dim + ivector_dim != dim_in:
        more = f" and i-vectors of {ivector_dim}" if ivector_dim else ""
        raise UserError(
            f"the front end gives {features.dim} features per frame{more}, the network "
            f"takes {dim_in}",
            file=model_dir,
            remedy="name the recipe that the network was trained with",
        )


def front_end_conf(features: FrontEndOptions, sample_rate: int) -> str:
    """Return the options of a front end as Kaldi's `mfcc.conf` or `fbank.conf`."""
    values: dict[str, object] = {
        "sample-frequency": sample_rate,
        "frame-length": features.frame_length_ms,
        "frame-shift": features.frame_shift_ms,
        "preemphasis-coefficient": features.preemphasis,
        "window-type": features.window_type,
        "dither": features.dither,
        "snip-edges": features.snip_edges,
        "num-mel-bins": features.num_mel_bins,
        "low-freq": features.low_freq,
        "high-freq": features.high_freq,
        "use-energy": features.use_energy,
    }
    if features.type == "mfcc":
        values["num-ceps"] = features.num_ceps
        values["cepstral-lifter"] = features.cepstral_lifter
    return "".join(f"--{name}={_text_of(value)}\n" for name, value in values.items())


def _text_of(value: object) -> str:
    """Return a value as Kaldi's options are written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _search_lines(search: SearchOptions, acoustic_scale: float) -> list[str]:
    return [
        f"--beam={search.beam:.9g}",
        f"--lattice-beam={search.lattice_beam:.9g}",
        f"--max-active={search.max_active}",
        f"--min-active={search.min_active}",
        f"--acoustic-scale={acoustic_scale:.9g}",
    ]
