# What all rules share: the checked configuration and one-line adapters to latflow.workflow.recipe.
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
from latflow.workflow.group_jobs import tell_reasons
from latflow.workflow.jobs import above_limit, check_writable
from latflow.workflow.machine import capacity
from latflow.workflow.code_digest import stage
from latflow.workflow.extractor_checks import check_extractors
from latflow.workflow.language_checks import check_language
from latflow.workflow.network_checks import check_descriptions
from latflow.workflow.settings import search_path
from latflow.workflow.packages import PackagePlan
from latflow.workflow.recipe import PACKAGED, Recipe
from latflow.workflow.retries import count_by_progress
from latflow.workflow.settings import check_keys, nested_values
from latflow.workflow.signals import handle_signals
from snakemake.utils import update_config

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

RESULTS = f"results/{recipe.experiment}"
LANGUAGE = f"{RESULTS}/corpus/language"


def checkpoints_of(network):
    """Folder in which trainings of a network keep what they go on from."""
    return f"{RESULTS}/checkpoints/{network}"


def checkpoints_of_lm(lm):
    """The same of a neural language model, whose name a network may have."""
    return checkpoints_of(f"lm.{lm}")


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
tell_reasons()
if workflow.is_main_process:
    for line in above_limit(RESULTS, recipe.max_skipped_fraction):
        logger.warning(line)
    # Attempts of a training that came further use up no retry.
    count_by_progress(
        [
            *map(checkpoints_of, recipe.networks),
            *map(checkpoints_of_lm, recipe.neural_lms),
        ]
    )

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
        check_language(recipe, Path(RESULTS))
        check_descriptions(recipe)
        check_extractors(recipe)
    except UserError as error:
        raise WorkflowError(str(error)) from None
    # Snakemake's lock is ours: no other run works here.
    if leftovers := remove_leftovers(RESULTS):
        logger.info(f"Removed {len(leftovers)} outputs that killed jobs left.")
    if workflow.local_exec:
        fork_server.start()


SPLITS = ["full", *recipe.splits, *recipe.training_sets[1:]]


wildcard_constraints:
    split="|".join(SPLITS),
    system="|".join(recipe.decoded_systems),
    network="|".join(recipe.networks) or "none",
    stream="|".join(recipe.feature_streams) or "none",
    decoding="|".join(map(re.escape, recipe.decodings)),
    lm="|".join(recipe.language_models),
    transcription="|".join(recipe.options.transcribe) or "none",


# Work on a set that several jobs share.
SHARED = {work for work, number in recipe.options.num_jobs if number > 1}


def in_one_job(work, names):
    """Constraint where one job does such work on a set; matches none if jobs share it."""
    return "|".join(() if work in SHARED else names) or "none"


def in_parts(work, names):
    """Constraint where several jobs share such work, and one joins what they did."""
    return "|".join(names if work in SHARED else ()) or "none"


def growing(amount):
    """Memory or time that a job asks for: more in each attempt that counts."""

    def wanted(wildcards, attempt):
        return amount * attempt

    return wanted


def skippable(wildcards, output):
    """Share of its utterances that a step may skip.

    A function of the output is no reason for Snakemake to run a finished step again.
    """
    return recipe.max_skipped_fraction


def free_network_options(wildcards, output):
    """Options of a training that are no reason to run it again, as `skippable`."""
    return recipe.free_network_options(wildcards.network)


def free_lm_options(wildcards, output):
    """The same of a neural language model."""
    return recipe.free_lm_options(wildcards.lm)


def free_simulation_options(wildcards, output):
    """The same of a simulated set."""
    return recipe.options.corpus.simulated[wildcards.split].split()[1]


def free_config(wildcards, output):
    """The same of the whole recipe."""
    return recipe.options.split()[1]


def skippable_in_training(wildcards, output):
    """The same of training sets; dev may have phones that the phone LM does not know."""
    is_trained_on = wildcards.split in recipe.training_sets
    return recipe.max_skipped_fraction if is_trained_on else 1.0


def source_of(wildcards):
    """Source description of a split."""
    return recipe.sources[wildcards.split].values()


def source_files(wildcards):
    """Files whose change makes a split new: those of a Kaldi data directory."""
    return recipe.source_files(wildcards.split)


def vocabulary_of(wildcards):
    """Lexicon whose spelling the transcripts of a split take on."""
    return recipe.vocabulary(wildcards.split, LANGUAGE)


def references_of(wildcards):
    """Cuts of a set that is scored: of those utterances that have features."""
    split = getattr(wildcards, "split", "dev")
    folder = "features" if recipe.has_audio(split) else "corpus"
    return f"{RESULTS}/{folder}/{split}/cuts.jsonl.gz"


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


def generated_pronunciations():
    """Table of the entries that the lexicon got, if it gets some."""
    is_asked = recipe.generates_pronunciations
    return f"{RESULTS}/g2p/generated.tsv" if is_asked else []


def completed_lang_options():
    """How the lexicon is read that has the generated pronunciations, if there are."""
    options = recipe.options.lang.values()
    is_asked = recipe.generates_pronunciations
    return {**options, "has_probabilities": True} if is_asked else options


def lm_inputs(wildcards):
    """Texts or files that a language model is made from."""
    return recipe.lm_inputs(wildcards.lm, RESULTS, LANGUAGE)


def options_of_lm(wildcards):
    """Settings that a language model depends on."""
    return recipe.lm_options(wildcards.lm, LANGUAGE).values()


def model_of(wildcards):
    """Model of a system; a network's folder has the transition model of its alignments."""
    system = system_of(wildcards)
    folder = "nnet" if recipe.is_network(system) else "gmm"
    return f"{RESULTS}/{folder}/{system}/final.mdl"


def tree_model_of(wildcards):
    """Transition model of the tree that a system works with; the tree lies beside it."""
    return f"{RESULTS}/{recipe.tree_folder(system_of(wildcards))}/final.mdl"


def graph_of(wildcards):
    """Decoding graph of a system."""
    return f"{RESULTS}/graph/{recipe.tree_owner(system_of(wildcards))}/HCLG.fst"


def split_of(wildcards, split):
    """Split that an input is of; `train` stands for the network's training set."""
    if split == "train":
        return recipe.training_set_of(wildcards.network)
    return split.format(**wildcards)


def statistics_before(wildcards):
    """Frames of the training set, where others begin with its statistics (CMVN)."""
    stream = wildcards.get("stream")
    options, above = recipe.options.features, RESULTS
    if stream is not None:
        options, above = (
            recipe.options.nnet.features[stream],
            f"{RESULTS}/streams/{stream}",
        )
    if options.cmvn.type != "online" or wildcards.split == "train":
        return []
    return f"{above}/frames/train/meta.json"


def frames_of(split):
    """Frames of a split, or of the split that the job names, which a system reads."""

    def find(wildcards):
        stream = recipe.stream_of(system_of(wildcards))
        folder = "frames" if stream is None else f"streams/{stream}/frames"
        return f"{RESULTS}/{folder}/{split_of(wildcards, split)}/meta.json"

    return find


def frames_below_ivectors(ivectors, split):
    """Frames of a split that i-vectors are made of and follow."""
    features = recipe.options.nnet.ivectors[ivectors].features
    return f"{RESULTS}/streams/{features}/frames/{split}/meta.json"


def frames_to_paste(wildcards):
    """Frames of a split that are put side by side."""
    streams = recipe.options.nnet.pasted[wildcards.pasted].features
    above = f"{RESULTS}/streams"
    return [f"{above}/{s}/frames/{wildcards.split}/meta.json" for s in streams]


def alignments_of(split):
    """Alignments of a split that a network is trained on."""

    def find(wildcards):
        source = recipe.aligner_of(wildcards.network)
        return f"{RESULTS}/align/{source}/{split_of(wildcards, split)}/ali.ark"

    return find


def labels_of(split):
    """Alignments that give a network its labels, where it has some."""

    def find(wildcards):
        has_some = recipe.learns_alignments(wildcards.network)
        return [alignments_of(split)(wildcards)] if has_some else []

    return find


def given_labels_of(split):
    """Labels that come with a network's features in HDF5 files, where some do."""

    def find(wildcards):
        stream = recipe.labelled_stream(wildcards.network)
        folder = f"{RESULTS}/streams/{stream}/labels"
        has_some = recipe.targets_given(wildcards.network)
        return [f"{folder}/{split_of(wildcards, split)}"] if has_some else []

    return find


def simulation_files_of(wildcards):
    """Noises and measured responses that a network's training data are put into."""
    data = recipe.networks[wildcards.network].data
    return recipe.simulation_files(data.simulation or data.mixing)


def transcripts_of(split):
    """Transcripts of a split, as graphs or units, where an output learns from them."""

    def find(wildcards):
        folder = recipe.transcripts_folder(wildcards.network)
        file = f"{RESULTS}/{folder}/{split_of(wildcards, split)}/meta.json"
        return [] if folder is None else [file]

    return find


def features_learnt(split):
    """Features of a split that outputs of a network learn, if any."""

    def find(wildcards):
        streams = recipe.features_learnt(wildcards.network)
        own = split_of(wildcards, split)
        return [f"{RESULTS}/streams/{name}/frames/{own}/meta.json" for name in streams]

    return find


def supervisions_of(split):
    """Supervision that a network is trained on by LF-MMI."""

    def find(wildcards):
        folder = f"{RESULTS}/chain/{wildcards.network}/supervisions"
        return f"{folder}/{split_of(wildcards, split)}/meta.json"

    return find


def gmm_behind(wildcards):
    """Model of the GMM system that a network goes back to."""
    return f"{RESULTS}/gmm/{recipe.gmm_behind(wildcards.network)}/final.mdl"


def alignments_behind(wildcards, name):
    """What it aligned of the network's training set, or its transforms if it has some."""
    source = recipe.gmm_behind(wildcards.network)
    split = recipe.training_set_of(wildcards.network)
    is_there = name != "trans.ark" or recipe.is_adapted(source)
    return [f"{RESULTS}/align/{source}/{split}/{name}"] if is_there else []


def frames_behind(wildcards):
    """Frames of the network's training set that this system reads."""
    split = recipe.training_set_of(wildcards.network)
    return f"{RESULTS}/frames/{split}/meta.json"


def gpus_of_sweep(wildcards):
    """GPUs that decoding with several beams asks for: only networks use them."""
    return DECODING_GPUS if recipe.is_network(wildcards.system) else 0


def model_of_alignments(wildcards):
    """Model that made the alignments that a network is trained on."""
    source = recipe.aligner_of(wildcards.network)
    folder = "nnet" if recipe.is_network(source) else "gmm"
    return f"{RESULTS}/{folder}/{source}/final.mdl"


def transforms_of_aligner(wildcards):
    """Speaker transforms of a split that a network's aligner made, where it adapts."""
    source = recipe.aligner_of(wildcards.network)
    folder = f"{RESULTS}/align/{source}/{wildcards.split}"
    return [f"{folder}/trans.ark"] if recipe.is_adapted(source) else []


def aligned_for_supervision(wildcards):
    """Lattices of pronunciations that supervision is made from, or alignments."""
    if recipe.chain_system(wildcards.network).supervision_lattices is None:
        return {"alignments": alignments_of("{split}")(wildcards)}
    folder = f"{RESULTS}/chain/{wildcards.network}/lattices/{wildcards.split}"
    return {"lattices": f"{folder}/lattices.ark"}


def source_of_network(wildcards):
    """Model of the tree that a network works with, or that made its alignments."""
    is_own = recipe.has_own_tree(wildcards.network)
    return (tree_model_of if is_own else model_of_alignments)(wildcards)


def aligner_of_network(wildcards):
    """Model that made a network's alignments, where its own tree is another."""
    name = wildcards.network
    is_other = recipe.has_own_tree(name) and recipe.has_aligner(name)
    return [model_of_alignments(wildcards)] if is_other else []


def alignments_for(wildcards):
    """Alignments that a system is trained on."""
    source = recipe.alignments_of(wildcards.system)
    return f"{RESULTS}/align/{source}/train/ali.ark"


def transforms_for(wildcards):
    """Speaker transforms that belong to those alignments, where their system adapts."""
    source = recipe.alignments_of(wildcards.system)
    is_adapted = recipe.is_adapted(source)
    return [f"{RESULTS}/align/{source}/train/trans.ark"] if is_adapted else []


def transforms_of_split(wildcards):
    """Speaker transforms: of training sets by alignment, of others by decoding."""
    stage = "align" if wildcards.split in recipe.training_sets else "decode"
    folder = f"{RESULTS}/{stage}/{wildcards.system}/{wildcards.split}"
    return [f"{folder}/trans.ark"] if recipe.is_adapted(wildcards.system) else []


def model_behind(wildcards):
    """Model that made those alignments."""
    source = recipe.alignments_of(wildcards.system)
    return f"{RESULTS}/gmm/{source}/final.mdl"


def network_of(wildcards):
    """Description of a network: found from here, else from beside the Snakefile.

    Its contents are a param of the rules, so that a comment makes no network old.
    """
    path = Path(recipe.networks[wildcards.network].network)
    ours = Path(workflow.basedir, path)
    return str(ours if ours.exists() and not path.exists() else path)


def parent_of(wildcards):
    """Parameters that the training of a network starts from, where it names some."""
    parent = recipe.networks[wildcards.network].parent
    return [] if parent is None else f"{RESULTS}/nnet/{parent}/weights.safetensors"


def scales_of_parent(wildcards):
    """Scales that the decoding of the seed has chosen on dev."""
    parent = recipe.sequence_system(wildcards.network).parent
    return f"{RESULTS}/tune/{parent}/scales.json"


def denominator_of(wildcards):
    """Graph that lattices are made with in training."""
    return f"{RESULTS}/denominator/{recipe.tree_owner(wildcards.network)}/HCLG.fst"


def training_graphs_of(wildcards):
    """Graphs of the transcripts, where the training aligns on the fly."""
    folder = f"{RESULTS}/denominator/{recipe.tree_owner(wildcards.network)}"
    split = recipe.training_set_of(wildcards.network)
    is_needed = recipe.aligns_on_the_fly(wildcards.network)
    return [f"{folder}/transcripts/{split}/meta.json"] if is_needed else []


def files_of_package(wildcards):
    """Files that a package is made of, by name."""
    plan = PackagePlan(recipe, wildcards.system)
    plan.check()
    return plan.files(RESULTS)


def transcription_of(wildcards):
    """Recordings to transcribe, and the system that does it."""
    return recipe.options.transcribe[wildcards.transcription]


def recordings_of(wildcards):
    """Manifest of the set that is transcribed, where it is no folder."""
    split = transcription_of(wildcards).set
    return [] if split is None else f"{RESULTS}/corpus/{split}/recordings.jsonl.gz"


def criterion_files_of(wildcards):
    """Files of the user's own that a network's criterion has, if any."""
    return recipe.criterion_files_of(wildcards.network)


def log_likes_of(wildcards):
    """Scores of the frames of alignments; those that Kaldi made have none."""
    folder = f"{RESULTS}/align/{wildcards.system}/{wildcards.split}"
    is_kaldis = wildcards.system == recipe.imported_system
    is_taken = is_kaldis and wildcards.split == "train"
    return [] if is_taken else f"{folder}/log_likes/meta.json"


def lang_of_alignments(wildcards):
    """Language directory of alignments; one of its own where a package made them."""
    if wildcards.system != PACKAGED:
        return words_for(wildcards)
    return f"{RESULTS}/align/{PACKAGED}/{wildcards.split}/lang/words.txt"


def aligned_with(wildcards):
    """Transition model of alignments."""
    if wildcards.system != PACKAGED:
        return model_of(wildcards)
    return f"{aligning_package(wildcards)}/model/final.mdl"


def aligning_package(wildcards):
    """Folder of the package that aligns a split: as it is, or adapted to the split."""
    export = recipe.options.export_alignments
    is_adapted = export.adapt is not None
    return f"{RESULTS}/adapted/{wildcards.split}" if is_adapted else export.package


def teacher_of(wildcards):
    """Parameters of the network that a training learns from, where there is one."""
    teacher = recipe.teacher_of(wildcards.network)
    return [] if teacher is None else [f"{RESULTS}/nnet/{teacher}/weights.safetensors"]
