"""The references of a set of utterances, read from its cuts.

Public: `References`, `read_references`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lhotse import CutSet

from latflow.errors import UserError


@dataclass(frozen=True)
class References:
    """What was said, by whom.

    Attributes:
        words: of each utterance id.
        speakers: of each utterance id.
        frame_shift: of the features, seconds.
    """

    words: dict[str, list[str]]
    speakers: dict[str, str]
    frame_shift: float


def read_references(cuts: str | Path) -> References:
    """Read the texts, speakers and frame shift of a set.

    Args:
        cuts: manifest with one supervision a cut and features attached.

    Raises:
        UserError: the manifest is missing or empty, an id occurs twice, or a cut has no
            features or not one supervision.
    """
    if not Path(cuts).is_file():
        raise UserError("no such file", file=cuts, remedy="run the target features")
    words: dict[str, list[str]] = {}
    speakers: dict[str, str] = {}
    frame_shift = None
    for cut in CutSet.from_jsonl_lazy(cuts):
        if cut.id in words:
            raise UserError(
                "utterance occurs twice",
                file=cuts,
                utterance=cut.id,
                remedy="give each utterance its own id",
            )
        if len(cut.supervisions) != 1 or cut.frame_shift is None:
            raise UserError(
                "cut needs one supervision and features",
                file=cuts,
                utterance=cut.id,
                remedy="remove the file and extract the features again",
            )
        supervision = cut.supervisions[0]
        words[cut.id] = str(supervision.text or "").split()
        speakers[cut.id] = str(supervision.speaker or "unknown")
        frame_shift = frame_shift or cut.frame_shift
    if frame_shift is None:
        raise UserError(
            "no utterance to score", file=cuts, remedy="check the set's corpus"
        )
    return References(words, speakers, frame_shift)
