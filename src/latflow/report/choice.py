"""Which system dev is best with, out of the word error rates alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

Rates = Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class Decision:
    """The system to ship.

    Attributes:
        system: its name.
        test: the set that judges it.
        rates: word error rates in per cent by (system, set); systems in their order.
    """

    system: str
    test: str
    rates: Rates

    @property
    def others(self) -> list[str]:
        """The other systems that are scored on the test set, in their order."""
        return [name for name in self.systems if name != self.system]

    @property
    def ties(self) -> list[str]:
        """The other systems that dev is as good with, in their order."""
        best = self.rates[self.system, "dev"]
        return [name for name in self.others if self.rates.get((name, "dev")) == best]

    @property
    def systems(self) -> list[str]:
        """All systems that are scored on the test set, in their order."""
        return [name for name, each in self.rates if each == self.test]


def rates_of(table: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Return the word error rates of `wer.tsv`, per cent, by (system, set).

    Of its counts: its rates are rounded.
    """
    known = table[table["wer"] != "nan"]
    errors = known[["ins", "del", "sub"]].astype(int).sum(axis=1)
    rates = 100 * errors / known["words"].astype(int)
    keys = zip(known["system"], known["set"], strict=True)
    return dict(zip(keys, rates, strict=True))


def chosen_on_dev(rates: Rates, name: str) -> str | None:
    """Choose, among the systems scored on a set, the one that dev is best with.

    Args:
        rates: of `rates_of`.
        name: the set.

    Returns:
        Of equal systems the earlier, which is not built on the other; those that dev
        has not scored come last. None where no system is scored on the set.
    """
    systems = [system for system, each in rates if each == name]
    dev = {system: rates.get((system, "dev"), math.inf) for system in systems}
    return min(systems, key=dev.__getitem__, default=None)


def least_errors(
    table: pd.DataFrame, systems: Sequence[str], sets: Sequence[str]
) -> tuple[str, float, float] | None:
    """Find the system that errs least on sets together.

    Args:
        table: `wer.tsv`.
        systems: those that are asked about, one to be compared with first.
        sets: names of the sets; systems that one of them has not scored are left out.

    Returns:
        (its name, its word error rate and that of the first, per cent); of equal ones
        the earlier. None where the first is not scored on all.
    """
    known = table[(table["wer"] != "nan") & table["set"].isin(sets)]
    counts = known[["ins", "del", "sub", "words"]].astype(int)
    counts["errors"] = counts[["ins", "del", "sub"]].sum(axis=1)
    groups = counts.groupby(known["system"])
    whole = groups.size() == len(set(sets))
    sums = groups[["errors", "words"]].sum()[whole]
    rates = (100 * sums["errors"] / sums["words"]).to_dict()
    among = [name for name in systems if name in rates]
    if systems[0] not in among:
        return None
    best = min(among, key=rates.__getitem__)
    return best, rates[best], rates[systems[0]]


def decide(rates: Rates, test_sets: Sequence[str]) -> Decision | None:
    """Choose the system to ship, see `chosen_on_dev`; the first test set judges it.

    Args:
        rates: of `rates_of`.
        test_sets: with transcripts, in the order of the recipe.

    Returns:
        None where no system is scored on dev and on a test set.
    """
    test = next(iter(test_sets), None)
    system = None if test is None else chosen_on_dev(rates, test)
    if test is None or system is None or (system, "dev") not in rates:
        return None
    return Decision(system, test, rates)
