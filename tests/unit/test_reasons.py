"""Why a job runs again, in one line."""

from snakemake.persistence import ParamsChange

from latflow.workflow.contents import Listings
from latflow.workflow.reasons import describe, name_changes


def said(before, now):
    return describe(map(repr, before), map(repr, now))


def test_the_option_that_differs_is_named():
    before = {"beam": 10.0, "fmllr": {"tau": 1, "kind": "full"}, "more": [1] * 99}
    now = {"beam": 10.0, "fmllr": {"tau": 2, "kind": "full"}, "more": [1] * 99}
    assert said([before], [now]) == "fmllr.tau: 1 -> 2"
    assert said([{"a": 1}], [{"a": 1, "b": None}]) == "b: (nothing) -> None"


def test_params_are_compared_with_those_that_they_were():
    search, model = {"beam": 1, "retry": 2}, {"leaves": 3, "size": 4}
    new = [{**model, "size": 5}, {**search, "beam": 9}]
    assert said([search, model], new) == "beam: 1 -> 9; size: 4 -> 5"
    assert said([0.5], [0.7]) == "0.5 -> 0.7"
    assert said([0.5], ["tri3"]) == "(nothing) -> 'tri3'; 0.5 -> (nothing)"


def test_digests_tell_what_they_are_of():
    stage = "latflow.gmm.train.train_mono {}"
    before, now = stage.format("0123456789ab"), stage.format("ba9876543210")
    assert said([before], [now]) == "code that latflow.gmm.train.train_mono reaches"
    one, two = "/data/a 0123456789ab /data/b 0123456789ab", "/data/a 0123456789ab"
    assert said([one], [f"{two} /data/b ba9876543210"]) == "files below /data/b"


def test_the_files_of_a_folder_that_differ_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".snakemake").mkdir()
    before, now = "0123456789abcdef", "fedcba9876543210"
    files = {f"{i}.wav": "44 1" for i in range(9)}
    Listings().keep("/data/a", before, files | {"a.txt": "x", "gone.txt": "y"})
    Listings().keep("/data/a", now, files | {"a.txt": "z", "new.wav": "44 2"})
    line = said([f"/data/a {before}"], [f"/data/a {now}"])
    assert line == "files below /data/a (a.txt, gone.txt, new.wav)"
    Listings().keep("/data/a", "0" * 16, dict.fromkeys(files, "44 3"))
    line = said([f"/data/a {now}"], [f"/data/a {'0' * 16}"])
    assert line == "files below /data/a (0.wav, 1.wav, 2.wav and 8 more)"
    for digest in ("1" * 16, "2" * 16):  # old listings are forgotten
        Listings().keep("/data/a", digest, files)
    assert said([f"/data/a {now}"], [f"/data/a {'0' * 16}"]) == "files below /data/a"


def test_much_is_cut_short():
    before = {f"k{i}": "x" * 100 for i in range(9)}
    line = said([before], [dict.fromkeys(before, "y")])
    assert line.count("->") == 6
    assert line.endswith(", and 3 more")
    assert len(line) < 700


def test_snakemake_says_it(monkeypatch):
    monkeypatch.setattr(ParamsChange, "__str__", ParamsChange.__str__)
    name_changes()
    change = ParamsChange({"{'beam': 10}"}, {"{'beam': 11}"}, {"file"})
    assert str(change) == "beam: 10 -> 11"
