# What all rules share: the checked configuration and one-line adapters to latflow.recipe.
# Products: none.
import os
import sys
from pathlib import Path

SOURCE = str(Path(workflow.basedir, "src"))
sys.path.insert(0, SOURCE)
os.environ.update(PYTHONPATH=SOURCE)

from latflow.errors import UserError
from latflow.provenance import source_digest
from latflow.recipe import Recipe

try:
    recipe = Recipe.from_config(config, Path(workflow.basedir, "workflow", "schemas"))
except UserError as error:
    raise WorkflowError(str(error)) from None

RESULTS = f"results/{recipe.experiment}"
LANGUAGE = f"{RESULTS}/corpus/language"


wildcard_constraints:
    split="|".join(["full", *recipe.splits]),
    system="|".join(recipe.systems),


def source_of(wildcards):
    """Source description of a split."""
    return recipe.sources[wildcards.split]


def source_files(wildcards):
    """Files whose change makes a split new: those of a Kaldi data directory."""
    return recipe.source_files(wildcards.split)


def options_of_system(wildcards):
    """Settings that training a system depends on."""
    return recipe.system_options(wildcards.system)


def alignments_for(wildcards):
    """Alignments that a system is trained on."""
    source = recipe.systems[wildcards.system]["alignments"]
    return f"{RESULTS}/align/{source}/train/ali.ark"


def model_behind(wildcards):
    """Model that made those alignments."""
    source = recipe.systems[wildcards.system]["alignments"]
    return f"{RESULTS}/gmm/{source}/final.mdl"
