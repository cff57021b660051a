"""Boundaries of phones as someone sets them: a model that was learnt from their own.

Around each boundary that an alignment has, a small network sees the cepstra of short
windows, and the phones before and after it. It predicts how far the boundary has to
move, and how large its error is likely to be, which makes intervals. It is asked twice,
the second time where the boundary has moved to.

A package keeps it as `boundaries.npz` (`latflow.training.boundary_learning` makes one).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from latflow.files import reading

FILE = "boundaries.npz"  # of a package
SHARES = (0.8, 0.95)  # of the true boundaries that lie in the intervals
CONTEXT = np.arange(-12, 13)  # frames of short windows around a boundary
LIMIT = 0.1  # seconds that a boundary moves at a time, at most
_PASSES = 2
_SHORTEST = 0.005  # seconds of a phone
_FORMAT = 1


@dataclass(frozen=True, eq=False)
class BoundaryModel:
    """Moves boundaries; safe to use from several threads.

    H is the size of its layers, P the number of its phones, F what is seen of a
    boundary: `len(CONTEXT)` frames of D cepstra, and both phones, one of P each.

    Attributes:
        phones: unicode[P], names; others are seen as none of them.
        mean: float32[D * len(CONTEXT)], of the cepstra.
        scale: float32[D * len(CONTEXT)], factor of the cepstra less the mean.
        weight1: float32[F, H].
        bias1: float32[H].
        weight2: float32[H, H].
        bias2: float32[H].
        weight3: float32[H, 2]; outputs are the move in units of 10 ms, and the natural
            log of the scale of its error in the same.
        bias3: float32[2].
        factors: float64[2], interval of each of `SHARES` for a scale of 1.
        sample_rate: int64[], of the audio it was trained on, Hz.
    """

    phones: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    weight1: np.ndarray
    bias1: np.ndarray
    weight2: np.ndarray
    bias2: np.ndarray
    weight3: np.ndarray
    bias3: np.ndarray
    factors: np.ndarray
    sample_rate: np.ndarray

    @classmethod
    def load(cls, package: str | Path) -> BoundaryModel | None:
        """Read the model of a package; None where it has none.

        Raises:
            UserError: the file is damaged.
        """
        path = Path(package) / FILE
        if not path.is_file():
            return None
        remedy = "write the package again with latflow learn-boundaries"
        with (
            reading(path, "not a model of boundaries", remedy),
            np.load(path, allow_pickle=False) as held,
        ):
            if int(held["format"]) != _FORMAT:
                raise ValueError(f"its format is {held['format']}")
            model = cls(**{field.name: held[field.name] for field in fields(cls)})
            model.check()
        return model

    def save(self, path: Path) -> None:
        """Write the file."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        np.savez(path, format=_FORMAT, **held)

    def check(self) -> None:
        """Refuse arrays that do not fit each other.

        Raises:
            ValueError: they do not.
        """
        hidden, seen = len(self.bias1), len(self.mean) + 2 * len(self.phones)
        expected = {
            "scale": self.mean.shape,
            "weight1": (seen, hidden),
            "weight2": (hidden, hidden),
            "bias2": (hidden,),
            "weight3": (hidden, 2),
            "bias3": (2,),
            "factors": (len(SHARES),),
        }
        for name, shape in expected.items():
            found = getattr(self, name)
            if found.shape != shape or not np.isfinite(found).all():
                raise ValueError(f"{name} of shape {found.shape}, not {shape}")

    def corrected(
        self,
        names: Sequence[str],
        times: np.ndarray,
        frames: np.ndarray,
        frame_shift: float,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Move the boundaries of an utterance.

        Args:
            names: of its N phones.
            times: their boundaries, seconds, float64[N + 1]; the first and last stay.
            frames: its cepstra in short windows, float64[T, D].
            frame_shift: seconds from one to the next.

        Returns:
            (boundaries float64[N + 1], in order; half-widths of the intervals around
            them that have `SHARES` of the true ones, seconds, float32[N + 1, 2], 0 of
            the first and last).
        """
        moved = np.array(times, np.float64)
        margins = np.zeros((len(times), len(SHARES)), np.float32)
        if len(names) < 2 or frames.shape[1] * len(CONTEXT) != len(self.mean):
            return moved, margins
        phones, error = self.codes(names), np.zeros(len(names) - 1)
        for _ in range(_PASSES):
            windows = windows_around(moved[1:-1], frames, frame_shift)
            move, error = self._outputs(windows, phones)
            moved[1:-1] += np.clip(move, -LIMIT, LIMIT)
            moved = in_order_of_time(moved)
        margins[1:-1] = error[:, None] * self.factors
        return np.round(moved, 6), margins

    def codes(self, names: Sequence[str]) -> np.ndarray:
        """Return the numbers of the phones around each boundary, int64[N - 1, 2]."""
        numbers = {str(name): number for number, name in enumerate(self.phones)}
        found = np.array([numbers.get(name, -1) for name in names])
        return np.stack([found[:-1], found[1:]], axis=1)

    def _outputs(
        self, windows: np.ndarray, phones: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return moves and scales of their errors, seconds, float64[B]."""
        x = inputs(windows, phones, self.mean, self.scale, len(self.phones))
        x = np.maximum(x @ self.weight1 + self.bias1, 0)
        x = np.maximum(x @ self.weight2 + self.bias2, 0)
        out = (x @ self.weight3 + self.bias3).astype(np.float64)
        return out[:, 0] / 100, np.exp(np.minimum(out[:, 1], 10)) / 100


def inputs(
    windows: np.ndarray,
    phones: np.ndarray,
    mean: np.ndarray,
    scale: np.ndarray,
    num_phones: int,
) -> np.ndarray:
    """Return what the network sees of boundaries, float32[B, F].

    Args:
        windows: of `windows_around`.
        phones: int64[B, 2], numbers of the phones before and after; -1 for unknown.
        mean: see `BoundaryModel`.
        scale: likewise.
        num_phones: P.
    """
    one_of = np.zeros((len(windows), 2, num_phones + 1), np.float32)
    np.put_along_axis(one_of, phones[:, :, None], 1, axis=2)  # -1 is the last column
    known = one_of[:, :, :-1].reshape(len(windows), -1)
    return np.concatenate([(windows - mean) * scale, known], axis=1, dtype=np.float32)


def windows_around(
    times: np.ndarray, frames: np.ndarray, frame_shift: float
) -> np.ndarray:
    """Return the cepstra around times, between frames by line, float32[B, F'].

    Args:
        times: float64[B], seconds.
        frames: float64[T, D], T > 0; the first and last stand for those beyond.
        frame_shift: seconds.
    """
    at = np.clip(times[:, None] / frame_shift - 0.5 + CONTEXT, 0, len(frames) - 1)
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, len(frames) - 1)
    share = (at - low)[..., None]
    found = (1 - share) * frames[low] + share * frames[high]
    return found.reshape(len(times), -1).astype(np.float32)


def in_order_of_time(times: np.ndarray) -> np.ndarray:
    """Return boundaries at least `_SHORTEST` apart, the first and last as they are."""
    shortest = min(_SHORTEST, (times[-1] - times[0]) / max(1, len(times) - 1))
    steps = shortest * np.arange(len(times))
    free = np.maximum.accumulate(times - steps)
    return np.clip(free, times[0], times[-1] - steps[-1]) + steps
