"""A package that recognizes a few spoken digits, made within seconds.

One voice of eSpeak NG, monophones, and a small TDNN-F that scores one frame in three.
They learn from slow speech (at least 90 ms for most phones: three states of one scored
frame each), a third of which begins and ends in digital silence.
"""

import shutil
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import soundfile
import torch
from torch.nn import functional

from latflow.align.options import AlignOptions
from latflow.corpus.synthetic import _speak
from latflow.features.extract import make_extractor
from latflow.features.frames import FrameStore, FrameWriter
from latflow.features.options import FrontEndOptions
from latflow.files import write_json
from latflow.gmm.alignment import align_gmm
from latflow.gmm.options import MonoOptions, SatOptions, SharedOptions
from latflow.gmm.sat import SatJob, train_sat
from latflow.gmm.train import MonoJob, train_mono
from latflow.graphs.hclg import load_model, make_graph
from latflow.graphs.options import GraphOptions
from latflow.kaldi.io import KaldiWriter, read_int_vectors
from latflow.lang.options import LangOptions, UniformLm
from latflow.lang.prepare import make_grammar, make_lang, make_lm
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import save_model
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.parts import SetJob
from latflow.serving.packaging import PackageFiles, PackageOptions, write_package

RATE = 8000
LEXICON = """ONE W AH N
TWO T UW
THREE TH R IY
FOUR F AO R
FIVE F AY V
SIX S IH K S
SEVEN S EH V AH N
EIGHT EY T
<UNK> SPN
"""
WORDS = [line.split()[0] for line in LEXICON.splitlines()[:-1]]
MFCC = FrontEndOptions(num_ceps=13)
FBANK = FrontEndOptions(type="fbank", num_mel_bins=23)
NETWORK = {
    "edges": "repeat",
    "layers": {
        "splice": {"class": "splice", "left": 1, "right": 1},
        "tdnn": {"class": "linear", "size": 96, "activation": "relu"},
        "norm": {"class": "batch_norm", "affine": False, "epsilon": 0.001},
        "thirds": {
            "class": "tdnnf", "size": 96, "bottleneck": 32, "time_stride": 1,
            "stride": 3,
        },
        "far": {
            "class": "tdnnf", "size": 96, "bottleneck": 32, "time_stride": 1,
            "num_layers": 2,
        },
        "output": {"class": "output"},
    },
}  # fmt: skip


@dataclass(frozen=True)
class Digits:
    """The experiment behind the packages, and speech that it has not heard.

    Attributes:
        root: with lang, graph, gmm/mono, nnet/tdnnf, scales.json.
        audio: files of single utterances, by id; 16 bit, 8 kHz.
        texts: what they say.
    """

    root: Path
    audio: dict[str, Path]
    texts: dict[str, str]

    def samples(self, utterance):
        """Samples of an utterance, float32 in [-1, 1)."""
        return soundfile.read(self.audio[utterance], dtype="float32")[0]

    def package(self, out, *, system="tdnnf", files=None, scales=None, **changes):
        """Write a system's package; `changes` are options of it, `files` go along."""
        is_network = system == "tdnnf"
        given = {
            "experiment": "digits",
            "name": system,
            "kind": "ce" if is_network else "gmm",
            "front_end": FBANK if is_network else MFCC,
            "sample_rate": RATE,
            **changes,
        }
        parts = {
            "model_dir": self.root / ("nnet" if is_network else "gmm") / system,
            "graph": self.root / "graph/HCLG.fst",
            "lang_dir": self.root / "lang",
            "scales": scales or self.root / "scales.json",
            **(files or {}),
        }
        options = PackageOptions(**given)
        write_package(PackageFiles(**parts), Path(out), options=options)
        return Path(out)


def adapted_digits(digits, root):
    """Train a speaker-adapted system on top; return the experiment in a new folder."""
    shutil.copytree(digits.root, root, ignore=shutil.ignore_patterns("audio", "nnet"))
    train_sat(
        SatJob(
            frames_dir=root / "mfcc",
            lang_dir=root / "lang",
            alignments=root / "ali/ali.ark",
            source_dir=root / "gmm/mono",
            out_dir=root / "gmm/sat",
            options=SatOptions(
                alignments="mono",
                num_leaves=30,
                num_gaussians=120,
                num_iterations=6,
                last_increase_iteration=4,
                realign_iterations=(3,),
                fmllr_iterations=(2,),
            ),
            shared=SharedOptions(seed=1),
            max_skipped_fraction=0.2,
            threads=1,
        )
    )
    return replace(digits, root=root)


def words_of(model, samples):
    """Recognize the words of a segment with a loaded package."""
    front_end = model.front_end()
    frames = np.concatenate([front_end.accept(samples), front_end.finish()])
    lattice = model.decoder.decode(
        model.acoustics.log_likes(frames), acoustic_scale=model.acoustic_scale
    ).lattice
    costs = np.float32(model.lattice_scale) * lattice.acoustic_cost
    scaled = replace(lattice, acoustic_cost=costs)
    return [word.word for word in model.transcriber(("segment", scaled)).words]


def make_digits(root, *, num_train=40, num_test=6, seed=3):
    """Synthesize, train and write everything below a folder."""
    rng = np.random.default_rng(seed)
    texts = {
        f"u{n:03}": " ".join(rng.choice(WORDS, rng.integers(2, 6)))
        for n in range(num_train + num_test)
    }
    audio = _synthesize(root / "audio", texts, rng)
    _language(root)
    waves = {u: soundfile.read(path, dtype="float32")[0] for u, path in audio.items()}
    training = dict(list(texts.items())[:num_train])
    for utterance in list(training)[::3]:
        waves[utterance] = np.pad(waves[utterance], RATE // 3)
    for name, options in (("mfcc", MFCC), ("fbank", FBANK)):
        _features(root / name, training, waves, options)
    _monophones(root)
    _network(root)
    graph = GraphOptions()
    (root / "graph").mkdir()
    make_graph(
        root / "lang", root / "G.fst", root / "gmm/mono", root / "graph/HCLG.fst",
        options=graph,
    )  # fmt: skip
    write_json(root / "scales.json", {"lmwt": 10, "wip": 0.0, "wer": 0.0})
    unheard = list(texts)[num_train:]
    return Digits(root, {u: audio[u] for u in unheard}, {u: texts[u] for u in unheard})


def _synthesize(folder, texts, rng):
    folder.mkdir()
    audio = {utterance: folder / f"{utterance}.flac" for utterance in texts}
    utterances = [
        {
            "text": text.lower(),
            "rate": int(rng.integers(100, 120)),
            "pitch": 50,
            "lead_s": float(rng.uniform(0.2, 0.5)),
            "tail_s": float(rng.uniform(0.2, 0.5)),
            "peak_db": -6.0,
            "snr_db": 25.0,
            "noise_key": [n],
            "path": str(audio[utterance]),
        }
        for n, (utterance, text) in enumerate(texts.items())
    ]
    job = {"voice": "en-us+m1", "seed": 1, "sample_rate": RATE}
    _speak({**job, "utterances": utterances})
    return audio


def _language(root):
    (root / "lexicon.txt").write_text(LEXICON)
    make_lang(root / "lexicon.txt", root / "lang", options=LangOptions())
    options = UniformLm()
    make_lm(root / "lm.arpa", options=options, lang_dir=root / "lang", text=[])
    make_grammar(root / "lm.arpa", root / "lang", root / "G.fst")


def _features(folder, texts, waves, options):
    extractor = make_extractor(options, RATE)
    with FrameWriter(folder, dim=options.dim) as writer:
        for utterance, text in texts.items():
            key = zlib.crc32(utterance.encode())
            frames = extractor.extract_utterance(waves[utterance], key)
            writer.append(utterance, "s", text, frames)


def _monophones(root):
    train_mono(
        MonoJob(
            frames_dir=root / "mfcc",
            lang_dir=root / "lang",
            out_dir=root / "gmm/mono",
            options=MonoOptions(
                num_gaussians=150, num_iterations=12, last_increase_iteration=8
            ),
            shared=SharedOptions(seed=1),
            max_skipped_fraction=0.2,
            threads=1,
        )
    )
    align_gmm(
        SetJob(
            frames_dir=root / "mfcc",
            lang_dir=root / "lang",
            model_dir=root / "gmm/mono",
            out_dir=root / "ali",
            threads=1,
            max_skipped_fraction=0.2,
        ),
        options=AlignOptions(),
        graph=GraphOptions(),
    )


def _network(root):
    store = FrameStore.load(root / "fbank")
    _, transitions = load_model(root / "gmm/mono")
    labels = {
        u: np.asarray(transitions.pdf)[tids]
        for u, tids in read_int_vectors(root / "ali/ali.ark")
    }
    numbers = [i for i, u in enumerate(store.utt_ids) if u in labels]
    normalizer = Normalizer.estimate("global", store)
    description = NetworkDescription.from_config(NETWORK)
    classes = transitions.num_pdfs
    network = Network(description, store.dim, {"pdf": classes}, seed=1).train()
    counts = _train(network, store, labels, numbers, normalizer)
    folder = root / "nnet/tdnnf"
    meta = {"normalization": normalizer.to_meta()}
    save_model(folder, network.eval(), description, counts, meta)
    with KaldiWriter.open(folder / "final.mdl") as writer:
        transitions.write(writer)
    (folder / "tree").write_bytes((root / "gmm/mono/tree").read_bytes())


def _train(network, store, labels, numbers, normalizer, *, epochs=30, batch=8):
    """Train by cross-entropy; return how often each class occurs."""
    rng = np.random.default_rng(1)
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    frames = {i: normalizer(store.frames(i)) for i in numbers}
    targets = {i: labels[store.utt_ids[i]][:: network.subsampling] for i in numbers}
    for _ in range(epochs):
        order = rng.permutation(numbers)
        for some in np.array_split(order, len(order) // batch):
            lengths = torch.tensor([len(frames[i]) for i in some])
            features = torch.zeros(len(some), int(lengths.max()), store.dim)
            wanted = torch.full((len(some), -(-int(lengths.max()) // 3)), -1)
            for b, i in enumerate(some):
                features[b, : len(frames[i])] = torch.from_numpy(frames[i])
                wanted[b, : len(targets[i])] = torch.from_numpy(targets[i])
            logits = network(features, lengths)["output"].logits
            loss = functional.cross_entropy(
                logits.flatten(0, 1), wanted.flatten(), ignore_index=-1
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    seen = np.concatenate(list(targets.values()))
    return np.bincount(seen, minlength=network.outputs["output"].num_classes) + 1.0
