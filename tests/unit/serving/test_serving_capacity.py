"""The capacity of a package: its server is started, loaded, and stopped."""

import psutil
import pytest
from lhotse import CutSet, Recording, SupervisionSegment

from latflow.errors import UserError
from latflow.scoring.results import read_table
from latflow.serving.capacity import measure_capacity, running_server
from latflow.serving.options import ServerOptions
from latflow.workflow.experiment import CapacityOptions


@pytest.fixture
def cuts(digits, tmp_path):
    found = []
    for utterance, path in digits.audio.items():
        cut = Recording.from_file(path, recording_id=utterance).to_cut()
        cut.id = utterance
        cut.supervisions = [
            SupervisionSegment(
                utterance, utterance, 0, cut.duration, text=digits.texts[utterance]
            )
        ]
        found.append(cut)
    CutSet.from_cuts(found).to_file(tmp_path / "cuts.jsonl.gz")
    return tmp_path / "cuts.jsonl.gz"


def servers():
    """Processes of servers that this one has started."""
    children = [child.cmdline() for child in psutil.Process().children()]
    return [command for command in children if "latflow.serving.capacity" in command]


@pytest.mark.slow
def test_trials_are_listed_up_to_the_limit(package, cuts, tmp_path):
    table = tmp_path / "capacity.tsv"
    options = CapacityOptions(seconds=3.0, p95=60.0, sessions=1, max_sessions=2)
    measure_capacity(package, cuts, table, options=options, threads=2)
    trials = read_table(table)
    # On a very slow machine nobody is answered in time; then a trial is repeated.
    assert trials["sessions"].unique().tolist() in [["1"], ["1", "2"]]
    assert set(trials["errors"]) == {"0"}
    assert not servers()


@pytest.mark.slow
def test_a_server_that_does_not_start_is_told(tmp_path):
    options = ServerOptions(port=0)
    with (
        pytest.raises(UserError, match="before it was ready"),
        running_server(tmp_path, options),
    ):
        pytest.fail("there is no package")
    assert not servers()
