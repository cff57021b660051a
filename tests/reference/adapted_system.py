"""A small language and speakers who each distort its sounds in their own way."""

import numpy as np

from latflow.decode.options import AdaptOptions, DecodeOptions
from latflow.features.frames import FrameWriter
from latflow.gmm.alignment import align_gmm
from latflow.gmm.options import (
    AlignAdaptedOptions,
    DeltasOptions,
    MonoOptions,
    SatOptions,
    SharedOptions,
)
from latflow.gmm.sat import SatJob, train_sat
from latflow.gmm.train import DeltasJob, MonoJob, train_deltas, train_mono
from latflow.graphs.options import GraphOptions
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_grammar, make_lang
from latflow.parts import SetJob

# No phone is in two words, so that phones of any length say what the words are.
LEXICON = "A AA B\nB K L\nC M N\n<UNK> SPN\n"
WORDS = {"A": ["AA", "B"], "B": ["K", "L"], "C": ["M", "N"]}
SOUND = {
    "SIL": [0.0, 0.0],
    "AA": [5.0, 0.0],
    "B": [-2.5, 4.0],
    "K": [2.5, -4.0],
    "L": [-5.0, 0.0],
    "M": [-2.5, -4.0],
    "N": [2.5, 4.0],
}
DISTORTION = {
    "s0": ([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0]),
    "s1": ([[0.7, 0.5], [-0.4, 1.1]], [2.0, -1.0]),
    "s2": ([[1.3, -0.4], [0.5, 0.8]], [-1.5, 1.5]),
}
GRAPH = {"transition_scale": 1.0, "self_loop_scale": 0.1}
LIMITS = {"threads": 1, "max_skipped_fraction": 0.05}
SHARED = SharedOptions(transform={"type": "deltas", "order": 1})
ARPA = """\\data\\
ngram 1=5

\\1-grams:
-0.7 <s>
-0.7 </s>
-0.7 A
-0.7 B
-0.7 C

\\end\\
"""


def write_frames(folder, *, count=24, seed=3, is_distorted=True):
    """Utterances of phones with a mean each, distorted by their speaker."""
    rng = np.random.default_rng(seed)
    with FrameWriter(folder, dim=2) as writer:
        for n in range(count):
            words = rng.choice(list(WORDS), 4).tolist()
            phones = ["SIL", *(p for w in words for p in WORDS[w]), "SIL"]
            lengths = rng.integers(8, 14, len(phones))
            mean = np.repeat([SOUND[p] for p in phones], lengths, axis=0)
            frames = mean + rng.normal(0, 0.7, mean.shape)
            speaker = f"s{n % 3}"
            if is_distorted:
                square, offset = map(np.array, DISTORTION[speaker])
                frames = frames @ square.T + offset
            writer.append(
                f"u{n:02}", speaker, " ".join(words), frames.astype(np.float32)
            )
    return folder


def system_options(repository, **sat):
    """Options of systems by name, of alignment and of decoding."""
    small = {
        "num_iterations": 8,
        "num_gaussians": 40,
        "last_increase_iteration": 4,
        "realign_iterations": [1, 3, 5],
    }
    tree = {"alignments": "mono", "num_leaves": 24, "split_threshold": 10.0}
    fmllr = {"min_count": 50.0}
    named = {
        "mono": MonoOptions(**small),
        "tri1": DeltasOptions(**tree, **small),
        "tri3": SatOptions(
            **{**tree, **small, "fmllr_iterations": [2, 4], "fmllr": fmllr, **sat}
        ),
    }
    align = AlignAdaptedOptions(fmllr=fmllr)
    decode = DecodeOptions(adapt=AdaptOptions(**fmllr))
    return {**named, "align": align, "decode": decode}


def make_systems(root, repository):
    """In a folder: frames, lang, G.fst, mono, tri1, ali (of mono) and tri3 (SAT)."""
    options = system_options(repository)
    write_frames(root / "frames")
    (root / "lexicon.txt").write_text(LEXICON)
    lang_options = LangOptions()
    make_lang(root / "lexicon.txt", root / "lang", options=lang_options)
    (root / "lm.arpa").write_text(ARPA)
    make_grammar(root / "lm.arpa", root / "lang", root / "G.fst")
    frames, lang = root / "frames", root / "lang"
    train_mono(
        MonoJob(
            frames_dir=frames,
            lang_dir=lang,
            out_dir=root / "mono",
            options=options["mono"],
            shared=SHARED,
            threads=1,
        )
    )
    align_gmm(
        SetJob(
            frames_dir=frames,
            lang_dir=lang,
            model_dir=root / "mono",
            out_dir=root / "ali",
            **LIMITS,
        ),
        options=options["align"],
        graph=GraphOptions(),
    )
    for name, stage in (("tri1", train_deltas), ("tri3", train_sat)):
        train(root, root / name, options[name], stage=stage)
    return root


def train(root, out, options, *, stage=train_sat, ali="ali", threads=1):
    """Train a system from the alignments of mono."""
    kind = SatJob if stage is train_sat else DeltasJob
    job = kind(
        frames_dir=root / "frames",
        lang_dir=root / "lang",
        alignments=root / ali / "ali.ark",
        source_dir=root / "mono",
        out_dir=out,
        options=options,
        shared=SHARED,
        threads=threads,
    )
    stage(job)


def history(folder):
    """Rows of a system's `iterations.tsv`, as text by column."""
    lines = (folder / "iterations.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
