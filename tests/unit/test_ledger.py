"""Nothing is skipped in silence."""

import pytest

from latflow.errors import UserError
from latflow.ledger import Ledger, read_ledger


def test_entries_round_trip_sorted(tmp_path):
    ledger = Ledger("align")
    ledger.record("b", "no path", beam=40.0)
    ledger.record("a", "beam widened", action="retried", beam=40.0)
    ledger.write(tmp_path / "ledger.jsonl")
    entries = list(read_ledger(tmp_path / "ledger.jsonl"))
    assert [e.utterance for e in entries] == ["a", "b"]
    assert set(entries) == set(ledger.entries)


def test_only_skipped_utterances_count_against_the_bound():
    ledger = Ledger("align")
    ledger.record("a", "beam widened", action="retried")
    ledger.check(10, max_skipped_fraction=0.0)
    ledger.record("b", "no path")
    ledger.check(10, max_skipped_fraction=0.1)
    with pytest.raises(
        UserError, match="b: align skipped 1 of 10 .*no path.*--max-skipped 0.1[^0-9]"
    ):
        ledger.check(10, max_skipped_fraction=0.05)
