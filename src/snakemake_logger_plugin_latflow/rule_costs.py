"""What a job of each rule usually takes: the figures by which a run's progress counts.

`rule_costs.tsv` has processor seconds of a job of one thread: what it needs to start,
and what an hour of speech adds. The GMM stages were measured on yesno (0.04 h) and
speechocean (1.9 and 5.6 h), those of networks follow `docs/benchmarks.md`; both are
rounded. A job that shares the work on a set (`..._part`) counts as a quarter of it.
They weigh jobs against each other, and say nothing of a machine.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

_TABLE = Path(__file__).with_name("rule_costs.tsv")
_OTHERS = (3.0, 0.0)  # of a rule that is not in the table


@cache
def _table() -> dict[str, tuple[float, float]]:
    """Return seconds, and seconds an hour of speech, by rule."""
    with _TABLE.open(encoding="utf-8", newline="") as stream:
        return {
            row["rule"]: (float(row["seconds"]), float(row["seconds_per_hour"]))
            for row in csv.DictReader(stream, delimiter="\t")
        }


def usual_seconds(rule: str, hours: float = 1.0) -> float:
    """Return processor seconds that a job usually takes.

    Args:
        rule: its rule; download jobs and others without figures count a little.
        hours: of speech that it goes over.
    """
    start, rate = _table().get(rule, _OTHERS)
    return start + rate * hours
