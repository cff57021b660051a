"""Sets decoded against their transcripts: what was said is heard."""

import json
from itertools import pairwise

import pytest
from fixtures.adapted_system import LEXICON, SHARED, write_frames

from latflow.corpus.ctm import read_ctm
from latflow.decode.biased import decode_biased
from latflow.decode.options import BiasedDecodeOptions
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.gmm.options import MonoOptions
from latflow.gmm.train import MonoJob, train_mono
from latflow.graphs.options import GraphOptions
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang
from latflow.ledger import read_ledger
from latflow.parts import SetJob

WRONG = {"u03": "C C C C", "u08": "A B", "u11": ""}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Monophones, and a copy of their set with three wrong transcripts."""
    root = tmp_path_factory.mktemp("biased")
    write_frames(root / "frames", count=14, is_distorted=False)
    (root / "lexicon.txt").write_text(LEXICON)
    make_lang(root / "lexicon.txt", root / "lang", options=LangOptions())
    options = MonoOptions(
        num_iterations=8,
        num_gaussians=40,
        last_increase_iteration=4,
        realign_iterations=(1, 3, 5),
    )
    train_mono(
        MonoJob(
            frames_dir=root / "frames",
            lang_dir=root / "lang",
            out_dir=root / "mono",
            options=options,
            shared=SHARED,
            threads=1,
        )
    )
    store = FrameStore.load(root / "frames")
    with FrameWriter(root / "wrong", dim=2) as writer:
        for u, name in enumerate(store.utt_ids):
            text = WRONG.get(name, store.texts[u])
            writer.append(name, store.speakers[u], text, store.frames(u))
    return root


def decode(root, out, *, threads=1, allowed=0.0, **options):
    options.setdefault("lm", {"min_words": 20})
    decode_biased(
        SetJob(
            frames_dir=root / "wrong",
            lang_dir=root / "lang",
            model_dir=root / "mono",
            out_dir=out,
            threads=threads,
            max_skipped_fraction=allowed,
        ),
        alignments_dir=root / "ali",
        options=BiasedDecodeOptions(**options),
        scales=GraphOptions(),
    )
    lines = (line.split() for line in (out / "hyp.txt").read_text().splitlines())
    return {name: " ".join(words) for name, *words in lines}


def test_words_are_heard_whatever_the_transcript_says(root, tmp_path):
    heard = decode(root, tmp_path)
    store = FrameStore.load(root / "frames")
    assert heard == dict(zip(store.utt_ids, store.texts, strict=True))
    summary = json.loads((tmp_path / "decode.json").read_text())
    assert summary["utterances"] == len(store)
    words = list(read_ctm(tmp_path / "hyp.ctm"))
    assert [w.word for w in words if w.utterance == "u03"] == heard["u03"].split()
    for before, after in pairwise(words):
        assert before.utterance != after.utterance or before.end <= after.start + 1e-6
    assert list(read_ledger(tmp_path / "ledger.jsonl")) == []


def test_threads_and_batches_change_no_words(root, tmp_path):
    one = decode(root, tmp_path / "one")
    two = decode(root, tmp_path / "two", threads=2, lm={"min_words": 5})
    assert one == two


def test_without_top_words_the_transcript_is_all_that_can_be_heard(root, tmp_path):
    lm = {"min_words": 1, "num_top_words": 0}
    heard = decode(root, tmp_path, lm=lm, on_no_final="partial", allowed=0.1)
    assert set(heard["u03"].split()) <= {"C"}
    assert "u11" not in heard
    (entry,) = (
        e for e in read_ledger(tmp_path / "ledger.jsonl") if e.action == "skipped"
    )
    assert entry.utterance == "u11"
    assert "has no words" in entry.reason


def test_utterances_that_end_in_no_final_state_fail_if_asked(root, tmp_path):
    with pytest.raises(UserError):
        decode(root, tmp_path, beam=1e-3, max_active=2, min_active=0,
               on_no_final="fail")  # fmt: skip
    assert not (tmp_path / "hyp.txt").exists()
