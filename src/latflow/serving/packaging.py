"""The stage that writes a trained system as a package (`latflow.serving.package`).

Of a system that adapts to speakers it writes one that aligns.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from latflow.align.boundary_model import FILE as BOUNDARIES
from latflow.align.boundary_model import BoundaryModel
from latflow.corpus.manifests import read_cuts
from latflow.decode.options import NetworkScoreOptions
from latflow.errors import UserError
from latflow.features.cmvn import STATISTICS
from latflow.features.options import LhotseFrontEndOptions
from latflow.files import atomic_directory, file_digest
from latflow.gmm.model import ALIGNMENT_MODEL, MATRIX
from latflow.lang.directory import Lang
from latflow.lang.lm_trie import LmTrie
from latflow.lang.pronouncer import Pronouncer
from latflow.lang.silence import SILENCE_FILE
from latflow.nnet.described import described_licences
from latflow.nnet.model_dir import keep_decoded
from latflow.options import PositiveInt
from latflow.own_folder import PACKAGE, check_own_folder
from latflow.provenance import versions
from latflow.scoring.calibration import (
    Curve,
    ScoredWords,
    calibration_error,
    fit_curve,
)
from latflow.scoring.results import is_far_worse
from latflow.scoring.tune import read_scales
from latflow.serving.acoustics import Acoustics
from latflow.serving.features import make_front_end
from latflow.serving.package import (
    GRAMMAR,
    IVECTORS,
    LM,
    GmmPackage,
    Model,
    ScoredSystem,
)
from latflow.serving.package_info import (
    FORMAT,
    INFO,
    PackageInfo,
    SystemFacts,
    check_files,
    read_info,
)
from latflow.serving.session_search import G2P, why_no_words
from latflow.user_code import trusting

log = logging.getLogger(__name__)

# Files of a folder that go along: those that must be there, and others.
# Recognition needs no tree of a network; folders of Vosk may come without.
_NETWORK = (
    ("final.mdl", "network.yaml", "weights.safetensors", "meta.json"),
    ("tree", "priors.npy"),
)
_GMM = ("final.mdl", "tree", "transform.json"), (MATRIX, ALIGNMENT_MODEL)
_LANG = (
    ("words.txt", "phones.txt", "oov.txt", "oov.int", "topo"),
    ("lexiconp.txt", "lexicon.txt", SILENCE_FILE, "phones/align_lexicon.txt"),
)


class PackageOptions(SystemFacts):
    """Properties of a system that are not in its files."""

    sample_rate: PositiveInt | None = None
    """Sample rate of the features, Hz; null for that of the recordings."""
    scores: NetworkScoreOptions = NetworkScoreOptions()
    """Use of a network's scores."""
    offline: bool = False
    """Permission to package a system that cannot be streamed."""
    only_aligns: bool = False
    """Permission to package a GMM system without a graph."""


@dataclass(frozen=True, kw_only=True)
class PackageFiles:
    """Files that a package is made of."""

    model_dir: Path
    """Folder of the system."""
    lang_dir: Path
    """Language directory of the system."""
    graph: Path | None = None
    """`HCLG.fst` that it decodes with; None where it only aligns."""
    scales: Path | None = None
    """`scales.json` with the chosen `lmwt` and `wip`; None likewise."""
    recordings: Path | None = None
    """`cuts.jsonl.gz` of the training set, for its sample rate where the options have
    none."""
    frames_dir: Path | None = None
    """Folder of the frames of the training set, with its statistics in `cmvn.ark`, for
    normalization by `global` or `online`."""
    ivectors: Path | None = None
    """`extractor.npz` of the i-vectors that the network takes."""
    grammar: Path | None = None
    """`G.fst` of the graph, where lattices are rescored."""
    arpa: Path | None = None
    """The second language model, where they are."""
    g2p: Path | None = None
    """G2P model for words that sessions bring without phones, see
    `latflow.lang.pronouncer`."""
    licence: Path | None = None
    """Text with the terms of use of the data."""
    scores: Path | None = None
    """`hyp.ctm` of dev, in the folder of its scores; confidences are fitted to them.
    Without it they are posteriors."""
    parent_scales: Path | None = None
    """`scales.json` of the network that a sequence-trained one started from."""


def write_package(
    files: PackageFiles, out_dir: Path, *, options: PackageOptions
) -> None:
    """Write a system as a package (stage).

    Args:
        files: parts of the system, its models and what is known of it.
        out_dir: the package; must be new, empty or a package, which is replaced.
        options: what is not in the files.

    Raises:
        UserError: the folder holds something else, a file is missing or faulty, parts
            do not fit each other, or the system cannot be streamed though that is not
            allowed.
    """
    check_own_folder(out_dir, *PACKAGE)
    why_aligning = _why_aligning(files, options)
    with atomic_directory(out_dir) as folder:
        lang = _copy_parts(files, folder, options, recognizes=why_aligning is None)
        with trusting(True) as own_code:  # noqa: FBT003 - of the recipe
            found = ScoredSystem.load(folder / "model", options.kind, options.scores)
            front_end = make_front_end(
                options.front_end, _rate(options, files.recordings)
            )
        why_not = why_aligning or _why_not_streaming(options, found.acoustics)
        if why_not not in (why_aligning, None) and not options.offline:
            raise UserError(
                f"{options.name} cannot be streamed: {why_not}",
                remedy="package it with --offline (package.offline: true), for "
                "recordings that are there as a whole",
            )
        chosen = {"lmwt": None, "wip": None}
        if why_aligning is None:
            chosen = read_scales(_given(files.scales, "scales"))
        by_frame = options.search.acoustic_scale * found.lattice_scale
        info = PackageInfo(
            **{name: getattr(options, name) for name in SystemFacts.model_fields},
            format=FORMAT,
            sample_rate=front_end.sample_rate,
            frame_shift=front_end.frame_shift,
            subsampling=found.acoustics.subsampling,
            period=found.acoustics.period,
            acoustic_scale=found.acoustic_scale or by_frame,
            lattice_scale=found.lattice_scale,
            prior_scale=found.prior_scale,
            lmwt=chosen["lmwt"],
            wip=chosen["wip"],
            confidences=_confidences(files.scores),
            silence_phones=tuple(lang.silence_phones),
            is_streaming=why_not is None,
            why_not_streaming=why_not,
            why_not_recognizing=why_aligning,
            licence=_licences(files),
            versions=versions(),
            digests=_digests(folder),
        )
        text = json.dumps(info.values(), indent=1, ensure_ascii=False) + "\n"
        (folder / INFO).write_text(text, encoding="utf-8")
        (GmmPackage if why_aligning else Model).load(folder, trust_code=True)
    _compare_with_parent(files, options.name)
    _warn_of_code(out_dir, own_code)


def _copy_parts(
    files: PackageFiles, folder: Path, options: PackageOptions, *, recognizes: bool
) -> Lang:
    """Copy the parts of a system into a package; return its language."""
    _copy_model(files.model_dir, folder / "model", is_gmm=options.kind == "gmm")
    _copy_all(files.lang_dir, folder / "lang", _LANG)
    for path in sorted((files.lang_dir / "phones").glob("*.int")):
        _copy(path, folder / "lang/phones" / path.name)
    if recognizes:
        _copy(_given(files.graph, "graph"), folder / "graph/HCLG.fst")
    if options.cmvn.statistics == "set":
        frames = _given(files.frames_dir, "frames of the training set")
        _copy(frames / STATISTICS, folder / "model" / STATISTICS)
    if files.ivectors is not None:
        _copy(files.ivectors, folder / IVECTORS)
    lang = Lang.load(folder / "lang")
    if files.g2p is not None and recognizes:
        _add_g2p(files.g2p, folder, lang, options)
    if options.rescoring is not None:
        _copy(_given(files.grammar, "grammar"), folder / GRAMMAR)
        second = LmTrie.load(_given(files.arpa, "language model"), lang.word_ids)
        second.save(folder / LM)
    return lang


def _add_g2p(model: Path, folder: Path, lang: Lang, options: PackageOptions) -> None:
    """Add a G2P model to a package that words can be added to.

    Raises:
        UserError: they can't; or the model has other phones.
    """
    if fault := why_no_words(folder, is_rescored=options.rescoring is not None):
        raise UserError(
            f"{options.name} can have no G2P model, since words can't be added to its "
            f"package: {fault}",
            remedy="package it without one (package.g2p: false), or take a network of "
            "LF-MMI with decode.composition: lookahead",
        )
    Pronouncer.load(model, lang)
    (shutil.copytree if model.is_dir() else shutil.copyfile)(model, folder / G2P)


def _why_aligning(files: PackageFiles, options: PackageOptions) -> str | None:
    """Return why a package only aligns; None where it recognizes speech."""
    if options.kind != "gmm":
        return None
    if (files.model_dir / ALIGNMENT_MODEL).is_file():
        return "it adapts to speakers in two passes over their speech"
    return "it has no decoding graph" if options.only_aligns else None


def _licences(files: PackageFiles) -> str:
    """Return the terms of use of the data, and of encoders that the network holds."""
    texts = []
    if files.licence is not None:
        texts.append(files.licence.read_text(encoding="utf-8"))
    if (path := files.model_dir / "network.yaml").is_file():
        texts += described_licences(path)
    return "\n".join(text for text in texts if text)


def _confidences(scores: Path | None) -> Curve:
    """Return the curve of the confidences; an empty one where nothing was scored."""
    if scores is None:
        return ()
    if not scores.is_file():
        log.warning("%s is not there: confidences are posteriors", scores)
        return ()
    words = ScoredWords.read(scores.parent)
    if curve := fit_curve(words):
        log.info(
            "confidences of %d words of dev: expected calibration error %.1f %%, "
            "fitted %.1f %%",
            len(words.confidence),
            100 * calibration_error(words),
            100 * calibration_error(words, curve),
        )
    else:
        log.info("posteriors of dev's words need, or can have, no calibration")
    return curve


def _compare_with_parent(files: PackageFiles, name: str) -> None:
    """Warn of a network that gets far more of dev's words wrong than its parent."""
    if files.scales is None or files.parent_scales is None:
        return
    found, before = (
        read_scales(path).get("wer") for path in (files.scales, files.parent_scales)
    )
    if found is not None and before is not None and is_far_worse(found, before):
        log.warning(
            "%s gets %.2f %% of dev's words wrong, and the network that its training "
            "started from %.2f %%: its training failed, package that one",
            name,
            found,
            before,
        )


def _warn_of_code(package: Path, locations: Iterable[str]) -> None:
    """Warn if a package names code."""
    if names := ", ".join(dict.fromkeys(locations)):
        log.warning(
            "%s: %s is code that the package names and does not hold: who uses the "
            "package needs it, and must say --trust-code (trust_code: true)",
            package,
            names,
        )


def _copy_model(source: Path, target: Path, *, is_gmm: bool) -> None:
    """Copy a system, without outputs that only help training."""
    _copy_all(source, target, _GMM if is_gmm else _NETWORK)
    if not is_gmm:
        with trusting(True):  # noqa: FBT003 - of the recipe
            keep_decoded(target)


def _copy_all(
    source: Path, target: Path, names: tuple[Iterable[str], Iterable[str]]
) -> None:
    """Copy files of a folder: those that must be there, and those that are."""
    needed, others = names
    for name in (*needed, *(name for name in others if (source / name).is_file())):
        _copy(source / name, target / name)


def _copy(source: Path, target: Path) -> None:
    if not source.is_file():
        raise UserError("no such file", file=source, remedy="train the system first")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _given(path: Path | None, what: str) -> Path:
    """Return a file that a system of this kind needs."""
    if path is None:
        raise UserError(f"no {what} given", remedy="name all files of the system")
    return path


def _rate(options: PackageOptions, recordings: Path | None) -> int | None:
    """Return the sample rate of the features: as set, the extractor's, of recordings.

    Raises:
        UserError: it is in none of them.
    """
    if options.sample_rate or isinstance(options.front_end, LhotseFrontEndOptions):
        return options.sample_rate
    first = None if recordings is None else next(read_cuts(recordings), None)
    if first is None:
        raise UserError(
            "the sample rate of the features is not known",
            file=recordings,
            remedy="set sample_rate of the features",
        )
    return int(first.sampling_rate)


def _why_not_streaming(options: PackageOptions, acoustics: Acoustics) -> str | None:
    """Return why a system cannot be streamed; None where it can."""
    if isinstance(options.front_end, LhotseFrontEndOptions):
        return f"the extractor {options.front_end.extractor} takes whole signals"
    if not options.cmvn.is_causal:
        return (
            f"cmvn of type {options.cmvn.type} normalizes features with frames to come"
        )
    if None in acoustics.context:
        return "its network, or the normalization of its input, sees whole utterances"
    return None


def _digests(folder: Path) -> dict[str, str]:
    """Return the digests of all files below a folder, by path in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): file_digest(path) for path in files}


def rewrite_package(
    source: Path, info: PackageInfo, folder: Path, change: Callable[[Path], None]
) -> None:
    """Write a package with some files changed, or more of them.

    Args:
        source: folder of the package that it is made of.
        info: of that package.
        folder: gets the new one.
        change: writes the files that differ into it.
    """
    for name in info.digests:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, folder / name)
    change(folder)
    text = info.replace(digests=_digests(folder)).values()
    line = json.dumps(text, indent=1, ensure_ascii=False) + "\n"
    (folder / INFO).write_text(line, encoding="utf-8")


def add_boundaries(package_dir: Path, model: BoundaryModel, out_dir: Path) -> None:
    """Write a package with a model of boundaries.

    Args:
        package_dir: the package that it is made of.
        model: of boundaries.
        out_dir: the new package; see `write_package`.

    Raises:
        UserError: the package is faulty, or the folder holds something else.
    """
    check_own_folder(out_dir, *PACKAGE)
    info = read_info(package_dir)
    check_files(package_dir, info)
    with atomic_directory(out_dir) as folder:
        rewrite_package(
            package_dir, info, folder, lambda new: model.save(new / BOUNDARIES)
        )
