"""Pictures of any common format as pixels."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stochbatch.data.data_errors import FormatError
from stochbatch.optional import optional

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""No others: Pillow would run another program, Ghostscript, for some."""

MOST_PIXELS = 50_000_000
"""What is decoded at most; the size is known before."""

ENOUGH = (1024, 1024)
"""Larger pictures are first scaled down to this."""


def read_picture(path: Path, mode: str) -> Any:
    """Return a picture upright and without transparency, as ``"L"`` (grey) or ``"RGB"``."""
    image, ops = optional("PIL.Image"), optional("PIL.ImageOps")
    with _opened(path) as picture:
        picture.draft(None, ENOUGH)  # a large JPEG is decoded at a fraction of its size
        ops.exif_transpose(picture, in_place=True)
        if picture.mode in ("1", "P"):  # which cannot be scaled smoothly
            picture = picture.convert("RGBA" if picture.has_transparency_data else mode)
        picture.thumbnail(ENOUGH, image.Resampling.BOX)
        if picture.has_transparency_data:
            paper = image.new("RGBA", picture.size, "white")
            picture = image.alpha_composite(paper, picture.convert("RGBA"))
        return picture.convert(mode)


def facts_of(path: Path) -> tuple[int, int, bool]:
    """Return width and height of a picture, and whether it is grey; its pixels are not read."""
    with _opened(path) as picture:
        width, height = picture.size
        turned = picture.getexif().get(0x0112, 1) >= 5  # orientations on their side
        grey = picture.mode in ("1", "L", "LA", "I;16")
        return (height, width, grey) if turned else (width, height, grey)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a picture; whatever goes wrong with it is a `FormatError`."""
    image = optional("PIL.Image")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of half of what is refused below
            with image.open(path, formats=FORMATS) as picture:
                width, height = picture.size
                if width * height > MOST_PIXELS:
                    raise ValueError(
                        f"it has {width:,} x {height:,} pixels, the limit is {MOST_PIXELS:,}"
                    )
                yield picture
    except Exception as error:  # Pillow lets through whatever a damaged file makes happen
        why = " ".join(str(error).split()) or type(error).__name__
        raise FormatError(f"{path} cannot be read as a picture: {why}") from None
