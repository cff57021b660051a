"""Value and gradient of each sequence criterion, against forward-backward alone.

Timed alternately in one process, processor time, least of `--repeats` passes, on the
scores and lattices of the decoder:

* `forward_backward`: our sums over a lattice whose costs are given; no scores looked
  up, no gradient by frame and pdf: the least that a criterion can take;
* `kaldi_recursion`, `kaldi_accuracy_recursion`: Kaldi's recursions compiled, likewise
  (see `lattice_forward_backward.py`);
* the criteria: scores looked up by arc, sums, gradient [T, P].

    python benchmarks/criteria.py            # Kaldi's golden digits

Prints JSON: nanoseconds an arc, ratios, arcs a frame, expansion of phone-level MPE.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lattice_forward_backward import kaldi_accuracy, kaldi_recursion
from timing import GOLDEN, least_seconds

from latflow.criteria.criterion import Evaluation, Utterance
from latflow.criteria.options import (
    CriterionOptions,
    MbrOptions,
    MmiOptions,
    MweOptions,
    PhoneMpeOptions,
    TeacherOptions,
)
from latflow.criteria.registry import make_criterion
from latflow.gmm.model import AcousticModel
from latflow.hmm.transition_model import TransitionModel
from latflow.kaldi.io import read_int_vectors, read_matrices
from latflow.lattice.best_path import best_path
from latflow.lattice.discriminative import arc_accuracies
from latflow.lattice.io.archives import read_lattices
from latflow.lattice.lattice import Lattice
from latflow.lattice.path_sums import forward_backward

CASES: dict[str, CriterionOptions] = {
    "mmi": MmiOptions(),
    "mmi_boosted": MmiOptions(boost=0.1),
    "mmi_numerator_added": MmiOptions(absent_numerator="add"),
    "smbr": MbrOptions(type="smbr"),
    "mpfe": MbrOptions(type="mpfe"),
    "phone_mpe": PhoneMpeOptions(),
    "mwe": MweOptions(),
    "teacher": TeacherOptions(teacher="any"),
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument(
        "--lattices", type=Path, default=GOLDEN / "lattice/raw_beam13.lats"
    )
    parser.add_argument("--model", type=Path, default=GOLDEN / "gmm/tri1/final.mdl")
    parser.add_argument(
        "--scores", type=Path, default=GOLDEN / "align/loglikes_tri1.ark"
    )
    parser.add_argument("--alignments", default=GOLDEN / "align/ali_tri1.txt")
    parser.add_argument(
        "--silence-phones", type=int, nargs="*", default=list(range(1, 11))
    )
    parser.add_argument("--acoustic-scale", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=7)
    return parser.parse_args()


class Item(NamedTuple):
    """An utterance."""

    lattice: Lattice
    scores: np.ndarray
    alignment: np.ndarray
    words: np.ndarray
    accuracy: np.ndarray


def prepare(arguments: argparse.Namespace, model: TransitionModel) -> list[Item]:
    scores = dict(read_matrices(arguments.scores))
    alignments = dict(read_int_vectors(arguments.alignments))
    items = []
    for utterance, lattice in read_lattices(arguments.lattices):
        said = alignments[utterance]
        best = best_path(lattice, acoustic_scale=arguments.acoustic_scale)
        accuracy = arc_accuracies(
            lattice,
            said,
            model,
            criterion="smbr",
            silence_phones=arguments.silence_phones,
        )
        items.append(Item(lattice, scores[utterance], said, best.words, accuracy))
    return items


def contenders(
    arguments: argparse.Namespace, model: TransitionModel
) -> dict[str, Callable[[Item], Any]]:
    scale = arguments.acoustic_scale

    def arrays(lattice: Lattice, *more: np.ndarray) -> tuple[Any, ...]:
        costs = lattice.graph_cost, lattice.acoustic_cost
        finals = lattice.final_graph_cost, lattice.final_acoustic_cost
        return lattice.arc_begin, lattice.next_state, costs, finals, scale, *more

    def work(options: CriterionOptions) -> Callable[[Item], Evaluation]:
        options = options.replace(acoustic_scale=scale)
        evaluate = make_criterion(options, model, arguments.silence_phones).evaluate
        return lambda item: evaluate(
            Utterance(
                item.scores, item.lattice, item.alignment, item.words, item.scores
            ),
            np.zeros_like(item.scores),
        )

    return {
        "forward_backward": lambda item: forward_backward(
            item.lattice, acoustic_scale=scale
        ),
        "kaldi_recursion": lambda item: kaldi_recursion(*arrays(item.lattice)),
        "kaldi_accuracy_recursion": lambda item: kaldi_accuracy(
            *arrays(item.lattice, item.accuracy)
        ),
        **{name: work(options) for name, options in CASES.items()},
    }


def main() -> None:
    arguments = parse_arguments()
    model = AcousticModel.load(arguments.model).transitions
    items = prepare(arguments, model)
    works = contenders(arguments, model)
    arcs = sum(item.lattice.num_arcs for item in items)
    least = least_seconds(works, items, arguments.repeats)
    times = {name: round(spent / arcs * 1e9, 1) for name, spent in least.items()}
    frames = sum(item.lattice.num_frames for item in items)
    expanded = sum(
        works["phone_mpe"](item).statistics["expanded_arcs"] for item in items
    )
    # What a criterion takes of the time that the speech lasts, at 10 ms a frame.
    peers = {"smbr", "mpfe"}
    report = {
        "utterances": len(items),
        "arcs": arcs,
        "arcs_per_frame": round(arcs / frames, 2),
        "pdfs": model.num_pdfs,
        "nanoseconds_per_arc": times,
        "times_forward_backward": {
            name: round(times[name] / times["forward_backward"], 2) for name in CASES
        },
        "times_kaldi_recursion": {
            name: round(
                times[name]
                / times[
                    "kaldi_accuracy_recursion" if name in peers else "kaldi_recursion"
                ],
                2,
            )
            for name in CASES
        },
        "real_time_factor": {
            name: times[name] * 1e-9 * arcs / (frames * 0.01) for name in CASES
        },
        "phone_mpe_expansion": round(expanded / arcs, 2),
        "load_average": os.getloadavg()[0],
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
