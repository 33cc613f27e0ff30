"""The networks by name."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from stochbatch.nets.dropout import DropoutName
from stochbatch.nets.resnet import resnet18, resnet50
from stochbatch.nets.vgg import vgg11, vgg_tiny
from stochbatch.registry import Registry


class NetworkFactory(Protocol):
    """Makes a network; every network takes the same options."""

    def __call__(
        self,
        classes: int = ...,
        channels: int = ...,
        width: float = ...,
        dropout: DropoutName | None = ...,
        dropout_rate: float = ...,
    ) -> nn.Module:
        """Return a network with newly drawn weights."""
        ...


NETWORKS: Registry[NetworkFactory] = Registry("network")
"""The networks, each a factory with one line about it."""

NETWORKS.add("vgg11", "VGG11 with batch norm, 9.2 million parameters, 32x32 and larger.", vgg11)
NETWORKS.add("resnet18", "ResNet18 with a 3x3 stem, 11.2 million parameters.", resnet18)
NETWORKS.add("resnet50", "ResNet50 with a 3x3 stem, 23.5 million parameters.", resnet50)
NETWORKS.add("vgg_tiny", "Three convolutions for 8x8 digits, 94 thousand parameters.", vgg_tiny)
