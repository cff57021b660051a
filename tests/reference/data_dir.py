"""Frames of a small Kaldi data directory, the plain way: for golden tests."""

import soundfile

from latflow.features.cmvn import cmvn_statistics, normalize
from latflow.features.frames import FrameWriter
from latflow.features.front_end import KaldiFrontEnd
from latflow.features.options import FrontEndOptions, SpeakerCmvn


def _table(path):
    rows = (line.split(maxsplit=1) for line in path.read_text().splitlines())
    return {key: value.strip() for key, value in rows}


def write_mfcc_store(folder, data, sample_rate=8000):
    """MFCC with the means of each speaker removed, of a data directory."""
    front_end = KaldiFrontEnd(FrontEndOptions(dither=0.0), sample_rate)
    texts, speakers = _table(data / "text"), _table(data / "utt2spk")
    features, totals = {}, {}
    for utterance, name in sorted(_table(data / "wav.scp").items()):
        wave, _ = soundfile.read(data / name, dtype="float32")
        features[utterance] = front_end.extract(wave)
        counted = cmvn_statistics(features[utterance])
        speaker = speakers[utterance]
        totals[speaker] = totals.get(speaker, 0.0) + counted
    with FrameWriter(folder, dim=13) as writer:
        for utterance, frames in features.items():
            speaker = speakers[utterance]
            normal = normalize(frames, SpeakerCmvn(), totals[speaker])
            writer.append(utterance, speaker, texts[utterance], normal)
    return folder
