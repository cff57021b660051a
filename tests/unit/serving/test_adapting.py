"""A package whose means are adapted to a corpus."""

import json
import logging
import shutil

import numpy as np
import pytest
from fixtures.serving_package import RATE, words_of

from latflow.align.corpus import AlignmentArchive
from latflow.cli.main import main
from latflow.corpus.options import FolderSource
from latflow.corpus.prepare import prepare_corpus
from latflow.errors import UserError
from latflow.files import file_digest
from latflow.gmm.model import AcousticModel
from latflow.gmm.options import AlignAdaptedOptions, MapOptions
from latflow.lang.options import LangOptions
from latflow.serving.adapting import adapt_package
from latflow.serving.aligning import AlignmentTask, align_package
from latflow.serving.package import Model
from latflow.serving.package_info import (
    INFO,
    read_info,
)

LIMITS = {"threads": 1, "max_skipped_fraction": 0.0}


@pytest.fixture
def corpus(digits, tmp_path):
    """Six unheard utterances of one speaker."""
    folder = tmp_path / "audio"
    folder.mkdir()
    for name, path in digits.audio.items():
        shutil.copy(path, folder)
        (folder / f"{name}.txt").write_text(digits.texts[name])
    source = FolderSource(path=str(folder), speaker="single")
    prepare_corpus(source, "train", tmp_path / "corpus", seed=1, **LIMITS)
    return tmp_path


def adapt(package, digits, folder, out, **options):
    adapt_package(
        AlignmentTask(
            package_dir=package,
            cuts=folder / "corpus/cuts.jsonl.gz",
            lexicon=digits.root / "lexicon.txt",
            lang=LangOptions(),
            **LIMITS,
        ),
        out_dir=out,
        options=MapOptions(**options),
        align=AlignAdaptedOptions(),
    )
    return out


def mean_score(package, digits, folder, out):
    """Log-likelihood of a frame of the corpus aligned with a package."""
    align_package(
        AlignmentTask(
            package_dir=package,
            cuts=folder / "corpus/cuts.jsonl.gz",
            lexicon=digits.root / "lexicon.txt",
            lang=LangOptions(),
            **LIMITS,
        ),
        out_dir=out,
        options=AlignAdaptedOptions(),
    )
    assert len(AlignmentArchive(out / "ali.ark")) == len(digits.audio)
    return json.loads((out / "statistics.json").read_text())["log_like_per_frame"]


@pytest.mark.slow
@pytest.mark.parametrize("system", ["mono", "sat"])
def test_adapted_package_fits_the_corpus_better(corpus, adapted, system, caplog):
    caplog.set_level(logging.INFO)
    before = adapted.package(corpus / "before", system=system)
    after = adapt(before, adapted, corpus, corpus / "after")
    plain, moved = (
        mean_score(package, adapted, corpus, corpus / f"ali/{package.name}")
        for package in (before, after)
    )
    assert moved > plain + 0.5
    told = [float(r.args[1]) for r in caplog.records if "a frame before" in r.msg]
    assert len(told) == 3
    assert (np.diff(told) > 0).all()
    old, new = read_info(before), read_info(after)
    changed = {n for n in old.digests if old.digests[n] != new.digests[n]}
    models = {"model/final.mdl"} | (
        {"model/final.alimdl"} if system == "sat" else set()
    )
    assert changed == models
    for name in models:
        a, b = (AcousticModel.load(p / name) for p in (before, after))
        np.testing.assert_array_equal(a.gmms.inv_vars, b.gmms.inv_vars)
        np.testing.assert_array_equal(a.gmms.weights, b.gmms.weights)
        np.testing.assert_array_equal(a.transitions.log_prob, b.transitions.log_prob)


def test_much_weight_of_the_old_means_leaves_them(corpus, digits):
    before = digits.package(corpus / "before", system="mono")
    after = adapt(before, digits, corpus, corpus / "after", tau=1e12, num_iterations=1)
    a, b = (AcousticModel.load(p / "model/final.mdl").gmms for p in (before, after))
    np.testing.assert_allclose(a.means, b.means, atol=1e-4)


def test_adapted_package_still_recognizes(corpus, digits):
    before = digits.package(corpus / "before", system="mono")
    after = Model.load(adapt(before, digits, corpus, corpus / "after"))
    for name in digits.audio:
        assert words_of(after, digits.samples(name)) == digits.texts[name].split()
    assert after.sample_rate == RATE


def test_networks_are_refused_in_one_line(corpus, digits, package, capsys):
    with pytest.raises(UserError, match="tdnnf is a network, and adaptation moves"):
        adapt(package, digits, corpus, corpus / "after")
    assert not (corpus / "after").exists()
    given = [str(corpus / "audio"), str(digits.root / "lexicon.txt"), str(corpus / "o")]
    assert main(["align", *given, "--adapt"]) == 1
    assert "--adapt changes a package, and none is named" in capsys.readouterr().err
    assert main(["align", *given, "--adapt", "--model", str(package)]) == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert "tdnnf is a network" in told[0]
    assert not (corpus / "o").exists()


def test_a_changed_file_is_refused(corpus, digits):
    package = digits.package(corpus / "before", system="mono")
    info = json.loads((package / INFO).read_text())
    info["digests"]["model/tree"] = file_digest(package / INFO)
    (package / INFO).write_text(json.dumps(info))
    with pytest.raises(UserError, match="tree: not the file that was packaged"):
        adapt(package, digits, corpus, corpus / "after")
