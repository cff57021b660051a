"""Alignments on the fly and before training, and what is done when there are none."""

import json

import numpy as np
import pytest

from latflow.align.aligner import Aligner, AlignmentFailure
from latflow.align.corpus import AlignmentArchive
from latflow.align.graphs import TrainingGraphs, Transcripts, compile_transcripts
from latflow.align.options import AlignOptions
from latflow.criteria.sequence.generation import AlignmentSource
from latflow.criteria.sequence.journal import Drift, UtteranceResult
from latflow.errors import UserError
from latflow.features.frames import FrameWriter
from latflow.graphs.options import GraphOptions
from latflow.kaldi.io import read_int_vectors, write_int_vectors


def aligner_of(system, **options):
    return Aligner(system.model, AlignOptions(**options), GraphOptions())


def test_archive_gives_what_was_written(tmp_path):
    first = {"a": np.array([3, 1, 4]), "b": np.zeros(0, np.int32)}
    second = {"c": np.array([9]), "a": np.array([7, 7])}
    write_int_vectors(tmp_path / "1.ark", first.items())
    write_int_vectors(tmp_path / "2.ark", second.items())
    (tmp_path / "none.ark").write_bytes(b"")
    archive = AlignmentArchive(*(tmp_path / n for n in ("1.ark", "none.ark", "2.ark")))
    assert len(archive) == 3
    assert "a" in archive
    assert "x" not in archive
    assert archive.get("x") is None
    for key, ids in {**first, **second}.items():
        np.testing.assert_array_equal(archive.get(key), ids)
        assert archive.get(key).dtype == np.int32


def test_archive_that_is_something_else_is_refused(tmp_path):
    path = tmp_path / "ali.ark"
    write_int_vectors(path, [("a", np.arange(5))])
    whole = path.read_bytes()
    for content in (whole[:-1], whole + b"b", whole[:8], b"a 1 2 3\n"):
        path.write_bytes(content)
        with pytest.raises(UserError, match="not a binary archive"):
            AlignmentArchive(path)
    with pytest.raises(UserError, match="no such file"):
        AlignmentArchive(tmp_path / "other.ark")


def test_graphs_are_made_once_a_transcript(system, tmp_path):
    with FrameWriter(tmp_path / "frames", dim=1) as writer:
        for n, text in enumerate(["A B", "B", "A B", "", "X", "Y"]):
            writer.append(f"u{n}", "s", text, np.zeros((1, 1)))
    compile_transcripts(
        tmp_path / "frames",
        system.root / "lang",
        system.root / "model",
        tmp_path / "graphs",
        threads=2,
    )
    graphs = TrainingGraphs.load(tmp_path / "graphs")
    transcripts = Transcripts([tmp_path / "frames"], system.lang)
    assert len(graphs) == 3  # X and Y are both the unknown word
    assert graphs.get(transcripts.words("u0")).num_states > 1
    assert graphs.get(transcripts.words("u3")) == "the transcript is empty"
    assert graphs.get([1, 1, 1, 1]) == "no training graph for its transcript"
    ledger = (tmp_path / "graphs/ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["utterance"] for line in ledger] == ["u3"]
    with pytest.raises(UserError, match="no transcript"):
        transcripts.words("u9")


def graph_of(system, utterance):
    words = system.lang.words_to_ids(system.texts[utterance])
    return TrainingGraphs.load(system.files.training_graphs).get(words)


def test_retry_beam_finds_what_the_first_misses(system):
    utterance = max(system.scores, key=lambda u: len(system.scores[u]))
    graph, scores = graph_of(system, utterance), system.scores[utterance]
    wide = aligner_of(system, acoustic_scale=0.2, beam=1000.0, retry_beam=0)
    best = wide.align(graph, scores)
    assert best.beam == 1000.0
    narrow = aligner_of(system, acoustic_scale=0.2, beam=1e-6, retry_beam=0)
    failure = narrow.align(graph, scores)
    assert isinstance(failure, AlignmentFailure)
    assert "within the beam" in failure.reason
    both = aligner_of(system, acoustic_scale=0.2, beam=1e-6, retry_beam=1000.0)
    np.testing.assert_array_equal(
        both.align(graph, scores).transition_ids, best.transition_ids
    )


def test_too_short_utterance_is_told(system):
    utterance = next(iter(system.scores))
    found = aligner_of(system).align(
        graph_of(system, utterance), system.scores[utterance][:1]
    )
    assert isinstance(found, AlignmentFailure)
    assert "too short" in found.reason


def test_words_of_a_class_without_training_data_are_told(system):
    utterance = max(system.scores, key=lambda u: len(system.scores[u]))
    graph, scores = graph_of(system, utterance), system.scores[utterance].copy()
    aligner = aligner_of(system)
    needed = system.model.pdf[aligner.align(graph, scores).transition_ids]
    scores[:, needed] -= 1.8e19  # what a prior of 0 makes of a score
    found = aligner.align(graph, scores)
    assert isinstance(found, AlignmentFailure)
    assert "never trained" in found.reason


def test_scores_of_another_model_are_refused(system):
    utterance = next(iter(system.scores))
    with pytest.raises(UserError, match="pdfs"):
        aligner_of(system).align(
            graph_of(system, utterance), system.scores[utterance][:, :-1]
        )


def source(system, **given):
    aligner = aligner_of(system, acoustic_scale=0.2, **given.pop("beams", {}))
    graphs = TrainingGraphs.load(system.files.training_graphs)
    static = AlignmentArchive(system.files.alignments)
    given = {"aligner": aligner, "graphs": graphs, "static": static, **given}
    return AlignmentSource(system.model, given.pop("static"), **given)


def align(system, utterance, source):
    result = UtteranceResult(utterance)
    words = np.array(system.lang.words_to_ids(system.texts[utterance]))
    return source.align(result, words, system.scores[utterance]), result


def test_static_alignment_is_taken_where_none_can_be_made(system):
    utterance = max(system.scores, key=lambda u: len(system.scores[u]))
    static = dict(read_int_vectors(system.files.alignments))[utterance]
    beams = {"beam": 1e-6, "retry_beam": 0.0}
    found, result = align(system, utterance, source(system, beams=beams))
    np.testing.assert_array_equal(found, static)
    assert result.sums["fallbacks"] == 1
    assert result.events[0].action == "noted"
    found, result = align(
        system, utterance, source(system, beams=beams, fall_back=False)
    )
    assert found is None
    assert result.sums["skipped"] == 1
    found, result = align(system, utterance, source(system, beams=beams, static=None))
    assert found is None
    found, result = align(system, utterance, source(system, aligner=None))
    np.testing.assert_array_equal(found, static)
    assert "drifted_frames" not in result.sums


def test_retried_alignment_is_told(system):
    utterance = max(system.scores, key=lambda u: len(system.scores[u]))
    beams = {"beam": 1e-6, "retry_beam": 500.0}
    found, result = align(system, utterance, source(system, beams=beams))
    assert found is not None
    assert result.sums["retried"] == 1
    assert result.events[0].beam == 500.0


def test_alignment_of_other_frames_stops(system):
    static = AlignmentSource(system.model, AlignmentArchive(system.files.alignments))
    utterance = next(iter(system.scores))
    with pytest.raises(UserError, match="frames") as error:
        static.align(
            UtteranceResult(utterance), np.array([1]), system.scores[utterance][:-1]
        )
    assert error.value.utterance == utterance


def test_without_any_alignment_nothing_can_begin(system):
    with pytest.raises(ValueError, match="alignments"):
        AlignmentSource(system.model, None)
    with pytest.raises(ValueError, match="alignments"):
        AlignmentSource(system.model, None, aligner=aligner_of(system))


def test_drift_counts_what_moved_by_phone(system):
    model, rng = system.model, np.random.default_rng(2)
    static = rng.integers(1, model.num_transition_ids + 1, 200)
    fresh = np.where(
        rng.random(200) < 0.5,
        static,
        rng.integers(1, model.num_transition_ids + 1, 200),
    )
    drift = Drift(model)
    counts = drift.compare(static, fresh)
    assert not drift.counts.any()
    for phone in range(len(counts)):
        mine = model.phone[static] == phone
        other_pdf = model.pdf[static] != model.pdf[fresh]
        other_phone = model.phone[static] != model.phone[fresh]
        expected = [mine.sum(), (mine & other_pdf).sum(), (mine & other_phone).sum()]
        assert counts[phone].tolist() == expected
    drift.counts += counts
    table = drift.by_phone(system.lang.phones)
    assert sum(row["frames"] for row in table.values()) == 200
    assert set(table) <= set(system.lang.phone_ids)
