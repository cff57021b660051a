"""Words of Kaldi's digit lattices: exact times, n-best lists, oracle, confidences."""

from types import SimpleNamespace

import numpy as np
import pytest
from reference.lattice_paths import enumerate_paths

from latflow.align.word_times import Pronunciations, phone_segments, split_phones
from latflow.hmm.alignment import segments
from latflow.kaldi.io import read_int_vectors
from latflow.lattice.edit_distance import ErrorCounts
from latflow.lattice.io.archives import read_compact_lattices
from latflow.lattice.mbr import minimum_bayes_risk
from latflow.lattice.n_best import n_best
from latflow.lattice.oracle import oracle
from latflow.lattice.word_alignment import WordAligner, align_words
from latflow.scoring.transcripts import timed_words

SCALE = 0.1


@pytest.fixture(scope="module")
def compact(golden):
    path = golden / "lattice" / "compact_beam13.txt"
    return dict(read_compact_lattices(path))


@pytest.fixture(scope="module")
def aligned(compact, model, lang):
    aligner = WordAligner(model, lang)
    return {utterance: aligner(lattice) for utterance, lattice in compact.items()}


def test_arcs_are_words_or_silences(aligned, model, lang):
    silences = set(lang.silence_phones)
    lexicon = {
        word: {phones for _, phones in entries}
        for word, entries in lang.lexicon.items()
    }
    for lattice in aligned.values():
        for arc in range(lattice.num_arcs):
            phones, _, _ = segments(lattice.arc_string(arc), model)
            word = int(lattice.word[arc])
            if word:
                spoken = tuple(lang.base_phone(int(phone)) for phone in phones)
                assert spoken in lexicon[lang.words[word]]
            else:
                assert len(phones) == 1
                assert int(phones[0]) in silences


def test_paths_stay(compact, aligned):
    for utterance, lattice in aligned.items():
        before = enumerate_paths(compact[utterance].to_lattice())
        after = enumerate_paths(lattice.to_lattice())
        assert len(before) == len(after)
        costs = {(p.words, p.transition_ids): p for p in before}
        for path in after:
            other = costs[path.words, path.transition_ids]
            assert path.graph_cost == pytest.approx(other.graph_cost, rel=1e-5)
            assert path.acoustic_cost == pytest.approx(other.acoustic_cost, rel=1e-5)


def test_times_are_those_of_the_phones_of_the_best_path(aligned, model, lang):
    pronunciations = Pronunciations(
        {word: [e for _, e in entries] for word, entries in lang.lexicon.items()},
        [lang.phones[phone] for phone in lang.silence_phones],
        is_position_dependent=True,
    )
    for lattice in aligned.values():
        (best,) = n_best(lattice, 1, acoustic_scale=SCALE)
        phones, bounds, _ = phone_segments(best.transition_ids, model)
        spans = split_phones(
            [lang.phones[phone] for phone in phones],
            [lang.words[int(word)] for word in best.words],
            pronunciations,
        )
        assert spans is not None
        assert best.word_begin.tolist() == [bounds[first] for first, _ in spans]
        found = minimum_bayes_risk(lattice, acoustic_scale=50.0, decode_mbr=False)
        assert found.begin == pytest.approx([bounds[a] for a, _ in spans], abs=1e-3)
        assert found.end == pytest.approx([bounds[b] for _, b in spans], abs=1e-3)


def test_best_of_n_is_kaldis_best(golden, raw, compact):
    words = dict(read_int_vectors(golden / "lattice" / "best_path_words.int"))
    ids = dict(read_int_vectors(golden / "lattice" / "best_path_ali.txt"))
    for utterance, lattice in raw.items():
        many = n_best(lattice, 20, acoustic_scale=SCALE)
        np.testing.assert_array_equal(many[0].words, words[utterance])
        np.testing.assert_array_equal(many[0].transition_ids, ids[utterance])
        # Determinizing keeps each word sequence with its best path.
        few = n_best(compact[utterance], 20, acoustic_scale=SCALE)
        assert [p.words.tolist() for p in many] == [p.words.tolist() for p in few]
        for a, b in zip(many, few, strict=True):
            cost = a.graph_cost + SCALE * a.acoustic_cost
            assert b.graph_cost + SCALE * b.acoustic_cost == pytest.approx(
                cost, rel=1e-5
            )


def test_oracle_errors_are_at_most_those_of_the_best_path(corpora, raw, compact, lang):
    lines = (corpora / "digits" / "test" / "text").read_text().splitlines()
    texts = dict(line.split(maxsplit=1) for line in lines)
    references = {u: np.array(lang.words_to_ids(texts[u]), np.int32) for u in raw}
    for lattices in (raw, compact):
        found = [oracle(lattices[u], references[u]) for u in lattices]
        total = sum((one.counts for one in found), ErrorCounts())
        assert total.words == sum(map(len, references.values()))
        assert total.errors == 0


def test_minimum_bayes_risk_agrees_with_the_best_path(golden, aligned, lang):
    words = dict(read_int_vectors(golden / "lattice" / "best_path_words.int"))
    for utterance, lattice in aligned.items():
        found = minimum_bayes_risk(lattice, acoustic_scale=SCALE)
        np.testing.assert_array_equal(found.words, words[utterance])
        assert (found.confidence > 0.5).all()
        assert found.risk < 0.2
        timed = timed_words(utterance, found, lang.words, frame_shift=0.01)
        assert " ".join(word.word for word in timed) == " ".join(
            lang.words[int(word)] for word in words[utterance]
        )
        ends = [word.start + word.duration for word in timed]
        assert all(a <= b.start + 1e-6 for a, b in zip(ends, timed[1:], strict=False))
        assert ends[-1] <= lattice.num_frames * 0.01


def test_one_call_does_the_same(compact, aligned, model, lang):
    utterance = min(compact)
    once = align_words(compact[utterance], model, lang)
    for name, value in vars(once).items():
        np.testing.assert_array_equal(value, getattr(aligned[utterance], name))


def test_the_lexicon_alone_finds_the_same_words(raw, compact, model, lang):
    def marked(phones):
        first, *inner, last = phones
        return (f"{first}_B", *(f"{phone}_I" for phone in inner), f"{last}_E")

    by_lexicon = SimpleNamespace(
        word_boundary=None,
        word_ids=lang.word_ids,
        phone_ids=lang.phone_ids,
        optional_silence=lang.optional_silence,
        lexicon={
            word: [
                (p, marked(phones) if len(phones) > 1 else (f"{phones[0]}_S",))
                for p, phones in entries
            ]
            for word, entries in lang.lexicon.items()
        },
    )
    one, other = WordAligner(model, lang), WordAligner(model, by_lexicon)
    for utterance in raw:
        a, b = one(compact[utterance]), other(compact[utterance])
        assert a.num_arcs == b.num_arcs
        found = [
            minimum_bayes_risk(lattice, acoustic_scale=SCALE) for lattice in (a, b)
        ]
        assert found[0].words.tolist() == found[1].words.tolist()
        assert found[0].begin == pytest.approx(found[1].begin, abs=1e-3)
        assert found[0].confidence == pytest.approx(found[1].confidence, abs=1e-4)
