"""What is refused: foreign ids, wrong lengths, broken files of posteriors."""

import numpy as np
import pytest
from fixtures.small_model import SILENCE, small_model
from reference.lattice_paths import random_lattice

from latflow.errors import UserError
from latflow.lattice.discriminative import boost, expected_accuracy, mmi_posteriors
from latflow.lattice.lattice import Lattice
from latflow.lattice.path_sums import forward_backward
from latflow.lattice.posteriors import (
    alignment_posteriors,
    posteriors,
    read_posteriors,
    write_posteriors,
)

MODEL = small_model()
TOO_HIGH = MODEL.num_transition_ids + 1


def some_lattice(num_ids=MODEL.num_transition_ids):
    return random_lattice(np.random.default_rng(1), 4, num_ids=num_ids)


CALLS = {
    "mmi": mmi_posteriors,
    "accuracy": lambda *args: expected_accuracy(
        *args, criterion="smbr", silence_phones=SILENCE
    ),
    "boost": lambda *args: boost(*args, b=0.1, silence_phones=SILENCE),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_lattice_alignment_and_model_must_fit(call):
    lattice, alignment = some_lattice(), np.ones(4, np.int32)
    call(lattice, alignment, MODEL)
    with pytest.raises(UserError, match="alignment of 3 frames and a lattice of 4"):
        call(lattice, alignment[:3], MODEL)
    for bad in (0, TOO_HIGH):
        with pytest.raises(UserError, match="an alignment with transition-ids"):
            call(lattice, np.array([1, 1, bad, 1], np.int32), MODEL)
    lattice.transition_id[0] = TOO_HIGH
    with pytest.raises(UserError, match=f"a lattice with .* to {TOO_HIGH}"):
        call(lattice, alignment, MODEL)


def test_silence_errors_and_criteria_are_checked():
    lattice, alignment = some_lattice(), np.ones(4, np.int32)
    with pytest.raises(UserError, match="max_silence_error is 1.5"):
        boost(
            lattice, alignment, MODEL, b=0.1, silence_phones=[1], max_silence_error=1.5
        )
    with pytest.raises(UserError, match="unknown criterion 'mwe'"):
        expected_accuracy(
            lattice,
            alignment,
            MODEL,
            criterion="mwe",
            silence_phones=SILENCE,
        )


def test_ids_beyond_the_matrix_or_the_model_are_refused():
    found = alignment_posteriors(np.array([1, TOO_HIGH], np.int32))
    with pytest.raises(UserError, match=f"id {TOO_HIGH}, where only 0 to 2"):
        found.to_matrix(3)
    with pytest.raises(UserError, match="posteriors with transition-ids"):
        found.to_pdfs(MODEL)
    with pytest.raises(UserError, match="of 2 and of 1 frames"):
        found.joined_with(alignment_posteriors(np.array([1])), merge=True)


def test_no_frames_make_an_empty_matrix():
    nothing = alignment_posteriors(np.empty(0, np.int32))
    assert nothing.to_matrix(5).shape == (0, 5)
    assert nothing.to_pdfs(MODEL).num_frames == 0
    assert nothing.sum() == 0.0


def test_a_dead_end_beyond_the_last_frame_does_no_harm():
    arcs = np.array([[0, 1, 1, 0], [0, 2, 2, 0], [2, 3, 2, 0], [3, 4, 2, 0]], np.int32)
    finals = np.full((5, 2), np.inf, np.float32)
    finals[1] = 0.0
    lattice = Lattice.from_arcs(arcs, np.ones((4, 2), np.float32), finals)
    assert lattice.num_frames == 1
    alignment = np.array([1], np.int32)
    found = posteriors(lattice, forward_backward(lattice))
    assert found.frame(0) == [(1, 1.0)]
    for call in CALLS.values():
        call(lattice, alignment, MODEL)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("u [ 1 0.5 2 ]\n", "not a row of pairs"),
        ("u [ 1 0.5 [ 2 0.5 ] ]\n", "not frames in brackets"),
        ("u [ 1 0.5 ] 7 0.5\n", "not frames in brackets"),
        ("u 7 0.5 [ 1 0.5 ]\n", "not frames in brackets"),
        ("u ] 1 0.5 [\n", "not frames in brackets"),
        ("u [ 1 0.5\n", "not frames in brackets"),
        ("u [ one 0.5 ]\n", "not a number"),
        ("u [ 1 half ]\n", "not a number"),
    ],
)
def test_broken_text_is_refused(tmp_path, text, match):
    path = tmp_path / "post.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=match) as caught:
        list(read_posteriors(path))
    assert caught.value.file == str(path)


def test_text_without_frames_is_read(tmp_path):
    path = tmp_path / "post.txt"
    path.write_text("a \nb [ ] [ 3 1 ] \n")
    found = dict(read_posteriors(path))
    assert found["a"].num_frames == 0
    assert [found["b"].frame(t) for t in range(2)] == [[], [(3, 1.0)]]


def test_broken_binary_is_refused(tmp_path):
    path = tmp_path / "post.ark"
    write_posteriors(path, [("u", alignment_posteriors(np.array([1, 2])))])
    whole = path.read_bytes()
    assert whole == (
        b"u \0B\x04\x02\0\0\0"
        b"\x04\x01\0\0\0\x04\x01\0\0\0\x04\0\0\x80\x3f"
        b"\x04\x01\0\0\0\x04\x02\0\0\0\x04\0\0\x80\x3f"
    )
    for raw, match in [
        (whole[:-1], "ends"),
        (whole[:5] + b"\xff\xff\xff\xff" + whole[9:], "negative number of frames"),
        (whole[:10] + b"\xff\xff\xff\xff" + whole[14:], "negative number of post"),
        (whole[:14] + b"\x08" + whole[15:], "have not four bytes"),
        (whole[:19] + b"\x08" + whole[20:], "have not four bytes"),
    ]:
        path.write_bytes(raw)
        with pytest.raises(UserError, match=match):
            list(read_posteriors(path))
