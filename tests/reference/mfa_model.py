"""Acoustic models in the layouts of Montreal Forced Aligner."""

import json
import zipfile

import numpy as np
import yaml

from latflow.gmm.model import AcousticModel, DiagGmms
from latflow.hmm.topology import Topology
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import write_matrix

MARKS = ("_B", "_E", "_I", "_S")
SPEECH = ("ah", "n", "t", "uw", "w")


def old_phones(silence=("sil", "sp", "spn"), speech=SPEECH, marks=MARKS):
    """Phones in the order of their ids, as MFA 1.x numbers them."""
    quiet = [s + mark for s in sorted(silence) for mark in ("", *marks)]
    return [*quiet, *(p + mark for p in sorted(speech) for mark in marks or ("",))]


def random_model(phones, num_silence, dim=39, seed=1):
    """A tree and a model of monophones, of one Gaussian a pdf."""
    ids = range(1, len(phones) + 1)
    topology = Topology.standard(list(ids[num_silence:]), list(ids[:num_silence]))
    tree = ContextDependency.monophone(
        [[number] for number in ids], topology.pdf_class_counts()
    )
    transitions = TransitionModel.from_tree(tree, topology)
    rng = np.random.default_rng(seed)
    num = transitions.num_pdfs
    variances = rng.uniform(20, 60, (num, dim))
    means = rng.normal(0, 10, (num, dim))
    gmms = DiagGmms.from_natural(
        np.arange(num + 1), np.ones(num), means / variances, 1 / variances
    )
    return tree, AcousticModel(transitions, gmms)


def write_files(folder, tree, model, *, lda=None, alimdl=None):
    """Write Kaldi's files of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    tree.save(folder / "tree")
    model.save(folder / "final.mdl")
    if lda is not None:
        write_matrix(folder / "lda.mat", lda)
    if alimdl is not None:
        alimdl.save(folder / "final.alimdl")


def write_meta(folder, meta, *, name="meta.json"):
    """Write what a model says of itself."""
    text = json.dumps(meta) if name.endswith("json") else yaml.safe_dump(meta)
    (folder / name).write_text(text, encoding="utf-8")


def write_phones(folder, phones):
    """Write `phones.txt`."""
    lines = [f"{phone} {number}" for number, phone in enumerate(["<eps>", *phones])]
    (folder / "phones.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def zipped(folder, path, within="model"):
    """Put the files of a folder into an archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{within}/{file.name}" if within else file.name)
    return path


def old_model(folder, **features):
    """Write the files of a small model of MFA 1.x."""
    tree, model = random_model(old_phones(), 15)
    write_files(folder, tree, model)
    told = {"deltas": True, "type": "mfcc", "use_energy": False, **features}
    meta = {
        "architecture": "gmm-hmm",
        "features": told,
        "phones": list(SPEECH),
        "version": "1.1.0",
    }
    write_meta(folder, meta, name="meta.yaml")
    return folder
