"""Saliency: what of its features a network's decision rests on.

Of an utterance with features x [T, D] (normalized, as the network sees them) and the
class c(t) that the network finds likeliest in each frame t of its output,

    saliency(s, d) = | d/dx(s, d)  sum over t of log p(c(t) | x) |

or, of one output frame t alone, without the sum: how far a look-ahead or a recurrent
layer is in use. Of LF-MMI, scores take the place of the log posteriors.

Source: Simonyan, Vedaldi & Zisserman 2014, "Deep inside convolutional networks".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.training.forward import Forward

_SUFFIXES = (".pdf", ".png", ".svg")


def saliency(
    forward: Forward, utterance: str, frame: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return an utterance's normalized features, and their saliency.

    Args:
        forward: network and frames.
        utterance: its id.
        frame: of the output, from 0; None for the sum over all.

    Returns:
        float32 [T, D] each.

    Raises:
        UserError: there is no such utterance or frame, or the network scores no frames.
    """
    store, network = forward.store, forward.model.network
    name, output = next(iter(network.outputs.items()))
    if output.loss.name == "attention":
        raise UserError(
            "a decoder with attention scores no frames",
            file=store.folder,
            remedy="name a network of another type",
        )
    try:
        number = store.position(utterance)
    except KeyError:
        raise UserError(
            "is not in this set", file=store.folder, utterance=utterance
        ) from None
    features, lengths = forward.padded([number])
    features.requires_grad_()
    # cuDNN's recurrent layers go backward in training mode alone
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        found = network(features, lengths, layers=[name])[name]
        scores = found.logits[0, : int(found.lengths[0])].float()
        if frame is not None and not 0 <= frame < len(scores):
            raise UserError(
                f"no frame {frame}: the output has {len(scores)}",
                utterance=utterance,
                remedy="count from 0",
            )
        if output.loss.name != "lfmmi":
            scores = torch.log_softmax(scores, 1)
        best = scores.amax(1)
        total = best.sum() if frame is None else best[frame]
        (gradient,) = torch.autograd.grad(total, features)
    seen = features.detach()[0].cpu().numpy()
    return seen, gradient[0].abs().cpu().numpy()


def draw_saliency(
    forward: Forward, utterance: str, out: str | Path, frame: int | None = None
) -> None:
    """Draw the features of an utterance, and below them their saliency.

    Args:
        forward: network and frames.
        utterance: its id.
        out: picture to write: `.svg`, `.png` or `.pdf`.
        frame: see `saliency`.

    Raises:
        UserError: see `saliency`; or another kind of picture.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    out = Path(out)
    if out.suffix not in _SUFFIXES:
        raise UserError(
            "is not a name of a picture",
            file=out,
            remedy=f"end it in {', '.join(_SUFFIXES)}",
        )
    seen, found = saliency(forward, utterance, frame)
    seconds = len(seen) * forward.store.frame_shift
    figure = Figure(figsize=(min(24.0, 3.0 + 3.0 * seconds), 5.0), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, sharey=True)
    place = (0.0, seconds, -0.5, seen.shape[1] - 0.5)
    for axes, values, title in (
        (upper, seen, f"{utterance}: features, normalized"),
        (lower, found, "saliency" if frame is None else f"saliency for frame {frame}"),
    ):
        picture = axes.imshow(values.T, origin="lower", aspect="auto", extent=place)
        figure.colorbar(picture, ax=axes)
        axes.set_title(title)
        axes.set_ylabel("feature")
    lower.set_xlabel("seconds")
    # no date and no random ids: the same picture has the same bytes
    settings: Any = {"svg.hashsalt": "latflow", "text.parse_math": False}
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with mpl.rc_context(settings), atomic_output(out) as path:
        figure.savefig(path, format=out.suffix[1:], metadata=metadata.get(out.suffix))
