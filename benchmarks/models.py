"""Parameter sets of real networks, filled with numbers, with gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from stochbatch.nets import resnet18, resnet50, vgg11


def gpt2_small() -> nn.Module:
    """Return modules with the parameter tensors of GPT-2 small (124 million scalars)."""
    width, blocks = 768, 12

    def block() -> nn.Module:
        return nn.ModuleList(
            [
                nn.LayerNorm(width),
                nn.Linear(width, 3 * width),
                nn.Linear(width, width),
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.Linear(4 * width, width),
            ]
        )

    words, places = nn.Embedding(50257, width), nn.Embedding(1024, width)
    return nn.ModuleList([words, places, *(block() for _ in range(blocks)), nn.LayerNorm(width)])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "VGG11": vgg11,
    "ResNet18": resnet18,
    "ResNet50": resnet50,
    "GPT-2 small": gpt2_small,
}


PARAMETERS: dict[str, Callable[[], nn.Module]] = {
    **MODELS,
    "ResNet18, float64": lambda: resnet18().double(),
    "ResNet18, bfloat16": lambda: resnet18().bfloat16(),
    "ResNet18, float16": lambda: resnet18().half(),
    "150 tensors of 4,096": lambda: nn.ModuleList(
        nn.Linear(64, 64, bias=False) for _ in range(150)
    ),
    "MLP of 9,610 weights": lambda: nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 10)),
}
"""Parameter sets that steps are timed on: large and small, of every dtype."""


def with_gradients(model: nn.Module) -> nn.Module:
    """Put a network on the GPU, if there is one, and give every parameter a plausible gradient."""
    generator = torch.Generator().manual_seed(0)
    model.to(torch.accelerator.current_accelerator() or "cpu")
    for parameter in model.parameters():
        grad = torch.randn(parameter.shape, generator=generator) * 0.01
        parameter.grad = grad.to(parameter)
    return model
