"""Lexicon and language models of an experiment: what they are made from."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from latflow.corpus.download import missing_resource
from latflow.corpus.words import WordForms, no_word_known
from latflow.errors import UserError
from latflow.lang.arpa import read_arpa
from latflow.lang.lexicon import Lexicon
from latflow.lang.ngram_counts import text_sentences
from latflow.lang.options import (
    ArpaLm,
    LangOptions,
    LmTrainingOptions,
    NeuralLmOptions,
    RescoringLmOptions,
    TextLm,
    TranscriptsLm,
    UniformLm,
)
from latflow.lang.phones import PhoneInventory
from latflow.lang.silence import SILENCE_FILE
from latflow.lang.speaker_dictionaries import SpeakerDictionaries, read_dictionaries
from latflow.lang.special_words import special_names
from latflow.workflow.experiment import Experiment

_LINES = 100_000  # of a text that are looked at


@dataclass(frozen=True)
class LanguageModel:
    """A language model of a recipe.

    Attributes:
        name: `lm` for that of the decoding graphs, else its name in `decode.rescore`.
        experiment: options of the whole experiment.
        written: its options as the recipe has them.
        own_text: text that the training corpus brings, if it brings one.
    """

    name: str
    experiment: Experiment
    written: RescoringLmOptions
    own_text: str | None

    @property
    def is_neural(self) -> bool:
        """Return whether it is a network."""
        return isinstance(self.written, NeuralLmOptions)

    @property
    def options(self) -> RescoringLmOptions:
        """Its options, its text named.

        The text of a neural one is by default that of the first model.

        Raises:
            UserError: the text is not named and the corpus brings none.
        """
        written, first = self.written, self.experiment.lm
        if isinstance(written, NeuralLmOptions) and written.path is None:
            model = LanguageModel("lm", self.experiment, first, self.own_text).options
            path = model.path if isinstance(model, TextLm) else None
            return written.replace(path=path)
        if isinstance(written, TextLm) and written.path is None:
            if self.own_text is None:
                key = "lm" if self.name == "lm" else f"decode.rescore.{self.name}.lm"
                raise UserError(
                    f"configuration {key}.path is not set",
                    remedy="name a text with one sentence a line",
                )
            return written.replace(path=self.own_text)
        return written

    @property
    def neural(self) -> NeuralLmOptions:
        """Options of a neural one."""
        assert isinstance(self.written, NeuralLmOptions)
        return self.written

    @property
    def training_options(self) -> dict[str, Any]:
        """Settings that the training of a neural one depends on beside its inputs."""
        own, _ = self.neural.part(LmTrainingOptions).split()
        return {**own, "seed": self.experiment.seed}

    @property
    def free_options(self) -> dict[str, Any]:
        """Settings that may change between two attempts of that training."""
        _, free = self.neural.part(LmTrainingOptions).split()
        return {**free, "device": self.experiment.nnet.device}

    @property
    def checkpoints(self) -> str:
        """Folder in which its trainings keep what they continue from.

        A network of the recipe may have its name.
        """
        return f"{self.experiment.results}/checkpoints/lm.{self.name}"

    @property
    def inputs(self) -> list[str]:
        """Files that it is made from."""
        options = self.options
        if isinstance(options, UniformLm):
            return []
        if isinstance(options, TranscriptsLm) or options.path is None:
            return [f"{self.experiment.results}/corpus/train/cuts.jsonl.gz"]
        return [options.path]

    @property
    def file(self) -> str | None:
        """File outside the experiment that it is made from, if it is there by now."""
        path = getattr(self.options, "path", None)
        if path is None or path == self.own_text:
            return None
        is_fetched = path not in self.experiment.downloads or Path(path).is_file()
        return path if is_fetched else None

    def check_name(self) -> None:
        """Refuse the name of the first model, and a neural one without a text.

        Raises:
            UserError: names the key.
        """
        key, first = f"configuration decode.rescore.{self.name}", self.experiment.lm
        if self.name == "lm":
            raise UserError(
                f"{key}: the first model has this name",
                remedy="give the second one another",
            )
        has_text = not self.is_neural or self.neural.path is not None
        if not has_text and not isinstance(first, TextLm | TranscriptsLm):
            raise UserError(
                f"{key}.lm.path is not set, and the first language model (lm, type "
                f"{first.type}) has no text",
                remedy="name a text with one sentence a line",
            )

    def check(self, words: Collection[str], *, is_whole: bool) -> None:
        """Refuse an n-gram model whose file is missing or faulty, or of other words.

        Args:
            words: of the lexicon.
            is_whole: whether all of an ARPA file is read, and not its words alone.

        Raises:
            UserError: names the file.
        """
        if self.is_neural or self.file is None:
            return
        if isinstance(self.written, ArpaLm):
            from latflow.lang.grammar import check_arpa  # and Numba: half a second

            if not Path(self.file).is_file():
                raise missing_resource(self.file)
            check_arpa(self.file, words)
            if is_whole:
                read_arpa(self.file)
            return
        forms = WordForms(words)
        for _ in islice(text_sentences(self.file, forms), _LINES):
            if forms.num_known and not is_whole:
                return
        if error := no_word_known(forms, self.file):
            raise error


@dataclass(frozen=True)
class Language:
    """Lexicon and language models of a recipe.

    Attributes:
        experiment: options of the whole experiment.
        is_synthetic: whether the workflow makes the training speech, with its lexicon
            and sentences.
    """

    experiment: Experiment
    is_synthetic: bool

    @property
    def options(self) -> LangOptions:
        """Options of lexicon and phones."""
        return self.experiment.lang

    @property
    def own_folder(self) -> str:
        """Folder of the lexicon and sentences of synthetic speech."""
        return f"{self.experiment.results}/corpus/language"

    @property
    def lexicon(self) -> str:
        """The configured lexicon, or that of the synthetic corpus.

        Raises:
            UserError: none is configured and the corpus brings none.
        """
        if self.options.lexicon is not None:
            return self.options.lexicon
        if self.is_synthetic:
            return f"{self.own_folder}/lexicon.txt"
        raise UserError(
            "configuration lang.lexicon is not set",
            remedy="name the pronunciation lexicon (WORD PHONE PHONE ... lines)",
        )

    @property
    def dictionaries(self) -> list[str]:
        """Dictionaries that the configured lexicon names for speakers."""
        lexicon = self.options.lexicon
        if lexicon is None or not Path(lexicon).is_file():
            return []
        found = SpeakerDictionaries.find(lexicon).files
        return [str(file) for file in found if str(file) != lexicon]

    @property
    def beside_lexicon(self) -> list[str]:
        """Files that are read with the configured lexicon.

        They are its dictionaries, and Kaldi's `silprob.txt` beside each.
        """
        files = [self.options.lexicon or "", *self.dictionaries]
        beside = {str(Path(file).with_name(SILENCE_FILE)) for file in files if file}
        found = filter(os.path.isfile, sorted(beside))
        return [*self.dictionaries, *found]

    @property
    def generates_pronunciations(self) -> bool:
        """Return whether words that the lexicon lacks get pronunciations."""
        return self.options.g2p.num_pronunciations > 0

    @property
    def generated(self) -> list[str]:
        """Table of the entries that the lexicon gets, if it gets some."""
        table = f"{self.experiment.results}/g2p/generated.tsv"
        return [table] if self.generates_pronunciations else []

    @property
    def completed_lexicon(self) -> str:
        """The lexicon with generated pronunciations, if there are."""
        if not self.generates_pronunciations:
            return self.lexicon
        return f"{self.experiment.results}/g2p/lexicon.txt"

    @property
    def completed_options(self) -> dict[str, Any]:
        """How that lexicon is read."""
        options = self.options.values()
        is_completed = self.generates_pronunciations
        return {**options, "has_probabilities": True} if is_completed else options

    @property
    def models(self) -> dict[str, LanguageModel]:
        """All language models by name; `lm` is the one of the decoding graphs."""
        first, others = self.experiment.lm, self.experiment.decode.rescore
        text = f"{self.own_folder}/lm_text.txt" if self.is_synthetic else None
        written = {"lm": first} | {name: other.lm for name, other in others.items()}
        return {
            name: LanguageModel(name, self.experiment, options, text)
            for name, options in written.items()
        }

    @property
    def neural_models(self) -> list[str]:
        """Names of the neural ones."""
        return [name for name, model in self.models.items() if model.is_neural]

    @property
    def ngram_models(self) -> list[str]:
        """Names of the others."""
        return [name for name, model in self.models.items() if not model.is_neural]

    def g2p_words(self, kind: str) -> list[str]:
        """Return the file of the first language model that words are taken from.

        Args:
            kind: `text` or `arpa`.
        """
        options = self.models["lm"].options
        if "lm" not in self.options.g2p.sources or options.type != kind:
            return []
        return [str(options.path)] if isinstance(options, ArpaLm | TextLm) else []

    def check(self) -> None:
        """Refuse a lexicon or language models that stages would refuse hours later.

        What is made already, or still to be fetched or made, is passed over.

        Raises:
            UserError: see `check_lexicon`, `LanguageModel.check`.
        """
        path = self.options.lexicon
        is_made = Path(self.experiment.results, "lang/words.txt").is_file()
        if path is None or self.experiment.gmm.import_ is not None or is_made:
            return
        if path in self.experiment.downloads and not Path(path).is_file():
            return
        words = known_words(check_lexicon(path, self.options), self.options)
        for model in self.models.values():
            model.check(words, is_whole=False)

    def model_errors(self) -> Iterator[UserError]:
        """Yield what is wrong with language models, if the lexicon is there."""
        path = self.options.lexicon
        if path is None or not Path(path).is_file():
            return
        try:
            words = known_words(check_lexicon(path, self.options), self.options)
        except UserError:
            return  # reported with the corpora
        for model in self.models.values():
            try:
                model.check(words, is_whole=True)
            except UserError as error:
                yield error


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
    lexicon = read_dictionaries(path, lang)
    PhoneInventory.of_lexicon(lexicon, lang)
    return lexicon


def known_words(lexicon: Lexicon, lang: LangOptions) -> set[str]:
    """Return the words of words.txt that a lexicon gives."""
    added = {word for word, _ in special_names(lexicon, lang).added_words()}
    return added | set(lexicon.words)
