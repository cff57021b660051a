"""The feature stages from audio files to GMM input equal Kaldi's chain of programs."""

import numpy as np
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment

from latflow.features.extract import extract_features
from latflow.features.frames import FrameStore
from latflow.features.normalization import compute_cmvn
from latflow.features.options import FeatureOptions
from latflow.features.transform import FeatureTransform
from latflow.kaldi.io import read_matrices


def test_default_recipe_equals_kaldis_mfcc_cmvn_deltas(golden, corpora, tmp_path):
    wanted = dict(read_matrices(golden / "features" / "mfcc39_cmvn.txt.gz"))
    folder = corpora / "digits" / "test"
    paths = dict(line.split() for line in (folder / "wav.scp").read_text().splitlines())
    lines = (golden / "utt2spk").read_text().splitlines()
    speakers = dict(line.split() for line in lines)
    cuts = []
    for utt_id in sorted(wanted):
        recording = Recording.from_file(folder / paths[utt_id], recording_id=utt_id)
        supervision = SupervisionSegment(
            utt_id, utt_id, 0.0, recording.duration, speaker=speakers[utt_id]
        )
        cuts.append(
            MonoCut(
                utt_id, 0.0, recording.duration, 0, supervisions=[supervision],
                recording=recording,
            )
        )  # fmt: skip
    CutSet.from_cuts(cuts).to_jsonl(tmp_path / "cuts.jsonl.gz")
    options = FeatureOptions(dither=0.0)
    extract_features(
        tmp_path / "cuts.jsonl.gz", tmp_path / "features", options=options, threads=2,
        max_skipped_fraction=0.0,
    )  # fmt: skip
    compute_cmvn(tmp_path / "features", tmp_path / "frames", cmvn=options.cmvn)
    store = FrameStore.load(tmp_path / "frames")
    transform = FeatureTransform.from_config(options.transform.values())
    assert store.utt_ids == sorted(wanted)
    for i, utt_id in enumerate(store.utt_ids):
        made = transform(store.frames(i))
        assert made.shape == wanted[utt_id].shape
        assert np.abs(made - wanted[utt_id]).max() < 2e-3
