"""The criteria against Kaldi's posteriors: alignments, lattices, scores of digits."""

import numpy as np
import pytest
import torch

from latflow.criteria.criterion import Utterance
from latflow.criteria.mmi import Mmi
from latflow.criteria.mpe import Mbr
from latflow.criteria.options import MbrOptions, MmiOptions
from latflow.hmm.alignment import segments
from latflow.kaldi.io import read_matrices
from latflow.lattice.phone_arcs import expand, phones_of_alignment
from latflow.lattice.posteriors import read_posteriors

NO_WORDS = np.zeros(0, np.int32)


@pytest.fixture(scope="module")
def scores(golden):
    return dict(read_matrices(golden / "align" / "loglikes_tri1.ark"))


@pytest.mark.parametrize(
    ("name", "scale", "boost"),
    [
        ("den_post_k0.1", 0.1, 0.0),
        ("den_post_k1.0", 1.0, 0.0),
        ("boosted_den_post_k0.1", 0.1, 0.1),
    ],
)
def test_mmi_is_the_alignment_minus_kaldis_posteriors(
    golden, raw, model, alignments, scores, silence_phones, name, scale, boost
):
    expected = dict(read_posteriors(golden / "lattice" / f"{name}.txt.gz"))
    options = MmiOptions(acoustic_scale=scale, boost=boost, absent_numerator="keep")
    criterion = Mmi(options, model, silence_phones)
    for utterance, lattice in raw.items():
        said = alignments[utterance]
        gradient = np.zeros_like(scores[utterance])
        given = Utterance(scores[utterance], lattice, said, NO_WORDS)
        criterion.evaluate(given, gradient)
        difference = -expected[utterance].to_pdfs(model).to_matrix(model.num_pdfs)
        difference[np.arange(len(said)), model.pdf[said]] += 1.0
        np.testing.assert_allclose(gradient / scale, difference, atol=1e-4)


def test_mmi_value_holds_kaldis_total(golden, raw, model, alignments, scores):
    text = (golden / "lattice" / "den_loglike_k0.1.txt").read_text()
    totals = dict(line.split() for line in text.splitlines())
    for utterance, lattice in raw.items():
        said = alignments[utterance]
        tensor = torch.from_numpy(scores[utterance]).requires_grad_()
        objective = Mmi(MmiOptions(), model)(tensor, lattice, said, NO_WORDS)
        of_path = scores[utterance][np.arange(len(said)), model.pdf[said]]
        total = 0.1 * of_path.sum(dtype=np.float64) - objective.item()
        assert total == pytest.approx(float(totals[utterance]), rel=1e-6)


@pytest.mark.parametrize(
    ("criterion", "scale", "one_silence_class", "name", "accuracy"),
    [
        ("mpfe", 0.1, True, "mpfe_post_k0.1", 0.941877),
        ("mpe", 1.0, True, "mpfe_post_k1.0", 0.98989),
        ("smbr", 0.1, True, "smbr_post_k0.1", 0.876261),
        ("smbr", 1.0, True, "smbr_post_k1.0", 0.980441),
        ("smbr", 0.1, False, "smbr_post_k0.1_nosilclass", 0.607119),
    ],
)
def test_accuracies_and_gradients_are_kaldis(
    golden,
    raw,
    model,
    alignments,
    scores,
    silence_phones,
    criterion,
    scale,
    one_silence_class,
    name,
    accuracy,
):
    expected = dict(read_posteriors(golden / "lattice" / f"{name}.txt.gz"))
    options = MbrOptions(
        type=criterion, one_silence_class=one_silence_class, acoustic_scale=scale
    )
    mbr = Mbr(options, model, silence_phones)
    total = 0.0
    for utterance, lattice in raw.items():
        gradient = np.zeros_like(scores[utterance])
        said = alignments[utterance]
        given = Utterance(scores[utterance], lattice, said, NO_WORDS)
        found = mbr.evaluate(given, gradient)
        total += found.objective
        weights = expected[utterance].to_pdfs(model).to_matrix(model.num_pdfs)
        np.testing.assert_allclose(gradient / scale, weights, atol=2e-5)
    frames = sum(lattice.num_frames for lattice in raw.values())
    assert total / frames == pytest.approx(accuracy, abs=2e-6)


def test_phones_of_alignments_are_kaldis(model, alignments):
    for alignment in alignments.values():
        phone, first, length = segments(alignment, model)
        found = phones_of_alignment(alignment, model)
        np.testing.assert_array_equal(found, (phone, first, first + length))


def test_phones_of_lattices_fit_together(raw, model, silence_phones):
    """Each phone of the expansion begins where one ended."""
    for lattice in raw.values():
        phones = expand(lattice, model)
        done = phones.phone > 0
        ends = set(phones.last[done].tolist()) | {0}
        assert set(phones.first[done].tolist()) <= ends
        assert (phones.last[done] > phones.first[done]).all()
        fewer = expand(lattice, model, untimed=silence_phones)
        assert len(fewer.arc) < len(phones.arc)
        # Splitting loses no path to the end, so that no useful arc is lost either.
        assert set(fewer.arc.tolist()) == set(phones.arc.tolist())
