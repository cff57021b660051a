"""The whole path from scores to the gradient, with Kaldi's scores and Kaldi's numbers.

A network that gives a Gaussian mixture's log-likelihoods differs from the mixture by a
constant in each frame (the softmax takes the sum out), which changes neither searches
nor posteriors.
"""

import shutil

import numpy as np
import pytest
import torch
from fixtures.sequence_system import Mmi

from latflow.align.aligner import Aligner
from latflow.align.graphs import TrainingGraphs, compile_transcripts
from latflow.align.options import AlignOptions
from latflow.criteria.batch import Batch
from latflow.criteria.sequence.criterion import SequenceCriterion
from latflow.criteria.sequence.generation import SequenceFiles, load_generator
from latflow.criteria.sequence.options import SequenceOptions
from latflow.features.frames import FrameWriter
from latflow.graphs.hclg import load_model
from latflow.graphs.options import GraphOptions
from latflow.kaldi.io import read_int_vectors, read_matrices, write_int_vectors
from latflow.lang.directory import Lang
from latflow.lattice.posteriors import read_posteriors
from latflow.nnet.network import Output
from latflow.options import read_options

SCALE = 0.1


@pytest.fixture(params=["mono", "tri1"])
def system(request, golden, tmp_path):
    """Files, scores and alignments of one of Kaldi's systems."""
    name, root = request.param, tmp_path
    shutil.copy(golden / "graph" / f"HCLG_{name}.fst", root / "HCLG.fst")
    scores = dict(read_matrices(golden / "align" / f"loglikes_{name}.ark"))
    texts = dict(
        line.split(maxsplit=1)
        for line in (golden / "align/text").read_text().splitlines()
    )
    with FrameWriter(root / "frames", dim=1) as writer:
        for utterance in sorted(texts):
            frames = np.zeros((len(scores[utterance]), 1), np.float32)
            writer.append(utterance, "s", texts[utterance], frames)
    files = SequenceFiles(
        root / "frames",
        golden / "lang",
        golden / "gmm" / name,
        root / "HCLG.fst",
        root / "ali.ark",
        root / "graphs",
    )
    compile_transcripts(
        root / "frames",
        files.lang_dir,
        files.model_dir,
        root / "graphs",
        threads=1,
    )
    alignments = dict(read_int_vectors(golden / "align" / f"ali_{name}.txt"))
    write_int_vectors(root / "ali.ark", alignments.items())
    return files, scores, alignments


@pytest.mark.slow
def test_alignments_are_kaldis(system):
    files, scores, alignments = system
    _, model = load_model(files.model_dir)
    graphs, lang = TrainingGraphs.load(files.training_graphs), Lang.load(files.lang_dir)
    aligner = Aligner(model, AlignOptions(acoustic_scale=SCALE), GraphOptions())
    lines = (files.lang_dir.parent / "align/text").read_text().splitlines()
    assert len(lines) == len(scores)
    for line in lines:
        utterance, text = line.split(maxsplit=1)
        found = aligner.align(graphs.get(lang.words_to_ids(text)), scores[utterance])
        np.testing.assert_array_equal(found.transition_ids, alignments[utterance])
        assert found.beam == 10.0


class Keeping(Mmi):
    """MMI that keeps the gradients."""

    def __init__(self, model, kept):
        super().__init__(model, SCALE)
        self.kept = kept

    def evaluate(self, utterance, gradient):
        found = super().evaluate(utterance, gradient)
        self.kept.append((utterance.log_likes.copy(), gradient.copy()))
        return found


@pytest.mark.parametrize("system", ["tri1"], indirect=True)
def test_gradient_holds_kaldis_posteriors(system, golden):
    files, scores, alignments = system
    lattices = {"beam": 13, "lattice_beam": 7, "max_active": 7000}
    options = read_options(SequenceOptions, {"lattices": lattices})
    kept = []
    _, model = load_model(files.model_dir)
    generator = load_generator(files, Keeping(model, kept), options, GraphOptions())
    criterion = SequenceCriterion(generator, None, options)
    posteriors = dict(read_posteriors(golden / "lattice/den_post_k0.1.txt.gz"))
    totals = dict(
        line.split()
        for line in (golden / "lattice/den_loglike_k0.1.txt").read_text().splitlines()
    )
    for utterance, log_likes in scores.items():
        loss = criterion.begin(*_network(utterance, log_likes))()
        given, gradient = kept.pop()
        rows = np.arange(len(log_likes))
        pdfs = model.pdf[alignments[utterance]]
        expected = -posteriors[utterance].to_pdfs(model).to_matrix(model.num_pdfs)
        expected[rows, pdfs] += 1.0
        np.testing.assert_allclose(gradient / SCALE, expected, atol=1e-4)
        # The constants of the frames cancel in the value.
        said = SCALE * log_likes[rows, pdfs].sum(dtype=np.float64)
        value = said - float(totals[utterance])
        assert -loss.value.item() == pytest.approx(value, abs=2e-3)
        shift = log_likes - given
        np.testing.assert_allclose(
            shift, shift[:, :1].repeat(len(shift.T), 1), atol=1e-3
        )
    criterion.close()


def _network(utterance, log_likes):
    """Outputs and batch of a network that gives these scores."""
    logits = torch.from_numpy(log_likes)[None].requires_grad_()
    lengths = torch.tensor([len(log_likes)])
    batch = Batch(
        utterances=(utterance,),
        features=torch.zeros(1, len(log_likes), 1),
        lengths=lengths,
        targets={},
        first_frame=torch.zeros(1, dtype=torch.int64),
        indices=torch.zeros(1, dtype=torch.int64),
        counted=lengths,
    )
    return {"output": Output(logits, lengths)}, batch
