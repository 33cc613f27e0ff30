"""Invariant: a picture is classified as the network classifies the same pixels in a batch."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from stochbatch import data
from stochbatch.data import FormatError
from stochbatch.training.predict import classify, prepare
from tests.trained import trained

DIGITS = data.DATASETS["digits"]
COLOURED = data.DATASETS["cifar10"]


def saved(picture: Image.Image, folder: Path, name: str = "digit.png") -> Path:
    picture.save(folder / name)
    return folder / name


def digit(number: int) -> Image.Image:
    """A test image, 20 times as large."""
    small = Image.fromarray(data.load("digits", split="test").images[number, 0].numpy())
    return small.resize((160, 160), Image.Resampling.NEAREST)


def test_dark_digits_on_paper_are_classified_as_the_same_pixels_in_a_batch(tmp_path: Path) -> None:
    read = trained()
    images, labels = data.load("digits", split="test")
    batches = data.Batches(
        images[:70], labels[:70], 70, shuffle=False, normalisation=read.normalisation
    )
    with torch.inference_mode():
        expected = read.network()(batches.batch(0, 0)[0]).softmax(1).topk(3)
    paths = [saved(ImageOps.invert(digit(n)), tmp_path, f"{n}.png") for n in range(70)]
    found = classify(read, paths)
    assert [one.path for one in found] == paths
    assert all(one.inverted for one in found)
    for one, values, places in zip(found, expected.values, expected.indices, strict=True):
        assert [name for name, _ in one.classes] == [str(int(at)) for at in places]
        assert [p for _, p in one.classes] == pytest.approx(values.tolist(), abs=1e-5)


def test_a_light_digit_on_black_is_not_inverted(tmp_path: Path) -> None:
    pixels, inverted = prepare(saved(digit(3), tmp_path), DIGITS)
    assert not inverted
    assert torch.equal(pixels, data.load("digits", split="test").images[3])


def test_a_wide_grey_picture_is_padded_in_the_tone_of_its_border(tmp_path: Path) -> None:
    wide = Image.new("L", (16, 8), 40)
    wide.paste(200, (6, 2, 10, 6))
    pixels, _ = prepare(saved(wide, tmp_path), DIGITS)
    assert (pixels[0, :2] == 40).all()
    assert pixels.max() > 100


def test_the_middle_of_a_wide_coloured_picture_is_cut_out_and_not_inverted(tmp_path: Path) -> None:
    wide = Image.new("RGB", (96, 32), "white")
    wide.paste((0, 0, 255), (32, 0, 64, 32))
    pixels, inverted = prepare(saved(wide, tmp_path), COLOURED)
    assert pixels.shape == (3, 32, 32)
    assert (pixels[2] == 255).all()
    assert not pixels[:2].any()
    assert not inverted


def test_transparent_pixels_are_paper(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    clear.paste((0, 0, 0, 255), (3, 3, 5, 5))
    pixels, inverted = prepare(saved(clear, tmp_path), DIGITS)
    assert inverted
    assert (pixels[0, 0, 0], pixels[0, 3, 3]) == (0, 255)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_every_mode_of_pictures_can_be_read(mode: str, tmp_path: Path) -> None:
    path = saved(Image.new(mode, (9, 11)), tmp_path, "picture.tif")
    for entry in (DIGITS, COLOURED):
        assert prepare(path, entry)[0].shape == entry.shape


def png(width: int, height: int, content: bytes) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", content), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


NOISE = np.random.default_rng(0).bytes(65 * 64)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"no picture", "cannot identify image file"),
        (png(64, 64, zlib.compress(NOISE))[:1500], "image file"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot identify image file"),
        (png(10_000, 5_001, b""), "it has 10,000 x 5,001 pixels, the limit is 50,000,000"),
        (png(100_000, 100_000, b""), "exceeds limit"),
    ],
)
def test_a_file_that_is_not_a_picture_or_too_large_is_named(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "digit.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FormatError, match=f"digit.png cannot be read as a picture: .*{message}"):
        classify(trained(), [path])


@pytest.mark.parametrize(
    ("name", "mode", "copies"), [("a.png", "RGBA", 3), ("a.png", "P", 3), ("a.jpg", "RGB", 0.1)]
)
def test_a_large_picture_is_scaled_down_before_anything_else(
    name: str, mode: str, copies: float, tmp_path: Path
) -> None:
    side = 4096
    transparency = {"transparency": 0} if mode == "P" else {}
    path = tmp_path / name
    Image.new(mode, (side, side)).save(path, **transparency)
    Image.core.set_block_size(1 << 16)  # of Pillow's own memory, which nobody else sees
    Image.core.reset_stats()
    try:
        prepare(path, COLOURED)
        allocated = Image.core.get_stats()["allocated_blocks"] << 16
    finally:
        Image.core.set_block_size(1 << 24)
    small = 8 * 1024**2 * 4  # copies of what it is scaled down to
    assert allocated < copies * side**2 * 4 + small


def test_more_classes_than_there_are_is_all_of_them(tmp_path: Path) -> None:
    (prediction,) = classify(trained(), [saved(digit(0), tmp_path)], top=50)
    assert len(prediction.classes) == 10
    assert sum(chance for _, chance in prediction.classes) == pytest.approx(1)
