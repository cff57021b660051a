"""Results that experiments share: the folder that they are kept in."""

import os
import time

import pytest

from latflow.cli.main import main
from latflow.workflow.result_cache import Entry, ResultCache, facts_of

NAMES = ("gmm/mono/final.mdl", "logs/train_mono/mono.log")


def write(results, text="model"):
    """Write the files of a job; return its entry."""
    for name in NAMES:
        path = results / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Entry(rule="train", experiment="one", files=facts_of(results, NAMES))


@pytest.fixture
def cache(tmp_path):
    return ResultCache(tmp_path / "cache")


def test_what_one_keeps_another_takes(tmp_path, cache):
    one, two = tmp_path / "one", tmp_path / "two"
    entry = cache.keep("key", write(one), one)
    cache.take("key", cache.find("key"), two)
    model, log = ([folder / name for folder in (one, two)] for name in NAMES)
    assert model[0].samefile(model[1])
    assert not log[0].samefile(log[1])  # a log may be written on
    assert log[1].read_text() == "model"
    assert facts_of(two, NAMES) == entry.files


def test_a_file_changed_in_place_is_never_taken(tmp_path, cache):
    one = tmp_path / "one"
    cache.keep("key", write(one), one)
    (one / NAMES[0]).write_text("ruined")
    assert cache.find("key") is None
    assert cache.changed("key") == [NAMES[0]]
    assert dict(cache.prune(days=1)) == {"key": 0}
    assert cache.entries() == []


def test_the_second_to_finish_gets_the_files_of_the_first(tmp_path, cache):
    one, two = tmp_path / "one", tmp_path / "two"
    cache.keep("key", write(one), one)
    other = write(two, "the same, later")
    cache.keep("key", other, two)
    assert (two / NAMES[0]).samefile(one / NAMES[0])
    cache.keep("key", write(two, "forced"), two, replace=True)
    cache.take("key", cache.find("key"), one)
    assert (one / NAMES[0]).read_text() == "forced"


def test_entries_go_when_no_experiment_has_or_uses_them(tmp_path, cache):
    one = tmp_path / "one"
    entry = cache.keep("key", write(one), one)
    assert list(cache.prune(days=0)) == []  # linked
    (one / NAMES[0]).unlink()
    assert list(cache.prune(days=1)) == []  # used just now
    long_ago = time.time() - 2 * 24 * 3600
    os.utime(cache.folder / "key/entry.json", (long_ago, long_ago))
    assert dict(cache.prune(days=1)) == {"key": cache.size(entry)}


def test_a_damaged_entry_is_none(tmp_path, cache):
    one = tmp_path / "one"
    cache.keep("key", write(one), one)
    (cache.folder / "key/entry.json").write_text("{")
    assert cache.find("key") is None
    assert cache.changed("key") == ["entry.json"]


def test_without_links_there_are_copies(tmp_path, cache, monkeypatch):
    def refuse(*_):
        raise OSError("Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    one, two = tmp_path / "one", tmp_path / "two"
    cache.keep("key", write(one), one)
    cache.take("key", cache.find("key"), two)
    assert (two / NAMES[0]).read_text() == "model"
    assert not (two / NAMES[0]).samefile(one / NAMES[0])
    assert facts_of(two, NAMES) == facts_of(one, NAMES)


def test_commands(tmp_path, cache, capsys):
    one, folder = tmp_path / "one", str(cache.folder)
    cache.keep("key", write(one), one)
    assert main(["cache", "list", folder]) == 0
    assert "one  train" in capsys.readouterr().out
    assert main(["cache", "verify", folder]) == 0
    (one / NAMES[0]).write_text("ruined")
    assert main(["cache", "verify", folder]) == 1
    assert f"{NAMES[0]} is gone or was changed" in capsys.readouterr().out
    assert main(["cache", "prune", folder]) == 0
    assert "removed 1 results" in capsys.readouterr().out
    assert main(["cache", "list", folder + "x"]) == 1
