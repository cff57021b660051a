"""The lattice criterion: gradients, threads, parts of batches, failures."""

import json
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from fixtures.sequence_system import SCALE, Mmi
from torch.nn import functional

from latflow.criteria.options import CriterionOptions
from latflow.criteria.registry import make_criterion
from latflow.errors import UserError
from latflow.options import read_options


def run(system, criterion, utterances, **given):
    """Loss and gradient of the scores."""
    batch, logits = system.batch(utterances, **given)
    loss = criterion.begin(system.outputs(logits, batch), batch)()
    loss.value.backward()
    return loss, logits.grad.numpy()


@pytest.fixture
def make(system):
    """Makes criteria that are closed at the end."""
    made = []

    def make(**given):
        made.append(system.criterion(**given))
        return made[-1]

    yield make
    for criterion in made:
        criterion.close()


@pytest.fixture
def utterances(system):
    return list(system.scores)


@pytest.mark.parametrize("source", ["static", "on_the_fly"])
def test_threads_change_no_bit(system, make, utterances, source):
    results = [
        run(system, make(threads=n, alignments={"source": source}), utterances)
        for n in (1, 3)
    ]
    (one, grad_one), (many, grad_many) = results
    assert one.value.item() == many.value.item()
    np.testing.assert_array_equal(grad_one, grad_many)
    assert {k: v for k, v in one.statistics.items() if "seconds" not in k} == {
        k: v for k, v in many.statistics.items() if "seconds" not in k
    }


def test_batch_mates_and_padding_change_no_bit(system, make, utterances):
    criterion = make(threads=2)
    together, grad = run(system, criterion, utterances, pad=5)
    for b, utterance in enumerate(utterances):
        alone, grad_alone = run(system, criterion, [utterance])
        length = len(system.scores[utterance])
        assert alone.value.item() == together.by_sequence[b].item()
        np.testing.assert_array_equal(grad[b, :length], grad_alone[0])
        assert not grad[b, length:].any()


def test_parts_add_up_to_the_batch(system, make, utterances):
    criterion = make(ce_weight=0.3, l2=0.01)
    whole, _ = run(system, criterion, utterances)
    parts = [run(system, criterion, utterances[k::2])[0] for k in (0, 1)]
    assert sum(p.num_frames for p in parts) == whole.num_frames
    assert sum(p.value.item() for p in parts) == pytest.approx(
        whole.value.item(), rel=1e-6
    )
    for name, value in whole.statistics.items():
        if "seconds" not in name:
            total = sum(float(p.statistics[name]) for p in parts)
            assert total == pytest.approx(float(value), rel=1e-6), name


class FixedLattices:
    """Lattices made once: criteria take the scores of arcs from log-likelihoods."""

    def __init__(self, maker):
        self.maker, self.kept = maker, {}

    def make(self, utterance, *others):
        if utterance not in self.kept:
            self.kept[utterance] = self.maker.make(utterance, *others)
        return self.kept[utterance]


@pytest.mark.parametrize("kind", ["mmi", "smbr", "mpfe", "phone_mpe"])
def test_gradient_is_that_of_the_value_through_a_network(
    system, make, utterances, kind
):
    """Finite differences of the whole loss to the parameters of a linear layer."""
    keep = {"absent_numerator": "keep"} if kind == "mmi" else {}
    options = {"type": kind, "acoustic_scale": SCALE, **keep}
    lattices = make_criterion(
        read_options(CriterionOptions, options),
        system.model,
        system.lang.silence_phones,
    )
    priors = torch.linspace(-3, -1, system.model.num_pdfs).double() * 0.7
    criterion = make(
        log_priors=priors, ce_weight=0.3, l2=0.02, threads=2, criterion=lattices
    )
    generator = criterion._generator
    generator._maker = FixedLattices(generator._maker)
    batch, scores = system.batch(utterances[:3])
    batch = replace(batch, weight=torch.tensor([1.0, 0.5, 2.0]))
    features = scores.detach().double()
    torch.manual_seed(1)
    network = torch.nn.Linear(features.shape[-1], features.shape[-1]).double()
    with torch.no_grad():
        network.weight.copy_(torch.eye(len(network.weight)) + 0.05 * network.weight)

    def loss():
        outputs = system.outputs(network(features), batch)
        return criterion.begin(outputs, batch)().value

    (3.7 * loss()).backward()
    rng = np.random.default_rng(3)
    for parameter in network.parameters():
        direction = torch.from_numpy(rng.normal(size=tuple(parameter.shape)))
        expected = float((parameter.grad * direction).sum())
        step, values = 1e-4, []
        with torch.no_grad():
            for sign in (1, -1):
                parameter.add_(direction, alpha=sign * step)
                values.append(loss().item())
                parameter.sub_(direction, alpha=sign * step)
        found = 3.7 * (values[0] - values[1]) / (2 * step)
        assert found == pytest.approx(expected, rel=1e-4)


def test_priors_are_taken_off(system, make, utterances):
    seen = []

    class Listening(Mmi):
        def evaluate(self, utterance, gradient):
            seen.append(utterance.log_likes.copy())
            return super().evaluate(utterance, gradient)

    log_priors = torch.randn(system.model.num_pdfs)
    criterion = make(criterion=Listening(system.model), log_priors=log_priors)
    run(system, criterion, utterances[:1])
    posteriors = torch.from_numpy(system.scores[utterances[0]]).log_softmax(-1)
    np.testing.assert_allclose(seen[0], posteriors - log_priors, atol=1e-5)


def test_cross_entropy_and_l2_are_added(system, make, utterances):
    base, _ = run(system, make(), utterances)
    criterion = make(ce_weight=0.25, l2=0.5)
    loss, _ = run(system, criterion, utterances)
    ce = squares = 0.0
    for utterance in utterances:
        scores = torch.from_numpy(system.scores[utterance]).double()
        alignment = criterion._generator._alignments._static.get(utterance)
        labels = torch.from_numpy(system.model.pdf[alignment]).long()
        ce += functional.cross_entropy(scores, labels, reduction="sum").item()
        squares += scores.square().sum().item()
    assert float(loss.statistics["ce"]) == pytest.approx(ce, rel=1e-5)
    expected = base.value.item() + 0.25 * ce + 0.25 * squares
    assert loss.value.item() == pytest.approx(expected, rel=1e-5)


def test_next_part_begins_while_lattices_are_made(system, make, utterances):
    """Work of two parts is under way at a time, and the caller is not held up."""
    reached, go_on = threading.Semaphore(0), threading.Event()

    class Waiting(Mmi):
        def evaluate(self, utterance, gradient):
            reached.release()
            assert go_on.wait(120)
            return super().evaluate(utterance, gradient)

    criterion = make(criterion=Waiting(system.model), threads=2)
    assert criterion.max_pending == 2
    parts = [system.batch([u]) for u in utterances[:2]]
    pending = [criterion.begin(system.outputs(x, b), b) for b, x in parts]
    for _ in pending:
        assert reached.acquire(timeout=120)  # both are in the criterion at once
    go_on.set()
    losses = [finish() for finish in pending]
    alone = [run(system, make(), [u])[0] for u in utterances[:2]]
    assert [x.value.item() for x in losses] == [x.value.item() for x in alone]


def test_torch_keeps_quiet_while_lattices_are_made(system, make, utterances):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        criterion = make()
        batch, logits = system.batch(utterances)
        pending = [
            criterion.begin(system.outputs(logits, batch), batch) for _ in range(2)
        ]
        assert torch.get_num_threads() == 1
        pending[0]()
        assert torch.get_num_threads() == 1
        pending[1]()
        assert torch.get_num_threads() == 2
        criterion.begin(system.outputs(logits, batch), batch)
        criterion.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_oracle_errors_and_depth_are_measured(system, make, utterances):
    loss, _ = run(system, make(), utterances)
    words = sum(len(system.texts[u].split()) for u in utterances)
    assert loss.statistics["oracle_words"] == words
    assert loss.statistics["oracle_errors"] <= words / 4
    assert loss.statistics["depth"] >= loss.num_frames
    assert loss.statistics["lattice_beam"] == 6.0 * loss.num_frames
    none, _ = run(system, make(lattices={"oracle_every": 0}), utterances)
    assert none.statistics["oracle_words"] == 0


def test_frames_are_counted_whose_pdf_the_lattice_holds(system, make, utterances):
    kept = []

    class Keeping(Mmi):
        def evaluate(self, utterance, gradient):
            kept.append((utterance.raw, utterance.alignment))
            return super().evaluate(utterance, gradient)

    criterion = make(criterion=Keeping(system.model), lattices={"lattice_beam": 0.3})
    loss, _ = run(system, criterion, utterances)
    held, pdf = 0, system.model.pdf
    for lattice, alignment in kept:
        source = lattice.source()
        for t, said in enumerate(alignment):
            ids = lattice.transition_id[lattice.frame[source] == t]
            held += pdf[said] in pdf[ids[ids > 0]]
    assert loss.statistics["numerator_in_lattice"] == held
    assert 0 < held < loss.num_frames


def test_a_failing_search_is_skipped_and_told(system, make, utterances):
    narrow = {"beam": 1e-3, "min_active": 0, "max_active": 2, "retry_beam_factor": 2}
    criterion = make(lattices=narrow, ce_weight=1.0, l2=1.0)
    loss, grad = run(system, criterion, utterances)
    skipped = {e.utterance for e in criterion.journal.ledger.entries}
    assert 0 < len(skipped) < len(utterances)
    assert loss.statistics["skipped"] == len(skipped)
    assert loss.statistics["utterances"] == len(utterances)
    assert {e.action for e in criterion.journal.ledger.entries} == {"skipped"}
    counted = [u for u in utterances if u not in skipped]
    assert loss.num_frames == sum(len(system.scores[u]) for u in counted)
    for b, utterance in enumerate(utterances):
        assert grad[b].any() == (utterance not in skipped)
        assert (loss.by_sequence[b] != 0) == (utterance not in skipped)
    run(system, criterion, utterances)  # the ledger names each once
    assert len(criterion.journal.ledger.entries) == len(skipped)
    partial = make(lattices={**narrow, "on_no_final": "partial"})
    loss, _ = run(system, partial, utterances)
    assert loss.statistics["partial"] == len(skipped)
    assert loss.statistics["skipped"] == 0
    wide = make(lattices={**narrow, "max_active": 9, "retry_beam_factor": 1e5})
    loss, _ = run(system, wide, utterances)
    assert loss.statistics["retried"] == len(skipped)
    assert loss.statistics["skipped"] == 0


def test_too_many_failures_stop_the_training(system, make):
    criterion = make(lattices={"max_failed_fraction": 0.1})
    totals = {"frames": 100, "depth": 500.0, "utterances": 200.0, "skipped": 20.0}
    criterion.stepped(totals)
    with pytest.raises(UserError, match="21 of 200"):
        criterion.stepped({**totals, "utterances": 0.0, "skipped": 1.0})


def test_beam_follows_depth_and_survives_a_checkpoint(system, make, utterances):
    changes = {"lattices": {"depth": {"target": 3.0}}}
    criterion = make(**changes, alignments={"source": "on_the_fly"})
    loss, _ = run(system, criterion, utterances)
    totals = {"frames": loss.num_frames, **loss.statistics}
    before = loss.statistics["depth"]
    for _ in range(10):
        criterion.stepped(totals)
    assert criterion.lattice_beam < 6.0
    shallow, _ = run(system, criterion, utterances)
    assert shallow.statistics["depth"] < before
    state = json.loads(json.dumps(criterion.state()))
    other = make(**changes, alignments={"source": "on_the_fly"})
    other.load_states([state], is_main=True)
    assert other.state() == criterion.state()
    assert other.lattice_beam == criterion.lattice_beam
    again, _ = run(system, other, utterances)
    assert again.value.item() == shallow.value.item()
    state["journal"]["drift"].append([0, 0, 0])
    with pytest.raises(UserError, match="phones"):
        other.load_states([state], is_main=True)


def test_what_ranks_have_kept_is_added_up_once(system, make, utterances):
    settings = {"alignments": {"source": "on_the_fly", "beam": 1e-6}}
    ranks = [make(**settings), make(**settings)]
    for criterion, share in zip(ranks, (utterances[:2], utterances[2:]), strict=True):
        run(system, criterion, share)
    states = [criterion.state() for criterion in ranks]
    kept = [np.array(state["journal"]["drift"]) for state in states]
    assert all(counts.any() for counts in kept)
    events = sum(len(state["journal"]["ledger"]) for state in states)
    assert events > 0
    # Go on, with three ranks now.
    later = [make(**settings) for _ in range(3)]
    for rank, criterion in enumerate(later):
        criterion.load_states(states, is_main=rank == 0)
    later[0].journal.join([criterion.journal.contents() for criterion in later])
    assert (later[0].journal.drift.counts == sum(kept)).all()
    assert len(later[0].journal.ledger.entries) == events


def test_journal_is_written(system, make, utterances, tmp_path):
    criterion = make(alignments={"source": "on_the_fly", "beam": 1e-6})
    run(system, criterion, utterances)
    criterion.journal.write(tmp_path, system.lang.phones)
    drift = json.loads((tmp_path / "drift.json").read_text())
    frames = sum(len(x) for x in system.scores.values())
    assert sum(row["frames"] for row in drift.values()) == frames
    ledger = (tmp_path / "sequence_ledger.jsonl").read_text().splitlines()
    assert len(ledger) == len(criterion.journal.ledger.entries) > 0


def test_scores_that_are_not_numbers_are_named(system, make, utterances):
    batch, logits = system.batch(utterances)
    with torch.no_grad():
        logits[1, 3, 2] = float("nan")
    loss = make().begin(system.outputs(logits, batch), batch)()
    at_fault = (~loss.by_sequence.isfinite()).nonzero().flatten().tolist()
    assert at_fault == [1]
    assert not loss.value.isfinite()


def test_what_does_not_fit_is_refused(system, make, utterances):
    criterion = make()
    batch, logits = system.batch(utterances)
    with pytest.raises(UserError, match="classes"):
        criterion.begin(system.outputs(logits[..., 1:], batch), batch)
    pieces = replace(batch, first_frame=torch.tensor([0, 0, 8, 0, 0, 0]))
    with pytest.raises(UserError, match="whole utterances") as error:
        criterion.begin(system.outputs(logits, pieces), pieces)
    assert error.value.utterance == utterances[2]
    longer, scores = system.batch([utterances[0]], pad=1)
    longer = replace(longer, lengths=longer.lengths + 1)
    with pytest.raises(UserError, match="its alignment has"):
        criterion.begin(system.outputs(scores, longer), longer)()
    assert torch.get_num_threads() >= 1


def test_an_error_of_the_criterion_names_the_utterance(system, make, utterances):
    class Failing(Mmi):
        def evaluate(self, utterance, gradient):
            if len(gradient) == len(system.scores[utterances[1]]):
                raise UserError("it is broken", remedy="fix it")
            return super().evaluate(utterance, gradient)

    with pytest.raises(UserError, match="it is broken - fix it") as error:
        run(system, make(criterion=Failing(system.model)), utterances[1:2])
    assert error.value.utterance == utterances[1]


def test_statistics_of_names_that_are_taken_are_refused(system, make):
    class Counting(Mmi):
        statistics = ("depth",)

    with pytest.raises(UserError, match="names that are taken"):
        make(criterion=Counting(system.model))
