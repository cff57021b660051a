"""Data of the training of a network: what its features, labels or corpus can give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from latflow.corpus.options import CombinedSource, DevSource
from latflow.errors import UserError
from latflow.features.options import LhotseStreamOptions, Stream
from latflow.options import check_choice
from latflow.simulation.options import MaskTarget
from latflow.training.data_options import DataOptions, SequenceDataOptions
from latflow.workflow.frames import (
    ExtractedFrames,
    Frames,
    Hdf5Frames,
    IvectorFrames,
)


@dataclass(frozen=True)
class TrainingData:
    """Data of the training of a network.

    Attributes:
        key: of the network in the recipe, as messages name it.
        kind: type of the network.
        options: of the data.
        frames: the frames that the network reads.
        source: of the training set.
        subsampling: frames of the features for one of the network's scores.
        sample_rates: sample rates that layers are for, Hz, by layer.
    """

    key: str
    kind: str
    options: DataOptions | SequenceDataOptions
    frames: Frames
    source: DevSource
    subsampling: int
    sample_rates: Mapping[str, int]

    def check(self) -> None:
        """Refuse chunks, normalization, draws, caches and weights that cannot be.

        Raises:
            UserError: names the key.
        """
        self._check_simulation()
        self._check_chunks()
        self._check_perturbation()
        self._check_on_the_fly()
        self._check_mixing()
        self._check_source_weights()
        self._check_sampling()
        self._check_normalization()

    def check_extractor(self) -> None:
        """Refuse to add noise to features of an extractor that do not add up.

        Not part of `check`: it takes Lhotse and torch.
        """
        from latflow.features.lhotse_extractors import LhotseExtractor, adds_features

        stream = self._stream
        if self.options.mixing is None or not isinstance(stream, LhotseStreamOptions):
            return
        key = f"nnet.features.{self.frames.name}"
        extractor = LhotseExtractor(stream, stream.sample_rate, key=key)
        if not adds_features(extractor.instance()):
            raise UserError(
                f"{self.key}.data.mixing: features of the extractor "
                f"{stream.extractor} do not add up",
                remedy="leave it out, or take features of type fbank",
            )

    @property
    def _stream(self) -> Stream | None:
        """Options of the features, where they are of `nnet.features`."""
        frames = self.frames
        is_stream = isinstance(frames, ExtractedFrames) and not frames.is_of_gmms
        return frames.options if is_stream else None  # type: ignore[return-value]

    def _check_simulation(self) -> None:
        """Refuse simulation that the features cannot have."""
        simulation = self.options.simulation
        if simulation is None:
            return
        key = f"{self.key}.data.simulation"
        if self.frames.is_stored:
            raise UserError(
                f"{key}: its features are stored",
                remedy="take features of nnet.features with `stored: false`",
            )
        stream = self._stream
        assert stream is not None, "only those of nnet.features are not stored"
        if why_not := simulation.why_not_of(stream.channels):
            what, remedy = why_not
            raise UserError(f"{key}: {what}", remedy=remedy)
        for target, options in simulation.targets.items():
            if not isinstance(options, MaskTarget):
                continue
            if isinstance(stream, LhotseStreamOptions):
                raise UserError(
                    f"{key}.targets.{target}: the extractor {stream.extractor} has no "
                    "bins that masks could be of",
                    remedy="take features of type mfcc, fbank or waveform",
                )
            if options.domain == "mel" and stream.type == "waveform":
                raise UserError(
                    f"{key}.targets.{target}.domain: features of type waveform have "
                    "no mel filters",
                    remedy="set it to stft",
                )

    def _check_chunks(self) -> None:
        """Refuse chunks whose sizes do not fit the frame subsampling."""
        if (chunks := self.options.chunks) is None:
            return
        try:
            chunks.check(self.subsampling)
        except UserError as error:
            what = f"{self.key}.data.{error.what}"
            raise UserError(what, remedy=error.remedy) from None

    def _check_normalization(self) -> None:
        """Refuse one by utterance of i-vectors, and any of samples or labels."""
        for part in self.frames.parts:
            if isinstance(part, Hdf5Frames) and part.options.sparse is not None:
                self._check_labels(part.name)
            if isinstance(part, ExtractedFrames) and part.options.type == "waveform":
                self._check_samples(part.options.sample_rate)
        has_ivectors = any(isinstance(x, IvectorFrames) for x in self.frames.parts)
        if has_ivectors and self.options.normalization in {"mean", "mean_variance"}:
            raise UserError(
                f"{self.key}.data.normalization: would take the i-vectors away, which "
                "hardly change in an utterance",
                remedy="set it to global or none",
            )

    def _check_labels(self, name: str) -> None:
        """Refuse to normalize labels that are read as features."""
        if self.options.normalization not in {"none", "inherited"}:
            raise UserError(
                f"{self.key}.data.normalization: {self.options.normalization} would "
                f"change the labels of nnet.hdf5.{name}",
                remedy="set it to none; a layer of class batch_norm normalizes other "
                "features inside",
            )

    def _check_samples(self, sample_rate: int | None) -> None:
        """Refuse what does not go with a network that reads samples."""
        if self.options.normalization not in {"none", "inherited"}:
            raise UserError(
                f"{self.key}.data.normalization: {self.options.normalization} is for "
                f"features, and {self.key.rpartition('.')[2]} reads samples",
                remedy="set it to none; a layer of class batch_norm normalizes inside",
            )
        for layer, rate in self.sample_rates.items():
            if sample_rate is not None and rate != sample_rate:
                raise UserError(
                    f"{self.key}.network: layer {layer} is for samples of {rate} Hz, "
                    f"the features have {sample_rate} Hz",
                    remedy=f"set its sample_rate to {sample_rate}",
                )

    def _check_perturbation(self) -> None:
        """Refuse draws that features or labels cannot follow."""
        key, draws = f"{self.key}.data.perturbation", self.options.perturbation
        if draws is None:
            return
        if self.frames.is_stored:
            raise UserError(
                f"{key}: its features are stored",
                remedy="take features of nnet.features with `stored: false`, or a "
                "training_set of corpus.perturbed",
            )
        if self.kind not in {"attention", "ce", "ctc"} and set(draws.speeds) != {1.0}:
            raise UserError(
                f"{key}.speeds: only labels of single frames (type ce), or of none "
                "(ctc, attention), can follow them",
                remedy="set speeds: [1.0], and take a training_set of corpus.perturbed",
            )

    def _check_on_the_fly(self) -> None:
        """Refuse a bound of what is not stored, and a device that is not used."""
        if self.options.cache_mb is not None and not self.frames.is_stored:
            raise UserError(
                f"{self.key}.data.cache_mb: its features are not stored",
                remedy="leave it out; on_the_fly.cache_mb is for features on the fly",
            )
        stream, on_gpu = self._stream, self.options.on_the_fly.device == "cuda"
        if isinstance(stream, LhotseStreamOptions) and not stream.stored and on_gpu:
            raise UserError(
                f"{self.key}.data.on_the_fly.device: the extractor {stream.extractor} "
                "chooses its device itself",
                remedy="leave it out, and set `device` in the options of the extractor "
                "if it has one",
            )

    def _check_mixing(self) -> None:
        """Refuse to add noise to features that are not plain energies of stored speech.

        Of Lhotse's extractors see `check_extractor`.
        """
        if self.options.mixing is None:
            return
        key, stream = f"{self.key}.data.mixing", self._stream
        if stream is None:
            what = "is for features of nnet.features, as they were extracted"
            remedy = "name some of type fbank in features"
            raise UserError(f"{key}: {what}", remedy=remedy)
        if not stream.stored:
            raise UserError(
                f"{key}: its features are not stored",
                remedy="leave it out; data.simulation adds noises on the fly",
            )
        if stream.type not in {"fbank", "lhotse"}:
            raise UserError(
                f"{key}: features of type {stream.type} do not add up",
                remedy="take features of type fbank",
            )
        if stream.cmvn.type != "none":
            raise UserError(
                f"{key}: its features have been normalized, and no longer add up",
                remedy="set their cmvn to {type: none}; data.normalization follows "
                "mixing",
            )
        has_energy = stream.type == "fbank" and stream.use_energy
        if stream.channels is not None or has_energy:
            what = "use_energy" if has_energy else "channels"
            raise UserError(
                f"{key}: features with {what} cannot be added to",
                remedy=f"leave {what} of the features out, or data.mixing",
            )

    def _check_source_weights(self) -> None:
        """Refuse weights of sources that train has not, or that leave nothing of it."""
        weights = self.options.source_weights
        key = f"{self.key}.data.source_weights"
        source = self.source
        known = list(source.sources) if isinstance(source, CombinedSource) else []
        for chosen in weights:
            if not known:
                raise UserError(
                    f"{key}: corpus.train is of one source",
                    remedy="leave it out, or make corpus.train one of type combined",
                )
            check_choice(key, chosen, known)
        if len(weights) < len(known):
            return  # the others have weight 1
        for i in range(max(map(len, weights.values()), default=0)):
            if not any(its[min(i, len(its) - 1)] for its in weights.values()):
                raise UserError(
                    f"{key}: takes nothing in pass {i + 1}",
                    remedy="give one source a weight above 0",
                )

    def _check_sampling(self) -> None:
        """Refuse to sample by speakers that nobody knows."""
        source = self.source
        several = isinstance(source, CombinedSource)
        sources = source.sources.values() if several else (source,)
        is_known = any(
            getattr(one, "speaker", "given") == "given" and one.type != "hdf5"
            for one in sources
        )
        if not is_known and self.options.sampling.speaker_power < 1:
            raise UserError(
                f"{self.key}.data.sampling.speaker_power: the speakers of "
                "corpus.train are not known",
                remedy="leave it out, or set speaker: given in corpus.train",
            )
