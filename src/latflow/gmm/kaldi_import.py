"""Stages: a system that Kaldi trained becomes one of ours.

What Kaldi's scripts leave in `exp/<system>`, `exp/<system>/graph` and `data/lang` is
checked, part against part, and written in the layout of an experiment:

    import_system       final.mdl, tree, final.mat,  -> gmm/<system>/
                        *_opts, final.alimdl
    import_graph        graph/HCLG.fst               -> graph/<system>/HCLG.fst
    import_alignments   ali.*.gz, trans.*            -> align/<system>/<split>/

Decoding, aligning and training continue from there as from a system of our own;
`latflow.lang.prepare.import_lang` takes over the language, and
`latflow.gmm.kaldi_export` goes the other way.

Source: Kaldi `steps/train_{mono,deltas,lda_mllt,sat}.sh`, `steps/align_{si,fmllr}.sh`
and `utils/mkgraph.sh`, which write these files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from latflow.archive_sizes import archive_sizes
from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.features.options import FeatureOptions, GmmFeatures
from latflow.features.transform import FeatureTransform
from latflow.files import write_json
from latflow.fst.graph import Graph
from latflow.gmm.adaptation import SPEAKER_TRANSFORMS
from latflow.gmm.kaldi_dir import (
    ALIGNMENTS,
    FULL_MATRIX,
    MATRIX,
    ONE_TRAINING,
    TRANSFORMS,
    check_cmvn,
    check_tree,
    job_files,
    merged_alignments,
    merged_transforms,
    read_transform,
)
from latflow.gmm.model import (
    ALIGNMENT_MODEL,
    AcousticModel,
    GmmSystem,
    save_transform,
)
from latflow.hmm.alignment import PhoneDurations
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import read_matrix, write_int_vectors, write_matrix
from latflow.lang.compatibility import (
    check_language,
    check_phone_table,
    check_words,
)
from latflow.lang.directory import Lang
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.text_files import read_lines

_MAKE_AGAIN = "make the graph again with this model and this lang directory"
_CHECK_STATES = 1 << 16  # states looked at together, to keep temporary arrays small


# -- language ------------------------------------------------------------------------


# -- system --------------------------------------------------------------------------


def import_system(
    exp_dir: Path, lang_dir: Path, out_dir: Path, *, features: GmmFeatures
) -> None:
    """Take over the model, the tree and the features of a GMM system (stage).

    Writes `final.mdl`, `tree`, `transform.json`, `final.mat` and `full.mat` (of systems
    with LDA), `final.alimdl` (of systems trained on adapted speakers), `info.json` and
    `ledger.jsonl`, the model last.

    Args:
        exp_dir: Kaldi's directory, e.g. `exp/tri3b`.
        lang_dir: the lang directory it was trained with.
        out_dir: folder of the system; its name is the system's.
        features: of the experiment's frames.

    Raises:
        UserError: a file is missing or garbled; the parts are not of one training; the
            language has other phones; or the experiment's features are not those of
            the model.
    """
    began = time.perf_counter()
    if not isinstance(features, FeatureOptions):
        raise UserError(
            f"features are of the extractor {features.extractor}, and the system was "
            "trained on Kaldi's",
            file=exp_dir,
            remedy="set features.type: mfcc or fbank",
        )
    exp, out, lang = Path(exp_dir), Path(out_dir), Lang.load(lang_dir)
    if not exp.is_dir():
        raise UserError("no such folder", file=exp, remedy="check gmm.import")
    check_phone_table(exp / "phones.txt", lang)
    model = AcousticModel.load(exp / "final.mdl")
    check_language(model.transitions, lang, exp / "final.mdl")
    tree = ContextDependency.load(exp / "tree")
    check_tree(tree, model.transitions, exp / "final.mdl")
    check_cmvn(exp, features.cmvn)
    transform = read_transform(exp)
    _check_features(transform, model, features.dim, exp)
    alignment_model = read_alignment_model(exp / ALIGNMENT_MODEL, model)
    full = _full_matrix(exp / FULL_MATRIX, transform, features.dim)
    out.mkdir(parents=True, exist_ok=True)
    tree.save(out / "tree")
    save_transform(out, transform)
    if full is not None:
        write_matrix(out / FULL_MATRIX, full)
    if alignment_model is not None:
        alignment_model.save(out / ALIGNMENT_MODEL)
    Ledger(f"import_{out.name}").write(out / "ledger.jsonl")
    _write_info(out, model, exp, features, seconds=time.perf_counter() - began)
    model.save(out / "final.mdl")


def _check_features(
    transform: FeatureTransform, model: AcousticModel, dim: int, exp: Path
) -> None:
    """Refuse features of a dimension that does not become that of the model."""
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


def read_alignment_model(path: Path, model: AcousticModel) -> AcousticModel | None:
    """Read the model for unadapted features of a system that adapts to speakers.

    Args:
        path: `final.alimdl`; None is returned if there is none.
        model: of the same training.

    Raises:
        UserError: the file is garbled, or of another tree or dimension.
    """
    if not path.is_file():
        return None
    found = AcousticModel.load(path)
    ours, theirs, fault = model.transitions, found.transitions, None
    is_same_tree = np.array_equal(theirs.tuples, ours.tuples)
    if not is_same_tree or theirs.topology != ours.topology:
        fault = (
            f"{theirs.num_pdfs} pdfs of another tree than final.mdl "
            f"({ours.num_pdfs} pdfs)"
        )
    elif found.gmms.dim != model.gmms.dim:
        fault = f"features of dimension {found.gmms.dim}, not {model.gmms.dim}"
    if fault:
        raise UserError(fault, file=path, remedy=ONE_TRAINING)
    return found


def _full_matrix(
    path: Path, transform: FeatureTransform, dim: int
) -> np.ndarray | None:
    """Read all directions of LDA, where a system has kept them."""
    if not path.is_file() or not (path.parent / MATRIX).is_file():
        return None
    matrix = read_matrix(path)
    spliced = dim
    for step in transform.to_config()["transforms"]:
        if step["type"] == "splice":
            spliced *= step["left"] + 1 + step["right"]
    if matrix.shape[1] not in (spliced, spliced + 1):
        raise UserError(
            f"a matrix for dimension {matrix.shape[1]}, where spliced frames have "
            f"{spliced}",
            file=path,
            remedy=ONE_TRAINING,
        )
    return matrix


def _write_info(
    out: Path,
    model: AcousticModel,
    exp: Path,
    features: FeatureOptions,
    *,
    seconds: float,
) -> None:
    """Write what the report shows of a system."""
    info = {
        "system": out.name,
        "type": "import",
        "imported_from": str(exp),
        **model.facts(),
        "seconds": round(seconds, 3),
        "cmvn": features.cmvn.values(),
    }
    write_json(out / "info.json", info)


# -- graph ---------------------------------------------------------------------------


def import_graph(
    graph_dir: Path, system_dir: Path, lang_dir: Path, out_fst: Path
) -> None:
    """Take over the decoding graph of a system, for memory-mapping (stage).

    Writes the graph, and its counts beside it (`HCLG.json`).

    Args:
        graph_dir: Kaldi's directory with `HCLG.fst`, e.g. `exp/tri3b/graph`.
        system_dir: folder of the imported system.

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
    write_json(target.with_suffix(".json"), facts)


def _check_num_pdfs(path: Path, model: TransitionModel) -> None:
    """Refuse a graph whose directory names another number of pdfs."""
    if not path.is_file():
        return
    text = " ".join(line for _, line in read_lines(path)).strip()
    if text != str(model.num_pdfs):
        raise UserError(
            f"the graph was made for {text} pdfs, the model has {model.num_pdfs}",
            file=path,
            remedy="make the graph again with this model (utils/mkgraph.sh)",
        )


# -- alignments ----------------------------------------------------------------------


def import_alignments(
    exp_dir: Path,
    system_dir: Path,
    lang_dir: Path,
    frames_dir: Path,
    out_dir: Path,
    *,
    max_skipped_fraction: float,
) -> None:
    """Take over the alignments of a split, and its speakers' transforms (stage).

    Writes `ali.ark`, `ledger.jsonl`, `statistics.json` and, if the system adapts to
    speakers, `trans.ark`: what aligning with the system writes. Alignments of
    utterances that the split has not are passed over and counted.

    Args:
        exp_dir: Kaldi's directory with `ali.*.gz`, of the system itself or made by
            `steps/align_*.sh` with it.
        system_dir: folder of the imported system.
        frames_dir: the `FrameStore` of the split.
        max_skipped_fraction: share of the split's utterances that may have none.

    Raises:
        UserError: pieces are missing, or not of this model; an utterance has another
            number of frames; an adapted system has no transforms of the split's
            speakers; or too many utterances have no alignment.
    """
    exp, out = Path(exp_dir), Path(out_dir)
    store, lang = FrameStore.load(frames_dir), Lang.load(lang_dir)
    system = GmmSystem.load(system_dir)
    paths = job_files(exp, ALIGNMENTS)
    if not paths:
        raise UserError(
            "no alignments",
            file=exp / ALIGNMENTS.format(1),
            remedy="copy ali.*.gz there, or align with the imported system",
        )
    merged = _Merged(store, system, lang, exp)
    ledger = Ledger(f"import_{out.parent.name}")
    if system.is_speaker_adapted:
        _import_transforms(exp, system, store, ledger, out)

    def items() -> Iterator[tuple[str, np.ndarray]]:
        with closing(merged_alignments(paths, system.model.transitions)) as everything:
            kept = merged.keep(everything)
            yield from progress(kept, "import alignments", len(store))
        # Before the archive gets its name: a failed stage leaves none.
        for utterance in merged.missing():
            ledger.record(utterance, f"no alignment in {exp}")
        ledger.write(out / "ledger.jsonl")
        ledger.check(len(store), max_skipped_fraction=max_skipped_fraction)

    write_int_vectors(out / "ali.ark", items())
    statistics = {**merged.statistics(), **archive_sizes(out)}
    write_json(out / "statistics.json", statistics)


def _import_transforms(
    exp: Path, system: GmmSystem, store: FrameStore, ledger: Ledger, out: Path
) -> None:
    """Merge the transforms of the speakers of a split.

    A speaker without one is left unchanged, and noted.
    """
    paths = job_files(exp, TRANSFORMS)
    remedy = "import alignments of steps/align_fmllr.sh, or align with the system"
    if not paths:
        raise UserError(
            "the system adapts to speakers, but their transforms are missing",
            file=exp / TRANSFORMS.format(1),
            remedy=remedy,
        )
    transforms = merged_transforms(paths, system.model.gmms.dim)
    missing = sorted(set(store.speaker_names) - transforms.matrices.keys())
    if len(missing) == len(store.speaker_names):
        raise UserError(
            f"none of the split's speakers has a transform, e.g. not {missing[0]}",
            file=paths[0],
            remedy=remedy,
        )
    for speaker in missing:
        ledger.record(speaker, "speaker without a transform", action="noted")
    transforms.save(out / SPEAKER_TRANSFORMS)


class _Merged:
    """The alignments of a split's utterances among all of a directory; counts them."""

    def __init__(
        self, store: FrameStore, system: GmmSystem, lang: Lang, exp: Path
    ) -> None:
        self._store, self._lang, self._exp = store, lang, exp
        self._model = system.model.transitions
        self._durations = PhoneDurations(max(lang.topology.phones))
        self._lengths = dict(
            zip(store.utt_ids, np.diff(store.begin).tolist(), strict=True)
        )
        self._num_kept = self._num_strangers = 0

    def keep(
        self, items: Iterator[tuple[str, np.ndarray]]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield those of the split's utterances, checked."""
        for utterance, ids in items:
            length = self._lengths.pop(utterance, None)
            if length is None:
                self._num_strangers += 1
                continue
            if length != len(ids):
                raise UserError(
                    f"{len(ids)} frames aligned, but the features have {length}",
                    file=self._exp,
                    utterance=utterance,
                    remedy="set features.snip_edges and frame_shift_ms to what the "
                    "system was trained on",
                )
            try:
                self._durations.add(ids, self._model)
            except UserError as error:
                remedy = "take alignments that were made with this model"
                raise error.at(
                    file=self._exp, utterance=utterance, remedy=remedy
                ) from None
            self._num_kept += 1
            yield utterance, ids

    def missing(self) -> list[str]:
        """Return the utterances of the split that had no alignment, sorted."""
        return sorted(self._lengths)

    def statistics(self) -> dict[str, Any]:
        """Return counts for a report."""
        summary = self._durations.summary(self._lang.phones, self._lang.silence_phones)
        return {
            "num_frames": summary["frames"],
            "num_aligned": self._num_kept,
            "num_failed": len(self._lengths),
            "num_strangers": self._num_strangers,
            "imported_from": str(self._exp),
            "frame_shift": self._store.frame_shift,
            **summary,
        }


def check_graph(
    graph: Graph, model: TransitionModel, lang: Lang, path: str | Path
) -> None:
    """Refuse a decoding graph of another model or of other words.

    Args:
        path: where the graph comes from.

    Raises:
        UserError: a label is not a transition-id of the model or no word, the graph is
            empty, or its self-loops are not the model's.
    """
    check_labels(graph, model, lang, path)
    check_self_loops(graph, model, path)


def check_labels(
    graph: Graph, model: TransitionModel, lang: Lang, path: str | Path
) -> None:
    """Refuse a graph with labels that model or language lack.

    Raises:
        UserError: a label is not a transition-id of the model or no word, or the graph
            is empty.
    """
    remedy = _MAKE_AGAIN
    highest = int(np.max(graph.ilabel, initial=0))
    if highest == 0:
        raise UserError("the graph is empty", file=path, remedy=remedy)
    if highest > model.num_transition_ids:
        raise UserError(
            f"the graph has transition-id {highest}, the model only "
            f"{model.num_transition_ids}",
            file=path,
            remedy=remedy,
        )
    word = int(np.max(graph.olabel, initial=0))
    if word > max(lang.words):
        raise UserError(
            f"the graph has word {word}, which words.txt of {lang.folder} lacks",
            file=path,
            remedy=remedy,
        )


def check_self_loops(graph: Graph, model: TransitionModel, path: str | Path) -> None:
    """Refuse a graph, or the HCL of one, whose self-loops are not the model's.

    Raises:
        UserError: a self-loop of the model leads to another state, or another
            transition does not.
    """
    for first in range(0, graph.num_states, _CHECK_STATES):
        last = min(first + _CHECK_STATES, graph.num_states)
        begin = graph.arc_begin[first : last + 1]
        arcs = slice(begin[0], begin[-1])
        source = np.repeat(np.arange(first, last), np.diff(begin))
        emits = graph.ilabel[arcs] > 0
        loops = (graph.next_state[arcs] == source)[emits]
        if not np.array_equal(loops, model.is_self_loop[graph.ilabel[arcs][emits]]):
            raise UserError(
                "the self-loops of the graph are not those of the model",
                file=path,
                remedy=_MAKE_AGAIN,
            )
