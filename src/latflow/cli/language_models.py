"""The commands that estimate, train and measure language models."""

from __future__ import annotations

import sys
from pathlib import Path

from latflow.cli.commands import (
    Arguments,
    Group,
    Option,
    option,
    options_of,
    own_folder,
    read_flags,
)
from latflow.errors import UserError

COMMANDS = Group()


@COMMANDS.command(
    "ngram",
    option("text", "one sentence a line"),
    option("arpa", "ARPA file to write"),
    option("--order", "length of the n-grams", 3),
)
def _ngram(arguments: Arguments) -> None:
    """Estimate a Kneser-Ney language model (ARPA)."""
    from latflow.lang.arpa import write_arpa
    from latflow.lang.ngram import estimate
    from latflow.lang.ngram_counts import text_sentences

    model = estimate(text_sentences(arguments.text), arguments.order)
    write_arpa(model, arguments.arpa)


@COMMANDS.command(
    "perplexity",
    option("model", "ARPA file, or folder of a neural model"),
    option("text", "one sentence a line"),
    option("--neural", "folder of a neural model that is mixed with the ARPA file's"),
    option("--dev", "text that the weight of the neural model is chosen on"),
    option("--weight", "weight of the neural model, in place of --dev", type=float),
    example="perplexity lm.arpa test.txt --neural lstm --dev dev.txt",
)
def _perplexity(arguments: Arguments) -> None:
    """Print the perplexity of a text under language models."""
    from latflow.lang.arpa import perplexity, read_arpa
    from latflow.lang.ngram_counts import text_sentences

    if arguments.neural is not None or Path(arguments.model).is_dir():
        _neural_perplexity(arguments)
        return
    if arguments.dev is not None or arguments.weight is not None:
        raise UserError("--dev and --weight are of a mixture", remedy="name --neural")
    found = perplexity(read_arpa(arguments.model), text_sentences(arguments.text))
    sys.stdout.write(f"{found}\n")


def _neural_perplexity(arguments: Arguments) -> None:
    """Print the perplexities of a neural model, an n-gram model, and their mixture."""
    from latflow.lang.arpa import read_arpa
    from latflow.lang.ngram_counts import text_sentences
    from latflow.nnet.language_model import (
        Mixture,
        NeuralLm,
        perplexities,
        weight_on,
    )

    is_mixed = arguments.neural is not None
    given = (arguments.dev is not None) + (arguments.weight is not None)
    if given != is_mixed:
        raise UserError(
            "a mixture needs its weight",
            remedy="name an ARPA file, --neural, and either --dev or --weight",
        )
    if not is_mixed:
        models = Mixture(NeuralLm.load(arguments.model))
    else:
        models = Mixture(NeuralLm.load(arguments.neural), read_arpa(arguments.model))
    weight = 1.0 if arguments.weight is None else arguments.weight
    if not 0.0 <= weight <= 1.0:
        raise UserError(f"--weight is {weight:g}, not between 0 and 1")
    if arguments.dev is not None:
        weight = weight_on(models, text_sentences(arguments.dev))
    found = perplexities(models, text_sentences(arguments.text), weight)
    for name, score in found.items():
        share = f" ({weight:.3f} neural)" if name == "mixture" else ""
        sys.stdout.write(f"{name}{share}: {score}\n")


def _lm_options() -> tuple[Option, ...]:
    """Return the options of the training of a neural language model."""
    from latflow.lang.options import LmRunOptions

    return options_of(LmRunOptions)


@COMMANDS.command(
    "train-lm",
    option("text", "one sentence a line, or a manifest of cuts (.jsonl.gz)"),
    option("dev", "text that learning rate and epoch are chosen on"),
    option(
        "out_dir",
        "folder of the model to write",
        type=own_folder("weights.safetensors", "words.txt"),
    ),
    option("--lang", "lang directory, whose words are the vocabulary"),
    option("--checkpoints", "folder for checkpoints; OUT_DIR.checkpoints by default"),
    _lm_options,
    example="train-lm text.txt dev.txt lstm --lang results/x/lang --size 512",
)
def _train_lm(arguments: Arguments) -> None:
    """Train a neural language model (LSTM), or continue with its training."""
    from latflow.lang.options import LmRunOptions
    from latflow.training.language_model import train_language_model

    model = train_language_model(
        arguments.text,
        arguments.out_dir,
        options=read_flags(LmRunOptions, arguments),
        dev_text=arguments.dev,
        lang_dir=arguments.lang,
        checkpoints=arguments.checkpoints,
    )
    sys.stdout.write(
        f"{len(model.words) - 1} words, {model.meta['epochs']} epochs; perplexity on "
        f"dev {model.meta['dev_perplexity']:.2f} (epoch {model.meta['chosen_epoch']})\n"
    )
