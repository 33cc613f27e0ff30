"""Batches of images on a device: each a function of (seed, epoch, number)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from stochbatch.checks import check_count, check_seed
from stochbatch.data.catalogue import NO_AUGMENTATION, Augmentation
from stochbatch.data.sampling import Draws, epoch_draws, epoch_order


class Normalisation(NamedTuple):
    """Mean and standard deviation of each channel, of pixels from 0 to 255.

    Example:
        >>> import torch
        >>> from stochbatch.data import Normalisation
        >>> Normalisation.of(torch.tensor([[[[1, 3]]]], dtype=torch.uint8))
        Normalisation(mean=(2.0,), std=(1.0,))
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, images: Tensor) -> Normalisation:
        """Return the statistics of ``images``; a channel without spread gets the deviation 1."""
        _check_images(images)
        count = images[:, 0].numel()
        total = torch.zeros(images.shape[1], dtype=torch.int64, device="cpu")
        squares = torch.zeros_like(total)
        for part in images.cpu().split(4096):  # type: ignore[no-untyped-call]
            whole = part.to(torch.int32)
            total += whole.sum((0, 2, 3))
            squares += (whole * whole).sum((0, 2, 3))
        means = [int(t) / count for t in total]
        spreads = [
            max(0.0, int(s) / count - mean**2) ** 0.5
            for s, mean in zip(squares, means, strict=True)
        ]
        return cls(tuple(means), tuple(spread or 1.0 for spread in spreads))


class Batches:
    """The batches of a set of images, shuffled, augmented and normalised on a device.

    All is decided by (seed, epoch, position in the epoch), so that any batch of any epoch
    can be asked for at any time, by any process: batch 7 of epoch 3 is always the same.

    Args:
        images: uint8, N x C x H x W.
        labels: one integer per image.
        batch_size: samples in a batch, over all ranks. The last batch of an epoch may be
            smaller.
        seed: seed of order, crops and flips, in [0, 2**64).
        shuffle: whether epochs have an order of their own.
        augmentation: random crops and flips; by default none.
        normalisation: None takes the statistics of ``images``.
        drop_single: leave out a last batch of one sample, on which batch norm fails.
        rank: which part of every batch this process gets.
        ranks: among how many processes a batch is divided.
        device: where images are kept and batches made; None leaves them where they are.

    Example:
        >>> from stochbatch import data
        >>> images, labels = data.load("digits")
        >>> batches = data.Batches(images, labels, 128, augmentation=data.Augmentation(1))
        >>> len(batches)
        11
        >>> for pixels, targets in batches.epoch(0):
        ...     print(tuple(pixels.shape), targets[:4].tolist())
        ...     break
        (128, 1, 8, 8) [6, 1, 6, 3]
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        augmentation: Augmentation = NO_AUGMENTATION,
        normalisation: Normalisation | None = None,
        drop_single: bool = False,
        rank: int = 0,
        ranks: int = 1,
        device: torch.device | str | None = None,
    ) -> None:
        _check_images(images)
        _check_labels(labels, len(images))
        check_count("batch_size", batch_size)
        check_seed(seed)
        check_count("ranks", ranks)
        if not 0 <= rank < ranks:
            raise ValueError(f"rank must be in [0, {ranks}), got {rank}")
        self.augmentation = augmentation
        if self.augmentation.padding < 0:
            raise ValueError(f"padding must be 0 or more, got {self.augmentation.padding}")
        self.normalisation = normalisation or Normalisation.of(images)
        self.batch_size, self.seed, self.shuffle = batch_size, seed, shuffle
        self.drop_single, self.rank, self.ranks = drop_single, rank, ranks
        self.shape = images.shape
        self.device = torch.device(device) if device is not None else images.device
        self._labels = labels.to(self.device, torch.int64)
        self._pixels = self._padded(images.to(self.device))
        self._epoch: tuple[int, Tensor, Draws] | None = None
        self._prepare_arithmetic()

    def _padded(self, images: Tensor) -> Tensor:
        """Return all pixels, channels last, with a black border: one row of channels per pixel."""
        by, (count, channels, height, width) = self.augmentation.padding, images.shape
        pixels = images.new_zeros(count, height + 2 * by, width + 2 * by, channels)
        pixels[:, by : by + height, by : by + width] = images.permute(0, 2, 3, 1)
        return pixels.view(-1, channels)

    def _prepare_arithmetic(self) -> None:
        _, _, height, width = self.shape
        self._stride = width + 2 * self.augmentation.padding
        self._area = self._stride * (height + 2 * self.augmentation.padding)
        options = {"device": self.device, "dtype": torch.float32}
        # Repeated over an image, so that the innermost loop is long: on a CPU many times faster.
        self._mean = torch.tensor(self.normalisation.mean, **options).repeat(height * width)  # type: ignore[arg-type]
        scale = 1 / torch.tensor(self.normalisation.std, dtype=torch.float64, device="cpu")
        self._scale = scale.to(self.device, torch.float32).repeat(height * width)
        self._rows = torch.arange(height, device=self.device)
        self._columns = torch.arange(width, device=self.device)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        whole, rest = divmod(self.shape[0], self.batch_size)
        return whole + (rest > 1 or (rest == 1 and not self.drop_single))

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of an epoch."""
        for number in range(len(self)):
            yield self.batch(epoch, number)

    def batch(self, epoch: int, number: int) -> tuple[Tensor, Tensor]:
        """Return images (channels last in memory) and labels of one batch, this rank's part."""
        span = self._span(number)
        order, draws = self._plan(epoch)
        samples = order[span]
        images = self._crop(samples, Draws(*(part[span] for part in draws)))
        return images, self._labels[samples]

    def _span(self, number: int) -> slice:
        """Return this rank's positions in the epoch: ranks' parts differ by at most one sample."""
        if not 0 <= number < len(self):
            raise IndexError(f"an epoch has batches 0 to {len(self) - 1}, got {number}")
        first = number * self.batch_size
        size = min(self.batch_size, self.shape[0] - first)
        begin, end = (first + size * rank // self.ranks for rank in (self.rank, self.rank + 1))
        return slice(begin, end)

    def _plan(self, epoch: int) -> tuple[Tensor, Draws]:
        if self._epoch is None or self._epoch[0] != epoch:
            size = self.shape[0]
            order = (
                epoch_order(self.seed, epoch, size)
                if self.shuffle
                else torch.arange(size, device="cpu")
            )
            draws = epoch_draws(self.seed, epoch, size, self.augmentation)
            moved = Draws(*(part.to(self.device) for part in draws))
            self._epoch = epoch, order.to(self.device), moved
        return self._epoch[1:]

    def _crop(self, samples: Tensor, draws: Draws) -> Tensor:
        _, channels, height, width = self.shape
        columns = torch.where(draws.flips[:, None], width - 1 - self._columns, self._columns)
        columns = columns + draws.columns[:, None]
        rows = (self._rows + draws.rows[:, None]) * self._stride
        places = (samples * self._area)[:, None, None] + rows[:, :, None] + columns[:, None, :]
        pixels = self._pixels.index_select(0, places.flatten())
        values = pixels.view(len(samples), height * width * channels).to(torch.float32)
        values.sub_(self._mean).mul_(self._scale)
        return values.view(len(samples), height, width, channels).permute(0, 3, 1, 2)


def _check_images(images: Tensor) -> None:
    if images.dtype != torch.uint8 or images.dim() != 4:
        raise ValueError(
            f"images must be uint8 of shape N x C x H x W, got {images.dtype} "
            f"of shape {tuple(images.shape)}"
        )
    if not images.numel():
        raise ValueError(f"there must be at least one image, got shape {tuple(images.shape)}")


def _check_labels(labels: Tensor, count: int) -> None:
    if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex():
        raise ValueError(
            f"labels must be one integer per image, got {labels.dtype} "
            f"of shape {tuple(labels.shape)}"
        )
    if len(labels) != count:
        raise ValueError(f"there are {count} images but {len(labels)} labels")
