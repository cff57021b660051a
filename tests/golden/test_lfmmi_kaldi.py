"""LF-MMI against Kaldi: objective and derivative of three utterances."""

import gzip

import numpy as np
import pytest
import torch
from reference.lfmmi_naive import graph_of

from latflow.criteria.denominator import Denominator
from latflow.criteria.lfmmi import evaluate_lfmmi
from latflow.criteria.options import LfmmiOptions
from latflow.fst.graph import Graph
from latflow.parallel import worker_pool


def matrices(path):
    """{utterance: matrix} of a text archive of Kaldi."""
    found = {}
    with gzip.open(path, "rt") as lines:
        for line in lines:
            words = line.replace("]", "").split()
            if "[" in words:
                rows = found.setdefault(words[0], [])
            elif words:
                rows.append([float(word) for word in words])
    return {key: torch.tensor(rows) for key, rows in found.items()}


def text_graph(path):
    """An acceptor as `fstprint` writes it; the first line's state is the start."""
    arcs, final, start = [], {}, None
    for line in path.read_text().splitlines():
        words = line.split()
        start = int(words[0]) if start is None else start
        if len(words) < 3:
            final[int(words[0])] = float((*words, 0.0)[1])
        else:
            cost = float((*words, 0.0)[3])
            arcs.append((int(words[0]), int(words[1]), int(words[2]), cost))
    return graph_of(start, arcs, final)


class Chain:
    """What Kaldi had for three utterances."""

    def __init__(self, folder):
        self.logits = matrices(folder / "nnet_output.txt.gz")
        self.keys = list(self.logits)
        self.num_pdfs = self.logits[self.keys[0]].shape[1]
        initial = (folder / "initial_probs.txt").read_text().strip(" []\n").split()
        self.denominator = Denominator(
            Graph.load(folder / "den.fst"), np.array(initial, float), self.num_pdfs
        )
        self.supervisions = [
            text_graph(folder / f"supervision-{key}.fst.txt") for key in self.keys
        ]
        self.lengths = [len(self.logits[key]) for key in self.keys]

    def batch(self, filler=0.0):
        return torch.nn.utils.rnn.pad_sequence(
            [self.logits[key] for key in self.keys],
            batch_first=True,
            padding_value=filler,
        )


@pytest.fixture(scope="module")
def chain(golden):
    return Chain(golden / "chain")


@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("leaky_1e-05", LfmmiOptions(leaky_hmm=1e-5)),
        ("leaky_0.1", LfmmiOptions(leaky_hmm=0.1)),
        ("l2", LfmmiOptions(leaky_hmm=0.1, l2=5e-5)),
    ],
)
def test_kaldi_objective_and_derivative(chain, golden, case, options):
    with worker_pool(2) as pool:
        found = evaluate_lfmmi(
            chain.batch(filler=1e9),
            chain.supervisions,
            chain.denominator,
            options,
            lengths=chain.lengths,
            pool=pool,
        )
    assert not found.failed.any()
    lines = (golden / "chain" / case / "objf.txt").read_text().splitlines()
    derivatives = matrices(golden / "chain" / case / "deriv.txt.gz")
    for i, line in enumerate(lines):
        key, *pairs = line.split()
        kaldi = {n: float(v) for n, v in zip(pairs[::2], pairs[1::2], strict=True)}
        assert key == chain.keys[i]
        assert found.objective[i].item() == pytest.approx(kaldi["objf"], rel=1e-5)
        assert found.den_log_like[i].item() == pytest.approx(
            kaldi["den_logprob"], rel=1e-5
        )
        assert found.l2[i].item() == pytest.approx(kaldi["l2"], rel=1e-5)
        assert found.frames[i] == kaldi["weight"]
        ours = found.gradient[i, : chain.lengths[i]]
        torch.testing.assert_close(ours, derivatives[key], rtol=1e-4, atol=2e-6)
        assert not found.gradient[i, chain.lengths[i] :].any()
