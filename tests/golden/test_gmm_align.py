"""Kaldi's Viterbi alignments, from Kaldi's graphs and from our own."""

import numpy as np
import pytest

from latflow.configuration import resolve_section
from latflow.fst.graph import read_graphs
from latflow.gmm.model import AcousticModel
from latflow.gmm.viterbi import Aligner, Scales
from latflow.hmm.tree import ContextDependency
from latflow.kaldi_io import read_int_vectors, read_matrices
from latflow.lang.directory import Lang
from latflow.lang.graphs import TrainingGraphCompiler
from latflow.lang.prepare import make_lang


def per_frame(path):
    """Kaldi's `--write-per-frame-acoustic-loglikes`."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: np.array(row[2:-1], float) for row in rows}


@pytest.mark.parametrize("careful", [False, True])
@pytest.mark.parametrize("system", ["mono", "tri1"])
def test_alignments_on_kaldis_graphs(golden, system, careful):
    model = AcousticModel.load(golden / "gmm" / system / "final.mdl")
    aligner = Aligner(model, scales=Scales(), careful=careful)
    frames = dict(read_matrices(golden / "features/mfcc39_cmvn.txt.gz"))
    wanted = dict(read_int_vectors(golden / f"align/ali_{system}.txt"))
    log_likes = per_frame(golden / f"align/per_frame_{system}.txt")
    graphs = dict(read_graphs(golden / f"align/train_graphs_{system}.fsts.gz"))
    assert graphs.keys() == wanted.keys()
    for utterance, graph in graphs.items():
        found = aligner.align(graph, frames[utterance], beam=10, retry_beam=40)
        np.testing.assert_array_equal(found.transition_ids, wanted[utterance])
        np.testing.assert_allclose(
            found.frame_log_likes, log_likes[utterance], atol=2e-3
        )
        assert found.beam == 10


@pytest.fixture(scope="module")
def lang(golden, repository, tmp_path_factory):
    """A lang directory made from Kaldi's lexicon."""
    folder = tmp_path_factory.mktemp("lang") / "lang"
    options = resolve_section(repository / "workflow/schemas", "lang", {})
    make_lang(golden / "lang/lexicon.txt", folder, options=options)
    return Lang.load(folder)


@pytest.mark.parametrize("system", ["mono", "tri1"])
def test_alignments_on_our_own_graphs(golden, lang, system):
    model = AcousticModel.load(golden / "gmm" / system / "final.mdl")
    tree = ContextDependency.load(golden / "gmm" / system / "tree")
    compiler = TrainingGraphCompiler(
        lang, tree, model.transitions, transition_scale=0.0, self_loop_scale=0.0
    )
    aligner = Aligner(model, scales=Scales())
    frames = dict(read_matrices(golden / "features/mfcc39_cmvn.txt.gz"))
    wanted = dict(read_int_vectors(golden / f"align/ali_{system}.txt"))
    for line in (golden / "align/text").read_text().splitlines():
        utterance, text = line.split(maxsplit=1)
        graph = compiler.compile(lang.words_to_ids(text))
        found = aligner.align(graph, frames[utterance], beam=10, retry_beam=40)
        np.testing.assert_array_equal(found.transition_ids, wanted[utterance])


def test_narrow_beam_fails_and_the_retry_beam_helps(golden):
    model = AcousticModel.load(golden / "gmm/mono/final.mdl")
    aligner = Aligner(model, scales=Scales())
    frames = dict(read_matrices(golden / "features/mfcc39_cmvn.txt.gz"))
    graphs = dict(read_graphs(golden / "align/train_graphs_mono.fsts.gz"))
    graph, x = next((g, frames[u]) for u, g in graphs.items())
    assert aligner.align(graph, x, beam=0.05, retry_beam=0) is None
    retried = aligner.align(graph, x, beam=0.05, retry_beam=40)
    wide = aligner.align(graph, x, beam=40, retry_beam=0)
    assert retried.beam == 40
    assert retried.cost == wide.cost


def test_boost_of_silence_makes_it_longer(golden):
    model = AcousticModel.load(golden / "gmm/mono/final.mdl")
    frames = dict(read_matrices(golden / "features/mfcc39_cmvn.txt.gz"))
    graphs = dict(read_graphs(golden / "align/train_graphs_mono.fsts.gz"))

    def silence(boost):
        aligner = Aligner(model, scales=Scales(), boost=boost, boosted_phones=[1])
        paths = (
            aligner.align(g, frames[u], beam=20, retry_beam=0)
            for u, g in graphs.items()
        )
        return sum(
            (model.transitions.phone[p.transition_ids] == 1).sum() for p in paths
        )

    assert silence(1.0) < silence(1e4)
