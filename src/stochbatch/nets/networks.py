"""The networks by name."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from stochbatch.nets.dropout import DropoutName
from stochbatch.nets.resnet import resnet18, resnet50
from stochbatch.nets.vgg import vgg11, vgg_tiny
from stochbatch.registry import NETWORKS


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


NETWORKS.provide("vgg11", vgg11)
NETWORKS.provide("resnet18", resnet18)
NETWORKS.provide("resnet50", resnet50)
NETWORKS.provide("vgg_tiny", vgg_tiny)
