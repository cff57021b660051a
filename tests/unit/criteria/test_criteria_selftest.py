"""The proofs hold, and they fail where a criterion is wrong."""

from dataclasses import replace
from functools import partial

import pytest

from latflow.cli.main import main
from latflow.criteria import selftest
from latflow.criteria.arc_scores import add_arcs
from latflow.criteria.mpe import Mbr
from latflow.criteria.options import MbrOptions
from latflow.criteria.registry import CRITERIA


@pytest.mark.parametrize("case", selftest.CASES)
def test_all_proofs_hold(case, monkeypatch):
    monkeypatch.setattr(selftest, "CASES", {case: selftest.CASES[case]})
    proofs = list(selftest.run(trials=3))
    assert [proof.proof for proof in proofs] == list(selftest.LIMITS)
    assert all(proof.holds for proof in proofs), proofs


def test_command_prints_a_table(capsys):
    assert main(["selftest", "--criterion", "smbr", "--trials", "1"]) == 0
    text = capsys.readouterr().out
    assert [line.split()[-3] for line in text.splitlines()[1:9]] == 2 * list(
        selftest.LIMITS
    )
    assert "all hold" in text


def test_unknown_criterion_is_named(capsys):
    assert main(["selftest", "--criterion", "mni"]) == 1
    assert "no criterion mni" in capsys.readouterr().err


def test_no_trials(capsys):
    assert main(["selftest", "--trials", "0"]) == 1
    assert "--trials" in capsys.readouterr().err


def test_a_wrong_gradient_fails(monkeypatch, capsys):
    def wrong(lattice, weights, model, scale, gradient):
        add_arcs(lattice, weights, model, 1.01 * scale, gradient)

    monkeypatch.setattr("latflow.criteria.mpe.add_arcs", wrong)
    assert main(["selftest", "--criterion", "mpfe", "--trials", "3"]) == 1
    lines = capsys.readouterr().out.splitlines()
    failed = {line.split()[1] for line in lines if line.endswith("FAILED")}
    assert failed == {"paths", "differences", "network"}


def test_a_gradient_that_ignores_the_incoming_one_fails(monkeypatch):
    class Deaf(Mbr):
        def __call__(self, scores, *given, **more):
            return _Deaf.apply(scores, partial(super().__call__), given, more)

    monkeypatch.setattr(selftest, "CASES", {"smbr": selftest.CASES["smbr"]})
    monkeypatch.setitem(CRITERIA, MbrOptions, Deaf)
    holds = {proof.proof: proof.holds for proof in selftest.run(trials=3)}
    assert not holds["incoming"]
    assert holds["paths"]


def test_no_number_does_not_hold():
    proof = selftest.Proof("mmi", "paths", float("nan"), 1)
    assert not proof.holds
    assert replace(proof, deviation=0.0).holds


class _Deaf(selftest.torch.autograd.Function):
    """Gives its gradient whatever comes in."""

    @staticmethod
    def forward(ctx, x, function, given, more):
        with selftest.torch.enable_grad():
            leaf = x.detach().clone().requires_grad_()
            value = function(leaf, *given, **more)
            (gradient,) = selftest.torch.autograd.grad(value, leaf)
        ctx.save_for_backward(gradient)
        return value.detach()

    @staticmethod
    def backward(ctx, *_):
        return ctx.saved_tensors[0], None, None, None
