"""The whole recipe as one typed value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from latflow.align.options import AlignSplitOptions, ExportOptions, SuspectOptions
from latflow.decode.options import (
    BiasedDecodeOptions,
    DecodeOptions,
    EndpointOptions,
    RecordingsOptions,
)
from latflow.errors import UserError
from latflow.features.options import FeatureOptions, GmmFeatures, PasteOptions, Stream
from latflow.gmm.options import GmmOptions, IvectorOptions, MapOptions
from latflow.graphs.options import DenominatorOptions, GraphOptions
from latflow.lang.options import LangOptions, LmOptions
from latflow.options import (
    Fraction,
    Free,
    Name,
    NonNegativeInt,
    Options,
    PositiveFloat,
    PositiveInt,
    Text,
    Unique,
    read_options,
)
from latflow.scoring.options import ScoreOptions
from latflow.simulation.options import CorpusSectionOptions
from latflow.training.data_options import Hdf5Options
from latflow.training.options import (
    AttentionSystemOptions,
    CeSystemOptions,
    CtcSystemOptions,
    LfmmiSystemOptions,
    SequenceSystemOptions,
)

NetworkSystemOptions = Annotated[
    AttentionSystemOptions
    | CeSystemOptions
    | CtcSystemOptions
    | LfmmiSystemOptions
    | SequenceSystemOptions,
    Field(discriminator="type"),
]


FilePattern = Annotated[str, Field(pattern="^[^{}*]+$")]


class DownloadOptions(Options):
    """A file that is fetched before it is used."""

    url: Annotated[str, Field(pattern="^(https?|ftp|file)://")]
    """Source of the file, if it is not there yet."""


class NnetOptions(Options):
    """Networks: the features that they read, their layers, and their training."""

    device: Free[Literal["auto", "cpu", "cuda"]] = "auto"
    """Device that networks train and score on: `cpu`, `cuda`, or `auto` for a GPU where
    there is one."""
    backend: Free[Literal["auto", "horovod", "torch"]] = "auto"
    """Library that joins the ranks of a training: `horovod`, `torch`
    (torch.distributed), or `auto` for Horovod where it is installed. A training of one
    rank needs neither."""
    features: dict[Name, Stream] = Field(default_factory=dict)
    """Features for networks by name, beside those of the GMM systems (section
    `features`)."""
    ivectors: dict[Name, IvectorOptions] = Field(default_factory=dict)
    """Features of networks that are followed, in each frame, by an i-vector of the
    speaker, by name (see docs/network_data.md)."""
    hdf5: dict[Name, Hdf5Options] = Field(default_factory=dict)
    """Features of networks, and labels, from HDF5 files of RETURNN's layout, by name
    (see docs/network_data.md)."""
    pasted: dict[Name, PasteOptions] = Field(default_factory=dict)
    """Features of several streams side by side, for networks with several inputs, by
    name (see docs/network_data.md)."""
    denominator: DenominatorOptions = DenominatorOptions()
    """The decoding graph that lattices are made with in training, from a weak language
    model of the training transcripts."""
    align: AlignSplitOptions = AlignSplitOptions()
    """Alignment of whole splits with a finished network."""
    systems: dict[Name, NetworkSystemOptions] = Field(default_factory=dict)
    """Networks by name, in the order of training."""


class ReportOptions(Options):
    """Contents of the results report; the report itself is always written."""

    num_examples: Annotated[int, Field(ge=0, le=100)] = 12
    """Utterances shown with audio, spectrogram, phones and words; each adds some 100 kB
    per five seconds of speech."""
    max_example_duration: Annotated[float, Field(gt=0, le=60)] = 10.0
    """Longest utterance shown as an example, in seconds."""
    num_simulated: Annotated[int, Field(ge=0, le=20)] = 1
    """Utterances of `corpus.simulated` that are shown, as they are beside what the
    simulated sets have of them, and of each training set that systems simulate, beside
    what these read in their first epoch; each adds as much as an example, a set and a
    system."""
    example_set: str | None = None
    """Set that the examples, speakers, confusions and worst utterances are from; the
    first test set if null (examples to hear: the first set with short ones)."""
    example_system: str | None = None
    """System that the examples, speakers, confusions and worst utterances are from; the
    one to ship if null, or the last where none is chosen."""
    baselines: dict[str, str] = Field(default_factory=dict)
    """Systems that others are compared with, by the name of the other: what training on
    more, or otherwise, is worth. A network that is not here is compared with the one
    that it starts from, or with the GMM system behind its labels."""
    num_confusions: Annotated[int, Field(ge=1, le=500)] = 15
    """Rows of each table of confusions."""
    num_utterances: Annotated[int, Field(ge=1, le=5000)] = 100
    """Utterances with the most errors that are listed."""


class PackageSectionOptions(Options):
    """Model packages: systems that leave the workflow (see docs/serving.md)."""

    systems: Annotated[tuple[Name, ...], Unique] = ()
    """Systems that are packaged, to `results/<experiment>/package/<system>/`."""
    offline: bool = False
    """Package systems, too, that cannot be streamed since they need a recording as a
    whole; servers refuse them."""
    rescore: Name | None = None
    """N-gram model of `decode.rescore` that the lattices of finished segments are
    rescored with."""
    g2p: bool | Text = False
    """Let packages pronounce words that sessions bring without phones: true by the
    model of `lang.g2p.model`, or one of the lexicon; or a model's path. For networks of
    LF-MMI, with `decode.composition: lookahead`."""
    licence: str | None = None
    """Text file with the terms of use of the data, which goes along."""
    endpoint: EndpointOptions = EndpointOptions()
    """Rules that end a segment of a stream."""


class CapacityOptions(Options):
    """Sessions that servers of packages hold, measured here (see docs/load-test.md)."""

    systems: Annotated[tuple[Name, ...], Unique] = ()
    """Packaged systems that are measured; none by default, since each takes minutes and
    wants the machine for itself."""
    test_set: Name | None = None
    """Set whose utterances are spoken; the first test set if null."""
    utterances: PositiveInt = 500
    """Greatest number of utterances that are used."""
    p95: PositiveFloat = 0.12
    """Greatest latency of 95 of 100 final results, seconds."""
    seconds: PositiveFloat = 20.0
    """Duration of each trial."""
    chunk: PositiveFloat = 0.1
    """Speech in a message, seconds."""
    sessions: PositiveInt = 2
    """Number of sessions that is tried first."""
    max_sessions: PositiveInt = 1000
    """Greatest number of sessions that is tried."""


class SuspectSectionOptions(SuspectOptions):
    """Utterances that look wrong (see docs/suspects.md).

    They are listed in `results/<experiment>/suspects/<set>/`.
    """

    sets: Annotated[tuple[Text, ...], Unique] = ()
    """Sets that are searched, such as `train`; none by default."""
    system: Name | None = None
    """GMM system whose alignments are used; the last one if null."""
    biased_decoding: BiasedDecodeOptions | None = None
    """Decoding of the sets against their own transcripts, to find wrong words; `{}` for
    that of Kaldi's clean-up, null for none."""
    num_examples: Annotated[int, Field(ge=0, le=100)] = 10
    """Utterances of each set that the report plays."""


class ExportSectionOptions(ExportOptions):
    """Alignments that are written as TextGrids, CTM and JSON (see docs/align.md).

    They are in `results/<experiment>/alignments/<system>/<set>/`.
    """

    systems: Annotated[tuple[Name, ...], Unique] = ()
    """Systems, GMMs or networks, whose alignments are exported."""
    sets: Annotated[tuple[Text, ...], Field(min_length=1), Unique] = ("train",)
    """Sets whose alignments are exported."""
    boundaries: Literal["refined", "frames"] = "refined"
    """Times of phones: `frames` has those of the alignment's frames; `refined` moves
    them, by 40 ms at most, to where short windows of the audio fit best."""
    package: Text | None = None
    """Folder of a model package (see docs/serving.md) that aligns the sets, too, with
    the lexicon of the section `lang`; its name as a system is `package`."""
    trust_code: bool = False
    """Run code that the package names: layers and extractors that are not latflow's."""
    adapt: MapOptions | None = None
    """Adaptation of the package, of a GMM system, to each set before it is aligned;
    `{}` for the usual one, null for none. The adapted package is
    `results/<experiment>/adapted/<set>/`."""


class NumJobsOptions(Options):
    """Jobs that share the work of a stage on a set (Kaldi's `nj`).

    Each goes over a part of the set, on its own machine where there are several; a
    further job joins what they have written, to the same bytes as without (see
    docs/cluster.md).
    """

    extraction: PositiveInt = 1
    """Jobs that compute the stored features of a set."""
    alignment: PositiveInt = 1
    """Jobs that align a set with a system, GMM or network."""
    decoding: PositiveInt = 1
    """Jobs that decode a set with a system; decoders with attention take one."""


class CacheOptions(Options):
    """Results that experiments share (see docs/reproducibility.md).

    What a job would write is taken from another experiment whose job had the same
    settings, code and inputs.
    """

    enabled: Free[bool] = True
    """Take results of other experiments, and keep results for them."""
    folder: Free[str | None] = None
    """Folder of the results that are shared; `results/.cache` if null. One that a team
    shares should be on the disk of its experiments: there results are hard links, of
    which the disk has one copy."""
    days: Free[Annotated[float, Field(ge=0)]] = 7
    """Days that a result is kept which no experiment has, or has used, any more."""


class LedgerOptions(Options):
    """Utterances that a stage may leave out before it fails."""

    max_skipped_fraction: Fraction = 0.05
    """Largest share of a split's utterances that one stage may skip (each is in its
    ledger). What is finished stays when it is changed; a run says which finished steps
    have skipped more than a lower one allows."""


class Experiment(Options):
    """A recipe: the name and the place of the experiment, and its sections."""

    experiment: Annotated[str, Field(pattern="^[a-z0-9][a-z0-9_-]*$")]
    """Name of the experiment; everything it writes is in `results/<experiment>/`."""
    seed: NonNegativeInt = 1
    """Seed of every random choice (held-out speakers, splitting, bootstrap)."""
    corpora: str = "corpora"
    """Folder that `{corpora}` stands for in the paths of this configuration."""
    downloads: dict[FilePattern, DownloadOptions] = Field(default_factory=dict)
    """Files that the experiment fetches before it uses them (lexicon, language model),
    by path."""
    corpus: CorpusSectionOptions
    """Sources of recordings and transcripts."""
    lang: LangOptions = LangOptions()
    """The lexicon, and what is made of it: phones, HMM topologies, and L."""
    lm: LmOptions
    """The language model: given, or estimated from text. Its words outside the lexicon
    are dropped when it is turned into the grammar; the log says how many."""
    features: GmmFeatures = FeatureOptions()
    """Acoustic features of the GMM systems."""
    gmm: GmmOptions = GmmOptions()
    """GMM-HMM systems, trained one after another, and how the finished ones align."""
    graph: GraphOptions = GraphOptions()
    """Composition of the decoding graph HCLG (Kaldi's mkgraph.sh)."""
    nnet: NnetOptions = NnetOptions()
    """Networks: the features that they read, their layers, and their training."""
    decode: DecodeOptions = DecodeOptions()
    """The search that makes lattices, and the choice of scales on the dev set."""
    score: ScoreOptions = ScoreOptions()
    """Comparison of recognized words with the references."""
    package: PackageSectionOptions = PackageSectionOptions()
    """Model packages: systems that leave the workflow (see docs/serving.md)."""
    transcribe: dict[Name, RecordingsOptions] = Field(default_factory=dict)
    """Recordings by name that packaged systems transcribe, to
    `results/<experiment>/transcribe/<name>/`."""
    capacity: CapacityOptions = CapacityOptions()
    """Sessions that servers of packages hold, measured here (see docs/load-test.md)."""
    suspects: SuspectSectionOptions = SuspectSectionOptions()
    """Utterances that look wrong (see docs/suspects.md)."""
    export_alignments: ExportSectionOptions = ExportSectionOptions()
    """Alignments that are written as TextGrids, CTM and JSON (see docs/align.md)."""
    report: ReportOptions = ReportOptions()
    """Contents of the results report; the report itself is always written."""
    num_jobs: NumJobsOptions = NumJobsOptions()
    """Jobs that share the work of a stage on a set (Kaldi's `nj`). Each goes over a
    part of the set, on its own machine where there are several; a further job joins
    what they have written, to the same bytes as without (see docs/cluster.md).
    """
    ledger: LedgerOptions = LedgerOptions()
    """Utterances that a stage may leave out before it fails."""
    cache: CacheOptions = CacheOptions()
    """Results that experiments share (see docs/reproducibility.md)."""

    @property
    def results(self) -> str:
        """Folder that it writes to."""
        return f"results/{self.experiment}"


def load(config: Mapping[str, Any]) -> Experiment:
    """Return the typed recipe of what YAML files and `--config` settings say.

    `{corpora}` in strings is replaced by the value of the key `corpora`.

    Raises:
        UserError: a key is unknown, missing, or has a value out of range; the message
            names the key's path.
    """
    _check_keys(config, "")
    corpora = str(config.get("corpora") or Experiment.model_fields["corpora"].default)
    return read_options(Experiment, _expanded(config, corpora))


def _check_keys(value: Any, path: str) -> None:
    """Refuse keys that YAML takes for something other than a text.

    Raises:
        UserError: names the key, and how it is written.
    """
    if isinstance(value, list | tuple):
        for item in value:
            _check_keys(item, path)
    if not isinstance(value, Mapping):
        return
    for key, below in value.items():
        where = f"{path}.{key}" if path else str(key)
        if not isinstance(key, str):
            kind = "a truth value" if isinstance(key, bool) else "no text"
            raise UserError(
                f"configuration {where}: YAML reads this key as {kind}",
                remedy="quote it, as in 'no': or '2024':",
            )
        _check_keys(below, where)


def _expanded(value: Any, corpora: str) -> Any:
    """Return a nested value with `{corpora}` replaced in every string."""
    if isinstance(value, str):
        return value.replace("{corpora}", corpora)
    if isinstance(value, Mapping):
        return {_expanded(k, corpora): _expanded(v, corpora) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_expanded(item, corpora) for item in value]
    return value


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of recipes, for editors (`config/recipe.schema.json`)."""
    schema = Experiment.described_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
