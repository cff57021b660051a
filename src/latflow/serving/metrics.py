"""Measurements of a server, in Prometheus' text form.

Several processes of a server write theirs to files of a folder, so that each can report
those of all (`PROMETHEUS_MULTIPROC_DIR`, which must be set before this is imported).
"""

from __future__ import annotations

import os

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from latflow.serving.scoring import Observer

_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.12, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
_CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics(Observer):
    """Counts of a server; each has its own registry."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._sessions = Gauge(
            "latflow_sessions",
            "Open sessions.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._opened = Counter(
            "latflow_sessions_opened", "Sessions begun.", registry=registry
        )
        self._refused = Counter(
            "latflow_refusals",
            "Connections and requests that were refused, by reason.",
            ["reason"],
            registry=registry,
        )
        self._finals = Counter(
            "latflow_finals", "Segments recognized.", registry=registry
        )
        self._audio = Counter(
            "latflow_audio_seconds", "Audio received.", registry=registry
        )
        self._replies = Histogram(
            "latflow_reply_seconds",
            "Time from a message to its reply, by kind of reply.",
            ["kind"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._batches = Histogram(
            "latflow_batch_chunks",
            "Chunks in a call of the network.",
            buckets=_CHUNKS,
            registry=registry,
        )
        self._network = Histogram(
            "latflow_network_seconds",
            "Time of a call of the network.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._search = Histogram(
            "latflow_search_seconds",
            "Time of a step of a session: features, search, results.",
            buckets=_SECONDS,
            registry=registry,
        )

    def opened(self) -> None:
        """Count a new session."""
        self._sessions.inc()
        self._opened.inc()

    def closed(self) -> None:
        """Count a session's end."""
        self._sessions.dec()

    def scored(self, chunks: int, seconds: float) -> None:
        """Count a batch of the network."""
        self._batches.observe(chunks)
        self._network.observe(seconds)

    def searched(self, seconds: float) -> None:
        """Count a step of a session."""
        self._search.observe(seconds)

    def refused(self, reason: str) -> None:
        """Count a refusal."""
        self._refused.labels(reason).inc()

    def add_audio(self, seconds: float) -> None:
        """Count audio received."""
        self._audio.inc(seconds)

    def replied(self, seconds: float, *, finals: int) -> None:
        """Count a reply that ended this many segments."""
        self._replies.labels("final" if finals else "partial").observe(seconds)
        self._finals.inc(finals)

    def text(self) -> bytes:
        """Return all measurements, of all processes of the server."""
        registry = self._registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry)
