"""The training loop that people write: a DataLoader with transforms of one image at a time.

After the pattern of the common CIFAR tutorials: float32, a dataset that crops, flips and
normalises each image as it is fetched, worker processes, losses summed with ``.item()``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from stochbatch.data import Augmentation, Normalisation


class Pictures(Dataset[tuple[Tensor, int]]):
    """Images with transforms, one at a time."""

    def __init__(
        self, images: Tensor, labels: Tensor, augmentation: Augmentation, norm: Normalisation
    ) -> None:
        self.images, self.labels = images, labels.tolist()
        self.padding, self.flip = augmentation
        self.mean = torch.tensor(norm.mean).view(-1, 1, 1) / 255
        self.std = torch.tensor(norm.std).view(-1, 1, 1) / 255

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        height, width = image.shape[1:]
        if self.padding:
            image = nn.functional.pad(image, (self.padding,) * 4)
            top, left = (random.randint(0, 2 * self.padding) for _ in range(2))
            image = image[:, top : top + height, left : left + width]
        if self.flip and random.random() < 0.5:
            image = image.flip(2)
        return (image.float() / 255 - self.mean) / self.std, self.labels[index]


def loop(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    pictures: Pictures,
    batch_size: int,
    workers: int,
) -> Callable[[], float]:
    """Return a function that trains for an epoch and returns the mean loss."""
    loader = DataLoader(
        pictures,
        batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    criterion = nn.CrossEntropyLoss()

    def epoch() -> float:
        network.train()
        total = 0.0
        for images, labels in _batches(loader):
            optimizer.zero_grad()
            loss = criterion(network(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        return total / len(loader)

    return epoch


def _batches(loader: DataLoader[tuple[Tensor, int]]) -> Iterator[tuple[Tensor, Tensor]]:
    yield from loader
