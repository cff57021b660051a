"""What does not belong together is refused in one line with the file and a remedy."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from fixtures.kaldi_exp import FEATURES, make_exp, make_frames, make_graph_dir

from latflow.errors import UserError
from latflow.gmm.apply import write_features, write_log_likes
from latflow.gmm.kaldi_export import export_system, export_training_graphs
from latflow.gmm.kaldi_import import (
    import_alignments,
    import_graph,
    import_system,
)
from latflow.hmm.topology import Topology
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import (
    KaldiReader,
    KaldiWriter,
    read_int_vectors,
    write_int_vectors,
    write_matrices,
)
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions
from latflow.lang.prepare import import_lang
from latflow.ledger import read_ledger


def refused(error, file, *words):
    """Whether a message is one line that names the file, what is wrong, a remedy."""
    line = str(error.value)
    assert "\n" not in line
    assert error.value.remedy
    assert file in str(error.value.file), line
    for word in words:
        assert word in line, line


@pytest.fixture
def exp(golden, tmp_path):
    return lambda system: make_exp(golden, system, tmp_path / "exp" / system)


@pytest.fixture
def take(golden, tmp_path):
    """Import a system; returns its folder."""

    def take(exp, *, lang=None, **features):
        out = tmp_path / "gmm" / exp.name
        options = FEATURES.replace(**features)
        import_system(exp, lang or golden / "lang", out, features=options)
        return out

    return take


def swap_lines(path, one, other):
    text = path.read_text()
    path.write_text(text.replace(one, "@").replace(other, one).replace("@", other))


# -- systems ----------------------------------------------------------------------


def test_no_folder(tmp_path, take):
    with pytest.raises(UserError) as error:
        take(tmp_path / "exp")
    refused(error, "exp", "no such folder")


def test_a_phone_table_with_other_ids(exp, take):
    folder = exp("tri1")
    swap_lines(folder / "phones.txt", "SIL_B 2\n", "SIL_C 2\n")
    with pytest.raises(UserError) as error:
        take(folder)
    refused(error, "exp/tri1/phones.txt", "phone SIL_B is missing", "lang/phones.txt")


def test_disambiguation_symbols_may_differ(exp, take):
    folder = exp("tri1")
    with (folder / "phones.txt").open("a") as table:
        table.write("#17 4711\n")
    take(folder)


@pytest.mark.parametrize("silence_states", [3, 5])
def test_a_language_with_other_hmms(golden, exp, take, tmp_path, silence_states):
    lang_dir = tmp_path / "lang"
    shutil.copytree(golden / "lang", lang_dir, copy_function=shutil.copyfile)
    lang = Lang.load(lang_dir)
    topology = Topology.standard(
        lang.nonsilence_phones, lang.silence_phones, 3, silence_states
    )
    topology.save(lang_dir / "topo")
    if silence_states == 5:
        take(exp("tri1"), lang=lang_dir)
        return
    with pytest.raises(UserError) as error:
        take(exp("tri1"), lang=lang_dir)
    refused(error, "final.mdl", "SIL", "5 states", "3 states", "lang/topo")


def test_a_language_with_other_phones(golden, exp, take, tmp_path, repository):
    from latflow.lang.prepare import make_lang

    lines = (golden / "lang/lexicon.txt").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("THREE")]
    (tmp_path / "lexicon.txt").write_text("\n".join(kept) + "\n")
    options = LangOptions()
    make_lang(tmp_path / "lexicon.txt", tmp_path / "lang", options=options)
    folder = exp("mono")
    (folder / "phones.txt").unlink()  # as directories of old Kaldi versions
    with pytest.raises(UserError) as error:
        take(folder, lang=tmp_path / "lang")
    refused(error, "final.mdl", "is in the model only", "lang directory")


def test_a_tree_of_another_system(golden, exp, take):
    folder = exp("tri1")
    shutil.copyfile(golden / "gmm/mono/tree", folder / "tree")
    with pytest.raises(UserError) as error:
        take(folder)
    refused(error, "final.mdl", "96 pdfs", "the tree beside it has 67")


def test_a_tree_of_another_training_of_the_same_size(exp, take):
    folder = exp("tri1")
    ContextDependency.load(folder / "tree").save(folder / "tree", binary=False)
    swap_lines(folder / "tree", "CE 30 ", "CE 70 ")
    with pytest.raises(UserError) as error:
        take(folder)
    refused(error, "final.mdl", "other states", "one training")


def test_a_model_that_is_missing_or_a_network(exp, take):
    folder = exp("tri1")
    with KaldiReader.open(folder / "final.mdl") as reader:
        from latflow.hmm.transition_model import TransitionModel

        transitions = TransitionModel.read(reader)
    with KaldiWriter.open(folder / "final.mdl") as writer:
        transitions.write(writer)
        writer.write_token("<Nnet3>")
    with pytest.raises(UserError) as error:
        take(folder)
    refused(error, "final.mdl", "neural network (<Nnet3>)")
    (folder / "final.mdl").unlink()
    with pytest.raises(UserError) as error:
        take(folder)
    refused(error, "final.mdl", "no such file")


@pytest.mark.parametrize(
    ("system", "features", "file", "words"),
    [
        ("tri1", {"num_ceps": 20}, "final.mdl", ["of dimension 39", "20", "60"]),
        ("tri2b", {"num_ceps": 20}, "final.mat", ["dimension 20", "140", "40 x 91"]),
        ("mono", {"type": "fbank", "num_mel_bins": 40}, "final.mdl", ["40", "120"]),
    ],
)
def test_features_of_another_dimension(exp, take, system, features, file, words):
    with pytest.raises(UserError) as error:
        take(exp(system), **features)
    refused(error, file, *words, "num_ceps")


def test_splicing_that_does_not_fit_the_matrix(exp, take):
    folder = exp("tri2b")
    (folder / "splice_opts").unlink()  # 4 + 4 by default
    with pytest.raises(UserError) as error:
        take(folder)
    refused(error, "final.mat", "117", "40 x 91")


@pytest.mark.parametrize(
    ("options", "cmvn", "words"),
    [
        ("--norm-vars=true", {"type": "speaker", "norm_vars": False}, ["norm_vars: t"]),
        ("", {"type": "utterance", "norm_vars": True}, ["means and variances"]),
        ("", {"type": "none"}, ["nothing normalized", "type: speaker"]),
        ("--norm-means=false", FEATURES.cmvn, ["type: none"]),
        ("", {"type": "sliding", "norm_vars": False}, ["sliding"]),
        ("--norm-means=maybe", FEATURES.cmvn, ["proper value"]),
        ("--skip-dims=0:1", FEATURES.cmvn, ["--skip-dims=0:1", "does not know"]),
        ("--reverse=true", FEATURES.cmvn, ["--reverse"]),
        ("norm-vars", FEATURES.cmvn, ["norm-vars"]),
    ],
)
def test_another_normalization(exp, take, options, cmvn, words):
    folder = exp("tri1")
    (folder / "cmvn_opts").write_text(options + "\n")
    with pytest.raises(UserError) as error:
        take(folder, cmvn=cmvn)
    refused(error, "cmvn_opts", *words)


@pytest.mark.parametrize(
    ("options", "cmvn"),
    [
        ("--norm-means=true --norm-vars=true", {"type": "global", "norm_vars": True}),
        ("--norm_means=false --norm-vars=false", {"type": "none"}),
        ("--norm-vars", {"type": "speaker", "norm_vars": True}),
    ],
)
def test_the_same_normalization_in_other_words(exp, take, options, cmvn):
    folder = exp("tri1")
    (folder / "cmvn_opts").write_text(options + "\n")
    take(folder, cmvn=cmvn)


@pytest.mark.parametrize("line", ["--truncate=13", "--delta-order=x", "--what=2"])
def test_deltas_of_another_kind(exp, take, line):
    folder = exp("tri1")
    (folder / "delta_opts").write_text(line + "\n")
    with pytest.raises(UserError) as error:
        take(folder)
    refused(error, "delta_opts", line.split("=")[0])


def test_an_alignment_model_of_another_tree_or_other_features(golden, exp, take):
    folder = exp("tri3b")
    shutil.copyfile(golden / "gmm/tri2b/final.mdl", folder / "final.alimdl")
    with pytest.raises(UserError) as error:
        take(folder)
    refused(error, "final.alimdl", "another tree", "one training")
    folder = exp("tri1")
    from latflow.gmm.model import AcousticModel, DiagGmms

    model = AcousticModel.load(folder / "final.mdl")
    narrow = DiagGmms.from_natural(
        model.gmms.begin,
        model.gmms.weights,
        model.gmms.means_invvars[:, :13],
        model.gmms.inv_vars[:, :13],
    )
    AcousticModel(model.transitions, narrow).save(folder / "final.alimdl")
    with pytest.raises(UserError) as error:
        take(folder)
    refused(error, "final.alimdl", "dimension 13", "39")


def test_a_full_matrix_of_other_frames(exp, take):
    folder = exp("tri2b")
    with KaldiWriter.open(folder / "full.mat") as writer:
        writer.write_float_matrix(np.eye(117, dtype=np.float32))
    with pytest.raises(UserError) as error:
        take(folder)
    refused(error, "full.mat", "117", "91")


def test_a_language_that_contradicts_itself(golden, tmp_path):
    lang = tmp_path / "lang"
    shutil.copytree(golden / "lang", lang, copy_function=shutil.copyfile)
    shutil.copyfile(lang / "L_disambig.fst", lang / "L.fst")
    with pytest.raises(UserError) as error:
        import_lang(lang, tmp_path / "out")
    refused(error, "L.fst", "label")
    assert not (tmp_path / "out").exists()


# -- graphs -----------------------------------------------------------------------


def test_graphs_of_other_parts(golden, exp, take, tmp_path):
    system = take(exp("mono"))
    folder = make_graph_dir(golden, "tri1", tmp_path / "graph")
    arguments = (folder, system, golden / "lang", tmp_path / "HCLG.fst")
    with pytest.raises(UserError) as error:
        import_graph(*arguments)
    refused(error, "num_pdfs", "the graph was made for 96 pdfs")
    (folder / "num_pdfs").unlink()
    with pytest.raises(UserError) as error:
        import_graph(*arguments)
    refused(error, "HCLG.fst", "has transition-id", "the model only")
    shutil.copyfile(golden / "graph/HCLG_mono.fst", folder / "HCLG.fst")
    swap_lines(folder / "words.txt", "FIVE ", "FOUR ")
    with pytest.raises(UserError) as error:
        import_graph(*arguments)
    refused(error, "words.txt", "word FIVE is id", "lang/words.txt")
    (folder / "words.txt").unlink()
    import_graph(*arguments)


# -- alignments -------------------------------------------------------------------


@pytest.fixture
def align(golden, take, tmp_path):
    """Import the alignments of a directory."""
    frames = make_frames(golden, tmp_path / "frames")

    def align(exp, *, allowed=0.0):
        out = tmp_path / "align" / exp.name / "train"
        import_alignments(
            exp, take(exp), golden / "lang", frames, out, max_skipped_fraction=allowed
        )
        return out

    return align


def test_a_piece_that_is_missing(exp, align):
    folder = exp("tri1")
    (folder / "ali.2.gz").unlink()
    with pytest.raises(UserError) as error:
        align(folder)
    refused(error, "ali.2.gz", "num_jobs says 2")
    (folder / "num_jobs").write_text("two\n")
    with pytest.raises(UserError) as error:
        align(folder)
    refused(error, "num_jobs", "not a number of jobs")
    (folder / "ali.1.gz").unlink()
    with pytest.raises(UserError) as error:
        align(folder)
    refused(error, "ali.1.gz", "no alignments")


def test_pieces_of_an_earlier_run_are_passed_over(exp, align):
    folder = exp("tri1")
    (folder / "ali.3.gz").write_bytes(b"what an earlier run left")
    assert len(list(read_int_vectors(align(folder) / "ali.ark"))) == 6


def test_without_num_jobs_all_pieces_are_taken(exp, align):
    folder = exp("tri1")
    (folder / "num_jobs").unlink()
    assert len(list(read_int_vectors(align(folder) / "ali.ark"))) == 6


def opened_below(folder):
    """Files below a folder that this process has open."""
    names = map(Path.resolve, Path("/proc/self/fd").iterdir())
    return [name for name in names if name.is_relative_to(folder.resolve())]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda items: items[::-1], ["not sorted"]),
        (lambda items: [(items[0][0], items[0][1] + 880)], ["transition-ids", "1 to"]),
        (lambda items: [(items[0][0], items[0][1] * 0)], ["transition-ids 0"]),
        (lambda items: [(items[0][0], items[0][1][1:])], ["frames aligned"]),
        (lambda items: [(items[0][0], items[0][1][::-1])], ["whole phones"]),
    ],
)
def test_alignments_of_something_else(exp, align, spoil, words):
    folder = exp("tri1")
    items = list(read_int_vectors(folder / "ali.1.gz"))
    write_int_vectors(folder / "ali.1.gz", spoil(items))
    with pytest.raises(UserError) as error:
        align(folder)
    assert not opened_below(folder)  # though the error holds all frames
    refused(error, "exp/tri1", *words)
    assert error.value.utterance
    assert not (folder.parents[1] / "align/tri1/train/ali.ark").exists()


def test_an_utterance_that_comes_twice(exp, align):
    folder = exp("tri1")
    shutil.copyfile(folder / "ali.1.gz", folder / "ali.2.gz")
    with pytest.raises(UserError) as error:
        align(folder)
    refused(error, "ali.", "george-test-0000", "too")


def test_missing_utterances_are_in_the_ledger_and_strangers_are_counted(exp, align):
    folder = exp("tri1")
    first = list(read_int_vectors(folder / "ali.1.gz"))
    write_int_vectors(folder / "ali.2.gz", [("zoe", first[0][1])])
    with pytest.raises(UserError, match="skipped 3 of 6"):
        align(folder)
    out = align(folder, allowed=0.5)
    assert [u for u, _ in read_int_vectors(out / "ali.ark")] == [u for u, _ in first]
    entries = list(read_ledger(out / "ledger.jsonl"))
    assert [entry.action for entry in entries] == ["skipped"] * 3
    assert '"num_strangers": 1' in (out / "statistics.json").read_text()


def test_transforms_that_are_missing_or_of_something_else(exp, align):
    folder = exp("tri3b")
    out = align(folder)
    assert (out / "trans.ark").exists()
    (folder / "trans.2").write_text("")
    entries = read_ledger(align(folder) / "ledger.jsonl")
    noted = [(entry.utterance, entry.action) for entry in entries]
    assert noted == [(s, "noted") for s in ("nicolas", "theo", "yweweler")]
    shutil.copyfile(folder / "trans.1", folder / "trans.2")
    with pytest.raises(UserError) as error:
        align(folder)
    refused(error, "trans.2", "george", "another piece")
    write_matrices(folder / "trans.2", [("theo", np.ones((39, 40), np.float32))])
    with pytest.raises(UserError) as error:
        align(folder)
    refused(error, "trans.2", "theo", "dimension 39", "40")
    write_matrices(folder / "trans.1", [("ann", np.ones((40, 41), np.float32))])
    write_matrices(folder / "trans.2", [])
    with pytest.raises(UserError) as error:
        align(folder)
    refused(error, "trans.1", "none of the split's speakers")
    (folder / "trans.1").unlink()
    with pytest.raises(UserError) as error:
        align(folder)
    refused(error, "trans.1", "adapts to speakers")


# -- the way out ------------------------------------------------------------------


def test_exports_that_cannot_be(golden, exp, take, tmp_path):
    frames = make_frames(golden, tmp_path / "frames")
    system, lang = take(exp("tri1")), golden / "lang"
    out = tmp_path / "out"
    with pytest.raises(UserError, match="which speakers"):
        export_system(system, lang, out, num_jobs=2)
    with pytest.raises(UserError, match="6 speakers cannot be shared out to 7 jobs"):
        export_system(system, lang, out, frames=frames, num_jobs=7)
    write_int_vectors(tmp_path / "ali.ark", [("zoe", [1, 2, 3])])
    with pytest.raises(UserError) as error:
        export_system(system, lang, out, frames=frames, alignments=tmp_path / "ali.ark")
    refused(error, "ali.ark", "zoe", "no such utterance")
    write_int_vectors(tmp_path / "ali.ark", [("zoe", [1, 2, 3000])])
    with pytest.raises(UserError) as error:
        export_system(system, lang, out, alignments=tmp_path / "ali.ark")
    refused(error, "ali.ark", "zoe", "3000")
    write_matrices(tmp_path / "trans.ark", [("zoe", np.ones((3, 4), np.float32))])
    with pytest.raises(UserError) as error:
        export_system(system, lang, out, transforms=tmp_path / "trans.ark")
    refused(error, "trans.ark", "zoe", "dimension 3")
    with pytest.raises(UserError) as error:
        export_system(system, lang, out, graph=golden / "lang/G.fst")
    refused(error, "G.fst", "self-loops")
    assert not out.exists()
    with pytest.raises(UserError, match="no exported system"):
        export_training_graphs(system, lang, frames, tmp_path)
    (out / "sub").mkdir(parents=True)
    with pytest.raises(UserError) as error:
        export_system(system, lang, out)
    refused(error, "out", "not empty")


def test_archives_that_cannot_be(golden, exp, take, tmp_path):
    frames = make_frames(golden, tmp_path / "frames")
    system = take(exp("tri1"))
    with pytest.raises(UserError) as error:
        write_features(system, frames, tmp_path / "feats.ark.gz")
    refused(error, "feats.ark.gz", "unpacked")
    write_matrices(tmp_path / "trans.ark", [("theo", np.ones((3, 4), np.float32))])
    with pytest.raises(UserError) as error:
        write_log_likes(
            system, frames, tmp_path / "a.ark", transforms=tmp_path / "trans.ark"
        )
    refused(error, "trans.ark", "theo", "dimension 3")
    assert not (tmp_path / "a.ark").exists()
