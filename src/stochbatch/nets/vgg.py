"""VGG11 with batch normalisation for small images, and a tiny sister for 8x8 digits."""

from __future__ import annotations

from typing import Any

import torch.fx
from torch import Tensor, nn

from stochbatch.nets.dropout import DropoutName, check_options, rising_rates, then_dropout

Stages = tuple[tuple[int, ...], ...]

VGG11_STAGES: Stages = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Widths of the convolutions; each stage ends by halving the image."""

VGG_TINY_STAGES: Stages = ((32,), (64,), (128,))


class VGG(nn.Module):
    """Stages of convolutions with batch norm that each halve the image, then one linear layer.

    Convolutions keep their biases. What the stages leave of the image is averaged, so one set
    of weights takes images of all sizes that survive the halvings.

    The initialisation is torch's own: weights of convolutions and of the linear layer are
    Kaiming uniform with a = sqrt(5), which is uniform within 1 / sqrt(fan-in), and so are
    biases; batch norm starts with scale 1 and shift 0. It is what the usual CIFAR definitions
    of these networks start from.

    Args:
        stages: widths of the convolutions of each stage.
        classes: number of classes.
        channels: number of channels of an image.
        width: factor on the widths of all convolutions.
        dropout: where elements are dropped in training: ``"head"`` from the features before
            the linear layer, ``"block"`` after each halving, ``"all"`` after each ReLU and
            before the linear layer, ``"adaptive"`` after each ReLU at a rate that rises with
            depth, (l / L) ``dropout_rate`` after convolution l of L; None nowhere.
        dropout_rate: probability that an element is dropped.

    Example:
        >>> import torch
        >>> from stochbatch.nets import vgg11
        >>> vgg11(width=0.25, dropout="block")(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
        >>> vgg11(width=0.25)(torch.zeros(2, 3, 28, 28))
        Traceback (most recent call last):
        ...
        ValueError: images must be at least 32x32 for a network that halves them 5 times, got 28x28
    """

    def __init__(
        self,
        stages: Stages,
        classes: int = 10,
        channels: int = 3,
        width: float = 1.0,
        dropout: DropoutName | None = None,
        dropout_rate: float = 0.5,
    ) -> None:
        super().__init__()
        check_options(classes, channels, width, dropout, dropout_rate)
        count = sum(len(stage) for stage in stages)
        relu_rates = iter(
            rising_rates(count, dropout_rate)
            if dropout == "adaptive"
            else [dropout_rate if dropout == "all" else 0.0] * count
        )
        pool_rate = dropout_rate if dropout == "block" else 0.0
        head_rate = dropout_rate if dropout in ("head", "all") else 0.0

        layers: list[nn.Module] = []
        for stage in stages:
            for full in stage:
                out = max(1, round(full * width))
                layers += [
                    nn.Conv2d(channels, out, 3, padding=1),
                    nn.BatchNorm2d(out),
                    then_dropout(nn.ReLU(inplace=True), next(relu_rates)),
                ]
                channels = out
            layers.append(then_dropout(nn.MaxPool2d(2), pool_rate))
        self.halvings = len(stages)
        self.features = nn.Sequential(*layers)
        self.pool = then_dropout(nn.AdaptiveAvgPool2d(1), head_rate)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        images = large_enough(images, self.halvings)
        logits: Tensor = self.classifier(self.pool(self.features(images)).flatten(1))
        return logits


def vgg11(**options: Any) -> VGG:
    """Return VGG11: 9,231,114 parameters in 34 tensors for 10 classes of colour images.

    Eight convolutions in five stages, for images of 32x32 and larger. Options as of
    :class:`VGG`.

    Example:
        >>> from stochbatch.nets import vgg11
        >>> sum(parameter.numel() for parameter in vgg11().parameters())
        9231114
    """
    return VGG(VGG11_STAGES, **options)


def vgg_tiny(**options: Any) -> VGG:
    """Return a VGG of three convolutions: 94,410 parameters in 14 tensors for grey digits.

    Three stages, for images of 8x8 and larger: a network for quick runs, not one of the
    article's. Options as of :class:`VGG`.

    Example:
        >>> import torch
        >>> from stochbatch.nets import vgg_tiny
        >>> vgg_tiny()(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """
    return VGG(VGG_TINY_STAGES, **{"channels": 1, **options})


def large_enough(images: Tensor, halvings: int) -> Tensor:
    """Return ``images``; raise if nothing of them would be left after so many halvings."""
    height, width = images.shape[-2:]
    smallest = 2**halvings
    if min(height, width) < smallest:
        raise ValueError(
            f"images must be at least {smallest}x{smallest} for a network that halves them "
            f"{halvings} times, got {height}x{width}"
        )
    return images


# A symbolic trace has no sizes to compare: it keeps the check as one call.
torch.fx.wrap("large_enough")
