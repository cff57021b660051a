"""Networks of a small experiment, made up: the files that the report reads of them."""

import json
import math
import random
from pathlib import Path
from typing import Any

from reference.made_up_results import (
    SETS,
    SYSTEMS,
    write_json,
    write_rates,
    write_scores,
)

from latflow.scoring.options import ScoreOptions

NETWORKS = ("wide", "tall", "mmi", "smbr")
CONFIG: dict[str, Any] = {
    "systems": {
        "wide": {"type": "ce", "network": "made/up.yaml", "alignments": "mono"},
        "tall": {"type": "ce", "network": "made/up.yaml", "alignments": "tri1"},
        "mmi": {
            "type": "sequence",
            "parent": "tall",
            "criterion": {"type": "mmi", "boost": 0.25},
        },
        "smbr": {
            "type": "sequence",
            "parent": "mmi",
            "criterion": {"type": "smbr"},
            "data": {"partition_epoch": 2},
            "sequence": {
                "alignments": {"source": "on_the_fly"},
                "lattices": {"depth": {"target": 60}},
            },
        },
    }
}
DESCRIPTION = """layers:
  near: {class: tdnn, size: 8, offsets: [-2, 0, 2], activation: relu}
  output: {class: output}
"""
FRAMES, WORDS = 9000, 200
#: Rates of errors that are made up; `mmi` is much better than its seed.
ERRORS = {"wide": 0.3, "tall": 0.3, "mmi": 0.1, "smbr": 0.1}
#: Dev errors of each epoch of sequence training.
DEV_ERRORS = {"mmi": (24, 14, 18), "smbr": (15, 13, 13)}


def write_networks(folder: Path, score_options: ScoreOptions) -> None:
    """Add networks to the experiment of `write_experiment`: `wide` and `tall` by
    cross-entropy, `mmi` from `tall`, `smbr` from `mmi` with alignments on the fly."""
    generator = random.Random(2)
    for name in NETWORKS:
        target = folder / "nnet" / name
        target.mkdir(parents=True)
        (target / "network.yaml").write_text(DESCRIPTION)
        meta = {"dim_in": 13, "classes": {"output": 40}, "num_parameters": 680}
        if name == "mmi":
            meta["scales"] = {"acoustic_scale": 0.2, "silence": "keep"}
        write_json(target / "meta.json", meta)
        is_sequence = name in DEV_ERRORS
        lines = sequence_log(name) if is_sequence else frame_log(generator)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (target / "log.jsonl").write_text(text)
        scales = {"lmwt": 12, "wip": 0.0, "wer": 12.5}
        write_json(folder / "tune" / name / "scales.json", scales)
        for where in SETS:
            write_scores(folder, name, where, ERRORS[name], score_options)
    write_json(folder / "nnet/mmi/drift.json", {})
    write_json(folder / "nnet/smbr/drift.json", DRIFT)
    graph = {"states": 1007, "arcs": 3391}
    language = {"lm_order": 1, "lm_words": 95, "lm_ngrams": [97]}
    facts = {**graph, **language, "train_perplexity": 54.093}
    write_json(folder / "denominator/tri1/HCLG.json", facts)
    write_rates(folder, (*SYSTEMS, *NETWORKS))


DRIFT = {
    "SIL": {"frames": 1500, "pdf_changed": 0.02, "phone_changed": 0.01},
    "AH": {"frames": 700, "pdf_changed": 0.31, "phone_changed": 0.125},
    "N": {"frames": 800, "pdf_changed": 0.11, "phone_changed": 0.05},
}


def frame_log(generator: random.Random) -> list[dict[str, Any]]:
    """A training by cross-entropy, three epochs of ten batches."""
    lines = []
    for step in range(2, 31, 2):
        epoch, batch = -(-step // 10), (step - 1) % 10 + 1
        loss = 1 + 2 * math.exp(-step / 8) + generator.uniform(-0.1, 0.1)
        place = {"epoch": epoch, "batch": batch, "step": step}
        means = {"frames": 600.0, "loss": loss, "frame_errors": loss / 5}
        lines.append({"kind": "step", **place, **means, **pace(step)})
        if batch == 10:
            train = {"frames": float(FRAMES), "loss": loss, "frame_errors": loss / 5}
            dev = {**train, "loss": loss + 0.2, "frame_errors": loss / 4}
            rate = {"learning_rate": 0.001}
            lines.append({"kind": "epoch", **place, "train": train, "dev": dev, **rate})
    return lines


def pace(step: int) -> dict[str, Any]:
    parts = ("data", "forward", "criterion", "backward", "reduce", "update")
    return {
        "learning_rate": 0.001,
        "gradient_norm": 1.0 + 1 / step,
        "frames_per_second": 4000.0,
        "time": dict(zip(parts, (0.01, 0.3, 0.25, 0.36, 0.0, 0.08), strict=True)),
    }


def sequence_log(name: str) -> list[dict[str, Any]]:
    """A training on lattices, three epochs of four batches, with its choice."""
    lines: list[dict[str, Any]] = []
    errors = DEV_ERRORS[name]
    for epoch, wrong in enumerate(errors, start=1):
        for batch in (2, 4):
            step = 4 * (epoch - 1) + batch
            place = {"epoch": epoch, "batch": batch, "step": step}
            means = statistics(name, step)
            lines.append({"kind": "step", **place, **means, **pace(step)})
        train = {**means, "frames": float(FRAMES)}
        dev = {"frames": float(WORDS), "loss": wrong / WORDS}
        rate = {"learning_rate": 0.0001}
        lines.append({"kind": "epoch", **place, "train": train, "dev": dev, **rate})
    best = errors.index(min(errors)) + 1
    lines.append({"kind": "final", **place, "dev": dev, "epochs": [best]})
    return lines


def statistics(name: str, step: int) -> dict[str, float]:
    """Means per frame; names are those of `latflow.sequence.journal`."""
    flies = name == "smbr"
    return {
        "frames": FRAMES / 2,
        "loss": 0.3 - 0.01 * step,
        "objective": 0.7 + 0.01 * step if flies else -0.2 + 0.01 * step,
        "ce": 0.7 + 0.001 * step,
        "depth": 90.0 - step,
        "lattice_beam": 8.0 - 0.1 * step if flies else 8.0,
        "numerator_in_lattice": 0.99,
        "oracle_errors": 2 / FRAMES,
        "oracle_words": 25 / FRAMES,
        "aligned_frames": 1.0 if flies else 0.0,
        "drifted_frames": 0.02 * step if flies else 0.0,
        "utterances": 40 / FRAMES,
        "skipped": 1 / FRAMES,
        "retried": 3 / FRAMES,
        "partial": 0.0,
        "fallbacks": 2 / FRAMES if flies else 0.0,
        "seconds_align": 1e-5 if flies else 0.0,
        "seconds_lattice": 6e-5,
        "seconds_criterion": 3e-5,
        "seconds_wait": 2e-5,
    }
