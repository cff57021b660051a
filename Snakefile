# latflow: from recordings to a scored recognizer and its report.
# Products: results/<experiment>/{report.html,wer.tsv,cost.tsv,package/<system>/}
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
