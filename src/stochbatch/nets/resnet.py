"""ResNet18 and ResNet50 for small images: a 3x3 stem without pooling."""

from __future__ import annotations

from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512)


def _convolution(channels: int, out: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    padding = kernel // 2
    return [nn.Conv2d(channels, out, kernel, stride, padding, bias=False), nn.BatchNorm2d(out)]


class Block(nn.Module):
    """A residual block: a branch of convolutions, added to a shortcut."""

    def __init__(self, channels: int, out: int, stride: int, branch: list[nn.Module]) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)
        projects = stride != 1 or channels != out
        self.shortcut = nn.Sequential(*(_convolution(channels, out, 1, stride) if projects else []))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the block's features."""
        features: Tensor = self.relu(self.branch(inputs) + self.shortcut(inputs))
        return features


def basic_block(channels: int, width: int, stride: int) -> Block:
    """Return a block of two 3x3 convolutions."""
    branch = [
        *_convolution(channels, width, 3, stride),
        nn.ReLU(inplace=True),
        *_convolution(width, width, 3),
    ]
    return Block(channels, width, stride, branch)


def bottleneck(channels: int, width: int, stride: int) -> Block:
    """Return a block of 1x1, 3x3 and 1x1 convolutions that widens four times."""
    branch = [
        *_convolution(channels, width, 1),
        nn.ReLU(inplace=True),
        *_convolution(width, width, 3, stride),
        nn.ReLU(inplace=True),
        *_convolution(width, 4 * width, 1),
    ]
    return Block(channels, 4 * width, stride, branch)


class ResNet(nn.Module):
    """A stem, four stages of residual blocks, one linear layer.

    Torch's default initialisation.

    Args:
        depths: number of blocks in each stage.
        bottlenecks: whether blocks are bottlenecks.
        classes: number of classes.
        channels: number of channels of an image.
        width: factor on the widths of all stages.

    Example:
        >>> import torch
        >>> from stochbatch.nets import resnet18
        >>> resnet18(width=0.25)(torch.zeros(2, 3, 96, 96)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        depths: tuple[int, int, int, int],
        bottlenecks: bool,
        classes: int = 10,
        channels: int = 3,
        width: float = 1.0,
    ) -> None:
        super().__init__()
        widths = [max(1, round(full * width)) for full in WIDTHS]
        layers: list[nn.Module] = [*_convolution(channels, widths[0], 3), nn.ReLU(inplace=True)]
        channels = widths[0]
        for stage, (depth, out) in enumerate(zip(depths, widths, strict=True)):
            for number in range(depth):
                stride = 2 if stage and not number else 1
                make = bottleneck if bottlenecks else basic_block
                layers.append(make(channels, out, stride))
                channels = 4 * out if bottlenecks else out
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        logits: Tensor = self.classifier(self.pool(self.features(images)).flatten(1))
        return logits


def resnet18(classes: int = 10, channels: int = 3, width: float = 1.0) -> ResNet:
    """Return ResNet18: 11,173,962 parameters in 62 tensors for 10 classes of colour images."""
    return ResNet((2, 2, 2, 2), False, classes, channels, width)


def resnet50(classes: int = 10, channels: int = 3, width: float = 1.0) -> ResNet:
    """Return ResNet50: 23,520,842 parameters in 161 tensors for 10 classes of colour images."""
    return ResNet((3, 4, 6, 3), True, classes, channels, width)
