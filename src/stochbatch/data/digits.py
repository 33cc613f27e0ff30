"""scikit-learn's copy of the UCI handwritten digits, cut into a train and a test part.

The 1,797 images of 8 x 8 pixels are the *test* part of the UCI data set, whose writers are
not those of its training part; scikit-learn ships no other. The cut made here is ours: of
each class, every fourth image in scikit-learn's order is a test image. So each writer is
in both parts, and accuracies are higher than on unseen writers: good for demonstrations and
tests, not for comparison with published numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stochbatch.data.formats import Arrays, Labels, as_labels
from stochbatch.data.optional import optional

TEST_EVERY = 4


def is_test(labels: Labels) -> NDArray[np.bool_]:
    """Return which images are for testing: of each class the 4th, the 8th, and so on.

    Example:
        >>> import numpy as np
        >>> from stochbatch.data.digits import is_test
        >>> np.flatnonzero(is_test(np.array([3, 3, 1, 3, 3, 1, 1, 1])))
        array([4, 7])
    """
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        chosen[np.flatnonzero(labels == label)[TEST_EVERY - 1 :: TEST_EVERY]] = True
    return chosen


def read_digits(split: str) -> Arrays:
    """Return the images and labels of a split; ink from 0 to 16 becomes 0 to 255, rounded."""
    ink, targets = optional("sklearn.datasets").load_digits(return_X_y=True)
    levels = (ink.astype(np.int64) * 255 + 8) // 16
    images = levels.astype(np.uint8).reshape(-1, 1, 8, 8)
    labels = as_labels(targets, first=0, where="scikit-learn's digits")
    chosen = is_test(labels) == (split == "test")
    return images[chosen], labels[chosen]
