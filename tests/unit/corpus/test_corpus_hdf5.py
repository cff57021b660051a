"""HDF5 files as a corpus, images as frames, images of digits that are read by CTC."""

import json

import h5py
import numpy as np
import pytest
from fixtures.training_task import training_options

from latflow.align.ctc import build_ctc_tree, compile_ctc
from latflow.cli.main import main
from latflow.corpus.hdf5 import read_sequences
from latflow.corpus.hdf5_files import open_hdf
from latflow.corpus.manifests import load_samples, read_cuts, text_of
from latflow.corpus.options import Hdf5Source
from latflow.corpus.prepare import prepare_corpus
from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang
from latflow.ledger import read_ledger
from latflow.scoring.transcripts import read_references
from latflow.training.data_options import Hdf5Options
from latflow.training.hdf5 import import_hdf, import_split
from latflow.training.options import CtcRunOptions
from latflow.training.train import NetworkJob, train_network

TWO_BY_THREE = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
COUNTS = {"train": 8, "dev": 3, "test": 2}


def write_images(path, images, texts, names=("zero", "one")):
    """Images [height, width, channels] with their labels, by id."""
    pixels = [np.reshape(image, (-1, np.shape(image)[2])) for image in images.values()]
    with h5py.File(path, "w") as file:
        file["inputs"] = np.concatenate(pixels).astype(np.float32)
        lengths = [[len(p), len(t), 2] for p, t in zip(pixels, texts, strict=True)]
        file["seqLengths"] = np.array(lengths, np.int32)
        file["seqTags"] = np.array([tag.encode() for tag in images])
        file["targets/data/classes"] = np.concatenate(texts).astype(np.int32)
        sizes = [np.shape(image)[:2] for image in images.values()]
        file["targets/data/sizes"] = np.array(sizes, np.int32).ravel()
        file.require_group("targets/size").attrs["classes"] = len(names)
        file["targets/labels/classes"] = np.array([name.encode() for name in names])
    return path


def prepare(source, out, max_skipped_fraction=0.0):
    how = {"seed": 1, "threads": 1, "max_skipped_fraction": max_skipped_fraction}
    prepare_corpus(source, "train", out, **how)


@pytest.fixture
def images(tmp_path):
    """A file of two images, of one and of two rows, and two numbers a pixel."""
    low = np.full((1, 2, 2), 7.0)
    high = np.stack([TWO_BY_THREE, np.negative(TWO_BY_THREE)], axis=2)
    return write_images(tmp_path / "a.hdf", {"b": high, "a": low}, [[0, 1, 1], [1]])


def test_columns_of_images_are_frames(images, tmp_path):
    import_hdf([images], tmp_path / "frames", tmp_path / "labels")
    assert [path.name for path in (tmp_path / "labels").iterdir()] == ["classes"]
    store = FrameStore.load(tmp_path / "frames")
    assert store.utt_ids == ["a", "b"]
    # all rows of the first number of a pixel, then all of the second
    assert store.frames(0).tolist() == [[7, 0, 7, 0], [7, 0, 7, 0]]
    assert store.frames(1).tolist() == [[1, 4, -1, -4], [2, 5, -2, -5], [3, 6, -3, -6]]


def test_images_are_filled_to_a_height(images, tmp_path):
    source = Hdf5Source(files=(str(images),), frame_shift_ms=30.0)
    prepare(source, tmp_path / "corpus")
    cuts = tmp_path / "corpus/cuts.jsonl.gz"

    def read(height):
        import_split(
            cuts,
            [images],
            tmp_path / "frames",
            tmp_path / "labels",
            options=Hdf5Options(files={"train": ("x",)}, image_height=height),
            max_skipped_fraction=0.0,
        )
        return FrameStore.load(tmp_path / "frames")

    assert read(3).frames(0)[0].tolist() == [7, 0, 0, 7, 0, 0]
    assert read(None).dim == 4
    with pytest.raises(UserError, match="images of 2 rows, and image_height is 1"):
        read(1)


def test_sequences_become_utterances_without_audio(images, tmp_path):
    source = Hdf5Source(files=(str(images),), frame_shift_ms=30.0)
    prepare(source, tmp_path / "corpus")
    first, second = cuts = list(read_cuts(tmp_path / "corpus/cuts.jsonl.gz"))
    assert [cut.id for cut in cuts] == ["a", "b"]
    assert [text_of(cut) for cut in cuts] == ["one", "zero one one"]
    assert [cut.supervisions[0].speaker for cut in cuts] == ["a", "b"]
    assert (first.duration, second.duration) == (0.06, 0.09)
    with pytest.raises(UserError, match="a: audio cannot be read"):
        load_samples(first)
    references = read_references(tmp_path / "corpus/cuts.jsonl.gz")
    assert references.words == {"a": ["one"], "b": ["zero", "one", "one"]}
    assert references.frame_shift == 0.03


def test_faulty_images_and_labels_are_refused(images, tmp_path):
    source = Hdf5Source(files=(str(images),))

    def told(message, given=source):
        with pytest.raises(UserError, match=message):
            prepare(given, tmp_path / "corpus")

    told("has no target pdf; it has classes, sizes", source.replace(target="pdf"))
    again = tmp_path / "b.hdf"
    again.write_bytes(images.read_bytes())
    told("b.hdf: b: comes twice", Hdf5Source(files=(str(images), str(again))))
    with h5py.File(images, "r+") as file:
        file["targets/data/classes"][0] = 2
    told(r"b: target classes has labels outside of 0..1")
    with h5py.File(images, "r+") as file:
        file["targets/size"].attrs["classes"] = np.inf
    told("classes has inf classes")
    names = [b"zero", b"one more"]
    with h5py.File(images, "r+") as file:
        file["targets/size"].attrs["classes"] = len(names)
        del file["targets/labels/classes"]
        file["targets/labels/classes"] = np.array(names)
    told("class 1 of target classes is called 'one more', which is not one word")
    with h5py.File(images, "r+") as file:
        file["targets/data/sizes"][0] = 3
    other = pytest.raises(UserError, match="b: has other pixels than sizes say")
    with other, open_hdf(images):
        pass


def test_transcripts_of_another_file_are_joined(tmp_path):
    """Labels as `inputs`, with their names, as RETURNN's SimpleHDFWriter has them."""
    features, words = tmp_path / "x", tmp_path / "y"
    for path, inputs, lengths in (
        (features, np.ones((5, 3), np.float32), [3, 2]),
        (words, np.array([0, 1, 1], np.int32), [2, 1]),
    ):
        with h5py.File(path, "w") as file:
            file["inputs"] = inputs
            file["labels"] = np.array([b"zero", b"one"])
            file["seqLengths"] = np.array([lengths, lengths], np.int32).T
            file["seqTags"] = np.array([b"a 1", b"b"])
            file.attrs["inputPattSize"] = 2
    source = Hdf5Source(files=(str(features), str(words)))
    assert list(read_sequences(source)) == [
        ("a_1", 0.03, "zero one"),
        ("b", 0.02, "one"),
    ]
    with pytest.raises(UserError, match="x: has no target classes"):
        list(read_sequences(Hdf5Source(files=(str(features),))))


def test_sequences_without_labels_go_to_the_ledger(tmp_path):
    image = np.ones((1, 2, 1))
    path = write_images(tmp_path / "a.hdf", {"a": image, "b": image}, [[], [1]])
    source = Hdf5Source(files=(str(path),))
    with pytest.raises(UserError, match="a: the transcript is empty"):
        prepare(source, tmp_path / "corpus")
    source = source.replace(on_bad_utterance="skip")
    prepare(source, tmp_path / "corpus", 0.5)
    (entry,) = read_ledger(tmp_path / "corpus/ledger.jsonl")
    assert entry.utterance == "a"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A few images of digits."""
    folder = tmp_path_factory.mktemp("corpora") / "image_digits"
    counts = [str(x) for name, n in COUNTS.items() for x in (f"--{name}", n)]
    assert main(["hdf5", "digits", str(folder), *counts]) == 0
    return folder


def test_images_of_digits_are_drawn(digits, tmp_path):
    lexicon = (digits / "lexicon.txt").read_text().split()
    assert lexicon == [word for digit in "0123456789" for word in (digit, digit)]
    for name, count in COUNTS.items():
        source = Hdf5Source(files=(str(digits / f"{name}.hdf"),))
        found = list(read_sequences(source))
        assert len(found) == count
        assert all(3 <= len(text.split()) <= 6 for _, _, text in found)
        with open_hdf(digits / f"{name}.hdf") as file:
            for i in range(count):
                frames = file.frames(i)
                assert frames.shape == (file.num_frames(i), file.height)
                assert frames.min() == 0.0
                assert 0.5 < frames.max() <= 1.0
    # an image depends on the seed and its id alone
    more = {"--train": 2, "--dev": 1, "--test": 1}
    more = [str(x) for pair in more.items() for x in pair]
    assert main(["hdf5", "digits", str(tmp_path / "few"), *more]) == 0
    with (
        open_hdf(digits / "train.hdf") as one,
        open_hdf(tmp_path / "few/train.hdf") as two,
    ):
        frames = two.frames(1)
        np.testing.assert_array_equal(one.frames(1)[:, : frames.shape[1]], frames)
    assert main(["hdf5", "digits", str(tmp_path / "few"), "--dev", "0"]) == 1


NETWORK = {
    "layers": {
        "near": {"class": "mdlstm", "size": 3},
        "slow": {
            **{"class": "conv2d", "size": 4, "stride": 2},
            **{"frequency_stride": 4, "activation": "relu"},
        },
        "output": {"class": "output", "loss": "ctc"},
    }
}


def test_a_network_learns_to_read_them(digits, tmp_path):
    """Two-dimensional LSTM and CTC, from HDF5 files alone."""
    make_lang(digits / "lexicon.txt", tmp_path / "lang", options=LangOptions())
    build_ctc_tree(tmp_path / "lang", tmp_path / "chain")
    for name in ("train", "dev"):
        file = digits / f"{name}.hdf"
        prepare(Hdf5Source(files=(str(file),)), tmp_path / f"corpus/{name}")
        import_split(
            tmp_path / f"corpus/{name}/cuts.jsonl.gz",
            [file],
            tmp_path / name,
            tmp_path / f"labels/{name}",
            options=Hdf5Options(files={name: (str(file),)}, image_height=20),
            max_skipped_fraction=0.0,
        )
        graphs = tmp_path / f"ctc/{name}"
        compile_ctc(tmp_path / name, tmp_path / "lang", graphs, subsampling=2)
    (tmp_path / "network.yaml").write_text(json.dumps(NETWORK))
    training = training_options(epochs=8, learning_rate=0.02, final="last")
    data = {"max_sequences": 4, "normalization": "none"}
    given = {"data": data, "training": training, "device": "cpu", "seed": 3}
    train_network(
        NetworkJob(
            frames_dir=tmp_path / "train",
            alignments=None,
            source_dir=tmp_path / "chain",
            dev_frames_dir=tmp_path / "dev",
            dev_alignments=None,
            network=tmp_path / "network.yaml",
            out_dir=tmp_path / "model",
            graphs_dir=tmp_path / "ctc/train",
            dev_graphs_dir=tmp_path / "ctc/dev",
            options=CtcRunOptions.model_validate(given),
            checkpoints=tmp_path / "checkpoints",
        )
    )
    info = json.loads((tmp_path / "model/info.json").read_text())
    losses = [epoch["loss"] for epoch in info["history"]]
    assert losses[-1] < 0.9 * losses[0]
