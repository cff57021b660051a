"""What the jobs of a run are expected to take, estimated beside the run.

The model of `latflow plan` needs pandas and torch, which Snakemake's process does
without: `python -m latflow.report.expected_costs` asks it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latflow.files import write_json
from latflow.workflow.job_graph import described_jobs


class CostEstimate:
    """Estimates a run's jobs in a process of low priority.

    Args:
        graph: Snakemake's graph of jobs.
        config: the complete configuration of the run.
        cores: that the run may use.
    """

    def __init__(self, graph: Any, config: Mapping[str, Any], cores: int) -> None:
        self._graph, self._config, self._cores = graph, config, cores
        self._process: subprocess.Popen[str] | None = None
        self._is_over = False

    def __call__(self) -> dict[str, Any] | None:
        """Return what is expected, as `expected_costs` prints it; None if it failed."""
        try:
            return self._ask()
        except (OSError, ValueError):  # no room for files, say: the run continues
            return None

    def _ask(self) -> dict[str, Any]:
        """Return what the process prints."""
        asked = {
            "jobs": described_jobs(self._graph),
            "config": self._config,
            "cores": self._cores,
        }
        with tempfile.TemporaryDirectory(prefix="latflow-costs-") as folder:
            path = Path(folder, "run.json")
            write_json(path, asked)
            command = [sys.executable, "-m", "latflow.report.expected_costs", str(path)]
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            if self._is_over:
                self._process.kill()
            printed, _ = self._process.communicate()
        return json.loads(printed)

    def stop(self) -> None:
        """Stop the estimate; the run has ended."""
        self._is_over = True
        if self._process is not None:
            self._process.kill()
