"""Options of Vosk's folders, and folders that are refused.

`tests/golden/test_vosk.py` imports whole folders.
"""

import pytest

from latflow.cli.main import main
from latflow.decode.options import SearchOptions
from latflow.decode.vosk import front_end_conf
from latflow.errors import UserError
from latflow.features.options import FrontEndOptions
from latflow.serving.vosk_folder import find_folder, read_conf

MODEL = "--frame-subsampling-factor=3\n--acoustic-scale=1.0\n"


def conf_of(folder, front_end="", model=MODEL, name="mfcc"):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.conf").write_text(front_end)
    (folder / "model.conf").write_text(model)
    return read_conf(find_folder(folder.parent))


@pytest.mark.parametrize(
    "options",
    [
        FrontEndOptions(num_mel_bins=40, num_ceps=40, high_freq=-400, dither=0.0),
        FrontEndOptions(type="fbank", use_energy=True, snip_edges=False),
        FrontEndOptions(window_type="hamming", preemphasis=0.5, cepstral_lifter=0.0),
    ],
)
def test_what_the_export_says_is_read(tmp_path, options):
    text = front_end_conf(options, 8000)
    found = conf_of(tmp_path / "conf", text, name=options.type)
    assert (found.front_end, found.sample_rate) == (options, 8000)


def test_what_is_not_said_is_as_kaldi_has_it(tmp_path):
    found = conf_of(tmp_path / "conf", "# comment\n--num-ceps=20   # 20 of 23\n\n", "")
    assert found.front_end == FrontEndOptions(num_ceps=20, use_energy=True)
    assert (found.sample_rate, found.subsampling, found.acoustic_scale) == (
        16000,
        1,
        0.1,
    )
    assert (found.search.beam, found.search.lattice_beam) == (16.0, 10.0)
    assert found.search.retry_beam_factor == SearchOptions().retry_beam_factor


def test_names_of_options_are_read_as_kaldi_reads_them(tmp_path):
    found = conf_of(tmp_path / "conf", "--allow_upsample=true\n--Num_Ceps=20\n")
    assert found.front_end.num_ceps == 20


def test_endpoint_rules_and_silence_are_taken_over(tmp_path, caplog):
    text = (
        f"{MODEL}--endpoint.silence-phones=1:2:10\n--beam=13\n--max-active=3000\n"
        "--endpoint.rule2.min-trailing-silence=0.75\n--prune-scale=0.1\n"
        "--endpoint.rule3.max-relative-cost=inf\n"
        "--endpoint.rule1.must-contain-nonsilence=True\n"
    )
    found = conf_of(tmp_path / "conf", "", text)
    assert found.silence_phones == (1, 2, 10)
    assert found.endpoint.rule2.min_trailing_silence == 0.75
    assert found.endpoint.rule2.max_relative_cost == 2.0
    assert found.endpoint.rule3.max_relative_cost is None
    assert found.endpoint.rule1.must_contain_nonsilence
    assert (found.search.beam, found.search.max_active) == (13.0, 3000)
    assert "--prune-scale is not used" in caplog.text


@pytest.mark.parametrize(
    ("front_end", "model", "what"),
    [
        ("--htk-compat=true\n", MODEL, "htk-compat=true is not supported - only false"),
        ("--energy-floor=1.0\n", MODEL, "energy-floor=1.0 is not supported"),
        ("--pitch=1\n", MODEL, "--pitch is not known"),
        ("num-ceps=3\n", MODEL, "line 1 is not --option=value"),
        ("--num-ceps=x\n", MODEL, "num_ceps"),
        ("--sample-frequency=0\n", MODEL, "sample-frequency is 0"),
        ("", "--beam=-1\n", "beam"),
        ("", "--frame-subsampling-factor=0\n", "frame-subsampling-factor is 0"),
        ("", "--endpoint.rule2.no-such=1\n", "rule2"),
        ("", "--beam=inf\n", "beam: should be a finite number"),
        ("", "--beam 11\n", "line 1 is not --option=value: '--beam 11'"),
        ("", "--endpoint.silence-phones=1:2:x\n", "'x' is not an id of a phone"),
        ("", "--endpoint.silence-phones=-1\n", "'-1' is not an id of a phone"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(tmp_path, front_end, model, what):
    with pytest.raises(UserError, match=what) as told:
        conf_of(tmp_path / "conf", front_end, model)
    assert "\n" not in str(told.value)
    assert ".conf" in str(told.value)


def test_a_folder_without_files_is_refused(tmp_path, capsys):
    told = ["import-kaldi", "vosk", str(tmp_path / "no"), str(tmp_path / "results")]
    assert main(told) == 1
    assert "no such folder" in capsys.readouterr().err
    conf_of(tmp_path / "conf")
    told[2] = str(tmp_path)
    assert main(told) == 1
    assert "am/final.mdl: no such file" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_what_is_missing_is_told_before_much_is_read(tmp_path, capsys):
    model = tmp_path / "up/vosk-model"
    told = ["import-kaldi", "vosk", str(model), str(tmp_path / "results")]

    def said():
        assert main(told) == 1
        return capsys.readouterr().err

    def touch(name):
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).touch()

    touch("am/final.mdl")
    assert "graph/HCLG.fst: no such file" in said()
    touch("graph/HCLG.fst")
    assert "conf: no mfcc.conf (or fbank.conf) here" in said()
    told[2] = str(tmp_path / "up")
    assert f"with am/, conf/ and graph/: {model}" in said()
    told[2] = str(model / "am/final.mdl")
    assert "is a file, not a folder - unpack it" in said()
    touch("graph/HCLr.fst")
    (model / "graph/HCLG.fst").unlink()
    told[2] = str(model)
    assert "graph/Gr.fst: no such file" in said()


def test_the_old_layout_has_its_options_built_in(tmp_path):
    for name in ("final.mdl", "mfcc.conf", "HCLr.fst"):
        (tmp_path / name).touch()
    folder = find_folder(tmp_path)
    assert (folder.model, folder.graph) == (tmp_path / "final.mdl", tmp_path)
    assert folder.phones == tmp_path
    assert folder.has_parts
    found = read_conf(folder)
    assert (found.search.beam, found.search.max_active) == (13.0, 7000)
    assert (found.search.lattice_beam, found.search.min_active) == (6.0, 200)
    assert (found.acoustic_scale, found.subsampling) == (1.0, 3)
    assert found.silence_phones == tuple(range(1, 11))
    assert found.endpoint.rule3.min_trailing_silence == 1.0
