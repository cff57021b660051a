# latflow: from recordings to a scored recognizer and its report.
# Products: results/<experiment>/{report.html,wer.tsv,cost.tsv,package/<system>/}
#
# What is not plain Snakemake:
# * One script, run_stage.py, calls the stage function that a rule names in its param `stage`,
#   with what the rule has by name; beside the name the digest of the code that is reached makes
#   other code a reason to rerun.
# * Jobs of one thread on this machine are forks of a process that has imported their stages
#   (latflow.workflow.fork_server; LATFLOW_FORK_SERVER=off: each is its own process).
# * A failed attempt of a training that came further uses up no retry (latflow.workflow.retries).
# * Params that are functions of the output too, as `free_options`, are no reason to rerun.
# * profiles/default has a logger of its own, latflow: a line for a stage of many jobs.
# * A signal to Snakemake ends its jobs with their checkpoints (latflow.workflow.signals).
from snakemake.utils import min_version

min_version("9.19")


# A recipe named by --configfile replaces the embedded default, it does not extend it.
if not workflow.overwrite_configfiles:

    configfile: "config/config.yaml"


include: "workflow/rules/common.smk"


pathvars:
    results=RESULTS,
    logs=f"{RESULTS}/logs",
    benchmarks=f"{RESULTS}/benchmarks",


report: "workflow/report/workflow.rst"


include: "workflow/rules/downloads.smk"
include: "workflow/rules/corpus.smk"
include: "workflow/rules/lang.smk"
include: "workflow/rules/features.smk"
include: "workflow/rules/gmm.smk"
include: "workflow/rules/import.smk"
include: "workflow/rules/align.smk"
include: "workflow/rules/nnet.smk"
include: "workflow/rules/decode.smk"
include: "workflow/rules/parts.smk"
include: "workflow/rules/score.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/serving.smk"
include: "workflow/rules/targets.smk"


SCORES = ["<results>/report.html", "<results>/wer.tsv", "<results>/cost.tsv"]
# Without a dev set nothing is scored; an experiment that only exports trains no others.
MODELS = expand(
    "<results>/gmm/{system}/final.mdl",
    system=[] if recipe.exported_systems else recipe.gmms,
)


rule all:
    default_target: True
    input:
        SCORES if recipe.has_dev else MODELS,
        expand(
            "<results>/alignments/{system}/{split}/export.json",
            system=recipe.exported_systems,
            split=recipe.options.export_alignments.sets,
        ),
        expand(
            "<results>/suspects/{split}/suspects.tsv",
            split=recipe.options.suspects.sets,
        ),
        expand(
            "<results>/package/{system}/package.json",
            system=recipe.options.package.systems,
        ),
        expand(
            "<results>/transcribe/{transcription}/recordings.tsv",
            transcription=recipe.options.transcribe,
        ),


# What a misspelt target is compared with.
refusals.TARGETS[:] = [rule.name for rule in workflow.rules if not rule.output]
