"""Sets of an experiment: which splits there are, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from latflow.corpus.folder_files import digest_of_files, list_files
from latflow.corpus.options import (
    CombinedSource,
    CustomSource,
    CutSource,
    DevSource,
    FolderSource,
    GivenSource,
    Hdf5Source,
    HoldOutSource,
    KaldiSource,
    ManifestSource,
    NoSource,
    SyntheticSource,
    TableSource,
    has_transcripts,
)
from latflow.errors import UserError
from latflow.simulation.options import SimulationOptions
from latflow.simulation.records import list_audio
from latflow.training.data_options import MixingDraws
from latflow.user_code import file_of
from latflow.workflow.contents import Contents, Listings
from latflow.workflow.experiment import Experiment


@dataclass(frozen=True)
class Sets:
    """The sets of an experiment.

    Attributes:
        options: complete and typed.
    """

    options: Experiment

    @property
    def sources(self) -> dict[str, DevSource]:
        """Splits that are prepared from outside, with their source descriptions.

        Where the dev set is held out of train, the outside split is called `full`.
        """
        corpus = self.options.corpus
        if self.holds_out_dev:
            return {"full": corpus.train, **corpus.test}
        dev = {"dev": corpus.dev} if self.has_dev else {}
        return {"train": corpus.train, **dev, **corpus.test}

    @property
    def has_dev(self) -> bool:
        """Return whether there is a dev set; without one nothing is decoded."""
        return not isinstance(self.options.corpus.dev, NoSource)

    @property
    def holds_out_dev(self) -> bool:
        """Return whether the dev set is taken out of train."""
        return isinstance(self.options.corpus.dev, HoldOutSource)

    @property
    def is_synthetic(self) -> bool:
        """Return whether the training speech is made by the workflow itself."""
        return isinstance(self.options.corpus.train, SyntheticSource)

    @property
    def test_sets(self) -> list[str]:
        """Names of the test sets with transcripts, in the order of the recipe."""
        return [name for name, is_scored in self._made_or_given() if is_scored]

    @property
    def untranscribed_sets(self) -> list[str]:
        """Names of the test sets without transcripts: decoded, not scored."""
        return [name for name, is_scored in self._made_or_given() if not is_scored]

    def _made_or_given(self) -> list[tuple[str, bool]]:
        """Return all test sets, and whether they have transcripts."""
        corpus = self.options.corpus
        given = {name: has_transcripts(source) for name, source in corpus.test.items()}
        of = {"dev": True, **given}
        made = {
            name: of[options.of]
            for name, options in (*corpus.simulated.items(), *corpus.paused.items())
            if options.of in of
        }
        return [*given.items(), *made.items()]

    @property
    def evaluation_sets(self) -> list[str]:
        """Splits that are scored: dev, which chooses the scales, and test sets."""
        return ["dev", *self.test_sets] if self.has_dev else []

    @property
    def served_sets(self) -> list[str]:
        """Test sets that packages are scored on."""
        return [name for name in self.test_sets if self.has_audio(name)]

    @property
    def capacity_set(self) -> str:
        """The set whose utterances are spoken to measure the capacity of servers."""
        return self.options.capacity.test_set or [*self.decoded_sets[1:], "dev"][0]

    @property
    def decoded_sets(self) -> list[str]:
        """Splits that are decoded: those scored, and test sets without transcripts."""
        return [*self.evaluation_sets, *self.untranscribed_sets]

    @property
    def splits(self) -> list[str]:
        """All splits that are used."""
        return ["train", *self.decoded_sets]

    @property
    def training_sets(self) -> list[str]:
        """Sets that networks may be trained on: train, and those made of it."""
        corpus = self.options.corpus
        return ["train", *corpus.cleaned, *corpus.paused_training, *corpus.perturbed]

    def source_files(self, split: str) -> list[str]:
        """Return the files outside the experiment whose change makes a split new."""
        parts = _single(self.sources[split])
        return [file for source in parts for file in _files_of(source)]

    def has_audio(self, split: str) -> bool:
        """Return whether a set has audio, and is not of sequences of HDF5 files."""
        is_part = self.holds_out_dev and split in {"train", "dev"}
        source = self.sources.get("full" if is_part else split)
        return not isinstance(source, Hdf5Source)

    def source_digest(self, split: str) -> str:
        """Return folders with digests of their files, too many to be inputs."""
        parts = _single(self.sources[split])
        folders = [part for part in parts if isinstance(part, FolderSource)]
        if not folders:
            return ""
        contents, listings = Contents(), Listings()
        digests = []
        for one in folders:
            listed = list_files(one, contents)
            digest = digest_of_files(listed)
            listings.keep(one.path, digest, listed)
            digests.append(f"{one.path} {digest}")
        contents.save()
        return " ".join(digests)


def simulation_files(options: SimulationOptions | MixingDraws | None) -> list[str]:
    """Return the recordings that a simulation takes: noises, measured responses.

    Where a folder or pattern has none, what it should have is missed when the workflow
    is planned.

    Args:
        options: a simulation, draws of noise to add, or None.
    """
    found: list[str] = []
    for files in [] if options is None else options.files:
        try:
            found += list_audio(files)
        except UserError:
            found.append(f"{files}/*" if Path(files).is_dir() else files)
    return sorted(set(found))


def _single(source: DevSource) -> list[DevSource]:
    """Return the sources that a source combines; itself where it is one."""
    is_combined = isinstance(source, CombinedSource)
    return list(source.sources.values()) if is_combined else [source]


def _files_of(source: DevSource) -> list[str]:
    """Return the files of a single source whose change makes its split new."""
    exclude = source.exclude if isinstance(source, GivenSource) else None
    listed = [exclude] if exclude else []
    if isinstance(source, GivenSource):
        listed += map(str, file_of(source.tokenizer))
    if isinstance(source, KaldiSource):
        folder = Path(source.path)
        tables = ("wav.scp", "text", "segments", "utt2*", "spk2*")
        listed += sorted(str(p) for name in tables for p in folder.glob(name))
    elif isinstance(source, ManifestSource):
        listed += [source.recordings, source.supervisions]
    elif isinstance(source, CutSource | TableSource):
        listed.append(source.path)
    elif isinstance(source, Hdf5Source):
        listed += source.files
    elif isinstance(source, CustomSource):
        listed += source.inputs
    return listed
