"""Alignments on the fly against a search without a beam; the loss against its parts."""

import numpy as np
import pytest
import torch
from fixtures.sequence_system import make_system
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.graphs import add_transition_probs
from reference.viterbi_naive import best_cost, path_cost

from latflow.align.aligner import Aligner, AlignmentFailure
from latflow.align.options import AlignOptions
from latflow.graphs.hclg import load_model
from latflow.graphs.options import GraphOptions
from latflow.graphs.training import TrainingGraphCompiler


@pytest.fixture(scope="module")
def system(tmp_path_factory, repository):
    return make_system(tmp_path_factory.mktemp("sequence"), repository, count=4, seed=7)


@pytest.fixture(scope="module")
def compiler(system):
    return TrainingGraphCompiler(
        system.files.lang_dir, *load_model(system.files.model_dir)
    )


@given(
    words=st.lists(st.sampled_from("ABC"), min_size=1, max_size=3),
    num_frames=st.integers(1, 25),
    scale=st.sampled_from([0.1, 1.0]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=20)
def test_alignment_is_the_best_path(system, compiler, words, num_frames, scale, seed):
    rng = np.random.default_rng(seed)
    graph = compiler.compile(system.lang.words_to_ids(" ".join(words)))
    scores = rng.normal(0, 3, (num_frames, system.model.num_pdfs)).astype(np.float32)
    options = AlignOptions(acoustic_scale=scale, beam=1e4, retry_beam=0)
    found = Aligner(system.model, options, GraphOptions()).align(graph, scores)
    graph = add_transition_probs(graph, system.model)
    expected = best_cost(graph, system.model.pdf, scores, scale)
    if isinstance(found, AlignmentFailure):
        assert expected == np.inf
        return
    assert found.cost == pytest.approx(expected, rel=1e-4, abs=1e-4)
    cost = path_cost(graph, system.model.pdf, found.transition_ids, scores, scale)
    assert cost == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert len(found.transition_ids) == num_frames


@given(data=st.data(), seed=st.integers(0, 2**16))
@settings(max_examples=10)
def test_any_sharing_of_a_batch_gives_the_same_sums(system, data, seed):
    """Ranks and micro-batches: every split adds up to the whole."""
    rng = np.random.default_rng(seed)
    utterances = rng.permutation(list(system.scores)).tolist()
    cut = data.draw(st.integers(1, len(utterances) - 1))
    source = data.draw(st.sampled_from(["static", "on_the_fly"]))
    sums, grads = [], {}
    for parts in ([utterances], [utterances[:cut], utterances[cut:]]):
        criterion = system.criterion(threads=len(parts), alignments={"source": source})
        total, frames = 0.0, 0
        for part in parts:
            batch, logits = system.batch(part)
            loss = criterion.begin(system.outputs(logits, batch), batch)()
            loss.value.backward()
            total, frames = total + loss.value.item(), frames + loss.num_frames
            for b, utterance in enumerate(part):
                grad = logits.grad[b, : len(system.scores[utterance])]
                torch.testing.assert_close(
                    grad, grads.setdefault(utterance, grad), rtol=0, atol=0
                )
        criterion.close()
        sums.append((total, frames))
    assert sums[0][1] == sums[1][1]
    assert sums[0][0] == pytest.approx(sums[1][0], rel=1e-12)
