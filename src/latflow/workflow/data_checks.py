"""Refuse data of a training that its features, labels or corpus cannot give.

Public: `check_data`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from latflow.corpus.options import CombinedSource
from latflow.errors import UserError
from latflow.options import check_choice

if TYPE_CHECKING:
    from latflow.features.options import Stream
    from latflow.workflow.recipe import Recipe


def check_data(recipe: Recipe, name: str) -> None:
    """Refuse chunks, normalization, draws, caches, weights and sampling that cannot be.

    Args:
        recipe: all of it.
        name: of the system with a network.

    Raises:
        UserError: names the key.
    """
    _check_chunks(recipe, name)
    _check_perturbation(recipe, name)
    _check_cache(recipe, name)
    _check_mixing(recipe, name)
    _check_source_weights(recipe, name)
    _check_sampling(recipe, name)
    _check_normalization(recipe, name)


def _check_chunks(recipe: Recipe, name: str) -> None:
    """Refuse chunks whose sizes do not fit the frame subsampling."""
    network = recipe.networks[name]
    chunks = network.data.chunks
    if chunks is not None:
        try:
            chunks.check(recipe.subsampling_of(name))
        except UserError as error:
            what = f"configuration nnet.systems.{name}.data.{error.what}"
            raise UserError(what, remedy=error.remedy) from None


def _check_normalization(recipe: Recipe, name: str) -> None:
    """Refuse a normalization by utterance of i-vectors, and any of samples."""
    network, read = recipe.networks[name], recipe.streams_read(name)
    for stream in read:
        options = recipe.feature_streams.get(stream)
        if options is not None and options.type == "waveform":
            _check_samples(recipe, name, options)
    if recipe.options.nnet.ivectors.keys().isdisjoint(read):
        return
    if network.data.normalization in {"mean", "mean_variance"}:
        raise UserError(
            f"configuration nnet.systems.{name}.data.normalization: would take the "
            "i-vectors away, which hardly change in an utterance",
            remedy="set it to global or none",
        )


def _check_samples(recipe: Recipe, name: str, stream: Stream) -> None:
    """Refuse what does not go with a network that reads samples."""
    network = recipe.networks[name]
    key = f"configuration nnet.systems.{name}"
    if network.data.normalization not in {"none", "inherited"}:
        raise UserError(
            f"{key}.data.normalization: {network.data.normalization} is for features, "
            f"and {name} reads samples",
            remedy="set it to none; a layer of class batch_norm normalizes inside",
        )
    for layer, rate in recipe.sample_rates_of(name).items():
        if stream.sample_rate is not None and rate != stream.sample_rate:
            raise UserError(
                f"{key}.network: layer {layer} is for samples of {rate} Hz, the "
                f"features have {stream.sample_rate} Hz",
                remedy=f"set its sample_rate to {stream.sample_rate}",
            )


def _check_perturbation(recipe: Recipe, name: str) -> None:
    """Refuse draws that features or labels cannot follow."""
    network = recipe.networks[name]
    draws = network.data.perturbation
    key = f"configuration nnet.systems.{name}.data"
    is_stored = recipe.stream_of(name) not in recipe.streams_of(stored=False)
    if draws is None:
        return
    key = f"{key}.perturbation"
    if is_stored:
        raise UserError(
            f"{key}: its features are stored",
            remedy="take features of nnet.features with `stored: false`, or a "
            "training_set of corpus.perturbed",
        )
    if network.type not in {"attention", "ce", "ctc"} and set(draws.speeds) != {1.0}:
        raise UserError(
            f"{key}.speeds: only labels of single frames (type ce), or of none (ctc, "
            "attention), can follow them",
            remedy="set speeds: [1.0], and take a training_set of corpus.perturbed",
        )


def _check_mixing(recipe: Recipe, name: str) -> None:
    """Refuse to add noise to features that are no plain energies of stored speech.

    Of Lhotse's extractors see `latflow.workflow.extractor_checks`.
    """
    if recipe.networks[name].data.mixing is None:
        return
    key = f"configuration nnet.systems.{name}.data.mixing"
    stream = recipe.feature_streams.get(recipe.stream_of(name) or "")
    if stream is None:
        what = "is for features of nnet.features, as they were extracted"
        raise UserError(f"{key}: {what}", remedy="name some of type fbank in features")
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
            remedy="set their cmvn to {type: none}; data.normalization follows mixing",
        )
    has_energy = stream.type == "fbank" and stream.use_energy
    if stream.channels is not None or has_energy:
        what = "use_energy" if has_energy else "channels"
        raise UserError(
            f"{key}: features with {what} cannot be added to",
            remedy=f"leave {what} of the features out, or data.mixing",
        )


def _check_cache(recipe: Recipe, name: str) -> None:
    """Refuse to bound the stored data of features that are not stored."""
    is_stored = recipe.stream_of(name) not in recipe.streams_of(stored=False)
    if recipe.networks[name].data.cache_mb is not None and not is_stored:
        raise UserError(
            f"configuration nnet.systems.{name}.data.cache_mb: its features are not "
            "stored",
            remedy="leave it out; on_the_fly.cache_mb is for features on the fly",
        )


def _check_source_weights(recipe: Recipe, name: str) -> None:
    """Refuse weights of sources that train has not, or that leave nothing of it."""
    weights = recipe.networks[name].data.source_weights
    key = f"configuration nnet.systems.{name}.data.source_weights"
    source = recipe.options.corpus.train
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


def _check_sampling(recipe: Recipe, name: str) -> None:
    """Refuse to sample by speakers that nobody knows."""
    source = recipe.options.corpus.train
    several = isinstance(source, CombinedSource)
    sources = source.sources.values() if several else (source,)
    is_known = any(
        getattr(one, "speaker", "given") == "given" and one.type != "hdf5"
        for one in sources
    )
    if not is_known and recipe.networks[name].data.sampling.speaker_power < 1:
        raise UserError(
            f"configuration nnet.systems.{name}.data.sampling.speaker_power: the "
            "speakers of corpus.train are not known",
            remedy="leave it out, or set speaker: given in corpus.train",
        )
