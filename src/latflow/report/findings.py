"""Findings in an experiment's files that ask for something, each with its evidence."""

from __future__ import annotations

from collections.abc import Iterator

from latflow.ledger import read_ledger
from latflow.report.choice import Decision, Rates
from latflow.report.inputs import Results, read_json, read_log
from latflow.report.records import Lattices, Scales
from latflow.report.significance import could_be_chance, p_text
from latflow.scoring.results import is_far_worse
from latflow.scoring.tune import SCALES
from latflow.training.options import SequenceSystemOptions

_MISMATCH = 1.5  # test over dev
_HIGH_ORACLE = 0.5  # of the best path's errors
_HIGH_OOV = 1.0  # per cent of the words
_HIGH_SKIPPED = 0.01  # of the utterances of a stage
_OVERFITTING = 1.02  # last loss over the least

Findings = Iterator[tuple[str, str]]  # what was found, what to try


def failures(results: Results, rates: Rates) -> list[str]:
    """Report which networks training on lattices made far worse on dev."""
    sentences = []
    for system, options in results.options.nnet.systems.items():
        if not isinstance(options, SequenceSystemOptions):
            continue
        found, before = rates.get((system, "dev")), rates.get((options.parent, "dev"))
        if found is None or before is None:
            continue
        if is_far_worse(found, before):
            sentences.append(
                f"The training of {system} failed: it gets {found:.2f} % of dev's "
                f"words wrong, and {options.parent}, which it started from, "
                f"{before:.2f} %."
            )
    return sentences


def findings(results: Results, decision: Decision) -> Findings:
    """Yield what was found and what to try, by one rule after the other."""
    for rule in _RULES:
        yield from rule(results, decision)


def _mismatch(results: Results, decision: Decision) -> Findings:  # noqa: ARG001
    """Find a dev set that is much easier than the test set."""
    dev, test = (decision.rates[decision.system, s] for s in ("dev", decision.test))
    if test > _MISMATCH * dev and test - dev > 1:
        yield (
            f"{decision.test} has {test:.2f} % errors, dev {dev:.2f} %",
            "make dev more like the test set: speakers that no one trains on, "
            "sentences that the language model has not seen",
        )


def _edges(results: Results, decision: Decision) -> Findings:  # noqa: ARG001
    """Find systems whose best weight or penalty is an end of those tried."""
    for system in results.recipe.decodings:
        scales = read_json(results / f"tune/{system}/scales.json", Scales)
        for name, value in scales.edges if scales else ():
            yield (
                f"the best {SCALES[name]} of {system}, {value:g}, lies at the "
                "edge of the sweep",
                "decode.tune.widen: true, or other bounds in decode.tune",
            )


def _oracle(results: Results, decision: Decision) -> Findings:
    """Find lattices that lack the right words."""
    for system in results.recipe.decodings:
        path = results.score_folder(system, decision.test) / "lattices.json"
        measured = read_json(path, Lattices)
        best = None if measured is None else measured.best_wer
        oracle = None if measured is None else measured.oracle_wer
        if best is None or oracle is None:
            continue
        if oracle > _HIGH_ORACLE * best and oracle > 1:
            yield (
                f"{system}: even the least wrong paths of the lattices have "
                f"{oracle:.2f} % errors, the best paths {best:.2f} %",
                "widen decode.lattice_beam and decode.beam; if nothing changes, the "
                "language model or the lexicon lacks words of the reference",
            )


def _oov(results: Results, decision: Decision) -> Findings:
    """Find words that cannot be recognized."""
    size = results.split_sizes.get(decision.test)
    if size is None or size.oov is None or not size.words:
        return
    share = 100 * size.oov / size.words
    if share > _HIGH_OOV:
        yield (
            f"{share:.1f} % of {decision.test}'s words are not in the lexicon",
            "add their pronunciations to the lexicon, and the words to the language "
            "model's text",
        )


def _skipped(results: Results, decision: Decision) -> Findings:  # noqa: ARG001
    """Find stages that left many training utterances out."""
    size = results.split_sizes.get("train")
    if size is None or not size.utterances:
        return
    for path in sorted(results.folder.glob("align/*/train/ledger.jsonl")):
        skipped = {e.utterance for e in read_ledger(path) if e.action == "skipped"}
        if len(skipped) > _HIGH_SKIPPED * size.utterances:
            yield (
                f"{path.parent.parent.name} could not align {len(skipped)} of "
                f"{size.utterances} training utterances",
                "listen to them: wrong transcripts, cut audio or silence; a wider "
                "align.retry_beam takes the hard ones in",
            )


def _overfitting(results: Results, decision: Decision) -> Findings:  # noqa: ARG001
    """Find networks whose dev loss rose again."""
    for system in results.recipe.networks:
        log = read_log(results / f"nnet/{system}/log.jsonl")
        lines = [line.get("dev", {}) for line in log.epochs] if log else []
        losses = [line["loss"] for line in lines if "loss" in line]
        if len(losses) < 3 or min(losses) <= 0:
            continue
        if losses[-1] > _OVERFITTING * min(losses):
            epoch = 1 + losses.index(min(losses))
            yield (
                f"dev loss of {system} was least after epoch {epoch} of {len(losses)} "
                "and has risen since",
                "fewer epochs, dropout, augmentation (speed, SpecAugment) or more "
                "speech",
            )


def _worse_than_seed(results: Results, decision: Decision) -> Findings:  # noqa: ARG001
    """Find networks that training on lattices made worse on dev."""
    for system, options in results.options.nnet.systems.items():
        if not isinstance(options, SequenceSystemOptions):
            continue
        verdict = results.verdict(system, "dev")
        if verdict is None or verdict.found.difference <= 0:
            continue
        yield (
            f"{system} has {verdict.found.difference:.2f} % (absolute) more errors on "
            f"dev than {verdict.old}, which it started from: {verdict.reading} "
            f"(p {p_text(verdict.found.p_value)})",
            "more speech in dev shows what is chance; other learning rates, more passes"
            if could_be_chance(verdict.reading)
            else "a smaller learning rate, or parts of epochs to choose among "
            "(data.partition_epoch)",
        )


_RULES = (
    *(_mismatch, _edges, _oracle, _oov, _skipped),
    *(_overfitting, _worse_than_seed),
)
