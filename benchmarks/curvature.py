"""How stable the first step is: ``python -m benchmarks.curvature [--data-root D] [--accept-hash]``.

Prints, for VGG11 as it is initialised, the largest eigenvalue of the Hessian of the mean loss in
the classifier's weights, times the learning rate. Gradient descent with momentum m is stable in
that direction while the product is below 2 (1 + m).
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from stochbatch import data
from stochbatch.nets import VGG
from stochbatch.training import Trial
from stochbatch.training.builders import build_network

IMAGES, SEEDS, LR = 512, 3, 0.1


def curvature(features: Tensor, chances: Tensor, rounds: int = 60) -> float:
    """Return the largest eigenvalue of the mean of (diag(p) - p p') x h h', by power iteration."""
    vector = torch.randn(chances.shape[1], features.shape[1])
    value = 0.0
    for _ in range(rounds):
        vector /= vector.norm()
        logits = features @ vector.T
        slope = chances * logits - chances * (chances * logits).sum(1, keepdim=True)
        image = slope.T @ features / len(features)
        value = (vector * image).sum().item()
        vector = image
    return value


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root")
    parser.add_argument("--accept-hash", action="store_true")
    given = parser.parse_args()
    split = data.load("cifar10", given.data_root, "train", accept_hash=given.accept_hash)
    images, _ = data.Batches(split.images[:IMAGES], split.labels[:IMAGES], IMAGES).batch(0, 0)
    print("width  norm_init  lr x curvature (stable below 2 without momentum, below 3.8 with 0.9)")
    for width in (1.0, 0.5, 0.25):
        for start in ("ones", "uniform"):
            values = []
            for seed in range(SEEDS):
                torch.manual_seed(seed)
                trial = Trial(dataset="cifar10", width=width, norm_init=start)
                network = build_network(trial).train()
                assert isinstance(network, VGG)
                features = network.pool(network.features(images)).flatten(1)
                values.append(curvature(features, network.classifier(features).softmax(1)))
            print(f"{width:<5g}  {start:<9}  {LR * sum(values) / SEEDS:.2f}")


if __name__ == "__main__":
    main()
