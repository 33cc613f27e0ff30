"""The article's networks, for images of 32x32 and larger."""

from stochbatch.nets.resnet import ResNet, resnet18, resnet50
from stochbatch.nets.vgg import VGG, vgg11

__all__ = ["VGG", "ResNet", "resnet18", "resnet50", "vgg11"]
