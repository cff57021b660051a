"""Lattices of pronunciations: the likely phone sequences of a transcript, once each."""

from collections import Counter

import numpy as np
import pytest
from fixtures.adapted_system import LEXICON, SHARED, write_frames

from latflow.align.options import AlignSplitOptions
from latflow.decode.options import TranscriptLatticeOptions
from latflow.decode.pronunciations import align_lattices
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.gmm.alignment import align_gmm
from latflow.gmm.options import AlignAdaptedOptions, MonoOptions
from latflow.gmm.train import MonoJob, train_mono
from latflow.graphs.hclg import load_model
from latflow.graphs.options import GraphOptions
from latflow.hmm.alignment import segments
from latflow.kaldi.io import read_int_vectors
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang
from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.io.archives import read_lattices
from latflow.ledger import read_ledger
from latflow.parts import SetJob

WIDE = {"beam": 400.0, "lattice_beam": 200.0}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Monophones, and a language where A may be said as C is."""
    root = tmp_path_factory.mktemp("pronunciations")
    write_frames(root / "frames", count=14, is_distorted=False)
    for name, more in (("plain", ""), ("lang", "A M N\n")):
        (root / "lexicon.txt").write_text(LEXICON + more)
        make_lang(root / "lexicon.txt", root / name, options=LangOptions())
    options = MonoOptions(
        num_iterations=8,
        num_gaussians=40,
        last_increase_iteration=4,
        realign_iterations=(1, 3, 5),
    )
    train_mono(
        MonoJob(
            frames_dir=root / "frames",
            lang_dir=root / "plain",
            out_dir=root / "mono",
            options=options,
            shared=SHARED,
            threads=1,
        )
    )
    store = FrameStore.load(root / "frames")
    with FrameWriter(root / "all_a", dim=2) as writer:  # C is written as A
        for u, name in enumerate(store.utt_ids):
            text = store.texts[u].replace("C", "A")
            writer.append(name, store.speakers[u], text, store.frames(u))
    return root


def lattices(root, out, frames="all_a", *, allowed=0.0, threads=1, **options):
    align_lattices(
        SetJob(
            frames_dir=root / frames,
            lang_dir=root / "lang",
            model_dir=root / "mono",
            out_dir=out,
            threads=threads,
            max_skipped_fraction=allowed,
        ),
        transforms=None,
        options=TranscriptLatticeOptions(**options),
        graph=GraphOptions(),
    )
    return dict(read_lattices(out / "lattices.ark"))


def spoken(root, ids):
    """Phones of an alignment, without silence."""
    lang, (_, transitions) = Lang.load(root / "lang"), load_model(root / "mono")
    names = {number: phone for phone, number in lang.phone_ids.items()}
    phones = [names[p].split("_")[0] for p in segments(ids, transitions)[0].tolist()]
    return " ".join(phone for phone in phones if phone != "SIL")


def paths(lattice):
    """Transition-ids of all paths."""
    found, todo = [], [(0, ())]
    while todo:
        state, ids = todo.pop()
        if state == len(lattice.arc_begin) - 2:
            found.append(np.array(ids, np.int32))
        for a in range(lattice.arc_begin[state], lattice.arc_begin[state + 1]):
            label = int(lattice.transition_id[a])
            longer = (*ids, label) if label else ids
            todo.append((int(lattice.next_state[a]), longer))
    return found


def test_the_best_path_is_the_alignment(root, tmp_path):
    found = lattices(root, tmp_path / "lattices")
    align_gmm(
        SetJob(
            frames_dir=root / "all_a",
            lang_dir=root / "lang",
            model_dir=root / "mono",
            out_dir=tmp_path / "ali",
            threads=1,
            max_skipped_fraction=0.0,
        ),
        options=AlignAdaptedOptions(**AlignSplitOptions(beam=200.0).values()),
        graph=GraphOptions(),
    )
    alignments = dict(read_int_vectors(tmp_path / "ali/ali.ark"))
    assert found.keys() == alignments.keys()
    scale = Scales(1.0, 1.0)
    for name, lattice in found.items():
        best = best_paths(lattice, [scale])[0]
        assert spoken(root, best.transition_ids) == spoken(root, alignments[name])


def test_what_was_said_decides_between_pronunciations(root, tmp_path):
    found = lattices(root, tmp_path)
    words = {"A": "AA B", "B": "K L", "C": "M N"}
    store = FrameStore.load(root / "frames")  # with what was truly said
    for name, text in zip(store.utt_ids, store.texts, strict=True):
        said = " ".join(words[word] for word in text.split())
        assert {spoken(root, ids) for ids in paths(found[name])} == {said}


@pytest.mark.slow
def test_a_wide_beam_has_all_pronunciations_each_phone_sequence_once(root, tmp_path):
    found = lattices(root, tmp_path, **WIDE)
    _, transitions = load_model(root / "mono")
    for name, text in zip(*named_texts(root / "all_a"), strict=True):
        ways = Counter()
        for ids in paths(found[name]):
            phones = tuple(segments(ids, transitions)[0].tolist())
            assert phones not in ways
            ways[phones] += 1
        assert len({spoken(root, ids) for ids in paths(found[name])}) == 2 ** (
            text.split().count("A")
        )


def named_texts(folder):
    store = FrameStore.load(folder)
    return store.utt_ids, store.texts


def test_threads_change_nothing(root, tmp_path):
    for threads in (1, 2):
        lattices(root, tmp_path / str(threads), threads=threads)
    one, two = ((tmp_path / n / "lattices.ark").read_bytes() for n in "12")
    assert one == two


def test_utterances_without_a_path_are_in_the_ledger(root, tmp_path):
    store = FrameStore.load(root / "frames")
    with FrameWriter(root / "short", dim=2) as writer:
        writer.append("u", "s", store.texts[0], store.frames(0)[:5])
        writer.append("v", "s", store.texts[1], store.frames(1))
    assert lattices(root, tmp_path, "short", allowed=0.5).keys() == {"v"}
    (line,) = read_ledger(tmp_path / "ledger.jsonl")
    assert line.utterance == "u"
    with pytest.raises(UserError, match="skipped 1 of 2"):
        lattices(root, tmp_path, "short")
    with pytest.raises(UserError, match="u.*supervision_lattices.beam"):
        lattices(root, tmp_path, "short", allowed=1.0, on_no_final="fail")
