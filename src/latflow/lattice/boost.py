"""Boosting: make the wrong paths of a lattice likelier, in proportion to their errors.

Each frame of an arc whose phone is not the one that was said gets b added to its log
score (b taken from its graph cost). Training against the boosted lattice asks for a
margin that grows with the number of errors (boosted MMI).

Public: `boost`.

Source: Kaldi `lat/lattice-functions.cc` (`LatticeBoost`),
`latbin/lattice-boost-ali.cc`; Povey et al. 2008, "Boosted MMI for model and
feature-space discriminative training".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.lattice.accuracy import is_silent_id
from latflow.lattice.lattice import Lattice
from latflow.lattice.posteriors import check_alignment


def boost(
    lattice: Lattice,
    alignment: np.ndarray,
    model: TransitionModel,
    *,
    b: float,
    silence_phones: Sequence[int] | np.ndarray,
    max_silence_error: float = 0.0,
) -> Lattice:
    """Take b off the graph cost of each wrong frame.

    Args:
        lattice: of T frames.
        alignment: transition-ids of what was said, int32[T].
        model: what they are ids of.
        b: nats for a wrong frame; 0.05 to 0.1 is usual, at an acoustic scale of 0.1.
        silence_phones: phone ids.
        max_silence_error: share of b for frames that are silence in the lattice, and
            wrong; 0 to 1.

    Raises:
        UserError: the alignment has another number of frames than the lattice, an id is
            not the model's, or `max_silence_error` is out of range.

    Numerics: float32, the same bits as Kaldi's.
    """
    if not 0.0 <= max_silence_error <= 1.0:
        raise UserError(
            f"max_silence_error is {max_silence_error}", remedy="set it to 0 ... 1"
        )
    check_alignment(lattice, alignment, model)
    ids, emits = lattice.transition_id, lattice.transition_id != 0
    # States behind the last frame (and dead ends beyond it) meet no said id: 0.
    frame = np.minimum(lattice.frame, lattice.num_frames)
    said = np.append(np.asarray(alignment, np.int32), np.int32(0))[frame]
    is_wrong = emits & (model.phone[ids] != model.phone[said][lattice.source()])
    error = np.where(is_silent_id(model, silence_phones)[ids], max_silence_error, 1.0)
    error = np.where(is_wrong, error, 0.0).astype(np.float32)
    return replace(lattice, graph_cost=lattice.graph_cost + np.float32(-b) * error)
