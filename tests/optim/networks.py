"""Small networks and training loops that the optimizer tests share."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from stochbatch import SBS
from stochbatch.optim.kernels import native
from stochbatch.optim.layers import Layer


def take_eager_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let optimizers take eager steps, unless they are told ``fused=True``."""
    real = native.fits

    def fits(layer: Layer, grad: Tensor) -> bool:
        return bool(layer.group["fused"]) and real(layer, grad)

    monkeypatch.setattr(native, "fits", fits)


def moves_natively(optimizer: SBS) -> bool:
    """Whether the latest step of an optimizer was one call of C++."""
    plan = optimizer._plans._plan
    if plan is None or plan.work is None:
        return False
    return all(isinstance(kernel, native.Rows) for kernel in plan.work.kernels)


def small_network(dtype: torch.dtype = torch.float32, device: str = "cpu") -> nn.Module:
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Conv2d(2, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 5, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(20, 7),
        nn.ReLU(),
        nn.Linear(7, 3),
    )
    return network.to(device, dtype)


def batch(step: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 + step)
    images = torch.randn(8, 2, 6, 6, generator=generator).to(device, dtype)
    return images, torch.randint(3, (8,), generator=generator).to(device)


def backward(network: nn.Module, step: int) -> Tensor:
    """Set the gradients of one batch and return the loss."""
    parameter = next(network.parameters())
    images, labels = batch(step, parameter.dtype, parameter.device.type)
    network.zero_grad()
    loss = nn.functional.cross_entropy(network(images), labels)
    loss.backward()
    return loss


def train(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: range,
    after: Callable[[], None] = lambda: None,
) -> None:
    for step in steps:
        backward(network, step)
        optimizer.step()
        after()


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(left, right) for left, right in pairs)


def same_state(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> bool:
    """Whether all state tensors are equal in value and in dtype, parameter by parameter."""
    left, right = one.state_dict()["state"], other.state_dict()["state"]
    return left.keys() == right.keys() and all(
        left[key].keys() == right[key].keys()
        and all(
            torch.equal(left[key][name], right[key][name])
            and left[key][name].dtype == right[key][name].dtype
            for name in left[key]
        )
        for key in left
    )


def set_gradients(optimizer: SBS, gradients: list[Tensor]) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
