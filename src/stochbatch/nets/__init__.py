"""VGG11, ResNet18 and ResNet50 for images of 32x32 and larger, and a small VGG for digits."""

from collections.abc import Callable

from torch import nn

from stochbatch.nets.batch_norm import uniform_norm_scales
from stochbatch.nets.dropout import DROPOUTS, DropoutName, StochasticDepth
from stochbatch.nets.resnet import ResNet, resnet18, resnet50
from stochbatch.nets.vgg import VGG, vgg11, vgg_tiny
from stochbatch.registry import NETWORKS

__all__ = [
    "DROPOUTS",
    "NETWORKS",
    "VGG",
    "DropoutName",
    "NetworkFactory",
    "ResNet",
    "StochasticDepth",
    "resnet18",
    "resnet50",
    "uniform_norm_scales",
    "vgg11",
    "vgg_tiny",
]

NetworkFactory = Callable[..., nn.Module]
"""Takes ``classes``, ``channels``, ``width``, ``dropout`` and ``dropout_rate`` by keyword."""

for _factory in (vgg11, resnet18, resnet50, vgg_tiny):
    NETWORKS.provide(_factory.__name__, _factory)
