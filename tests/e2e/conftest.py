"""What the tests of whole experiments share: a private checkout to run them in."""

import os
import shutil
import subprocess
import sys

import pytest


class Checkout:
    """A private copy of the workflow and the package that a test may change."""

    def __init__(self, repository, folder):
        self.repository = repository
        self.folder = folder
        for name in ("workflow", "src", "config", "profiles", "envs", "tests/e2e"):
            # What is compiled comes along, but for what is just being written.
            ignore = shutil.ignore_patterns("*.egg-info", "*.tmp.*", "*.pyc.*")
            shutil.copytree(repository / name, folder / name, ignore=ignore)
        shutil.copy(repository / "Snakefile", folder)

    @property
    def environment(self):
        """Variables of the processes: the checkout's own package is found first."""
        return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def command(self, *arguments, cores=2):
        base = [sys.executable, "-m", "snakemake", "--cores", str(cores)]
        return [*base, *map(str, arguments)]

    def run(self, *arguments, cores=2):
        return subprocess.run(
            self.command(*arguments, cores=cores),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
        )

    def results_of(self, experiment):
        return self.folder / "results" / experiment


@pytest.fixture(scope="session")
def make_checkout(repository, tmp_path_factory):
    """Function: a new private checkout."""
    return lambda: Checkout(repository, tmp_path_factory.mktemp("checkout"))
