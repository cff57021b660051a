"""Stages: a system that Kaldi trained becomes one of ours.

What Kaldi's scripts leave in `exp/<system>`, `exp/<system>/graph` and `data/lang` is
checked, part against part, and written in the layout of an experiment:

    import_lang         data/lang                    -> lang/
    import_system       final.mdl, tree, final.mat,  -> gmm/<system>/
                        *_opts, final.alimdl
    import_graph        graph/HCLG.fst               -> graph/<system>/HCLG.fst

`latflow.gmm.kaldi_alignments` takes the alignments over. Decoding, aligning and
training go on from there as from a system of our own; `latflow.gmm.kaldi_export` goes
the other way.

Source: Kaldi `steps/train_{mono,deltas,lda_mllt,sat}.sh` and `utils/mkgraph.sh`, which
write these files.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from latflow.errors import UserError
from latflow.features.options import FrontEndOptions
from latflow.features.transform import FeatureTransform
from latflow.files import atomic_directory, atomic_output
from latflow.fst.graph import Graph
from latflow.gmm.kaldi_checks import (
    check_graph,
    check_language,
    check_phone_table,
    check_tree,
    check_words,
)
from latflow.gmm.kaldi_options import MATRIX, check_cmvn, read_transform
from latflow.gmm.model import AcousticModel, DiagGmms
from latflow.gmm.system import ALIGNMENT_MODEL, GmmSystem, save_transform
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.kaldi_io import KaldiReader, KaldiWriter
from latflow.lang.directory import Lang
from latflow.ledger import Ledger

FULL_MATRIX = "full.mat"
LANG_FILES = (
    "words.txt",
    "topo",
    "L.fst",
    "L_disambig.fst",
    "oov.txt",
    "phones.txt",
)
OPTIONAL_LANG_FILES = (
    "G.fst",
    "lexicon.txt",
    "lexiconp.txt",
    "lexiconp_silprob.txt",
    "silprob.txt",
)
_TRAIN_AGAIN = "train the system again in Kaldi, or copy the file anew"


# -- language ------------------------------------------------------------------------


def import_lang(lang_dir: str | Path, out_dir: str | Path) -> None:
    """Take over a lang directory of Kaldi's, its grammar `G.fst` too if there is one.

    Words, phones and transducers are copied as they are, so that ids stay. What other
    programs put there (other grammars, scratch folders) is left behind.

    Args:
        lang_dir: Kaldi's `data/lang`.
        out_dir: the lang directory of the experiment; replaced as a whole.

    Raises:
        UserError: a file is missing or garbled, or two contradict each other.
    """
    lang = Lang.load(lang_dir)
    lang.validate()
    if not lang.lexicon:
        raise UserError(
            "no pronunciations",
            file=lang.folder / "phones/align_lexicon.txt",
            remedy="make the lang directory again with utils/prepare_lang.sh",
        )
    with atomic_directory(out_dir) as folder:
        copy_lang(lang, folder)
        for name in OPTIONAL_LANG_FILES:
            if (lang.folder / name).is_file():
                shutil.copyfile(lang.folder / name, folder / name)


def copy_lang(lang: Lang, folder: Path) -> None:
    """Copy what makes a lang directory, without grammar and lexicon."""
    for name in LANG_FILES:
        shutil.copyfile(lang.folder / name, folder / name)
    (folder / "oov.int").write_text(f"{lang.oov_id}\n", encoding="utf-8")
    (folder / "phones").mkdir()
    for path in sorted((lang.folder / "phones").iterdir()):
        if path.is_file():
            shutil.copyfile(path, folder / "phones" / path.name)


# -- system --------------------------------------------------------------------------


def import_system(
    exp_dir: str | Path,
    lang_dir: str | Path,
    out_dir: str | Path,
    *,
    features: Mapping[str, Any],
) -> None:
    """Take over the model, the tree and the features of a GMM system.

    Writes `final.mdl`, `tree`, `transform.json`, `final.mat` and `full.mat` (of systems
    with LDA), `final.alimdl` (of systems trained on adapted speakers), `info.json` and
    `ledger.jsonl`, the model last.

    Args:
        exp_dir: Kaldi's directory, e.g. `exp/tri3b`.
        lang_dir: the lang directory it was trained with.
        out_dir: folder of the system; its name is the system's.
        features: section `features` of the configuration: what the experiment's frames
            are.

    Raises:
        UserError: a file is missing or garbled; the parts are not of one training; the
            language has other phones; or the experiment's features are not those of
            the model.
    """
    began = time.perf_counter()
    exp, out, lang = Path(exp_dir), Path(out_dir), Lang.load(lang_dir)
    if not exp.is_dir():
        raise UserError("no such folder", file=exp, remedy="check gmm.import")
    check_phone_table(exp / "phones.txt", lang)
    model = read_model(exp / "final.mdl")
    check_language(model.transitions, lang, exp / "final.mdl")
    tree = ContextDependency.load(exp / "tree")
    check_tree(tree, model.transitions, exp / "final.mdl")
    check_cmvn(exp, features["cmvn"])
    transform = read_transform(exp)
    _check_features(transform, model, features, exp)
    alignment_model = _alignment_model(exp / ALIGNMENT_MODEL, model)
    full = _full_matrix(exp / FULL_MATRIX, transform, features)
    out.mkdir(parents=True, exist_ok=True)
    tree.save(out / "tree")
    save_transform(out, transform)
    if full is not None:
        with KaldiWriter.open(out / FULL_MATRIX) as writer:
            writer.write_float_matrix(full)
    if alignment_model is not None:
        alignment_model.save(out / ALIGNMENT_MODEL)
    Ledger(f"import_{out.name}").write(out / "ledger.jsonl")
    _write_info(out, model, exp, features, seconds=time.perf_counter() - began)
    model.save(out / "final.mdl")


def read_model(path: Path) -> AcousticModel:
    """Read a GMM system's model, telling those of networks.

    Raises:
        UserError: the file is missing or garbled, or holds a neural network.
    """
    with KaldiReader.open(path) as reader:
        transitions = TransitionModel.read(reader)
        kind = reader.peek_token()
        if kind.lower().startswith(("<nnet", "<components", "<numcomponents")):
            raise UserError(
                f"a neural network ({kind}), not Gaussian mixtures",
                file=path,
                remedy="import the GMM system that its alignments came from",
            )
        gmms = DiagGmms.read(reader)
    if gmms.num_pdfs != transitions.num_pdfs:
        raise UserError(
            f"{gmms.num_pdfs} mixtures for {transitions.num_pdfs} pdfs",
            file=path,
            remedy=_TRAIN_AGAIN,
        )
    return AcousticModel(transitions, gmms)


def _check_features(
    transform: FeatureTransform,
    model: AcousticModel,
    features: Mapping[str, Any],
    exp: Path,
) -> None:
    """Refuse features that do not become those of the model."""
    dim = FrontEndOptions.from_config(features).dim
    remedy = (
        "set features (type, num_ceps, num_mel_bins, use_energy) to what the system "
        "was trained on, see the conf/*.conf of its recipe"
    )
    try:
        made = transform.dim_out(dim)
    except UserError as error:
        raise UserError(
            f"the configuration's features have dimension {dim}, and {error.what} "
            "follows",
            file=exp / MATRIX,
            remedy=remedy,
        ) from None
    if made != model.gmms.dim:
        raise UserError(
            f"the model takes features of dimension {model.gmms.dim}, but "
            f"the configuration's have {dim}, which become {made}",
            file=exp / "final.mdl",
            remedy=remedy,
        )


def _alignment_model(path: Path, model: AcousticModel) -> AcousticModel | None:
    """The model for unadapted features of a system that adapts to speakers."""
    if not path.is_file():
        return None
    found = read_model(path)
    is_same_tree = np.array_equal(found.transitions.tuples, model.transitions.tuples)
    if not is_same_tree or found.transitions.topology != model.transitions.topology:
        raise UserError(
            f"{found.gmms.num_pdfs} pdfs of another tree than final.mdl "
            f"({model.gmms.num_pdfs} pdfs)",
            file=path,
            remedy="take all files of a directory from one training",
        )
    if found.gmms.dim != model.gmms.dim:
        raise UserError(
            f"features of dimension {found.gmms.dim}, final.mdl has {model.gmms.dim}",
            file=path,
            remedy="take all files of a directory from one training",
        )
    return found


def _full_matrix(
    path: Path, transform: FeatureTransform, features: Mapping[str, Any]
) -> np.ndarray | None:
    """All directions of LDA, where a system has kept them."""
    if not path.is_file() or not (path.parent / MATRIX).is_file():
        return None
    with KaldiReader.open(path) as reader:
        matrix = reader.float_matrix()
    spliced = FrontEndOptions.from_config(features).dim
    for step in transform.to_config()["transforms"]:
        if step["type"] == "splice":
            spliced *= step["left"] + 1 + step["right"]
    if matrix.shape[1] not in (spliced, spliced + 1):
        raise UserError(
            f"a matrix for dimension {matrix.shape[1]}, where spliced frames have "
            f"{spliced}",
            file=path,
            remedy="take all files of a directory from one training",
        )
    return matrix


def _write_info(
    out: Path,
    model: AcousticModel,
    exp: Path,
    features: Mapping[str, Any],
    *,
    seconds: float,
) -> None:
    """Write what the report tells of a system."""
    info = {
        "system": out.name,
        "type": "import",
        "imported_from": str(exp),
        "num_phones": len(model.transitions.topology.phones),
        "num_pdfs": model.gmms.num_pdfs,
        "num_gaussians": model.gmms.num_gaussians,
        "num_transition_ids": model.transitions.num_transition_ids,
        "dim": model.gmms.dim,
        "seconds": round(seconds, 3),
        "cmvn": dict(features["cmvn"]),
    }
    with atomic_output(out / "info.json") as temporary:
        temporary.write_text(json.dumps(info, indent=1) + "\n", encoding="utf-8")


# -- graph ---------------------------------------------------------------------------


def import_graph(
    graph_dir: str | Path,
    system_dir: str | Path,
    lang_dir: str | Path,
    out_fst: str | Path,
) -> None:
    """Take over the decoding graph of a system, for mapping into memory.

    Writes the graph, and its counts beside it (`HCLG.json`).

    Args:
        graph_dir: Kaldi's directory with `HCLG.fst`, e.g. `exp/tri3b/graph`.
        system_dir: folder of the imported system.
        lang_dir: the lang directory.
        out_fst: where the graph goes.

    Raises:
        UserError: the graph is missing or garbled, or was made with another model,
            another phone table or other words.
    """
    began = time.perf_counter()
    source, target, lang = Path(graph_dir), Path(out_fst), Lang.load(lang_dir)
    model = GmmSystem.load(system_dir).model.transitions
    check_words(source / "words.txt", lang)
    check_phone_table(source / "phones.txt", lang)
    _check_num_pdfs(source / "num_pdfs", model)
    graph = Graph.load(source / "HCLG.fst")
    check_graph(graph, model, lang, source / "HCLG.fst")
    graph.save(target, is_aligned=True)
    facts = {
        "states": graph.num_states,
        "arcs": graph.num_arcs,
        "final_states": graph.num_final_states,
        "input_epsilons": int(graph.num_input_epsilons.sum()),
        "imported_from": str(source),
        "seconds": round(time.perf_counter() - began, 3),
    }
    with atomic_output(target.with_suffix(".json")) as temporary:
        temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _check_num_pdfs(path: Path, model: TransitionModel) -> None:
    """Refuse a graph whose directory names another number of pdfs."""
    if not path.is_file():
        return
    text = path.read_text(encoding="utf-8").strip()
    if text != str(model.num_pdfs):
        raise UserError(
            f"the graph was made for {text} pdfs, the model has {model.num_pdfs}",
            file=path,
            remedy="make the graph again with this model (utils/mkgraph.sh)",
        )
