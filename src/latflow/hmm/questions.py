"""Questions that a decision tree may ask: sets of phones, and of pdf-classes.

Phone questions are found by clustering: phones (or sets of phones that count as one,
such as the word-position variants of a phone) are split top down by the likelihood of
their middle states; every cluster met on the way, and every set itself, is a question.
The language directory adds questions about word position and silence. Pdf-classes are
asked for in order: in the first, among the first two, and so on.

Public: `Questions`, `cluster_phones`, `phone_clusters`.

Source: Kaldi `bin/cluster-phones.cc`, `tree/build-tree.cc`
(`AutomaticallyObtainQuestions`), `bin/compile-questions.cc`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from latflow.errors import UserError
from latflow.hmm.event_map import PDF_CLASS
from latflow.hmm.gauss_clustering import cluster_top_down, sum_groups
from latflow.hmm.topology import Topology
from latflow.hmm.tree_statistics import HasArrays

logger = logging.getLogger(__name__)

Sets = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Questions:
    """What may be asked for each key of an event, in the order of asking.

    Attributes:
        phones: sets of phones, for every place of the context window.
        pdf_classes: sets of pdf-classes.
    """

    phones: Sets
    pdf_classes: Sets

    def of_key(self, key: int) -> Sets:
        """The questions about a key of an event."""
        return self.pdf_classes if key == PDF_CLASS else self.phones

    @classmethod
    def compile(
        cls, phone_sets: Iterable[Iterable[int]], topology: Topology
    ) -> Questions:
        """Put questions in order, without repetition, and add those on pdf-classes.

        Args:
            phone_sets: questions on phones.
            topology: tells the phones and their pdf-classes.

        Raises:
            UserError: a question names a phone that the topology does not have.

        Source: Kaldi `bin/compile-questions.cc`.
        """
        phones = sorted({tuple(sorted(set(phones))) for phones in phone_sets} - {()})
        asked = {phone for question in phones for phone in question}
        unknown = asked - set(topology.phones)
        if unknown:
            raise UserError(
                f"a tree question names phone {min(unknown)}, which is not in the "
                "topology",
                remedy="make the language directory again",
            )
        unasked = set(topology.phones) - asked
        if unasked:
            logger.warning("no tree question names phones %s", sorted(unasked))
        most = max(topology.pdf_class_counts().values())
        return cls(tuple(phones), tuple(tuple(range(n)) for n in range(1, most)))


def cluster_phones(
    statistics: HasArrays,
    phone_sets: Sequence[Sequence[int]],
    topology: Topology,
    *,
    extra_questions: Iterable[Iterable[int]] = (),
    pdf_classes: Sequence[int] = (1,),
) -> Questions:
    """The questions for a tree: by clustering, and those of the language directory.

    Args:
        statistics: of phones in context.
        phone_sets: phones that are never told apart (`phones/sets.int`).
        topology: the HMMs.
        extra_questions: further sets of phones (`phones/extra_questions.int`).
        pdf_classes: classes by whose frames phones are compared; 1 is the middle state
            of a three-state HMM.

    Raises:
        UserError: a phone is in two sets, or a question names an unknown phone.
    """
    clusters = phone_clusters(statistics, phone_sets, pdf_classes=pdf_classes)
    return Questions.compile([*clusters, *extra_questions], topology)


def phone_clusters(
    statistics: HasArrays,
    phone_sets: Sequence[Sequence[int]],
    *,
    pdf_classes: Sequence[int] = (1,),
) -> list[tuple[int, ...]]:
    """Sets of phones that sound alike, by clustering top down.

    Args:
        statistics: of phones in context.
        phone_sets: phones that are never told apart.
        pdf_classes: classes whose frames count.

    Returns:
        Sorted sets: every cluster but that of all phones, and `phone_sets` themselves.

    Raises:
        UserError: a phone is in two sets.

    Source: Kaldi `tree/build-tree.cc` (`AutomaticallyObtainQuestions`).
    """
    arrays = statistics.arrays()
    sets = [tuple(sorted(phones)) for phones in phone_sets]
    listed = [phone for phones in sets for phone in phones]
    if len(set(listed)) < len(listed) or not all(sets):
        raise UserError(
            "the sets of phones to cluster overlap, or one is empty",
            remedy="mend phones/sets.int of the language directory",
        )
    set_of = np.full(max([*listed, int(arrays.phones.max())]) + 1, -1, np.int64)
    for number, phones in enumerate(sets):
        set_of[list(phones)] = number
    group = set_of[arrays.phones]
    is_counted = np.isin(arrays.events[:, 0], pdf_classes)
    points = sum_groups(arrays.moments, np.where(is_counted, group, -1), len(sets))
    for number in np.flatnonzero(points[:, 0] == 0.0):
        logger.warning("no statistics of phones %s for tree questions", sets[number])
    found = cluster_top_down(points, arrays.variance_floor)
    clusters = [
        tuple(sorted(phone for number in members for phone in sets[number]))
        for members in found
    ]
    return sorted({*clusters, *sets})
