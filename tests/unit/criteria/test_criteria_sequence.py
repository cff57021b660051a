"""Small cases of the lattice criteria, worked out by hand; options and errors."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fixtures.small_model import SILENCE, small_model

from latflow.criteria.criterion import LatticeCriterion, Utterance
from latflow.criteria.mmi import Mmi
from latflow.criteria.mpe import Mbr, PhoneMpe
from latflow.criteria.mwe import Mwe
from latflow.criteria.options import (
    CriterionOptions,
    MbrOptions,
    MmiOptions,
    MweOptions,
    PhoneMpeOptions,
)
from latflow.criteria.registry import make_criterion
from latflow.errors import UserError
from latflow.lattice.lattice import Lattice
from latflow.options import read_options

MODEL = small_model()


def ids_of(phone, frames):
    """Transition-ids of a phone of the model, reordered: forward, then loops."""
    states = [
        s for s in range(1, len(MODEL.tuples) + 1) if MODEL.tuples[s - 1, 0] == phone
    ]
    firsts, loops = [], []
    for state in states:
        ids = np.flatnonzero(MODEL.state == state)
        firsts.append(int(ids[~MODEL.is_self_loop[ids]][0]))
        loops.append(int(MODEL.self_loop[state]))
    extra = frames - len(states)
    return [*firsts, *([loops[-1]] * extra)]


def linear(*paths):
    """A lattice of separate paths: (transition-ids, words, graph cost)."""
    arcs, costs, finals = [], [], [(np.inf, np.inf)]
    for ids, words, cost in paths:
        state = 0
        for t, id_ in enumerate(ids):
            finals.append((np.inf, np.inf))
            word = words[t] if t < len(words) else 0
            arcs.append((state, len(finals) - 1, id_, word))
            costs.append((cost if t == 0 else 0.0, 99.0))  # stale acoustic costs
            state = len(finals) - 1
        finals[state] = (0.0, 0.0)
    return Lattice.from_arcs(
        np.array(arcs, np.int32),
        np.array(costs, np.float32),
        np.array(finals, np.float32),
    )


A, B = ids_of(2, 4), ids_of(3, 4)
SIL = ids_of(1, 4)
FLAT = np.zeros((4, MODEL.num_pdfs))


def array(ids):
    return np.array(ids, np.int32)


def evaluate(criterion, scores, lattice, said, words=()):
    """What a criterion gives, with its gradient."""
    gradient = np.zeros_like(scores)
    utterance = Utterance(scores, lattice, array(said), array(words))
    found = criterion.evaluate(utterance, gradient)
    return SimpleNamespace(**found._asdict(), gradient=gradient)


def mmi(**options):
    return Mmi(MmiOptions(**options), MODEL, SILENCE)


def mbr(kind):
    return Mbr(MbrOptions(type=kind), MODEL, SILENCE)


def mpe(**options):
    return PhoneMpe(PhoneMpeOptions(**options), MODEL, SILENCE)


def mwe(**options):
    return Mwe(MweOptions(**options), MODEL, SILENCE)


def test_mmi_of_two_paths():
    lattice = linear((A, [1], 0.0), (B, [2], math.log(3.0)))
    # At flat scores the paths weigh 1 and 1/3.
    found = evaluate(mmi(absent_numerator="keep"), FLAT, lattice, A)
    assert found.objective == pytest.approx(-math.log(4 / 3))
    assert found.num_frames == 4
    assert found.statistics == {
        "held_frames": 4.0,
        "dropped_frames": 0.0,
        "added_numerators": 0.0,
        "numerators_of_words": 0.0,
    }


def test_boost_adds_b_for_each_wrong_frame():
    lattice = linear((A, [1], 0.0), (B, [2], 0.0))
    for lm_scale in (0.0, 1.0, 7.0):  # b is not scaled
        boosted = mmi(boost=0.5, absent_numerator="keep", lm_scale=lm_scale)
        found = evaluate(boosted, FLAT, lattice, A)
        assert found.objective == pytest.approx(-math.log(1 + math.exp(4 * 0.5)))


def test_phone_mpe_of_a_deep_lattice_is_that_of_its_better_paths():
    paths = (A, [1], 0.0), (B, [2], 1.0), (SIL, [1], 5.0)
    rng = np.random.default_rng(1)
    scores = 0.1 * rng.normal(size=FLAT.shape)

    def found(lattice, **options):
        return evaluate(mpe(acoustic_scale=1.0, **options), scores, lattice, A)

    whole, two, one = (linear(*paths[:n]) for n in (3, 2, 1))
    for max_arcs, part in ((12, whole), (9, two), (8, two), (7, one), (1, one)):
        pruned, wanted = found(whole, max_arcs=max_arcs), found(part)
        assert pruned.objective == pytest.approx(wanted.objective)
        np.testing.assert_allclose(pruned.gradient, wanted.gradient, atol=1e-12)
        told = {**wanted.statistics, "pruned_utterances": float(part is not whole)}
        assert pruned.statistics == told


def test_dropped_frames_have_no_gradient():
    lattice = linear((A, [1], 0.0), (A, [2], 0.0))
    rng = np.random.default_rng(1)
    scores = rng.normal(size=FLAT.shape)
    said = [A[0], A[1], SIL[0], SIL[0]]
    kept = evaluate(mmi(absent_numerator="keep"), scores, lattice, said)
    found = evaluate(mmi(), scores, lattice, said)
    assert found.objective == kept.objective
    assert np.abs(kept.gradient[2:]).max() > 0.01
    np.testing.assert_array_equal(found.gradient[2:], 0.0)
    np.testing.assert_array_equal(found.gradient[:2], kept.gradient[:2])
    assert found.statistics["dropped_frames"] == 2.0
    assert found.statistics["held_frames"] == 2.0


def test_an_absent_numerator_is_added():
    lattice = linear((A, [1], 1.0), (A, [2], 2.0))
    adding = mmi(absent_numerator="add", acoustic_scale=1.0)
    found = evaluate(adding, FLAT, lattice, B)
    # The same pdfs in phones 2 and 3: it is there after all.
    assert found.statistics["added_numerators"] == 0.0
    found = evaluate(adding, FLAT, lattice, SIL)
    total = 2 * math.exp(-1) + math.exp(-2)  # at the best path's graph cost
    assert found.objective == pytest.approx(-math.log(total))
    assert found.statistics["added_numerators"] == 4.0
    np.testing.assert_allclose(found.gradient.sum(1), 0.0, atol=1e-12)


def test_a_numerator_lattice_takes_the_alignments_place():
    whole = linear((A, [1], 0.5), (B, [2], 0.0), (SIL, [], 0.0))
    part = linear((A, [1], 0.5), (B, [2], 0.0))
    x = torch.from_numpy(np.random.default_rng(2).normal(size=FLAT.shape))
    x.requires_grad_()

    def value(scores):
        criterion = mmi(absent_numerator="keep")
        return criterion(scores, whole, array(A), array([]), numerator=part)

    assert value(x).item() < 0.0
    assert torch.autograd.gradcheck(value, (x,), eps=1e-4, atol=1e-8)
    with_itself = mmi()(x, whole, array(A), array([]), numerator=whole)
    assert with_itself.item() == 0.0


def test_smbr_and_mpfe_compare_pdfs_and_phones():
    lattice = linear((A, [1], 0.0), (B, [2], 0.0))
    smbr = evaluate(mbr("smbr"), FLAT, lattice, A)
    assert smbr.objective == pytest.approx(4.0)  # both phones have the same pdfs
    for name in ("mpfe", "mpe"):
        mpfe = evaluate(mbr(name), FLAT, lattice, A)
        assert mpfe.objective == pytest.approx(2.0)


def test_phone_accuracies_by_hand():
    two = ids_of(2, 2)
    lattice = linear((two + ids_of(3, 2), [1], 0.0))

    def value(said):
        return evaluate(mpe(), FLAT, lattice, said)

    right = value(two + ids_of(3, 2))
    assert right.objective == pytest.approx(2.0)
    assert right.statistics["reference_phones"] == 2.0
    # The reference has phone 2 over all 4 frames: -1 + 2 * 2/4, and -1 + 2/4.
    assert value(A).objective == pytest.approx(0.0 - 0.5)
    # Nothing but silence was said: two insertions.
    silent = value(SIL)
    assert silent.objective == pytest.approx(-2.0)
    assert silent.statistics["reference_phones"] == 0.0
    counted = evaluate(mpe(ignore_silence=False), FLAT, lattice, SIL)
    assert counted.objective == pytest.approx(2 * (-1 + 2 / 4))


def test_silence_heard_counts_for_nothing_unless_asked():
    lattice = linear((SIL, [], 0.0))
    assert evaluate(mpe(), FLAT, lattice, A).objective == 0.0
    counting = mpe(ignore_silence=False)
    assert evaluate(counting, FLAT, lattice, A).objective == 0.0
    assert evaluate(counting, FLAT, lattice, SIL).objective == 1.0


def test_word_errors_by_hand():
    lattice = linear((A, [1, 2], 0.0), (B, [1], math.log(3.0)), (SIL, [], 50.0))
    found = evaluate(mwe(num_paths=2), FLAT, lattice, A, [1, 2])
    assert found.objective == pytest.approx(-0.25)
    assert found.statistics == {
        "word_errors": pytest.approx(0.25),
        "reference_words": 2.0,
        "paths": 2.0,
    }
    found = evaluate(mwe(unit="phone", num_paths=9), FLAT, lattice, A)
    assert found.objective == pytest.approx(-0.25, abs=1e-7)  # float32 costs
    assert found.statistics["reference_words"] == 1.0
    assert found.statistics["paths"] == 3.0


def test_drawn_paths_are_a_function_of_seed_and_scores():
    lattice = linear((A, [1, 2], 0.0), (B, [1], 0.1), (SIL, [], 0.2))
    drawing, arguments = mwe(num_paths=40, draw="random"), (FLAT, lattice, A, [1, 2])
    found, again = evaluate(drawing, *arguments), evaluate(drawing, *arguments)
    assert found.objective == again.objective
    assert found.statistics["paths"] == 3.0  # each once, however often it was drawn
    best = evaluate(mwe(num_paths=3), *arguments)
    assert found.objective == pytest.approx(best.objective, abs=1e-12)


def test_compact_lattices_are_read_too():
    lattice = linear((A, [1], 0.0), (B, [2], 0.7))
    scores = np.random.default_rng(5).normal(size=FLAT.shape)
    compact = lattice.to_compact()
    raw = evaluate(mbr("mpfe"), scores, lattice, A)
    same = evaluate(mbr("mpfe"), scores, compact, A)
    assert same.objective == pytest.approx(raw.objective, abs=1e-7)
    np.testing.assert_allclose(same.gradient, raw.gradient, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_any_float_type_has_its_gradient(dtype):
    lattice = linear((A, [1], 0.0), (SIL, [2], 0.7))
    x = torch.zeros(FLAT.shape, dtype=dtype, requires_grad=True)
    objective = mbr("smbr")(x, lattice, array(A), array([]))
    assert objective.dtype == torch.float64
    (3.7 * objective).backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype
    exact = evaluate(mbr("smbr"), FLAT, lattice, A)
    np.testing.assert_allclose(x.grad.double(), 3.7 * exact.gradient, rtol=1e-2)


def test_there_is_no_second_derivative():
    class Squares(LatticeCriterion):
        def evaluate(self, utterance, gradient):
            gradient += 2 * utterance.log_likes
            value = float((utterance.log_likes**2).sum())
            return self.evaluation(value, len(gradient))

    x = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    value = Squares(None, MODEL)(x, linear((A, [1], 0.0)), array(A), array([]))
    (gradient,) = torch.autograd.grad(value**2, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    "kind", ["mmi", "smbr", "mpfe", "mpe", "phone_mpe", "mwe", "teacher"]
)
def test_criteria_by_name(kind):
    given = {"teacher": "any"} if kind == "teacher" else {}
    options = read_options(CriterionOptions, {"type": kind, **given})
    criterion = make_criterion(options, MODEL, SILENCE)
    assert criterion.name == ("mpfe" if kind == "mpe" else kind)
    lattice = linear((A, [1], 0.0), (SIL, [2], 0.7))
    scores, gradient = FLAT.copy(), FLAT.copy()
    teacher = np.linspace(0.0, 9.0, FLAT.size).reshape(FLAT.shape)
    utterance = Utterance(scores, lattice, array(A), array([1]), teacher)
    found = criterion.evaluate(utterance, gradient)
    assert set(found.statistics) == set(criterion.statistics)
    assert np.abs(gradient).max() > 0.0


def test_there_is_no_criterion_of_another_name():
    with pytest.raises(UserError, match="criterion.type"):
        read_options(CriterionOptions, {"type": "x"}, "criterion")


@pytest.mark.parametrize(
    ("scores", "said", "what"),
    [
        (FLAT[:3], A, "3 x"),
        (FLAT[:, :2], A, "x 2"),
        (FLAT, A[:3], "3 frames"),
        (FLAT, [99, *A[1:]], "99"),
        (FLAT * np.nan, A, "NaN|number"),
        (FLAT - np.inf, A, "path"),
    ],
)
def test_what_does_not_fit_is_told(scores, said, what):
    lattice = linear((A, [1], 0.0))
    with pytest.raises(UserError, match=what):
        evaluate(mmi(), scores, lattice, said)
    with pytest.raises(UserError, match=what):
        evaluate(mpe(), scores, lattice, said)
    with pytest.raises(UserError, match=what):
        evaluate(mwe(num_paths=2), scores, lattice, said, [1])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            {"type": "mmi", "boost": 0.2, "max_silence_error": 0.5},
            {"boost": 0.2, "boost_of_silence": 0.1},
        ),
        ({"type": "smbr"}, {"silence": "one class"}),
        ({"type": "mpfe", "one_silence_class": False}, {"silence": "never right"}),
        ({"type": "phone_mpe"}, {"silence": "not counted"}),
        ({"type": "phone_mpe", "ignore_silence": False}, {"silence": "counted"}),
        ({"type": "mwe"}, {}),
        ({"type": "teacher", "teacher": "any"}, {"teacher_scale": 0.1}),
    ],
)
def test_criteria_tell_their_scales(values, told):
    given = {"acoustic_scale": 0.3, "lm_scale": 0.7, "ce_weight": 0.2, "l2": 0.01}
    options = read_options(CriterionOptions, {**values, **given})
    assert options.scales == {**given, **told}


def test_criteria_of_ones_own_tell_the_terms_beside_them():
    options = read_options(CriterionOptions, {"type": "external", "command": ["x"]})
    assert options.scales == {"ce_weight": 0.1, "l2": 0.0}
