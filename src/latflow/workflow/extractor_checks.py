"""Refuse features of Lhotse's extractors that cannot be computed, or used as they are.

Public: `check_extractor_uses`, `check_extractors`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from latflow.errors import UserError
from latflow.features.options import (
    LhotseExtractionOptions,
    LhotseFeatureOptions,
    LhotseStreamOptions,
)

if TYPE_CHECKING:
    from latflow.workflow.recipe import Recipe


def check_extractor_uses(recipe: Recipe) -> None:
    """Refuse extractors in files that are not there, or where others are needed.

    Raises:
        UserError: names the key.
    """
    for key, options in _extractors(recipe):
        file, _, _ = options.extractor.rpartition(":")
        if file.endswith(".py") and not Path(file).is_file():
            raise UserError(
                f"configuration {key}.extractor: no such file {file}",
                remedy="name a file that is there, or a module",
            )
    features = recipe.options.features
    if isinstance(features, LhotseFeatureOptions) and recipe.imported_system:
        raise UserError(
            "configuration features.type: the system of gmm.import was trained on "
            f"Kaldi's features, not those of the extractor {features.extractor}",
            remedy="set it to mfcc or fbank",
        )
    for name, network in recipe.networks.items():
        stream = recipe.feature_streams.get(recipe.stream_of(name) or "")
        on_gpu = network.data.on_the_fly.device == "cuda"
        if isinstance(stream, LhotseStreamOptions) and not stream.stored and on_gpu:
            raise UserError(
                f"configuration nnet.systems.{name}.data.on_the_fly.device: the "
                f"extractor {stream.extractor} chooses its device itself",
                remedy="leave it out, and set `device` in the options of the extractor "
                "if it has one",
            )


def check_extractors(recipe: Recipe) -> None:
    """Refuse extractors that cannot be made as the recipe says.

    Not part of `check_extractor_uses`: it takes Lhotse and torch, which reading a
    recipe does without.

    Raises:
        UserError: names the key; see `LhotseExtractor`.
    """
    found = list(_extractors(recipe))
    if not found:
        return
    try:
        from latflow.features.lhotse_extractors import LhotseExtractor, adds_features
    except ModuleNotFoundError:  # they are in the environments of the jobs alone
        return
    for key, options in found:
        extractor = LhotseExtractor(options, options.sample_rate, key=key)
        if isinstance(options, LhotseStreamOptions) and not options.stored:
            extractor.check_lengths()
        for name, network in recipe.networks.items():
            is_read = key == f"nnet.features.{recipe.stream_of(name)}"
            is_mixed = is_read and network.data.mixing is not None
            if is_mixed and not adds_features(extractor.instance()):
                raise UserError(
                    f"configuration nnet.systems.{name}.data.mixing: features of the "
                    f"extractor {options.extractor} do not add up",
                    remedy="leave it out, or take features of type fbank",
                )


def _extractors(recipe: Recipe) -> Iterator[tuple[str, LhotseExtractionOptions]]:
    """Yield the features of type `lhotse` with their keys in the recipe."""
    named = {"features": recipe.options.features} | {
        f"nnet.features.{name}": stream
        for name, stream in recipe.feature_streams.items()
    }
    for key, options in named.items():
        if isinstance(options, LhotseExtractionOptions):
            yield key, options
