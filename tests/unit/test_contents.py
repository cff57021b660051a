"""Digests of contents, kept by size, time and inode."""

import gzip
import json
import os
import shutil
from pathlib import Path

import pytest

from latflow.workflow.contents import Contents


@pytest.fixture
def kept(tmp_path):
    return tmp_path / "kept.json.gz"


@pytest.fixture
def file(tmp_path):
    """A file that was written an hour ago."""
    path = tmp_path / "a.txt"
    write(path, "one")
    return path


def write(path, text, age=3600):
    path.write_text(text)
    now = path.stat().st_mtime
    os.utime(path, (now - age, now - age))


def digest(path, kept):
    contents = Contents(kept)
    found = contents(path, path.stat())
    contents.save()
    return found


def test_same_bytes_have_the_same_digest_whenever_they_were_written(file, kept):
    before = digest(file, kept)
    write(file, "one", age=10)
    assert digest(file, kept) == before
    shutil.copy(file, file.with_suffix(".lab"))
    assert digest(file.with_suffix(".lab"), kept) == before
    write(file, "two", age=5)
    assert digest(file, kept) != before


def test_a_file_that_is_as_it_was_is_not_read_again(file, kept, monkeypatch):
    before = digest(file, kept)

    def read_bytes(path):
        assert path == kept, "read again"
        with path.open("rb") as stream:
            return stream.read()

    monkeypatch.setattr(type(file), "read_bytes", read_bytes)
    assert digest(file, kept) == before


def test_what_has_just_changed_is_read_again(file, kept):
    file.write_text("one")
    facts = file.stat()
    before = digest(file, kept)
    file.write_text("two")
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert digest(file, kept) != before


@pytest.mark.parametrize("rest", [b"", b"junk", b"\x1f\x8b\x08junk"])
def test_a_damaged_file_of_digests_is_made_again(file, kept, rest):
    before = digest(file, kept)
    kept.write_bytes(rest)
    assert digest(file, kept) == before
    assert len(kept.read_bytes()) > 20


def test_two_that_save_keep_what_both_have_read(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (1e9, 1e9))
    kept = tmp_path / "kept.json.gz"
    for name, contents in (("a", Contents(kept)), ("b", Contents(kept))):
        contents(tmp_path / name, (tmp_path / name).stat())
        contents.save()
    found = json.loads(gzip.decompress(kept.read_bytes()))
    assert {Path(name).name for name in found} == {"a", "b"}
