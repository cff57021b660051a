"""An acoustic model of Montreal Forced Aligner as a package that aligns.

    final.mdl, tree           -> model/
    final.alimdl              -> model/final.alimdl; a model that adapts to speakers and
                                 brings none aligns both times with final.mdl
    lda.mat, or its absence   -> model/transform.json, model/final.mat
    phones.txt, meta.*        -> lang/, with no words but the unknown one
    silence probabilities     -> lang/silprob.txt
    options of features       -> package.json

Words come from the dictionary that each alignment is given.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.features.transform import Chain, Deltas, FeatureTransform, Linear, Splice
from latflow.files import write_text
from latflow.gmm.kaldi_dir import check_tree
from latflow.gmm.kaldi_import import read_alignment_model
from latflow.gmm.model import ALIGNMENT_MODEL, AcousticModel, save_transform
from latflow.hmm.topology import Topology
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import read_matrix
from latflow.lang.lexicon import RESERVED_WORDS
from latflow.lang.phones import word_boundary_kind
from latflow.lang.silence import SILENCE_FILE, write_sentence_silence
from latflow.serving.mfa_folder import (
    MATRIX,
    MODEL,
    TREE,
    MfaModel,
    MfaPhones,
    open_model,
)
from latflow.serving.packaging import PackageFiles, PackageOptions, write_package

log = logging.getLogger(__name__)
_UNKNOWN = "<unk>"
_NO_PITCH = (
    "take one with cepstra alone: those named _cv and _arpa, and english_mfa, "
    "german_mfa, french_mfa, japanese_mfa, korean_mfa and others of version 3"
)


def import_mfa(model: str | Path, out_dir: str | Path) -> None:
    """Write a model of MFA as a package, see the module.

    Args:
        model: archive, folder, or name of a model in MFA's folder of downloads.
        out_dir: the package, replaced as a whole.

    Raises:
        UserError: there is no such model; it is damaged, or its parts do not fit each
            other; or it takes features that are not computed here, as pitch.
    """
    with (
        open_model(model) as source,
        tempfile.TemporaryDirectory(prefix="latflow.mfa.") as scratch,
    ):
        system, lang = Path(scratch, "system"), Path(scratch, "lang")
        system.mkdir()
        front_end = source.front_end()
        acoustic = _write_system(source, system, front_end.dim)
        phones = _write_lang(source, lang, acoustic.transitions.topology)
        options = PackageOptions(
            experiment="mfa",
            name=source.name,
            kind="gmm",
            front_end=front_end,
            cmvn=source.cmvn,
            sample_rate=source.sample_rate,
            only_aligns=True,
        )
        files = PackageFiles(model_dir=system, lang_dir=lang)
        write_package(files, Path(out_dir), options=options)
    log.info(
        "%s, of version %s: %d phones, %d pdfs, %d Gaussians",
        source.source,
        source.version,
        len(phones.ids) - 1,
        acoustic.gmms.num_pdfs,
        acoustic.gmms.num_gaussians,
    )


# -- system --------------------------------------------------------------------------


def _write_system(source: MfaModel, system: Path, dim: int) -> AcousticModel:
    """Write the folder of the GMM system.

    Args:
        dim: of the features before their transform.
    """
    try:
        model = AcousticModel.load(source.folder / MODEL)
        tree = ContextDependency.load(source.folder / TREE)
        check_tree(tree, model.transitions, MODEL)
        other = read_alignment_model(source.folder / ALIGNMENT_MODEL, model)
        save_transform(system, _transform(source, dim, model.gmms.dim))
    except UserError as error:
        raise _of(source, error) from None
    tree.save(system / "tree")
    model.save(system / "final.mdl")
    if source.is_adapted:
        (other or model).save(system / ALIGNMENT_MODEL)
    return model


def _of(source: MfaModel, error: UserError) -> UserError:
    """Return an error about a file of a model as one about the model."""
    name = Path(error.file).name if error.file else ""
    what = error.what if error.file == str(source.source) else f"{name}: {error.what}"
    return UserError(what, file=source.source, remedy=error.remedy)


def _transform(source: MfaModel, dim: int, model_dim: int) -> FeatureTransform:
    """Return the transform from normalized frames to what the model takes."""
    path = source.folder / MATRIX
    if not path.is_file():
        order = 2 if source.features.get("uses_deltas", True) else 0
        transform: FeatureTransform = Deltas(order)
        taken, made = model_dim // (order + 1), dim
        is_right = dim * (order + 1) == model_dim
    else:
        matrix = read_matrix(path)
        left, right = source.context
        spliced = dim * (left + 1 + right)
        taken, made = matrix.shape[1] // (left + 1 + right), dim
        is_right = matrix.shape[1] in (spliced, spliced + 1)
        is_right = is_right and matrix.shape[0] == model_dim
        transform = Chain([Splice(left, right), Linear(np.asarray(matrix, np.float32))])
    if not is_right and source.has_pitch:
        source.refuse(
            f"it takes pitch beside {made} cepstra, which is not computed here",
            _NO_PITCH,
        )
    if not is_right:
        source.refuse(
            f"features of dimension {made}, and its files take {taken} a frame"
        )
    if source.has_pitch:
        log.warning("%s: pitch is named, but the model takes none", source.source)
    return transform


# -- language ------------------------------------------------------------------------


def _write_lang(source: MfaModel, folder: Path, topology: Topology) -> MfaPhones:
    """Write a lang directory with a model's phones, and only the unknown word."""
    first = topology.states(topology.phones[0])
    like = {phone for phone in topology.phones if topology.states(phone) == first}
    phones = source.phones(tuple(topology.phones), like)
    (folder / "phones").mkdir(parents=True)
    ids = phones.ids

    def numbers(names: Iterable[str]) -> str:
        return " ".join(
            str(ids[name]) for phone in names for name in phones.variants(phone)
        )

    silence = [numbers([phone]) for phone in phones.silence]
    speech = [numbers(group) for group in phones.groups]
    sets = [*silence, *speech]
    lists = {
        "silence": _one_a_line(silence),
        "nonsilence": _one_a_line(speech),
        "context_indep": _one_a_line(silence),
        "optional_silence": [str(ids[phones.optional_silence])],
        "disambig": [],
        "sets": sets,
        "roots": [f"shared split {line}" for line in sets],
        "extra_questions": [],
    }
    if phones.is_positional:
        lists["word_boundary"] = [
            f"{number} {word_boundary_kind(name)}"
            for name, number in ids.items()
            if number
        ]
    for name, lines in lists.items():
        _write(folder / f"phones/{name}.int", lines)
    epsilon, *others = RESERVED_WORDS
    words = [epsilon, _UNKNOWN, *others]
    _write(folder / "phones.txt", (f"{name} {number}" for name, number in ids.items()))
    _write(folder / "words.txt", (f"{word} {n}" for n, word in enumerate(words)))
    _write(folder / "oov.txt", [_UNKNOWN])
    _write(folder / "oov.int", ["1"])
    _write(folder / "lexiconp.txt", [f"{_UNKNOWN} 1.0 {phones.unknown}"])
    write_sentence_silence(folder / SILENCE_FILE, source.silence())
    topology.save(folder / "topo")
    return phones


def _one_a_line(lines: Iterable[str]) -> list[str]:
    """Return the items of lines, each on a line."""
    return [item for line in lines for item in line.split()]


def _write(path: Path, lines: Iterable[str]) -> None:
    write_text(path, "".join(f"{line}\n" for line in lines))
