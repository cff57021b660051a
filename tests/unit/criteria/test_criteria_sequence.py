"""Small cases of the lattice criteria, worked out by hand; options and errors."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from reference.small_model import SILENCE, small_model

from latflow.configuration import resolve_section
from latflow.criteria.evaluation import Evaluation
from latflow.criteria.function import differentiable
from latflow.criteria.mbr import MbrOptions, evaluate_mbr, mbr
from latflow.criteria.mmi import MmiOptions, evaluate_mmi, mmi
from latflow.criteria.mpe import MpeOptions, evaluate_mpe
from latflow.criteria.mwe import MweOptions, evaluate_mwe, mwe
from latflow.criteria.registry import TYPES, evaluator_of
from latflow.errors import UserError
from latflow.lattice.compact import CompactLattice
from latflow.lattice.lattice import Lattice

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


def test_mmi_of_two_paths():
    lattice = linear((A, [1], 0.0), (B, [2], math.log(3.0)))
    # At flat scores the paths weigh 1 and 1/3.
    found = evaluate_mmi(FLAT, lattice, array(A), MODEL, MmiOptions(absent="keep"))
    assert found.objective == pytest.approx(-math.log(4 / 3))
    assert found.num_frames == 4
    assert found.statistics == {
        "held_frames": 4.0,
        "dropped_frames": 0.0,
        "added_numerators": 0.0,
    }


def test_boost_adds_b_for_each_wrong_frame():
    lattice = linear((A, [1], 0.0), (B, [2], 0.0))
    for lm_scale in (0.0, 1.0, 7.0):  # b is not scaled
        options = MmiOptions(boost=0.5, absent="keep", lm_scale=lm_scale)
        found = evaluate_mmi(FLAT, lattice, array(A), MODEL, options)
        assert found.objective == pytest.approx(-math.log(1 + math.exp(4 * 0.5)))


def test_dropped_frames_have_no_gradient():
    lattice = linear((A, [1], 0.0), (A, [2], 0.0))
    rng = np.random.default_rng(1)
    scores = rng.normal(size=FLAT.shape)
    said = array([A[0], A[1], SIL[0], SIL[0]])
    kept = evaluate_mmi(scores, lattice, said, MODEL, MmiOptions(absent="keep"))
    found = evaluate_mmi(scores, lattice, said, MODEL, MmiOptions())
    assert found.objective == kept.objective
    assert np.abs(kept.gradient[2:]).max() > 0.01
    np.testing.assert_array_equal(found.gradient[2:], 0.0)
    np.testing.assert_array_equal(found.gradient[:2], kept.gradient[:2])
    assert found.statistics["dropped_frames"] == 2.0
    assert found.statistics["held_frames"] == 2.0


def test_an_absent_numerator_is_added():
    lattice = linear((A, [1], 1.0), (A, [2], 2.0))
    options = MmiOptions(absent="add", acoustic_scale=1.0)
    found = evaluate_mmi(FLAT, lattice, array(B), MODEL, options)
    # The same pdfs in phones 2 and 3: it is there after all.
    assert found.statistics["added_numerators"] == 0.0
    found = evaluate_mmi(FLAT, lattice, array(SIL), MODEL, options)
    total = 2 * math.exp(-1) + math.exp(-2)  # at the best path's graph cost
    assert found.objective == pytest.approx(-math.log(total))
    assert found.statistics["added_numerators"] == 4.0
    free = evaluate_mmi(
        FLAT, lattice, array(SIL), MODEL, options, numerator_graph_cost=0.0
    )
    total = 1 + math.exp(-1) + math.exp(-2)
    assert free.objective == pytest.approx(-math.log(total))
    np.testing.assert_allclose(free.gradient.sum(1), 0.0, atol=1e-12)


def test_a_numerator_lattice_takes_the_alignments_place():
    whole = linear((A, [1], 0.5), (B, [2], 0.0), (SIL, [], 0.0))
    part = linear((A, [1], 0.5), (B, [2], 0.0))
    x = torch.from_numpy(np.random.default_rng(2).normal(size=FLAT.shape))
    x.requires_grad_()

    def value(scores):
        return mmi(
            scores, whole, array(A), MODEL, MmiOptions(absent="keep"), numerator=part
        ).objective

    assert value(x).item() < 0.0
    assert torch.autograd.gradcheck(value, (x,), eps=1e-4, atol=1e-8)
    with_itself = mmi(x, whole, array(A), MODEL, MmiOptions(), numerator=whole)
    assert with_itself.objective.item() == 0.0


def test_smbr_and_mpfe_compare_pdfs_and_phones():
    lattice = linear((A, [1], 0.0), (B, [2], 0.0))
    said, silence = array(A), SILENCE
    smbr = evaluate_mbr(FLAT, lattice, said, MODEL, MbrOptions("smbr", silence))
    assert smbr.objective == pytest.approx(4.0)  # both phones have the same pdfs
    for name in ("mpfe", "mpe"):
        mpfe = evaluate_mbr(FLAT, lattice, said, MODEL, MbrOptions(name, silence))
        assert mpfe.objective == pytest.approx(2.0)


def test_phone_accuracies_by_hand():
    two = ids_of(2, 2)
    lattice = linear((two + ids_of(3, 2), [1], 0.0))
    options = MpeOptions(SILENCE)

    def value(said):
        return evaluate_mpe(FLAT, lattice, array(said), MODEL, options)

    right = value(two + ids_of(3, 2))
    assert right.objective == pytest.approx(2.0)
    assert right.statistics["reference_phones"] == 2.0
    # The reference has phone 2 over all 4 frames: -1 + 2 * 2/4, and -1 + 2/4.
    assert value(A).objective == pytest.approx(0.0 - 0.5)
    # Nothing but silence was said: two insertions.
    silent = value(SIL)
    assert silent.objective == pytest.approx(-2.0)
    assert silent.statistics["reference_phones"] == 0.0
    counted = evaluate_mpe(
        FLAT, lattice, array(SIL), MODEL, replace(options, ignore_silence=False)
    )
    assert counted.objective == pytest.approx(2 * (-1 + 2 / 4))


def test_silence_heard_counts_for_nothing_unless_asked():
    lattice = linear((SIL, [], 0.0))
    found = evaluate_mpe(FLAT, lattice, array(A), MODEL, MpeOptions(SILENCE))
    assert found.objective == 0.0
    options = MpeOptions(SILENCE, ignore_silence=False)
    assert evaluate_mpe(FLAT, lattice, array(A), MODEL, options).objective == 0.0
    assert evaluate_mpe(FLAT, lattice, array(SIL), MODEL, options).objective == 1.0


def test_word_errors_by_hand():
    lattice = linear((A, [1, 2], 0.0), (B, [1], math.log(3.0)), (SIL, [], 50.0))
    options = MweOptions(num_paths=2)
    found = evaluate_mwe(FLAT, lattice, array(A), array([1, 2]), MODEL, options)
    assert found.objective == pytest.approx(-0.25)
    assert found.statistics == {
        "word_errors": pytest.approx(0.25),
        "reference_words": 2.0,
        "paths": 2.0,
    }
    phones = replace(options, unit="phone", num_paths=9, silence_phones=SILENCE)
    found = evaluate_mwe(FLAT, lattice, array(A), array([]), MODEL, phones)
    assert found.objective == pytest.approx(-0.25, abs=1e-7)  # float32 costs
    assert found.statistics["reference_words"] == 1.0
    assert found.statistics["paths"] == 3.0


def test_drawn_paths_are_a_function_of_seed_and_scores():
    lattice = linear((A, [1, 2], 0.0), (B, [1], 0.1), (SIL, [], 0.2))
    x = torch.zeros(FLAT.shape, dtype=torch.float64, requires_grad=True)
    options = MweOptions(num_paths=40, draw="random")
    arguments = lattice, array(A), array([1, 2]), MODEL, options
    found, again = mwe(x, *arguments), mwe(x, *arguments)
    assert found.objective.item() == again.objective.item()
    assert found.statistics["paths"] == 3.0  # each once, however often it was drawn
    best = mwe(x, *arguments[:-1], MweOptions(num_paths=3))
    assert found.objective.item() == pytest.approx(best.objective.item(), abs=1e-12)


def test_compact_lattices_are_read_too():
    lattice = linear((A, [1], 0.0), (B, [2], 0.7))
    scores = np.random.default_rng(5).normal(size=FLAT.shape)
    compact = CompactLattice.from_lattice(lattice)
    options = MbrOptions("mpfe", SILENCE)
    raw = evaluate_mbr(scores, lattice, array(A), MODEL, options)
    same = evaluate_mbr(scores, compact, array(A), MODEL, options)
    assert same.objective == pytest.approx(raw.objective, abs=1e-7)
    np.testing.assert_allclose(same.gradient, raw.gradient, atol=1e-7)


def test_a_given_gradient_is_filled():
    lattice = linear((A, [1], 0.0), (B, [2], 0.7))
    room = np.zeros(FLAT.shape, np.float32)
    found = evaluate_mbr(
        FLAT.astype(np.float32),
        lattice,
        array(A),
        MODEL,
        MbrOptions("mpfe", SILENCE),
        gradient=room,
    )
    assert found.gradient is room


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_any_float_type_has_its_gradient(dtype):
    lattice = linear((A, [1], 0.0), (SIL, [2], 0.7))
    x = torch.zeros(FLAT.shape, dtype=dtype, requires_grad=True)
    result = mbr(x, lattice, array(A), MODEL, MbrOptions("smbr", SILENCE))
    assert result.objective.dtype == torch.float64
    (3.7 * result.objective).backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype
    exact = evaluate_mbr(FLAT, lattice, array(A), MODEL, MbrOptions("smbr", SILENCE))
    np.testing.assert_allclose(x.grad.double(), 3.7 * exact.gradient, rtol=1e-2)


def test_there_is_no_second_derivative():
    x = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    result = differentiable(
        lambda scores: Evaluation(float((scores**2).sum()), 2 * scores, 2, {}), x
    )
    (gradient,) = torch.autograd.grad(result.objective**2, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("kind", TYPES)
def test_criteria_by_name(kind, repository):
    options = resolve_section(
        repository / "workflow/schemas", "criterion", {"type": kind}
    )
    evaluator = evaluator_of(options, MODEL, SILENCE)
    assert evaluator.name == ("mpfe" if kind == "mpe" else kind)
    lattice = linear((A, [1], 0.0), (SIL, [2], 0.7))
    x = torch.zeros(FLAT.shape, dtype=torch.float64, requires_grad=True)
    result = evaluator(x, lattice, array(A), array([1]))
    assert set(result.statistics) == set(evaluator.statistics)
    (gradient,) = torch.autograd.grad(result.objective, x)
    assert gradient.abs().max() > 0.0


def test_the_schema_and_the_registry_name_the_same(repository):
    with pytest.raises(UserError, match="criterion"):
        resolve_section(repository / "workflow/schemas", "criterion", {"type": "x"})
    for kind in TYPES:
        schemas = repository / "workflow/schemas"
        assert resolve_section(schemas, "criterion", {"type": kind})["type"] == kind
    with pytest.raises(UserError, match="no criterion x"):
        evaluator_of({"type": "x"}, MODEL, SILENCE)


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
        evaluate_mmi(scores, lattice, array(said), MODEL, MmiOptions())
    with pytest.raises(UserError, match=what):
        evaluate_mpe(scores, lattice, array(said), MODEL, MpeOptions(SILENCE))
    with pytest.raises(UserError, match=what):
        evaluate_mwe(
            scores, lattice, array(said), array([1]), MODEL, MweOptions(num_paths=2)
        )
