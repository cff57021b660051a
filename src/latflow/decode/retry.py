"""What to do with an utterance whose search does not come to a good end.

A search can die (no token survives) or end in no final state of the graph; a wider beam
often mends both. A `RetryPolicy` says which beams are tried and whether a lattice of
incomplete paths is taken in the end; an `Attempt` says what became of it, so that
nothing of this happens silently.

Public: `RetryPolicy`, `Attempt`.

Source: Kaldi `decoder/decoder-wrappers.cc` (`DecodeUtteranceLatticeFaster`,
`--allow-partial`) and the retry beam of `gmmbin/gmm-align-compiled.cc`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from latflow.decode.decoded import Decoded
from latflow.errors import UserError


@dataclass(frozen=True, eq=False)
class Attempt:
    """What became of an utterance.

    Attributes:
        decoded: the lattice, or None.
        error: why there is none.
        beam: the last beam tried.
        num_tries: searches made.
    """

    decoded: Decoded | None
    error: UserError | None
    beam: float
    num_tries: int

    @property
    def was_retried(self) -> bool:
        """Whether more than one search was made."""
        return self.num_tries > 1

    @property
    def is_partial(self) -> bool:
        """Whether there is a lattice, of incomplete paths."""
        return self.decoded is not None and not self.decoded.reached_final


@dataclass(frozen=True)
class RetryPolicy:
    """Which beams to try, and what to take.

    Attributes:
        beams: tried in order until a search ends in a final state.
        allow_partial: take the last lattice even if no search did.
    """

    beams: tuple[float, ...]
    allow_partial: bool = True

    def __post_init__(self) -> None:
        """Refuse a policy that cannot be followed.

        Raises:
            UserError: no beams, one that is not positive, or one that is no wider than
                the one before.
        """
        wider = all(a < b for a, b in zip(self.beams, self.beams[1:], strict=False))
        if not self.beams or self.beams[0] <= 0 or not wider:
            raise UserError(
                f"beams {list(self.beams)} for a search and its repetitions",
                remedy="name at least one; positive, each wider than the one before",
            )

    @classmethod
    def from_options(
        cls, beam: float, on_no_final: str, retry_beam_factor: float
    ) -> RetryPolicy:
        """The policy of the options of section `decode`.

        Args:
            beam: of the first search.
            on_no_final: `retry` (search again with a wider beam and take what there
                is), `partial` (take what there is) or `fail` (take complete paths
                only).
            retry_beam_factor: factor of the beam in the second search.
        """
        if on_no_final == "retry":
            return cls((float(beam), float(beam) * float(retry_beam_factor)))
        return cls((float(beam),), allow_partial=on_no_final == "partial")

    def run(
        self, search: Callable[[float], Decoded], *, utterance: str | None = None
    ) -> Attempt:
        """Search with one beam after the other.

        If every search dies, or only incomplete paths are found and these are not
        allowed, the attempt holds an error. A lattice of incomplete paths from a
        narrow beam is kept if the search with a wider one dies.

        Args:
            search: decodes the utterance with the given beam.
            utterance: named in errors.
        """
        decoded: Decoded | None = None
        error: UserError | None = None
        beam, num_tries = self.beams[0], 0
        for beam in self.beams:
            num_tries += 1
            try:
                decoded = search(beam)
            except UserError as failure:
                error = failure
                continue
            if decoded.reached_final:
                return Attempt(decoded, None, beam, num_tries)
        if decoded is not None and self.allow_partial:
            return Attempt(decoded, None, beam, num_tries)
        if decoded is not None:
            error = UserError(
                f"no final state of the graph is reached within beam {beam:g}",
                utterance=utterance,
                remedy="widen decode.beam, or set decode.on_no_final to retry",
            )
        return Attempt(None, error, beam, num_tries)
