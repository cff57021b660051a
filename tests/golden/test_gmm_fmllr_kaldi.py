"""fMLLR against the transforms that Kaldi estimated for six speakers."""

import json

import numpy as np
import pytest
from reference.fmllr_naive import auxiliary

from latflow.features.frames import FrameWriter
from latflow.features.transform import Chain, Linear, Splice
from latflow.gmm.adaptation import FmllrAccumulator, SpeakerEstimates
from latflow.gmm.alignment import align_gmm
from latflow.gmm.model import AcousticModel, save_transform
from latflow.gmm.options import AlignAdaptedOptions, FmllrOptions
from latflow.graphs.options import GraphOptions
from latflow.kaldi.io import KaldiReader, read_int_vectors, read_matrices
from latflow.lattice.posteriors import alignment_posteriors
from latflow.parallel import worker_pool
from latflow.parts import SetJob

KALDI = FmllrOptions(min_count=50.0)


def speaker_of(utterance):
    return utterance.split("-")[0]


@pytest.fixture(scope="module")
def wanted(golden):
    return dict(read_matrices(golden / "transform/fmllr_per_speaker.txt"))


@pytest.fixture(scope="module")
def accumulator(golden):
    """Posteriors of the alignment model, statistics for the adapted one."""
    system = golden / "gmm/tri3b"
    silence = (golden / "lang/silence.csl").read_text().strip().split(":")
    return FmllrAccumulator.of(
        AcousticModel.load(system / "final.alimdl"),
        [int(phone) for phone in silence],
        0.0,
        target=AcousticModel.load(system / "final.mdl").gmms,
    )


def statistics_of(golden, accumulator):
    features = dict(read_matrices(golden / "transform/lda_mllt_feats_cmvn.txt.gz"))
    for utterance, ids in read_int_vectors(golden / "transform/ali_tri3b_pass1.txt"):
        posteriors = alignment_posteriors(ids)
        yield utterance, accumulator.statistics(features[utterance], posteriors)


def test_transforms_are_kaldis(golden, accumulator, wanted):
    statistics = dict(statistics_of(golden, accumulator))
    with worker_pool(1) as pool:
        estimates = SpeakerEstimates(map(speaker_of, statistics), KALDI, pool)
        for utterance, of_utterance in statistics.items():
            estimates.add(speaker_of(utterance), of_utterance)
        found = estimates.finish("golden")
    assert found.transforms.matrices.keys() == wanted.keys()
    assert found.num_unadapted == 0
    for speaker, matrix in found.transforms.matrices.items():
        error = np.linalg.norm(matrix - wanted[speaker])
        assert error < 1e-5 * np.linalg.norm(wanted[speaker])


def test_kaldis_transforms_reach_our_objective(golden, accumulator, wanted):
    for utterance, statistics in statistics_of(golden, accumulator):
        kaldis = wanted[speaker_of(utterance)].astype(float)
        gain = auxiliary(kaldis, statistics) - auxiliary(np.eye(40, 41), statistics)
        assert gain > 5 * statistics.count


@pytest.fixture(scope="module")
def system(golden, tmp_path_factory):
    """Kaldi's adapted system as a folder of ours."""
    folder = tmp_path_factory.mktemp("tri3b")
    for name in ("final.mdl", "final.alimdl", "tree"):
        (folder / name).write_bytes((golden / "gmm/tri3b" / name).read_bytes())
    with KaldiReader.open(golden / "gmm/tri3b/final.mat") as reader:
        matrix = reader.float_matrix()
    save_transform(folder, Chain([Splice(3, 3), Linear(matrix)]))
    return folder


@pytest.fixture(scope="module")
def frames(golden, tmp_path_factory):
    """The six utterances as they are before splicing."""
    folder = tmp_path_factory.mktemp("frames") / "frames"
    lines = (golden / "align/text").read_text().splitlines()
    texts = dict(line.split(maxsplit=1) for line in lines)
    with FrameWriter(folder, dim=13) as writer:
        for utterance, matrix in sorted(
            read_matrices(golden / "features/mfcc39_cmvn.txt.gz")
        ):
            cepstra = np.ascontiguousarray(matrix[:, :13])
            speaker = speaker_of(utterance)
            writer.append(utterance, speaker, texts[utterance], cepstra)
    return folder


def test_aligning_with_kaldis_system_gives_kaldis_transforms(
    golden, repository, system, frames, wanted, tmp_path
):
    """Both passes of the stage, from the stored frames: alignments and transforms."""
    out = tmp_path / "tri3b" / "test"
    align_gmm(
        SetJob(
            frames_dir=frames,
            lang_dir=golden / "lang",
            model_dir=system,
            out_dir=out,
            threads=1,
            max_skipped_fraction=0.0,
        ),
        options=AlignAdaptedOptions(fmllr={"min_count": 50.0}),
        graph=GraphOptions(),
    )
    found = dict(read_matrices(out / "trans.ark"))
    assert list(found) == sorted(wanted)
    for speaker, matrix in found.items():
        error = np.linalg.norm(matrix - wanted[speaker])
        assert error < 1e-3 * np.linalg.norm(wanted[speaker])
    statistics = json.loads((out / "statistics.json").read_text())
    assert statistics["num_aligned"] == 6
    assert statistics["adaptation"]["num_speakers"] == 6
    assert statistics["adaptation"]["gain_per_frame"] > 10
    first = dict(read_int_vectors(golden / "transform/ali_tri3b_pass1.txt"))
    second = dict(read_int_vectors(out / "ali.ark"))
    assert first.keys() == second.keys()
    same = [np.mean(first[u] == second[u]) for u in first]
    assert np.mean(same) > 0.8  # the features are others, the words are not
