"""Training on the digits corpus, against the systems that Kaldi trained on it."""

import numpy as np
import pytest
from fixtures.data_dir import write_mfcc_store

from latflow.align.corpus import AlignmentSummary
from latflow.align.options import AlignOptions
from latflow.features.frames import FrameStore
from latflow.features.transform import Deltas
from latflow.gmm.alignment import align_gmm, align_source
from latflow.gmm.model import AcousticModel
from latflow.gmm.options import (
    AlignAdaptedOptions,
    DeltasOptions,
    MonoOptions,
    SharedOptions,
)
from latflow.gmm.source import FrameSource
from latflow.gmm.train import DeltasJob, MonoJob, train_deltas, train_mono
from latflow.graphs.options import GraphOptions
from latflow.graphs.training import TrainingGraphCompiler
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang
from latflow.parallel import worker_pool
from latflow.parts import SetJob


def summary_of(model_dir, frames, lang):
    """Viterbi log-likelihood of a split under a system."""
    store = FrameStore.load(frames)
    source = FrameSource(store, Deltas(), np.arange(len(store)))
    model = AcousticModel.load(model_dir / "final.mdl")
    tree = ContextDependency.load(model_dir / "tree")
    compiler = TrainingGraphCompiler(lang, tree, model.transitions)
    options = AlignOptions()
    summary = AlignmentSummary(options)
    with worker_pool(2) as pool:
        found = align_source(
            model,
            source,
            lambda u: compiler.compile(lang.words_to_ids(source.text(u))),
            options,
            GraphOptions(),
            [],
            pool,
        )
        for u, alignment in enumerate(found):
            summary.add(u, alignment)
    return summary


@pytest.mark.slow
def test_systems_are_as_good_as_kaldis(golden, corpora, repository, tmp_path):
    train = write_mfcc_store(tmp_path / "train", corpora / "digits/train")
    test = write_mfcc_store(tmp_path / "test", corpora / "digits/test")
    lang = tmp_path / "lang"
    lang_options = LangOptions()
    make_lang(golden / "lang/lexicon.txt", lang, options=lang_options)
    mono, tri1, ali = tmp_path / "mono", tmp_path / "tri1", tmp_path / "ali"
    shared = {"shared": SharedOptions(), "threads": 2, "max_skipped_fraction": 0.0}
    train_mono(
        MonoJob(
            **shared,
            frames_dir=train,
            lang_dir=lang,
            out_dir=mono,
            options=MonoOptions(num_gaussians=400),
        )
    )
    align_gmm(
        SetJob(
            frames_dir=train,
            lang_dir=lang,
            model_dir=mono,
            out_dir=ali,
            threads=2,
            max_skipped_fraction=0.0,
        ),
        options=AlignAdaptedOptions(),
        graph=GraphOptions(),
    )
    sizes = {"num_leaves": 150, "num_gaussians": 1000}
    options = DeltasOptions(alignments="mono", **sizes)
    train_deltas(
        DeltasJob(
            **shared,
            frames_dir=train,
            lang_dir=lang,
            alignments=ali / "ali.ark",
            source_dir=mono,
            out_dir=tri1,
            options=options,
        )
    )
    for system, sizes in (("mono", (67, 398)), ("tri1", (96, 1001))):
        ours = AcousticModel.load(tmp_path / system / "final.mdl")
        assert ours.gmms.num_pdfs == pytest.approx(sizes[0], abs=4)
        assert ours.gmms.num_gaussians == pytest.approx(sizes[1], abs=10)
        found = summary_of(tmp_path / system, test, Lang.load(lang))
        kaldis = summary_of(golden / "gmm" / system, test, Lang.load(lang))
        assert found.num_aligned == kaldis.num_aligned == 63
        ours, theirs = (s.log_like / s.num_frames for s in (found, kaldis))
        assert ours == pytest.approx(theirs, abs=0.25)
