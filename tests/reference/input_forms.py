"""A small corpus of digits, to be written in the forms that people and tools write.

`Digits` is the plain form: a Kaldi directory, a lexicon, an ARPA model. A form changes
its files or its recipe; `outcome` then gives what the first stages make of it, so that
a form can be held to the plain one: where corpus, lang directory and G are the same,
so are all results.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile

from latflow.corpus.manifests import load_samples, read_cuts
from latflow.errors import UserError
from latflow.lang.arpa import write_arpa
from latflow.lang.ngram import estimate
from latflow.lang.prepare import make_grammar, make_lang, make_lm
from latflow.lang.vocabulary import prepare_corpus
from latflow.workflow.doctor import examine_experiment
from latflow.workflow.recipe import Recipe

RATE = 8000
PHONES = {
    "ZERO": "Z IH R OW",
    "ONE": "W AH N",
    "TWO": "T UW",
    "THREE": "TH R IY",
    "FOUR": "F AO R",
    "FIVE": "F AY V",
    "SIX": "S IH K S",
    "SEVEN": "S EH V AH N",
    "EIGHT": "EY T",
    "NINE": "N AY N",
    "DON'T": "D OW N T",
}
TEXTS = {
    "ann-1": "ONE TWO THREE",
    "ann-2": "FOUR FIVE SIX",
    "ann-3": "DON'T SEVEN",
    "bob-1": "EIGHT NINE ZERO",
    "bob-2": "THREE TWO ONE",
    "bob-3": "SIX SIX FOUR FOUR",
}


@dataclass
class Digits:
    """The corpus in a folder, whose files and recipe a form may change.

    Attributes:
        top: the folder: `data/`, `lexicon.txt`, `lm.arpa`.
        config: the recipe.
    """

    top: Path
    config: dict = field(default_factory=dict)

    def __post_init__(self):
        data = self.top / "data"
        data.mkdir(parents=True)
        for number, name in enumerate(TEXTS):
            soundfile.write(data / f"{name}.wav", samples(number), RATE)
        self.write("data/wav.scp", lines((u, f"{u}.wav") for u in TEXTS))
        self.write("data/text", lines(TEXTS.items()))
        self.write("data/utt2spk", lines((u, u[:3]) for u in TEXTS))
        self.write("lexicon.txt", lines(PHONES.items()))
        model = estimate([text.split() for text in TEXTS.values()], 3)
        write_arpa(model, self.top / "lm.arpa")
        self.config = {
            "experiment": "forms",
            "corpus": {
                "train": {"type": "kaldi", "path": str(data)},
                "dev": {"type": "none"},
            },
            "lang": {"lexicon": str(self.top / "lexicon.txt")},
            "lm": {"type": "arpa", "path": str(self.top / "lm.arpa")},
            "gmm": {"systems": {"mono": {"type": "mono"}}},
        }

    @property
    def train(self):
        """Source of the training set, to be changed."""
        return self.config["corpus"]["train"]

    def write(self, name, text, encoding="utf-8"):
        """Write a file of the corpus."""
        content = text if isinstance(text, bytes) else text.encode(encoding)
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def text(self, name):
        """Return what a file holds."""
        return (self.top / name).read_text(encoding="utf-8")

    def change(self, name, *changes, encoding="utf-8"):
        """Write a file again, changed by functions of its text."""
        text = self.text(name)
        for each in changes:
            text = each(text)
        self.write(name, text, encoding)

    def as_folder(self, texts=None, suffix="txt", name="{}"):
        """Turn the corpus into a folder of audio with transcripts beside it."""
        for utterance, text in (texts or TEXTS).items():
            speaker, stem = utterance.split("-")
            path = self.top / "folder" / speaker / name.format(stem)
            path.parent.mkdir(parents=True, exist_ok=True)
            audio = (self.top / f"data/{utterance}.wav").read_bytes()
            path.with_suffix(".wav").write_bytes(audio)
            content = text if isinstance(text, bytes) else text.encode()
            path.with_suffix(f".{suffix}").write_bytes(content)
        folder = str(self.top / "folder")
        self.config["corpus"]["train"] = {"type": "folder", "path": folder}

    def as_table(self, rows, name="table.tsv", separator="\t", **source):
        """Turn the corpus into a table."""
        text = "".join(separator.join(row) + "\n" for row in rows)
        self.write(name, text)
        path, audio = str(self.top / name), str(self.top / "data")
        given = {"type": "table", "path": path, "audio": audio, **source}
        self.config["corpus"]["train"] = given

    def as_manifests(self, change=lambda recording, supervision: None):
        """Turn the corpus into Lhotse manifests; `change` works on their JSON."""
        recordings, supervisions = [], []
        for number, (utterance, text) in enumerate(TEXTS.items()):
            length = len(samples(number))
            path = str(self.top / f"data/{utterance}.wav")
            recording = {
                "id": utterance,
                "sources": [{"type": "file", "channels": [0], "source": path}],
                "sampling_rate": RATE,
                "num_samples": length,
                "duration": length / RATE,
            }
            supervision = {
                "id": utterance,
                "recording_id": utterance,
                "start": 0.0,
                "duration": length / RATE,
                "channel": 0,
                "text": text,
                "speaker": utterance[:3],
            }
            change(recording, supervision)
            recordings.append(json.dumps(recording))
            supervisions.append(json.dumps(supervision))
        self.write("recordings.jsonl", "\n".join(recordings) + "\n")
        self.write("supervisions.jsonl", "\n".join(supervisions) + "\n")
        self.config["corpus"]["train"] = {
            "type": "manifests",
            "recordings": str(self.top / "recordings.jsonl"),
            "supervisions": str(self.top / "supervisions.jsonl"),
        }


@dataclass(frozen=True)
class Outcome:
    """What the first stages make of a corpus.

    Attributes:
        utterances: (speaker, words, digest of the samples), in the order of their ids.
        lang: digest of each file of the lang directory that stages read.
        grammar: digest of G.
    """

    utterances: list
    lang: dict
    grammar: str


def samples(number):
    """Return the samples of an utterance, 1 to 1.5 s of noise."""
    generator = np.random.default_rng(number)
    noise = generator.standard_normal(RATE + 800 * number)
    return (noise * 1000).astype(np.int16)


def lines(rows):
    """Return rows as lines of fields."""
    return "".join(" ".join(row) + "\n" for row in rows)


def outcome(digits):
    """Return what the first stages make of a corpus.

    Raises:
        UserError: one of them refuses it.
    """
    recipe = Recipe.from_config(digits.config)
    out = digits.top / "out"
    prepare_corpus(
        recipe.sources["train"],
        "train",
        out / "corpus",
        seed=1,
        threads=1,
        max_skipped_fraction=recipe.max_skipped_fraction,
        vocabulary=recipe.language.lexicon,
    )
    make_lang(recipe.language.lexicon, out / "lang", options=recipe.options.lang)
    cuts = out / "corpus/cuts.jsonl.gz"
    arpa, grammar = out / "lm.arpa", out / "G.fst"
    options = recipe.language.models["lm"].options
    make_lm(arpa, options=options, lang_dir=out / "lang", text=[cuts])
    make_grammar(arpa, out / "lang", grammar)
    utterances = [
        (c.supervisions[0].speaker, c.supervisions[0].text, _digest(load_samples(c)))
        for c in read_cuts(cuts)
    ]
    files = [p for p in sorted((out / "lang").rglob("*")) if p.is_file()]
    lang = {str(p.relative_to(out)): _digest(p.read_bytes()) for p in files}
    return Outcome(utterances, lang, _digest(grammar.read_bytes()))


def doctor(digits):
    """Return the findings of the doctor that are errors."""
    try:
        findings = examine_experiment(Recipe.from_config(digits.config))
    except UserError as error:
        return [str(error)]
    return [str(finding) for finding in findings if finding.severity == "error"]


def _digest(content):
    """Return a digest of bytes or an array."""
    raw = content if isinstance(content, bytes) else np.ascontiguousarray(content)
    return hashlib.sha256(raw).hexdigest()
