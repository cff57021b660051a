"""A model folder of Vosk as a system of ours: the way back from `latflow.decode.vosk`.

    am/final.mdl, am/tree            -> nnet/<system>/
    am/global_cmvn.stats, if there   -> nnet/<system>/cmvn.ark, for online CMVN
    ivector/, if i-vectors are taken -> ivectors/<system>/extractor.npz
    graph/HCLG.fst                   -> graph/<system>/HCLG.fst
    graph/words.txt, phones.txt, ... -> lang/, unless a lang directory is given
    all of it, conf/                 -> package/<system>/

The package searches with the folder's beams and scales, and takes words as Vosk does,
which multiplies graph costs by 0.9.

Source: what `libvosk` 0.3.45 opens; Kaldi `feat/feature-{window,mfcc,fbank}.h`,
`feat/online-feature.h` and `online2/online-endpoint.h` for the options' names and
defaults.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from latflow.decode.options import EndpointOptions, NetworkScoreOptions, SearchOptions
from latflow.errors import UserError
from latflow.features.cmvn import GLOBAL, STATISTICS
from latflow.features.options import FrontEndOptions, NoCmvn, OnlineCmvn
from latflow.files import atomic_directory, read_lines, write_json, write_text
from latflow.fst.graph import Graph
from latflow.gmm.ivector import MODEL
from latflow.gmm.kaldi_dir import check_tree
from latflow.gmm.kaldi_import import check_graph
from latflow.gmm.kaldi_ivector import read_ivectors, read_statistics
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.conf import options_of, read_conf_file, read_known
from latflow.kaldi.io import KaldiReader, write_matrices
from latflow.lang.directory import (
    Lang,
    check_phone_table,
    check_phones,
    check_words,
    read_symbols,
)
from latflow.lang.prepare import import_lang
from latflow.nnet.model_dir import save_model
from latflow.nnet.nnet3_file import Nnet3File, read_nnet3
from latflow.nnet.nnet3_import import import_nnet3
from latflow.serving.packaging import PackageFiles, PackageOptions, write_package

log = logging.getLogger(__name__)
# Weight of the language model where acoustic costs are times 10: Vosk's 0.9.
_LMWT = 9.0
_STATISTICS = "global_cmvn.stats"
_UNKNOWN = ("<unk>", "<UNK>", "[unk]", "<spoken_noise>", "<SPOKEN_NOISE>")
# Options of Kaldi's front end whose other values ours has not, and that value; options
# that only say how a program goes about it.
_FIXED = {
    "remove-dc-offset": "true", "round-to-power-of-two": "true", "raw-energy": "true",
    "energy-floor": "0", "htk-compat": "false", "vtln-warp": "1", "use-power": "true",
    "use-log-fbank": "true", "subtract-mean": "false", "blackman-coeff": "0.42",
}  # fmt: skip
_IGNORED = (
    "allow-downsample", "allow-upsample", "channel", "debug-mel", "max-feature-vectors",
    "min-duration", "output-format", "utt2spk", "verbose", "vtln-high", "vtln-low",
    "vtln-map", "write-utt2dur",
)  # fmt: skip
_FRONT_END = {
    "frame-length": "frame_length_ms", "frame-shift": "frame_shift_ms",
    "preemphasis-coefficient": "preemphasis", "window-type": "window_type",
    "dither": "dither", "snip-edges": "snip_edges", "num-mel-bins": "num_mel_bins",
    "low-freq": "low_freq", "high-freq": "high_freq", "use-energy": "use_energy",
    "num-ceps": "num_ceps", "cepstral-lifter": "cepstral_lifter",
    "sample-frequency": "sample-frequency",
}  # fmt: skip
# Kaldi's defaults.
_SEARCH = {
    "beam": "16", "lattice-beam": "10", "max-active": "2147483647", "min-active": "200"
}  # fmt: skip
_RULE = re.compile(r"endpoint\.(rule[1-5])\.([a-z-]+)")


@dataclass(frozen=True)
class _Conf:
    """What `conf/` says."""

    front_end: FrontEndOptions
    sample_rate: int
    search: SearchOptions
    endpoint: EndpointOptions
    acoustic_scale: float
    subsampling: int
    silence_phones: tuple[int, ...]


def import_vosk(
    model_dir: str | Path,
    results: str | Path,
    name: str,
    *,
    lang_dir: str | Path | None = None,
) -> None:
    """Make a system and its package of a model folder of Vosk, see the module.

    Args:
        model_dir: the folder.
        results: folder of an experiment.
        name: of the system.
        lang_dir: the lang directory of its graph; None makes one that has what the
            folder tells: enough to recognize, without a lexicon.

    Raises:
        UserError: a file is missing or garbled; the network has what ours has not; or
            parts do not fit each other.
    """
    source, out = Path(model_dir), Path(results)
    if not source.is_dir():
        raise UserError("no such folder", file=source, remedy="check the path")
    conf = read_conf(source / "conf")
    _check_graph_is_whole(source)
    transitions, nnet = read_model(source / "am/final.mdl")
    system = out / "nnet" / name
    ivector_dim = _write_system(source, system, transitions, nnet, conf)
    ivectors = None
    if ivector_dim:
        ivectors = out / "ivectors" / name / MODEL
        _write_ivectors(source, ivectors, conf.front_end, ivector_dim)
    lang = _write_lang(source, out / "lang", transitions, conf, lang_dir)
    graph = Graph.load(source / "graph/HCLG.fst")
    check_graph(graph, transitions, lang, source / "graph/HCLG.fst")
    cmvn = _write_statistics(source, system, conf.front_end.dim)
    graph_file = out / "graph" / name / "HCLG.fst"
    graph_file.parent.mkdir(parents=True, exist_ok=True)
    graph.save(graph_file, is_aligned=True)
    scales = system / "scales.json"
    write_json(scales, {"lmwt": _LMWT, "wip": 0.0})
    options = PackageOptions(
        experiment=out.resolve().name,
        name=name,
        kind="lfmmi",
        front_end=conf.front_end,
        cmvn=cmvn,
        search=conf.search,
        endpoint=conf.endpoint,
        sample_rate=conf.sample_rate,
        scores=NetworkScoreOptions(acoustic_scale=conf.acoustic_scale),
    )
    write_package(
        PackageFiles(
            model_dir=system,
            graph=graph_file,
            lang_dir=lang.folder,
            scales=scales,
            frames_dir=system,
            ivectors=ivectors,
        ),
        out_dir=out / "package" / name,
        options=options,
    )


def read_model(path: Path) -> tuple[TransitionModel, Nnet3File]:
    """Read `final.mdl`, binary or text: the transition model and the nnet3.

    Raises:
        UserError: it is missing or garbled, or has what is not read; names node and
            component.
    """
    with KaldiReader.open(path) as reader:
        transitions = TransitionModel.read(reader)
        try:
            return transitions, read_nnet3(reader)
        except UserError as error:
            raise error.at(file=path) from None


def _check_graph_is_whole(source: Path) -> None:
    """Refuse folders whose graph Vosk composes while it searches."""
    if (source / "graph/HCLr.fst").is_file():
        raise UserError(
            "a graph in two parts (HCLr.fst, Gr.fst) is not read",
            file=source / "graph/HCLr.fst",
            remedy="import a folder with graph/HCLG.fst",
        )


def _write_system(
    source: Path,
    system: Path,
    transitions: TransitionModel,
    nnet: Nnet3File,
    conf: _Conf,
) -> int:
    """Write the folder of the network; return the numbers of its i-vectors."""
    path = source / "am/final.mdl"
    try:
        found = import_nnet3(nnet, conf.subsampling)
    except UserError as error:
        raise error.at(file=path) from None
    network = found.network
    classes = next(iter(network.outputs.values())).num_classes
    fault = None
    if classes != transitions.num_pdfs:
        fault = f"{classes} outputs, and {transitions.num_pdfs} pdfs"
    elif (dim := network.dim_in - found.ivector_dim) != conf.front_end.dim:
        fault = (
            f"the network takes {dim} features per frame, conf/ gives "
            f"{conf.front_end.dim}"
        )
    if fault:
        raise UserError(fault, file=path, remedy="am/ and conf/ must be of one model")
    meta = {
        "scores": "log_likelihoods",
        "normalization": found.normalizer.to_meta(),
        "imported_from": str(source),
    }
    tree = source / "am/tree"
    with atomic_directory(system) as folder:
        save_model(folder, network, network.description, None, meta)
        transitions.save(folder / "final.mdl")
        if tree.is_file():
            found_tree = ContextDependency.load(tree)
            check_tree(found_tree, transitions, path)
            found_tree.save(folder / "tree")
    return found.ivector_dim


def _write_ivectors(
    source: Path, target: Path, front_end: FrontEndOptions, dim: int
) -> None:
    """Write the extractor of the i-vectors."""
    if (source / "am" / _STATISTICS).is_file():
        raise UserError(
            "the network takes normalized features and i-vectors of features as they "
            "are: packages have both of the same",
            file=source / "am" / _STATISTICS,
            remedy="import a model without online CMVN, or without i-vectors",
        )
    folder = source / "ivector"
    if not folder.is_dir():
        raise UserError(
            f"no such folder, and the network takes i-vectors of {dim} numbers",
            file=folder,
            remedy="put the files of the extractor there",
        )
    name = "ivector*.conf"  # which Kaldi's programs read; Vosk has no such file
    confs = sorted([*(source / "conf").glob(name), *folder.glob(name)])
    model = read_ivectors(
        folder,
        front_end.dim,
        features=front_end.type,
        conf=confs[0] if confs else None,
    )
    if model.extractor.dim != dim:
        raise UserError(
            f"i-vectors of {model.extractor.dim} numbers, and the network takes {dim}",
            file=folder / "final.ie",
            remedy="am/ and ivector/ must be of one model",
        )
    with atomic_directory(target.parent) as out:
        model.save(out / target.name)


# -- language ------------------------------------------------------------------------


def _write_statistics(source: Path, system: Path, dim: int) -> OnlineCmvn | NoCmvn:
    """Write the statistics of online CMVN, if there are any; return the CMVN."""
    path = source / "am" / _STATISTICS
    if not path.is_file():
        return NoCmvn()
    write_matrices(system / STATISTICS, [(GLOBAL, read_statistics(path, dim))])
    return OnlineCmvn()


def _write_lang(
    source: Path,
    target: Path,
    transitions: TransitionModel,
    conf: _Conf,
    lang_dir: str | Path | None,
) -> Lang:
    """Write the lang directory: the one given, or what the folder tells of it."""
    graph = source / "graph"
    if lang_dir is None:
        with atomic_directory(target) as folder:
            _write_lists(graph, folder, transitions, conf)
    else:
        import_lang(Path(lang_dir), target)
    lang = Lang.load(target)
    check_phones(transitions, lang, source / "am/final.mdl")
    check_words(graph / "words.txt", lang)
    check_phone_table(graph / "phones.txt", lang)
    return lang


def _write_lists(
    graph: Path, folder: Path, transitions: TransitionModel, conf: _Conf
) -> None:
    """Write the files of a lang directory of what a graph has beside it."""
    words = read_symbols(graph / "words.txt")
    phones = read_symbols(graph / "phones.txt")
    known = [word for word in _UNKNOWN if word in words]
    if not known:
        raise UserError(
            "no word for unknown words: none of " + ", ".join(_UNKNOWN),
            file=graph / "words.txt",
            remedy="name the lang directory of the graph with --lang",
        )
    silence = conf.silence_phones or _ids_in(graph / "phones/silence.csl")
    real = transitions.topology.phones
    if not silence or not set(silence) <= set(real):
        raise UserError(
            "endpoint.silence-phones does not name phones of the model",
            file=graph.parent / "conf/model.conf",
            remedy="write the ids of the phones of silence there, with colons between",
        )
    # read_symbols takes any white space; what is written has one form
    for name, table in (("words", words), ("phones", phones)):
        lines = "".join(f"{symbol} {number}\n" for symbol, number in table.items())
        write_text(folder / f"{name}.txt", lines)
    write_text(folder / "oov.txt", f"{known[0]}\n")
    write_text(folder / "oov.int", f"{words[known[0]]}\n")
    transitions.topology.save(folder / "topo")
    optional = graph / "phones/optional_silence.int"
    spoken = [phone for phone in real if phone not in silence]
    disambig = [n for phone, n in phones.items() if re.fullmatch(r"#\d+", phone)]
    lists = {
        "silence": silence,
        "nonsilence": spoken,
        "disambig": disambig,
        "context_indep": silence,
        "optional_silence": silence[:1],
        "sets": real,
        "roots": [f"shared split {phone}" for phone in real],
        "extra_questions": [],
    }
    (folder / "phones").mkdir()
    for name, lines in lists.items():
        text = "".join(f"{line}\n" for line in lines)
        write_text(folder / f"phones/{name}.int", text)
    for path in (optional, graph / "phones/word_boundary.int"):
        if path.is_file():
            write_text(folder / "phones" / path.name, _text_of(path))
    lexicon = graph / "phones/align_lexicon.txt"
    write_text(folder / "phones" / lexicon.name, _text_of(lexicon))


def _text_of(path: Path) -> str:
    """Return the lines of a file; none where there is no file."""
    lines = read_lines(path) if path.is_file() else ()
    return "".join(f"{line}\n" for _, line in lines)


def _ids_in(path: Path) -> tuple[int, ...]:
    """Return the ids in a file; none where there is no file."""
    return _ids(_text_of(path))


def _ids(text: str) -> tuple[int, ...]:
    """Return ids with colons or commas between them."""
    return tuple(int(x) for x in re.findall(r"(?<![^:,\s])\d{1,9}(?![^:,\s])", text))


# -- conf ----------------------------------------------------------------------------


def read_conf(folder: Path) -> _Conf:
    """Read `conf/mfcc.conf` (or `fbank.conf`) and `conf/model.conf`.

    Raises:
        UserError: a file is missing, or an option has a value that ours has not.
    """
    kind = "mfcc" if (folder / "mfcc.conf").is_file() else "fbank"
    front_end, rate = _front_end(folder / f"{kind}.conf", kind)
    path = folder / "model.conf"
    values = read_conf_file(path)
    search = {
        key.replace("-", "_"): values.pop(key, default)
        for key, default in _SEARCH.items()
    }
    rules: dict[str, dict[str, str]] = {}
    for key in list(values):
        if (rule := _RULE.fullmatch(key)) is not None:
            name, part = rule[1], rule[2].replace("-", "_")
            rules.setdefault(name, {})[part] = values.pop(key)
    phones = _ids(values.pop("endpoint.silence-phones", ""))
    factor = values.pop("frame-subsampling-factor", "1")
    scale = values.pop("acoustic-scale", "0.1")
    for key in values:
        log.warning("%s: --%s is not used", path, key)
    if not re.fullmatch(r"[1-9]\d?", factor):
        raise UserError(f"frame-subsampling-factor is {factor[:40]}", file=path)
    scores = options_of(NetworkScoreOptions, {"acoustic_scale": scale}, path)
    return _Conf(
        front_end,
        rate,
        options_of(SearchOptions, search, path),
        options_of(EndpointOptions, rules, path),
        scores.acoustic_scale or 1.0,
        int(factor),
        phones,
    )


def _front_end(path: Path, kind: str) -> tuple[FrontEndOptions, int]:
    """Read how features are computed, and the sample rate."""
    given = read_known(path, _FRONT_END, fixed=_FIXED, ignored=_IGNORED)
    rate = given.pop("sample-frequency", "16000")
    # Kaldi's defaults, where ours differ
    values = {"use_energy": "true"} if kind == "mfcc" else {}
    options = options_of(FrontEndOptions, {"type": kind, **values, **given}, path)
    try:
        found = float(rate)
    except ValueError:
        found = 0.0
    if not 1000 <= found <= 192000 or found != int(found):
        raise UserError(f"sample-frequency is {rate[:40]}", file=path)
    return options, int(found)
