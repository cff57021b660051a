"""A criterion as a program, for `latflow.criteria.external`.

    python -m latflow.criteria.server mmi '{"boost": 0.1}'

serves any criterion of latflow on standard input and output. A custom program in Python
calls `serve` with what makes its criterion; one in another language does what this
module does (`docs/criteria.md`).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any

import numpy as np

from latflow.criteria.criterion import LatticeCriterion, Utterance
from latflow.criteria.external import (
    ARRAYS,
    PROTOCOL,
    read_message,
    write_message,
)
from latflow.criteria.options import CriterionOptions
from latflow.criteria.registry import make_criterion
from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.kaldi.io import KaldiReader
from latflow.lattice.lattice import Lattice
from latflow.options import read_options

#: (model, silence phones, seed) -> criterion.
Make = Callable[[TransitionModel, Sequence[int], int], LatticeCriterion]


def serve(make: Make) -> None:
    """Answer messages on standard input until it ends.

    Standard output is kept for answers: what is printed goes to standard error.

    Args:
        make: makes the criterion, for the model that latflow sends.
    """
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source = io.BufferedReader(io.FileIO(0))
    criterion: LatticeCriterion | None = None
    while source.peek(1):
        header, arrays = read_message(source)
        try:
            if header["message"] == "hello":
                criterion = _greeted(make, header, arrays)
                own = {"name": criterion.name, "statistics": criterion.statistics}
                answer = "ready", {"protocol": PROTOCOL, **own}, {}
            elif criterion is not None and header["message"] == "evaluate":
                answer = "value", {}, _evaluated(criterion, arrays)
            else:
                raise UserError(f"message {header['message']!r} was not expected")
        except UserError as error:
            answer = "error", {"text": str(error)}, {}
        write_message(sink, *answer)


def _greeted(
    make: Make, header: dict[str, Any], arrays: dict[str, np.ndarray]
) -> LatticeCriterion:
    """Make the criterion for what is sent at the start."""
    if header["protocol"] != PROTOCOL:
        raise UserError(f"protocol {header['protocol']}, where {PROTOCOL} is spoken")
    stream: IO[bytes] = io.BytesIO(arrays["transition_model"].tobytes())
    model = TransitionModel.read(KaldiReader(stream, name="transition model"))
    return make(model, header["silence_phones"], header["seed"])


def _evaluated(
    criterion: LatticeCriterion, arrays: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Evaluate the criterion; returns the arrays of the answer."""
    log_likes = arrays["log_likes"]
    lattice = Lattice(
        **{name: arrays[name] for name in ARRAYS}, num_frames=len(log_likes)
    )
    utterance = Utterance(
        log_likes,
        lattice,
        arrays["alignment"],
        arrays["words"],
        teacher=arrays.get("teacher"),
    )
    gradient = np.zeros_like(log_likes)
    evaluation = criterion.evaluate(utterance, gradient)
    statistics = [evaluation.statistics[name] for name in criterion.statistics]
    return {
        "objective": np.array([evaluation.objective]),
        "statistics": np.array(statistics, np.float64),
        "gradient": gradient,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the criterion that the command line names."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("type", help="of the criterion, as in a recipe")
    parser.add_argument("options", nargs="?", default="{}", help="the others, as JSON")
    given = parser.parse_args(arguments)
    try:
        values = {"type": given.type, **json.loads(given.options)}
        union: Any = CriterionOptions
        options = read_options(union, values, "criterion")
    except (UserError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    serve(
        lambda model, silence, seed: make_criterion(options, model, silence, seed=seed)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
