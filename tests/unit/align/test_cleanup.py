"""Planted errors: what is kept of an utterance, and what is written."""

import json

import pytest
from lhotse import AudioSource, MonoCut, Recording, SupervisionSegment

from latflow.align.agreement import agreeing_segments, compare
from latflow.align.cleanup import clean_corpus
from latflow.corpus.ctm import TimedWord, ctm_line
from latflow.corpus.derived_options import CleanedSetOptions
from latflow.corpus.json_lines import ManifestWriter
from latflow.corpus.manifests import read_cuts, read_recordings, read_supervisions
from latflow.errors import UserError
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang
from latflow.ledger import read_ledger

LEXICON = "<UNK> SPN\none W AH N\ntwo T UW\nthree TH R IY\nfour F AO R\n"
DIGITS = ["one", "two", "three", "four"]


def spoken(text, start=0.3, word=0.4):
    """Words of equal length, `_` a silence of half a second."""
    heard, time = [], start
    for each in text.split():
        if each != "_":
            heard.append(TimedWord("u", time, word, each))
        time += 0.5 if each == "_" else word
    return heard, round(time + 0.3, 3)


def kept(said, found, **options):
    """What is kept: (begin, end, transcript)."""
    heard, duration = spoken(found)
    lines = compare(
        said.split(), heard, duration,
        is_known={*DIGITS, "<UNK>"}.__contains__, unknown_word="<UNK>",
    )  # fmt: skip
    segments, _ = agreeing_segments(lines, CleanedSetOptions(**options))
    return [
        (round(s.begin, 3), round(s.finish, 3), " ".join(s.words("<UNK>")))
        for s in segments
    ]


def test_a_wrong_word_divides_an_utterance():
    found = kept("one two three one four two one", "one two three four four two one")
    assert found == [(0.0, 1.55, "one two three <UNK>"),
                     (1.85, 3.4, "<UNK> four two one")]  # fmt: skip
    plain = kept("one two three one four two one", "one two three four four two one",
                 unknown_padding=0.0)  # fmt: skip
    assert plain == [(0.0, 1.5, "one two three"), (1.9, 3.4, "four two one")]


def test_a_word_too_much_is_cut_out():
    found = kept("one two three four two one", "one two three one four two one")
    assert [text for _, _, text in found] == ["one two three <UNK>",
                                              "<UNK> four two one"]  # fmt: skip


def test_a_word_left_out_stays_two_do_not():
    heard = "one two three four two one"
    assert kept("one two three three four two one", heard) == [
        (0.0, 3.0, "one two three three four two one")
    ]
    two = kept("one two three three one four two one", heard)
    assert two == [(0.0, 3.0, heard)]
    assert kept("one two three three four two one", heard, max_left_out_words=0) == [
        (0.0, 3.0, heard)
    ]


def test_silence_beside_an_error_is_no_part():
    heard = "one two three _ four two one"
    for said in (
        "one two three one four two one",
        "one two three one one four two one",
    ):
        assert kept(said, heard) == [(0.0, 1.55, "one two three"),
                                     (1.95, 3.5, "four two one")]  # fmt: skip
    noisy = "one two three _ two _ four two one"
    assert [text for *_, text in kept("one two three four four two one", noisy)] == [
        "one two three", "four two one",
    ]  # fmt: skip


def test_an_unsure_end_is_cut_off_up_to_a_silence():
    said = "one two three one four"
    heard = "one two three _ one two"
    assert kept(said, heard) == [(0.0, 2.0, "one two three")]  # of one 0.05 s of 0.45
    assert kept(said, heard, max_junk=0.2) == [(0.0, 2.45, "one two three one <UNK>")]
    assert kept("four one two three four", "one one _ two three four") == [
        (1.1, 3.1, "two three four")
    ]


def test_silence_to_split_in_is_an_option():
    said, heard = "one two three one four", "one two three _ one two"
    whole = [(0.0, 2.45, "one two three one <UNK>")]
    assert kept(said, heard, min_split_silence=0.5) == whole
    assert kept(said, heard, min_split_silence=0.4) != whole


def test_silence_at_the_ends_is_shortened():
    (segment,) = kept("one two three", "one two three _ _")
    assert segment == (0.0, 2.0, "one two three")
    shortened = kept("one two three", "one two three _ _", max_edge_silence=0.1)
    assert shortened == [(0.2, 1.6, "one two three")]


def test_long_silence_divides():
    said = "one two three four two one"
    found = kept(said, "one two three _ _ _ _ _ four two one")
    assert found == [(0.0, 2.0, "one two three"), (3.5, 5.5, "four two one")]
    near = kept(said, "one two three _ _ _ _ four two one")
    assert near == [(0.0, 5.0, said)]


def test_short_parts_go():
    assert kept("one two three", "one one three") == []
    found = kept("one two three", "one one three", min_new_segment=0.5, max_junk=0.5)
    assert [text for _, _, text in found] == ["one <UNK>", "<UNK> three"]
    assert kept("one", "one", min_segment=1.5) == []


def test_words_that_the_lexicon_lacks_agree_with_the_unknown_word():
    assert kept("one odd three", "one <UNK> three") == [(0.0, 1.8, "one odd three")]
    assert kept("odd", "<UNK>", min_segment=0.0) == []


@pytest.fixture
def corpus(tmp_path):
    """A corpus folder of four utterances, of which two are in one recording."""
    (tmp_path / "lexicon.txt").write_text(LEXICON)
    make_lang(tmp_path / "lexicon.txt", tmp_path / "lang", options=LangOptions())
    folder = tmp_path / "train"
    folder.mkdir()
    said = {
        "a-1": "one two three four",
        "a-2": "one two three one four two one",
        "b-1": "four four four",
        "c-1": "two one",
    }
    found = {
        "a-1": "one two three four",
        "a-2": "one two three four four two one",
        "b-1": "one two one",
    }
    recordings = {}
    for name in ("a", "b", "c"):
        source = AudioSource("file", [0], f"{name}.wav")
        recordings[name] = Recording(name, [source], 8000, 160000, 20.0)
    with (
        ManifestWriter(folder / "recordings.jsonl.gz") as writer,
        ManifestWriter(folder / "cuts.jsonl.gz") as cuts,
        (tmp_path / "hyp.ctm").open("w") as ctm,
    ):
        for recording in recordings.values():
            writer.write(recording)
        for n, (name, text) in enumerate(said.items()):
            heard, duration = spoken(found.get(name, text))
            supervision = SupervisionSegment(
                name, name[0], 0.0, duration, channel=0, text=text, speaker=name[0]
            )
            cuts.write(
                MonoCut(name, 5.0 * n, duration, 0, [supervision],
                        recording=recordings[name[0]])
            )  # fmt: skip
            if name in found:
                words = [TimedWord(name, w.start, w.duration, w.word) for w in heard]
                ctm.writelines(map(ctm_line, words))
    return tmp_path


def clean(folder, **options):
    clean_corpus(
        folder / "train/cuts.jsonl.gz", folder / "train/recordings.jsonl.gz",
        folder / "hyp.ctm", folder / "lang", folder / "clean",
        options=CleanedSetOptions(**options),
    )  # fmt: skip


def test_a_corpus_of_the_good_parts_is_written(corpus):
    clean(corpus)
    cuts = {cut.id: cut for cut in read_cuts(corpus / "clean/cuts.jsonl.gz")}
    assert list(cuts) == ["a-1", "a-2-1", "a-2-2"]
    part = cuts["a-2-2"]
    assert (part.start, part.duration) == pytest.approx((6.85, 1.55))
    assert part.supervisions[0].text == "<UNK> four two one"
    assert part.supervisions[0].speaker == "a"
    whole = next(read_cuts(corpus / "train/cuts.jsonl.gz"))
    assert cuts["a-1"] == whole
    supervisions = read_supervisions(corpus / "clean/supervisions.jsonl.gz")
    assert {s.id: s.start for s in supervisions} == pytest.approx(
        {"a-1": 0.0, "a-2-1": 5.0, "a-2-2": 6.85}
    )
    recordings = read_recordings(corpus / "clean/recordings.jsonl.gz")
    assert [each.id for each in recordings] == ["a"]
    ledger = {e.utterance: e for e in read_ledger(corpus / "clean/ledger.jsonl")}
    assert {name: entry.action for name, entry in ledger.items()} == {
        "a-2": "truncated", "b-1": "excluded", "c-1": "excluded",
    }  # fmt: skip
    assert ledger["b-1"].reason == "words differ"
    assert ledger["c-1"].reason == "nothing recognized"
    assert "kept 3.10 of 3.40 s, parts: 2" in ledger["a-2"].reason
    told = json.loads((corpus / "clean/cleaned.json").read_text())
    assert (told["utterances"], told["whole_utterances"], told["parts"]) == (4, 1, 3)
    assert told["kept_seconds"] == pytest.approx(2.2 + 3.1)
    lost = sum(told["dropped_seconds"].values())
    assert told["kept_seconds"] + lost == pytest.approx(told["seconds"], abs=0.05)


def test_words_of_another_set_are_refused(corpus):
    with (corpus / "hyp.ctm").open("a") as ctm:
        ctm.write("z-1 1 0.0 0.1 one\n")
    with pytest.raises(UserError, match="z-1.*not in the set"):
        clean(corpus)
    assert not (corpus / "clean").exists()


def test_nothing_left_is_an_error(corpus):
    with pytest.raises(UserError, match="no utterance agrees"):
        clean(corpus, min_segment=10.0)
