"""ResNet18 and ResNet50 for small images: a 3x3 stem without pooling."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from stochbatch.nets.dropout import (
    DropoutName,
    StochasticDepth,
    check_options,
    rising_rates,
    then_dropout,
)

WIDTHS = (64, 128, 256, 512)


def _convolution(channels: int, out: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    padding = kernel // 2
    return [nn.Conv2d(channels, out, kernel, stride, padding, bias=False), nn.BatchNorm2d(out)]


class Block(nn.Module):
    """A residual block: a branch of convolutions, added to a shortcut.

    Args:
        channels: number of channels of the inputs.
        out: number of channels of the features.
        stride: by how much the branch shrinks the image.
        branch: layers of the branch.
        rate: rate of the dropout after the block's last ReLU.
    """

    def __init__(
        self, channels: int, out: int, stride: int, branch: list[nn.Module], rate: float = 0.0
    ) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)
        projects = stride != 1 or channels != out
        self.shortcut = nn.Sequential(*(_convolution(channels, out, 1, stride) if projects else []))
        self.relu = then_dropout(nn.ReLU(inplace=True), rate)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the block's features."""
        features: Tensor = self.relu(self.branch(inputs) + self.shortcut(inputs))
        return features


def _basic_branch(channels: int, width: int, stride: int, rate: float) -> list[nn.Module]:
    """Return two 3x3 convolutions."""
    return [
        *_convolution(channels, width, 3, stride),
        then_dropout(nn.ReLU(inplace=True), rate),
        *_convolution(width, width, 3),
    ]


def _bottleneck_branch(channels: int, width: int, stride: int, rate: float) -> list[nn.Module]:
    """Return 1x1, 3x3 and 1x1 convolutions that widen four times."""
    return [
        *_convolution(channels, width, 1),
        then_dropout(nn.ReLU(inplace=True), rate),
        *_convolution(width, width, 3, stride),
        then_dropout(nn.ReLU(inplace=True), rate),
        *_convolution(width, 4 * width, 1),
    ]


class ResNet(nn.Module):
    """A stem, four stages of residual blocks, one linear layer.

    What the stages leave of the image is averaged, so one set of weights takes images of all
    sizes.

    The initialisation is torch's own, as of :class:`~stochbatch.nets.VGG`; batch norm starts with
    scale 1 and shift 0, also the last one of a branch.

    Args:
        depths: number of blocks in each stage.
        bottlenecks: whether blocks are bottlenecks.
        classes: number of classes.
        channels: number of channels of an image.
        width: factor on the widths of all stages.
        dropout: what is dropped in training: ``"head"`` elements of the features before the
            linear layer, ``"block"`` elements after each ReLU within a branch, ``"all"``
            elements after each ReLU and before the linear layer, ``"adaptive"`` whole
            branches (:class:`~stochbatch.nets.dropout.StochasticDepth`), block l of L for a
            batch with probability (l / L) ``dropout_rate``; None nothing.
        dropout_rate: probability that an element, or the branch of the last block, is dropped.

    Example:
        >>> import torch
        >>> from stochbatch.nets import resnet18
        >>> resnet18(width=0.25, dropout="adaptive")(torch.zeros(2, 3, 96, 96)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        depths: tuple[int, int, int, int],
        bottlenecks: bool,
        classes: int = 10,
        channels: int = 3,
        width: float = 1.0,
        dropout: DropoutName | None = None,
        dropout_rate: float = 0.5,
    ) -> None:
        super().__init__()
        check_options(classes, channels, width, dropout, dropout_rate)
        inner_rate = dropout_rate if dropout in ("block", "all") else 0.0
        outer_rate = dropout_rate if dropout == "all" else 0.0
        head_rate = dropout_rate if dropout in ("head", "all") else 0.0
        closing_rates = iter(rising_rates(sum(depths), dropout_rate))
        make_branch = _bottleneck_branch if bottlenecks else _basic_branch
        widening = 4 if bottlenecks else 1

        widths = [max(1, round(full * width)) for full in WIDTHS]
        stem = then_dropout(nn.ReLU(inplace=True), outer_rate)
        layers: list[nn.Module] = [*_convolution(channels, widths[0], 3), stem]
        channels = widths[0]
        for stage, (depth, inner) in enumerate(zip(depths, widths, strict=True)):
            for number in range(depth):
                stride = 2 if stage and not number else 1
                branch = make_branch(channels, inner, stride, inner_rate)
                if dropout == "adaptive":
                    branch.append(StochasticDepth(survival=1 - next(closing_rates)))
                layers.append(Block(channels, widening * inner, stride, branch, outer_rate))
                channels = widening * inner
        self.features = nn.Sequential(*layers)
        self.pool = then_dropout(nn.AdaptiveAvgPool2d(1), head_rate)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        logits: Tensor = self.classifier(self.pool(self.features(images)).flatten(1))
        return logits


def resnet18(**options: Any) -> ResNet:
    """Return ResNet18: 11,173,962 parameters in 62 tensors for 10 classes of colour images.

    Eight blocks of two 3x3 convolutions. Options as of :class:`ResNet`.

    Example:
        >>> from stochbatch.nets import resnet18
        >>> sum(parameter.numel() for parameter in resnet18().parameters())
        11173962
    """
    return ResNet((2, 2, 2, 2), False, **options)


def resnet50(**options: Any) -> ResNet:
    """Return ResNet50: 23,520,842 parameters in 161 tensors for 10 classes of colour images.

    Sixteen bottlenecks of a 1x1, a 3x3 and a 1x1 convolution. Options as of :class:`ResNet`.

    Example:
        >>> from stochbatch.nets import resnet50
        >>> sum(parameter.numel() for parameter in resnet50().parameters())
        23520842
    """
    return ResNet((3, 4, 6, 3), True, **options)
