"""Puts the workflow's files into the package when it is built; see pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

WORKFLOW = (
    *("Snakefile", "workflow", "config", "envs", "profiles"),
    *("docs", "README.md", "CHANGELOG.md"),  # for `latflow docs`
)


class BuildWithWorkflow(build_py):
    """Copies what is at the top of the repository to `latflow/_workflow`."""

    def run(self) -> None:
        """Build the package; an editable one finds the files where they are."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, "latflow", "_workflow")
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for source in map(Path, WORKFLOW):
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "notebooks")
                shutil.copytree(source, target / source, ignore=ignored)
            else:
                shutil.copy(source, target)


setup(cmdclass={"build_py": BuildWithWorkflow})
