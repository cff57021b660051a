"""Contents of Kaldi's directories `exp/<system>` beside the model.

They keep the options of the programs that make a system's features:

    cmvn_opts    apply-cmvn      --norm-means=true --norm-vars=false
    delta_opts   add-deltas      --delta-order=2 --delta-window=2
    splice_opts  splice-feats    --left-context=4 --right-context=4
    final.mat    transform-feats, a matrix after splicing

With `final.mat` the features are CMVN, splicing, the matrix; without it CMVN and
deltas. A file that is not there stands for the defaults, which are above.

Archives are kept in as many pieces as there were jobs, `num_jobs`: `ali.1.gz`,
`ali.2.gz`, ... They belong to the parts of the data that `utils/split_data.sh` makes:
consecutive speakers with about equally many utterances.

Source: Kaldi `steps/decode.sh`, `steps/align_si.sh` (`feat_type`),
`featbin/{apply-cmvn,add-deltas,splice-feats}.cc`, `utils/split_scp.pl`.
"""

from __future__ import annotations

import heapq
import logging
import shlex
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from latflow.errors import UserError
from latflow.features.cmvn_options import (
    CmvnOptions,
    GlobalCmvn,
    LevelCmvn,
    NoCmvn,
    SpeakerCmvn,
    UtteranceCmvn,
)
from latflow.features.transform import (
    Chain,
    Deltas,
    FeatureTransform,
    Identity,
    Linear,
    Splice,
)
from latflow.files import reading, write_text
from latflow.gmm.source import SpeakerTransforms
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import read_int_vectors, read_matrix, write_matrix
from latflow.text_files import read_lines

log = logging.getLogger(__name__)

CMVN, DELTA, SPLICE = "cmvn_opts", "delta_opts", "splice_opts"
MATRIX, FULL_MATRIX = "final.mat", "full.mat"
ONE_TRAINING = "take all files of a directory from one training"
NUM_JOBS = "num_jobs"
ALIGNMENTS, TRANSFORMS = "ali.{}.gz", "trans.{}"
_BOOLEANS = {"true": True, "false": False, "t": True, "f": False, "": True}
# What apply-cmvn can do.
_BY_STATISTICS = SpeakerCmvn | UtteranceCmvn | GlobalCmvn


# -- features ------------------------------------------------------------------------


def read_transform(exp_dir: str | Path) -> FeatureTransform:
    """Return the transform from normalized frames to what a system's model takes.

    Raises:
        UserError: an option is unknown or garbled, or `final.mat` is.
    """
    folder = Path(exp_dir)
    if not (folder / MATRIX).is_file():
        known = {"delta-order": 2, "delta-window": 2, "truncate": 0}
        deltas = _read_options(folder / DELTA, known, int)
        _refuse_others(folder / DELTA, deltas, {"truncate": 0})
        with reading(folder / DELTA, "no options of deltas", "fix the file"):
            return Deltas(deltas["delta-order"], deltas["delta-window"])
    splice = _read_options(
        folder / SPLICE, {"left-context": 4, "right-context": 4}, int
    )
    left, right = splice["left-context"], splice["right-context"]
    with reading(folder / SPLICE, "no options of splicing", "fix the file"):
        spliced = Splice(left, right)
    return Chain([spliced, Linear(read_matrix(folder / MATRIX))])


def write_transform(
    folder: str | Path, transform: FeatureTransform, *, dim_out: int
) -> None:
    """Write `delta_opts`, or `splice_opts` and `final.mat`.

    Args:
        transform: deltas; or a matrix, splicing, or both.
        dim_out: dimension after the transform; splicing alone is written with the
            identity for its matrix.

    Raises:
        UserError: Kaldi's scripts have no options for this transform.
    """
    folder = Path(folder)
    match _parts(transform):
        case [] | [Deltas()] as parts:
            deltas = parts[0] if parts else Deltas(0)
            assert isinstance(deltas, Deltas)
            line = f"--delta-order={deltas.order} --delta-window={deltas.window}"
            _write_line(folder / DELTA, line)
        case [Splice() as splice, *rest] if _is_matrix(rest):
            line = f"--left-context={splice.left} --right-context={splice.right}"
            _write_line(folder / SPLICE, line)
            identity = np.eye(dim_out, dtype=np.float32)
            _write_matrix(folder, rest[0] if rest else Linear(identity))
        case [Linear() as linear]:
            _write_line(folder / SPLICE, "--left-context=0 --right-context=0")
            _write_matrix(folder, linear)
        case _:
            raise UserError(
                f"features made by {transform.to_config()['type']} of several steps "
                "have no form in Kaldi's scripts",
                remedy="use deltas, or splicing with one matrix",
            )


def check_cmvn(exp_dir: str | Path, cmvn: CmvnOptions) -> None:
    """Refuse features that are not normalized as those of a system were.

    The set that the statistics are taken of (speaker, utterance, all) is not in
    `cmvn_opts` but in `utt2spk`, and left to the user.

    Args:
        exp_dir: Kaldi's directory of the system.
        cmvn: normalization of the experiment's frames.

    Raises:
        UserError: they differ in means or variances, or `cmvn_opts` is garbled or has
            an option that latflow does not know.
    """
    path = Path(exp_dir) / CMVN
    known = {"norm-means": True, "norm-vars": False, "reverse": False}
    found = _read_options(path, known, _boolean)
    _refuse_others(path, found, {"reverse": False})
    theirs = found["norm-means"], found["norm-vars"]
    if isinstance(cmvn, NoCmvn):
        ours = False, False
    elif isinstance(cmvn, _BY_STATISTICS):
        ours = True, cmvn.norm_vars
    else:
        raise UserError(
            f"configuration features.cmvn.type is {cmvn.type}, but the system was "
            "trained on features normalized by apply-cmvn",
            file=path,
            remedy="set features.cmvn.type: speaker",
        )
    if theirs != ours:
        wanted = "none" if theirs == (False, False) else "speaker"
        norm_vars = str(theirs[1]).lower()
        raise UserError(
            f"the system has {_describe(*theirs)}, but features.cmvn of the "
            f"configuration gives {_describe(*ours)}",
            file=path,
            remedy=f"set features.cmvn: {{type: {wanted}"
            + (f", norm_vars: {norm_vars}}}" if wanted == "speaker" else "}"),
        )


def write_cmvn(folder: str | Path, cmvn: CmvnOptions) -> None:
    """Write `cmvn_opts`: the options of apply-cmvn that do what a configuration says.

    Args:
        cmvn: normalization of the frames. For `sliding` and `online` apply-cmvn does
            nothing: such features come from apply-cmvn-sliding and apply-cmvn-online,
            which no script for training GMMs calls.
    """
    norm_means = norm_vars = False
    if isinstance(cmvn, _BY_STATISTICS):
        norm_means, norm_vars = True, cmvn.norm_vars
    elif isinstance(cmvn, LevelCmvn):
        log.warning(
            "Kaldi has nothing like cmvn of type level: its scripts must be given "
            "features without their level (latflow export-kaldi features writes such)"
        )
    elif not isinstance(cmvn, NoCmvn):
        log.warning(
            "Kaldi's scripts must be given features that went through "
            "apply-cmvn-%s (latflow export-kaldi features writes such)",
            cmvn.type,
        )
    line = f"--norm-means={norm_means} --norm-vars={norm_vars}".lower()
    _write_line(Path(folder) / CMVN, line)


def _read_options(
    path: Path, defaults: Mapping[str, Any], parse: Callable[[str], Any]
) -> dict[str, Any]:
    """Return options `--name=value` of a file, completed by the defaults."""
    values = dict(defaults)
    if not path.is_file():
        return values
    try:
        words = shlex.split(" ".join(line for _, line in read_lines(path)))
    except ValueError as error:
        raise UserError(
            f"not options: {error}", file=path, remedy="fix the file"
        ) from None
    for word in words:
        name, _, text = word.removeprefix("--").replace("_", "-").partition("=")
        if not word.startswith("--") or name not in defaults:
            raise UserError(
                f"{word} is an option that latflow does not know here",
                file=path,
                remedy=f"known are --{', --'.join(defaults)}",
            )
        try:
            values[name] = parse(text)
        except (ValueError, KeyError):
            raise UserError(
                f"{word} has no proper value", file=path, remedy="fix the file"
            ) from None
    return values


def _boolean(text: str) -> bool:
    """Return the truth value that Kaldi's programs read of an option."""
    return _BOOLEANS[text.lower()]


def _refuse_others(
    path: Path, found: Mapping[str, Any], only: Mapping[str, Any]
) -> None:
    """Refuse options that Kaldi has and latflow has not, unless they do nothing."""
    for name, value in only.items():
        if found[name] != value:
            raise UserError(
                f"--{name}={found[name]} is something that latflow's features cannot "
                "do",
                file=path,
                remedy="train the system again in Kaldi without this option",
            )


def _describe(norm_means: bool, norm_vars: bool) -> str:  # noqa: FBT001 - both named
    """Return normalization in words."""
    names = [
        name for name, on in (("means", norm_means), ("variances", norm_vars)) if on
    ]
    return f"normalized {' and '.join(names)}" if names else "nothing normalized"


def _parts(transform: FeatureTransform) -> list[FeatureTransform]:
    """Return the steps of a transform, those that do nothing left out."""
    if isinstance(transform, Chain):
        return [step for part in transform.transforms for step in _parts(part)]
    return [] if isinstance(transform, Identity) else [transform]


def _is_matrix(steps: list[FeatureTransform]) -> bool:
    """Return True if there is nothing but, at most, a matrix."""
    return not steps or (len(steps) == 1 and isinstance(steps[0], Linear))


def _write_matrix(folder: Path, linear: FeatureTransform) -> None:
    assert isinstance(linear, Linear)
    write_matrix(folder / MATRIX, linear.matrix)


def _write_line(path: Path, line: str) -> None:
    write_text(path, f"{line}\n")


# -- jobs ----------------------------------------------------------------------------


def job_files(exp_dir: str | Path, pattern: str) -> list[Path]:
    """Return the pieces of an archive, in the order of jobs; none without a first.

    Pieces above `num_jobs` are left from an earlier run and passed over, as Kaldi's
    scripts do. Without `num_jobs` all consecutive ones are taken.

    Args:
        pattern: their name with `{}` for the job, e.g. `ali.{}.gz`.

    Raises:
        UserError: `num_jobs` is garbled, or promises a piece that is not there.
    """
    folder = Path(exp_dir)
    found = []
    while (path := folder / pattern.format(len(found) + 1)).is_file():
        found.append(path)
    if not found or not (folder / NUM_JOBS).is_file():
        return found
    count = read_num_jobs(folder / NUM_JOBS)
    if len(found) < count:
        raise UserError(
            f"no such file, but {NUM_JOBS} says {count}",
            file=folder / pattern.format(len(found) + 1),
            remedy="copy all pieces, or run the job again in Kaldi",
        )
    return found[:count]


def read_num_jobs(path: Path) -> int:
    """Return the number of jobs of a directory.

    Raises:
        UserError: the file holds none.
    """
    text = " ".join(line for _, line in read_lines(path)).strip()
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise UserError(
            f"{text[:40]!r} is not a number of jobs", file=path, remedy="fix the file"
        )
    return int(text)


def merged_alignments(
    paths: Sequence[Path], model: TransitionModel
) -> Generator[tuple[str, np.ndarray], None, None]:
    """Yield (utterance, transition-ids) of all pieces, sorted by utterance; streamed.

    Close the iterator where an error may end its use: it holds all pieces open.

    Args:
        paths: archives, each sorted.
        model: what they are alignments of.

    Raises:
        UserError: a piece is not sorted, an utterance comes twice, or an id is not
            one of the model's.
    """
    previous, previous_path = None, None
    pieces = [_checked_alignments(path, model) for path in paths]
    try:
        for utterance, ids, path in heapq.merge(*pieces, key=itemgetter(0)):
            if utterance == previous:
                raise UserError(
                    f"the utterance is in {previous_path} too",
                    file=path,
                    utterance=utterance,
                    remedy="take the pieces of one run",
                )
            previous, previous_path = utterance, path
            yield utterance, ids
    finally:
        for piece in pieces:
            piece.close()


def _checked_alignments(
    path: Path, model: TransitionModel
) -> Generator[tuple[str, np.ndarray, Path], None, None]:
    """Yield (utterance, transition-ids, path) of one piece."""
    previous = ""
    with closing(read_int_vectors(path)) as items:
        for utterance, ids in items:
            if utterance < previous:
                raise UserError(
                    f"it comes after {previous}: the archive is not sorted",
                    file=path,
                    utterance=utterance,
                    remedy="sort it with copy-int-vector, by bytes (LC_ALL=C)",
                )
            check_alignment(ids, model, path, utterance)
            previous = utterance
            yield utterance, ids, path


def merged_transforms(paths: Sequence[Path], dim: int) -> SpeakerTransforms:
    """Read the speaker transforms of all pieces.

    Args:
        paths: archives of matrices by speaker.
        dim: dimension of the model's features.

    Raises:
        UserError: a speaker comes twice, or a matrix is not dim x (dim + 1).
    """
    found: dict[str, np.ndarray] = {}
    for path in paths:
        piece = SpeakerTransforms.load(path)
        piece.check_dim(dim, path)
        again = sorted(found.keys() & piece.matrices.keys())
        if again:
            raise UserError(
                "another piece has a transform of this speaker too",
                file=path,
                utterance=again[0],
                remedy="take the pieces of one run",
            )
        found |= piece.matrices
    return SpeakerTransforms(found)


def check_tree(
    tree: ContextDependency, model: TransitionModel, path: str | Path
) -> None:
    """Refuse a model that was not made with a tree.

    Args:
        path: where the model comes from.

    Raises:
        UserError: tree and topology make other transition-states than the model's.
    """
    if tree.num_pdfs != model.num_pdfs:
        raise UserError(
            f"{model.num_pdfs} pdfs, but the tree beside it has {tree.num_pdfs}",
            file=path,
            remedy=ONE_TRAINING,
        )
    try:
        made = TransitionModel.from_tree(tree, model.topology).tuples
    except UserError as error:
        raise error.at(file=path, remedy=ONE_TRAINING) from None
    if not np.array_equal(made, model.tuples):
        raise UserError(
            "the tree beside it gives other states to the phones than the model has",
            file=path,
            remedy=ONE_TRAINING,
        )


def check_alignment(
    ids: np.ndarray, model: TransitionModel, path: str | Path, utterance: str
) -> None:
    """Refuse ids that a model does not have.

    Args:
        ids: transition-ids, int32[T].
        path: where the alignment comes from.

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
