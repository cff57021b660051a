"""Phones as labels of a lattice, beside its words.

Public: `insert_phones`.

Source: Kaldi `lat/determinize-lattice-pruned.cc` (`DeterminizeLatticeInsertPhones`).
"""

from __future__ import annotations

import numpy as np

from latflow.hmm.transition_model import TransitionModel
from latflow.lattice.lattice import Lattice


def insert_phones(lattice: Lattice, model: TransitionModel) -> tuple[Lattice, int]:
    """Label the arcs on which a phone begins.

    A phone begins with a transition-id of its first HMM state that is no self-loop. An
    arc that has a word keeps it, and an arc with the phone's label alone follows it.
    Phones that begin at the start state have no label; there is nothing to tell apart
    before them.

    Args:
        lattice: its words are word ids.
        model: what its transition-ids stand for.

    Returns:
        The lattice, its words now labels; the number of which phone p is the p-th
        label after.
    """
    ids, words, source = lattice.transition_id, lattice.word, lattice.source()
    first_phone = int(words.max(initial=0)) + 1
    begins = (ids != 0) & (model.hmm_state[ids] == 0) & ~model.is_self_loop[ids]
    begins &= source != 0
    labels = first_phone + model.phone[ids]
    follows = np.flatnonzero(begins & (words != 0))
    between = lattice.num_states + np.arange(len(follows))
    arcs = np.stack(
        [
            source,
            lattice.next_state,
            ids,
            np.where(begins & (words == 0), labels, words),
        ],
        axis=1,
    )
    arcs[follows, 1] = between
    behind = np.zeros((len(follows), 4), np.int32)
    behind[:, 0], behind[:, 1] = between, lattice.next_state[follows]
    behind[:, 3] = labels[follows]
    costs = np.stack([lattice.graph_cost, lattice.acoustic_cost], axis=1)
    finals = np.stack([lattice.final_graph_cost, lattice.final_acoustic_cost], axis=1)
    return (
        Lattice.from_arcs(
            np.concatenate([arcs, behind]).astype(np.int32),
            np.concatenate([costs, np.zeros((len(follows), 2), np.float32)]),
            np.concatenate([finals, np.full((len(follows), 2), np.inf, np.float32)]),
        ),
        first_phone,
    )
