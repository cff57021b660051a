"""A trained system as a folder that needs nothing else: the model package.

    package.json    properties of the system, see `PackageInfo`; digests of the files
    model/          of a network network.yaml, weights.safetensors, priors.npy,
                    meta.json and final.mdl (transition model); of a GMM system
                    final.mdl, transform.json, final.mat, and final.alimdl where it
                    adapts to speakers; tree; cmvn.ark where features are normalized
                    with statistics of the training set
    graph/          HCLG.fst, whole or in two parts
    lang/           words.txt, phones.txt, topo, lexiconp.txt, phones/, ...;
                    g2p.model, where it pronounces words that sessions bring
    ivectors/       extractor.npz, where the network takes i-vectors
    rescore/        G.fst and a second language model, where lattices are rescored

A system that adapts to speakers needs two passes over their speech: its package aligns,
and has no graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from latflow.decode.decoder import DecodingGraph, LatticeDecoder, load_graph
from latflow.decode.options import (
    NetworkScoreOptions,
    SearchOptions,
)
from latflow.decode.rescore import LanguageModels
from latflow.errors import UserError
from latflow.features.cmvn import read_global_statistics
from latflow.features.cmvn_options import OnlineCmvn
from latflow.features.front_end import KaldiFrontEnd
from latflow.features.lhotse_extractors import LhotseExtractor
from latflow.features.options import FrameGeometry
from latflow.gmm.ivector import IvectorModel
from latflow.gmm.model import GmmSystem
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.compatibility import check_phones
from latflow.lang.directory import Lang
from latflow.lattice.best_path import Scales
from latflow.lattice.lattice import Lattice
from latflow.lattice.unsure_words import without_unsure_words
from latflow.nnet.model_dir import choose_device
from latflow.nnet.model_dir import load_model as load_network
from latflow.options import read_options
from latflow.scoring.score import Transcriber
from latflow.serving.acoustics import Acoustics, GmmAcoustics, NetworkAcoustics
from latflow.serving.features import Adaptation, FeatureStream, make_front_end
from latflow.serving.options import LanguageOptions
from latflow.serving.package_info import (
    Kind,
    PackageInfo,
    check_files,
    check_recognizing,
    read_info,
)
from latflow.serving.session_search import SessionSearches
from latflow.user_code import trusting

# Scores between prunings of the search: many sessions hold their links at a time.
_PRUNE_INTERVAL = 25
_SURE = 0.8  # least posterior of an added word; by dev: docs/serving.md, "Words"
IVECTORS = "ivectors/extractor.npz"
GRAMMAR, LM = "rescore/G.fst", "rescore/lm.bin"


@dataclass(frozen=True, eq=False)
class ScoredSystem:
    """The acoustic part of a system.

    Attributes:
        acoustics: gives log-likelihoods.
        transitions: of the same system.
        acoustic_scale: factor of log-likelihoods in the search; None for the search's.
        lattice_scale: factor of acoustic costs in lattices.
        prior_scale: factor on the log priors of a network.
    """

    acoustics: Acoustics
    transitions: TransitionModel
    acoustic_scale: float | None = None
    lattice_scale: float = 1.0
    prior_scale: float = 0.0

    @classmethod
    def load(
        cls, folder: Path, kind: Kind, options: NetworkScoreOptions
    ) -> ScoredSystem:
        """Read the folder of a system."""
        if kind == "gmm":
            system = GmmSystem.load(folder)
            acoustics = GmmAcoustics(system.transform, system.model.gmms)
            return cls(acoustics, system.model.transitions)
        device = choose_device(options.device)
        network = load_network(folder, device)
        prior_scale = network.prior_scale(options.prior_scale)
        normalization = network.normalizer
        by_kind = 1.0 if network.has_full_scale else None
        return cls(
            NetworkAcoustics(network, normalization, prior_scale, device),
            TransitionModel.load(folder / "final.mdl"),
            options.acoustic_scale or by_kind,
            network.lattice_scale,
            prior_scale,
        )


def _scored_system(folder: Path, info: PackageInfo, device: str) -> ScoredSystem:
    """Read the acoustic part of a package."""
    scores = read_options(
        NetworkScoreOptions, {"prior_scale": info.prior_scale, "device": device}
    )
    return ScoredSystem.load(folder / "model", info.kind, scores)


def load_acoustics(
    path: str | Path, *, device: str, trust_code: bool = False
) -> Acoustics:
    """Read what a package scores with, and no more of it.

    Args:
        path: its folder.
        device: see `Model.load`.
        trust_code: see `Model.load`.

    Raises:
        UserError: as `Model.load`.
    """
    folder = Path(path)
    info = read_info(folder)
    check_files(folder, info)
    with trusting(trust_code):
        return _scored_system(folder, info, device).acoustics


@dataclass(frozen=True, eq=False)
class Model:
    """A package, loaded; shared by all threads.

    Attributes:
        folder: where it was read.
        info: what the package says of itself.
        lang: words and phones.
        transitions: of the system.
        decoder: with the system's graph.
        acoustics: gives log-likelihoods.
        transcriber: makes words of lattices.
    """

    folder: Path
    info: PackageInfo
    lang: Lang
    transitions: TransitionModel
    decoder: LatticeDecoder
    acoustics: Acoustics
    transcriber: Transcriber
    _front_end: KaldiFrontEnd | LhotseExtractor = field(repr=False)
    _statistics: np.ndarray | None = field(repr=False)
    _ivectors: IvectorModel | None = field(repr=False)
    _language_models: LanguageModels | None = field(repr=False)
    _added: tuple[int, ...] = field(default=(), repr=False)  # words of a session

    @classmethod
    def load(
        cls, path: str | Path, *, device: str = "cpu", trust_code: bool = False
    ) -> Model:
        """Read a package.

        Args:
            path: its folder.
            device: of the network: `cpu`, `cuda` or `auto`.
            trust_code: whether code may run that the package names.

        Raises:
            UserError: it is not a package, of a newer format, or only aligns; a file is
                missing or not what was packaged; parts do not fit each other; or it
                names code that is not trusted.
        """
        with trusting(trust_code):
            return cls._load(Path(path), device)

    @classmethod
    def _load(cls, folder: Path, device: str) -> Model:
        """Read a package, see `load`."""
        info = read_info(folder)
        check_recognizing(info, folder)
        assert info.lmwt is not None
        assert info.wip is not None
        check_files(folder, info)
        found = _scored_system(folder, info, device)
        lang = Lang.load(folder / "lang")
        check_phones(found.transitions, lang, folder / "model/final.mdl")
        ivectors, models, statistics = None, None, None
        if (folder / IVECTORS).is_file():
            ivectors = IvectorModel.load(folder / IVECTORS)
        if info.rescoring is not None:
            models = LanguageModels.load(folder / GRAMMAR, folder / LM, lang.word_ids)
        if info.cmvn.statistics == "set":
            statistics = read_global_statistics(folder / "model")
        transcriber = Transcriber(
            lang,
            found.transitions,
            Scales.from_lmwt(info.lmwt, info.wip),
            info.frame_shift * info.subsampling,
            info.decision,
            info.confidences,
        )
        model = cls(
            folder,
            info,
            lang,
            found.transitions,
            _decoder(
                load_graph(folder / "graph/HCLG.fst", lang),
                transitions=found.transitions,
                search=info.search,
            ),
            found.acoustics,
            transcriber,
            make_front_end(info.front_end, info.sample_rate),
            statistics,
            ivectors,
            models,
        )
        model._check(folder)
        return model

    def _check(self, folder: Path) -> None:
        """Refuse parts that do not fit each other."""
        remedy = "name the recipe that the system was trained with"
        dim = self.front_end().finish().shape[1]
        try:
            self.acoustics.check_dim(dim)
        except UserError as error:
            raise UserError(error.what, file=folder, remedy=remedy) from None
        if self.acoustics.num_pdfs != self.transitions.num_pdfs:
            raise UserError(
                f"the model scores {self.acoustics.num_pdfs} pdfs, its tree has "
                f"{self.transitions.num_pdfs}",
                file=folder,
                remedy="tree and model must be of the same training",
            )

    def for_session(self, options: LanguageOptions) -> tuple[Model, tuple[str, ...]]:
        """Return the model for a session, and warnings about what it leaves out.

        What searches have composed is kept for the last few.

        Args:
            options: words, phrases and language model that the session brings.

        Raises:
            UserError: words or a grammar come to a package with a whole graph; words to
                one with a second language model or without a tree, or whose phones
                depend on those that follow; a phone is not one of its phones; or the
                grammar is faulty, or has words that are not there.
        """
        if not options.brings_anything:
            return self, ()
        if options.new_words and self._language_models is not None:
            raise UserError(
                "words can't be added: the package has a second language model",
                file=self.folder,
                remedy="package the system without rescoring",
            )
        found = self._searches.find(options)
        transcriber = replace(self.transcriber, lang=found.lang)
        model = replace(
            self,
            lang=found.lang,
            decoder=found.decoder,
            transcriber=transcriber,
            _added=found.added,
        )
        if options.has_own_model:  # instead of the first one, and so of the second
            model = replace(model, _language_models=None)
        return model, found.warnings

    @cached_property
    def _searches(self) -> SessionSearches:
        """What makes the searches of sessions."""
        make = partial(_decoder, transitions=self.transitions, search=self.info.search)
        return SessionSearches(
            self.folder,
            self.lang,
            self.transitions,
            self.decoder,
            make,
            can_add=self.decoder.is_composing and self._language_models is None,
        )

    @property
    def acoustic_scale(self) -> float:
        """Factor of log-likelihoods in the search."""
        return self.info.acoustic_scale

    @property
    def lattice_scale(self) -> float:
        """Factor of acoustic costs, to be applied to lattices before their words."""
        return self.info.lattice_scale

    @property
    def scales(self) -> Scales:
        """Scales of the costs of lattices, chosen on dev."""
        return self.transcriber.scales

    @property
    def subsampling(self) -> int:
        """Frames of the features for one of the scores."""
        return self.info.subsampling

    @property
    def frame_shift(self) -> float:
        """Time from one frame of the features to the next, seconds."""
        return self.info.frame_shift

    @property
    def sample_rate(self) -> int:
        """Sample rate of the features, Hz."""
        return self.info.sample_rate

    @cached_property
    def is_silence(self) -> np.ndarray:
        """Return which transition-ids are of phones of silence, bool."""
        return np.isin(self.transitions.phone, self.info.silence_phones)

    @property
    def is_streaming(self) -> bool:
        """Ability to recognize speech while it arrives."""
        return self.info.is_streaming

    @property
    def why_not_streaming(self) -> str | None:
        """Reason why not."""
        return self.info.why_not_streaming

    @property
    def geometry(self) -> FrameGeometry:
        """Position of the frames of the features in the samples."""
        return self._front_end.geometry

    @property
    def adapts(self) -> bool:
        """Return whether segments depend on those of the same speaker before."""
        is_online = isinstance(self.info.cmvn, OnlineCmvn)
        return is_online or self._ivectors is not None

    def front_end(self, adaptation: Adaptation | None = None) -> FeatureStream:
        """Begin the features of a segment, as `acoustics` takes them.

        Args:
            adaptation: to the speaker, of the segments before.
        """
        return FeatureStream(
            self._front_end,
            self.info.cmvn,
            self._statistics,
            self._ivectors,
            adaptation,
        )

    def rescore(self, lattice: Lattice) -> Lattice:
        """Return a lattice with the costs of the second language model.

        The lattice itself where the package has none; words that were added for the
        session stay where they are sure.

        Args:
            lattice: of a whole segment, with acoustic costs times `lattice_scale`.

        Raises:
            UserError: the lattice has no path.
        """
        if self._added:
            lm_scale, acoustic_scale, _ = self.scales
            return without_unsure_words(
                *(lattice, self._added, _SURE),
                lm_scale=lm_scale,
                acoustic_scale=acoustic_scale,
            )
        options = self.info.rescoring
        if options is None or self._language_models is None:
            return lattice
        scale = options.acoustic_scale
        _, found = self._language_models.exchange(lattice, options.beam, scale)
        return found.to_lattice()


@dataclass(frozen=True, eq=False)
class GmmPackage:
    """A package of a GMM system, loaded to align.

    Attributes:
        folder: the package.
        info: what the package says of itself.
        system: with its tree.
    """

    folder: Path
    info: PackageInfo
    system: GmmSystem

    @classmethod
    def load(cls, path: str | Path, *, trust_code: bool = False) -> GmmPackage:
        """Read a package.

        Args:
            path: its folder.
            trust_code: whether code may run that the package names.

        Raises:
            UserError: as `Model.load`.
        """
        with trusting(trust_code):
            return cls._load(Path(path))

    @classmethod
    def _load(cls, folder: Path) -> GmmPackage:
        """Read a package, see `load`."""
        info = read_info(folder)
        check_files(folder, info)
        system = GmmSystem.load(folder / "model")
        lang = Lang.load(folder / "lang")
        check_phones(system.model.transitions, lang, folder / "model/final.mdl")
        front_end = make_front_end(info.front_end, info.sample_rate)
        try:
            dim = system.transform.dim_out(front_end.dim)
            system.model.gmms.check_dim(dim)
        except UserError as error:
            remedy = "name the recipe that the system was trained with"
            raise UserError(error.what, file=folder, remedy=remedy) from None
        return cls(folder, info, system)


def _decoder(
    graph: DecodingGraph, transitions: TransitionModel, search: SearchOptions
) -> LatticeDecoder:
    """Return the decoder with a graph."""
    return LatticeDecoder(
        graph,
        transitions.pdf,
        beam=search.beam,
        lattice_beam=search.lattice_beam,
        max_active=search.max_active,
        min_active=search.min_active,
        prune_interval=_PRUNE_INTERVAL,
    )
