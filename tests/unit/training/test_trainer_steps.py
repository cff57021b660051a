"""A step: micro-batches and accumulation change nothing; noise, clipping, limits."""

import math

import numpy as np
import pytest
import torch
from fixtures.training_task import make_trainer, training_options, write_task

from latflow.criteria.losses import losses_of
from latflow.errors import UserError
from latflow.training.optimizers import (
    OPTIMIZERS,
    FlatGradient,
    limit_change,
    limit_norms,
    make_optimizer,
    set_learning_rate,
)
from latflow.training.progress import Clock
from latflow.training.steps import CHECKPOINT, STOP

REQUESTS = {CHECKPOINT: False, STOP: False}
SGD = {"type": "sgd"}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def one_step(task, folder, *, data=None, **training):
    """Parameters before and after a step on the first batches of an epoch."""
    settings = {"optimizer": SGD, "clip_norm": None, **training}
    trainer = make_trainer(task, folder, data=data, training=settings)
    before = [p.detach().clone() for p in trainer.network.parameters()]
    batches = list(trainer.batches.epoch(0))[: trainer.options.accumulate]
    stepper = trainer._stepper
    measured = stepper.make(batches, 1, 0.5, Clock(), requests=REQUESTS)
    after = [p.detach().clone() for p in trainer.network.parameters()]
    return trainer, batches, before, after, measured.read()


def mean_gradient(trainer, batches, before):
    """Gradient of the mean loss over all counted frames, sequence by sequence."""
    network = trainer.network
    for parameter, value in zip(network.parameters(), before, strict=True):
        parameter.data.copy_(value)
        parameter.grad = None
    criterion, total, frames = losses_of(network), 0.0, 0
    for batch in batches:
        for row in range(len(batch)):
            one = batch.select([row])
            outputs = network(one.features, one.lengths)
            loss = criterion.begin(outputs, one)()
            total, frames = total + loss.value, frames + loss.num_frames
    (total / frames).backward()
    return [parameter.grad for parameter in network.parameters()]


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"micro_sequences": 2},
        {"accumulate": 3},
        {"accumulate": 2, "micro_sequences": 1},
    ],
)
def test_a_step_follows_the_mean_over_all_frames(task, tmp_path, training):
    trainer, batches, before, after, numbers = one_step(task, tmp_path, **training)
    gradient = mean_gradient(trainer, batches, before)
    assert numbers["frames"] == sum(batch.num_frames for batch in batches)
    for old, new, grad in zip(before, after, gradient, strict=True):
        torch.testing.assert_close(new, old - 0.5 * grad, rtol=1e-5, atol=1e-6)
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradient))
    assert numbers["gradient_norm"] == pytest.approx(norm, rel=1e-5)


def test_clipping_l2_and_limits(task, tmp_path):
    _, _, before, after, numbers = one_step(task, tmp_path / "a", clip_norm=0.01)
    assert numbers["gradient_norm"] > 0.01
    moved = math.sqrt(
        sum(float(((n - o) ** 2).sum()) for o, n in zip(before, after, strict=True))
    )
    assert moved == pytest.approx(0.5 * 0.01, rel=1e-4)
    plain = one_step(task, tmp_path / "b")
    pulled = one_step(task, tmp_path / "c", l2=0.1)
    for old, new, other in zip(plain[2], plain[3], pulled[3], strict=True):
        torch.testing.assert_close(other, new - 0.05 * old, rtol=1e-4, atol=1e-6)
    limited = one_step(task, tmp_path / "d", max_norm=0.2)[0].network
    weights = [p for p in limited.parameters() if p.ndim > 1]
    assert max(float(w.detach().norm(dim=1).max()) for w in weights) <= 0.2 + 1e-6


def test_noise_has_its_variance_and_follows_from_seed_and_step():
    gradient = FlatGradient([torch.nn.Parameter(torch.zeros(200, 200))])
    drawn = []
    for step, seed in ((0, 1), (0, 1), (0, 2), (99, 1)):
        gradient.clear()
        gradient.add_noise(0.04, step, seed)
        drawn.append(gradient.vector.clone())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert float(drawn[0].var()) == pytest.approx(0.04, rel=0.05)
    assert float(drawn[3].var()) == pytest.approx(0.04 / 100**0.55, rel=0.05)


def test_limit_norms_leaves_short_rows_and_vectors():
    matrix = torch.nn.Parameter(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    vector = torch.nn.Parameter(torch.tensor([9.0]))
    limit_norms([matrix, vector], 1.0)
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4]])
    torch.testing.assert_close(matrix.detach(), expected, rtol=1e-5, atol=1e-6)
    assert vector.item() == 9.0


@pytest.mark.parametrize(
    ("max_change", "length"), [(None, 5.0), (6.0, 5.0), (2.0, 2.0)]
)
def test_a_step_changes_parameters_by_no_more_than_it_may(max_change, length):
    x, y = (torch.nn.Parameter(torch.tensor([value])) for value in (1.0, -2.0))
    with limit_change([x, y], max_change), torch.no_grad():
        x += 3.0
        y -= 4.0
    change = torch.cat([x - 1.0, y + 2.0]).detach()
    torch.testing.assert_close(change, length / 5.0 * torch.tensor([3.0, -4.0]))


def test_layers_have_factors_on_the_learning_rate(tmp_path):
    options = training_options(
        optimizer={"type": "sgd"},
        schedule={"type": "constant"},
        learning_rate_factors={"output": 3.0},
        max_change=1e9,
    )
    write_task(tmp_path)
    network = make_trainer(tmp_path, tmp_path / "c").network
    factors = options.learning_rate_factors
    optimizer = make_optimizer(network, options.optimizer, 0.5, factors)
    rates = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    found = {n: rates[id(p)] for n, p in network.named_parameters()}
    assert {n for n, rate in found.items() if rate == 1.5} == {
        n for n in found if n.startswith("body.layers.output.")
    }
    set_learning_rate(optimizer, 0.1)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(
        [0.1, 0.3]
    )
    with pytest.raises(UserError, match="no layer nothing with parameters"):
        make_optimizer(network, options.optimizer, 0.5, {"nothing": 2.0})


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_each_optimizer_lowers_a_parabola(kind):
    options = training_options(optimizer={"type": kind}).optimizer
    x = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
    rate = 10.0 if kind == "adadelta" else 0.05  # a factor on its own steps
    optimizer = make_optimizer(torch.nn.ParameterList([x]), options, rate)
    for _ in range(50):
        optimizer.zero_grad()
        (x**2).sum().backward()
        optimizer.step()
    assert float((x.detach() ** 2).sum()) < 13.0 * 0.9


def descent(optimizer, x):
    """Where x is after three steps down a parabola."""
    for factor in (1.0, 0.1, 1.0):
        optimizer.zero_grad()
        (factor * x**2).sum().backward()
        optimizer.step()
    return x.detach()


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (torch.optim.Adadelta, {"rho": 0.5}),
        (torch.optim.Adagrad, {"lr_decay": 0.3}),
        (torch.optim.Adam, {"amsgrad": True, "betas": (0.5, 0.5)}),
        (torch.optim.NAdam, {"momentum_decay": 0.5}),
        (torch.optim.RMSprop, {"centered": True}),
    ],
)
def test_options_of_optimizers_are_those_of_torch(kind, given):
    def start():
        return torch.nn.Parameter(torch.tensor([3.0, -2.0]))

    def ours(**options):
        x = start()
        section = {"type": kind.__name__.lower(), **options}
        chosen = training_options(optimizer=section).optimizer
        return descent(make_optimizer(torch.nn.ParameterList([x]), chosen, 0.1), x)

    x = start()
    expected = descent(kind([x], lr=0.1, **given), x)
    torch.testing.assert_close(ours(**given), expected)
    assert not torch.equal(ours(), expected)


def test_a_feature_that_is_no_number_is_told_by_its_utterance(tmp_path):
    write_task(tmp_path)
    path = tmp_path / "frames" / "frames.npy"
    matrix = np.load(path)
    begin = np.load(tmp_path / "frames" / "index.npz")["begin"]
    matrix[begin[7] + 1, 2] = np.nan
    np.save(path, matrix)
    trainer = make_trainer(tmp_path, tmp_path / "c", training={"epochs": 1})
    with pytest.raises(UserError, match=r"^u007: step \d+: the loss .*not finite"):
        trainer.run()
    assert not list((tmp_path / "c").glob("*.pt"))


def test_a_loss_that_overflows_names_the_utterances_of_the_step(task, tmp_path):
    trainer = make_trainer(task, tmp_path)
    with torch.no_grad():
        next(iter(trainer.network.parameters())).fill_(math.inf)
    with pytest.raises(UserError, match=r"^u0.*not finite.*lower the learning rate"):
        trainer.run()


@pytest.mark.parametrize("has_bf16", [False, True])
def test_precision_auto_is_bf16_where_the_processor_has_it(
    task, tmp_path, monkeypatch, has_bf16
):
    known = {"avx2": True, "avx512_bf16": has_bf16}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known)
    expected = one_step(task, tmp_path / "a", precision=["float32", "bf16"][has_bf16])
    found = one_step(task, tmp_path / "b", precision="auto")
    assert found[4]["loss"] == expected[4]["loss"]


def test_bf16_is_near_float32(task, tmp_path):
    exact = one_step(task, tmp_path / "a")
    rounded = one_step(task, tmp_path / "b", precision="bf16")
    assert rounded[4]["loss"] == pytest.approx(exact[4]["loss"], rel=0.02)
    assert rounded[4]["loss"] != exact[4]["loss"]
    assert all(p.dtype == torch.float32 for p in rounded[3])


FROZEN = {
    "hidden": {"class": "linear", "from": "data", "size": 12, "activation": "tanh"},
    "norm": {"class": "batch_norm"},
    "drop": {"class": "dropout", "rate": 0.5},
    "small": {"class": "linear", "size": 8, "bias": False, "semi_orthogonal": True},
    "output": {"class": "output"},
}


def test_frozen_layers_stay_as_they_are(task, tmp_path):
    training = {"freeze": ["n*", "small", "drop"], "epochs": 2, "constrain_share": 1.0}
    training |= {"max_norm": 0.01, "optimizer": {"type": "adamw"}, "l2": 0.1}
    trainer = make_trainer(task, tmp_path, layers=FROZEN, training=training)
    before = {k: v.clone() for k, v in trainer.network.state_dict().items()}
    trainer.run()
    after = trainer.network.train().state_dict()
    changed = {key.split(".")[2] for key in before if not before[key].equal(after[key])}
    assert changed == {"hidden", "output"}
    assert not trainer.network.body.layers["drop"].training
    assert trainer.network.body.layers["hidden"].training


@pytest.mark.parametrize(
    ("names", "told"),
    [(["hiden"], "no layer hiden in the network"), (["*"], "nothing is left to learn")],
)
def test_layers_that_cannot_be_frozen(task, tmp_path, names, told):
    with pytest.raises(UserError, match=told):
        make_trainer(task, tmp_path, training={"freeze": names})
