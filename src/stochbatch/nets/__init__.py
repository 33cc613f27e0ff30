"""VGG11, ResNet18 and ResNet50 for images of 32x32 and larger, and a small VGG for digits."""

from stochbatch.nets.batch_norm import resample_batch_norm, uniform_norm_scales
from stochbatch.nets.dropout import DROPOUTS, DropoutName, StochasticDepth
from stochbatch.nets.networks import NetworkFactory
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
    "resample_batch_norm",
    "resnet18",
    "resnet50",
    "uniform_norm_scales",
    "vgg11",
    "vgg_tiny",
]
