"""Folders for Vosk say how features are computed."""

from latflow.decode.vosk import front_end_conf
from latflow.features.options import FrontEndOptions


def test_the_front_end_says_its_dither():
    conf = front_end_conf(FrontEndOptions(type="fbank"), 16000)
    assert "--dither=1\n" in conf
    assert "num-ceps" not in conf
    conf = front_end_conf(FrontEndOptions(dither=0.0), 8000)
    assert {"--dither=0", "--sample-frequency=8000"} < set(conf.splitlines())
