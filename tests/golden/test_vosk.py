"""Exported networks in Kaldi's own online decoder, `libvosk`: the same words, and the
same log-likelihood of the best path; with i-vectors too.

Vosk is run in a process of its own: its OpenFst and that of kaldifst do not mix.
"""

import dataclasses
import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from fixtures.vosk_program import recognize_with_vosk
from reference.kaldi_nnet3 import HandWritten, xconfig_lines
from reference.vosk_ivectors import vosk_frames

from latflow.cli.main import main
from latflow.decode.decoder import LatticeDecoder
from latflow.decode.options import NetworkScoreOptions, SearchOptions
from latflow.decode.vosk import VoskFiles, export_vosk
from latflow.errors import UserError
from latflow.features.cmvn import cmvn_statistics, normalize
from latflow.features.cmvn_options import OnlineCmvn
from latflow.features.frames import FrameWriter
from latflow.features.front_end import KaldiFrontEnd
from latflow.features.options import FrontEndOptions
from latflow.fst.graph import Graph
from latflow.gmm.ivector import MODEL, Extractor, IvectorModel
from latflow.gmm.ivector_training import train_ivectors
from latflow.gmm.kaldi_ivector import write_ivectors
from latflow.gmm.model import DiagGmms
from latflow.gmm.options import IvectorOptions
from latflow.graphs.hclg import build_hclg, load_model
from latflow.graphs.options import ChainGraphOptions
from latflow.hmm.transition_model import TransitionModel
from latflow.kaldi.io import (
    KaldiWriter,
    read_matrices,
    write_matrices,
    write_matrix,
)
from latflow.lang.directory import Lang
from latflow.lattice.best_path import Scales, best_paths
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import load_model as load_network
from latflow.nnet.model_dir import save_model
from latflow.nnet.network import Network
from latflow.nnet.normalization import Normalizer
from latflow.serving.package import Model
from latflow.serving.packaging import PackageFiles, PackageOptions, write_package
from latflow.serving.vosk_import import import_vosk
from latflow.training.forward import ScoreFile, forward

RATE = 8000
UTTERANCES = ("george-test-0000", "lucas-test-0001", "theo-test-0002")
SEARCH = SearchOptions(beam=15.0, lattice_beam=8.0)
GRAPH_SCALE = 0.9  # by which Vosk multiplies the graph's costs before its best path
# Kaldi draws the noise of dither anew each time.
HIRES = {"num_mel_bins": 40, "num_ceps": 40, "dither": 0.0}
FRONT_ENDS = {
    "tdnnf_chain_small": FrontEndOptions(**HIRES),
    "tdnnf_chain_streaming": FrontEndOptions(**HIRES, snip_edges=False, high_freq=-400),
    "odd": FrontEndOptions(type="fbank", num_mel_bins=30, use_energy=True, dither=0.0),
}
# Each other layer that can be written, and functions.
ODD = {
    "edges": "repeat",
    "layers": {
        "warm": {"class": "specaugment"},
        "dense": {"class": "linear", "size": 24, "activation": "sigmoid"},
        "norm": {"class": "batch_norm"},
        "every": {"class": "subsample", "factor": 3},
        "past": {
            "class": "tdnn",
            "size": 20,
            "offsets": [-2, 1],
            "activation": "tanh",
            "from": "every",
        },
        "both": {"class": "concat", "from": ["past", "every"]},
        "fact": {"class": "tdnnf", "size": 32, "bottleneck": 8, "bypass": 0.0},
        "rect": {"class": "activation", "function": "relu"},
        "drop": {"class": "dropout"},
        "join": {"class": "splice", "left": 0, "right": 2, "from": ["drop", "both"]},
        "output": {"class": "output", "loss": "lfmmi"},
    },
}


@pytest.fixture(scope="module")
def audio(corpora):
    if importlib.util.find_spec("vosk") is None:
        pytest.skip("vosk is not installed")
    return [corpora / f"digits/test/audio/{name}.flac" for name in UTTERANCES]


@pytest.fixture(scope="module", params=list(FRONT_ENDS))
def system(request, golden, lang, audio, repository, tmp_path_factory):
    """A folder of results with a network that has heard nothing but its statistics."""
    results = tmp_path_factory.mktemp("results")
    features = FRONT_ENDS[request.param]
    if request.param == "odd":
        description = NetworkDescription.from_config(ODD)
    else:
        presets = repository / "config/networks"
        description = NetworkDescription.load(presets / f"{request.param}.yaml")
    frames = [features_of(features, path) for path in audio]
    make_system(results, golden, lang, description, frames)
    return results, features


def make_system(results, golden, lang, description, frames):
    """Write network, tree, language and graph."""
    folder, dim = results / "nnet/chain", frames[0].shape[1]
    normalizer = Normalizer.estimate("global", Store(frames))
    classes = {"output": 56, "output_xent": 56, "pdf": 56}
    network = Network(description, dim, classes, seed=4).train()
    torch.manual_seed(5)
    for found in frames:
        batch = torch.from_numpy(normalizer(found))[None]
        for _ in range(5):
            network(batch, torch.tensor([batch.shape[1]]))
    with torch.no_grad():  # so that words differ
        network.state_dict()["body.layers.output.map.weight"].mul_(8.0)
    meta = {"scores": "log_likelihoods", "normalization": normalizer.to_meta()}
    save_model(folder, network, description, None, meta)
    shutil.copyfile(golden / "chain/tree", folder / "tree")
    shutil.copyfile(golden / "chain/0.trans_mdl", folder / "final.mdl")
    shutil.copytree(lang.folder, results / "lang")
    graph = build_hclg(
        lang.folder, lang.folder / "G.fst", *load_model(folder), ChainGraphOptions()
    )
    graph.save(results / "graph/chain/HCLG.fst", is_aligned=True)


class Store:
    """Frames that statistics are taken of."""

    def __init__(self, frames):
        self._frames, self.dim = frames, frames[0].shape[1]

    def __len__(self):
        return len(self._frames)

    def frames(self, i):
        return self._frames[i]


def features_of(options, path):
    """Frames of a file."""
    samples, rate = soundfile.read(path, dtype="float32")
    assert rate == RATE
    return KaldiFrontEnd(options, rate).extract(samples)


def ours(results, lang, inputs):
    """(words, log-likelihood) of frames, the first so many of whose scores count."""
    model = load_network(results / "nnet/chain")
    transitions = TransitionModel.load(results / "nnet/chain/final.mdl")
    normalizer = Normalizer.from_meta(model.meta["normalization"])
    decoder = LatticeDecoder(
        Graph.load(results / "graph/chain/HCLG.fst"),
        transitions.pdf,
        beam=SEARCH.beam,
        lattice_beam=SEARCH.lattice_beam,
        max_active=SEARCH.max_active,
        min_active=SEARCH.min_active,
    )
    for frames, num_scores in inputs:
        batch = torch.from_numpy(normalizer(frames))[None]
        scores, _ = model.log_likelihoods(batch, torch.tensor([len(frames)]))
        scores = scores[0, :num_scores].numpy()
        lattice = decoder.decode(scores, acoustic_scale=1.0).lattice
        best = best_paths(lattice, [Scales(lm_scale=GRAPH_SCALE)])[0]
        words = " ".join(lang.words[word] for word in best.words)
        yield words, -GRAPH_SCALE * best.graph_cost - best.acoustic_cost


def vosks(model, audio):
    """(words, log-likelihood) of each file."""
    for best in recognize_with_vosk(model, audio, piece=1600):
        yield best["text"].strip(), best["confidence"]


def export(results, features, out, cmvn=None, **more):
    """Write the folder without a recipe."""
    export_vosk(
        VoskFiles(
            model_dir=results / "nnet/chain",
            lang_dir=results / "lang",
            graph=results / "graph/chain/HCLG.fst",
            **more,
        ),
        out_dir=out,
        features=features,
        sample_rate=RATE,
        search=SEARCH,
        cmvn=cmvn,
    )


def test_vosk_recognizes_the_same(system, lang, audio, tmp_path):
    results, features = system
    model = tmp_path / "model"
    export(results, features, model)
    inputs = [(features_of(features, path), None) for path in audio]
    check_the_same(list(vosks(model, audio)), list(ours(results, lang, inputs)))


@pytest.mark.slow
def test_vosk_normalizes_online_as_we_do(
    golden, lang, audio, repository, tmp_path, capsys
):
    features, cmvn = FRONT_ENDS["tdnnf_chain_small"], OnlineCmvn()
    # and one longer than the window, whose first frames leave it
    waves = [soundfile.read(path, dtype="int16")[0] for path in audio]
    soundfile.write(tmp_path / "long.flac", np.concatenate(waves * 6), RATE)
    audio = [*audio, tmp_path / "long.flac"]
    plain = [features_of(features, path) for path in audio]
    assert len(plain[-1]) > cmvn.window + 100
    # no more like these than a training set is
    stats = cmvn_statistics(np.concatenate(plain) + np.float32(4.0))
    frames = [normalize(found, cmvn, stats) for found in plain]
    results = tmp_path / "results"
    description = NetworkDescription.load(
        repository / "config/networks/tdnnf_chain_small.yaml"
    )
    make_system(results, golden, lang, description, frames)
    training = results / "streams/hires/frames/train"
    training.mkdir(parents=True)
    write_matrices(training / "cmvn.ark", [("global", stats)])
    recipe = recipe_of(tmp_path / "a.yaml", results, features, cmvn={"type": "online"})
    model = tmp_path / "model"
    told = ["export-kaldi", "vosk", results, "chain", model, "--configfile"]
    assert main([*map(str, told), str(recipe)]) == 0, capsys.readouterr().err
    theirs = list(vosks(model, audio))
    check_the_same(theirs, list(ours(results, lang, [(f, None) for f in frames])))
    # without the statistics it is another model
    (model / "am/global_cmvn.stats").rename(tmp_path / "stats")
    others = list(vosks(model, audio))
    assert abs(others[0][1] - theirs[0][1]) > 1.0
    (tmp_path / "stats").rename(model / "am/global_cmvn.stats")
    # and the way back
    import_vosk(model, tmp_path / "again", "chain")
    package = Model.load(tmp_path / "again/package/chain")
    assert (package.info.cmvn, package.is_streaming) == (cmvn, True)
    stream = package.front_end()
    samples = waves[0].astype(np.float32) / 32768
    found = [stream.accept(piece) for piece in np.array_split(samples, 7)]
    found = np.concatenate([*found, stream.finish()])
    np.testing.assert_allclose(found, frames[0], atol=1e-3)
    # what Vosk computes otherwise
    for stream, said in (
        ({"type": "online", "window": 300}, "window: 300, and Vosk has 600 built in"),
        ({"type": "online", "norm_vars": True}, "norm_vars: true, and Vosk has false"),
    ):
        recipe = recipe_of(tmp_path / "b.yaml", results, features, cmvn=stream)
        told[4] = tmp_path / "other"
        assert main([*map(str, told), str(recipe)]) == 1
        assert said in capsys.readouterr().err


def check_the_same(theirs, mine):
    """Words are equal and differ between files; log-likelihoods are close."""
    assert [words for words, _ in theirs] == [words for words, _ in mine]
    assert len({words for words, _ in mine} - {""}) > 1
    for (_, score), (_, expected) in zip(theirs, mine, strict=True):
        assert score == pytest.approx(expected, rel=1e-4, abs=2e-2)


def recipe_of(path, results, features, **stream):
    """Write a recipe of the system."""
    hires = {**features.values(), "sample_rate": RATE, "cmvn": {"type": "none"}}
    chain = {
        "type": "lfmmi",
        "network": str(results / "nnet/chain/network.yaml"),
        "alignments": "mono",
        "features": "hires",
    }
    data = {"type": "kaldi", "path": "data/any"}
    recipe = {
        "experiment": "mine",
        "corpus": {"train": data, "dev": data, "test": {"test": data}},
        "lang": {"lexicon": "lexicon.txt"},
        "lm": {"type": "uniform"},
        "gmm": {"systems": {"mono": {"type": "mono"}}},
        "decode": SEARCH.values(),
        "nnet": {
            "features": {"hires": {**hires, **stream}},
            "systems": {"chain": chain},
        },
    }
    path.write_text(json.dumps(recipe))
    return path


def test_the_command_does_as_the_recipe_says(system, tmp_path, capsys):
    results, features = system
    recipe, out = recipe_of(tmp_path / "a.yaml", results, features), tmp_path / "out"
    told = ["export-kaldi", "vosk", str(results), "chain", str(out), "--configfile"]
    assert main([*told, str(recipe)]) == 0
    export(results, features, tmp_path / "expected")
    for path in (tmp_path / "expected").rglob("*"):
        if path.is_file():
            found = out / path.relative_to(tmp_path / "expected")
            assert found.read_bytes() == path.read_bytes(), path.name
    assert main([*told, str(recipe)]) == 1
    assert "not empty" in capsys.readouterr().err
    by_speaker = recipe_of(
        tmp_path / "b.yaml", results, features, cmvn={"type": "speaker"}
    )
    told[4] = str(tmp_path / "other")
    assert main([*told, str(by_speaker)]) == 1
    assert "cmvn of type speaker" in capsys.readouterr().err


@pytest.mark.slow
def test_an_imported_folder_recognizes_the_same(system, lang, audio, tmp_path, capsys):
    results, features = system
    model, again = tmp_path / "model", tmp_path / "again"
    export(results, features, model)
    told = ["import-kaldi", "vosk", model, tmp_path / "results", "--name", "chain"]
    graph = (model / "graph/HCLG.fst").read_bytes()
    (model / "graph/HCLG.fst").write_bytes(graph[:100])
    before = sorted(tmp_path.iterdir())
    assert main([str(word) for word in told]) == 1
    assert sorted(tmp_path.iterdir()) == before  # no part of a system
    (model / "graph/HCLG.fst").write_bytes(graph)
    assert main([str(word) for word in told]) == 0, capsys.readouterr().err
    system_dir = tmp_path / "results/nnet/chain"
    package = Model.load(tmp_path / "results/package/chain")
    assert (package.info.front_end, package.sample_rate) == (features, RATE)
    assert package.info.search == SEARCH
    assert package.is_streaming
    # the same words, of Vosk and of the package
    theirs = [words for words, _ in vosks(model, audio)]
    texts = tmp_path / "texts"
    told = ["transcribe", tmp_path / "results/package/chain", *audio, "--out", texts]
    assert main([*map(str, told), "--segmentation", "none"]) == 0
    ours = [(texts / f"{path.stem}.txt").read_text().strip() for path in audio]
    assert ours == theirs
    # the same scores of frames
    with FrameWriter(tmp_path / "frames", dim=features.dim) as writer:
        for path in audio:
            writer.append(path.stem, "s", "", features_of(features, path))
    scores = []
    for number, folder in enumerate((results / "nnet/chain", system_dir)):
        forward(
            tmp_path / "frames",
            folder,
            ScoreFile(tmp_path / f"{number}.ark"),
            device="cpu",
        )
        scores.append(dict(read_matrices(tmp_path / f"{number}.ark")))
    for path in audio:
        expected, found = (matrices[path.stem] for matrices in scores)
        np.testing.assert_allclose(
            found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max()
        )
    # exported again, the same bytes
    export_vosk(
        VoskFiles(
            model_dir=system_dir,
            lang_dir=results / "lang",
            graph=tmp_path / "results/graph/chain/HCLG.fst",
        ),
        out_dir=again,
        features=package.info.front_end,
        sample_rate=package.sample_rate,
        search=package.info.search,
        acoustic_scale=package.acoustic_scale,
    )
    names = sorted(path.relative_to(model) for path in model.rglob("*.*"))
    assert Path("am/final.mdl") in names
    for name in names:
        if (model / name).is_file():
            assert (again / name).read_bytes() == (model / name).read_bytes(), name


def write_model(model, results, written, features, audio):
    """Write a network of Kaldi's components, with statistics of what is said."""
    matrix, bias = written.values["idct"]
    frames = [features_of(features, path) @ matrix.T + bias for path in audio]
    mean, variance = written.values["batchnorm0"]
    mean[...] = np.concatenate(frames).mean(0)
    variance[...] = np.concatenate(frames).var(0)
    matrix, bias = written.values["output.affine"]
    matrix *= 8.0
    bias[...] = 0.0
    with KaldiWriter.open(model / "am/final.mdl") as writer:
        load_model(results / "nnet/chain")[1].write(writer)
        writer.write_bytes(written.raw())


@pytest.mark.slow
def test_components_of_kaldis_training_are_read_as_kaldi_reads_them(
    system, lang, audio, tmp_path
):
    results, features = system
    model, again = tmp_path / "model", tmp_path / "results"
    export(results, features, model)
    written = HandWritten(*xconfig_lines(num_pdfs=56, dim=features.dim))
    write_model(model, results, written, features, audio)
    (model / "am/tree").unlink()  # Vosk needs none
    import_vosk(model, again, "chain", lang_dir=results / "lang")
    inputs = [(features_of(features, path), None) for path in audio]
    mine, theirs = list(ours(again, lang, inputs)), list(vosks(model, audio))
    assert [words for words, _ in theirs] == [words for words, _ in mine]
    assert all(words for words, _ in mine)
    for (_, score), (_, expected) in zip(theirs, mine, strict=True):
        assert score == pytest.approx(expected, rel=1e-4, abs=2e-2)
    # without a lang directory, and with Kaldi's list of the phones of silence
    conf = model / "conf/model.conf"
    lines = conf.read_text().splitlines(keepends=True)
    conf.write_text("".join(line for line in lines if "silence-phones" not in line))
    (model / "graph/phones/silence.csl").write_text("1:2:3:4:5\n")
    import_vosk(model, tmp_path / "alone", "chain")
    assert Lang.load(tmp_path / "alone/lang").silence_phones == [1, 2, 3, 4, 5]


IVECTORS = IvectorOptions(features="hires", dim=6, num_gaussians=8, num_iterations=3)


@pytest.fixture(scope="module")
def with_ivectors(golden, lang, audio, corpora, repository, tmp_path_factory):
    """A system whose network takes i-vectors of an extractor trained on little."""
    results = tmp_path_factory.mktemp("results")
    features, extractor = FRONT_ENDS["tdnnf_chain_small"], results / "ivectors/hires_iv"
    with FrameWriter(results / "frames", dim=40, frame_shift=0.01) as writer:
        for path in sorted((corpora / "digits/test/audio").glob("*.flac"))[:12]:
            writer.append(path.stem, path.stem, "", features_of(features, path))
    train_ivectors(results / "frames", extractor, options=IVECTORS, seed=1)
    model = IvectorModel.load(extractor / "extractor.npz")
    frames = []
    for path in audio:
        found = features_of(features, path)
        spread = np.repeat(model.online(found), IVECTORS.period, axis=0)[: len(found)]
        frames.append(np.hstack((found, spread)))
    presets = repository / "config/networks"
    description = NetworkDescription.load(presets / "tdnnf_chain_small.yaml")
    make_system(results, golden, lang, description, frames)
    return results, features


def num_ready(features, path):
    """Frames that are there after each 0.2 s of a file."""
    samples, _ = soundfile.read(path, dtype="float32")
    front_end = KaldiFrontEnd(features, RATE)
    ends = [*range(RATE // 5, len(samples), RATE // 5), len(samples)]
    return [len(front_end.extract(samples[:end])) for end in ends]


def with_cmvn(results, features, audio, path):
    """Write an extractor whose Gaussians are chosen on frames with online CMVN."""
    model = IvectorModel.load(results / "ivectors/hires_iv/extractor.npz")
    frames = np.concatenate([features_of(features, file) for file in audio])
    stats = cmvn_statistics(frames + np.float32(1.0))  # of more than these
    # the mixture is as far away as the frames are
    projection = model.projection
    mean = np.tile(stats[0, :-1] / stats[0, -1], 2 * projection.context + 1)
    ubm = DiagGmms.from_moments(
        model.ubm.begin, model.ubm.weights,
        model.ubm.means - projection.matrix @ mean, model.ubm.variances,
    )  # fmt: skip
    changes = {"ubm": ubm, "cmvn": OnlineCmvn(), "cmvn_stats": stats}
    dataclasses.replace(model, **changes).save(path)


@pytest.fixture(params=["plain", "online CMVN"])
def extractor(request, with_ivectors, audio, tmp_path):
    """An extractor for the system, `extractor.npz`."""
    results, features = with_ivectors
    if request.param == "plain":
        return results / "ivectors/hires_iv/extractor.npz"
    with_cmvn(results, features, audio, tmp_path / "extractor.npz")
    return tmp_path / "extractor.npz"


def test_vosk_computes_our_ivectors(with_ivectors, extractor, lang, audio, tmp_path):
    results, features = with_ivectors
    path, folder = extractor, tmp_path / "model"
    export(results, features, folder, ivectors=path)
    without_silence(folder)
    right = load_network(results / "nnet/chain").network.context[1]
    inputs = inputs_of_vosk(IvectorModel.load(path), features, audio, right)
    theirs, mine = list(vosks(folder, audio)), list(ours(results, lang, inputs))
    check_the_same(theirs, mine)
    # The i-vectors matter: without them the log-likelihoods are others.
    for frames, _ in inputs:
        frames[:, features.dim :] = 0.0
    for (_, score), (_, other) in zip(theirs, ours(results, lang, inputs), strict=True):
        assert abs(score - other) > 1.0


def test_an_imported_folder_has_the_same_ivectors(
    with_ivectors, extractor, lang, audio, tmp_path, capsys
):
    results, features = with_ivectors
    folder, new = tmp_path / "model", tmp_path / "results"
    export(results, features, folder, ivectors=extractor)
    told = ["import-kaldi", "vosk", folder, new, "--name", "chain"]
    assert main([str(word) for word in told]) == 0, capsys.readouterr().err
    # the same numbers
    model = IvectorModel.load(extractor)
    found = IvectorModel.load(new / "ivectors/chain/extractor.npz")
    assert found.cmvn == model.cmvn
    for part in ("matrices", "inverses"):
        expected = getattr(model.extractor, part)
        np.testing.assert_allclose(getattr(found.extractor, part), expected, rtol=1e-12)
    assert found.extractor.offset == model.extractor.offset
    np.testing.assert_array_equal(found.ubm.factors, model.ubm.factors)
    # the same i-vectors, also of samples that arrive in pieces
    package = Model.load(new / "package/chain")
    assert package.is_streaming
    inputs = []
    for file in audio:
        frames, (samples, _) = features_of(features, file), soundfile.read(file)
        one, other = (
            np.repeat(m.online(frames), model.options.period, axis=0)[: len(frames)]
            for m in (model, found)
        )
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-3)
        inputs.append((np.hstack((frames, one)), None))
        stream = package.front_end()
        pieces = np.array_split(samples.astype(np.float32), 9)
        got = [*(stream.accept(piece) for piece in pieces), stream.finish()]
        np.testing.assert_allclose(np.concatenate(got), inputs[-1][0], atol=1e-2)
    # the same log-likelihoods and words
    check_same_scores((results, new), [frames for frames, _ in inputs])
    expected = list(ours(results, lang, inputs))
    check_the_same(expected, list(ours(new, lang, inputs)))
    # Vosk weighs silence less, and so does the imported package.
    options = model.options.replace(silence_weight=1e-3)
    dataclasses.replace(model, options=options).save(tmp_path / "weighing.npz")
    packages = [new / "package/chain"]
    for number, ivectors in enumerate((extractor, tmp_path / "weighing.npz")):
        packages.append(tmp_path / f"package{number}")
        write_package(
            PackageFiles(
                model_dir=results / "nnet/chain",
                graph=results / "graph/chain/HCLG.fst",
                lang_dir=new / "lang",
                scales=new / "nnet/chain/scales.json",
                ivectors=ivectors,
            ),
            out_dir=packages[-1],
            options=PackageOptions(
                experiment="mine",
                name="chain",
                kind="lfmmi",
                front_end=features,
                search=SEARCH,
                sample_rate=RATE,
                scores=NetworkScoreOptions(acoustic_scale=1.0),
            ),
        )
    texts = []
    for number, path in enumerate(packages):
        out = tmp_path / f"texts{number}"
        told = ["transcribe", path, *audio, "--out", out, "--segmentation", "none"]
        assert main([*map(str, told)]) == 0
        texts.append([(out / f"{file.stem}.txt").read_text().strip() for file in audio])
    imported, plain, weighing = texts
    assert imported == weighing
    assert plain == [words for words, _ in expected]
    # exported again, the same bytes, but for statistics that nothing is made of
    export(new, features, tmp_path / "again", ivectors=new / "ivectors/chain" / MODEL)
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        is_used = path.name != "global_cmvn.stats" or model.cmvn is not None
        if path.is_file() and is_used and name.parts[0] in {"am", "ivector"}:
            assert (tmp_path / "again" / name).read_bytes() == path.read_bytes(), name


def check_same_scores(folders, inputs):
    """Networks of two folders of results score frames alike."""
    models = [load_network(folder / "nnet/chain") for folder in folders]
    for frames in inputs:
        scores = []
        for model in models:
            normalizer = Normalizer.from_meta(model.meta["normalization"])
            batch = torch.from_numpy(normalizer(frames))[None]
            scores.append(model.log_likelihoods(batch, torch.tensor([len(frames)]))[0])
        expected, found = (score.numpy() for score in scores)
        atol = 1e-5 * np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=atol)


def test_ivectors_of_kaldis_recipes_are_read_as_kaldi_reads_them(
    with_ivectors, lang, audio, tmp_path
):
    """Components of training, i-vectors behind deltas, CMVN of the mixture's frames."""
    results, features = with_ivectors
    folder, new = tmp_path / "model", tmp_path / "results"
    with_cmvn(results, features, audio, tmp_path / "extractor.npz")
    model = IvectorModel.load(tmp_path / "extractor.npz")
    export(results, features, folder, ivectors=tmp_path / "extractor.npz")
    written = HandWritten(*xconfig_lines(56, features.dim, IVECTORS.dim))
    write_model(folder, results, written, features, audio)
    without_silence(folder)
    (folder / "ivector/online_cmvn.conf").write_text("# all as Kaldi has it\n")
    import_vosk(folder, new, "chain", lang_dir=results / "lang")
    found = IvectorModel.load(new / "ivectors/chain" / MODEL)
    assert found.cmvn == OnlineCmvn()
    right = load_network(new / "nnet/chain").network.context[1]
    inputs = inputs_of_vosk(found, features, audio, right)
    check_the_same(list(vosks(folder, audio)), list(ours(new, lang, inputs)))
    # CMVN matters
    plain = dataclasses.replace(model, cmvn=None)
    inputs = inputs_of_vosk(plain, features, audio, right)
    others = [score for _, score in ours(new, lang, inputs)]
    theirs = [score for _, score in vosks(folder, audio)]
    assert max(abs(a - b) for a, b in zip(theirs, others, strict=True)) > 0.1


def inputs_of_vosk(model, features, audio, right):
    """Frames with Vosk's i-vectors, and scores that count, of each file."""
    inputs = []
    for file in audio:
        frames = features_of(features, file)
        padded = vosk_frames(model, frames, num_ready(features, file), right)
        inputs.append((padded, -(-len(frames) // 3)))
    return inputs


def without_silence(folder):
    """Let Vosk hold no phone for silence, which it would weigh less and cut at."""
    path = folder / "conf/model.conf"
    conf = path.read_text().splitlines()
    kept = [line for line in conf if "silence-phones" not in line]
    assert len(kept) == len(conf) - 1
    kept.append("--endpoint.silence-phones=1000")
    path.write_text("\n".join(kept) + "\n")


def test_folders_whose_ivectors_do_not_fit_are_refused(with_ivectors, audio, tmp_path):
    results, features = with_ivectors
    folder = tmp_path / "model"
    path = results / "ivectors/hires_iv" / MODEL
    export(results, features, folder, ivectors=path)

    def refused(what):
        with pytest.raises(UserError) as told:
            import_vosk(folder, tmp_path / "results", "chain")
        assert what in str(told.value)
        assert "\n" not in str(told.value)

    (folder / "conf/ivector_extractor.conf").write_text("--max-count=-1\n")
    refused("ivector_extractor.conf: ")
    (folder / "conf/ivector_extractor.conf").unlink()
    (folder / "ivector/splice.conf").write_text("--left-context=2\n")
    refused("ivector/splice.conf: frames are spliced with 2 to the left and 4 to the")
    model = IvectorModel.load(path)
    fewer = Extractor(
        model.extractor.matrices[:, :, :4].copy(),
        model.extractor.inverses,
        model.extractor.offset,
    )
    write_ivectors(dataclasses.replace(model, extractor=fewer), folder / "ivector")
    refused("final.ie: i-vectors of 4 numbers, and the network takes 6")
    stats = cmvn_statistics(features_of(features, audio[0]))
    write_matrix(folder / "am/global_cmvn.stats", stats)
    refused("am/global_cmvn.stats: the network takes normalized features and i-vectors")
    (folder / "am/global_cmvn.stats").unlink()
    shutil.rmtree(folder / "ivector")
    refused("ivector: no such folder, and the network takes i-vectors of 6 numbers")
    assert not (tmp_path / "results/package").exists()


def test_the_command_finds_the_extractor(with_ivectors, tmp_path):
    results, features = with_ivectors
    path, out = recipe_of(tmp_path / "a.yaml", results, features), tmp_path / "out"
    recipe = json.loads(path.read_text())
    recipe["nnet"]["ivectors"] = {"hires_iv": IVECTORS.values()}
    recipe["nnet"]["systems"]["chain"]["features"] = "hires_iv"
    recipe["nnet"]["systems"]["chain"]["data"] = {"normalization": "global"}
    path.write_text(json.dumps(recipe))
    told = ["export-kaldi", "vosk", str(results), "chain", str(out), "--configfile"]
    assert main([*told, str(path)]) == 0
    extractor = results / "ivectors/hires_iv/extractor.npz"
    export(results, features, tmp_path / "expected", ivectors=extractor)
    files = [path.name for path in (tmp_path / "expected/ivector").iterdir()]
    assert len(files) == 6
    for name in ("am/final.mdl", *(f"ivector/{file}" for file in files)):
        expected = (tmp_path / "expected" / name).read_bytes()
        assert (out / name).read_bytes() == expected, name


@pytest.mark.parametrize(
    ("option", "value"),
    [("num_gselect", 4), ("min_post", 0.1), ("posterior_scale", 0.2), ("max_count", 0)],
)
def test_ivectors_that_vosk_computes_otherwise_are_refused(
    with_ivectors, tmp_path, option, value
):
    results, features = with_ivectors
    model = IvectorModel.load(results / "ivectors/hires_iv/extractor.npz")
    options = model.options.model_copy(update={option: value})
    changed = dataclasses.replace(model, options=options)
    changed.save(tmp_path / "extractor.npz")
    with pytest.raises(UserError, match=f"trained with {option}: {value}, and Vosk"):
        export(results, features, tmp_path / "out", ivectors=tmp_path / "extractor.npz")
    assert not (tmp_path / "out").exists()


def test_a_network_with_fewer_features_than_told_is_refused(with_ivectors, tmp_path):
    results, features = with_ivectors
    with pytest.raises(UserError, match="40 features per frame, the network takes 46"):
        export(results, features, tmp_path / "out")
