"""Context dependency: which pdf a phone in context uses in each position.

`ContextDependency` is a decision tree together with the shape of the context window it
is asked about. The window has `context_width` phones, the phone itself at
`central_position`; phones outside the utterance are 0.

Source: Kaldi `tree/context-dep.{h,cc}`, `tree/build-tree-utils.cc` (`GetStubMap`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from latflow.errors import UserError
from latflow.hmm.event_map import (
    PDF_CLASS,
    Constant,
    EventMap,
    Split,
    Table,
    read_event_map,
)
from latflow.kaldi.io import KaldiReader, KaldiWriter


@dataclass(frozen=True)
class Root:
    """Phones that share the root of a tree: a line of `lang/phones/roots.int`.

    Attributes:
        phones: the phones.
        shared: True if one tree serves all pdf-classes of them, False if each class
            has its own.
        split: False keeps the root a leaf.
    """

    phones: tuple[int, ...]
    shared: bool = True
    split: bool = True


def check_window(context_width: int, central_position: int) -> None:
    """Refuse a context window that does not hold its own phone.

    Raises:
        UserError: the central position (from 0) lies outside the window.
    """
    if not 0 <= central_position < context_width:
        raise UserError(
            f"central position {central_position} is not in a context window of "
            f"{context_width} phones",
            remedy="choose 0 <= central position < context width",
        )


class ContextDependency:
    """A decision tree from (context window, pdf-class) to pdf-id.

    Args:
        context_width: phones in the window, 3 for triphones.
        central_position: index of the phone itself in the window, from 0.
        to_pdf: the tree.
    """

    def __init__(
        self, context_width: int, central_position: int, to_pdf: EventMap
    ) -> None:
        check_window(context_width, central_position)
        self.context_width = context_width
        self.central_position = central_position
        self.to_pdf = to_pdf
        self.num_pdfs = to_pdf.num_leaves
        self._known: dict[tuple[int, ...], int] = {}

    def pdf(self, window: Sequence[int], pdf_class: int) -> int:
        """Return the pdf-id of a phone in context.

        Args:
            window: `context_width` phone ids, 0 beyond the utterance's ends.
            pdf_class: position inside the phone, from 0.

        Raises:
            UserError: the tree has no answer, e.g. for a phone that it does not know.
        """
        key = (pdf_class, *window)
        known = self._known.get(key)
        if known is not None:
            return known
        event = {PDF_CLASS: pdf_class, **dict(enumerate(window))}
        answer = self.to_pdf.answer(event)
        if answer is None or len(window) != self.context_width:
            phones = " ".join(map(str, window))
            raise UserError(
                f"the tree has no pdf for phones {phones}, pdf-class {pdf_class}",
                remedy="use the tree, topology and language directory of one system",
            )
        self._known[key] = answer
        return answer

    def possible_pdfs(self, phone: int, pdf_class: int) -> list[int]:
        """Return all pdfs that a phone's class has in some context, sorted.

        Source: Kaldi `tree/context-dep.cc` (`GetPdfInfo` for one class).
        """
        event = {PDF_CLASS: pdf_class, self.central_position: phone}
        return sorted(self.to_pdf.possible(event))

    def possible_pairs(
        self, phone: int, classes: tuple[int, int], phones: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Return all pairs of pdfs of two classes of a phone in one context, sorted.

        Args:
            phone: the phone.
            classes: pdf-class of the arcs that leave a state, and of its self-loop.
            phones: all phones, to try as neighbours where the context matters.

        Source: Kaldi `tree/context-dep.cc` (`GetPdfInfo` for pairs, `EnumeratePairs`).
        """
        if classes[0] == classes[1]:
            return [(pdf, pdf) for pdf in self.possible_pdfs(phone, classes[0])]
        pairs: set[tuple[int, int]] = set()
        self._add_pairs({self.central_position: phone}, classes, phones, pairs)
        return sorted(pairs)

    def _add_pairs(
        self,
        window: Mapping[int, int],
        classes: tuple[int, int],
        phones: Sequence[int],
        pairs: set[tuple[int, int]],
    ) -> None:
        """Add the pairs of all windows that complete `window`.

        As soon as one of the two pdfs is certain the other one is free; else one more
        position of the window is filled with every phone.
        """
        forward, loop = (
            self.to_pdf.possible({PDF_CLASS: pdf_class, **window})
            for pdf_class in classes
        )
        if len(forward) <= 1 or len(loop) <= 1:
            pairs.update((a, b) for a in forward for b in loop)
            return
        position = next(n for n in range(self.context_width) if n not in window)
        for neighbour in (0, *phones):
            self._add_pairs({**window, position: neighbour}, classes, phones, pairs)

    @classmethod
    def monophone(
        cls,
        shared_phone_sets: Sequence[Sequence[int]],
        num_pdf_classes: Mapping[int, int],
    ) -> ContextDependency:
        """Return the tree of a monophone system.

        Args:
            shared_phone_sets: phones that share their pdfs (`lang/phones/sets.int`).
            num_pdf_classes: number of pdf-classes of each phone.

        Source: Kaldi `tree/context-dep.cc` (`MonophoneContextDependencyShared`).
        """
        roots = [
            Root(tuple(sorted(phones)), shared=False, split=False)
            for phones in shared_phone_sets
        ]
        return cls(1, 0, stub_map(roots, num_pdf_classes, 0))

    @classmethod
    def full_biphone(
        cls,
        shared_phone_sets: Sequence[Sequence[int]],
        num_pdf_classes: Mapping[int, int],
        context_independent: Collection[int],
    ) -> ContextDependency:
        """Return the tree that has a pdf for each pair of a phone and the one before.

        Args:
            shared_phone_sets: phones that share their pdfs (`lang/phones/sets.int`),
                and that are not distinguished as the phone before either.
            num_pdf_classes: number of pdf-classes of each phone.
            context_independent: phones that the one before does not change.

        Source: Kaldi `tree/context-dep.cc` (`BiphoneContextDependencyFull`).
        """
        alone, others = [], []
        for phones in shared_phone_sets:
            root = Root(tuple(sorted(phones)), shared=False, split=False)
            is_alone = set(phones) <= set(context_independent)
            (alone if is_alone else others).append(root)
        to_pdf = stub_map(alone, num_pdf_classes, 1) if alone else None
        num_leaves = to_pdf.num_leaves if to_pdf else 0
        if others:
            size = 1 + max(max(phones) for phones in shared_phone_sets)
            branches: list[EventMap | None] = [None] * size
            for before in ((0,), *shared_phone_sets):
                branch = _stub(others, num_pdf_classes, 1, num_leaves)
                num_leaves = branch.num_leaves
                for phone in before:
                    branches[phone] = branch
            table = Table(0, branches)
            phones = sorted(phone for root in alone for phone in root.phones)
            to_pdf = table if to_pdf is None else Split(1, phones, to_pdf, table)
        assert to_pdf is not None
        return cls(2, 1, to_pdf)

    # -- files ----------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | Path) -> ContextDependency:
        """Read a `tree` file, binary or text."""
        with KaldiReader.open(path) as reader:
            return cls.read(reader)

    def save(self, path: str | Path, *, binary: bool = True) -> None:
        """Write a `tree` file atomically."""
        with KaldiWriter.open(path, binary=binary) as writer:
            self.write(writer)

    @classmethod
    def read(cls, reader: KaldiReader) -> ContextDependency:
        """Read the tree where the reader stands.

        Raises:
            UserError: it is truncated or garbled.
        """
        reader.expect("ContextDependency")
        width, position = reader.int32(), reader.int32()
        reader.expect("ToPdf")
        to_pdf = read_event_map(reader)
        reader.expect("EndContextDependency")
        return cls(width, position, to_pdf)

    def write(self, writer: KaldiWriter) -> None:
        """Write the tree as Kaldi does, binary or text."""
        writer.write_token("ContextDependency")
        writer.write_int32(self.context_width)
        writer.write_int32(self.central_position)
        writer.write_token("ToPdf")
        self.to_pdf.write(writer)
        writer.write_token("EndContextDependency")


def stub_map(
    roots: Sequence[Root], num_pdf_classes: Mapping[int, int], central_position: int
) -> EventMap:
    """Return the tree before any question: a leaf a root (or a class of a root).

    Roots are found by binary search in their list, or by a table where each has one
    phone only; leaves are numbered in the order of the list.

    Args:
        roots: phone sets, none empty, no phone twice.
        num_pdf_classes: number of pdf-classes of each phone.
        central_position: the key of the central phone.

    Raises:
        UserError: a phone has two roots, or a root none.

    Source: Kaldi `tree/build-tree-utils.cc` (`GetStubMap`).
    """
    seen: set[int] = set()
    for root in roots:
        again = seen & set(root.phones)
        if again or not root.phones:
            what = f"phone {min(again)} is in two" if again else "there is an empty one"
            raise UserError(
                f"of the phone sets that share a tree root: {what}",
                remedy="fix phones/sets.int and phones/roots.int of the language",
            )
        seen |= set(root.phones)
    return _stub(list(roots), num_pdf_classes, central_position, 0)


def _stub(
    roots: list[Root],
    num_pdf_classes: Mapping[int, int],
    central_position: int,
    first_leaf: int,
) -> EventMap:
    """Return the stub of some roots, its leaves numbered from `first_leaf`."""
    if len(roots) == 1:
        root = roots[0]
        if root.shared:
            return Constant(first_leaf)
        length = max(num_pdf_classes[phone] for phone in root.phones)
        return Table(PDF_CLASS, [Constant(first_leaf + n) for n in range(length)])
    if all(len(root.phones) == 1 for root in roots):
        return _stub_table(roots, num_pdf_classes, central_position, first_leaf)
    half = len(roots) // 2
    yes = _stub(roots[:half], num_pdf_classes, central_position, first_leaf)
    no = _stub(roots[half:], num_pdf_classes, central_position, yes.num_leaves)
    phones = sorted(phone for root in roots[:half] for phone in root.phones)
    return Split(central_position, phones, yes, no)


def _stub_table(
    roots: list[Root],
    num_pdf_classes: Mapping[int, int],
    central_position: int,
    first_leaf: int,
) -> EventMap:
    """Return the stub of roots of one phone each, a table of phones."""
    branches: list[EventMap | None]
    branches = [None] * (1 + max(root.phones[0] for root in roots))
    for root in roots:
        branch = _stub([root], num_pdf_classes, central_position, first_leaf)
        branches[root.phones[0]] = branch
        first_leaf = branch.num_leaves
    return Table(central_position, branches)
