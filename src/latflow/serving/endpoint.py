"""Endpoints of segments, by Kaldi's five rules.

Source: Kaldi `online2/online-endpoint.{h,cc}`.
"""

from __future__ import annotations

import numpy as np

from latflow.decode.options import EndpointOptions, EndpointRule
from latflow.decode.streaming import Session as Search


def fired_rule(
    options: EndpointOptions,
    *,
    length: float,
    trailing_silence: float,
    relative_cost: float,
) -> int:
    """Return the first rule that ends a segment, 1 to 5; 0 for none.

    Args:
        options: the rules.
        length: of the segment, seconds.
        trailing_silence: at its end, on the best path, seconds.
        relative_cost: of the best path to a final state over the best path; inf where
            no final state is reached.
    """
    rules = (
        options.rule1,
        options.rule2,
        options.rule3,
        options.rule4,
        options.rule5,
    )
    for number, rule in enumerate(rules, start=1):
        if _holds(rule, length, trailing_silence, relative_cost):
            return number
    return 0


def _holds(
    rule: EndpointRule, length: float, trailing_silence: float, relative_cost: float
) -> bool:
    """Return whether all parts of a rule hold."""
    most = np.inf if rule.max_relative_cost is None else rule.max_relative_cost
    return bool(
        (length > trailing_silence or not rule.must_contain_nonsilence)
        and trailing_silence >= np.float32(rule.min_trailing_silence)
        and relative_cost <= most
        and length >= np.float32(rule.min_utterance_length)
    )


class EndpointDetector:
    """Tells when segments end; shared by sessions of a model.

    Args:
        options: the rules.
        is_silence: bool, of each transition-id, see `Model.is_silence`.
        frame_shift: seconds from frame to frame of the search.
    """

    def __init__(
        self, options: EndpointOptions, is_silence: np.ndarray, frame_shift: float
    ) -> None:
        self._options = options
        self._is_silence = is_silence
        self._frame_shift = np.float32(frame_shift)

    def trailing_silence(self, transition_ids: np.ndarray) -> int:
        """Return the frames of silence at the end of a path, of int32[T] ids.

        Source: Kaldi `TrailingSilenceLength`.
        """
        speech = np.flatnonzero(~self._is_silence[transition_ids])
        return len(transition_ids) - (int(speech[-1]) + 1 if len(speech) else 0)

    def rule(self, search: Search, transition_ids: np.ndarray) -> int:
        """Return the rule by which a search ends where it is; 0 if it continues.

        Times are products in float32, as in Kaldi, so that the rules hold from the
        same frame on.

        Args:
            search: with some frames searched.
            transition_ids: of its best path, final costs not counted, int32[T].
        """
        silence = self.trailing_silence(transition_ids)
        return fired_rule(
            self._options,
            length=float(np.float32(len(transition_ids)) * self._frame_shift),
            trailing_silence=float(np.float32(silence) * self._frame_shift),
            relative_cost=search.final_relative_cost(),
        )
