"""Packages: what goes in comes out, and what cannot is refused in one line."""

import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from fixtures.serving_package import FBANK, MFCC, RATE, WORDS, words_of
from fixtures.serving_server import running_server
from fixtures.waiting import PATIENCE

from latflow.cli.main import main
from latflow.decode.lattices import decode_lattices
from latflow.decode.options import NetworkScoreOptions, SearchOptions
from latflow.decode.scorers import load_scorer
from latflow.errors import UserError
from latflow.features.cmvn_options import GlobalCmvn, SlidingCmvn, SpeakerCmvn
from latflow.features.frames import FrameWriter
from latflow.gmm.ivector_training import train_ivectors
from latflow.gmm.options import IvectorOptions
from latflow.kaldi.io import write_matrices
from latflow.lattice.edit_distance import count_errors
from latflow.lattice.io.archives import read_lattices
from latflow.lattice.n_best import n_best
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import save_model
from latflow.nnet.network import Network
from latflow.parts import SetJob
from latflow.serving.acoustics import Chunk
from latflow.serving.package import Model
from latflow.serving.package_info import (
    INFO,
    read_info,
)
from latflow.serving.session import Session


def features(model, samples, pieces=1):
    """All features of a segment that comes in pieces."""
    stream = model.front_end()
    found = [stream.accept(piece) for piece in np.array_split(samples, pieces)]
    return np.concatenate([*found, stream.finish()])


@pytest.fixture(scope="module")
def store(digits, model, tmp_path_factory):
    """Frames of speech that nobody has heard, as a recipe has them."""
    folder = tmp_path_factory.mktemp("frames")
    with FrameWriter(folder / "tdnnf", dim=FBANK.dim) as writer:
        for utterance in digits.audio:
            frames = features(model, digits.samples(utterance))
            writer.append(utterance, "s", digits.texts[utterance], frames)
    return folder / "tdnnf"


def chunks_of(frames, size, context):
    """A segment cut into chunks."""
    left, right = context
    found = []
    for first in range(0, len(frames), size):
        begin, last = max(0, first - left), min(len(frames), first + size)
        end = min(len(frames), last + right)
        found.append(Chunk(frames[begin:end], first - begin, end - last))
    return found


def test_packages_replace_nothing_but_packages(digits, tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="is not empty \\(it holds thesis.tex\\)"):
        digits.package(tmp_path)
    (digits.package(tmp_path / "new") / INFO).unlink()  # as Snakemake does
    assert digits.package(tmp_path / "new").is_dir()


def test_scores_are_those_of_the_recipe_to_the_bit(digits, model, store):
    scorer = load_scorer(
        store, digits.root / "nnet/tdnnf", NetworkScoreOptions(device="cpu")
    )
    for i, utterance in enumerate(digits.audio):
        expected = np.concatenate(list(scorer.log_likes(i)))
        frames = features(model, digits.samples(utterance), pieces=7)
        np.testing.assert_array_equal(model.acoustics.log_likes(frames), expected)
    assert model.lattice_scale == scorer.lattice_scale == model.subsampling == 3


def test_lattices_are_those_of_the_recipe(digits, model, store, tmp_path):
    decode_lattices(
        SetJob(
            frames_dir=store,
            model_dir=digits.root / "nnet/tdnnf",
            lang_dir=digits.root / "lang",
            out_dir=tmp_path,
            threads=1,
            max_skipped_fraction=0.0,
        ),
        graph=digits.root / "graph/HCLG.fst",
        options=SearchOptions(),
        scores=NetworkScoreOptions(device="cpu"),
    )
    for utterance, expected in read_lattices(tmp_path / "lattices.ark"):
        frames = features(model, digits.samples(utterance))
        found = model.decoder.decode(
            model.acoustics.log_likes(frames), acoustic_scale=model.acoustic_scale
        ).lattice
        np.testing.assert_array_equal(found.transition_id, expected.transition_id)
        np.testing.assert_allclose(
            model.lattice_scale * found.acoustic_cost, expected.acoustic_cost, rtol=1e-6
        )


def test_a_package_recognizes_speech(digits, model):
    found = [words_of(model, digits.samples(u)) for u in digits.audio]
    wanted = [digits.texts[u].split() for u in digits.audio]
    errors = sum(count_errors(w, f).errors for w, f in zip(wanted, found, strict=True))
    assert errors <= 0.2 * sum(map(len, wanted))


@pytest.mark.parametrize("size", [3, 24, 60])
def test_chunks_of_many_segments_have_the_scores_of_the_whole(digits, model, size):
    segments = [features(model, digits.samples(u)) for u in digits.audio]
    cut = [chunks_of(s, size, model.acoustics.context) for s in segments]
    found = iter(model.acoustics.score([chunk for chunks in cut for chunk in chunks]))
    for segment, chunks in zip(segments, cut, strict=True):
        scores = np.concatenate([next(found) for _ in chunks])
        expected = model.acoustics.log_likes(segment)
        np.testing.assert_allclose(scores, expected, atol=2e-4)
    assert model.acoustics.score([]) == []


def test_chunks_of_a_network_with_zeros_beyond_the_edges(digits, tmp_path):
    network = {
        "layers": {
            "near": {"class": "tdnn", "size": 16, "offsets": [-2, 0, 1]},
            "third": {"class": "subsample", "factor": 3},
            "far": {"class": "tdnn", "size": 16, "offsets": [-1, 0, 1]},
            "output": {"class": "output"},
        }
    }
    model = Model.load(packaged_network(digits, network, tmp_path))
    assert model.acoustics.context == (6, 4)  # 5 before are needed, multiples of 3
    segment = features(model, digits.samples(next(iter(digits.audio))))
    scores = model.acoustics.score(chunks_of(segment, 12, model.acoustics.context))
    expected = model.acoustics.log_likes(segment)
    np.testing.assert_allclose(np.concatenate(scores), expected, atol=1e-4)


def packaged_network(digits, network, folder, normalization="none", **changes):
    """Package a network that has learnt nothing."""
    description = NetworkDescription.from_config(network)
    seed = digits.root / "nnet/tdnnf"
    pdfs = len(np.load(seed / "priors.npy"))
    dim = changes.pop("dim", FBANK.dim)
    made = Network(description, dim, {"pdf": pdfs}, seed=2).eval()
    meta = {"normalization": {"type": normalization}}
    root = folder / "experiment"
    shutil.copytree(digits.root, root, ignore=shutil.ignore_patterns("audio"))
    save_model(root / "nnet/tdnnf", made, description, np.ones(pdfs), meta)
    for name in ("tree", "final.mdl"):
        shutil.copyfile(seed / name, root / "nnet/tdnnf" / name)
    return type(digits)(root, digits.audio, digits.texts).package(
        folder / "package", **changes
    )


def test_gmm_systems(digits, tmp_path):
    model = Model.load(digits.package(tmp_path / "mono", system="mono"))
    utterance = next(iter(digits.audio))
    frames = features(model, digits.samples(utterance))
    with FrameWriter(tmp_path / "frames", dim=MFCC.dim) as writer:
        writer.append(utterance, "s", "", frames)
    scorer = load_scorer(
        tmp_path / "frames", digits.root / "gmm/mono", NetworkScoreOptions()
    )
    expected = np.concatenate(list(scorer.log_likes(0)))
    np.testing.assert_array_equal(model.acoustics.log_likes(frames), expected)
    assert model.acoustics.context == (4, 4)
    chunks = chunks_of(frames, 20, (4, 4))
    scores = np.concatenate(model.acoustics.score(chunks))
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-3)
    assert (model.lattice_scale, model.subsampling) == (1.0, 1)


@pytest.mark.parametrize("pieces", [1, 3, 50])
def test_normalization_by_a_sliding_window_streams(digits, tmp_path, pieces):
    cmvn = SlidingCmvn(center=False, window=60, min_window=30, norm_vars=pieces == 3)
    folder = digits.package(tmp_path / "mono", system="mono", cmvn=cmvn)
    model = Model.load(folder)
    assert model.is_streaming
    samples = digits.samples(next(iter(digits.audio)))
    found = features(model, samples, pieces)
    np.testing.assert_allclose(found, features(model, samples, 2), atol=1e-3)
    assert model.front_end().finish().shape == (0, MFCC.dim)


def test_what_needs_the_whole_is_packaged_only_if_asked_for(digits, tmp_path):
    given = {"system": "mono", "cmvn": SpeakerCmvn()}
    with pytest.raises(UserError, match="cmvn of type speaker.*--offline"):
        digits.package(tmp_path / "mono", **given)
    assert not (tmp_path / "mono").exists()
    model = Model.load(digits.package(tmp_path / "mono", offline=True, **given))
    assert not model.is_streaming
    assert "cmvn of type speaker" in model.why_not_streaming
    found = features(model, digits.samples(next(iter(digits.audio))), 5)
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-4)
    lstm = {"layers": {"r": {"class": "rec", "size": 8}, "o": {"class": "output"}}}
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="sees whole utterances"):
        packaged_network(digits, lstm, tmp_path / "a")
    mean = {"layers": {"o": {"class": "output"}}}
    with pytest.raises(UserError, match="sees whole utterances"):
        packaged_network(digits, mean, tmp_path / "b", normalization="mean")


def test_a_bidirectional_network_is_served_whole(digits, tmp_path):
    lstm = {"layers": {"r": {"class": "rec", "size": 8}, "o": {"class": "output"}}}
    package = packaged_network(digits, lstm, tmp_path, offline=True)
    model = Model.load(package)
    utterance, file = next(iter(digits.audio.items()))
    scores = model.acoustics.log_likes(features(model, digits.samples(utterance)))
    stream = io.BytesIO()
    pcm = np.rint(digits.samples(utterance) * 32768).astype(np.int16)
    np.savez(stream, samples=pcm)
    with running_server(model, evaluate=True) as running:
        url = f"{running.http}/v1/evaluate?output=log_likelihoods"
        reply = httpx.post(url, content=stream.getvalue(), timeout=PATIENCE)
        with np.load(io.BytesIO(reply.content)) as found:
            np.testing.assert_allclose(found["log_likelihoods"], scores, atol=1e-3)
        url = f"{running.http}/v1/audio/transcriptions"
        reply = httpx.post(
            url, files={"file": Path(file).read_bytes()}, timeout=PATIENCE
        )
    assert reply.status_code == 200
    assert isinstance(reply.json()["text"], str)


def test_global_statistics_are_those_of_training(digits, tmp_path):
    frames = np.arange(26, dtype=np.float64).reshape(2, 13)
    stats = np.zeros((2, 14))
    stats[0, :-1], stats[0, -1] = frames.sum(0), 2
    (tmp_path / "frames").mkdir()
    write_matrices(tmp_path / "frames/cmvn.ark", [("global", stats)])
    given = {"system": "mono", "cmvn": GlobalCmvn()}
    files = {"frames_dir": tmp_path / "frames"}
    plain = Model.load(digits.package(tmp_path / "plain", system="mono"))
    model = Model.load(digits.package(tmp_path / "mono", files=files, **given))
    samples = digits.samples(next(iter(digits.audio)))
    expected = features(plain, samples) - frames.mean(0).astype(np.float32)
    np.testing.assert_allclose(features(model, samples, 4), expected, rtol=1e-6)


def test_ivectors_follow_frames_as_in_a_recipe(digits, tmp_path):
    options = IvectorOptions(
        features="fbank", dim=5, num_gaussians=8, num_iterations=2, feature_dim=10
    )
    train_ivectors(digits.root / "fbank", tmp_path / "iv", options=options, seed=1)
    network = {"layers": {"output": {"class": "output"}}}
    (tmp_path / "net").mkdir()
    extractor = tmp_path / "iv/extractor.npz"
    package = packaged_network(
        digits, network, tmp_path / "net", dim=28, files={"ivectors": extractor}
    )
    model = Model.load(package)
    samples = digits.samples(next(iter(digits.audio)))
    found = features(model, samples, 1)
    for pieces in (2, 9, 300):
        np.testing.assert_allclose(features(model, samples, pieces), found, atol=1e-3)
    whole = model._ivectors.online(np.ascontiguousarray(found[:, :23]))
    expected = np.repeat(whole, options.period, axis=0)[: len(found)]
    np.testing.assert_allclose(found[:, 23:], expected, rtol=1e-4, atol=1e-4)
    # in a session those that its search holds for silence count less
    options = options.replace(silence_weight=0.01)
    model = replace(model, _ivectors=replace(model._ivectors, options=options))
    results = []
    for size in (900, 5000):
        vectors = []
        with Session(model) as session:
            for begin in range(0, len(samples), size):
                session.feed(samples[begin : begin + size])
                while (chunk := session.take_chunk()) is not None:
                    vectors.append(chunk.frames[:, 23:])
                    session.advance(model.acoustics.score([chunk])[0])
                    segment = session._segment
                    path = segment.search.best_path().transition_ids
                    weights = segment._front_end._ivectors._weights
                    expected = np.where(model.is_silence[path], 0.01, 1.0)
                    np.testing.assert_array_equal(weights, expected)
        results.append(np.concatenate(vectors))
    np.testing.assert_array_equal(*results)
    assert abs(results[0] - found[: len(results[0]), 23:]).max() > 0.01


def test_lattices_are_rescored_with_the_second_model(digits, model, tmp_path):
    lm = tmp_path / "second.arpa"
    make_second(lm)
    rescoring = {"lm": "second", "beam": 8.0, "acoustic_scale": 0.1}
    files = {"grammar": digits.root / "G.fst", "arpa": lm}
    second = Model.load(
        digits.package(tmp_path / "package", rescoring=rescoring, files=files)
    )
    utterance = next(iter(digits.audio))
    frames = features(model, digits.samples(utterance))
    lattice = model.decoder.decode(
        model.acoustics.log_likes(frames), acoustic_scale=model.acoustic_scale
    ).lattice
    assert model.rescore(lattice) is lattice
    before, after = (
        {tuple(path.words): path for path in n_best(m.rescore(lattice), 1000, **SCALE)}
        for m in (model, second)
    )
    uniform = np.log(len(WORDS) + 1)
    graph = {
        words: path.graph_cost
        + len(words) * (WORD_COST - uniform) + END_COST - uniform
        for words, path in before.items()
    }  # fmt: skip
    for words, path in after.items():
        assert path.graph_cost == pytest.approx(graph[words], abs=1e-3)
    cheapest = min(graph, key=lambda w: graph[w] + 0.1 * before[w].acoustic_cost)
    assert next(iter(after)) == cheapest


SCALE = {"acoustic_scale": 0.1}  # that of the rescoring
WORD_COST, END_COST = 2.5, 0.75


def make_second(path):
    """A model whose words all cost the same, and the end of a sentence less."""
    costs = {"<s>": 99.0, "</s>": END_COST, **dict.fromkeys(WORDS, WORD_COST)}
    lines = [f"{-cost / np.log(10):.6f} {word}" for word, cost in costs.items()]
    head = ["\\data\\", f"ngram 1={len(lines)}", "", "\\1-grams:"]
    path.write_text("\n".join([*head, *lines, "", "\\end\\", ""]))


def test_nothing_is_asked_of_the_experiment_again(digits, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(digits.root, root)
    here = type(digits)(root, digits.audio, digits.texts)
    package = here.package(tmp_path / "package")
    text = (package / INFO).read_text()
    assert str(tmp_path) not in text
    shutil.rmtree(root)
    moved = tmp_path / "elsewhere"
    os.rename(package, moved)
    model = Model.load(moved)
    frames = features(model, digits.samples(next(iter(digits.audio))))
    assert model.acoustics.log_likes(frames).shape[1] == model.transitions.num_pdfs


def test_a_package_that_is_read_only(digits, package, tmp_path):
    moved = tmp_path / "package"
    shutil.copytree(package, moved)
    for path in [*moved.rglob("*"), moved]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert Model.load(moved).info == read_info(package)


def test_broken_packages_are_refused_in_one_line(package, tmp_path, capsys):
    def broken(name, change):
        folder = tmp_path / name
        shutil.copytree(package, folder)
        change(folder)
        with pytest.raises(UserError) as caught:
            Model.load(folder)
        assert "\n" not in str(caught.value)
        assert caught.value.remedy
        return str(caught.value)

    def told(folder, **changes):
        known = json.loads((folder / INFO).read_text())
        (folder / INFO).write_text(json.dumps({**known, **changes}))

    def touch(folder):
        with (folder / "model/weights.safetensors").open("r+b") as stream:
            stream.seek(-1, 2)
            stream.write(b"\x55")

    newer = broken("newer", lambda f: told(f, format=99, more="of the future"))
    assert "a package of format 99, newer" in newer
    assert "digest differs" in broken("changed", touch)
    gone = broken("gone", lambda f: (f / "graph/HCLG.fst").unlink())
    assert "HCLG.fst: missing from the package" in gone
    assert "not a model package" in broken("none", lambda f: (f / INFO).unlink())
    assert "kind" in broken("odd", lambda f: told(f, kind="hmm"))
    assert main(["model-info", str(tmp_path)]) == 1
    assert "not a model package" in capsys.readouterr().err


def test_features_of_another_dimension_are_refused(digits, tmp_path):
    with pytest.raises(UserError, match="dimension 13, the network takes 23"):
        digits.package(tmp_path / "package", front_end=MFCC)


def test_model_info_refuses_a_package_that_was_altered(package, tmp_path, capsys):
    copy = shutil.copytree(package, tmp_path / "copy")
    (copy / "lang/words.txt").write_text("<eps> 0\n")
    assert main(["model-info", str(copy)]) == 1
    out, err = capsys.readouterr()
    assert (out, "words.txt: not the file that was packaged" in err) == ("", True)


def test_model_info_tells_of_either_kind_of_model(digits, package, capsys):
    assert main(["model-info", str(package)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^words of sessions +none can be added: it has a", out, re.M)
    told = dict(line.split(None, 1) for line in out.splitlines())
    assert (told["name"], told["kind"], told["streaming"]) == ("tdnnf", "ce", "yes")
    assert told["sample_rate"] == str(RATE)
    assert main(["model-info", str(digits.root / "gmm/mono/final.mdl")]) == 0
    assert "number of gaussians" in capsys.readouterr().out


def test_threads_of_torch_are_left_alone(digits, model):
    before = torch.get_num_threads()
    frames = features(model, digits.samples(next(iter(digits.audio))))
    model.acoustics.score(chunks_of(frames, 24, model.acoustics.context))
    assert torch.get_num_threads() == before


def experiment_of(digits, folder):
    """The system as a recipe has it: (recipe, folder of its results)."""
    results = folder / "results/mine"
    for source, target in (
        ("nnet/tdnnf", "nnet/tdnnf"),
        ("lang", "lang"),
        ("graph", "graph/mono"),
    ):
        shutil.copytree(digits.root / source, results / target)
    (results / "tune/tdnnf").mkdir(parents=True)
    shutil.copyfile(digits.root / "scales.json", results / "tune/tdnnf/scales.json")
    data = {"type": "kaldi", "path": "data/any"}
    stream = {**FBANK.values(), "sample_rate": RATE, "cmvn": {"type": "none"}}
    network = {
        "type": "ce",
        "network": str(results / "nnet/tdnnf/network.yaml"),
        "alignments": "mono",
        "features": "fbank",
        "data": {"normalization": "global", "sequences": {"type": "utterances"}},
    }
    recipe = {
        "experiment": "mine",
        "corpus": {"train": data, "dev": data, "test": {"test": data}},
        "lang": {"lexicon": "lexicon.txt"},
        "lm": {"type": "uniform"},
        "gmm": {"systems": {"mono": {"type": "mono"}}},
        "nnet": {"features": {"fbank": stream}, "systems": {"tdnnf": network}},
        "package": {"systems": ["tdnnf"], "licence": str(folder / "licence.txt")},
    }
    write_scores(results / "score/tdnnf/dev", [])
    (folder / "licence.txt").write_text("For tests alone.\n")
    (folder / "mine.yaml").write_text(json.dumps(recipe))
    return folder / "mine.yaml", results


def write_scores(folder, said):
    """Scores of utterances of a word: what was said, and how sure it was `one`."""
    folder.mkdir(parents=True)
    header = "utterance speaker words ins del sub errors wer reference hypothesis"
    lines, ctm = ["\t".join(header.split())], []
    for i, (word, sure) in enumerate(said):
        wrong = int(word != "one")
        counts = f"1\t0\t0\t{wrong}\t{wrong}\t{100 * wrong}"
        lines.append(f"u{i:03}\ts\t{counts}\t{word}\tone")
        ctm.append(f"u{i:03} 1 0.0 0.1 one {sure}\n")
    (folder / "per_utterance.tsv").write_text("\n".join(lines) + "\n")
    (folder / "hyp.ctm").write_text("".join(ctm))
    return folder


def test_the_command_packages_as_the_recipe_says(digits, model, tmp_path, capsys):
    recipe, results = experiment_of(digits, tmp_path)
    told = ["package", "tdnnf", "--configfile", str(recipe), "--results", str(results)]
    assert main(told) == 0
    found = read_info(results / "package/tdnnf")
    assert found.licence == "For tests alone.\n"
    assert found.experiment == "mine"
    assert found.digests.keys() == model.info.digests.keys()
    same = set(found.digests.items()) & set(model.info.digests.items())
    assert len(same) == len(found.digests)
    for name in ("front_end", "acoustic_scale", "lmwt", "endpoint", "subsampling"):
        assert getattr(found, name) == getattr(model.info, name)
    (results / "tune/tdnnf/scales.json").unlink()
    assert main([*told, "--out", str(tmp_path / "out")]) == 1
    assert not (tmp_path / "out").exists()
    assert "scales.json" in capsys.readouterr().err
    assert main(["package", "mono", *told[2:]]) == 1
    assert "mono cannot be streamed" in capsys.readouterr().err


@pytest.mark.slow
def test_the_rule_does_as_the_command(digits, repository, tmp_path):
    recipe, results = experiment_of(digits, tmp_path)
    target = "results/mine/package/tdnnf/package.json"
    command = [
        sys.executable, "-m", "snakemake", "--snakefile", str(repository / "Snakefile"),
        "--directory", str(tmp_path), "--configfile", str(recipe), "--cores", "1",
        "--allowed-rules", "package_model", "--", target,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = Model.load(results / "package/tdnnf").info
    told = ["package", "tdnnf", "--configfile", str(recipe), "--results", str(results)]
    assert main([*told, "--out", str(tmp_path / "out")]) == 0
    assert read_info(tmp_path / "out") == found


def test_confidences_are_fitted_to_the_words_of_dev(digits, tmp_path):
    # Half of the words are right, whatever their posteriors say.
    said = [("one" if i % 2 else "two", 0.99 if i % 3 else 0.9) for i in range(400)]
    scores = write_scores(tmp_path / "dev", said)
    files = {"scores": scores / "hyp.ctm"}
    folder = digits.package(tmp_path / "package", files=files)
    curve = read_info(folder).confidences
    assert [share for _, share in curve] == pytest.approx([0.5] * len(curve), abs=0.2)
    sure = []
    for model in (Model.load(folder), Model.load(digits.package(tmp_path / "plain"))):
        with Session(model) as session:
            samples = digits.samples(next(iter(digits.audio)))
            *_, final = session.accept(samples) + session.finish()
        sure.append([word.confidence for word in final.segment.best.words])
    posterior, share = zip(*curve, strict=True)
    assert sure[0] == pytest.approx(np.interp(sure[1], posterior, share))
    assert max(sure[1]) > max(sure[0])


@pytest.mark.parametrize(("wer", "is_told"), [(8.0, False), (97.6, True)])
def test_a_network_whose_training_failed_is_packaged_with_a_warning(
    digits, tmp_path, caplog, wer, is_told
):
    scales, before = tmp_path / "scales.json", tmp_path / "parent.json"
    scales.write_text(json.dumps({"lmwt": 9, "wip": 0.0, "wer": wer}))
    before.write_text(json.dumps({"lmwt": 9, "wip": 0.0, "wer": 7.0}))
    with caplog.at_level(logging.WARNING):
        digits.package(
            tmp_path / "made",
            scales=scales,
            files={"parent_scales": before},
        )
    told = [r.message for r in caplog.records if "its training failed" in r.message]
    assert bool(told) is is_told
