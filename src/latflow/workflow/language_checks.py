"""Refuse lexica and language models that stages would refuse hours later.

The doctor and the start of a run call the same checks; they read files, and write none.

Public: `check_lexicon`, `check_language_model`, `check_language`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from latflow.corpus.download import missing_resource
from latflow.corpus.words import WordForms, no_word_known
from latflow.lang.arpa import read_arpa
from latflow.lang.grammar import check_arpa
from latflow.lang.lexicon import Lexicon, read_lexicon
from latflow.lang.ngram import text_sentences
from latflow.lang.options import ArpaLm, LangOptions, RescoringLmOptions, TextLm
from latflow.lang.phones import PhoneInventory
from latflow.lang.special_words import special_names

if TYPE_CHECKING:
    from latflow.workflow.recipe import Recipe

_LINES = 100_000  # of a text that are looked at


def check_lexicon(path: str | Path, lang: LangOptions) -> Lexicon:
    """Return a lexicon that `make_lang` takes.

    Args:
        path: of the lexicon.
        lang: how it is read, and its phones.

    Raises:
        UserError: it is missing or faulty, or does not fit the configured phones.
    """
    if not Path(path).is_file():
        raise missing_resource(path)
    lexicon = read_lexicon(
        path, has_probabilities=lang.has_probabilities, strip_stress=lang.strip_stress
    )
    PhoneInventory.of_lexicon(lexicon, lang)
    return lexicon


def check_language_model(
    options: RescoringLmOptions, words: Collection[str], *, is_whole: bool
) -> None:
    """Refuse a language model that is missing or faulty, or not of the lexicon.

    Args:
        options: of the model; those without a file are passed over.
        words: of the lexicon.
        is_whole: whether all of an ARPA file is read, and not its words alone.

    Raises:
        UserError: names the file.
    """
    if isinstance(options, ArpaLm):
        if not Path(options.path).is_file():
            raise missing_resource(options.path)
        check_arpa(options.path, words)
        if is_whole:
            read_arpa(options.path)
    elif isinstance(options, TextLm) and options.path is not None:
        forms = WordForms(words)
        for _ in islice(text_sentences(options.path, forms), _LINES):
            if forms.num_known and not is_whole:
                return
        if error := no_word_known(forms, options.path):
            raise error


def language_models(recipe: Recipe) -> Iterator[RescoringLmOptions]:
    """Yield the options of language models whose files should be there by now."""
    fetched = recipe.options.downloads
    for name in recipe.ngram_lms:
        options = recipe.lm_options(name, "")
        path = getattr(options, "path", None)
        is_own = path is None or (recipe.is_synthetic and path == "/lm_text.txt")
        if not is_own and (path not in fetched or Path(path).is_file()):
            yield options


def check_language(recipe: Recipe, results: Path) -> None:
    """Refuse a lexicon or a language model before the first job of a run.

    What is made already, or still to be fetched or made, is passed over.

    Args:
        recipe: all of it.
        results: folder of the experiment.

    Raises:
        UserError: see `check_lexicon`, `check_language_model`.
    """
    path = recipe.options.lang.lexicon
    is_made = (results / "lang/words.txt").is_file()
    if path is None or recipe.imported_system is not None or is_made:
        return
    if path in recipe.options.downloads and not Path(path).is_file():
        return
    lexicon = check_lexicon(path, recipe.options.lang)
    words = known_words(lexicon, recipe.options.lang)
    for options in language_models(recipe):
        check_language_model(options, words, is_whole=False)


def known_words(lexicon: Lexicon, lang: LangOptions) -> set[str]:
    """Return the words of words.txt that a lexicon gives."""
    added = {word for word, _ in special_names(lexicon, lang).added_words()}
    return added | set(lexicon.words)
