"""The i-vectors that Vosk gives a network, as its decoder asks for them.

Vosk takes audio in pieces of 0.2 s. It weighs frames by what the decoder holds for
silence, here for none: almost not at all before the first score, then fully. Scores
come in chunks, and each chunk brings the i-vector of all frames that were there.
"""

from collections import defaultdict

import numpy as np

SILENCE_WEIGHT = 1e-3
SUBSAMPLING = 3
CHUNK = 24  # frames: what libvosk 0.3.45 has without `--frames-per-chunk`


def _normalized(frames, stats, window=600, global_frames=200):
    """Each frame less the mean of those up to it, and at first of all training."""
    found = []
    for t in range(len(frames)):
        heard = frames[max(0, t + 1 - window) : t + 1].astype(float)
        weight = min(global_frames, window - len(heard))
        sums = heard.sum(0) + weight * stats[0, :-1] / stats[0, -1]
        found.append(frames[t] - sums / (len(heard) + weight))
    return np.array(found, np.float32)


class _Statistics:
    """I-vectors of frames that are counted with weights, which may change later."""

    def __init__(self, model, frames):
        self._model, self._frames = model, model.projection(frames)
        self._chosen_on = self._frames
        if model.cmvn is not None:
            chosen_on = _normalized(frames, model.cmvn_stats)
            self._chosen_on = model.projection(chosen_on)
        self._past = model.begin()
        self._waiting = defaultdict(float)
        self._num_seen = 0
        self._vector = np.zeros(model.extractor.dim)

    def weigh(self, frame, change):
        self._waiting[frame] += change

    def until(self, last):
        """The i-vector of the frames up to `last`."""
        if last >= self._num_seen:
            for frame in sorted(f for f in self._waiting if f <= last):
                self._count(frame, self._waiting.pop(frame))
            self._num_seen = last + 1
            past, extractor = self._past, self._model.extractor
            self._vector = (
                extractor.posterior(
                    past.occupancy[None],
                    past.first[None],
                    self._model.options.max_count,
                )[0][0]
                - extractor.offset * np.eye(extractor.dim)[0]
            )
        return self._vector

    def _count(self, frame, weight):
        """Share a frame out, with a threshold that grows as its weight shrinks."""
        if not weight:
            return
        options, x = self._model.options, self._chosen_on[frame]
        ubm = self._model.ubm
        scores = ubm.gconsts + ubm.means_invvars @ x - ubm.inv_vars @ (x * x) / 2
        best = np.sort(scores)[-min(options.num_gselect, len(scores)) :]
        shares = np.where(scores >= best[0], np.exp(scores - best[-1]), 0.0)
        shares /= shares.sum()
        least = min(options.min_post / abs(weight), 0.99)
        shares[(shares < least) & (shares < shares.max())] = 0.0
        shares *= options.posterior_scale * weight / shares.sum()
        self._past.occupancy += shares
        self._past.first += shares[:, None] * self._frames[frame]


def vosk_frames(model, frames, num_ready, right):
    """Frames with Vosk's i-vectors, and as many behind the end as a network sees.

    Args:
        model: an `IvectorModel`.
        frames: float32 [T, D].
        num_ready: frames that are there after each piece of audio.
        right: frames behind the present one that the network sees.
    """
    context, vectors, weights = model.projection.context, [], []
    statistics, num_chunks, num_scores = _Statistics(model, frames), 0, 0
    pieces = [(ready, False) for ready in num_ready] + [(len(frames), True)]
    for ready, is_over in pieces:
        weights += [0.0] * (-(-ready // SUBSAMPLING) - len(weights))
        weight = 1.0 if num_scores else SILENCE_WEIGHT
        for i, old in enumerate(weights):
            for frame in range(i * SUBSAMPLING, (i + 1) * SUBSAMPLING):
                statistics.weigh(frame, weight - old)
            weights[i] = weight
        per_chunk = CHUNK // SUBSAMPLING
        whole = max(0, ready - right) // CHUNK * per_chunk
        num_scores = -(-ready // SUBSAMPLING) if is_over else whole
        while num_chunks * per_chunk < num_scores:
            last = ready - 1 if is_over else ready - context - 1
            vector = statistics.until(last)
            num_chunks += 1
            end = num_chunks * CHUNK + right
            vectors += [vector] * (-(-end // CHUNK) - len(vectors))
    numbers = np.arange(num_chunks * CHUNK + right)
    there = frames[numbers.clip(max=len(frames) - 1)]
    behind = np.array(vectors)[numbers // CHUNK]
    return np.hstack((there, behind)).astype(np.float32)
