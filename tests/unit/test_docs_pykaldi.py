"""The tables of docs/kaldi.md: each piece of code in their right column runs."""

import importlib
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fixtures.sequence_system import SCALE, make_system
from reference.lfmmi_naive import random_denominator, random_supervision

from latflow.gmm.model import AcousticModel, DiagGmms
from latflow.kaldi.io import read_int_vectors, write_matrices

TEXT, DIM = "u00", 4
ARPA = """\\data\\
ngram 1=6

\\1-grams:
{cost} A
-0.6 B
-0.7 C
-1.5 <UNK>
-0.8 </s>
-99 <s>

\\end\\
"""


def rows(repository):
    """Of each row of the two tables: what it is of, the text beside, its code."""
    text = (repository / "docs/kaldi.md").read_text()
    section = text.partition("## PyKaldi calls and ours")[2]
    for line in section.splitlines():
        cells = line.strip("|").split(" | ")
        if line.startswith("| ") and len(cells) == 2 and "`" in line:
            pieces = re.findall("`([^`]+)`", cells[1])
            yield cells[0].strip(), cells[1], [one for one in pieces if is_code(one)]


def is_code(piece):
    """Tell whether a piece of a cell is code: not a word of a recipe or of a text."""
    return any(mark in piece for mark in "([=") or re.fullmatch(r"\w+\.[a-z_]+", piece)


class Modules(SimpleNamespace):
    """A package whose modules are imported when they are named."""

    def __init__(self, name):
        super().__init__(_module=importlib.import_module(name))

    def __getattr__(self, name):
        module = self.__dict__["_module"]
        try:
            return Modules(f"{module.__name__}.{name}")
        except ModuleNotFoundError:
            return getattr(module, name)


@pytest.fixture
def names(repository, tmp_path, monkeypatch):
    """Files in the working folder, and the names that the tables begin with."""
    system = make_system(tmp_path, repository)
    rng = np.random.default_rng(1)
    monkeypatch.chdir(tmp_path)
    means = rng.normal(size=(system.model.num_pdfs, DIM))
    ones = np.ones_like(means)
    begin = np.arange(len(means) + 1)
    gmms = DiagGmms.from_moments(begin, ones[:, 0], means, ones)
    AcousticModel(system.model, gmms).save("gmm.mdl")
    ali = dict(read_int_vectors("ali.ark"))[TEXT]
    mat = rng.normal(size=(len(ali), DIM)).astype(np.float32)
    write_matrices("feats.ark", [(TEXT, mat)])
    for name in ("final.mdl", "tree"):
        (tmp_path / name).symlink_to(f"model/{name}")
    (tmp_path / "HCLG.fst").symlink_to("den/HCLG.fst")
    (tmp_path / "network").symlink_to("seed")
    blstm = repository / "config/networks/blstm_small.yaml"
    (tmp_path / "blstm_small.yaml").symlink_to(blstm)
    for name, cost in (("small", -0.5), ("large", -0.4)):
        (tmp_path / f"{name}.arpa").write_text(ARPA.format(cost=cost))
    graph, initial = random_denominator(rng, 4, 9, system.model.num_pdfs)
    packages = ("align criteria decode features fst gmm graphs hmm kaldi lang lattice "
                "nnet training")  # fmt: skip
    loglikes = system.scores[TEXT]
    return {
        **{name: Modules(f"latflow.{name}") for name in packages.split()},
        "text": system.texts[TEXT],
        "word_ids": np.array(system.lang.words_to_ids(system.texts[TEXT]), np.int32),
        "ali": ali,
        "mat": mat,
        "loglikes": loglikes,
        "scores": torch.from_numpy(loglikes).requires_grad_(),
        "wave": rng.normal(0, 0.1, 16000).astype(np.float32),
        "den_graph": graph,
        "initial_probs": initial,
        "outputs": torch.randn(1, 5, system.model.num_pdfs, requires_grad=True),
        "supervision": random_supervision(rng, 5, system.model.num_pdfs),
    }


def test_the_code_of_the_tables_runs(repository, names):
    ran = 0
    for of_kaldi, text, pieces in rows(repository):
        assert pieces or text.startswith(("nothing:", "systems of"))
        for piece in pieces:
            try:
                exec(piece, names)
            except Exception as error:
                raise AssertionError(f"{of_kaldi}: {piece}: {error!r}") from error
            ran += 1
    assert ran > 50
    aligned, ali = names["aligned"].transition_ids, names["ali"]
    assert np.array_equal(aligned, ali)
    assert np.array_equal(names["mats"][TEXT], names["mat"])
    assert names["phones"].tolist()
    assert names["mfcc"].shape == (98, 13)
    assert names["post"].sum() == pytest.approx(len(ali))
    assert 0 <= names["accuracy"] <= len(ali)
    assert set(names["best"].words) <= set(names["language"].word_ids.values())
    assert len(names["best"].transition_ids) == len(ali)
    assert names["fmllr"].shape == (DIM, DIM + 1)
    assert names["scores"].grad.shape == names["loglikes"].shape
    assert np.abs(names["scores"].grad.numpy()).max() <= 2 * SCALE * len(ali)
    assert names["outputs"].grad is not None
    assert [len(batch) for batch in names["batches"].epoch(0)]
