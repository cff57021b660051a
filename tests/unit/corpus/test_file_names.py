"""Names of files for ids that are anybody's."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latflow.corpus.audio import BadAudio
from latflow.corpus.audio_folder import AudioFolder
from latflow.corpus.ids import file_name
from latflow.errors import UserError
from latflow.features.storage import FeatureStorage

#: Ids that would leave the folder, hide, or name no file.
HOSTILE = (
    *("../../x", "..", ".", "/etc/x", "a/../../x", "//x", "a//b", "", "a/"),
    *("a\0b", "a\nb", "\ud800", "\udcff", "%2F", ".hidden", "x" * 200),
)


@pytest.mark.parametrize(
    ("name", "flat", "in_folders"),
    [
        ("talk one", "talk one.txt", "talk one.txt"),
        ("lucas/talk", "lucas%2Ftalk.txt", "lucas/talk.txt"),
        ("../x", "%2E.%2Fx.txt", "%2E./x.txt"),
        ("/etc/x", "%2Fetc%2Fx.txt", "%/etc/x.txt"),
        ("grüße", "grüße.txt", "grüße.txt"),
        ("100%", "100%25.txt", "100%25.txt"),
        ("a\0b\n", "a%00b%0A.txt", "a%00b%0A.txt"),
        ("\ud800", "%ED%A0%80.txt", "%ED%A0%80.txt"),
        ("", "%.txt", "%.txt"),
    ],
)
def test_names_of_files(name, flat, in_folders):
    assert file_name(name, ".txt") == flat
    assert file_name(name, ".txt", in_folders=True) == in_folders


def stays_inside(folder, path):
    return path.resolve().is_relative_to(folder.resolve()) and path != folder


@given(st.text(alphabet=st.characters() | st.sampled_from("./%\0"), max_size=30))
def test_no_name_leaves_its_folder(name):
    top = Path("/some/folder")
    flat = file_name(name)
    assert "/" not in flat
    assert flat not in ("", ".", "..")
    assert stays_inside(top, top / file_name(name, in_folders=True))
    flat.encode()


@given(st.lists(st.text(alphabet="a./%25\0", max_size=5), unique=True, max_size=20))
def test_other_ids_have_other_names(names):
    for in_folders in (False, True):
        found = [file_name(name, in_folders=in_folders) for name in names]
        assert len({*found}) == len(names)


def test_a_name_that_is_too_long_is_told():
    with pytest.raises(UserError, match=r"a{40}\.\.\.: has an id too long"):
        file_name("a" * 252, ".wav")
    file_name("a" * 251, ".wav")
    with pytest.raises(UserError, match="too long"):
        file_name("é" * 126, ".wav")


@pytest.mark.parametrize("kind", ["numpy_files", "lilcom_files", "numpy_hdf5"])
def test_features_are_stored_below_their_folder(tmp_path, kind):
    folder = tmp_path / "top/storage"
    storage = FeatureStorage(kind, folder, folder)
    for name in HOSTILE:
        storage.write(name, np.zeros((3, 2), np.float32))
    storage.close()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == (1 if kind.endswith("hdf5") else len(HOSTILE))
    assert all(path.is_relative_to(folder) for path in files)


def test_audio_is_kept_below_its_folder(tmp_path):
    audio = AudioFolder(tmp_path / "a/b", tmp_path / "a/b")
    for name in HOSTILE:
        assert audio.place(name, ".wav").parent == tmp_path / "a/b"
    with pytest.raises(BadAudio, match="too long"):
        audio.place("x" * 300, ".wav")
