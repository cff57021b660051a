"""A model folder of Vosk as a system of ours: the way back from `latflow.decode.vosk`.

    am/final.mdl, am/tree            -> nnet/<system>/
    am/global_cmvn.stats, if there   -> nnet/<system>/cmvn.ark, for online CMVN
    ivector/, if i-vectors are taken -> ivectors/<system>/extractor.npz
    graph/HCLG.fst, or HCL and G     -> graph/<system>/HCLG.fst
    graph/words.txt, phones.txt, ... -> lang/, unless a lang directory is given
    rescore/G.carpa, if there        -> rescore/<system>/lm.bin
    all of it, conf/                 -> package/<system>/

Folders of the old layout have the same files at the top, see
`latflow.serving.vosk_folder`. A graph in two parts stays so, and is composed in the
search. The package searches with the folder's beams and scales, and takes words as Vosk
does, which multiplies graph costs by 0.9.

Source: what `libvosk` 0.3.45 opens.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from latflow.decode.options import NetworkScoreOptions, SearchOptions
from latflow.errors import UserError
from latflow.features.cmvn import GLOBAL, STATISTICS
from latflow.features.cmvn_options import NoCmvn, OnlineCmvn
from latflow.features.options import FrontEndOptions
from latflow.files import atomic_directory, write_json, write_text
from latflow.fst.graph import Graph
from latflow.gmm.ivector import MODEL
from latflow.gmm.kaldi_dir import check_tree
from latflow.gmm.kaldi_import import check_labels, check_self_loops
from latflow.gmm.kaldi_ivector import read_ivectors, read_statistics
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import KaldiReader, write_matrices
from latflow.lang.compatibility import (
    check_phone_table,
    check_phones,
    check_word_ids,
)
from latflow.lang.const_arpa import read_const_arpa
from latflow.lang.directory import Lang, read_symbols
from latflow.lang.lm_trie import LmTrie
from latflow.lang.prepare import import_lang
from latflow.nnet.model_dir import save_model
from latflow.nnet.nnet3_file import Nnet3File, read_nnet3
from latflow.nnet.nnet3_import import import_nnet3
from latflow.serving.package_info import RescoringOptions
from latflow.serving.packaging import PackageFiles, PackageOptions, write_package
from latflow.serving.vosk_folder import (
    VoskConf,
    VoskFolder,
    check_files,
    find_folder,
    in_one_numbering,
    parse_ids,
    read_conf,
    read_graph_parts,
    read_words,
)
from latflow.text_files import read_lines

log = logging.getLogger(__name__)
# Weight of the language model where acoustic costs are times 10: Vosk's 0.9.
_LMWT = 9.0
_SILENCE_WEIGHT = 1e-3  # in i-vectors; Vosk has no option for it
_UNKNOWN = ("<unk>", "<UNK>", "[unk]", "<spoken_noise>", "<SPOKEN_NOISE>")


def import_vosk(
    model_dir: str | Path,
    results: str | Path,
    name: str,
    *,
    lang_dir: str | Path | None = None,
    g2p: str | Path | None = None,
) -> None:
    """Make a system and its package of a model folder of Vosk, see the module.

    All of it is put into the results in the end, or nothing.

    Args:
        model_dir: the folder.
        results: folder of an experiment.
        name: of the system.
        lang_dir: the lang directory of its graph; None makes one that has what the
            folder says: enough to recognize, without a lexicon.
        g2p: model for words that sessions bring without phones.

    Raises:
        UserError: a file is missing or garbled; the network has what ours lacks; or
            parts do not fit each other.
    """
    out = Path(results)
    source = find_folder(Path(model_dir))
    check_files(source)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp.", dir=out.parent) as beside:
        made = Path(beside)
        lang = None if lang_dir is None else Path(lang_dir)
        model = None if g2p is None else Path(g2p)
        _import(source, made, (out.resolve().name, name), lang, model)
        own = (f"{kind}/{name}" for kind in ("nnet", "ivectors", "graph", "rescore"))
        for part in (*own, "lang", f"package/{name}"):
            if (made / part).exists():
                (out / part).parent.mkdir(parents=True, exist_ok=True)
                if (out / part).exists():
                    shutil.rmtree(out / part)
                os.replace(made / part, out / part)


def _import(
    source: VoskFolder,
    out: Path,
    names: tuple[str, str],
    lang_dir: Path | None,
    g2p: Path | None,
) -> None:
    """Write the system and its package.

    Args:
        source: the folder.
        out: for `nnet/`, `graph/`, `lang/`, ... and `package/`.
        names: of the experiment and of the system.
        lang_dir: see `import_vosk`.
        g2p: likewise.
    """
    experiment, name = names
    conf = read_conf(source)
    if (source.top / "rnnlm").is_dir():
        log.warning(
            "%s: not used, the words are those without it", source.top / "rnnlm"
        )
    transitions, nnet = read_model(source.model)
    system = out / "nnet" / name
    ivector_dim = _write_system(source, system, transitions, nnet, conf)
    ivectors = None
    if ivector_dim:
        ivectors = out / "ivectors" / name / MODEL
        _write_ivectors(source, ivectors, conf.front_end, ivector_dim)
    lang = _write_lang(source, out / "lang", transitions, conf, lang_dir)
    cmvn = _write_statistics(source, system, conf.front_end.dim)
    graph_file = out / "graph" / name / "HCLG.fst"
    graph_file.parent.mkdir(parents=True, exist_ok=True)
    _write_graph(source, graph_file, transitions, lang)
    second = out / "rescore" / name / "lm.bin"
    rescoring = _write_second_model(source, second, lang, conf.search)
    scales = system / "scales.json"
    write_json(scales, {"lmwt": _LMWT, "wip": 0.0})
    options = PackageOptions(
        experiment=experiment,
        name=name,
        kind="lfmmi",
        front_end=conf.front_end,
        cmvn=cmvn,
        search=conf.search,
        endpoint=conf.endpoint,
        sample_rate=conf.sample_rate,
        scores=NetworkScoreOptions(acoustic_scale=conf.acoustic_scale),
        rescoring=rescoring,
    )
    write_package(
        PackageFiles(
            model_dir=system,
            graph=graph_file,
            lang_dir=lang.folder,
            scales=scales,
            frames_dir=system,
            ivectors=ivectors,
            grammar=source.top / "rescore/G.fst",
            arpa=second if rescoring else None,
            g2p=g2p,
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


def _write_graph(
    source: VoskFolder, target: Path, transitions: TransitionModel, lang: Lang
) -> None:
    """Write the graph, composed where it is in two parts."""
    path = source.graph / "HCLr.fst" if source.has_parts else source.hclg
    parts: tuple[Graph, ...]
    if source.has_parts:
        found = read_graph_parts(source)
        try:
            parts = in_one_numbering(found)
        except UserError as error:
            raise error.at(file=source.graph / "Gr.fst") from None
    else:
        parts = (Graph.load(path),)
    check_labels(parts[0], transitions, lang, path)
    check_self_loops(parts[0], transitions, path)
    Graph.save_all(parts, target, is_aligned=True)


def _write_second_model(
    source: VoskFolder, target: Path, lang: Lang, search: SearchOptions
) -> RescoringOptions | None:
    """Write the language model that lattices are rescored with, if there is one."""
    path = source.top / "rescore/G.carpa"
    if not path.parent.is_dir():
        return None
    if not (path.is_file() and path.with_suffix(".fst").is_file()):
        log.warning("%s: not used, G.fst or G.carpa is not there", path.parent)
        return None
    model = read_const_arpa(path, lang.words)
    target.parent.mkdir(parents=True, exist_ok=True)
    LmTrie.from_model(model, lang.word_ids, file=path).save(target)
    return RescoringOptions(
        lm=path.name, beam=search.lattice_beam, acoustic_scale=search.acoustic_scale
    )


def _write_system(
    source: VoskFolder,
    system: Path,
    transitions: TransitionModel,
    nnet: Nnet3File,
    conf: VoskConf,
) -> int:
    """Write the folder of the network; return the numbers of its i-vectors."""
    path = source.model
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
        "imported_from": str(source.top),
    }
    tree = path.with_name("tree")
    with atomic_directory(system) as folder:
        save_model(folder, network, network.description, None, meta)
        transitions.save(folder / "final.mdl")
        if tree.is_file():
            found_tree = ContextDependency.load(tree)
            check_tree(found_tree, transitions, path)
            found_tree.save(folder / "tree")
    return found.ivector_dim


def _write_ivectors(
    source: VoskFolder, target: Path, front_end: FrontEndOptions, dim: int
) -> None:
    """Write the extractor of the i-vectors."""
    if source.statistics.is_file():
        raise UserError(
            "the network takes normalized features and i-vectors of features as they "
            "are: packages have both of the same",
            file=source.statistics,
            remedy="import a model without online CMVN, or without i-vectors",
        )
    folder = source.ivector
    if not folder.is_dir():
        raise UserError(
            f"no such folder, and the network takes i-vectors of {dim} numbers",
            file=folder,
            remedy="put the files of the extractor there",
        )
    name = "ivector*.conf"  # which Kaldi's programs read; Vosk has no such file
    confs = sorted([*source.conf.glob(name), *folder.glob(name)])
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
    options = model.options.replace(silence_weight=_SILENCE_WEIGHT)
    with atomic_directory(target.parent) as out:
        replace(model, options=options).save(out / target.name)


# -- language ------------------------------------------------------------------------


def _write_statistics(
    source: VoskFolder, system: Path, dim: int
) -> OnlineCmvn | NoCmvn:
    """Write the statistics of online CMVN, if there are any; return the CMVN."""
    path = source.statistics
    if not path.is_file():
        return NoCmvn()
    write_matrices(system / STATISTICS, [(GLOBAL, read_statistics(path, dim))])
    return OnlineCmvn()


def _write_lang(
    source: VoskFolder,
    target: Path,
    transitions: TransitionModel,
    conf: VoskConf,
    lang_dir: str | Path | None,
) -> Lang:
    """Write the lang directory: the one given, or what the folder says of it."""
    words = read_words(source)
    phones = _phones(source, transitions)
    if lang_dir is None:
        with atomic_directory(target) as folder:
            _write_lists(source, folder, transitions, conf, (words, phones))
    else:
        import_lang(Path(lang_dir), target)
    lang = Lang.load(target)
    check_phones(transitions, lang, source.model)
    check_word_ids(words, source.graph, lang)
    if lang_dir is not None:
        check_phone_table(source.graph / "phones.txt", lang)
    return lang


def _phones(source: VoskFolder, transitions: TransitionModel) -> dict[str, int]:
    """Return the ids of the phones: of `phones.txt`; else names made of their ids.

    Vosk does not read that file, and folders are about with that of another model.
    """
    path, real = source.graph / "phones.txt", transitions.topology.phones
    if not path.is_file():
        log.warning("%s: no such file: phones are called p1, p2, ...", path)
    else:
        table = read_symbols(path)
        named = {number for name, number in table.items() if name[0] not in "#<"}
        if named == set(real):
            return table
        log.warning(
            "%s: not used: it has %d phones, and the model %d: they are called p1, ...",
            path,
            len(named),
            len(real),
        )
    return {"<eps>": 0, **{f"p{number}": number for number in real}}


def _write_lists(
    source: VoskFolder,
    folder: Path,
    transitions: TransitionModel,
    conf: VoskConf,
    tables: tuple[dict[str, int], dict[str, int]],
) -> None:
    """Write the files of a lang directory of words, phones and what a graph has."""
    words, phones = tables
    known = [word for word in _UNKNOWN if word in words]
    if not known:
        raise UserError(
            "no word for unknown words: none of " + ", ".join(_UNKNOWN),
            file=source.graph,
            remedy="name the lang directory of the graph with --lang",
        )
    silence = conf.silence_phones or _ids_in(source.phones / "silence.csl")
    real = transitions.topology.phones
    if not silence or not set(silence) <= set(real):
        raise UserError(
            "endpoint.silence-phones does not name phones of the model",
            file=source.model_conf or source.model,
            remedy="write the ids of the phones of silence there, with colons between",
        )
    # tables are read with any white space; what is written has one form
    for name, table in (("words", words), ("phones", phones)):
        lines = "".join(f"{symbol} {number}\n" for symbol, number in table.items())
        write_text(folder / f"{name}.txt", lines)
    write_text(folder / "oov.txt", f"{known[0]}\n")
    write_text(folder / "oov.int", f"{words[known[0]]}\n")
    transitions.topology.save(folder / "topo")
    optional = source.phones / "optional_silence.int"
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
    for path in (optional, source.phones / "word_boundary.int"):
        if path.is_file():
            write_text(folder / "phones" / path.name, _text_of(path))
    lexicon = source.phones / "align_lexicon.txt"
    write_text(folder / "phones" / lexicon.name, _text_of(lexicon))


def _text_of(path: Path) -> str:
    """Return the lines of a file; none where there is no file."""
    lines = read_lines(path) if path.is_file() else ()
    return "".join(f"{line}\n" for _, line in lines)


def _ids_in(path: Path) -> tuple[int, ...]:
    """Return the ids in a file; none where there is no file."""
    return parse_ids(_text_of(path), path)
