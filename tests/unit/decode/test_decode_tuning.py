"""Choosing the scales."""

import pytest

from latflow.configuration import resolve_section
from latflow.decode.tune import choose
from latflow.errors import UserError


def table(*rows):
    """Errors of weights 7, 8, ... in each row; one row a penalty 0.0, 0.5, ..."""
    return {
        (7 + k, 0.5 * i): errors
        for i, row in enumerate(rows)
        for k, errors in enumerate(row)
    }


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        (([3, 2, 1, 2],), (9, 0.0)),
        (([1, 1, 1, 2],), (8, 0.0)),
        (([2, 1, 1, 2],), (8, 0.0)),
        (([1, 2, 1, 1], [9, 1, 1, 1]), (9, 0.5)),
        (([1, 2, 2], [2, 1, 2]), (7, 0.0)),
        (([4, 4, 4], [4, 4, 4]), (8, 0.0)),
        (([5],), (7, 0.0)),
    ],
)
def test_the_middle_of_the_longest_plateau_is_chosen(rows, chosen):
    assert choose(table(*rows)) == chosen


def test_defaults_of_the_section(repository):
    section = resolve_section(repository / "workflow" / "schemas", "decode", {})
    assert (section["beam"], section["lattice_beam"]) == (13, 6)
    assert section["tune"]["lmwt"] == {"min": 7, "max": 40}
    assert section["tune"]["word_insertion_penalties"] == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"baem": 10}, r"decode\.baem - did you mean beam"),
        ({"tune": {"lmwt": {"mim": 3}}}, r"decode\.tune\.lmwt\.mim"),
        ({"beam": 0}, r"decode\.beam"),
        ({"on_no_final": "skip"}, r"decode\.on_no_final"),
        ({"tune": {"word_insertion_penalties": []}}, "word_insertion_penalties"),
    ],
)
def test_wrong_keys_and_values_are_refused(repository, values, message):
    with pytest.raises(UserError, match=message):
        resolve_section(repository / "workflow" / "schemas", "decode", values)
