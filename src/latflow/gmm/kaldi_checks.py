"""Do the parts of a system belong together? One-line refusals where they do not.

Public: `check_phone_table`, `check_language`, `check_tree`, `check_words`,
`check_graph`, `check_alignment`, `check_transforms`.

Source: Kaldi `utils/lang/check_phones_compatible.sh`, `utils/validate_lang.pl`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.gmm.speaker_transforms import SpeakerTransforms
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang, read_symbols

_CHECK_STATES = 1 << 16  # states looked at together, to keep temporary arrays small
_ONE_TRAINING = "take all files of a directory from one training"


def check_phone_table(path: str | Path, lang: Lang) -> None:
    """Refuse another `phones.txt` than that of the language.

    Disambiguation symbols may differ: acoustic models know nothing of them.

    Args:
        path: the table of a system or graph; nothing is checked if there is none.
        lang: the language directory.

    Raises:
        UserError: a phone is missing in one of the two, or has another id.
    """
    if Path(path).is_file():
        theirs, ours = (
            {name: number for name, number in table.items() if name[0] != "#"}
            for table in (read_symbols(path), lang.phone_ids)
        )
        _compare(Path(path), "phone", theirs, lang.folder / "phones.txt", ours)


def check_words(path: str | Path, lang: Lang) -> None:
    """Refuse another `words.txt` than that of the language.

    Args:
        path: the table of a graph; nothing is checked if there is none.
        lang: the language directory.

    Raises:
        UserError: a word is missing in one of the two, or has another id.
    """
    if Path(path).is_file():
        ours = lang.folder / "words.txt"
        _compare(Path(path), "word", read_symbols(path), ours, lang.word_ids)


def _compare(
    path: Path,
    kind: str,
    theirs: Mapping[str, int],
    lang_path: Path,
    ours: Mapping[str, int],
) -> None:
    """Refuse two symbol tables that differ, naming the first difference."""
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            here, there = (
                f"id {table[name]}" if name in table else "missing"
                for table in (theirs, ours)
            )
            raise UserError(
                f"{kind} {name} is {here} in this table, but {there} in {lang_path}",
                file=path,
                remedy="name the lang directory that this was trained with",
            )


def check_language(model: TransitionModel, lang: Lang, path: str | Path) -> None:
    """Refuse a model with other phones, or other HMMs, than a language has.

    Initial probabilities do not matter.

    Args:
        model: the transition model.
        lang: the language directory.
        path: where the model comes from.

    Raises:
        UserError: they do not fit.
    """
    remedy = "name the lang directory that the model was trained with"
    theirs, ours = set(model.topology.phones), set(lang.topology.phones)
    if theirs != ours:
        phone = min(theirs ^ ours)
        where = "the model" if phone in theirs else lang.folder
        name = lang.phones.get(phone, "without a name")
        raise UserError(
            f"phone {phone} ({name}) is in {where} only", file=path, remedy=remedy
        )
    for phone in sorted(ours):
        shapes = [
            [
                (s.pdf_class, s.loop_pdf_class, *(n for n, _ in s.transitions))
                for s in hmm
            ]
            for hmm in (model.topology.states(phone), lang.topology.states(phone))
        ]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"phone {lang.phones[phone]} has an HMM of {len(shapes[0]) - 1} states "
                f"in the model, which is not that of {lang.folder / 'topo'} "
                f"({len(shapes[1]) - 1} states)",
                file=path,
                remedy=remedy,
            )


def check_tree(
    tree: ContextDependency, model: TransitionModel, path: str | Path
) -> None:
    """Refuse a model that was not made with a tree.

    Args:
        tree: the decision tree.
        model: the transition model.
        path: where the model comes from.

    Raises:
        UserError: tree and topology make other transition-states than the model's.
    """
    if tree.num_pdfs != model.num_pdfs:
        raise UserError(
            f"{model.num_pdfs} pdfs, but the tree beside it has {tree.num_pdfs}",
            file=path,
            remedy=_ONE_TRAINING,
        )
    try:
        made = TransitionModel.from_tree(tree, model.topology).tuples
    except UserError as error:
        raise UserError(error.what, file=path, remedy=_ONE_TRAINING) from None
    if not np.array_equal(made, model.tuples):
        raise UserError(
            "the tree beside it gives other states to the phones than the model has",
            file=path,
            remedy=_ONE_TRAINING,
        )


def check_graph(
    graph: Graph, model: TransitionModel, lang: Lang, path: str | Path
) -> None:
    """Refuse a decoding graph of another model or of other words.

    Args:
        graph: HCLG.
        model: the transition model.
        lang: the language directory.
        path: where the graph comes from.

    Raises:
        UserError: a label is no transition-id of the model or no word, the graph is
            empty, or its self-loops are not the model's.
    """
    remedy = "make the graph again with this model and this lang directory"
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
            f"the graph has word {word}, which words.txt of {lang.folder} has not",
            file=path,
            remedy=remedy,
        )

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
                remedy=remedy,
            )


def check_alignment(
    ids: np.ndarray, model: TransitionModel, path: str | Path, utterance: str
) -> None:
    """Refuse ids that a model does not have.

    Args:
        ids: transition-ids, int32[T].
        model: the transition model.
        path: where the alignment comes from.
        utterance: whose it is.

    Raises:
        UserError: an id is out of range.
    """
    if len(ids) and not 1 <= ids.min() <= ids.max() <= model.num_transition_ids:
        raise UserError(
            f"transition-ids {ids.min()} to {ids.max()}, where the model has 1 to "
            f"{model.num_transition_ids}",
            file=path,
            utterance=utterance,
            remedy="take alignments that were made with this model",
        )


def check_transforms(transforms: SpeakerTransforms, dim: int, path: str | Path) -> None:
    """Refuse speaker transforms of another dimension than a model's.

    Raises:
        UserError: they differ.
    """
    for speaker, matrix in transforms.matrices.items():
        if len(matrix) != dim:
            raise UserError(
                f"the transform of speaker {speaker} is for dimension {len(matrix)}, "
                f"the model is of {dim}",
                file=path,
                remedy="take transforms that were estimated with this model",
            )
