"""Posteriors of frames, and their loss, by HTTP (`--evaluate`)."""

from __future__ import annotations

import asyncio
import io
import logging
import zipfile
from dataclasses import replace
from typing import Any, cast

import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from latflow.files import DAMAGED
from latflow.serving.acoustics import NetworkAcoustics
from latflow.serving.requests import GONE, limited
from latflow.serving.service import RefusedError, Service

log = logging.getLogger("latflow")


async def evaluate(request: Request, service: Service) -> Response:
    """Answer `POST /v1/evaluate`: a network's scores of frames, and their loss.

    The body is a `.npz` archive of numpy: `samples` (one-dimensional, int16, or float
    in [-1, 1], at the model's rate) or `features` (frames x dimension, as the model's
    front end gives them), and for the loss `alignment`, the pdf of each frame of the
    scores. The query's `output` is `loss` (JSON), `posteriors` or `log_likelihoods`
    (`.npz`, under that name).
    """
    output = request.query_params.get("output", "loss")
    if output not in _OUTPUTS:
        raise RefusedError(f"output {output!r} is not one of {', '.join(_OUTPUTS)}")
    try:
        async with limited(request, service) as body_of:
            body = await body_of.body()
            async with service.evaluations:
                limit = service.options.max_upload
                arrays = await asyncio.to_thread(_read_arrays, body, limit)
                return await asyncio.to_thread(_evaluate, service, arrays, output)
    except ClientDisconnect:
        return Response(status_code=GONE)


_OUTPUTS = ("loss", "posteriors", "log_likelihoods")


def _read_arrays(body: bytes, limit: int) -> dict[str, np.ndarray]:
    """Read the arrays of an archive, whose bytes, unpacked, have a limit, too."""
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            if sum(info.file_size for info in archive.infolist()) > limit:
                raise RefusedError("the arrays are too large", "upload size")
        with np.load(io.BytesIO(body), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except DAMAGED as error:
        raise RefusedError(f"the body is not a .npz archive: {error}") from None


def _evaluate(service: Service, arrays: dict[str, np.ndarray], output: str) -> Response:
    """Return what was asked for of frames."""
    acoustics = service.model.acoustics
    frames = _frames(service, arrays)
    if output == "log_likelihoods":
        return _archive(log_likelihoods=_finite(acoustics.log_likes(frames)))
    if not isinstance(acoustics, NetworkAcoustics):
        raise RefusedError("the model has no network")
    if acoustics.network.gives_log_likelihoods:
        raise RefusedError(
            "the network was trained by LF-MMI: its outputs are not posteriors"
        )
    log_posteriors = _finite(replace(acoustics, prior_scale=0.0).log_likes(frames))
    if output == "posteriors":
        return _archive(posteriors=np.exp(log_posteriors))
    alignment = arrays.get("alignment")
    rows, columns = log_posteriors.shape
    if alignment is None or alignment.dtype.kind not in "iu":
        raise RefusedError("the loss needs alignment, an array of integers")
    if alignment.shape != (rows,):
        raise RefusedError(
            f"alignment has shape {alignment.shape}, the scores have {rows} rows"
        )
    if rows == 0 or alignment.min() < 0 or alignment.max() >= columns:
        raise RefusedError(f"alignment has pdfs outside 0 to {columns - 1}, or none")
    picked = log_posteriors[np.arange(rows), alignment]
    is_right = log_posteriors.argmax(axis=1) == alignment
    return JSONResponse(
        {
            "frames": rows,
            "loss": -float(picked.mean(dtype=np.float64)),
            "accuracy": float(is_right.mean()),
        }
    )


def _finite(scores: np.ndarray) -> np.ndarray:
    """Return scores of frames; refuse a model that gives no numbers."""
    if not np.isfinite(scores).all():
        log.error("the model's scores of frames are not finite")
        raise RefusedError("the model's scores are not finite", "failure")
    return scores


def _frames(service: Service, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Return the features that were sent, or those of the samples."""
    if "features" in arrays:
        features = arrays["features"]
        wanted = service.model.front_end().accept(np.zeros(0, np.float32)).shape[1]
        if features.dtype.kind != "f" or features.shape[1:] != (wanted,):
            raise RefusedError(f"features must be floats, frames x {wanted}")
        if not np.isfinite(features).all():
            raise RefusedError("features hold values that are not finite")
        return features.astype(np.float32)
    samples = arrays.get("samples")
    if samples is None or samples.ndim != 1 or samples.dtype.kind not in "if":
        raise RefusedError("the archive needs features, or samples of one dimension")
    if not np.isfinite(samples).all():
        raise RefusedError("samples hold values that are not finite")
    scale = 1 if samples.dtype.kind == "f" else 32768
    front_end = service.model.front_end()
    head = front_end.accept((samples / scale).astype(np.float32))
    return np.concatenate([head, front_end.finish()])


def _archive(**arrays: np.ndarray) -> Response:
    """Return arrays as an `.npz` archive."""
    stream = io.BytesIO()
    np.savez(stream, **cast("dict[str, Any]", arrays))
    return Response(stream.getvalue(), media_type="application/x-npz")
