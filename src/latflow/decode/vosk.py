"""An LF-MMI system as a model folder of Vosk, Kaldi's online decoder as a library.

    am/final.mdl          transition model and nnet3
    am/tree
    graph/                HCLG.fst, words.txt, phones/ (word_boundary.int), ...
    conf/mfcc.conf        how features are computed (fbank.conf for log-mel energies)
    conf/model.conf       beams, scales, phones of silence for endpoints

Vosk computes plain features: systems that normalize by speaker or utterance, or that
read transformed or adapted features, cannot be exported.

Public: `export_vosk`.

Source: what `libvosk` 0.3.45 opens; Kaldi `feat/feature-window.h`,
`feat/feature-{mfcc,fbank}.h`, `online2/online-endpoint.h` for the options' names.
"""

from __future__ import annotations

from pathlib import Path

from latflow.decode.options import SearchOptions
from latflow.errors import UserError
from latflow.features.options import FrontEndOptions
from latflow.files import atomic_directory, write_text
from latflow.gmm.kaldi_export import write_graph
from latflow.graphs.hclg import load_model as load_transitions
from latflow.kaldi.io import KaldiWriter
from latflow.lang.directory import Lang, check_phones
from latflow.nnet.model_dir import load_model
from latflow.nnet.nnet3 import Nnet3


def export_vosk(
    model_dir: str | Path,
    lang_dir: str | Path,
    graph: str | Path,
    out_dir: str | Path,
    *,
    features: FrontEndOptions,
    sample_rate: int,
    search: SearchOptions | None = None,
    acoustic_scale: float = 1.0,
) -> None:
    """Write a model folder of Vosk, see the module.

    Args:
        model_dir: folder of an LF-MMI network, with `final.mdl` and `tree`.
        lang_dir: the lang directory of its graph.
        graph: `HCLG.fst`.
        out_dir: the folder to write; must be new or empty.
        features: what the network's features are computed with, before normalization
            by its own global statistics.
        sample_rate: of the features, Hz.
        search: beams; the retries of ours have no counterpart.
        acoustic_scale: factor of the network's outputs in the search.

    Raises:
        UserError: the folder is not empty, parts do not fit each other, or Kaldi has no
            form for a layer.
    """
    out, lang = Path(out_dir), Lang.load(lang_dir)
    if out.is_dir() and any(out.iterdir()):
        raise UserError(
            "the folder is not empty", file=out, remedy="name a new one, or empty it"
        )
    model = load_model(model_dir)
    tree, transitions = load_transitions(model_dir)
    check_phones(transitions, lang, Path(model_dir) / "final.mdl")
    network = model.network
    _check_sizes(Path(model_dir), features, network.dim_in)
    num_classes = next(iter(network.outputs.values())).num_classes
    if num_classes != transitions.num_pdfs:
        raise UserError(
            f"the network has {num_classes} classes, the tree {transitions.num_pdfs} "
            "pdfs",
            file=model_dir,
            remedy="tree and network must be of the same training",
        )
    nnet = Nnet3(model)
    with atomic_directory(out) as folder:
        (folder / "am").mkdir()
        with KaldiWriter.open(folder / "am/final.mdl") as writer:
            transitions.write(writer)
            nnet.write(writer)
        tree.save(folder / "am/tree")
        (folder / "graph").mkdir()
        write_graph(Path(graph), transitions, lang, folder / "graph")
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


def _check_sizes(model_dir: Path, features: FrontEndOptions, dim_in: int) -> None:
    """Refuse samples, and features of another dimension than the network's."""
    if features.type == "waveform":
        raise UserError(
            "the network reads samples, and Kaldi has no form for its first layers",
            file=model_dir,
            remedy="export a network on features of type mfcc or fbank",
        )
    if features.dim != dim_in:
        raise UserError(
            f"the front end gives {features.dim} features a frame, the network takes "
            f"{dim_in}",
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
    return "".join(f"--{name}={_told(value)}\n" for name, value in values.items())


def _told(value: object) -> str:
    """Return a value as Kaldi's options are written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _search_lines(search: SearchOptions, acoustic_scale: float) -> list[str]:
    """Return the options of the search."""
    return [
        f"--beam={search.beam:.9g}",
        f"--lattice-beam={search.lattice_beam:.9g}",
        f"--max-active={search.max_active}",
        f"--min-active={search.min_active}",
        f"--acoustic-scale={acoustic_scale:.9g}",
    ]
