"""Records in an experiment's folder: what the report reads of its JSON files.

Of each file the fields that the report shows, with their types. Files have more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Scale = Literal["lmwt", "wip"]


class _Fields(BaseModel):
    """Fields of a JSON object; its others are not looked at."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Bounds(_Fields):
    """The interval of a word error rate."""

    by: str


class WordErrors(_Fields):
    """`score/<system>/<set>/wer.json`."""

    confidence_interval: Bounds


class WordErrorRate(_Fields):
    """The rate of the same file, per cent; None without words."""

    wer: float | None


class ServedBounds(_Fields):
    """The interval of a rate, per cent; None without words."""

    low: float | None
    high: float | None


class ServedErrors(WordErrorRate):
    """`served/<system>/<set>/wer.json`."""

    insertions: int = Field(alias="ins")
    deletions: int = Field(alias="del")
    substitutions: int = Field(alias="sub")
    confidence_interval: ServedBounds


class Scales(_Fields):
    """`tune/<system>/scales.json`."""

    lmwt: float
    wip: float
    wer: float | None = None
    at_edge: tuple[Scale, ...] = ()

    @property
    def edges(self) -> list[tuple[Scale, float]]:
        """The scales whose best value is an end of those tried, and these values."""
        return [(name, getattr(self, name)) for name in self.at_edge]


class Percentiles(_Fields):
    """Lattice depths of utterances, arcs a frame."""

    low: float = Field(alias="5")
    high: float = Field(alias="95")


class Lattices(_Fields):
    """`score/<system>/<set>/lattices.json`; rates in per cent, None without words."""

    best_wer: float | None
    oracle_wer: float | None
    depth: float
    depth_percentiles: Percentiles


class Factors(_Fields):
    """Processor time over the duration of the speech."""

    both: float | None = None
    search: float | None = None


class Decoding(_Fields):
    """`decode/<system>/<set>/decode.json`."""

    utterances: int | None = None
    audio_seconds: float
    wall_seconds: float | None = None
    threads: int | None = None
    beam: float | None = None
    acoustic_scale: float | None = None
    mean_active_tokens: float | None = None
    mean_lattice_depth: float | None = None
    real_time_factor_per_core: Factors = Factors()
    other_cpu_seconds: dict[str, float] = {}

    @property
    def real_time_factor(self) -> float | None:
        """Processor time of all passes over the duration of the speech, if known."""
        factor = self.real_time_factor_per_core.both
        if factor is None:
            return None
        other = sum(self.other_cpu_seconds.values())
        return factor + other / max(self.audio_seconds, 1e-9)


class PhoneStatistics(_Fields):
    """Occurrences of a phone in an alignment, and their durations in frames."""

    occurrences: int
    frames: int
    mean_frames: float
    p5_frames: float
    median_frames: float
    p95_frames: float


class Alignment(_Fields):
    """`align/<system>/<set>/statistics.json`; seconds from frame to frame."""

    model_config = ConfigDict(extra="allow")

    frame_shift: float
    phones: dict[str, PhoneStatistics]


class Outliers(_Fields):
    """What a training does about steps that are far off."""

    action: Literal["skip", "clip"]


class Training(_Fields):
    """Options of a training that the report shows, where they are set."""

    ensemble: int = 1
    outliers: Outliers | None = None


class NetworkOptions(_Fields):
    """Options of a network's stage."""

    training: Training = Training()


class NetworkMeta(_Fields):
    """`nnet/<system>/meta.json`."""

    dim_in: int = Field(gt=0)
    classes: dict[str, int]
    num_parameters: int | None = None
    scales: dict[str, Any] | None = None
    options: NetworkOptions = NetworkOptions()
    outliers: tuple[Any, ...] = ()


class Supervisions(_Fields):
    """`chain/<system>/supervisions/<set>/meta.json`."""

    num_utterances: int
    refused: int = 0


class GraphSizes(_Fields):
    """`graph/<system>/HCLG.json`, and what the denominator's has beside it."""

    states: int
    arcs: int


class DenominatorSizes(GraphSizes):
    """`denominator/<system>/HCLG.json`."""

    lm_order: Literal[1, 2]
    lm_words: int
    lm_ngrams: tuple[int, ...]
    train_perplexity: float


class Drift(_Fields):
    """How far the alignments of a phone have moved; shares of its frames."""

    frames: int
    pdf_changed: float
    phone_changed: float


class Cleaned(_Fields):
    """What cleaning has kept of a set, and dropped by reason."""

    seconds: float
    kept_seconds: float
    dropped_seconds: dict[str, float]
    utterances: int
    whole_utterances: int
    cut_utterances: int


class Perplexities(_Fields):
    """Perplexities of dev by a neural model, an n-gram model, and their mixture."""

    neural: float
    ngram: float
    mixture: float


class Mixture(_Fields):
    """`lm/<name>.mixture.json`."""

    weight: float
    perplexity: Perplexities


class PackageRescoring(_Fields):
    """The second language model of a package."""

    lm: str


class Package(_Fields):
    """`package/<system>/package.json`; of one that only aligns, without scales."""

    sample_rate: int
    lmwt: float | None
    wip: float | None
    why_not_streaming: str | None
    rescoring: PackageRescoring | None = None
    confidences: tuple[tuple[float, float], ...] = ()


class Output(_Fields):
    """A file that a job has written."""

    size: int = Field(alias="bytes", ge=0)


class Job(_Fields):
    """`provenance/<rule>/<job>.json`."""

    wildcards: dict[str, str] = {}
    inputs: tuple[str, ...] = ()
    outputs: dict[str, Output] = {}
    params: dict[str, Any] = {}
    versions: dict[str, str] = {}
    code_digest: Any = None
    cpu_seconds: float | None = None
    peak_memory_mib: float | None = None
    read_mib: float | None = None
    written_mib: float | None = None
    gpu_share: float | None = None


class Benchmark(_Fields):
    """A line of Snakemake's `benchmarks/<rule>/<job>.jsonl`.

    Of what it has not measured it writes `NA`, or null.
    """

    s: float | Literal["NA"] | None = None
    cpu_time: float | Literal["NA"] | None = None
    max_rss: float | Literal["NA"] | None = None
    io_in: float | Literal["NA"] | None = None
    io_out: float | Literal["NA"] | None = None


class _Line(_Fields):
    """A line of a training's log; its other values are numbers."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float]  # pyright: ignore[reportIncompatibleVariableOverride]

    kind: str
    epoch: int
    batch: int


class StepLine(_Line):
    """Means of the steps since the line before; `time` has shares of it."""

    step: int
    frames: float
    loss: float
    learning_rate: float
    frames_per_second: float = Field(gt=0)
    time: dict[str, float]


class EpochLine(_Line):
    """Means of an epoch, and of dev at its end."""

    step: int
    train: dict[str, float]
    dev: dict[str, float]
    learning_rate: float


class DevLine(_Line):
    """Means of dev within an epoch."""

    dev: dict[str, float]


class FinalLine(_Fields):
    """The end of a training: epochs whose parameters the network has."""

    kind: str
    epochs: list[int]


#: Kind of a line of `log.jsonl` -> what lines of this kind have.
LINES: Mapping[str, type[_Line | FinalLine]] = {
    "step": StepLine,
    "epoch": EpochLine,
    "dev": DevLine,
    "final": FinalLine,
}
