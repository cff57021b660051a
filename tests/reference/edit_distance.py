"""The obvious, exponential edit distance: try every alignment."""

from collections.abc import Iterator, Sequence

Step = tuple[object, object]


def all_alignments(
    ref: Sequence[object], hyp: Sequence[object]
) -> Iterator[list[Step]]:
    """Every way to write two sequences above each other, None where one has nothing."""
    if not ref and not hyp:
        yield []
    if ref:
        for rest in all_alignments(ref[1:], hyp):
            yield [(ref[0], None), *rest]
    if hyp:
        for rest in all_alignments(ref, hyp[1:]):
            yield [(None, hyp[0]), *rest]
    if ref and hyp:
        for rest in all_alignments(ref[1:], hyp[1:]):
            yield [(ref[0], hyp[0]), *rest]


def cost(steps: Sequence[Step], *, substitution: int, gap: int) -> int:
    """Price of one alignment."""
    gaps = sum(a is None or b is None for a, b in steps)
    pairs = sum(a is not None and b is not None and a != b for a, b in steps)
    return gap * gaps + substitution * pairs


def least_cost(
    ref: Sequence[object], hyp: Sequence[object], *, substitution: int, gap: int
) -> int:
    """Price of the cheapest alignment."""
    return min(
        cost(steps, substitution=substitution, gap=gap)
        for steps in all_alignments(ref, hyp)
    )
