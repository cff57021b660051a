"""Forward-backward, sMBR, MPFE and boosting against Kaldi's programs."""

import gzip

import numpy as np
import pytest
from reference.lattice_paths import frame_sums

from latflow.lattice.discriminative import boost, expected_accuracy, mmi_posteriors
from latflow.lattice.io.archives import (
    read_compact_lattices,
    read_lattices,
    write_lattices,
)
from latflow.lattice.path_sums import forward_backward
from latflow.lattice.posteriors import posteriors, read_posteriors, write_posteriors
from latflow.lattice.prune import depth_per_frame, prune

COLUMNS = 2000  # more than there are transition-ids


def assert_same(found, expected):
    """Posteriors are equal to what seven digits of float32 sums can tell."""
    np.testing.assert_allclose(
        found.to_matrix(COLUMNS), expected.to_matrix(COLUMNS), atol=2e-6
    )


@pytest.mark.parametrize(
    ("lattices", "name", "scale"),
    [
        ("raw_beam13.lats", "den_post_k0.1", 0.1),
        ("raw_beam13.lats", "den_post_k1.0", 1.0),
        ("boosted_b0.1.lats", "boosted_den_post_k0.1", 0.1),
    ],
)
def test_posteriors_are_kaldis(golden, lattices, name, scale):
    expected = dict(read_posteriors(golden / "lattice" / f"{name}.txt.gz"))
    for utterance, lattice in read_lattices(golden / "lattice" / lattices):
        result = forward_backward(lattice, acoustic_scale=scale)
        found = posteriors(lattice, result)
        assert_same(found, expected.pop(utterance))
        np.testing.assert_allclose(frame_sums(found), 1.0, atol=1e-12)
    assert not expected


@pytest.mark.parametrize("scale", ["0.1", "1.0"])
def test_total_log_likelihoods_are_kaldis(golden, raw, scale):
    text = (golden / "lattice" / f"den_loglike_k{scale}.txt").read_text()
    expected = dict(line.split() for line in text.splitlines())
    for utterance, lattice in raw.items():
        result = forward_backward(lattice, acoustic_scale=float(scale))
        # Kaldi scales in float32 and prints seven digits.
        assert result.log_like == pytest.approx(float(expected[utterance]), rel=5e-7)
        assert result.beta[0] == pytest.approx(result.log_like, rel=1e-12)


@pytest.mark.parametrize(
    ("criterion", "scale", "one_silence_class", "name", "accuracy"),
    [
        ("mpfe", 0.1, True, "mpfe_post_k0.1", 0.941877),
        ("mpfe", 1.0, True, "mpfe_post_k1.0", 0.98989),
        ("smbr", 0.1, True, "smbr_post_k0.1", 0.876261),
        ("smbr", 1.0, True, "smbr_post_k1.0", 0.980441),
        ("smbr", 0.1, False, "smbr_post_k0.1_nosilclass", 0.607119),
    ],
)
def test_accuracies_and_their_derivatives_are_kaldis(
    golden,
    raw,
    model,
    alignments,
    silence_phones,
    criterion,
    scale,
    one_silence_class,
    name,
    accuracy,
):
    expected = dict(read_posteriors(golden / "lattice" / f"{name}.txt.gz"))
    total = 0.0
    for utterance, lattice in raw.items():
        found, weights = expected_accuracy(
            lattice,
            alignments[utterance],
            model,
            criterion=criterion,
            silence_phones=silence_phones,
            one_silence_class=one_silence_class,
            acoustic_scale=scale,
        )
        assert_same(weights, expected.pop(utterance))
        total += found
    assert not expected
    frames = sum(lattice.num_frames for lattice in raw.values())
    assert f"{total / frames:.6g}" == f"{accuracy}"


def test_boosted_lattices_are_kaldis_byte_for_byte(
    golden, raw, model, alignments, silence_phones, tmp_path
):
    def boosted():
        for utterance, lattice in raw.items():
            yield (
                utterance,
                boost(
                    lattice,
                    alignments[utterance],
                    model,
                    b=0.1,
                    silence_phones=silence_phones,
                ).to_compact(),
            )

    write_lattices(tmp_path / "boosted.lats", boosted())
    expected = golden / "lattice" / "boosted_b0.1.lats"
    assert (tmp_path / "boosted.lats").read_bytes() == expected.read_bytes()


def test_mmi_is_the_alignment_minus_kaldis_posteriors(golden, raw, model, alignments):
    expected = dict(read_posteriors(golden / "lattice" / "den_post_k0.1.txt.gz"))
    for utterance, lattice in raw.items():
        alignment = alignments[utterance]
        total, found = mmi_posteriors(lattice, alignment, model, acoustic_scale=0.1)
        matrix = -expected[utterance].to_pdfs(model).to_matrix(model.num_pdfs)
        matrix[np.arange(len(alignment)), model.pdf[alignment]] += 1.0
        np.testing.assert_allclose(found.to_matrix(model.num_pdfs), matrix, atol=2e-6)
        assert total == forward_backward(lattice, acoustic_scale=0.1).log_like


def test_text_archives_are_written_back_byte_for_byte(golden, tmp_path):
    for name in ("den_post_k1.0", "smbr_post_k0.1"):
        source = golden / "lattice" / f"{name}.txt.gz"
        items = dict(read_posteriors(source))
        write_posteriors(tmp_path / "a.txt", items.items(), binary=False)
        with gzip.open(source) as stream:
            assert (tmp_path / "a.txt").read_bytes() == stream.read()
        write_posteriors(tmp_path / "a.ark", items.items())
        write_posteriors(
            tmp_path / "b.txt", read_posteriors(tmp_path / "a.ark"), binary=False
        )
        assert (tmp_path / "b.txt").read_bytes() == (tmp_path / "a.txt").read_bytes()


def test_pruning_at_the_lattice_beam_keeps_kaldis_lattices_whole(raw):
    """The lattices were made with beam 7: a wider one takes nothing away."""
    for lattice in raw.values():
        same = prune(lattice, 7.1, acoustic_scale=0.1)
        for name, value in vars(lattice).items():
            np.testing.assert_array_equal(value, getattr(same, name), err_msg=name)
        narrow = prune(lattice, 3.0, acoustic_scale=0.1)
        assert 0 < narrow.num_arcs < lattice.num_arcs
        assert (depth_per_frame(narrow) <= depth_per_frame(lattice)).all()
        assert (depth_per_frame(narrow) >= 1).all()


def test_depth_of_determinized_lattices(golden):
    path = golden / "lattice" / "compact_beam13.txt"
    for _, lattice in read_compact_lattices(path):
        depth = depth_per_frame(lattice)
        assert len(depth) == lattice.num_frames
        assert depth.min() >= 1
        assert depth.mean() == pytest.approx(lattice.depth)
