"""Images of digits in a row, drawn with fonts: a small corpus of "handwriting".

Each image has 3 to 6 digits of one font, of one of several sizes; each digit is turned
and shifted a little, and the image has noise. Fonts (those that come with matplotlib)
of dev and test images are not among those of the training images.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import h5py
import matplotlib as mpl
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from latflow.corpus.hdf5_files import write_strings
from latflow.errors import UserError
from latflow.files import atomic_directory

WORDS = [str(digit) for digit in range(10)]
HEIGHTS = (16, 20)  # rows of an image, fewest and most
_FONTS = {
    "train": (
        *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono"),
        *("DejaVuSansMono-BoldOblique", "DejaVuSerif", "DejaVuSerif-BoldItalic"),
        *("STIXGeneral", "STIXGeneralBolIta", "cmr10", "cmb10", "cmtt10", "cmti10"),
    ),
    "dev": ("DejaVuSansMono-Bold", "STIXGeneralItalic", "cmss10"),
    "test": ("DejaVuSans-BoldOblique", "DejaVuSerif-Italic", "STIXGeneralBol"),
}


def write_image_digits(
    out_dir: str | Path, counts: Mapping[str, int], *, seed: int
) -> None:
    """Write `train.hdf`, `dev.hdf` and `test.hdf`, and `lexicon.txt` of the digits.

    The files have RETURNN's layout of images, see `latflow.corpus.hdf5_files`:
    the digits the target `classes`, height and width the target `sizes`.

    Args:
        out_dir: a folder, replaced as a whole.
        counts: images of each set.
        seed: of all draws; an image depends on it and its id alone.

    Raises:
        UserError: a set would be empty.
    """
    for name, count in counts.items():
        if count < 1:
            raise UserError(f"no images of {name} are asked for", remedy="ask for one")
    with atomic_directory(out_dir) as folder:
        for name, count in counts.items():
            _write_set(folder / f"{name}.hdf", name, count, seed)
        lines = [f"{word} {word}\n" for word in WORDS]
        (folder / "lexicon.txt").write_text("".join(lines), encoding="utf-8")


def _write_set(path: Path, name: str, count: int, seed: int) -> None:
    """Write the images of a set, one at a time."""
    targets: list[int] = []
    sizes: list[tuple[int, int]] = []
    lengths: list[tuple[int, int, int]] = []
    tags = [f"{name}-{i:06d}" for i in range(count)]
    with h5py.File(path, "w") as file:
        inputs = file.create_dataset("inputs", (0, 1), np.float32, maxshape=(None, 1))
        for digits, image in _drawn(name, tags, seed):
            begin = inputs.shape[0]
            inputs.resize(begin + image.size, axis=0)
            inputs[begin:] = image.reshape(-1, 1)
            targets += digits
            sizes.append((image.shape[0], image.shape[1]))
            lengths.append((image.size, len(digits), 2))
        file["seqLengths"] = np.array(lengths, np.int32)
        write_strings(file, "seqTags", tags)
        file["targets/data/classes"] = np.array(targets, np.int32)
        file["targets/data/sizes"] = np.array(sizes, np.int32).ravel()
        size = file.require_group("targets/size")
        size.attrs["classes"] = np.array([len(WORDS), 1], np.int32)
        size.attrs["sizes"] = np.array([2, 1], np.int32)
        write_strings(file, "targets/labels/classes", WORDS)
        write_strings(file, "targets/labels/sizes", ["height", "width"])
        file.attrs["numSeqs"] = count
        file.attrs["numTimesteps"] = inputs.shape[0]
        file.attrs["inputPattSize"] = 1
        file.attrs["numDims"] = 1
        file.attrs["numLabels"] = len(WORDS)


def _drawn(
    name: str, tags: list[str], seed: int
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Yield the digits and the image, float32 [height, width] in 0..1, of each id."""
    folder = Path(mpl.get_data_path(), "fonts/ttf")
    for tag in tags:
        rng = np.random.default_rng([seed, zlib.crc32(tag.encode())])
        file = folder / f"{rng.choice(_FONTS[name])}.ttf"
        font = ImageFont.truetype(str(file), int(rng.integers(12, 16)))
        digits = rng.integers(0, len(WORDS), rng.integers(3, 7)).tolist()
        height = int(rng.integers(HEIGHTS[0], HEIGHTS[1] + 1))
        yield digits, _line(digits, font, height, rng)


def _line(
    digits: list[int],
    font: ImageFont.FreeTypeFont,
    height: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw digits side by side: float32 [height, width] in 0..1, ink is 1."""
    columns: list[np.ndarray] = [np.zeros((height, 2), np.float32)]
    for digit in digits:
        left, top, right, bottom = font.getbbox(WORDS[digit])
        width = int(right - left) + 2
        glyph = Image.new("L", (width, height))
        free = height - (bottom - top)
        at = (1 - left, free * rng.uniform(0.2, 0.8) - top)
        ImageDraw.Draw(glyph).text(at, WORDS[digit], font=font, fill=255)
        turned = glyph.rotate(rng.uniform(-10, 10), Image.Resampling.BILINEAR)
        columns.append(np.asarray(turned, np.float32) / 255)
        columns.append(np.zeros((height, int(rng.integers(0, 3))), np.float32))
    line = np.concatenate(columns, axis=1)
    noise = rng.normal(0.0, 0.1, line.shape)
    return np.clip(rng.uniform(0.6, 1.0) * line + noise, 0.0, 1.0).astype(np.float32)
