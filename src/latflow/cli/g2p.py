"""The commands `latflow g2p train` and `apply`."""

from __future__ import annotations

import sys
from pathlib import Path

from latflow.cli.commands import Arguments, Group, option
from latflow.files import write_text

G2P = Group("g2p", "Pronunciations of words that no lexicon has.")


@G2P.command(
    "train",
    option("lexicon", "WORD PHONE PHONE ... lines"),
    option("model", "file to write"),
    option("--order", "length of n-grams, in pairs of letters and phones", 8),
    example="g2p train lexicon.txt english.g2p",
)
def _train(arguments: Arguments) -> None:
    """Learn from a lexicon how words are pronounced."""
    from latflow.lang.completion import train_model
    from latflow.lang.options import LangOptions
    from latflow.options import read_options

    options = read_options(LangOptions, {"g2p": {"order": arguments.order}})
    train_model(Path(arguments.lexicon), Path(arguments.model), options=options)


@G2P.command(
    "apply",
    option("model", "what `g2p train` wrote, or a G2P model of MFA (zip file, folder)"),
    option("words", "one word a line"),
    option("--number", "greatest number of pronunciations of a word", 1),
    option("--min-probability", "leave out less likely ones, but for the best", 0.0),
    option("--out", "lexicon to write instead of standard output"),
    option("--threads", "parallel workers", 2),
    example="g2p apply english.g2p words.txt --number 3",
)
def _apply(arguments: Arguments) -> None:
    """Print pronunciations of words, with their probabilities, as a lexicon."""
    from latflow.lang.completion import apply_model

    lines = apply_model(
        Path(arguments.model),
        Path(arguments.words),
        number=arguments.number,
        min_probability=arguments.min_probability,
        threads=arguments.threads,
    )
    if arguments.out:
        write_text(arguments.out, "".join(lines))
    else:
        sys.stdout.writelines(lines)
