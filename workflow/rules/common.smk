# What all rules share: the checked configuration and one-line adapters to latflow.recipe.
# Products: none.
import os
import re
import sys
from pathlib import Path

SOURCE = str(Path(workflow.basedir, "src"))
sys.path.insert(0, SOURCE)
os.environ.update(PYTHONPATH=SOURCE)

from latflow.errors import UserError
from latflow.files import remove_leftovers
from latflow.jobs import check_writable
from latflow.machine import capacity
from latflow.provenance import source_digest
from latflow.recipe import Recipe

try:
    recipe = Recipe.from_config(config, Path(workflow.basedir, "workflow", "schemas"))
except UserError as error:
    raise WorkflowError(str(error)) from None

RESULTS = f"results/{recipe.experiment}"
LANGUAGE = f"{RESULTS}/corpus/language"
# A number of jobs (`--jobs`) is what executors of clusters have instead of cores. Which
# executor it will be, Snakemake knows only after it has read the rules. A job's Snakemake
# that starts a step of SLURM has a number of jobs too, the one within the step has not.
if workflow.resource_settings.nodes is not None:
    # The cores of the machine where the run was started say nothing of the cluster's,
    # whose profile has `max-threads`.
    workflow.register_resource("_cores", sys.maxsize)
elif workflow.is_main_process:
    # Jobs that run side by side share this machine's memory and GPUs; `--resources` says
    # otherwise. A job that asks for more than there is gets all of it, alone.
    for name, amount in capacity().items():
        if name not in workflow.global_resources:
            workflow.register_resource(name, amount)

# Environment of network stages under `--sdm conda`.
DEVICE = recipe.config["nnet"]["device"]
HAS_GPU = DEVICE == "cuda" or (DEVICE == "auto" and capacity()["gpu"] > 0)
TORCH = f"../../envs/torch-{'gpu' if HAS_GPU else 'cpu'}.yaml"
# GPUs that jobs ask for. With `auto` only trainings of networks do; decoding asks for none
# and takes the device that it finds.
TRAINING_GPUS = 0 if DEVICE == "cpu" else 1
DECODING_GPUS = 1 if DEVICE == "cuda" else 0
GMM_GPUS = 1 if recipe.config["gmm"]["device"] == "cuda" else 0


onstart:
    try:
        check_writable(RESULTS)
    except UserError as error:
        raise WorkflowError(str(error)) from None
    # Snakemake's lock is ours: no other run works here.
    if leftovers := remove_leftovers(RESULTS):
        logger.info(f"Removed {len(leftovers)} outputs that killed jobs left.")


wildcard_constraints:
    split="|".join(["full", *recipe.splits]),
    system="|".join(recipe.decoded_systems),
    network="|".join(recipe.networks) or "none",
    stream="|".join(recipe.feature_streams) or "none",
    decoding="|".join(map(re.escape, recipe.decodings)),
    lm="|".join(recipe.language_models),


def growing(amount):
    """Memory or time that a job asks for: more in each attempt."""

    def wanted(wildcards, attempt):
        return amount * attempt

    return wanted


def source_of(wildcards):
    """Source description of a split."""
    return recipe.sources[wildcards.split]


def source_files(wildcards):
    """Files whose change makes a split new: those of a Kaldi data directory."""
    return recipe.source_files(wildcards.split)


def options_of_system(wildcards):
    """Settings that training a system depends on."""
    return recipe.system_options(wildcards.system)


def system_of(wildcards):
    """System that a job is about."""
    named = wildcards.get("system") or wildcards.get("network")
    return named or recipe.system_of(wildcards.decoding)


def lang_file(wildcards, name):
    """File of the language directory that a system, or a decoding, works with."""
    return f"{RESULTS}/{recipe.lang_folder(system_of(wildcards))}/{name}"


def lexicon_for(wildcards):
    """Lexicon transducer for training and alignment."""
    return lang_file(wildcards, "L.fst")


def words_for(wildcards):
    """Words that a system knows."""
    return lang_file(wildcards, "words.txt")


def lm_inputs(wildcards):
    """Texts or files that a language model is made from."""
    return recipe.lm_inputs(wildcards.lm, RESULTS, LANGUAGE)


def options_of_lm(wildcards):
    """Settings that a language model depends on."""
    return recipe.lm_options(wildcards.lm, LANGUAGE)


def model_of(wildcards):
    """Model of a system; a network's folder has the transition model of its alignments."""
    system = system_of(wildcards)
    room = "nnet" if recipe.is_network(system) else "gmm"
    return f"{RESULTS}/{room}/{system}/final.mdl"


def graph_of(wildcards):
    """Decoding graph of a system."""
    return f"{RESULTS}/graph/{recipe.gmm_behind(system_of(wildcards))}/HCLG.fst"


def frames_of(split):
    """Frames of a split, or of the split that the job names, which a system reads."""

    def find(wildcards):
        stream = recipe.stream_of(system_of(wildcards))
        room = "frames" if stream is None else f"streams/{stream}/frames"
        return f"{RESULTS}/{room}/{split.format(**wildcards)}/meta.json"

    return find


def alignments_of(split):
    """Alignments of a split that a network is trained on."""

    def find(wildcards):
        source = recipe.gmm_behind(wildcards.network)
        return f"{RESULTS}/align/{source}/{split}/ali.ark"

    return find


def gpus_of_sweep(wildcards):
    """GPUs that decoding with several beams asks for: only networks use them."""
    return DECODING_GPUS if recipe.is_network(wildcards.system) else 0


def model_of_alignments(wildcards):
    """Model that made the alignments that a network is trained on."""
    return f"{RESULTS}/gmm/{recipe.gmm_behind(wildcards.network)}/final.mdl"


def rescoring_options(wildcards):
    """Settings that rescoring with a language model depends on."""
    return recipe.rescoring_options(wildcards.lm)


def alignments_for(wildcards):
    """Alignments that a system is trained on."""
    source = recipe.systems[wildcards.system]["alignments"]
    return f"{RESULTS}/align/{source}/train/ali.ark"


def transforms_for(wildcards):
    """Speaker transforms that belong to those alignments, where their system adapts."""
    source = recipe.systems[wildcards.system]["alignments"]
    is_adapted = recipe.is_adapted(source)
    return [f"{RESULTS}/align/{source}/train/trans.ark"] if is_adapted else []


def transforms_of_split(wildcards):
    """Speaker transforms of a split: of train by alignment, of others by decoding."""
    stage = "align" if wildcards.split == "train" else "decode"
    folder = f"{RESULTS}/{stage}/{wildcards.system}/{wildcards.split}"
    return [f"{folder}/trans.ark"] if recipe.is_adapted(wildcards.system) else []


def model_behind(wildcards):
    """Model that made those alignments."""
    source = recipe.systems[wildcards.system]["alignments"]
    return f"{RESULTS}/gmm/{source}/final.mdl"


def network_of(wildcards):
    """Description of a network: found from here, else from beside the Snakefile."""
    path = Path(recipe.networks[wildcards.network]["network"])
    ours = Path(workflow.basedir, path)
    return str(ours if ours.exists() and not path.exists() else path)


def parent_of(wildcards):
    """Parameters that sequence training starts from."""
    parent = recipe.networks[wildcards.network]["parent"]
    return f"{RESULTS}/nnet/{parent}/weights.safetensors"


def scales_of_parent(wildcards):
    """Scales that the decoding of the seed has chosen on dev."""
    parent = recipe.networks[wildcards.network]["parent"]
    return f"{RESULTS}/tune/{parent}/scales.json"


def denominator_of(wildcards):
    """Graph that lattices are made with in training."""
    return f"{RESULTS}/denominator/{recipe.gmm_behind(wildcards.network)}/HCLG.fst"


def training_graphs_of(wildcards):
    """Graphs of the transcripts, where the training aligns on the fly."""
    folder = f"{RESULTS}/denominator/{recipe.gmm_behind(wildcards.network)}"
    is_needed = recipe.aligns_on_the_fly(wildcards.network)
    return [f"{folder}/transcripts.graphs"] if is_needed else []


def teacher_of(wildcards):
    """Parameters of the network that a training learns from, where there is one."""
    teacher = recipe.teacher_of(wildcards.network)
    return [] if teacher is None else [f"{RESULTS}/nnet/{teacher}/weights.safetensors"]
