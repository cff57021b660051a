"""Archives that Kaldi's scripts keep in as many pieces as there were jobs.

`num_jobs` says how many; pieces are `ali.1.gz`, `ali.2.gz`, ..., and belong to the
parts of the data that `utils/split_data.sh` makes: consecutive speakers with about
equally many utterances.

Public: `job_files`, `merged_alignments`, `merged_transforms`, `jobs_of_utterances`.

Source: Kaldi `utils/split_scp.pl` with `--utt2spk`.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.files import read_lines
from latflow.gmm.kaldi_checks import check_alignment, check_transforms
from latflow.gmm.speaker_transforms import SpeakerTransforms
from latflow.hmm.transition_model import TransitionModel
from latflow.kaldi_io import read_int_vectors

NUM_JOBS = "num_jobs"


def job_files(exp_dir: str | Path, pattern: str) -> list[Path]:
    """The pieces of an archive, in the order of jobs; none where the first is not.

    Pieces above `num_jobs` are left from an earlier run and passed over, as Kaldi's
    scripts do. Without `num_jobs` all consecutive ones are taken.

    Args:
        exp_dir: Kaldi's directory.
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
    count = _num_jobs(folder / NUM_JOBS)
    if len(found) < count:
        raise UserError(
            f"no such file, but {NUM_JOBS} says {count}",
            file=folder / pattern.format(len(found) + 1),
            remedy="copy all pieces, or run the job again in Kaldi",
        )
    return found[:count]


def _num_jobs(path: Path) -> int:
    """The number of jobs of a directory."""
    text = " ".join(line for _, line in read_lines(path)).strip()
    if not text.isdecimal() or int(text) < 1:
        raise UserError(
            f"{text!r} is no number of jobs", file=path, remedy="mend the file"
        )
    return int(text)


def merged_alignments(
    paths: Sequence[Path], model: TransitionModel
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (utterance, transition-ids) of all pieces, sorted by utterance; streamed.

    Args:
        paths: archives, each sorted.
        model: what they are alignments of.

    Raises:
        UserError: a piece is not sorted, an utterance comes twice, or an id is not
            one of the model's.
    """
    previous, previous_path = None, None
    pieces = [_checked_alignments(path, model) for path in paths]
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


def _checked_alignments(
    path: Path, model: TransitionModel
) -> Iterator[tuple[str, np.ndarray, Path]]:
    """Yield (utterance, transition-ids, path) of one piece."""
    previous = ""
    for utterance, ids in read_int_vectors(path):
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
        check_transforms(piece, dim, path)
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


def jobs_of_utterances(speakers: Sequence[str], num_jobs: int) -> np.ndarray:
    """Share out utterances to jobs as Kaldi's `split_data.sh` does.

    Equally many speakers a job to begin with; then the first and last speakers of a
    job go to the neighbour as long as that makes two jobs more equal in utterances.

    Args:
        speakers: of each utterance, utterances sorted by id.
        num_jobs: number of jobs, >= 1.

    Returns:
        int64[N], the job of each utterance, from 0.

    Raises:
        UserError: there are less speakers than jobs.
    """
    count = Counter(speakers)  # speakers in the order of their first utterances
    names = list(count)
    if not 1 <= num_jobs <= len(names):
        raise UserError(
            f"{len(names)} speakers cannot be shared out to {num_jobs} jobs",
            remedy="choose a number of jobs from 1 to the number of speakers",
        )
    sizes = np.array([count[name] for name in names])
    # first[j] ... first[j + 1] - 1 are the speakers of job j
    first = [-(-job * len(names) // num_jobs) for job in range(num_jobs + 1)]
    while _move_edges(first, sizes):
        pass
    job_of = dict(zip(names, np.repeat(range(num_jobs), np.diff(first)), strict=True))
    return np.array([job_of[name] for name in speakers], np.int64)


def _move_edges(first: list[int], sizes: np.ndarray) -> bool:
    """One pass over all jobs; whether a speaker went to a neighbour."""
    has_moved = False
    for job in range(len(first) - 1):
        if job < len(first) - 2:
            has_moved |= _move_edge(first, job + 1, -1, sizes)
        if job > 0:
            has_moved |= _move_edge(first, job, 1, sizes)
    return has_moved


def _move_edge(first: list[int], edge: int, step: int, sizes: np.ndarray) -> bool:
    """Move the edge before job `edge` by one speaker if that evens the two jobs out."""
    low, middle, high = first[edge - 1], first[edge], first[edge + 1]
    if not low <= middle + step <= high:
        return False
    before, after = sizes[low:middle].sum(), sizes[middle:high].sum()
    moved = step * sizes[min(middle, middle + step)]
    if abs((after - moved) - (before + moved)) >= abs(after - before):
        return False
    first[edge] += step
    return True
