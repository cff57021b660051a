"""Our extractors and files as Lhotse's own code uses them."""

import lhotse
import numpy as np
import pytest
import soundfile
import yaml
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment
from lhotse.features.base import FeatureExtractor, get_extractor_type

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.features.extract import KaldiFbank, KaldiFrontEndConfig, extract_features
from latflow.features.extractor_file import (
    EXTRACTOR_FILE,
    read_extractor,
    write_extractor,
)
from latflow.features.frames import FrameStore
from latflow.features.lhotse_extractors import LhotseExtractor
from latflow.features.options import (
    Extraction,
    ExtractionOptions,
    FrontEndOptions,
    LhotseExtractionOptions,
)
from latflow.features.storage import export_features
from latflow.options import read_options

RATE = 16000
OURS = ("latflow-mfcc", "latflow-fbank", "latflow-waveform")
# A frame too few, and one too many: neither is Lhotse's count.
UNEVEN = """
from dataclasses import dataclass
import numpy as np
from lhotse.features.base import FeatureExtractor

@dataclass
class Config:
    more: int = 0

class Uneven(FeatureExtractor):
    name = "uneven"
    config_type = Config
    frame_shift = 0.01

    def feature_dim(self, sampling_rate):
        return 2

    def extract(self, samples, sampling_rate):
        count = samples.shape[1] // 160 + self.config.more
        return np.arange(2.0 * count, dtype=np.float32).reshape(count, 2)
"""


@pytest.fixture
def cuts(tmp_path):
    """Two cuts of noise, of 0.5 and 0.617 s."""
    wave = 0.1 * np.random.default_rng(1).normal(size=2 * RATE)
    soundfile.write(tmp_path / "a.flac", wave, RATE, subtype="PCM_16")
    recording = Recording.from_file(tmp_path / "a.flac")
    made = []
    for name, start, duration in (("u0", 0.0, 0.5), ("u1", 0.5, 0.617)):
        said = SupervisionSegment(name, "a", 0.0, duration, text="a", speaker="s")
        made.append(MonoCut(name, start, duration, 0, [said], recording=recording))
    found = CutSet.from_cuts(made)
    found.to_jsonl(tmp_path / "cuts.jsonl.gz")
    return found


def exported(folder, options):
    extract_features(
        folder / "cuts.jsonl.gz", folder / "features", options=options, threads=1,
        max_skipped_fraction=0.0,
    )  # fmt: skip
    export_features(folder / "features", folder / "cuts.jsonl.gz", folder / "out")
    return CutSet.from_jsonl(folder / "out/cuts.jsonl.gz")


@pytest.mark.parametrize("name", OURS)
def test_without_settings_frames_are_counted_as_lhotse_does(cuts, tmp_path, name):
    extractor = get_extractor_type(name)()
    made = cuts.compute_and_store_features(extractor, tmp_path / "stored")
    lhotse.validate(made, read_data=True)
    assert [cut.num_frames for cut in made] == [50, 62]
    assert {cut.num_features for cut in made} == {extractor.feature_dim(RATE)}


def test_settings_of_another_type_are_refused():
    with pytest.raises(ValueError, match="options of mfcc for latflow-fbank"):
        KaldiFbank(KaldiFrontEndConfig(options=FrontEndOptions()))


def test_lhotse_mixes_features_as_it_mixes_signals(cuts, tmp_path):
    extractor = KaldiFbank()
    options = extractor.config.options.replace(dither=0.0)
    extractor = KaldiFbank(KaldiFrontEndConfig(options=options))
    first, second = cuts.compute_and_store_features(extractor, tmp_path / "stored")
    mixed = first.mix(second, snr=10, offset_other_by=0.1)
    found = mixed.load_features(mixed=True)
    wanted = extractor.extract(mixed.load_audio(mixed=True), RATE)
    assert found.shape == wanted.shape
    # The phases are not known, and of frames at edges the windows.
    assert np.abs(found - wanted)[15:45].mean() < 0.3
    assert np.abs(first.load_features()[15:45] - wanted[15:45]).mean() > 0.04
    energy = extractor.compute_energy(first.load_features())
    louder = extractor.scale(first.load_features(), 4.0)
    assert extractor.compute_energy(louder) == pytest.approx(4 * energy, rel=1e-4)


@pytest.mark.parametrize("kind", ["mfcc", "fbank", "waveform"])
@pytest.mark.parametrize("snip_edges", [True, False])
def test_what_is_exported_is_valid_and_its_extractor_is_read(
    cuts, tmp_path, kind, snip_edges
):
    options = {"type": kind, "snip_edges": snip_edges, "dither": 0.0}
    options = read_options(ExtractionOptions, options)
    made = exported(tmp_path, options)
    lhotse.validate(made, read_data=True)
    extractor = FeatureExtractor.from_yaml(tmp_path / "out" / EXTRACTOR_FILE)
    again = extractor.extract(cuts["u1"].load_audio(), RATE)
    np.testing.assert_array_equal(made["u1"].load_features(), again)
    read = read_extractor(tmp_path / "out" / EXTRACTOR_FILE)
    assert read == options.replace(sample_rate=RATE)


@pytest.mark.parametrize("more", [0, 1, 2])
def test_other_numbers_of_frames_become_valid_too(cuts, tmp_path, more, caplog):
    (tmp_path / "own.py").write_text(UNEVEN)
    options = LhotseExtractionOptions(
        extractor=f"{tmp_path}/own.py:Uneven", options={"more": more}, sample_rate=RATE
    )
    with caplog.at_level("INFO"):
        made = exported(tmp_path, options)
    lhotse.validate(made, read_data=True)
    assert [cut.num_frames for cut in made] == [50, 61 if more == 0 else 62]
    assert ("1 cuts are shortened" in caplog.text) == (more == 0)
    assert ("frames behind the end of" in caplog.text) == (more > 0)


def test_an_extractor_in_lhotse_s_form_takes_the_place_of_a_recipe(cuts, tmp_path):
    file = tmp_path / "f.yaml"
    extractor = get_extractor_type("kaldi-log-spectrogram")()
    extractor.to_yaml(file)
    arguments = [tmp_path / "cuts.jsonl.gz", tmp_path / "made", "--extractor", file]
    assert main(["features", *map(str, arguments)]) == 0
    store = FrameStore.load(tmp_path / "made")
    wanted = extractor.extract(cuts["u0"].load_audio(), RATE)
    np.testing.assert_array_equal(store.frames(store.position("u0")), wanted)
    export_features(tmp_path / "made", tmp_path / "cuts.jsonl.gz", tmp_path / "out")
    again = read_extractor(tmp_path / "out" / EXTRACTOR_FILE)
    assert again == read_options(Extraction, store.meta["extraction"]).replace(
        sample_rate=RATE, options={**again.options}
    )
    assert FeatureExtractor.from_yaml(tmp_path / "out" / EXTRACTOR_FILE)


@pytest.mark.parametrize(
    ("name", "place"), [("kaldi-fbank", ()), ("kaldifeat-fbank", ("frame_opts",))]
)
def test_the_sample_rate_stands_where_lhotse_has_it(tmp_path, name, place):
    options = {"extractor": name, "options": {}}
    given = read_options(LhotseExtractionOptions, options)
    write_extractor(tmp_path / "f.yaml", given.values(), 8000)
    found = yaml.safe_load((tmp_path / "f.yaml").read_text())
    assert found["feature_type"] == name
    for key in place:
        found = found[key]
    assert found["sampling_rate"] == 8000


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sampling_rate: 8000", "does not name an extractor"),
        ("feature_type: latflow-plp", "plp"),
        ("{feature_type: latflow-fbank, options: 3}", "not a mapping"),
        ("{feature_type: latflow-fbank, options: {bins: 3}}", "bins"),
    ],
)
def test_files_that_name_no_extractor_are_refused(tmp_path, text, told):
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(UserError, match=told):
        read_extractor(tmp_path / "f.yaml")


def test_an_extractor_that_fails_is_found_before_the_run(tmp_path):
    (tmp_path / "own.py").write_text(UNEVEN.replace("count = ", "count = 1 / 0 + "))
    options = LhotseExtractionOptions(extractor=f"{tmp_path}/own.py:Uneven")
    extractor = LhotseExtractor(options, RATE, key="nnet.features.mine")
    told = r"nnet\.features\.mine\.extractor: extractor uneven: ZeroDivisionError"
    with pytest.raises(UserError, match=told):
        extractor.check()


def test_torchaudio_does_without_a_library_that_does_not_load(tmp_path, monkeypatch):
    import sys

    from latflow.features.lhotse_extractors import _load_torchaudio

    fake = tmp_path / "torchaudio"
    (fake / "_extension").mkdir(parents=True)
    (fake / "__init__.py").write_text("from . import _extension")
    broken = "raise OSError('libtorch_cuda.so: no such file')"
    (fake / "_extension/__init__.py").write_text(broken)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("torchaudio")]:
        monkeypatch.delitem(sys.modules, name)
    _load_torchaudio()
    found = sys.modules["torchaudio"]
    assert found.__file__ == str(fake / "__init__.py")
    assert found._extension._IS_TORCHAUDIO_EXT_AVAILABLE is False
    for name in ("torchaudio", "torchaudio._extension"):
        del sys.modules[name]
