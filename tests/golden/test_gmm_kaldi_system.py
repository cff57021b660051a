"""Kaldi's systems come in, go out, and are the same files; others can read them."""

import json
import subprocess
import sys

import numpy as np
import pytest
from fixtures.data_dir import write_mfcc_store
from fixtures.kaldi_exp import (
    FEATURES,
    SYSTEMS,
    make_exp,
    make_frames,
    make_graph_dir,
    read_table,
)
from reference.graphs import read_graphs

from latflow.cli.main import main
from latflow.decode.lattices import decode_lattices
from latflow.decode.options import SearchOptions
from latflow.features.frames import FrameStore
from latflow.gmm.apply import write_features, write_log_likes
from latflow.gmm.kaldi_export import export_system, export_training_graphs
from latflow.gmm.kaldi_import import (
    import_alignments,
    import_graph,
    import_system,
)
from latflow.gmm.model import GmmSystem
from latflow.gmm.source import SpeakerTransforms
from latflow.kaldi.io import read_int_vectors, read_matrices, write_int_vectors
from latflow.lang.directory import Lang
from latflow.lang.prepare import import_lang
from latflow.lattice.best_path import best_path
from latflow.lattice.io.archives import read_lattices
from latflow.ledger import read_ledger
from latflow.parts import SetJob

SAME_FILES = (
    "final.mdl",
    "tree",
    "final.mat",
    "final.alimdl",
    "full.mat",
    "phones.txt",
)


@pytest.fixture(scope="module")
def frames(golden, tmp_path_factory):
    return make_frames(golden, tmp_path_factory.mktemp("frames") / "test")


@pytest.fixture(scope="module", params=SYSTEMS)
def there_and_back(request, golden, frames, tmp_path_factory):
    """(Kaldi's directory, our experiment, the directory that we write)."""
    folder = tmp_path_factory.mktemp(request.param)
    name = request.param
    exp = make_exp(golden, name, folder / "exp" / name)
    ours, back = folder / "results", folder / "back" / name
    system = ours / "gmm" / name
    import_lang(golden / "lang", ours / "lang")
    import_system(exp, ours / "lang", system, features=FEATURES)
    options = {"frames": frames, "num_jobs": 2}
    if (exp / "ali.1.gz").exists():
        aligned = ours / "align" / name / "train"
        import_alignments(
            exp, system, ours / "lang", frames, aligned, max_skipped_fraction=0.0
        )
        options["alignments"] = aligned / "ali.ark"
        if name == "tri3b":
            options["transforms"] = aligned / "trans.ark"
    if name in ("mono", "tri1"):
        source = make_graph_dir(golden, name, exp / "graph")
        graph = ours / "graph" / name / "HCLG.fst"
        import_graph(source, system, ours / "lang", graph)
        options["graph"] = graph
    export_system(system, ours / "lang", back, **options)
    return exp, ours, back


def test_models_and_matrices_come_back_byte_for_byte(there_and_back):
    exp, _, back = there_and_back
    for name in SAME_FILES:
        assert (back / name).exists() == (exp / name).exists()
        if (exp / name).exists():
            assert (back / name).read_bytes() == (exp / name).read_bytes(), name


def test_options_say_the_same_in_words(there_and_back):
    exp, _, back = there_and_back
    line = "--norm-means=true --norm-vars=false\n"
    assert (back / "cmvn_opts").read_text() == line
    if (exp / "final.mat").exists():
        line = (exp / "splice_opts").read_text()
        assert (back / "splice_opts").read_text() == line
        assert not (back / "delta_opts").exists()
    else:
        line = "--delta-order=2 --delta-window=2\n"
        assert (back / "delta_opts").read_text() == line
    assert (back / "num_jobs").read_text() == "2\n"


def test_alignments_and_transforms_come_back_in_the_pieces_of_kaldi(there_and_back):
    exp, ours, back = there_and_back
    for piece in exp.glob("ali.*.gz"):
        theirs, mine = (list(read_int_vectors(p)) for p in (piece, back / piece.name))
        assert [u for u, _ in mine] == [u for u, _ in theirs]
        for (_, one), (_, other) in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(one, other)
    for piece in exp.glob("trans.[12]"):
        theirs, mine = (dict(read_matrices(p)) for p in (piece, back / piece.name))
        assert mine.keys() == theirs.keys()
        for speaker, matrix in theirs.items():
            np.testing.assert_array_equal(mine[speaker], matrix)
    merged = ours / "align" / exp.name / "train"
    if merged.exists():
        assert len(list(exp.glob("ali.*.gz"))) == 2
        assert len(dict(read_int_vectors(merged / "ali.ark"))) == 6
        facts = json.loads((merged / "statistics.json").read_text())
        assert (facts["num_aligned"], facts["num_frames"]) == (6, 1758)
        assert facts["phones"]
        assert not list(read_ledger(merged / "ledger.jsonl"))


def test_the_graph_comes_back_byte_for_byte(there_and_back, golden):
    exp, ours, back = there_and_back
    if not (exp / "graph").exists():
        assert not (back / "graph").exists()
        return
    for name in ("HCLG.fst", "words.txt", "phones.txt", "num_pdfs"):
        assert (back / "graph" / name).read_bytes() == (
            exp / "graph" / name
        ).read_bytes(), name
    assert (back / "graph/phones/silence.csl").is_file()
    model = GmmSystem.load(ours / "gmm" / exp.name).model.transitions
    first = (back / "graph/disambig_tid.int").read_text().split()[0]
    assert int(first) == model.num_transition_ids + 1
    facts = json.loads((ours / "graph" / exp.name / "HCLG.json").read_text())
    info = (golden / f"graph/HCLG_{exp.name}.info").read_text()
    assert str(facts["arcs"]) in info


def test_the_language_comes_back_byte_for_byte(there_and_back, golden):
    _, ours, back = there_and_back
    for path in sorted((golden / "lang").rglob("*.*")):
        name = path.relative_to(golden / "lang")
        if path.is_file() and name.name not in {"lexicon.txt", "G.fst"}:
            if name.parts == ("silence.csl",):
                continue
            assert (back / "lang" / name).read_bytes() == path.read_bytes(), name
    for name in ("G.fst", "lexicon.txt"):
        path = ours / "lang" / name
        assert path.read_bytes() == (golden / "lang" / name).read_bytes()
    again = Lang.load(back / "lang")
    assert (back / "lang/oov.int").read_text() == f"{again.oov_id}\n"


@pytest.mark.parametrize("name", ["mono", "tri1"])
def test_the_command_writes_kaldis_log_likelihoods(golden, frames, tmp_path, name):
    exp = make_exp(golden, name, tmp_path / "exp")
    import_system(exp, golden / "lang", tmp_path / name, features=FEATURES)
    out, scp = tmp_path / "loglikes.ark", tmp_path / "loglikes.scp"
    words = ["loglikes", tmp_path / name, frames, out, "--scp", scp, "--threads", 2]
    assert main([str(word) for word in words]) == 0
    expected = dict(read_matrices(golden / f"align/loglikes_{name}.ark"))
    found = dict(read_matrices(out))
    assert list(found) == list(expected)
    for utterance, matrix in expected.items():
        np.testing.assert_allclose(found[utterance], matrix, atol=2e-4, rtol=2e-5)
    write_log_likes(tmp_path / name, frames, tmp_path / "one.ark", threads=1)
    assert (tmp_path / "one.ark").read_bytes() == out.read_bytes()
    for line in scp.read_text().splitlines():
        utterance, place = line.split()
        path, at = place.rsplit(":", 1)
        assert path == str(out)
        key = out.read_bytes()[: int(at)].endswith(f"{utterance} ".encode())
        assert key
        assert out.read_bytes()[int(at) :].startswith(b"\0BFM ")


def test_features_are_those_of_kaldis_lda_and_mllt(golden, frames, tmp_path):
    exp = make_exp(golden, "tri2b", tmp_path / "exp")
    import_system(exp, golden / "lang", tmp_path / "tri2b", features=FEATURES)
    write_features(tmp_path / "tri2b", frames, tmp_path / "feats.ark")
    path = golden / "transform/lda_mllt_feats_cmvn.txt.gz"
    found = dict(read_matrices(tmp_path / "feats.ark"))
    for utterance, matrix in read_matrices(path):
        np.testing.assert_allclose(found.pop(utterance), matrix, atol=3e-4)
    assert not found


def test_an_adapted_system_is_asked_with_and_without_transforms(
    golden, frames, tmp_path
):
    exp = make_exp(golden, "tri3b", tmp_path / "exp")
    import_system(exp, golden / "lang", tmp_path / "tri3b", features=FEATURES)
    transforms = SpeakerTransforms.load(golden / "transform/fmllr_per_speaker.txt")
    transforms.save(tmp_path / "trans.ark")
    store, system = FrameStore.load(frames), GmmSystem.load(tmp_path / "tri3b")
    write_log_likes(tmp_path / "tri3b", frames, tmp_path / "plain.ark")
    write_log_likes(
        tmp_path / "tri3b",
        frames,
        tmp_path / "adapted.ark",
        transforms=tmp_path / "trans.ark",
    )
    plain, adapted = (
        dict(read_matrices(tmp_path / f"{name}.ark")) for name in ("plain", "adapted")
    )
    for u, utterance in enumerate(store.utt_ids):
        features = system.transform(store.frames(u))
        wanted = system.alignment_model.gmms.log_likelihoods(features)
        np.testing.assert_array_equal(plain[utterance], wanted)
        features = transforms.apply(store.speakers[u], features)
        wanted = system.model.gmms.log_likelihoods(features)
        np.testing.assert_allclose(adapted[utterance], wanted, atol=1e-4, rtol=1e-5)
    # what fMLLR maximizes: likelihood of the aligned states and log-determinant
    pdf = system.model.transitions.pdf
    for utterance, ids in read_int_vectors(golden / "transform/ali_tri3b_pass1.txt"):
        u = store.position(utterance)
        features = system.transform(store.frames(u))
        before = system.model.gmms.log_likelihoods(features)
        matrix = transforms.matrices[store.speakers[u]]
        gain = (adapted[utterance] - before)[np.arange(len(ids)), pdf[ids]]
        assert gain.mean() + np.linalg.slogdet(matrix[:, :-1])[1] > 0


def test_training_graphs_are_kaldis(golden, frames, tmp_path):
    exp = make_exp(golden, "tri1", tmp_path / "exp")
    system, back = tmp_path / "tri1", tmp_path / "back"
    import_system(exp, golden / "lang", system, features=FEATURES)
    export_system(system, golden / "lang", back, frames=frames, num_jobs=3)
    export_training_graphs(system, golden / "lang", frames, back)
    assert sorted(p.name for p in back.glob("fsts*")) == [
        f"fsts.{job}.gz" for job in (1, 2, 3)
    ]
    found = [g for job in (1, 2, 3) for g in read_graphs(back / f"fsts.{job}.gz")]
    theirs = read_graphs(golden / "align/train_graphs_tri1.fsts.gz")
    for (utterance, graph), (wanted, expected) in zip(found, theirs, strict=True):
        assert utterance == wanted
        assert graph.num_states == expected.num_states
        assert sorted(graph.ilabel) == sorted(expected.ilabel)
        assert sorted(graph.olabel) == sorted(expected.olabel)
        weights = (np.sort(g.weight) for g in (graph, expected))
        np.testing.assert_allclose(*weights, atol=1e-5)


PEERS = """
import sys
import kaldi_hmm_gmm  # before kaldifst
import kaldi_decoder, kaldifst, kaldi_native_io as kio
import json, numpy as np

back, likes, scp, pdf_of = sys.argv[1:]
pdf_of = np.array(json.loads(pdf_of))
found = {}
ali = kio.SequentialInt32VectorReader(f"ark:gunzip -c {back}/ali.1.gz {back}/ali.2.gz|")
found["ali"] = {key: value for key, value in ali}
fsts = kaldifst.SequentialVectorFstReader(f"ark:gunzip -c {back}/fsts.1.gz|")
found["fsts"] = {}
while not fsts.done:
    found["fsts"][fsts.key] = fsts.value.num_states
    fsts.next()
fst = kaldifst.StdConstFst.read(f"{back}/graph/HCLG.fst")
options = kaldi_decoder.FasterDecoderOptions(beam=13, max_active=7000)
decoder = kaldi_decoder.FasterDecoder(fst, options)
found["words"] = {}
places = kio.RandomAccessFloatMatrixReader(f"scp:{scp}")
with kio.SequentialFloatMatrixReader(f"ark:{likes}") as reader:
    for key, matrix in reader:
        matrix = np.array(matrix)
        assert np.array_equal(np.array(places[key]), matrix)
        by_id = np.float32(0.1) * matrix[:, pdf_of[1:]]
        decoder.decode(kaldi_decoder.DecodableCtc(by_id))
        _, best = decoder.get_best_path()
        *_, words, _ = kaldifst.get_linear_symbol_sequence(best)
        found["words"][key] = list(words)
print(json.dumps(found))
"""


def test_kaldis_own_code_reads_and_decodes_what_is_written(golden, frames, tmp_path):
    """The wheels hold Kaldi's readers and decoder, compiled by others."""
    exp = make_exp(golden, "tri1", tmp_path / "exp")
    system, back = tmp_path / "tri1", tmp_path / "back"
    import_system(exp, golden / "lang", system, features=FEATURES)
    graph = tmp_path / "HCLG.fst"
    graph_dir = make_graph_dir(golden, "tri1", exp / "graph")
    import_graph(graph_dir, system, golden / "lang", graph)
    aligned = list(read_int_vectors(golden / "align/ali_tri1.txt"))
    write_int_vectors(tmp_path / "ali.ark", aligned)
    export_system(
        system,
        golden / "lang",
        back,
        graph=graph,
        alignments=tmp_path / "ali.ark",
        frames=frames,
        num_jobs=2,
    )
    export_training_graphs(system, golden / "lang", frames, back)
    likes, scp = tmp_path / "likes.ark", tmp_path / "likes.scp"
    write_log_likes(system, frames, likes, scp=scp)
    pdf_of = GmmSystem.load(system).model.transitions.pdf.tolist()
    done = subprocess.run(
        [sys.executable, "-c", PEERS, str(back), likes, scp, json.dumps(pdf_of)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ali"] == {u: ids.tolist() for u, ids in aligned}
    words = read_int_vectors(golden / "lattice/best_words_beam13.int")
    assert found["words"] == {u: ids.tolist() for u, ids in words}
    ours = {u: g.num_states for u, g in read_graphs(back / "fsts.1.gz")}
    assert found["fsts"] == ours
    assert len(ours) == 3


def test_the_imported_system_recognizes_the_digits_as_kaldi_does(
    golden, corpora, repository, tmp_path
):
    """One error in 297 words, at the scale that was Kaldi's best."""
    data = corpora / "digits/test"
    exp = make_exp(golden, "tri1", tmp_path / "exp/tri1")
    make_graph_dir(golden, "tri1", exp / "graph")
    results = tmp_path / "results"
    words = ["import-kaldi", "system", exp, golden / "lang", results]
    words += ["--graph", exp / "graph", "--configfile"]
    words += [repository / "config/config.yaml"]
    assert main([str(word) for word in words]) == 0
    decode_lattices(
        SetJob(
            frames_dir=write_mfcc_store(tmp_path / "frames", data),
            model_dir=results / "gmm/tri1",
            lang_dir=results / "lang",
            out_dir=tmp_path / "decoded",
            threads=1,
            max_skipped_fraction=0.0,
        ),
        graph=results / "graph/tri1/HCLG.fst",
        options=SearchOptions(acoustic_scale=0.1),
    )
    names = Lang.load(results / "lang").words
    texts = {u: text.split() for u, text in read_table(data / "text").items()}
    errors = 0
    for utterance, lattice in read_lattices(tmp_path / "decoded/lattices.ark"):
        path = best_path(lattice, lm_scale=7.0)  # LMWT 7, acoustic scale 1
        found = [names[word] for word in path.words.tolist()]
        wanted = texts.pop(utterance)
        assert len(found) == len(wanted)
        errors += sum(a != b for a, b in zip(found, wanted, strict=True))
    assert not texts
    assert errors == 1
