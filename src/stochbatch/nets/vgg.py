"""VGG11 with batch normalisation, for small images."""

from __future__ import annotations

from torch import Tensor, nn

STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Widths of the convolutions; each stage ends by halving the image."""


class VGG(nn.Module):
    """Eight convolutions with batch norm in five stages, then one linear layer.

    Convolutions keep their biases. Torch's default initialisation.

    Args:
        classes: number of classes.
        channels: number of channels of an image.
        width: factor on the widths of all convolutions.

    Example:
        >>> import torch
        >>> from stochbatch.nets import vgg11
        >>> vgg11()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for stage in STAGES:
            for full in stage:
                out = max(1, round(full * width))
                layers += [
                    nn.Conv2d(channels, out, 3, padding=1),
                    nn.BatchNorm2d(out),
                    nn.ReLU(inplace=True),
                ]
                channels = out
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        logits: Tensor = self.classifier(self.pool(self.features(images)).flatten(1))
        return logits


def vgg11(classes: int = 10, channels: int = 3, width: float = 1.0) -> VGG:
    """Return VGG11: 9,231,114 parameters in 34 tensors for 10 classes of colour images."""
    return VGG(classes, channels, width)
