"""Kaldi's Viterbi alignments, from Kaldi's graphs and from our own."""

import numpy as np
import pytest

from latflow.fst.graph import read_graphs
from latflow.gmm.model import AcousticModel
from latflow.gmm.viterbi import Aligner, Scales
from latflow.kaldi_io import read_int_vectors, read_matrices


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
