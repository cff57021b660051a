"""Look over an experiment's data before it runs, and say what would go wrong.

`examine_sources` needs nothing but the configuration: it reads the text files of Kaldi
directories and manifests, and looks whether audio files are there. `examine` goes
further on prepared corpora, where durations and sample rates are known. Both return
findings (`latflow.workflow.survey.Finding`): an `error` will stop the experiment or
spoil it, a `warning` probably should not be there, a `note` is good to know.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from latflow.corpus.manifests import read_cuts, supervision_of
from latflow.corpus.options import CorpusOptions, NoSource
from latflow.errors import UserError
from latflow.features.options import (
    FrontEndOptions,
    GmmFeatures,
    Stream,
)
from latflow.files import size_text
from latflow.hmm.topology import Topology
from latflow.lang.directory import read_symbols
from latflow.lang.options import LangOptions
from latflow.lang.special_words import special_names
from latflow.workflow.amounts import split_amounts
from latflow.workflow.findings import Finding, Severity, finding_of, some
from latflow.workflow.language import check_lexicon
from latflow.workflow.machine import device_memory, gpus
from latflow.workflow.packages import ONE_VOLUME, PackagePlan
from latflow.workflow.recipe import Recipe
from latflow.workflow.survey import Dictionary, Survey, survey_source

if TYPE_CHECKING:
    from latflow.training.memory import TrainingMemory

_ORDER: tuple[Severity, ...] = ("error", "warning", "note")


def examine_experiment(recipe: Recipe) -> list[Finding]:
    """Examine what an experiment has: networks, corpora or their sources, a GPU.

    Returns:
        Findings, the worst first.
    """
    return _sorted(
        [
            *_networks(recipe),
            *_device(recipe),
            *_memory(recipe),
            *_volumes(recipe),
            *map(finding_of, recipe.language.model_errors()),
            *_data(recipe),
        ]
    )


def _device(recipe: Recipe) -> Iterator[Finding]:
    """Note where networks are trained, if this machine has no GPU."""
    device = recipe.options.nnet.device
    if not recipe.networks or device == "cpu" or gpus():
        return
    if device == "cuda":
        remedy = "set it to auto or cpu, unless jobs run on other machines"
        yield Finding("warning", "nnet.device", "cuda, but no GPU is here", remedy)
    else:
        what = "no GPU is here: networks are trained on the processor"
        remedy = "see latflow plan for the time that it takes"
        yield Finding("note", "nnet.device", what, remedy)


def _networks(recipe: Recipe) -> list[Finding]:
    """Find the first fault of the descriptions of networks."""
    try:
        recipe.check_definitions()
    except UserError as error:
        return [finding_of(error)]
    return []


def _volumes(recipe: Recipe) -> Iterator[Finding]:
    """Find networks to be used that misrecognize what is softer than their training."""
    for name in recipe.options.package.systems:
        if PackagePlan(recipe, name).knows_one_volume:
            yield Finding("warning", f"nnet.systems.{name}", *ONE_VOLUME)


def _memory(recipe: Recipe) -> Iterator[Finding]:
    """Compare what the largest training keeps in memory with what there is of it."""
    found = _training_memory(recipe)
    known = {name: memory for name, memory in found.items() if memory is not None}
    if not known:
        return
    name, needed = max(known.items(), key=lambda item: item[1].total)
    on_gpu = recipe.options.nnet.device != "cpu" and gpus() > 0
    there = device_memory(on_gpu=on_gpu)
    what = (
        f"its training keeps at least {size_text(needed.total)} in memory: "
        f"{needed.parameters / 1e6:,.1f} million parameters, with gradient and "
        f"optimizer {size_text(needed.state)}; the largest batch "
        f"{size_text(needed.batch)}; {'a GPU' if on_gpu else 'this machine'} has "
        f"{size_text(there) if there else 'an unknown amount'}"
    )
    place = f"nnet.systems.{name}"
    if there and needed.total > there:
        remedy = (
            "take a smaller network, or lower data.max_frames, data.max_sequences or "
            "training.micro_sequences, unless jobs run on other machines"
        )
        yield Finding("warning", place, what, remedy)
    else:
        yield Finding("note", place, what, "nothing to do")


def _training_memory(recipe: Recipe) -> dict[str, TrainingMemory | None]:
    """Return what trainings of networks take of memory; {} if it is not known."""
    try:
        from latflow.workflow.network_sizes import NetworkSizes
    except ModuleNotFoundError:  # torch is in the environments of the jobs alone
        return {}
    try:
        sizes = NetworkSizes(recipe, split_amounts(recipe, {}, {}))
        return {name: sizes.memory(name) for name in recipe.networks}
    except UserError:  # reported where it is found: networks, frames, sources
        return {}


def _data(recipe: Recipe) -> list[Finding]:
    """Examine the prepared corpora of an experiment, or else their sources."""
    results = Path(recipe.results)
    prepared = {
        split: path
        for split in recipe.splits
        if (path := results / "corpus" / split / "cuts.jsonl.gz").is_file()
    }
    lexicon = recipe.language.lexicon
    options = recipe.options
    common = (options.lang, options.features)
    if len(prepared) == len(recipe.splits):
        lang_dir = results / "lang"
        return examine(
            prepared,
            lexicon,
            *common,
            streams=options.nnet.features,
            lang_dir=lang_dir if (lang_dir / "phones.txt").is_file() else None,
        )
    own = options.lang.lexicon
    return examine_sources(
        options.corpus,
        own and lexicon,
        *common,
        recipe.max_skipped_fraction,
        streams=options.nnet.features,
    )


def examine(
    cuts: Mapping[str, str | Path],
    lexicon: str | Path,
    lang: LangOptions,
    features: GmmFeatures,
    *,
    lang_dir: str | Path | None = None,
    streams: Mapping[str, Stream] = MappingProxyType({}),
) -> list[Finding]:
    """Examine prepared corpora.

    Args:
        cuts: cut manifest of each split; `train` is the training set.
        lang_dir: Kaldi lang directory, if it is made already.
        streams: features of networks, by name.

    Returns:
        Findings, the worst first. Manifests are streamed.
    """
    findings: list[Finding] = []
    dictionary = _dictionary(lexicon, lang, findings)
    surveys = []
    for split, path in cuts.items():
        survey = Survey(split, str(path), dictionary, features)
        try:
            for cut in read_cuts(path):
                supervision = supervision_of(cut)
                survey.add(
                    cut.id,
                    supervision.speaker,
                    (supervision.text or "").split(),
                    duration=cut.duration,
                    sample_rate=cut.sampling_rate,
                )
        except UserError as error:
            findings.append(finding_of(error))
        surveys.append(survey)
    findings += _common(surveys, dictionary)
    findings += _sample_rates(surveys, features)
    findings += _filters(surveys, features, streams)
    if lang_dir is not None and dictionary is not None:
        findings += _topology(Path(lang_dir), dictionary)
    return _sorted(findings)


def examine_sources(
    corpus: CorpusOptions,
    lexicon: str | Path | None,
    lang: LangOptions,
    features: GmmFeatures,
    max_skipped_fraction: float = 1.0,
    *,
    streams: Mapping[str, Stream] = MappingProxyType({}),
) -> list[Finding]:
    """Examine an experiment of which nothing is prepared yet.

    Args:
        lexicon: pronunciation lexicon; None where the corpus brings its own.
        max_skipped_fraction: share of a set's utterances that may be skipped.
        streams: features of networks, by name.

    Returns:
        Findings, the worst first.
    """
    findings, surveys = survey_sources(
        corpus, lexicon, lang, features, max_skipped_fraction
    )
    findings += _filters(surveys, features, streams)
    return _sorted(findings)


def examine_corpus(
    corpus: CorpusOptions,
    lexicon: str | Path,
    lang: LangOptions,
    features: GmmFeatures,
    max_skipped_fraction: float = 1.0,
) -> tuple[list[Finding], Survey]:
    """Examine a training set alone; arguments as of `examine_sources`.

    Returns:
        (findings, the worst first; what was counted of the training set).
    """
    findings, surveys = survey_sources(
        corpus, lexicon, lang, features, max_skipped_fraction
    )
    return _sorted(findings), surveys[0]


def survey_sources(
    corpus: CorpusOptions,
    lexicon: str | Path | None,
    lang: LangOptions,
    features: GmmFeatures,
    max_skipped_fraction: float,
) -> tuple[list[Finding], list[Survey]]:
    """Survey the sets of an experiment of which nothing is prepared yet.

    Args:
        corpus: sources; one that is held out is passed over.
        lexicon: pronunciation lexicon; None for none.
        max_skipped_fraction: share of a set's utterances that may be skipped.

    Returns:
        (what is wrong with the sets by themselves and together; what was counted of
        each: train, dev if it has its own source, and the test sets).
    """
    findings: list[Finding] = []
    dictionary = None if lexicon is None else _dictionary(lexicon, lang, findings)
    surveys = []
    for split, source in {
        "train": corpus.train,
        "dev": corpus.dev,
        **corpus.test,
    }.items():
        if isinstance(source, NoSource):
            continue
        named = {"path", "supervisions"} & type(source).model_fields.keys()
        file = next((getattr(source, name) for name in named), split)
        survey = Survey(split, file, dictionary, features)
        findings += survey_source(
            source, survey, max_skipped_fraction=max_skipped_fraction
        )
        surveys.append(survey)
    findings += _common(surveys, dictionary)
    findings += _sample_rates(surveys, features)
    return findings, surveys


def render(findings: Iterable[Finding]) -> str:
    """Return findings as lines, with a summary at the end."""
    listed = _sorted(list(findings))
    counts = Counter(finding.severity for finding in listed)
    summary = ", ".join(
        f"{counts[severity]} {severity}{'s' if counts[severity] != 1 else ''}"
        for severity in _ORDER
    )
    return "\n".join([*map(str, listed), summary])


def _dictionary(
    path: str | Path, lang: LangOptions, findings: list[Finding]
) -> Dictionary | None:
    """Return the lexicon; what is wrong with it becomes a finding."""
    try:
        lexicon = check_lexicon(path, lang)
    except UserError as error:
        findings.append(finding_of(error))
        return None
    return Dictionary.of(lexicon, str(path), lang, special_names(lexicon, lang))


def _filters(
    surveys: list[Survey], features: GmmFeatures, streams: Mapping[str, Stream]
) -> Iterator[Finding]:
    """Find mel filters that do not fit the sample rates of the recordings."""
    from latflow.features.front_end import mel_edges  # and Numba: half a second

    rates = {rate for survey in surveys for rate in survey.sample_rates}
    named = {"features": features}
    named |= {f"nnet.features.{name}": stream for name, stream in streams.items()}
    for key, options in named.items():
        if not isinstance(options, FrontEndOptions) or options.type == "waveform":
            continue
        for rate in {options.sample_rate} if options.sample_rate else rates:
            try:
                mel_edges(
                    options.num_mel_bins,
                    rate,
                    low_freq=options.low_freq,
                    high_freq=options.high_freq,
                )
            except UserError as error:
                remedy = f"set {key}.low_freq and {key}.high_freq"
                yield Finding("error", key, error.what, remedy)


def _common(surveys: list[Survey], dictionary: Dictionary | None) -> Iterator[Finding]:
    """Yield findings of each split, and between splits."""
    for survey in surveys:
        yield from survey.findings()
    train = next((s for s in surveys if s.split == "train"), None)
    if train is None:
        return
    yield from _unheard_phones(train, dictionary)
    for other in surveys:
        if other is not train:
            yield from _overlap(train, other)


def _overlap(train: Survey, other: Survey) -> Iterator[Finding]:
    """Yield speakers and utterances that are both trained on and tested on."""
    ids = sorted(train.ids & other.ids)
    if ids:
        yield Finding(
            "warning",
            other.file,
            f"{len(ids)} utterance ids are in train and in {other.split}: {some(ids)}",
            "make sure that they are not the same recordings",
        )
    speakers = sorted(train.speakers & other.speakers)
    if speakers:
        yield Finding(
            "note",
            other.file,
            f"{len(speakers)} speakers are in train and in {other.split}: "
            f"{some(speakers)}",
            "word error rates of speakers not in training will be higher",
        )


def _unheard_phones(train: Survey, dictionary: Dictionary | None) -> Iterator[Finding]:
    """Yield phones that no word of the training set has."""
    if dictionary is None or not train.words:
        return
    spoken = {
        phone
        for entry in dictionary.lexicon.entries
        if entry.word in train.words
        for phone in entry.phones
    }
    spoken.update(dictionary.names.silence_phones)  # no word needs to have them
    absent = [p for p in dictionary.lexicon.phones if p not in spoken]
    if absent:
        yield Finding(
            "warning",
            dictionary.file,
            f"{len(absent)} phones are in no word of train: {some(absent)}",
            "check their spelling; models of phones without speech stay as they begin",
        )


def _sample_rates(surveys: list[Survey], features: GmmFeatures) -> Iterator[Finding]:
    """Yield rates that differ among splits, or from that of the features."""
    wanted = features.sample_rate
    rates = sorted({rate for survey in surveys for rate in survey.sample_rates})
    for survey in surveys:
        shown = ", ".join(
            f"{n} at {r} Hz" for r, n in sorted(survey.sample_rates.items())
        )
        if wanted is None and len(rates) > 1:
            yield Finding(
                "error",
                survey.file,
                f"sample rates differ between recordings; {survey.split}: {shown}",
                f"set features.sample_rate, e.g. to {rates[0]}",
            )
        elif wanted is not None and set(survey.sample_rates) - {wanted}:
            low = [r for r in survey.sample_rates if r < wanted]
            yield Finding(
                "warning" if low else "note",
                survey.file,
                f"{survey.split}: {shown}; features are computed at {wanted} Hz",
                "recordings of a lower rate have nothing above half of it: lower "
                "features.sample_rate or features.high_freq"
                if low
                else "recordings will be resampled",
            )


def _topology(lang_dir: Path, dictionary: Dictionary) -> Iterator[Finding]:
    """Yield phones of the lexicon that the lang directory has no HMM for."""
    try:
        ids = read_symbols(lang_dir / "phones.txt")
        modelled = set(Topology.load(lang_dir / "topo").phones)
    except UserError as error:
        yield finding_of(error)
        return
    forms = ("", "_B", "_E", "_I", "_S")
    missing = [
        phone
        for phone in dictionary.lexicon.phones
        if not any(ids.get(phone + form) in modelled for form in forms)
    ]
    if missing:
        yield Finding(
            "error",
            str(lang_dir / "topo"),
            f"phones of the lexicon without topology: {some(missing)}",
            "make the lang directory again from this lexicon",
        )


def examine_disk(needed: float, results: str | Path) -> Finding:
    """Compare what an experiment is expected to write with the free disk.

    Args:
        needed: bytes, by the model of `latflow plan`.
        results: folder of the experiment.
    """
    path = Path(results)
    place = next(p for p in (path, *path.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    what = (
        f"the experiment will write about {size_text(needed)}; "
        f"{size_text(free)} are free"
    )
    if needed > free:
        remedy = "free space, or run in a folder on a larger disk"
        return Finding("error", str(results), what, remedy)
    if needed > 0.8 * free:
        return Finding("warning", str(results), what, "free space to be safe")
    return Finding("note", str(results), what, "nothing to do")


def _sorted(findings: list[Finding]) -> list[Finding]:
    """Return findings, the worst first, else in the order that they came in."""
    return sorted(findings, key=lambda finding: _ORDER.index(finding.severity))
