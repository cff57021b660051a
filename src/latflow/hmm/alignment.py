"""Alignments: a transition-id for each frame, and what follows from it.

Kaldi's graphs are *reordered*: the arc that leaves a state comes before the self-loops
of that state, so that the first frame of a state carries the leaving arc and a phone
ends behind the self-loops that follow its final arc. Alignments in the plain order are
recognized and handled as well.

Source: Kaldi `hmm/hmm-utils.cc` (`IsReordered`, `SplitToPhones`, `ConvertAlignment`),
`steps/diagnostic/analyze_alignments.sh` (the statistics).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.jit import njit

_REMEDY = "align the utterance again with the model in use"
_LONGEST = 300  # frames; longer phones share the last bin of the histogram


def pdfs_of(alignment: np.ndarray, model: TransitionModel) -> np.ndarray:
    """Return the pdf-id of each frame, int32[T]."""
    return model.pdf[alignment]


def phones_of(alignment: np.ndarray, model: TransitionModel) -> np.ndarray:
    """Return the phone of each frame, int32[T]."""
    return model.phone[alignment]


def check_ids(
    ids: np.ndarray,
    model: TransitionModel,
    what: str = "an alignment",
    *,
    lowest: int = 1,
) -> None:
    """Refuse transition-ids that a model does not have.

    Args:
        ids: transition-ids.
        model: the model.
        what: what the error calls the holder of the ids.
        lowest: lowest id allowed; 0 where arcs may have none.

    Raises:
        UserError: there is one.
    """
    if len(ids) and not (lowest <= ids.min() and ids.max() <= model.num_transition_ids):
        raise UserError(
            f"{what} with transition-ids {ids.min()} to {ids.max()}, where the model "
            f"has 1 to {model.num_transition_ids}",
            remedy="use the model that lattices and alignments were made with, or "
            "align again",
        )


def segments(
    alignment: np.ndarray, model: TransitionModel
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split an alignment into phones.

    Args:
        alignment: transition-ids, int32[T].
        model: what they are ids of.

    Returns:
        (phone, start, length), each int32[N], in frames and in order; lengths sum to T.

    Raises:
        UserError: an id is out of range, or the ids do not make whole phones.
    """
    ids = np.asarray(alignment, np.int32)
    if ids.size == 0:
        empty = np.zeros(0, np.int32)
        return empty, empty, empty
    check_ids(ids, model)
    ends, is_whole = _phone_ends(
        model.state[ids],
        model.phone[ids],
        model.is_self_loop[ids],
        model.is_final[ids],
    )
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int32)
    phones = model.phone[ids[starts]]
    enters = model.hmm_state[ids[starts]] == 0
    if not is_whole or not (enters | _starts_silently(phones, model)).all():
        raise UserError(
            "an alignment that is not a row of whole phones", remedy=_REMEDY
        )
    return phones, starts, (ends - starts).astype(np.int32)


def _starts_silently(phones: np.ndarray, model: TransitionModel) -> np.ndarray:
    """Tell of each phone if the first state of its HMM emits nothing, bool[N]."""
    return np.array(
        [model.topology.states(phone)[0].pdf_class < 0 for phone in phones.tolist()]
    )


@njit(cache=True, nogil=True)
def _is_reordered(state: np.ndarray, is_loop: np.ndarray) -> bool:
    """Return True if self-loops come after the arc that leaves their state.

    The first change of state that has a self-loop on either side decides; without one,
    the first frame does.
    """
    for t in range(len(state) - 1):
        if state[t] != state[t + 1]:
            if is_loop[t]:
                return True
            if is_loop[t + 1]:
                return False
    return not is_loop[0]


@njit(cache=True, nogil=True)
def _phone_ends(
    state: np.ndarray, phone: np.ndarray, is_loop: np.ndarray, is_final: np.ndarray
) -> tuple[np.ndarray, bool]:
    """Return ends of the phones, exclusive, int32[N], and True if all are whole."""
    num_frames = len(state)
    ends = np.empty(num_frames, np.int32)
    count = 0
    is_whole = True
    reordered = _is_reordered(state, is_loop)
    t = 0
    while t < num_frames:
        if is_final[t]:
            while reordered and t + 1 < num_frames and is_loop[t + 1]:
                is_whole = is_whole and state[t] == state[t + 1]
                t += 1
            ends[count] = t + 1
            count += 1
        elif t + 1 == num_frames or phone[t] != phone[t + 1]:
            is_whole = False
            ends[count] = t + 1
            count += 1
        t += 1
    return ends[:count], is_whole


def subsampled_lengths(
    lengths: np.ndarray, least: np.ndarray, factor: int
) -> np.ndarray | None:
    """Return the lengths of phones where only every `factor`-th frame is left.

    The frames left are 0, `factor`, 2 `factor` and so on. A phone that has too few of
    them takes one from the nearest phone that can spare it, the left one of two.

    Args:
        lengths: int[N], frames of each phone, sum T.
        least: int[N], fewest frames of each that may be left.
        factor: frames for one.

    Returns:
        int64[N], sum ceil(T / factor); None if that is less than `least` needs.

    Source: Kaldi `hmm/hmm-utils.cc` (`ComputeNewPhoneLengths`).
    """
    ends = (np.cumsum(lengths, dtype=np.int64) + factor - 1) // factor
    left = np.diff(ends, prepend=0)
    if left.sum() < np.sum(least):
        return None
    while (short := np.flatnonzero(left < least)).size:
        for n in short.tolist():
            left[_nearest_spare(left, least, n)] -= 1
            left[n] += 1
    return left


def _nearest_spare(lengths: np.ndarray, least: np.ndarray, n: int) -> int:
    """Return the phone nearest to phone n, in frames between, that has one to spare."""
    spare = np.flatnonzero(lengths > least)
    before, behind = spare[spare < n][-1:], spare[spare > n][:1]
    if before.size and behind.size:
        gap = lengths[before[0] + 1 : n].sum(), lengths[n + 1 : behind[0]].sum()
        return int(behind[0] if gap[1] < gap[0] else before[0])
    return int(np.concatenate([before, behind])[0])


def convert(
    alignment: np.ndarray,
    old_model: TransitionModel,
    new_model: TransitionModel,
    new_tree: ContextDependency,
) -> np.ndarray:
    """Express an alignment in the transition-ids of another model of the same phones.

    Each frame keeps its phone, HMM state and arc; the pdf is the new tree's.

    Args:
        alignment: transition-ids of `old_model`, int32[T].
        old_model: the model that made the alignment.
        new_model: the model wanted; its topology has the same states and arcs.
        new_tree: the tree of `new_model`.

    Returns:
        int32[T].

    Raises:
        UserError: the alignment is not one of whole phones, or the models do not fit.

    Source: Kaldi `hmm/hmm-utils.cc` (`ConvertAlignment`).
    """
    ids = np.asarray(alignment, np.int32)
    phones, starts, lengths = segments(ids, old_model)
    padded = _padded(phones, new_tree)
    first_ids: list[np.ndarray] = []
    for n, phone in enumerate(phones.tolist()):
        if new_model.topology.states(phone) != old_model.topology.states(phone):
            raise UserError(
                f"the topologies of the two models differ for phone {phone}",
                remedy="use language directories with equal topologies",
            )
        window = padded[n : n + new_tree.context_width]
        first_ids.append(_first_ids(tuple(window), new_model, new_tree))
    longest = max((len(row) for row in first_ids), default=0)
    table = np.zeros((len(first_ids), longest), np.int32)
    for n, row in enumerate(first_ids):
        table[n, : len(row)] = row
    segment = np.repeat(np.arange(len(starts)), lengths)
    return table[segment, old_model.hmm_state[ids]] + old_model.arc[ids]


def _padded(phones: np.ndarray, tree: ContextDependency) -> list[int]:
    """Return the phones with the zeros that complete the outer context windows."""
    left = tree.central_position
    right = tree.context_width - 1 - left
    return [0] * left + phones.tolist() + [0] * right


def _first_ids(
    window: tuple[int, ...], model: TransitionModel, tree: ContextDependency
) -> np.ndarray:
    """Return the first id of each HMM state of a phone in context, int32[states]."""
    phone = window[tree.central_position]
    ids = []
    for number, state in enumerate(model.topology.states(phone)):
        if state.pdf_class < 0:
            ids.append(0)
            continue
        pdf = tree.pdf(window, state.pdf_class)
        loop_pdf = tree.pdf(window, state.loop_pdf_class)
        ids.append(int(model.first_id[model.state_of(phone, number, pdf, loop_pdf)]))
    return np.array(ids, np.int32)


class PhoneDurations:
    """Counts and lengths of each phone; additive over utterances.

    Args:
        num_phones: the highest phone id.

    Attributes:
        histogram: int64[num_phones + 1, L]; occurrences of a phone with a length in
            frames, the last bin for that length and all above.
        frames: int64[num_phones + 1], frames of each phone.
    """

    def __init__(self, num_phones: int) -> None:
        self.histogram = np.zeros((num_phones + 1, _LONGEST + 1), np.int64)
        self.frames = np.zeros(num_phones + 1, np.int64)

    def add(self, alignment: np.ndarray, model: TransitionModel) -> None:
        """Count the phones of an utterance's alignment.

        Raises:
            UserError: as `segments`.
        """
        phones, _, lengths = segments(alignment, model)
        np.add.at(self.histogram, (phones, np.minimum(lengths, _LONGEST)), 1)
        np.add.at(self.frames, phones, lengths)

    def merge(self, other: PhoneDurations) -> None:
        """Add the counts of another part of the data."""
        self.histogram += other.histogram
        self.frames += other.frames

    def summary(
        self, phone_names: Mapping[int, str], silence_phones: Sequence[int]
    ) -> dict[str, object]:
        """Return figures for a report.

        Args:
            phone_names: names of the phones.
            silence_phones: phones that count as silence.

        Returns:
            `frames`; `silence_share`, of the frames; `phones`: for each phone seen
            `occurrences`, `frames`, `mean_frames`, and the 5, 50 and 95 % quantiles of
            its length, `p5_frames`, `median_frames`, `p95_frames`.
        """
        total = int(self.frames.sum())
        silence = int(self.frames[list(silence_phones)].sum())
        phones = {}
        for phone in np.flatnonzero(self.frames).tolist():
            row = self.histogram[phone]
            cumulative = np.cumsum(row)
            quantiles = [
                int(np.searchsorted(cumulative, share * cumulative[-1]))
                for share in (0.05, 0.5, 0.95)
            ]
            phones[phone_names.get(phone, str(phone))] = {
                "occurrences": int(row.sum()),
                "frames": int(self.frames[phone]),
                "mean_frames": float(self.frames[phone] / row.sum()),
                "p5_frames": quantiles[0],
                "median_frames": quantiles[1],
                "p95_frames": quantiles[2],
            }
        share = silence / total if total else 0.0
        return {"frames": total, "silence_share": share, "phones": phones}
