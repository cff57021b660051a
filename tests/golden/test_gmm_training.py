"""Training on the digits corpus, against the systems that Kaldi trained on it."""

import numpy as np
import pytest
import soundfile

from latflow.configuration import resolve_section
from latflow.features.cmvn import apply_cmvn, cmvn_statistics
from latflow.features.frames import FrameStore, FrameWriter
from latflow.features.front_end import KaldiFrontEnd
from latflow.features.options import FrontEndOptions
from latflow.features.transform import Deltas
from latflow.gmm.align import align
from latflow.gmm.corpus_alignment import Beams, PassSummary, align_all
from latflow.gmm.model import AcousticModel
from latflow.gmm.source import FrameSource
from latflow.gmm.train import train_deltas, train_mono
from latflow.gmm.training_graphs import on_demand
from latflow.gmm.viterbi import Aligner, Scales
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang
from latflow.lang.prepare import make_lang
from latflow.parallel import worker_pool


def table(path):
    rows = (line.split(maxsplit=1) for line in path.read_text().splitlines())
    return {key: value.strip() for key, value in rows}


def write_store(folder, data):
    """MFCC with per-speaker means removed, of one split of a data directory."""
    front_end = KaldiFrontEnd(FrontEndOptions(), 8000)
    texts, speakers = table(data / "text"), table(data / "utt2spk")
    features, totals = {}, {}
    for utterance, name in sorted(table(data / "wav.scp").items()):
        wave, _ = soundfile.read(data / name, dtype="float32")
        features[utterance] = front_end.extract(wave)
        speaker = speakers[utterance]
        counted = cmvn_statistics(features[utterance])
        totals[speaker] = totals.get(speaker, 0.0) + counted
    with FrameWriter(folder, dim=13) as writer:
        for utterance, frames in features.items():
            speaker = speakers[utterance]
            normal = apply_cmvn(frames, totals[speaker])
            writer.append(utterance, speaker, texts[utterance], normal)
    return folder


def summary_of(model_dir, frames, lang):
    """Viterbi log-likelihood of a split under a system."""
    store = FrameStore.load(frames)
    source = FrameSource(store, Deltas(), np.arange(len(store)))
    model = AcousticModel.load(model_dir / "final.mdl")
    tree = ContextDependency.load(model_dir / "tree")
    graphs = on_demand(source, lang, tree, model.transitions)
    summary, beams = PassSummary(), Beams(10.0, 40.0)
    aligner = Aligner(model, scales=Scales())
    with worker_pool(2) as pool:
        for outcome in align_all(aligner, source, graphs, beams, pool):
            summary.add(outcome, beams)
    return summary


@pytest.mark.slow
def test_systems_are_as_good_as_kaldis(golden, corpora, repository, tmp_path):
    train = write_store(tmp_path / "train", corpora / "digits/train")
    test = write_store(tmp_path / "test", corpora / "digits/test")
    schemas, lang = repository / "workflow/schemas", tmp_path / "lang"
    lang_options = resolve_section(schemas, "lang", {})
    make_lang(golden / "lang/lexicon.txt", lang, options=lang_options)
    systems = {
        "mono": {"type": "mono", "num_gaussians": 400},
        "tri1": {
            "type": "deltas",
            "alignments": "mono",
            "num_leaves": 150,
            "num_gaussians": 1000,
        },
    }
    section = resolve_section(schemas, "gmm", {"systems": systems})
    common = {
        "transform": {"type": "deltas"},
        "graph": {"transition_scale": 1.0, "self_loop_scale": 0.1},
        "seed": 1,
        "device": "cpu",
    }
    limits = {"threads": 2, "max_skipped_fraction": 0.0}
    mono, tri1, ali = tmp_path / "mono", tmp_path / "tri1", tmp_path / "ali"
    options = {name: {**o, **common} for name, o in section["systems"].items()}
    train_mono(train, lang, mono, options=options["mono"], **limits)
    align(train, lang, mono, ali, options={**section["align"], **common}, **limits)
    source = ali / "ali.ark"
    train_deltas(train, lang, source, mono, tri1, options=options["tri1"], **limits)
    for system, sizes in (("mono", (67, 398)), ("tri1", (96, 1001))):
        ours = AcousticModel.load(tmp_path / system / "final.mdl")
        assert ours.gmms.num_pdfs == pytest.approx(sizes[0], abs=4)
        assert ours.gmms.num_gaussians == pytest.approx(sizes[1], abs=10)
        found = summary_of(tmp_path / system, test, Lang.load(lang))
        kaldis = summary_of(golden / "gmm" / system, test, Lang.load(lang))
        assert found.num_aligned == kaldis.num_aligned == 63
        ours, theirs = (s.log_like / s.num_frames for s in (found, kaldis))
        assert ours == pytest.approx(theirs, abs=0.25)
