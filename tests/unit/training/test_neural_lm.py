"""A neural language model: its probabilities, training, mixture and commands."""

import gzip
import json

import numpy as np
import pytest
import torch

from latflow.cli.main import main
from latflow.errors import Interrupted, UserError
from latflow.lang.arpa import perplexity
from latflow.lang.ngram import estimate
from latflow.lang.options import LmRunOptions, LstmLmOptions
from latflow.nnet.language_model import (
    Mixture,
    NeuralLm,
    WordLstm,
    best_weight,
    mixed,
    perplexities,
    weight_on,
)
from latflow.training import language_model
from latflow.training.language_model import epoch_batches, train_language_model

WORDS = ["</s>", "a", "b", "c"]
TEXT = [["a", "b", "c"], ["b", "c"], ["a"], ["c", "b", "a", "b"]] * 8
SMALL = {"size": 8, "epochs": 3, "batch_words": 12, "dropout": 0.2, "device": "cpu"}


def model(*, untied=False, num_layers=1):
    options = LstmLmOptions(size=5, num_layers=num_layers, untied=untied)
    network = WordLstm(len(WORDS), options, seed=3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3.0)  # far from uniform
    return NeuralLm(network.eval(), WORDS, options, {})


def step_by_step(lm, words):
    """Ln p of every class after each beginning of a sentence, one LSTM step a time."""
    state, inputs, rows = None, [0, *lm.classes(words)], []
    with torch.no_grad():
        for number in inputs:
            word = torch.tensor([[number if number >= 0 else len(lm.words)]])
            values, state = lm.network.rnn(lm.network.embedding(word), state)
            if lm.network.output is None:
                weight = lm.network.embedding.weight[: len(lm.words)]
                scores = values[0, 0] @ weight.T + lm.network.bias
            else:
                scores = lm.network.output(values[0, 0])
            rows.append(torch.log_softmax(scores, 0).numpy())
    return np.array(rows)


@pytest.mark.parametrize(("untied", "num_layers"), [(False, 1), (True, 2)])
def test_sentence_scores_are_those_step_by_step_and_sum_to_one(untied, num_layers):
    lm = model(untied=untied, num_layers=num_layers)
    sentences = [["a", "b"], ["c", "x", "a", "a"], [], ["b"]]
    for words, found in zip(sentences, lm.log_probs(sentences), strict=True):
        every = step_by_step(lm, words)
        np.testing.assert_allclose(np.exp(every).sum(1), 1.0, atol=1e-5)
        ids = [*lm.classes(words).tolist(), 0]
        wanted = [every[t, i] if i >= 0 else np.nan for t, i in enumerate(ids)]
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_gradient_is_that_of_finite_differences():
    network = WordLstm(3, LstmLmOptions(size=2, dropout=0.0)).double()
    words = torch.tensor([[0, 1, 3]])
    names = [name for name, _ in network.named_parameters()]

    def loss(*values):
        found = torch.func.functional_call(
            network, dict(zip(names, values, strict=True)), (words,)
        )
        return torch.nn.functional.cross_entropy(found[0], torch.tensor([1, 2, 0]))

    start = [p.detach().clone().requires_grad_() for p in network.parameters()]
    assert torch.autograd.gradcheck(loss, start)


def test_a_folder_gives_the_model_back(tmp_path):
    lm = model()
    lm.save(tmp_path / "lm")
    again = NeuralLm.load(tmp_path / "lm")
    assert again.words == WORDS
    np.testing.assert_array_equal(again.log_probs(TEXT)[0], lm.log_probs(TEXT)[0])
    (tmp_path / "lm" / "words.txt").write_text("</s>\na\n")
    with pytest.raises(UserError, match="not a readable language model"):
        NeuralLm.load(tmp_path / "lm")
    with pytest.raises(UserError, match="no such file"):
        NeuralLm.load(tmp_path / "none")


def test_mixture_is_that_of_explicit_probabilities():
    ngram, lm = estimate(TEXT, 2), model()
    sentence = ["a", "x", "b"]
    both = Mixture(lm, ngram).log_probs([sentence, ["c"]])
    assert np.isnan(both).tolist() == [[False, True, False, False, False, False]] * 2
    ids = np.array([ngram.word_ids[w] for w in ("<s>", "c", "</s>")])
    np.testing.assert_allclose(both[1, 4:], ngram.log_probs(ids)[1:] * np.log(10))
    wanted = 0.3 * np.exp(both[0]) + 0.7 * np.exp(both[1])
    np.testing.assert_allclose(np.exp(mixed(both, 0.3)), wanted)


def test_perplexities_are_those_of_each_model():
    ngram, lm = estimate(TEXT, 2), model()
    models = Mixture(lm, ngram)
    text = [["a", "b"], [], ["x"], ["c", "b", "a"]]
    found = perplexities(models, text, 0.4)
    # words outside end the n-gram's histories, so that its own count is the same
    assert str(found["ngram"]) == str(perplexity(ngram, text))
    assert (found["neural"].num_oov, found["neural"].num_words) == (1, 6)
    scores = np.concatenate(lm.log_probs([words for words in text if words]))
    wanted = np.exp(-np.nanmean(scores))
    assert found["neural"].perplexity == pytest.approx(wanted)
    logs = mixed(models.log_probs([words for words in text if words]), 0.4)
    assert found["mixture"].perplexity == pytest.approx(np.exp(-np.nanmean(logs)))
    alone = perplexities(Mixture(lm), text, 1.0)
    assert alone["neural"].perplexity == pytest.approx(wanted)
    assert list(alone) == ["neural"]


def test_the_weight_by_em_is_the_best_of_a_grid():
    both = np.log(np.random.default_rng(1).uniform(0.01, 1, (2, 50)))
    both[:, 7] = np.nan
    grid = np.linspace(0.001, 0.999, 999)
    sums = [np.nansum(mixed(both, weight)) for weight in grid]
    assert best_weight(both, tolerance=1e-9) == pytest.approx(
        grid[np.argmax(sums)], abs=0.002
    )
    with pytest.raises(UserError, match="no sentence"):
        weight_on(Mixture(model()), [])


def test_batches_have_each_sentence_once_and_follow_from_seed_and_epoch():
    lengths = np.random.default_rng(0).integers(2, 30, 300)
    first = epoch_batches(lengths, 60, seed=1, epoch=1)
    assert sorted(np.concatenate(first).tolist()) == list(range(300))
    assert all(len(b) == 1 or len(b) * lengths[b].max() <= 60 for b in first)
    again = epoch_batches(lengths, 60, seed=1, epoch=1)
    assert [b.tolist() for b in again] == [b.tolist() for b in first]
    other = epoch_batches(lengths, 60, seed=1, epoch=2)
    assert [b.tolist() for b in other] != [b.tolist() for b in first]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_text("".join(" ".join(words) + "\n" for words in TEXT) + "\n")
    return path


def test_training_learns_and_a_stopped_one_ends_with_the_same_bits(
    text, tmp_path, monkeypatch
):
    named = {"options": LmRunOptions(**SMALL), "dev_text": text}
    whole = train_language_model(text, tmp_path / "whole", **named)
    losses = [epoch["loss"] for epoch in whole.meta["history"]]
    assert losses[-1] < losses[0]
    assert not (tmp_path / "whole.checkpoints").exists()

    made = language_model._Trainer._make_step
    steps = 0

    def stopping(self, rows):
        nonlocal steps
        steps += 1
        made(self, rows)
        if steps == 15:  # within the second epoch
            self.should_stop = lambda: True

    monkeypatch.setattr(language_model._Trainer, "_make_step", stopping)
    with pytest.raises(Interrupted):
        train_language_model(text, tmp_path / "again", **named)
    assert not (tmp_path / "again").exists()
    assert list((tmp_path / "again.checkpoints").glob("*/e0002-b*.pt"))
    monkeypatch.setattr(language_model._Trainer, "_make_step", made)
    again = train_language_model(text, tmp_path / "again", **named)
    assert again.meta == whole.meta
    for name, value in whole.network.state_dict().items():
        assert torch.equal(again.network.state_dict()[name], value)


def test_bad_texts_and_options_are_refused(text, tmp_path):
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UserError, match="no sentence"):
        train_language_model(
            text,
            tmp_path / "lm",
            options=LmRunOptions(),
            dev_text=tmp_path / "empty",
        )
    with pytest.raises(ValueError, match="dropout"):
        LmRunOptions(dropout=1.0)


def test_the_commands_train_and_tell_perplexities(text, tmp_path, capsys):
    arpa, lm = str(tmp_path / "lm.arpa"), str(tmp_path / "lstm")
    assert main(["ngram", str(text), arpa, "--order", "2"]) == 0
    sizes = ["--size", "4", "--epochs", "1", "--device", "cpu"]
    assert main(["train-lm", str(text), str(text), lm, *sizes]) == 0
    assert capsys.readouterr().out.startswith("3 words, 1 epochs; perplexity on dev ")
    mixture = ["perplexity", arpa, str(text), "--neural", lm]
    assert main([*mixture, "--dev", str(text)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["neural:", "ngram:", "mixture"]
    assert main(["perplexity", lm, str(text)]) == 0
    assert capsys.readouterr().out == f"{lines[0]}\n"
    assert main(mixture) == 1
    assert "needs its weight" in capsys.readouterr().err
    assert main([*mixture, "--weight", "1.5"]) == 1
    assert main(["perplexity", arpa, str(text), "--weight", "0.5"]) == 1


def test_a_share_of_the_sentences_takes_the_place_of_a_dev_text(text, tmp_path):
    def sentences(*, is_held_out):
        return list(language_model._Source(text, 0.1, is_held_out=is_held_out))

    assert sentences(is_held_out=True) == [TEXT[9], TEXT[19], TEXT[29]]
    rest = [words for i, words in enumerate(TEXT) if i not in (9, 19, 29)]
    assert sentences(is_held_out=False) == rest
    options = LmRunOptions(**SMALL)
    model = train_language_model(text, tmp_path / "lm", options=options)
    scores = np.concatenate(model.log_probs(sentences(is_held_out=True)))
    wanted = np.exp(-scores.mean())
    assert model.meta["dev_perplexity"] == pytest.approx(wanted, rel=1e-5)
    text.write_text("a b\n")
    with pytest.raises(UserError, match="no sentence to hold out"):
        train_language_model(text, tmp_path / "lm", options=options)


def test_a_manifest_stands_for_its_transcripts(text, tmp_path):
    lines = [json.dumps({"supervisions": [{"text": " ".join(w)}]}) for w in TEXT]
    cuts = tmp_path / "cuts.jsonl.gz"
    cuts.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert list(language_model._Source(cuts)) == list(language_model._Source(text))
