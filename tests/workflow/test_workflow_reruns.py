"""Changes to a finished run that make no job old, and those that do.

Outputs are empty files, which Snakemake was told to take for those of its jobs.
"""

import copy
import json
import os
import re
import shutil
import time

import pytest
import yaml
from fixtures import dry_runs

from latflow.workflow.job_graph import plan_jobs

pytestmark = pytest.mark.slow
NETWORKS = ("logmel", "tdnn", "mmi", "chain", "smbr", "flat")
# Each other than its default.
FREE_OF_TRAINING = {
    "log_interval": 7,
    "checkpoint_minutes": 1.5,
    "keep_checkpoints": 3,
    "keep_finished": False,
    "tensorboard": False,
    "elastic": True,
}
FREE_OF_DATA = {"prefetch": 2, "on_the_fly": {"threads": 2, "cache_mb": 9}}


class Run:
    """A run that is finished but for the contents of its files."""

    def __init__(self, repository, folder):
        self.folder = folder
        self.installed = folder / "installed"
        for name in ("workflow", "config", "profiles", "envs"):
            shutil.copytree(repository / name, self.installed / name)
        self._snakefile = shutil.copy(repository / "Snakefile", self.installed)
        shutil.copytree(repository / "tests/e2e", folder / "tests/e2e")
        self.noise = noise = folder / "noise/rain.wav"
        noise.parent.mkdir()
        noise.write_bytes(bytes(2 << 20))
        self.config = yaml.safe_load((folder / "tests/e2e/tiny.yaml").read_text())
        of = next(iter(self.config["corpus"]["test"]))
        noises = {"rain": {"type": "recorded", "files": str(noise.parent)}}
        self.config["corpus"]["simulated"] = {"noisy": {"of": of, "noises": noises}}
        self.write(self.config)
        self._make_outputs()
        done = self._snakemake("--touch", "--forceall")
        assert done.returncode == 0, done.stderr

    def write(self, config):
        """Write the recipe."""
        self.recipe = self.folder / "recipe.yaml"
        self.recipe.write_text(yaml.safe_dump(config, sort_keys=False))

    def planned(self):
        """Return the rules of the jobs that would run."""
        done = self._snakemake("-n")
        assert done.returncode == 0, done.stderr
        said = done.stdout + done.stderr
        assert "missing provenance" not in said
        is_idle = "Nothing to be done" in said
        table = re.findall(r"^(\w+) +\d+$", said.partition("Job stats:")[2], re.M)
        assert is_idle != bool(table)
        return set(table) - {"all", "total"}

    def _make_outputs(self):
        """Make the outputs of all jobs, empty."""
        for job in plan_jobs(str(self.recipe), cores=2, gpus=0):
            for path in map(self.folder.joinpath, job.outputs):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()

    def _snakemake(self, *arguments):
        return dry_runs.snakemake(
            self.folder, "--snakefile", self._snakefile, "--directory", self.folder,
            "--cores", "2", "--configfile", self.recipe, *arguments,
        )  # fmt: skip


@pytest.fixture(scope="module")
def run(repository, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("run")
        patch.chdir(folder)  # descriptions of networks are looked for from here
        yield Run(repository, folder)


@pytest.fixture
def config(run):
    """The recipe, to be changed."""
    yield copy.deepcopy(run.config)
    run.write(run.config)


def change_all(config, **sections):
    """Change sections of all networks."""
    for name in NETWORKS:
        system = config["nnet"]["systems"][name]
        for section, values in sections.items():
            system[section] = {**system.get(section, {}), **values}


def test_free_options_of_trainings_make_no_job_old(run, config):
    change_all(config, training=FREE_OF_TRAINING, data=FREE_OF_DATA)
    for name in ("logmel", "tdnn"):  # of stored features
        config["nnet"]["systems"][name]["data"]["cache_mb"] = 100
    config["nnet"]["backend"] = "torch"
    config["nnet"]["device"] = "cpu"  # of decoding and alignment, too
    config["decode"]["rescore"]["lstm"]["lm"]["checkpoint_minutes"] = 3
    config["corpus"]["simulated"]["noisy"]["cache_mb"] = 100
    run.write(config)
    assert run.planned() == set()


def test_an_input_counts_by_its_content(run, config):
    run.write(config)
    later = time.time() + 60
    os.utime(run.noise, (later, later))
    assert run.planned() == set()
    before = run.noise.read_bytes()
    run.noise.write_bytes(before + b"1")
    os.utime(run.noise, (later, later))
    planned = run.planned()
    run.noise.write_bytes(before)
    assert "simulate_corpus" in planned


def test_the_same_installed_again_makes_no_job_old(run, config):
    run.write(config)
    later = time.time() + 60
    for path in run.installed.rglob("*"):
        os.utime(path, (later, later))
    assert run.planned() == set()


def test_an_anchor_that_systems_share_makes_no_job_old(run, config):
    shared = {**FREE_OF_TRAINING, "epochs": 2, "learning_rate": 1.0e-4}
    systems = config["nnet"]["systems"]
    systems["mmi"]["training"] = shared
    systems["smbr"]["training"] = {**shared, "epochs": 1, "learning_rate": 1.0e-5}
    systems["logmel"]["data"] = systems["chain"]["data"]
    run.write(config)
    assert "&id" in run.recipe.read_text()
    assert run.planned() == set()


def test_a_comment_in_the_description_of_a_network_makes_no_job_old(run, config):
    run.write(config)
    for file in (run.folder / "tests/e2e").glob("tiny_*.yaml"):
        file.write_text(f"# how it came to be\n{file.read_text()}")
    assert run.planned() == set()


def test_a_layer_of_another_size_trains_the_networks_that_have_it(run, config):
    run.write(config)
    file = run.folder / "tests/e2e/tiny_chain.yaml"
    before = file.read_text()
    network = yaml.safe_load(before)
    layer = next(x for x in network["layers"].values() if "size" in x)
    layer["size"] += 1
    file.write_text(json.dumps(network))
    planned = run.planned()
    file.write_text(before)
    assert "train_lfmmi" in planned
    assert not planned & {"train_network", "train_language_model", "simulate_corpus"}


def test_another_normalization_extracts_no_features_again(run, config):
    config["features"] = {"cmvn": {"type": "sliding"}}
    config["nnet"]["features"]["online"]["cmvn"] = {"type": "none"}
    run.write(config)
    planned = run.planned()
    assert {"compute_cmvn", "train_mono", "train_network"} <= planned
    assert not planned & {"extract_features", "join_features", "prepare_corpus"}


def test_an_option_that_results_follow_from_trains_again(run, config):
    config["nnet"]["systems"]["logmel"]["training"]["epochs"] = 7
    run.write(config)
    assert "train_network" in run.planned()
    assert "train_lfmmi" not in run.planned()
