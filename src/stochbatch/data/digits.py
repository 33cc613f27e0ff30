"""The UCI handwritten digits that come with the package, cut into a train and a test part.

The 1,797 images of 8 x 8 pixels are the *test* part of "Optical Recognition of Handwritten
Digits" (E. Alpaydin, C. Kaynak; UCI Machine Learning Repository, CC BY 4.0), in the order in
which scikit-learn (BSD licence) ships them. The cut is our own: of each class, every fourth
image is a test image. So each writer is in both parts, and accuracies are higher than on unseen
writers: good for demonstrations and tests, not for comparison with published numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stochbatch.data.formats import Arrays, Labels, Shape

# np.savez_compressed of images (uint8, [1797, 8, 8], ink from 0 to 16) and labels (uint8).
FILE = Path(__file__).with_name("digits.npz")
TEST_EVERY = 4


def is_test(labels: Labels) -> NDArray[np.bool_]:
    """Return which images are for testing: of each class the 4th, the 8th, and so on."""
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        chosen[np.flatnonzero(labels == label)[TEST_EVERY - 1 :: TEST_EVERY]] = True
    return chosen


def read_digits(paths: Sequence[Path], split: str, shape: Shape) -> Arrays:
    """Return the images and labels of a split; ink from 0 to 16 becomes 0 to 255, rounded."""
    with np.load(FILE, allow_pickle=False) as file:
        ink, labels = file["images"], file["labels"].astype(np.int64)
    images = ((ink.astype(np.int64) * 255 + 8) // 16).astype(np.uint8).reshape(-1, 1, 8, 8)
    chosen = is_test(labels) == (split == "test")
    return images[chosen], labels[chosen]
