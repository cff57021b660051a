"""Features of a corpus, stored or computed when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from latflow.features.frames import CUTS, FrameStore
from latflow.features.options import OnTheFlyOptions

if TYPE_CHECKING:
    from latflow.features.live import LiveFrames

Frames: TypeAlias = "FrameStore | LiveFrames"  # for stages that read both


def open_frames(
    folder: str | Path,
    on_the_fly: OnTheFlyOptions | None = None,
    *,
    threads: int | None = None,
) -> Frames:
    """Open features, stored or computed on the fly, whichever the folder is of.

    Args:
        folder: what `compute_cmvn` or `prepare_live_features` wrote, or a `FrameStore`.
        on_the_fly: of the computation of the latter.
        threads: instead of those of `on_the_fly`; None for these.

    Raises:
        UserError: the folder is of neither kind.
    """
    if not (Path(folder) / CUTS).is_file():
        return FrameStore.load(folder)
    # Imported here: it brings Lhotse, which stages with stored frames start without.
    from latflow.features.live import LiveFrames

    options = on_the_fly or OnTheFlyOptions()
    return LiveFrames(
        folder,
        threads=max(1, options.threads if threads is None else threads),
        device=options.device,
        cache_bytes=options.cache_mb * 10**6,
    )
