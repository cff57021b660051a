"""What follows from Kaldi's alignments is what Kaldi's programs say."""

import numpy as np
import pytest

from latflow.hmm.alignment import (
    PhoneDurations,
    convert,
    pdfs_of,
    phones_of,
    segments,
)
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import KaldiReader, read_int_vectors

SYSTEMS = ["mono", "tri1"]


@pytest.fixture(scope="module")
def systems(golden):
    made = {}
    for name in SYSTEMS:
        with KaldiReader.open(golden / "gmm" / name / "final.mdl") as reader:
            model = TransitionModel.read(reader)
        made[name] = (model, ContextDependency.load(golden / "gmm" / name / "tree"))
    return made


@pytest.mark.parametrize("system", SYSTEMS)
def test_pdfs_and_phones_of_alignments(golden, systems, system):
    model, _ = systems[system]
    pdfs = dict(read_int_vectors(golden / f"align/pdf_{system}.txt"))
    phones = dict(read_int_vectors(golden / f"align/phones_{system}.txt"))
    durations = PhoneDurations(86)
    count = 0
    for utt_id, ali in read_int_vectors(golden / f"align/ali_{system}.txt"):
        np.testing.assert_array_equal(pdfs_of(ali, model), pdfs[utt_id])
        np.testing.assert_array_equal(phones_of(ali, model), phones[utt_id])
        phone, start, length = segments(ali, model)
        np.testing.assert_array_equal(np.repeat(phone, length), phones[utt_id])
        np.testing.assert_array_equal(start, np.cumsum(length) - length)
        durations.add(ali, model)
        count += 1
    assert count == 6
    every = np.concatenate(list(phones.values()))
    summary = durations.summary({1: "SIL"}, range(1, 11))
    assert summary["frames"] == len(every)
    assert summary["silence_share"] == pytest.approx(np.mean(every <= 10))


@pytest.mark.parametrize(("old", "new"), [("mono", "tri1"), ("tri1", "mono")])
def test_conversion_keeps_all_but_the_pdf_and_can_be_undone(golden, systems, old, new):
    old_model, old_tree = systems[old]
    new_model, new_tree = systems[new]
    for _, ali in read_int_vectors(golden / f"align/ali_{old}.txt"):
        made = convert(ali, old_model, new_model, new_tree)
        for what in ("phone", "hmm_state", "arc"):
            np.testing.assert_array_equal(
                getattr(new_model, what)[made], getattr(old_model, what)[ali]
            )
        back = convert(made, new_model, old_model, old_tree)
        np.testing.assert_array_equal(back, ali)


def test_conversion_within_a_system_is_the_identity(golden, systems):
    model, tree = systems["tri1"]
    for _, ali in read_int_vectors(golden / "align/ali_tri1.txt"):
        np.testing.assert_array_equal(convert(ali, model, model, tree), ali)
