"""How far Algorithm 2 of the article is from the exact Algorithm 1 as the rate falls.

Algorithm 1 takes the gradient of a scalar's own set of samples at the present weights; Algorithm 2
averages the gradients of the batches at the weights of their time. Both start from the same
network and draw the same coins, with a fixed probability: an adaptive one would let a coin fall
differently where gradients differ. Their distance after a fixed number of steps falls with the
square of the rate, that is, relative to the way that the weights went, with the rate.

``python examples/algorithm1.py`` prints the table and draws ``runs/algorithm1.png``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from stochbatch import SBS, param_groups
from stochbatch.data import load
from stochbatch.optim import ExactSBS

RATES = (0.2, 0.1, 0.05, 0.025, 0.0125)
IMAGES, BATCH = 160, 16


def data() -> tuple[Tensor, Tensor]:
    """Return some digits as vectors in double precision, and their labels."""
    split = load("digits")
    return split.images[:IMAGES].flatten(1).double() / 255, split.labels[:IMAGES]


def network() -> nn.Module:
    """Return the same small network at every call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)).double()


def gradients(model: nn.Module, images: Tensor, labels: Tensor) -> list[Tensor]:
    """Return the gradient of the mean loss, one tensor per parameter."""
    loss = nn.functional.cross_entropy(model(images), labels)
    return list(torch.autograd.grad(loss, list(parameters(model))))


def parameters(model: nn.Module) -> list[Tensor]:
    """Return the parameters in the order of their groups."""
    return [parameter for group in param_groups(model) for _, parameter in group["params"]]


def distances(lr: float, steps: int, probability: float) -> tuple[float, float]:
    """Return how far the two algorithms are apart after some steps, and how far they went."""
    images, labels = data()
    exact, practical, start = network(), network(), network()
    one = ExactSBS(
        param_groups(exact),
        lambda samples: gradients(exact, images[samples], labels[samples]),
        lr,
        probability=probability,
    )
    two = SBS(param_groups(practical), lr, probability=probability)
    for step in range(steps):
        samples = [(step * BATCH + place) % IMAGES for place in range(BATCH)]
        one.step(samples)
        found = gradients(practical, images[samples], labels[samples])
        for parameter, grad in zip(parameters(practical), found, strict=True):
            parameter.grad = grad
        two.step()
    weights = [
        nn.utils.parameters_to_vector(m.parameters()).detach() for m in (exact, practical, start)
    ]
    return float((weights[0] - weights[1]).norm()), float((weights[0] - weights[2]).norm())


def main() -> None:
    """Print the distances at every rate, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--probability", type=float, default=0.5)
    parser.add_argument("--to", type=Path, default=Path("runs/algorithm1.png"))
    options = parser.parse_args()
    found = [distances(lr, options.steps, options.probability) for lr in RATES]
    print("rate     apart      way        apart / way")
    for lr, (apart, way) in zip(RATES, found, strict=True):
        print(f"{lr:<7g}  {apart:<9.3g}  {way:<9.3g}  {apart / way:.3g}")
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.add_subplot(
        xscale="log",
        yscale="log",
        xlabel="learning rate",
        ylabel="distance of the weights",
        title=f"After {options.steps} steps with the same coins",
    )
    axes.set_xticks(RATES, [f"{lr:g}" for lr in RATES])
    axes.minorticks_off()
    square = [found[0][0] * (lr / RATES[0]) ** 2 for lr in RATES]
    lines = (
        ("way of the weights", [way for _, way in found], "s-", "black", (0, 12)),
        ("Algorithm 1 to Algorithm 2", [apart for apart, _ in found], "o-", "#E00000", (0, 16)),
        ("rate squared", square, "--", "gray", (0, -22)),
    )
    for label, values, style, color, offset in lines:
        axes.plot(RATES, values, style, color=color)
        axes.annotate(
            label,
            (RATES[2], values[2]),
            offset,
            textcoords="offset points",
            color=color,
            ha="right" if offset[1] > 0 else "left",
        )
    options.to.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.to, dpi=120)
    print(f"picture: {options.to}")


if __name__ == "__main__":
    main()
