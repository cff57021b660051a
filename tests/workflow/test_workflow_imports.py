"""Jobs that need no torch do not import it: its import takes longer than they do."""

import re
import subprocess
import sys
from pathlib import Path

from fixtures.rules import read_rules

REPOSITORY = Path(__file__).resolve().parents[2]
RULES = read_rules(REPOSITORY)
HEAVY = ("torch", "lhotse", "matplotlib")
# Rules whose stages go over lattices, graphs, alignments or text alone, or have GMMs.
LIGHT = [
    *("adapt_frames", "align_adapted", "align_frames", "align_lattices"),
    *("append_ivectors", "complete_lexicon", "spell_transcripts", "sweep_beams"),
    *("build_chain_tree", "build_ctc_tree", "build_full_tree", "compile_ctc"),
    *("decode_adapted", "decode_biased", "decode_lattices"),
    *("download", "export_alignments", "hold_out", "compute_cmvn"),
    *("import_alignments", "import_graph", "import_system", "join_features"),
    *("train_deltas", "train_ivectors", "train_mono", "train_sat"),
    *("compile_transcripts", "import_lang", "join_alignments", "join_lattices"),
    *("make_denominator", "make_grammar", "paste_features"),
    *("make_graph", "make_lang", "make_lm", "make_supervisions", "recognize_words"),
    *("reestimate_lexicon", "rescore_lattices", "score_wer", "summarize_wer"),
    *("supervise_flat_start", "tune_scales", "write_language"),
]
# Of these, rules whose stages have no kernels.
TEXT_ALONE = ["download", "hold_out", "compute_cmvn", "summarize_wer"]
# Imports module after module, and says after which one something heavy was there.
PROGRAM = """
import importlib, sys
names, heavy = sys.argv[1].split(","), sys.argv[2].split(",")
for name in names:
    importlib.import_module(name)
    found = [other for other in heavy if other in sys.modules]
    if found:
        sys.exit(f"{name} imports {' and '.join(found)}")
"""


def stage_modules(rule: str) -> list[str]:
    """Module of a rule's stage, and those of the start of its job."""
    module = RULES[rule].stage.rpartition(".")[0]
    return [module, "latflow.workflow.fork_server", "latflow.workflow.jobs"]


def assert_light(names, heavy=HEAVY):
    command = [sys.executable, "-c", PROGRAM, ",".join(sorted(names)), ",".join(heavy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_jobs_that_need_no_torch_do_not_import_it():
    assert_light({name for rule in LIGHT for name in stage_modules(rule)})


def test_jobs_that_compute_nothing_do_not_import_numba_or_pandas():
    names = {name for rule in TEXT_ALONE for name in stage_modules(rule)}
    assert_light(names, (*HEAVY, "numba", "pandas", "scipy"))


def test_the_workflow_is_read_without_torch():
    """Each start of Snakemake reads it, those of a cluster's jobs too."""
    texts = "".join(
        path.read_text() for path in REPOSITORY.glob("workflow/rules/*.smk")
    )
    names = set(re.findall(r"^(?:from|import) (latflow[\w.]*)", texts, re.M))
    assert "latflow.workflow.recipe" in names
    assert_light(names)
