"""Invariant: a picture becomes an image of the data set, or is refused by one line."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
from PIL import Image

from stochbatch import data
from stochbatch.data import FormatError
from stochbatch.training.predict import prepare
from tests.fuzz.mutations import fuzz, mutated_bytes, used_or_refused

PIXELS = np.arange(24 * 20 * 4, dtype=np.uint8).reshape(24, 20, 4)


def encoded(form: str, mode: str, **options: object) -> bytes:
    picture = Image.fromarray(PIXELS).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned
    buffer = io.BytesIO()
    picture.save(buffer, form, exif=exif, **options)
    return buffer.getvalue()


def check(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "picture")
        path.write_bytes(content)
        for name in ("digits", "cifar10"):
            entry = data.DATASETS[name]
            found = used_or_refused(lambda entry=entry: prepare(path, entry), FormatError)
            assert found is None or found[0].shape == entry.shape
        assert path.read_bytes() == content


@fuzz(
    120,
    content=st.sampled_from([("PNG", "RGBA"), ("JPEG", "RGB"), ("TIFF", "CMYK"), ("GIF", "P")])
    .map(lambda kind: encoded(*kind))
    .flatmap(lambda content: mutated_bytes(content, head=64)),
)
def test_pictures(content: bytes) -> None:
    check(content)
