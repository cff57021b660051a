"""Options of features, pieces of jobs, and the commands around Kaldi's systems."""

import logging

import numpy as np
import pytest
from fixtures.kaldi_exp import make_exp, make_frames, make_graph_dir
from hypothesis import given
from hypothesis import strategies as st
from reference.split_data import split_data

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.features.cmvn_options import (
    GlobalCmvn,
    NoCmvn,
    SlidingCmvn,
    SpeakerCmvn,
    UtteranceCmvn,
)
from latflow.features.transform import Chain, Deltas, Identity, Linear, Splice
from latflow.gmm.kaldi_dir import (
    check_cmvn,
    read_transform,
    write_cmvn,
    write_transform,
)
from latflow.gmm.kaldi_export import jobs_of_utterances
from latflow.kaldi.io import read_int_vectors, read_matrices

FRAMES = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
MATRIX = np.random.default_rng(1).normal(size=(5, 12)).astype(np.float32)


@pytest.mark.parametrize(
    "transform",
    [
        Identity(),
        Deltas(),
        Deltas(1, 3),
        Splice(2, 0),
        Linear(MATRIX[:, :4]),
        Linear(MATRIX[:, :5]),
        Chain([Splice(1, 1), Linear(MATRIX)]),
        Chain([Identity(), Chain([Splice(0, 2)]), Linear(MATRIX)]),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_features_made_as_the_written_options_say_are_the_same(tmp_path, transform):
    write_transform(tmp_path, transform, dim_out=transform.dim_out(4))
    again = read_transform(tmp_path)
    np.testing.assert_allclose(again(FRAMES), transform(FRAMES), atol=1e-6)


@pytest.mark.parametrize(
    "transform",
    [
        Chain([Deltas(), Linear(MATRIX)]),
        Chain([Linear(MATRIX), Splice(1, 1)]),
        Chain([Splice(1, 1), Linear(MATRIX), Linear(MATRIX)]),
    ],
)
def test_features_that_kaldis_scripts_cannot_make_are_refused(tmp_path, transform):
    with pytest.raises(UserError, match="no form in Kaldi's scripts"):
        write_transform(tmp_path, transform, dim_out=5)
    assert not list(tmp_path.iterdir())


def test_options_that_are_not_there_are_kaldis_defaults(tmp_path):
    assert read_transform(tmp_path).to_config() == Deltas(2, 2).to_config()
    write_transform(tmp_path, Linear(MATRIX), dim_out=5)
    (tmp_path / "splice_opts").unlink()
    splice = read_transform(tmp_path).to_config()["transforms"][0]
    assert splice == Splice(4, 4).to_config()


@pytest.mark.parametrize(
    "cmvn",
    [
        SpeakerCmvn(),
        UtteranceCmvn(norm_vars=True),
        GlobalCmvn(),
        NoCmvn(),
    ],
)
def test_written_normalization_is_accepted_again(tmp_path, cmvn):
    write_cmvn(tmp_path, cmvn)
    check_cmvn(tmp_path, cmvn)
    with pytest.raises(UserError):
        check_cmvn(tmp_path, SlidingCmvn())


def test_sliding_normalization_is_written_as_none_with_a_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        write_cmvn(tmp_path, SlidingCmvn(norm_vars=True))
    assert "apply-cmvn-sliding" in caplog.text
    line = "--norm-means=false --norm-vars=false\n"
    assert (tmp_path / "cmvn_opts").read_text() == line


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=20).flatmap(
        lambda sizes: st.tuples(st.just(sizes), st.integers(1, len(sizes)))
    )
)
def test_utterances_are_shared_out_as_by_split_data(drawn):
    sizes, num_jobs = drawn
    speakers = [f"s{n:02}" for n, size in enumerate(sizes) for _ in range(size)]
    jobs = jobs_of_utterances(speakers, num_jobs)
    expected = split_data(speakers, num_jobs)
    assert [np.flatnonzero(jobs == job).tolist() for job in range(num_jobs)] == expected


def test_speakers_whose_utterances_are_not_neighbours_stay_together():
    speakers = ["b", "a", "b", "c", "a", "c", "c", "c"]
    jobs = jobs_of_utterances(speakers, 2)
    assert len({(s, int(j)) for s, j in zip(speakers, jobs, strict=True)}) == 3
    assert jobs.tolist() == [0, 0, 0, 1, 0, 1, 1, 1]


def test_no_job_and_too_many_jobs_are_refused():
    for num_jobs in (0, 3):
        with pytest.raises(UserError, match=f"2 speakers .* {num_jobs} jobs"):
            jobs_of_utterances(["a", "a", "b"], num_jobs)


def run(*words):
    return main([str(word) for word in words])


def test_the_commands_take_a_system_over_and_give_it_back(
    golden, repository, tmp_path, capsys
):
    exp = make_exp(golden, "tri1", tmp_path / "exp/tri1")
    graph = make_graph_dir(golden, "tri1", exp / "graph")
    frames = make_frames(golden, tmp_path / "results/frames/train")
    results, config = tmp_path / "results", repository / "config/config.yaml"
    status = run(
        "import-kaldi", "system", exp, golden / "lang", results, "--graph", graph,
        "--frames", frames, "--name", "baseline", "--configfile", config,
    )  # fmt: skip
    assert status == 0
    system, lang = results / "gmm/baseline", results / "lang"
    alignments = results / "align/baseline/train/ali.ark"
    assert len(list(read_int_vectors(alignments))) == 6
    back = tmp_path / "back"
    status = run(
        "export-kaldi", "system", system, lang, back, "--frames", frames,
        "--graph", results / "graph/baseline/HCLG.fst", "--alignments", alignments,
        "--num-jobs", 2, "--training-graphs",
    )  # fmt: skip
    assert status == 0
    assert {path.name for path in back.iterdir()} == {
        "final.mdl", "tree", "phones.txt", "num_jobs", "cmvn_opts", "delta_opts",
        "ali.1.gz", "ali.2.gz", "fsts.1.gz", "fsts.2.gz", "graph", "lang",
    }  # fmt: skip
    ark = tmp_path / "feats.ark"
    assert run("export-kaldi", "features", system, frames, ark) == 0
    expected = dict(read_matrices(golden / "features/mfcc39_cmvn.txt.gz"))
    for utterance, matrix in read_matrices(ark):
        np.testing.assert_allclose(matrix, expected.pop(utterance), atol=1e-4)
    assert not expected
    capsys.readouterr()
    arguments = ("export-kaldi", "system", system, lang, tmp_path / "again")
    assert run(*arguments, "--training-graphs") == 1
    assert "name --frames too" in capsys.readouterr().err
    assert run(*arguments[:-1], back) == 1
    assert "not empty" in capsys.readouterr().err


def test_a_system_told_nothing_else_keeps_its_normalization(
    golden, repository, tmp_path
):
    exp = make_exp(golden, "mono", tmp_path / "exp/Mono-x")
    (exp / "cmvn_opts").write_text("--norm-vars=true\n")
    config = tmp_path / "config.yaml"
    text = (repository / "config/config.yaml").read_text()
    config.write_text(text + "\nfeatures: {cmvn: {type: speaker, norm_vars: true}}\n")
    results, back = tmp_path / "results", tmp_path / "back"
    status = run(
        "import-kaldi", "system", exp, golden / "lang", results,
        "--configfile", config,
    )  # fmt: skip
    assert status == 0
    system = results / "gmm/mono_x"  # the name that the workflow gives it
    assert run("export-kaldi", "system", system, results / "lang", back) == 0
    line = "--norm-means=true --norm-vars=true\n"
    assert (back / "cmvn_opts").read_text() == line
