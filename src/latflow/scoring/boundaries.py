"""Two alignments of the same speech, compared boundary by boundary.

A boundary is the time between two labels that follow each other. The labels of a
recording are matched by edit distance, so that an alignment that has a phone more loses
that phone and no other; times are compared where both neighbours of a boundary match.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from latflow.corpus.ctm import read_ctm
from latflow.corpus.textgrid import Interval, read_tiers
from latflow.errors import UserError
from latflow.lattice.edit_distance import align_words

# Labels of silence, which other aligners write or leave out.
SILENCES = frozenset({"", "sil", "sp", "spn", "<eps>", "<sil>"})
LIMITS_MS = (10, 20, 50)
Labels = Mapping[str, Sequence[Interval]]


def read_labels(path: str | Path, tier: str) -> dict[str, list[Interval]]:
    """Read the labels of alignments by recording, silences left out.

    Speakers of a TextGrid with several, and channels of a CTM file, are apart.

    Args:
        path: a CTM file, a TextGrid, or a folder of TextGrids at any depth.
        tier: tiers whose names end so, such as `phones`; case does not matter.

    Raises:
        UserError: nothing of the kind is there.
    """
    path = Path(path)
    if path.is_dir():
        found: dict[str, list[Interval]] = {}
        for grid in sorted(path.rglob("*")):
            if _is_textgrid(grid):
                name = grid.relative_to(path).with_suffix("").as_posix()
                found.update(_of_textgrid(grid, name, tier))
    elif _is_textgrid(path):
        found = dict(_of_textgrid(path, path.stem, tier))
    else:
        found = _of_ctm(path)
    spoken = {
        name: [label for label in labels if label.text.lower() not in SILENCES]
        for name, labels in found.items()
    }
    if not any(spoken.values()):
        raise UserError(
            f"no {tier} here",
            file=path,
            remedy="name a CTM file, a TextGrid or a folder of them; --tier names the "
            "tiers",
        )
    return spoken


def _is_textgrid(path: Path) -> bool:
    """Return whether a file is a TextGrid by its name."""
    return path.suffix.lower() == ".textgrid"


def _of_ctm(path: Path) -> dict[str, list[Interval]]:
    """Return the labels of a CTM file by recording, and channel if it has several."""
    found: dict[str, dict[str, list[Interval]]] = {}
    for word in read_ctm(path):
        channels = found.setdefault(word.utterance, {})
        label = Interval(word.start, word.end, word.word)
        channels.setdefault(word.channel, []).append(label)
    return {
        name if len(channels) == 1 else f"{name} {channel}": sorted(
            labels, key=lambda label: label.start
        )
        for name, channels in found.items()
        for channel, labels in channels.items()
    }


def _of_textgrid(
    path: Path, name: str, tier: str
) -> Iterator[tuple[str, list[Interval]]]:
    """Yield the tiers of a TextGrid that hold what is asked for."""
    for found in read_tiers(path):
        if found.name.lower().endswith(tier.lower()):
            prefix = found.name[: -len(tier)].rstrip(" -")
            yield (f"{name} {prefix}" if prefix else name), list(found.intervals)


@dataclass
class Differences:
    """Differences of boundaries, in milliseconds; the second less the first.

    Attributes:
        all: of all boundaries.
        by_label: of the beginnings of a label.
        num_labels: of both alignments.
        num_matched: labels that both have.
        unmatched: recordings that only one of them has.
    """

    all: list[float] = field(default_factory=list)
    by_label: dict[str, list[float]] = field(default_factory=dict)
    num_labels: tuple[int, int] = (0, 0)
    num_matched: int = 0
    unmatched: list[str] = field(default_factory=list)

    def add(self, label: str, difference: float) -> None:
        """Take note of the beginning of a label."""
        self.all.append(difference)
        self.by_label.setdefault(label, []).append(difference)

    def values(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        return {
            "labels": list(self.num_labels),
            "matched": self.num_matched,
            "only_in_one": self.unmatched,
            "boundaries": summary(self.all),
            "by_label": {
                label: summary(found)
                for label, found in sorted(
                    self.by_label.items(), key=lambda item: -len(item[1])
                )
            },
        }


def summary(differences: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Return mean, median, shares of absolute differences; the mean with its sign.

    Args:
        differences: milliseconds.
    """
    found = np.abs(np.array(differences))
    if not len(found):
        return {"count": 0}
    summary = {
        "count": len(found),
        "mean_ms": float(found.mean()),
        "median_ms": float(np.median(found)),
        "bias_ms": float(np.mean(differences)),
    }
    for limit in LIMITS_MS:
        summary[f"within_{limit}_ms"] = float((found <= limit + 1e-6).mean())
    return summary


def compare_labels(first: Labels, second: Labels) -> Differences:
    """Compare the boundaries of two alignments.

    The beginning of a label counts where it matches one of the other alignment, and its
    end where no matched label follows at once.

    Args:
        first: labels in order of time, by recording.
        second: likewise.
    """
    found = Differences(
        num_labels=(sum(map(len, first.values())), sum(map(len, second.values()))),
        unmatched=sorted(first.keys() ^ second.keys()),
    )
    for name in sorted(first.keys() & second.keys()):
        ours, theirs = first[name], second[name]
        pairs = list(matched_labels(ours, theirs))
        found.num_matched += len(pairs)
        followed = {(i - 1, j - 1) for i, j in pairs}
        for i, j in pairs:
            found.add(ours[i].text, 1000 * (theirs[j].start - ours[i].start))
            gap = i + 1 < len(ours) and ours[i + 1].start - ours[i].end < 1e-3
            if not (gap and (i, j) in followed):
                found.all.append(1000 * (theirs[j].end - ours[i].end))
    return found


def matched_labels(
    ours: Sequence[Interval], theirs: Sequence[Interval], *, with_others: bool = False
) -> Iterator[tuple[int, int]]:
    """Yield the indices of labels that both have, in order.

    Args:
        ours: labels in order of time.
        theirs: likewise.
        with_others: whether one that stands in the place of another counts, too.
    """
    texts = [x.text for x in ours], [x.text for x in theirs]
    if texts[0] == texts[1]:
        yield from zip(range(len(ours)), range(len(ours)), strict=True)
        return
    i = j = 0
    for left, right in align_words(*texts).pairs:
        if None not in (left, right) and (with_others or left == right):
            yield i, j
        i += left is not None
        j += right is not None


def render(found: Differences) -> str:
    """Return a table of differences: of all boundaries, then by label."""
    values = found.values()
    lines = [
        f"{found.num_matched} labels of {found.num_labels[0]} and "
        f"{found.num_labels[1]} match\n"
    ]
    if found.unmatched:
        names = ", ".join(found.unmatched[:5])
        lines.append(f"{len(found.unmatched)} recordings in one only: {names}\n")
    head = "".join(f"  <={limit:>3} ms" for limit in LIMITS_MS)
    lines.append(f"{'':<12}{'count':>8}{'mean ms':>9}{'median':>8}{'bias':>8}{head}\n")
    rows = {"all": values["boundaries"], **values["by_label"]}
    for label, row in rows.items():
        within = (100 * row[f"within_{limit}_ms"] for limit in LIMITS_MS)
        shares = "".join(f"{share:>8.1f} %" for share in within)
        lines.append(
            f"{label:<12}{row['count']:>8}{row['mean_ms']:>9.2f}"
            f"{row['median_ms']:>8.2f}{row['bias_ms']:>8.2f}{shares}\n"
        )
    return "".join(lines)
