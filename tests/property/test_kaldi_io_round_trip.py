"""read(write(x)) is x; what is cut or garbled is refused with file and place."""

import gzip
import io
import struct

import kaldi_native_io
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from latflow.errors import UserError
from latflow.kaldi import encoding
from latflow.kaldi.io import (
    KaldiReader,
    KaldiWriter,
    read_int_vectors,
    read_matrices,
    write_int_vectors,
    write_matrices,
)

int32s = st.integers(-(2**31), 2**31 - 1)
float32s = st.floats(width=32, allow_nan=False)
words = st.text(
    st.characters(categories=["L", "N"], include_characters="<>/-_"), min_size=1
)
keys = st.lists(words, unique=True, max_size=4)
FIELDS = st.one_of(
    st.tuples(st.just("token"), words),
    st.tuples(st.just("int32"), int32s),
    st.tuples(st.just("uint32"), st.integers(0, 2**32 - 1)),
    st.tuples(st.just("float32"), float32s),
    st.tuples(st.just("int_vector"), st.lists(int32s, max_size=5)),
    st.tuples(
        st.just("float_vector"),
        arrays(np.float32, st.integers(0, 5), elements=float32s),
    ),
    st.tuples(
        st.just("float_matrix"),
        arrays(np.float32, array_shapes(min_dims=2, max_dims=2), elements=float32s),
    ),
)


def equal(kind, got, want, *, exact):
    if kind in {"token", "int32", "uint32"}:
        return got == want
    if kind == "int_vector":
        return got.tolist() == want
    rtol = 0 if exact else 1e-6
    return np.allclose(got, want, rtol=rtol, atol=0 if exact else 1e-44)


@pytest.mark.parametrize("chunk", [1, 1 << 18])
@pytest.mark.parametrize("binary", [True, False])
@given(fields=st.lists(FIELDS, max_size=8))
def test_everything_written_is_read_again(binary, chunk, fields):
    stream = io.BytesIO()
    writer = KaldiWriter(stream, binary=binary)
    for kind, value in fields:
        getattr(writer, f"write_{kind}")(value)
    stream.seek(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "_CHUNK", chunk)
        reader = KaldiReader(stream)
        assert reader.binary == binary or not fields
        for kind, value in fields:
            got = getattr(reader, kind)()
            assert equal(kind, got, value, exact=binary)
        assert reader.at_end()


@given(
    array=arrays(np.float64, array_shapes(min_dims=2, max_dims=2), elements=float32s)
)
def test_doubles_stay_doubles(array):
    stream = io.BytesIO()
    writer = KaldiWriter(stream)
    writer.write_float_matrix(array)
    writer.write_float_vector(array[0])
    stream.seek(0)
    reader = KaldiReader(stream)
    matrix, vector = reader.float_matrix(), reader.float_vector()
    assert matrix.dtype == vector.dtype == np.float64
    np.testing.assert_array_equal(matrix, array)
    np.testing.assert_array_equal(vector, array[0])


@given(size=st.integers(0, 5), dtype=st.sampled_from([np.float32, np.float64]))
def test_triangles_become_symmetric_matrices(size, dtype):
    matrix = np.random.default_rng(size).normal(size=(size, size)).astype(dtype)
    matrix += matrix.T
    stream = io.BytesIO()
    KaldiWriter(stream).write_symmetric_matrix(matrix)
    stream.seek(0)
    found = KaldiReader(stream).symmetric_matrix()
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, matrix)
    below = matrix[np.tril_indices(size)]
    text = io.BytesIO(f"[ {' '.join(f'{x:.9g}' for x in below)} ]".encode())
    found = KaldiReader(text, binary=False).symmetric_matrix()
    np.testing.assert_allclose(found, matrix, rtol=1e-6)


def test_what_is_no_triangle_is_refused():
    reader = KaldiReader(io.BytesIO(b"[ 1 2 ]"), binary=False)
    with pytest.raises(UserError, match="2 numbers are not a triangle"):
        reader.symmetric_matrix()


@given(names=keys, data=st.data())
def test_archives_of_integers_round_trip(tmp_path_factory, names, data):
    vectors = [(n, np.array(data.draw(st.lists(int32s, max_size=6)))) for n in names]
    folder = tmp_path_factory.mktemp("ark")
    for name in ("ali.ark", "ali.ark.gz"):
        write_int_vectors(folder / name, vectors)
        read = list(read_int_vectors(folder / name))
        assert [k for k, _ in read] == names
        for (_, got), (_, want) in zip(read, vectors, strict=True):
            np.testing.assert_array_equal(got, want)
            assert got.dtype == np.int32
    lines = [f"{n} {' '.join(map(str, v.tolist()))}\n" for n, v in vectors]
    (folder / "ali.txt").write_text("".join(lines), encoding="utf-8")
    text = list(read_int_vectors(folder / "ali.txt"))
    assert [(k, v.tolist()) for k, v in text] == [(k, v.tolist()) for k, v in vectors]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 1 << 18])
def test_empty_vectors_keep_their_lines(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(encoding, "_CHUNK", chunk)
    path = tmp_path / "ali.txt"
    path.write_text("a\nb 1 2\nc \nd 3")
    read = [(k, v.tolist()) for k, v in read_int_vectors(path)]
    assert read == [("a", []), ("b", [1, 2]), ("c", []), ("d", [3])]


def test_kaldi_native_io_reads_and_writes_the_same(tmp_path):
    random = np.random.default_rng(1)
    ints = {f"u{n}": random.integers(0, 99, n).tolist() for n in range(4)}
    write_int_vectors(tmp_path / "ours.ark", ints.items())
    with kaldi_native_io.SequentialInt32VectorReader(
        f"ark:{tmp_path / 'ours.ark'}"
    ) as reader:
        assert {key: list(value) for key, value in reader} == ints
    for options in ("ark", "ark,t"):
        target = tmp_path / "theirs.ark"
        with kaldi_native_io.Int32VectorWriter(f"{options}:{target}") as writer:
            for key, value in ints.items():
                writer.write(key, value)
        assert {k: v.tolist() for k, v in read_int_vectors(target)} == ints
        matrix = random.normal(size=(7, 3)).astype(np.float32)
        with kaldi_native_io.FloatMatrixWriter(f"{options}:{target}") as writer:
            writer.write("m", matrix)
        ((key, got),) = read_matrices(target)
        assert key == "m"
        np.testing.assert_allclose(got, matrix, rtol=1e-5)
    write_matrices(tmp_path / "m.ark", [("m", matrix)])
    with kaldi_native_io.SequentialFloatMatrixReader(
        f"ark:{tmp_path / 'm.ark'}"
    ) as reader:
        ((key, theirs),) = [(key, np.array(value)) for key, value in reader]
        np.testing.assert_array_equal(theirs, matrix)


@pytest.mark.parametrize(
    "method",
    [
        kaldi_native_io.CompressionMethod.kSpeechFeature,
        kaldi_native_io.CompressionMethod.kTwoByteAuto,
        kaldi_native_io.CompressionMethod.kOneByteAuto,
    ],
)
def test_compressed_matrices_expand_as_in_kaldi(tmp_path, method):
    matrix = np.random.default_rng(2).normal(size=(40, 5)).astype(np.float32)
    path = tmp_path / "c.ark"
    with kaldi_native_io.CompressedMatrixWriter(f"ark:{path}") as writer:
        writer.write("m", matrix, method)
        writer.write("n", matrix[:9] * 3, method)
    ours = dict(read_matrices(path))
    assert list(ours) == ["m", "n"]
    with kaldi_native_io.SequentialFloatMatrixReader(f"ark:{path}") as reader:
        for key, theirs in reader:
            np.testing.assert_allclose(ours[key], theirs, atol=2e-6)
    assert np.abs(ours["m"] - matrix).max() < 0.05


def test_floats_are_printed_with_seven_digits():
    stream = io.BytesIO()
    writer = KaldiWriter(stream, binary=False)
    writer.write_float_vector(np.array([0, -0.1752908, 1e-5, 123456789, -np.inf]))
    writer.write_float32(0.1)
    writer.write_float_matrix(np.zeros((0, 0)))
    want = b" [ 0 -0.1752908 1e-05 1.234568e+08 -inf ]\n0.1  [ ]\n"
    assert stream.getvalue() == want


def test_text_matrices_may_end_rows_with_semicolons():
    reader = KaldiReader(io.BytesIO(b" [ 1 2 ; 3 4 ]\n[ ] "))
    assert reader.float_matrix().tolist() == [[1, 2], [3, 4]]
    assert reader.float_matrix().shape == (0, 0)


BAD = [
    ("int32", b"\0B\x08\0\0\0\0\0\0\0\0", "a number of 8 bytes where 4"),
    ("int32", b"\0B\x04\0\0", "ends where 4 bytes"),
    ("int32", b"4x ", "'4x' where an integer"),
    ("float32", b"abc ", "'abc' where a number"),
    ("token", b"  ", "where a token"),
    ("token", b"\xff\xfe ", "not text"),
    ("int_vector", b"\0B\x04\xff\xff\xff\xff", "negative length"),
    ("int_vector", b"[ 1 2", "before ']'"),
    ("int_vector", b"[ 1 b ]", "not an integer of 32 bits"),
    ("int_vector", b"[ 1 99999999999 ]", "not an integer of 32 bits"),
    ("int32", b"99999999999 ", "an integer of more than 32 bits"),
    ("float_vector", b"\0BXX \x04", "'XX' where 'FV' or 'DV'"),
    ("float_matrix", b"[ 1 2\n 3 ]", "rows differ"),
    ("float_matrix", b"\0BFM \x04\x02\0\0\0\x04\x02\0\0\0abc", "ends where 16 bytes"),
    ("float_matrix", b"\0BCM " + struct.pack("<ffii", 0, 1, -1, 2), "-1 rows"),
]


@pytest.mark.parametrize(("verb", "raw", "fault"), BAD)
def test_bad_bytes_are_refused_with_file_and_place(tmp_path, verb, raw, fault):
    path = tmp_path / "bad"
    path.write_bytes(raw)
    with (
        KaldiReader.open(path) as reader,
        pytest.raises(UserError, match=fault) as caught,
    ):
        getattr(reader, verb)()
    assert caught.value.file == str(path)
    assert "at byte" in str(caught.value)


@given(cut=st.integers(1, 30))
def test_cut_archives_are_refused(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("ark") / "a.ark"
    write_int_vectors(path, [("a", [1, 2, 3]), ("b", [4])])
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    second = whole.index(b"b \0B")
    if len(whole) - cut == second:
        assert len(list(read_int_vectors(path))) == 1
        return
    with pytest.raises(UserError, match=r"a\.ark"):
        list(read_int_vectors(path))


def test_cut_gzip_files_are_refused(tmp_path):
    path = tmp_path / "a.gz"
    text = b"".join(b"k%d 1 2 3\n" % n for n in range(9999))
    path.write_bytes(gzip.compress(text)[:-50])
    with pytest.raises(UserError, match="gzip"):
        list(read_int_vectors(path))
    path.write_bytes(b"plain")
    with pytest.raises(UserError, match="gzip"):
        list(read_int_vectors(path))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        list(read_matrices(tmp_path / "none.ark"))


def test_a_failed_write_leaves_nothing(tmp_path):
    def items():
        yield "a", [1]
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        write_int_vectors(tmp_path / "a.ark", items())
    assert not list(tmp_path.iterdir())
