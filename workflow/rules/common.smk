# What all rules share: the resolved recipe (latflow.workflow.recipe), and functions of
# wildcards.
# Products: none.
import os
import re
import sys
from pathlib import Path

# A checkout brings the package along; else it is installed beside Snakemake.
SOURCE = Path(workflow.basedir, "src")
if SOURCE.is_dir():
    sys.path.insert(0, str(SOURCE))

from latflow.errors import UserError
from latflow.files import remove_leftovers
from latflow.workflow import fork_server
from latflow.workflow.group_jobs import show_reasons
from latflow.workflow.jobs import above_limit, check_writable
from latflow.workflow.machine import capacity
from latflow.workflow.code_digest import stage
from latflow.workflow.cost_estimate import CostEstimate
from latflow.workflow.settings import search_path
from latflow.workflow.packages import PackagePlan
from latflow.workflow.reasons import name_changes
from latflow.workflow.recipe import PACKAGED, Recipe
from latflow.workflow.retries import count_by_progress
from latflow.workflow.sets import simulation_files
from latflow.workflow.settings import check_keys, keep_config, nested_values
from latflow.workflow.sharing import share_results
from latflow.workflow.signals import handle_signals
from snakemake.utils import update_config
from snakemake_logger_plugin_latflow import LogHandler, refusals

if SOURCE.is_dir() or workflow.deployment_settings.deployment_method:
    os.environ.update(PYTHONPATH=str(search_path()))

# `--config decode={beam: 11}` means a number, as `--config seed=7` does.
update_config(config, nested_values(workflow.config_settings.config))
try:
    for path in workflow.overwrite_configfiles:
        check_keys(path)
    recipe = Recipe.from_config(config)
except UserError as error:
    raise WorkflowError(str(error)) from None

RESULTS = recipe.results


# A number of jobs (`--jobs`) is what executors of clusters have instead of cores. Which
# executor it will be, Snakemake knows only after it has read the rules. A job's Snakemake
# that starts a step of SLURM has a number of jobs too, the one within the step has not.
if workflow.resource_settings.nodes is not None:
    # The cores of the machine where the run was started say nothing of the cluster's,
    # whose profile has `max-threads`.
    workflow.register_resource("_cores", sys.maxsize)
elif workflow.is_main_process:
    # Without a core no job would ever begin, and Snakemake would wait for one for ever.
    if workflow.resource_settings.cores == 0:
        raise WorkflowError("error: --cores begins at 1")
    # Jobs that run side by side share this machine's memory and GPUs; `--resources` says
    # otherwise. A job that asks for more than there is gets all of it, alone.
    for name, amount in capacity().items():
        if name not in workflow.global_resources:
            workflow.register_resource(name, amount)

handle_signals()
show_reasons()
name_changes()
if workflow.is_main_process:
    for line in above_limit(RESULTS, recipe.max_skipped_fraction):
        logger.warning(line)
    # Attempts of a training that came further use up no retry.
    count_by_progress(
        [
            *(network.checkpoints for network in recipe.networks.values()),
            *(lm.checkpoints for lm in recipe.language.models.values() if lm.is_neural),
        ]
    )
    if recipe.options.cache.enabled:
        share_results(RESULTS, recipe.options.cache)

# Environment of network stages under `--sdm conda`.
DEVICE = recipe.options.nnet.device
HAS_GPU = DEVICE == "cuda" or (DEVICE == "auto" and capacity()["gpu"] > 0)
TORCH = f"../../envs/torch-{'gpu' if HAS_GPU else 'cpu'}.yaml"
# GPUs that jobs ask for. With `auto` only trainings of networks do; decoding asks for none
# and takes the device that it finds.
TRAINING_GPUS = 0 if DEVICE == "cpu" else 1
DECODING_GPUS = 1 if DEVICE == "cuda" else 0
GMM_GPUS = 1 if recipe.options.gmm.device == "cuda" else 0


onstart:
    try:
        check_writable(RESULTS)
        recipe.language.check()
        recipe.check_definitions()
    except UserError as error:
        raise WorkflowError(str(error)) from None
    keep_config(config, RESULTS)
    # Snakemake's lock is ours: no other run works here.
    if leftovers := remove_leftovers(RESULTS):
        logger.info(f"Removed {len(leftovers)} outputs that killed jobs left.")
    if workflow.local_exec:
        fork_server.start()
    cores = workflow.resource_settings.cores or os.cpu_count()
    LogHandler.estimate = CostEstimate(workflow.dag, config, cores)


onsuccess:
    # Not above: jobs, which read this file too, need no pandas.
    from latflow.report.outcome import outcome_text

    try:
        sys.stdout.write(outcome_text(RESULTS, recipe))
        sys.stdout.flush()
    except UserError as error:  # all jobs were done
        logger.warning(str(error))


def packages_asked_for(wildcards):
    """Packages of the recipe, for the target that asks for nothing else."""
    if not (systems := recipe.options.package.systems):
        raise WorkflowError(
            "error: the recipe packages no system - name one in package.systems, or "
            "package one by itself: latflow package SYSTEM"
        )
    return [f"{RESULTS}/package/{system}/package.json" for system in systems]


SPLITS = ["full", *recipe.splits, *recipe.training_sets[1:]]


wildcard_constraints:
    split="|".join(SPLITS),
    system="|".join(recipe.systems),
    network="|".join(recipe.networks) or "none",
    stream="|".join(recipe.extracted),
    decoding="|".join(map(re.escape, recipe.decodings)),
    lm="|".join(recipe.language.models),
    transcription="|".join(recipe.options.transcribe) or "none",


# Work on a set that several jobs share.
SHARED = {work for work, number in recipe.options.num_jobs if number > 1}


def in_one_job(work, names):
    """Constraint where one job does such work on a set; matches none if jobs share it."""
    return "|".join(() if work in SHARED else names) or "none"


def in_parts(work, names):
    """Constraint where several jobs share such work, and one joins what they did."""
    return "|".join(names if work in SHARED else ()) or "none"


def per_attempt(amount):
    """Memory or time that a job asks for: more in each attempt that counts."""

    def wanted(wildcards, attempt):
        return amount * attempt

    return wanted


def skippable(wildcards, output):
    """Share of its utterances that a step may skip.

    A function of the output is no reason for Snakemake to run a finished step again.
    """
    return recipe.max_skipped_fraction


def skippable_in_training(wildcards, output):
    """The same of training sets; dev may have phones that the phone LM does not know."""
    is_trained_on = wildcards.split in recipe.training_sets
    return recipe.max_skipped_fraction if is_trained_on else 1.0


def free_options_of(wildcards, output):
    """Options of a training that are no reason to run it again, as `skippable`."""
    return system_of(wildcards).free_options


def free_options_of_lm(wildcards, output):
    """The same of a neural language model."""
    return recipe.language.models[wildcards.lm].free_options


def free_simulation_options(wildcards, output):
    """The same of a simulated set."""
    return recipe.options.corpus.simulated[wildcards.split].split()[1]


def free_config(wildcards, output):
    """The same of the whole recipe."""
    return recipe.options.split()[1]


def device_of(wildcards, output):
    """Device of a network that scores: no reason to score again."""
    return DEVICE


def device_of_scores(wildcards, output):
    """The same as an option of the use of scores."""
    return {"device": DEVICE}


def device_of_alignment(wildcards, output):
    """The same as an option of alignment with a network."""
    return {"scores": {"device": DEVICE}}


def system_of(wildcards):
    """System that a job is about."""
    name = wildcards.get("system") or wildcards.get("network")
    return recipe.systems[name] if name else recipe.system_of(wildcards.decoding)


def training_set_of(wildcards):
    """Set that a network is trained on."""
    return system_of(wildcards).training_set


def scored_features_of(wildcards):
    """Features of a set whose utterances are scored; dev chooses the scales."""
    return recipe.scored_features(wildcards.get("split", "dev"))


def transforms_of_split(wildcards):
    """Speaker transforms: of training sets by alignment, of others by decoding."""
    is_trained_on = wildcards.split in recipe.training_sets
    return system_of(wildcards).speaker_transforms(
        wildcards.split, is_trained_on=is_trained_on
    )


def gpus_of_sweep(wildcards):
    """GPUs that decoding with several beams asks for: only networks use them."""
    return DECODING_GPUS if system_of(wildcards).is_network else 0


def download_name(path):
    """Name of the rule that fetches a file."""
    return re.sub(r"\W+", "_", Path(path).name)


def files_of_package(wildcards):
    """Files that a package is made of, by name."""
    plan = PackagePlan(recipe, wildcards.system)
    plan.check()
    return plan.files


def transcription_of(wildcards):
    """Recordings to transcribe, and the system that does it."""
    return recipe.options.transcribe[wildcards.transcription]


def recordings_of(wildcards):
    """Manifest of the set that is transcribed, where it is no folder."""
    split = transcription_of(wildcards).set
    return [] if split is None else f"{RESULTS}/corpus/{split}/recordings.jsonl.gz"


def log_likes_of(wildcards):
    """Scores of the frames of alignments; those that Kaldi made have none."""
    folder = f"{RESULTS}/align/{wildcards.system}/{wildcards.split}"
    is_kaldis = wildcards.system == recipe.imported_system
    is_taken = is_kaldis and wildcards.split == "train"
    return [] if is_taken else f"{folder}/log_likes/meta.json"


def words_of_alignments(wildcards):
    """Words of alignments; those of their own where a package made them."""
    if wildcards.system != PACKAGED:
        return system_of(wildcards).words
    return f"{RESULTS}/align/{PACKAGED}/{wildcards.split}/lang/words.txt"


def model_of_alignments(wildcards):
    """Transition model of alignments."""
    if wildcards.system != PACKAGED:
        return system_of(wildcards).model
    return f"{aligning_package(wildcards)}/model/final.mdl"


def package_with_boundaries(wildcards):
    """Package that aligned, which may have learnt where boundaries are."""
    if wildcards.system != PACKAGED:
        return []
    return f"{aligning_package(wildcards)}/package.json"


def aligning_package(wildcards):
    """Folder of the package that aligns a split: as it is, or adapted to the split."""
    export = recipe.options.export_alignments
    is_adapted = export.adapt is not None
    return f"{RESULTS}/adapted/{wildcards.split}" if is_adapted else export.package
