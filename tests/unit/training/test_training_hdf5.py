"""HDF5 files of RETURNN's layout, as its own and others' writers make them."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from lhotse import MonoCut, Recording, SupervisionSegment

from latflow.corpus.json_lines import ManifestWriter
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.ledger import read_ledger
from latflow.training.data_options import Hdf5Options
from latflow.training.hdf5 import export_hdf, import_hdf, import_split
from latflow.training.labels import LabelStore, LabelWriter


def write_labels(folder: Path, labels: dict[str, list[int]], classes: int = 9) -> Path:
    with LabelWriter(folder, classes) as writer:
        for utt_id, values in labels.items():
            writer.append(utt_id, np.array(values, np.int32))
    return folder


def write_frames(
    folder: Path, lengths: dict[str, int], dim: int = 2, *, speakers: int = 1
) -> Path:
    generator = np.random.default_rng(0)
    with FrameWriter(folder, dim=dim) as writer:
        for i, (utt_id, length) in enumerate(lengths.items()):
            values = generator.normal(3.0, 2.0, (length, dim))
            speaker = f"speaker{min(i, speakers - 1)}"
            writer.append(utt_id, speaker, "text", values)
    return folder


def test_frames_and_labels_survive_hdf5(tmp_path: Path) -> None:
    lengths = {"rec/1": 5, "rec/2": 3, "x": 4, "ü": 1}
    frames = write_frames(tmp_path / "frames", lengths, dim=3)
    labels = {"ü": [7], "rec/1": [1, 2, 3, 4, 5], "x": [3, -1, 3, 3]}
    pdf = write_labels(tmp_path / "pdf", labels)
    few = write_labels(tmp_path / "few", {u: v[:1] for u, v in labels.items()}, 8)
    out = tmp_path / "data.hdf"
    assert export_hdf(frames, {"pdf": pdf, "few": few}, out) == 3
    with h5py.File(out) as file:  # the layout that RETURNN's HDFDataset reads
        assert file["inputs"].shape == (10, 3)
        # columns of seqLengths: data, then the targets by name
        assert file["seqLengths"][...].tolist() == [[5, 1, 5], [4, 1, 4], [1, 1, 1]]
        assert file["seqTags"][...].tolist() == [b"rec/1", b"x", "ü".encode()]
        assert file["targets/size"].attrs["pdf"].tolist() == [9, 1]
        assert file["targets/data/pdf"].dtype == np.int32
        assert len(file["targets/labels/few"]) == 8
        assert file.attrs["inputPattSize"] == 3
        assert file.attrs["numLabels"] == 8
    import_hdf([out], tmp_path / "frames2", tmp_path / "labels2")
    old, new = FrameStore.load(frames), FrameStore.load(tmp_path / "frames2")
    assert new.utt_ids == ["rec/1", "x", "ü"]
    for utt_id in new.utt_ids:
        np.testing.assert_array_equal(
            new.frames(new.position(utt_id)), old.frames(old.position(utt_id))
        )
    store = LabelStore.load(tmp_path / "labels2/pdf")
    got = {u: store.labels(i).tolist() for i, u in enumerate(store.utt_ids)}
    assert got == labels
    assert LabelStore.load(tmp_path / "labels2/few").num_classes == 8


def write_hdf(path: Path, tags: list[str], lengths: list[list[int]], **extra) -> Path:
    """A file as RETURNN's writers make them, with tags of fixed length."""
    array = np.array(lengths)
    with h5py.File(path, "w") as file:
        total = array.sum(0)
        file["inputs"] = np.arange(total[0] * 2.0).reshape(-1, 2)
        file["seqLengths"] = array
        file["seqTags"] = np.array([tag.encode() for tag in tags], "S16")
        for i, (name, values) in enumerate(sorted(extra.items())):
            file[f"targets/data/{name}"] = values
            file.require_group("targets/size").attrs[name] = 10
            file.require_group("targets/labels")
            assert len(values) == total[1 + i]
    return path


def test_files_of_other_writers_are_read_in_order_of_their_tags(tmp_path: Path) -> None:
    classes = np.arange(5, dtype=np.uint8)
    parts = [
        write_hdf(tmp_path / "1", ["c", "a"], [[2, 2], [3, 3]], classes=classes),
        write_hdf(tmp_path / "2", ["b"], [[1, 1]], classes=classes[:1]),
    ]
    import_hdf(parts, tmp_path / "f", tmp_path / "l", frame_shift=0.03)
    frames, labels = (
        FrameStore.load(tmp_path / "f"),
        LabelStore.load(tmp_path / "l/classes"),
    )
    assert frames.utt_ids == labels.utt_ids == ["a", "b", "c"]
    assert frames.frames(0).tolist() == [[4, 5], [6, 7], [8, 9]]
    assert [labels.labels(i).tolist() for i in range(3)] == [[2, 3, 4], [0], [0, 1]]
    assert (labels.num_classes, frames.frame_shift) == (10, 0.03)


def test_files_without_targets_are_read(tmp_path: Path) -> None:
    path = write_hdf(tmp_path / "x", ["b", "a"], [[2, 0], [1, 0]])
    import_hdf([path], tmp_path / "f", tmp_path / "l")
    assert FrameStore.load(tmp_path / "f").frames(1).tolist() == [[0, 1], [2, 3]]
    assert not (tmp_path / "l").exists()


def test_faulty_hdf5_is_refused(tmp_path: Path) -> None:
    def read(*files: Path, **options) -> None:
        import_hdf(files, tmp_path / "f", tmp_path / "l", **options)

    good = write_hdf(tmp_path / "good", ["a"], [[2, 2]], classes=np.zeros(2, np.int32))
    with pytest.raises(UserError, match="a: comes twice"):
        read(good, good)
    with pytest.raises(UserError, match="has no target pdf; it has classes"):
        read(good, targets=["pdf"])
    (tmp_path / "text").write_text("no HDF5")
    with pytest.raises(UserError, match="text: not readable as HDF5"):
        read(tmp_path / "text")
    with h5py.File(tmp_path / "other", "w") as file:
        file["inputs"] = np.zeros((2, 2))
    with pytest.raises(UserError, match="no seqLengths, seqTags in it"):
        read(tmp_path / "other")
    dense = write_hdf(tmp_path / "dense", ["a"], [[2, 2]], x=np.zeros((2, 3)))
    with pytest.raises(UserError, match="target x is of 2 dimensions"):
        read(dense)
    read(dense, targets=[])
    assert len(FrameStore.load(tmp_path / "f")) == 1
    with h5py.File(good, "r+") as file:
        file["seqLengths"][0, 0] = 1
    with pytest.raises(UserError, match="seqLengths do not fit"):
        read(good)
    assert not (tmp_path / "l/classes").exists()


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([3.0, 12.4], "12.4"),
        ([3.0, np.nan], "nan"),
        (np.array([1, 2**32 + 3]), "4294967299"),
        (np.array([1, 2**63 + 1], np.uint64), "9223372036854775809"),
        ([1, 10], "10"),
        ([1, -2], "-2"),
    ],
)
def test_labels_that_are_no_classes_are_refused(tmp_path, labels, told):
    file = write_hdf(tmp_path / "x", ["a", "b"], [[1, 0], [2, 2]], classes=labels)
    with pytest.raises(UserError, match=rf"x: b: target .* outside of 0\.\.9: {told}"):
        import_hdf([file], tmp_path / "f", tmp_path / "l")


def test_whole_labels_of_any_type_are_read(tmp_path):
    for values in ([9.0, -1.0], np.array([9, 255], np.uint8)[:1].repeat(2), [9, -1]):
        file = write_hdf(tmp_path / "x", ["a"], [[2, 2]], classes=values)
        import_hdf([file], tmp_path / "f", tmp_path / "l")
        got = LabelStore.load(tmp_path / "l/classes").labels(0).tolist()
        assert got == np.asarray(values).tolist()


def write_sparse(path: Path, tags: list[str], labels: list[list[int]]) -> Path:
    """Labels as RETURNN's HDFDumpLayer and SimpleHDFWriter write alignments."""
    with h5py.File(path, "w") as file:
        file["inputs"] = np.concatenate(labels).astype(np.int32)
        file["labels"] = np.array([], "S5")
        file["seqLengths"] = np.repeat([[len(one)] for one in labels], 2, axis=1)
        file["seqTags"] = np.array([tag.encode() for tag in tags])
        file.attrs["inputPattSize"] = 6
    return path


def write_targets_alone(path: Path, tags: list[str], labels: list[list[int]]) -> Path:
    """Labels without `inputs`, and without their column in `seqLengths`."""
    with h5py.File(path, "w") as file:
        file["targets/data/pdf"] = np.concatenate(labels).astype(np.int32)
        file.require_group("targets/size").attrs["pdf"] = [6, 1]
        file["seqLengths"] = np.array([[len(one)] for one in labels])
        file["seqTags"] = np.array([tag.encode() for tag in tags])
    return path


@pytest.mark.parametrize("write", [write_sparse, write_targets_alone])
def test_labels_of_other_files_are_joined(tmp_path, caplog, write):
    features = write_hdf(tmp_path / "x", ["b", "a", "c"], [[2, 0], [1, 0], [3, 0]])
    labels = write(tmp_path / "y", ["a", "b", "z"], [[5], [0, 1], [2]])
    out = tmp_path / "f", tmp_path / "l"
    import_hdf([features, labels], *out, targets=["pdf"])
    assert FrameStore.load(out[0]).utt_ids == ["a", "b", "c"]
    store = LabelStore.load(out[1] / "pdf")
    assert (store.utt_ids, store.num_classes) == (["a", "b"], 6)
    assert [store.labels(i).tolist() for i in range(2)] == [[5], [0, 1]]
    assert "1 of 3 sequences have no labels (pdf): c" in caplog.text
    with pytest.raises(UserError, match="y: has labels, and no file has features"):
        import_hdf([labels], *out)


def test_the_target_of_sparse_inputs_is_told_by_what_others_lack(tmp_path):
    both = write_hdf(tmp_path / "x", ["a"], [[2, 2]], classes=[7, 8])
    sparse = write_sparse(tmp_path / "y", ["a"], [[4, 5]])
    out = tmp_path / "f", tmp_path / "l"
    import_hdf([both, sparse], *out, targets=["pdf", "classes"])
    assert LabelStore.load(out[1] / "pdf").labels(0).tolist() == [4, 5]
    assert LabelStore.load(out[1] / "classes").labels(0).tolist() == [7, 8]
    import_hdf([both, sparse], *out)
    assert LabelStore.load(out[1] / "data").labels(0).tolist() == [4, 5]
    for targets in (["classes"], ["pdf", "phone"], []):
        with pytest.raises(UserError, match="y: its inputs are labels, and of which"):
            import_hdf([both, sparse], *out, targets=targets)


def test_labels_are_read_as_features(tmp_path):
    """RETURNN's sparse data: `inputs`, or a target beside features or without them."""
    inputs = write_sparse(tmp_path / "x", ["b", "a"], [[5, 0], [2]])
    out = tmp_path / "f", tmp_path / "l"
    import_hdf([inputs], *out, targets=[], sparse="data")
    store = FrameStore.load(out[0])
    assert (store.utt_ids, store.dim) == (["a", "b"], 1)
    assert store.frames(1).tolist() == [[5], [0]]
    target = write_targets_alone(tmp_path / "y", ["a"], [[3, -1]])
    features = write_hdf(tmp_path / "z", ["a"], [[2, 0]])
    for files in ([target], [target, features]):
        import_hdf(files, *out, sparse="pdf")
        assert FrameStore.load(out[0]).frames(0).tolist() == [[3], [-1]]
        assert LabelStore.load(out[1] / "pdf").labels(0).tolist() == [3, -1]
    import_hdf([inputs, target], *out, targets=["pdf"], sparse="data")
    assert len(LabelStore.load(out[1] / "pdf")) == 1
    with pytest.raises(UserError, match="x: has no target classes; it has data"):
        import_hdf([inputs], *out, sparse="classes")
    cuts = write_cuts(tmp_path / "cuts.jsonl.gz", ["a", "b"])
    options = Hdf5Options(files={"train": ("x",)}, sparse="data")
    how = {"options": options, "max_skipped_fraction": 0.0}
    import_split(cuts, [inputs], *out, **how)
    assert FrameStore.load(out[0]).frames(0).tolist() == [[2]]


def test_files_of_one_data_set_have_the_same_classes(tmp_path):
    one = write_hdf(tmp_path / "x", ["a"], [[1, 1]], classes=[0])
    two = write_hdf(tmp_path / "y", ["b"], [[1, 1]], classes=[0])
    with h5py.File(two, "r+") as file:
        file["targets/size"].attrs["classes"] = 60
    with pytest.raises(UserError, match="y: target classes has 60 classes, and 10 in"):
        import_hdf([one, two], tmp_path / "f", tmp_path / "l")


def test_ids_with_blanks_are_those_of_the_corpus(tmp_path, caplog):
    file = write_hdf(tmp_path / "x", ["a b", "c"], [[1, 1], [1, 1]], classes=[3, 4])
    import_hdf([file], tmp_path / "f", tmp_path / "l")
    assert FrameStore.load(tmp_path / "f").utt_ids == ["a_b", "c"]
    assert LabelStore.load(tmp_path / "l/classes").utt_ids == ["a_b", "c"]
    assert "1 ids hold blanks, which become _: 'a b'" in caplog.text
    file = write_hdf(tmp_path / "x", ["a b", "a_b"], [[1, 1], [1, 1]], classes=[3, 4])
    with pytest.raises(UserError, match="a_b: comes twice"):
        import_hdf([file], tmp_path / "f", tmp_path / "l")
    file = write_hdf(tmp_path / "x", [" "], [[1, 1]], classes=[3])
    with pytest.raises(UserError, match="has no id"):
        import_hdf([file], tmp_path / "f", tmp_path / "l")


def test_frames_alone_go_out_and_come_back(tmp_path, caplog):
    frames = write_frames(tmp_path / "frames", {"a": 5, "b": 3}, dim=3)
    assert export_hdf(frames, {}, tmp_path / "x") == 2
    with h5py.File(tmp_path / "x") as file:
        # RETURNN's HDFDataset takes one target for granted
        assert file["seqLengths"][...].tolist() == [[5, 5], [3, 3]]
    import_hdf([tmp_path / "x"], tmp_path / "f", tmp_path / "l")
    again = FrameStore.load(tmp_path / "f")
    np.testing.assert_array_equal(again.frames(1), FrameStore.load(frames).frames(1))
    labels = write_labels(tmp_path / "few", {"a": [1] * 5})
    assert export_hdf(frames, {"pdf": labels}, tmp_path / "x") == 1
    assert "1 of 2 utterances lack labels" in caplog.text


def test_a_test_set_needs_no_labels(tmp_path, caplog):
    file = write_hdf(tmp_path / "x", ["b", "a"], [[2, 0], [1, 0]])
    import_hdf([file], tmp_path / "f", tmp_path / "l", targets=["pdf"])
    assert len(FrameStore.load(tmp_path / "f")) == 2
    assert len(LabelStore.load(tmp_path / "l/pdf")) == 0
    assert "2 of 2 sequences have no labels (pdf): a" in caplog.text


def write_cuts(path: Path, ids: list[str]) -> Path:
    """Cuts with nothing behind them: an importer reads ids, speakers and texts."""
    with ManifestWriter(path) as writer:
        for name in ids:
            segment = SupervisionSegment(
                name, name, 0.0, 1.0, text=f"say {name}", speaker=f"s{name}"
            )
            recording = Recording(name, [], 8000, 8000, 1.0, channel_ids=[0])
            writer.write(MonoCut(name, 0.0, 1.0, 0, [segment], recording=recording))
    return path


def test_a_split_is_read_from_hdf5(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Frames and labels are the files', speakers and transcripts the corpus'."""
    caplog.set_level("INFO")
    files = [
        write_hdf(tmp_path / "1", ["c", "z"], [[2, 2], [1, 1]], classes=[1, 2, 3]),
        write_hdf(tmp_path / "2", ["a"], [[3, 3]], classes=[4, 5, 6]),
    ]
    cuts = write_cuts(tmp_path / "cuts.jsonl.gz", ["a", "b", "c"])
    options = Hdf5Options(
        files={"train": ("1", "2")}, targets=("classes",), frame_shift_ms=30.0
    )
    out, labels = tmp_path / "f", tmp_path / "l"
    how = {"options": options, "max_skipped_fraction": 0.5}
    import_split(cuts, files, out, labels, **how)
    frames, classes = FrameStore.load(out), LabelStore.load(labels / "classes")
    assert frames.utt_ids == classes.utt_ids == ["a", "c"]
    assert (frames.speakers, frames.texts) == (["sa", "sc"], ["say a", "say c"])
    assert frames.frames(1).tolist() == [[0, 1], [2, 3]]
    assert [classes.labels(i).tolist() for i in range(2)] == [[4, 5, 6], [1, 2]]
    assert frames.frame_shift == 0.03
    (entry,) = read_ledger(out / "ledger.jsonl")
    assert (entry.utterance, entry.reason) == ("b", "is in none of the HDF5 files")
    assert "1 sequences are of no utterance: z" in caplog.text
    import_split(
        cuts, files, out, labels, **{**how, "options": options.replace(targets=())}
    )
    assert list(labels.iterdir()) == []
    with pytest.raises(UserError, match="skipped 1 of 3"):
        import_split(cuts, files, out, labels, **{**how, "max_skipped_fraction": 0.1})
    with pytest.raises(UserError, match="1: has none of the 1 utterances; it has c"):
        others = write_cuts(tmp_path / "others.jsonl.gz", ["x"])
        import_split(others, files, out, labels, **how)


def test_a_damaged_hdf5_file_among_several_is_named(tmp_path: Path) -> None:
    """Also where what is wrong comes to light in the middle of the data."""
    names = ["1", "2", "3"]
    files = [write_hdf(tmp_path / n, [n], [[4, 4]], classes=[1] * 4) for n in names]
    cuts = write_cuts(tmp_path / "cuts.jsonl.gz", names)
    how = {
        "options": Hdf5Options(files={"train": ("x",)}, targets=("classes",)),
        "max_skipped_fraction": 1.0,
    }
    out = tmp_path / "f", tmp_path / "l"
    with h5py.File(files[1], "r+") as file:
        del file["inputs"]
        # compressed in blocks, one of which is no such thing
        data = file.create_dataset("inputs", (4, 2), "f8", chunks=(4, 2), compression=1)
        data.id.write_direct_chunk((0, 0), b"no compressed block")
    with pytest.raises(UserError, match="2: damaged, or not of RETURNN's layout"):
        import_split(cuts, files, *out, **how)
    with h5py.File(files[1], "r+") as file:
        del file["inputs"]
        file["inputs"] = np.zeros((4, 3))
    with pytest.raises(UserError, match="2: frames have different sizes: 3, and 2"):
        import_split(cuts, files, *out, **how)
    with h5py.File(files[0], "r+") as file:
        file["seqLengths"][0, 1] = 3
    with pytest.raises(UserError, match="1: seqLengths do not fit the data"):
        import_split(cuts, files[:1], *out, **how)
    assert not out[0].exists()
