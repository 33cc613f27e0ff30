"""The networks by name."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from stochbatch.nets.resnet import resnet18, resnet50
from stochbatch.nets.vgg import vgg11, vgg_tiny
from stochbatch.registry import NETWORKS

NetworkFactory = Callable[..., nn.Module]
"""Takes ``classes``, ``channels``, ``width``, ``dropout`` and ``dropout_rate`` by keyword."""

for _factory in (vgg11, resnet18, resnet50, vgg_tiny):
    NETWORKS.provide(_factory.__name__, _factory)
