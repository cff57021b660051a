"""Frames that systems read: what they are made of, where they lie, when they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latflow.errors import UserError
from latflow.features.frame_times import FrameTimes
from latflow.features.options import (
    GmmFeatures,
    LhotseExtractionOptions,
    Stream,
)
from latflow.gmm.options import IvectorOptions
from latflow.training.data_options import Hdf5Options

OF_GMMS = "gmm"  # name of the features of the GMM systems


@dataclass(frozen=True)
class Frames:
    """Frames of features that systems read; the base of its kinds.

    Attributes:
        results: folder of the experiment.
        name: name of the features.
    """

    results: str
    name: str

    @property
    def folder(self) -> str:
        """Folder with a folder of each set."""
        return f"{self.results}/streams/{self.name}/frames"

    def of(self, split: str) -> str:
        """Return the file that describes the frames of a set."""
        return f"{self.folder}/{split}/meta.json"

    @property
    def is_stored(self) -> bool:
        """Return whether they lie on the disk; else they are computed when read."""
        return True

    @property
    def parts(self) -> tuple[Frames, ...]:
        """The frames that stand side by side in them; themselves, if none do."""
        return (self,)

    @property
    def source(self) -> Frames:
        """The frames that they are computed of, whose times they have."""
        return self

    @property
    def shift(self) -> float:
        """Time from one frame to the next, seconds."""
        return self.source.shift

    @property
    def first_middle(self) -> float:
        """Middle of the first frame's window, seconds."""
        return self.source.first_middle


@dataclass(frozen=True)
class ExtractedFrames(Frames):
    """Features computed of audio: those of the GMM systems, and of `nnet.features`.

    Attributes:
        options: of the features.
    """

    options: GmmFeatures | Stream

    @property
    def key(self) -> str:
        """Key of the recipe that describes them."""
        return "features" if self.is_of_gmms else f"nnet.features.{self.name}"

    @property
    def is_of_gmms(self) -> bool:
        """Return whether they are those of the GMM systems."""
        return self.name == OF_GMMS

    @property
    def has_volumes(self) -> bool:
        """Return whether samples are multiplied by the volumes of perturbed sets."""
        return not self.is_of_gmms  # which CMVN takes away

    @property
    def is_stored(self) -> bool:
        """Return whether they lie on the disk; else they are computed when read."""
        return getattr(self.options, "stored", True)

    @property
    def is_lhotse(self) -> bool:
        """Return whether one of Lhotse's extractors computes them."""
        return isinstance(self.options, LhotseExtractionOptions)

    @property
    def shift(self) -> float:
        """Time from one frame to the next, seconds.

        Raises:
            UserError: they are of an extractor of Lhotse's that cannot be made.
        """
        return self._times.shift_ms / 1000

    @property
    def first_middle(self) -> float:
        """Middle of the first frame's window, seconds; raises as `shift`."""
        return self._times.first_middle

    @property
    def _times(self) -> FrameTimes:
        return FrameTimes.of(self.options, self.options.sample_rate)

    @property
    def extraction(self) -> dict[str, Any]:
        """Options of their computation from the audio."""
        return self.options.extraction.values()

    @property
    def extractor_files(self) -> list[str]:
        """The file of the user's own extractor, if one computes them."""
        options = self.options
        is_lhotse = isinstance(options, LhotseExtractionOptions)
        return [str(path) for path in options.files] if is_lhotse else []

    def stored(self, split: str) -> str:
        """Return the file that describes the stored features of a set, before CMVN."""
        return f"{self.results}/streams/{self.name}/features/{split}/meta.json"

    def statistics_before(self, split: str) -> list[str]:
        """Return the frames whose statistics those of a set begin with (CMVN)."""
        is_online = self.options.cmvn.type == "online"
        return [self.of("train")] if is_online and split != "train" else []

    def check(self) -> None:
        """Refuse an extractor in a file that is not there, or CMVN that cannot be.

        Raises:
            UserError: names the key.
        """
        options = self.options
        if isinstance(options, LhotseExtractionOptions):
            file, _, _ = options.extractor.rpartition(":")
            if file.endswith(".py") and not Path(file).is_file():
                raise UserError(
                    f"configuration {self.key}.extractor: no such file {file}",
                    remedy="name a file that is there, or a module",
                )
        if options.cmvn.statistics != "utterance" and not self.is_stored:
            raise UserError(
                f"configuration {self.key}.cmvn: statistics of type "
                f"{options.cmvn.type} need stored features",
                remedy="set its type to utterance, sliding, level or none, or "
                "`stored: true`",
            )

    def check_extractor(self) -> None:
        """Refuse an extractor of Lhotse's that cannot be made as the recipe says.

        Not part of `check`: it takes Lhotse and torch, which reading a recipe does
        without.

        Raises:
            UserError: names the key; see `LhotseExtractor`.
        """
        options = self.options
        if not isinstance(options, LhotseExtractionOptions):
            return
        from latflow.features.lhotse_extractors import LhotseExtractor

        extractor = LhotseExtractor(options, options.sample_rate, key=self.key)
        extractor.check()
        if not self.is_stored:
            extractor.check_lengths()


@dataclass(frozen=True)
class IvectorFrames(Frames):
    """Features followed by i-vectors.

    Attributes:
        options: of the i-vectors.
        below: the features that they are made of, and follow.
    """

    options: IvectorOptions
    below: ExtractedFrames

    @property
    def source(self) -> Frames:
        """The frames that they are computed of, whose times they have."""
        return self.below

    @property
    def extractor(self) -> str:
        """File of the trained extractor."""
        return f"{self.results}/ivectors/{self.name}/extractor.npz"


@dataclass(frozen=True)
class Hdf5Frames(Frames):
    """Features, and labels, of HDF5 files.

    Attributes:
        options: of the files.
    """

    options: Hdf5Options

    @property
    def shift(self) -> float:
        """Time from one frame to the next, seconds."""
        return self.options.frame_shift_ms / 1000

    @property
    def first_middle(self) -> float:
        """Middle of the first frame's window, seconds."""
        return self.options.first_middle_ms / 1000

    def labels(self, split: str) -> str:
        """Return the folder of the labels of a set."""
        return f"{self.results}/streams/{self.name}/labels/{split}"

    def files(self, split: str) -> list[str]:
        """Return the files that hold a set.

        Raises:
            UserError: none is named.
        """
        if split not in self.options.files:
            raise UserError(
                f"configuration nnet.hdf5.{self.name}.files: no files of {split} are "
                "named, and they are needed",
                remedy=f"name them as {split}: [...]",
            )
        return list(self.options.files[split])


@dataclass(frozen=True)
class PastedFrames(Frames):
    """Features of several kinds side by side.

    Attributes:
        sides: the features, in the order in which they stand.
    """

    sides: tuple[Frames, ...]

    @property
    def parts(self) -> tuple[Frames, ...]:
        """The frames that stand side by side in them."""
        return self.sides

    @property
    def source(self) -> Frames:
        """The frames whose times they have: those of the first side."""
        return self.sides[0].source
