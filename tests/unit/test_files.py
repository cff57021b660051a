"""Files are whole or absent."""

import codecs
import errno
import os

import pytest

from latflow.errors import UserError
from latflow.files import atomic_directory, atomic_output, remove_leftovers, write_text
from latflow.text_files import read_lines


def test_output_appears_only_after_the_block(tmp_path):
    target = tmp_path / "deep" / "out.txt"
    with atomic_output(target) as temporary:
        temporary.write_text("done")
        assert not target.exists()
    assert target.read_text() == "done"


def test_failure_keeps_the_old_output_and_no_temporary(tmp_path):
    target = tmp_path / "out.txt"
    target.write_text("old")
    with pytest.raises(RuntimeError), atomic_output(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_pipes_and_open_files_stay_and_get_what_is_written(tmp_path):
    """A device is like a pipe: root would replace /dev/null by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "through")
    assert os.read(reader, 100) == b"through"
    assert pipe.is_fifo()
    os.close(reader)
    opened = tmp_path / "opened"
    with opened.open("wb") as stream:
        stream.write(b"before ")
        stream.flush()
        inode = os.fstat(stream.fileno()).st_ino
        write_text(f"/dev/fd/{stream.fileno()}", "behind")
    assert opened.read_text() == "before behind"
    assert opened.stat().st_ino == inode
    assert sorted(os.listdir(tmp_path)) == ["opened", "pipe"]


def test_what_has_no_name_is_no_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for nameless in ("", "/"):
        with pytest.raises(UserError, match="is not a name of a file"):
            write_text(nameless, "x")


def test_a_link_to_a_folder_is_not_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/kept").touch()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with (
        pytest.raises(UserError, match="is a link"),
        atomic_directory(tmp_path / "link"),
    ):
        pass
    assert (tmp_path / "link/kept").exists()


def test_temporary_keeps_all_suffixes(tmp_path):
    with atomic_output(tmp_path / "cuts.jsonl.gz") as temporary:
        assert temporary.name.endswith(".jsonl.gz")
        temporary.write_bytes(b"")


def test_full_disk_is_one_clear_line(tmp_path):
    target = tmp_path / "out.txt"
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        pytest.raises(UserError, match="no space left.*free space"),
        atomic_output(target) as temporary,
    ):
        temporary.write_text("half")
        raise full
    assert os.listdir(tmp_path) == []


def test_directory_replaces_the_old_one_as_a_whole(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "stale").write_text("x")
    with atomic_directory(target) as temporary:
        (temporary / "fresh").write_text("y")
    assert os.listdir(target) == ["fresh"]


def test_leftovers_of_killed_jobs_are_removed(tmp_path):
    (tmp_path / "kept.tmp.txt").write_text("x")
    (tmp_path / "model/.tmp.1/deep").mkdir(parents=True)
    # As a killed job leaves them: the blocks do not end.
    file = atomic_output(tmp_path / "model" / "out.txt")
    file.__enter__().write_text("half")
    folder = atomic_directory(tmp_path / "model" / "frames")
    (folder.__enter__() / "meta.json").write_text("half")
    assert len(remove_leftovers(tmp_path)) == 3
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["kept.tmp.txt", "model"]
    assert remove_leftovers(tmp_path) == []


def test_lines_that_are_not_utf8_are_named(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"good line\nb\xe4d line\n")
    with pytest.raises(UserError, match="text: line 2 is not UTF-8"):
        list(read_lines(path))


def test_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        list(read_lines(tmp_path / "absent"))
    with pytest.raises(UserError, match="is a folder, not a file"):
        list(read_lines(tmp_path))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be-sig", "utf-32"]
)
def test_text_of_any_encoding_and_line_end_is_read(tmp_path, encoding, end):
    path = tmp_path / "text"
    lines = ["één ñ", "", "ζ 三", "x"]
    text = end.join(lines)
    if encoding == "utf-16-be-sig":
        path.write_bytes(codecs.BOM_UTF16_BE + text.encode("utf-16-be"))
    else:
        path.write_bytes(text.encode(encoding))
    assert list(read_lines(path)) == list(enumerate(lines, start=1))


@pytest.mark.parametrize("end", ["\n", "\r"])
def test_text_in_latin_1_is_refused_with_its_line(tmp_path, end):
    path = tmp_path / "text"
    path.write_bytes(f"one{end}caf\xe9{end}".encode("latin-1"))
    with pytest.raises(UserError, match=r"line 2 is not UTF-8 \(byte 4\)"):
        list(read_lines(path))


def test_utf_16_without_mark_or_cut_is_refused(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("one two\n".encode("utf-16-le"))
    with pytest.raises(UserError, match=r"line 1 has a zero byte \(byte 2\)"):
        list(read_lines(path))
    path.write_bytes("one two\n".encode("utf-16")[:-1])
    with pytest.raises(UserError, match="is not the UTF-16 that it begins as"):
        list(read_lines(path))


def test_what_gets_its_name_is_on_the_disk_before(tmp_path, monkeypatch):
    """Of a file, and of all files and folders of a folder; then the folder around."""
    done = []

    def note(kind):
        real = getattr(os, kind)

        def call(*arguments):
            what = arguments[0]
            if isinstance(what, int):
                what = os.readlink(f"/proc/self/fd/{what}")
            done.append((kind, os.path.basename(what).split(".tmp.")[-1]))
            return real(*arguments)

        return call

    for kind in ("fsync", "replace"):
        monkeypatch.setattr(os, kind, note(kind))
    write_text(tmp_path / "a", "x")
    top = tmp_path.name
    assert done == [("fsync", "a"), ("replace", "a"), ("fsync", top)]
    done.clear()
    with atomic_directory(tmp_path / "d") as folder:
        (folder / "sub").mkdir()
        (folder / "sub/file").write_text("x")
        (folder / "link").symlink_to("nowhere")
    kinds = [kind for kind, _ in done]
    assert kinds == ["fsync"] * 3 + ["replace", "fsync"]
    assert {name for _, name in done[:3]} >= {"sub", "file"}
    assert done[-1] == ("fsync", top)


def test_a_file_system_without_fsync_is_written(tmp_path, monkeypatch):
    def refuse(_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    write_text(tmp_path / "a", "x")
    assert (tmp_path / "a").read_text() == "x"


@pytest.mark.parametrize("name", ["lexicon.txt", "table.csv.gz"])
def test_what_git_lfs_did_not_fetch_is_no_text(tmp_path, name):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:7c19\nsize 225\n"
    (tmp_path / name).write_text(pointer)
    with pytest.raises(UserError, match=f"{name}: stands for a file of Git LFS.*pull"):
        next(read_lines(tmp_path / name))
