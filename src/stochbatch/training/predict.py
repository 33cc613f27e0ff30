"""A trained network at work: from pictures to classes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from stochbatch.data import DATASETS, Dataset
from stochbatch.data.optional import optional

if TYPE_CHECKING:
    from PIL.Image import Image

    from stochbatch.data import Normalisation
    from stochbatch.training import RunFolder

AT_ONCE = 1 << 20
"""About so many pixels go through the network at once, however many pictures there are."""
LIGHT = 127.5
"""A border whose middle tone is above this is light."""


class PictureError(ValueError):
    """A file that cannot be read as a picture."""


@dataclass(frozen=True)
class Prediction:
    """What the network takes a picture for.

    Args:
        name: the picture's path, or ``picture`` and its number.
        classes: the likeliest classes with their probabilities, best first.
        inverted: whether light and dark were exchanged.
    """

    name: str
    classes: tuple[tuple[str, float], ...]
    inverted: bool


def classify(
    read: RunFolder,
    images: Sequence[str | os.PathLike[str] | Image],
    top: int = 3,
    invert: bool | None = None,
) -> list[Prediction]:
    """Classify pictures with the network of a run.

    A picture is brought to the channels and the size of the run's data set. For grey sets it
    is padded to the set's proportions in the tone of its border; for coloured ones its middle
    is cut out. The grey sets (digits, clothes) are light on dark: a picture with a
    light border has light and dark exchanged.

    Args:
        read: the run, from `read_run`.
        images: paths, or pictures opened by Pillow.
        top: how many classes to return.
        invert: whether to exchange light and dark; None decides by the border, and does so for
            grey data sets only.

    Returns:
        A prediction for each picture.

    Raises:
        PictureError: a file is no picture.
    """
    if top < 1:
        raise ValueError(f"top must be 1 or more, got {top}")
    entry = DATASETS[read.trial.dataset]
    arrays, inverted = [], []
    for image in images:
        array, turned = prepare(_open(image), entry, invert)
        arrays.append(array)
        inverted.append(turned)
    if not arrays:
        return []
    pixels = torch.from_numpy(np.stack(arrays))
    chances = _probabilities(read.network(), pixels, read.normalisation)
    best = chances.topk(min(top, len(entry.classes)))
    return [
        Prediction(
            _name(image, number),
            tuple((entry.classes[at], value) for value, at in zip(values, places, strict=True)),
            turned,
        )
        for number, (image, turned, values, places) in enumerate(
            zip(images, inverted, best.values.tolist(), best.indices.tolist(), strict=True), 1
        )
    ]


def prepare(
    picture: Image, entry: Dataset, invert: bool | None = None
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], bool]:
    """Bring a picture to the channels and the size of a data set.

    Args:
        picture: any picture.
        entry: the data set.
        invert: whether to exchange light and dark; None decides by the border.

    Returns:
        uint8 pixels, C x H x W, and whether light and dark were exchanged.

    Example:
        >>> from PIL import Image
        >>> from stochbatch.data import DATASETS
        >>> from stochbatch.training.predict import prepare
        >>> pixels, inverted = prepare(Image.new("RGB", (80, 60), "white"), DATASETS["digits"])
        >>> pixels.shape, int(pixels.max()), inverted
        ((1, 8, 8), 0, True)
    """
    operations = optional("PIL.ImageOps")
    channels, height, width = entry.shape
    picture = _flat(operations.exif_transpose(picture), "L" if channels == 1 else "RGB")
    turned = (channels == 1 and _border(picture) > LIGHT) if invert is None else invert
    if turned:
        picture = operations.invert(picture)
    method = _resampling(picture, height, width)
    if channels == 1:
        tone = round(_border(picture))
        picture = operations.pad(picture, (width, height), method, color=tone)
    else:
        picture = operations.fit(picture, (width, height), method)
    pixels = np.array(picture, dtype=np.uint8).reshape(height, width, channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)), turned


def _open(image: str | os.PathLike[str] | Image) -> Image:
    module = optional("PIL.Image")
    if not isinstance(image, str | os.PathLike):
        return image
    path = Path(image)
    try:
        with warnings.catch_warnings():
            # A picture of absurd size is a mistake or an attack, not something to wait for.
            warnings.simplefilter("error", module.DecompressionBombWarning)
            with module.open(path) as opened:
                opened.load()
                return opened.copy()  # type: ignore[no-any-return]
    except FileNotFoundError:
        raise PictureError(f"there is no picture {path}") from None
    except module.UnidentifiedImageError:
        raise PictureError(f"{path} is no picture that Pillow can read") from None
    except (OSError, SyntaxError, ValueError, Warning, module.DecompressionBombError) as error:
        raise PictureError(f"{path} cannot be read: {error}") from None


def _flat(picture: Image, mode: str) -> Image:
    """Return the picture in a mode, 16-bit tones scaled, what is transparent on white."""
    module = optional("PIL.Image")
    if picture.mode.startswith(("I", "F")):
        # Pillow would cut tones above 255 off.
        tones = np.asarray(picture, dtype=np.float64)
        tones = tones / 257 if tones.max(initial=0) > 255 else tones
        picture = module.fromarray(tones.clip(0, 255).round().astype(np.uint8))
    if "A" in picture.getbands() or "transparency" in picture.info:
        above = picture.convert("RGBA")
        picture = module.alpha_composite(module.new("RGBA", above.size, "white"), above)
    return picture.convert(mode)


def _border(picture: Image) -> float:
    """Return the middle tone of the outermost pixels."""
    tones = np.asarray(picture.convert("L"))
    edges = (tones[0], tones[-1], tones[:, 0], tones[:, -1])
    return float(np.median(np.concatenate(edges)))


def _resampling(picture: Image, height: int, width: int) -> int:
    resampling = optional("PIL.Image").Resampling
    smaller = picture.width >= width and picture.height >= height
    # Averages when pixels become fewer: an image that was enlarged comes back as it was.
    return resampling.BOX if smaller else resampling.BILINEAR  # type: ignore[no-any-return]


def _probabilities(
    network: torch.nn.Module, pixels: Tensor, normalisation: Normalisation
) -> Tensor:
    device = next(network.parameters()).device
    mean = torch.tensor(normalisation.mean).view(1, -1, 1, 1)
    std = torch.tensor(normalisation.std).view(1, -1, 1, 1)
    network.eval()
    at_once = max(1, AT_ONCE // pixels[0, 0].numel())
    with torch.inference_mode():
        scores: list[Tensor] = [
            network(((part - mean) / std).to(device)).float().softmax(1).cpu()
            for part in torch.split(pixels, at_once)
        ]
    return torch.cat(scores)


def _name(image: object, number: int) -> str:
    return os.fspath(image) if isinstance(image, str | os.PathLike) else f"picture {number}"
