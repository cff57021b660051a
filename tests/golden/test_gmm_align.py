"""Kaldi's Viterbi alignments, from Kaldi's graphs and from our own."""

import numpy as np
import pytest
from reference.graphs import read_graphs

from latflow.align.aligner import Aligner, AlignmentFailure
from latflow.align.options import AlignOptions
from latflow.gmm.alignment import MixtureScorer
from latflow.gmm.model import AcousticModel
from latflow.graphs.options import GraphOptions
from latflow.graphs.training import TrainingGraphCompiler
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import read_int_vectors, read_matrices
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang


def aligner_of(model, **options):
    """An aligner of frames with a GMM."""
    silence = [1]
    aligner = Aligner(
        model.transitions,
        AlignOptions(**options),
        GraphOptions(),
        silence_phones=silence,
    )
    scorer = MixtureScorer(model.gmms)
    return lambda graph, frames: aligner.align(graph, scorer.scores(frames))


def per_frame(path):
    """Kaldi's `--write-per-frame-acoustic-loglikes`."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: np.array(row[2:-1], float) for row in rows}


@pytest.mark.parametrize("careful", [False, True])
@pytest.mark.parametrize("system", ["mono", "tri1"])
def test_alignments_on_kaldis_graphs(golden, system, careful):
    model = AcousticModel.load(golden / "gmm" / system / "final.mdl")
    align = aligner_of(model, careful=careful)
    frames = dict(read_matrices(golden / "features/mfcc39_cmvn.txt.gz"))
    wanted = dict(read_int_vectors(golden / f"align/ali_{system}.txt"))
    log_likes = per_frame(golden / f"align/per_frame_{system}.txt")
    graphs = dict(read_graphs(golden / f"align/train_graphs_{system}.fsts.gz"))
    assert graphs.keys() == wanted.keys()
    for utterance, graph in graphs.items():
        found = align(graph, frames[utterance])
        np.testing.assert_array_equal(found.transition_ids, wanted[utterance])
        np.testing.assert_allclose(
            found.frame_log_likes, log_likes[utterance], atol=2e-3
        )
        assert found.beam == 10


@pytest.fixture(scope="module")
def lang(golden, repository, tmp_path_factory):
    """A lang directory made from Kaldi's lexicon."""
    folder = tmp_path_factory.mktemp("lang") / "lang"
    options = LangOptions()
    make_lang(golden / "lang/lexicon.txt", folder, options=options)
    return Lang.load(folder)


@pytest.mark.parametrize("system", ["mono", "tri1"])
def test_alignments_on_our_own_graphs(golden, lang, system):
    model = AcousticModel.load(golden / "gmm" / system / "final.mdl")
    tree = ContextDependency.load(golden / "gmm" / system / "tree")
    compiler = TrainingGraphCompiler(lang, tree, model.transitions)
    align = aligner_of(model)
    frames = dict(read_matrices(golden / "features/mfcc39_cmvn.txt.gz"))
    wanted = dict(read_int_vectors(golden / f"align/ali_{system}.txt"))
    for line in (golden / "align/text").read_text().splitlines():
        utterance, text = line.split(maxsplit=1)
        graph = compiler.compile(lang.words_to_ids(text))
        found = align(graph, frames[utterance])
        np.testing.assert_array_equal(found.transition_ids, wanted[utterance])


def test_narrow_beam_fails_and_the_retry_beam_helps(golden):
    model = AcousticModel.load(golden / "gmm/mono/final.mdl")
    frames = dict(read_matrices(golden / "features/mfcc39_cmvn.txt.gz"))
    graphs = dict(read_graphs(golden / "align/train_graphs_mono.fsts.gz"))
    graph, x = next((g, frames[u]) for u, g in graphs.items())
    narrow = aligner_of(model, beam=0.05, retry_beam=0)(graph, x)
    assert isinstance(narrow, AlignmentFailure)
    retried = aligner_of(model, beam=0.05, retry_beam=40)(graph, x)
    wide = aligner_of(model, beam=40, retry_beam=0)(graph, x)
    assert retried.beam == 40
    assert retried.cost == wide.cost


def test_boost_of_silence_makes_it_longer(golden):
    model = AcousticModel.load(golden / "gmm/mono/final.mdl")
    frames = dict(read_matrices(golden / "features/mfcc39_cmvn.txt.gz"))
    graphs = dict(read_graphs(golden / "align/train_graphs_mono.fsts.gz"))

    def silence(boost):
        align = aligner_of(model, boost_silence=boost, beam=20, retry_beam=0)
        paths = (align(g, frames[u]) for u, g in graphs.items())
        return sum(
            (model.transitions.phone[p.transition_ids] == 1).sum() for p in paths
        )

    assert silence(1.0) < silence(1e4)
