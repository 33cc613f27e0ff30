"""Train a small network on a few scikit-learn digits, with SGD and with SBS.

The same network, images, batches, rates and seeds for both; only the optimizer differs.
Run it with ``make demo``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import stochbatch

TRAIN_IMAGES, TEST_IMAGES, BATCH = 200, 1000, 16
Method = Callable[[nn.Module, int], torch.optim.Optimizer]

METHODS: dict[str, Method] = {
    "SGD": lambda network, seed: torch.optim.SGD(network.parameters(), lr=0.1),
    "SBS": lambda network, seed: stochbatch.SBS(
        stochbatch.param_groups(network),
        lr=0.1,
        seed=seed,
        steps_per_epoch=-(-TRAIN_IMAGES // BATCH),
    ),
}


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images and labels of a random training part and of a disjoint test part."""
    loaded = load_digits()
    images = torch.tensor(loaded.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(loaded.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    train, test = order[:TRAIN_IMAGES], order[TRAIN_IMAGES : TRAIN_IMAGES + TEST_IMAGES]
    return images[train], labels[train], images[test], labels[test]


def network() -> nn.Module:
    """Return a small network in the manner of VGG: six convolutions, one linear layer."""
    layers: list[nn.Module] = []
    channels = 1
    for width in (16, 16, 32, 32, 64, 64):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        if width == channels:
            layers.append(nn.MaxPool2d(2))
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, 10))


def accuracy(method: Method, seed: int, epochs: int) -> tuple[float, torch.optim.Optimizer]:
    """Train from ``seed``; return the test accuracy in percent, and the optimizer."""
    images, labels, test_images, test_labels = digits(seed)
    torch.manual_seed(seed)
    model = network()
    optimizer = method(model, seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        model.train()
        order = torch.randperm(len(labels))
        for start in range(0, len(labels), BATCH):
            batch = order[start : start + BATCH]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            torch.autograd.backward(loss)
            optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        right = model(test_images).argmax(1) == test_labels
    return 100 * right.float().mean().item(), optimizer


def main() -> None:
    """Print the accuracies of both methods, and what SBS did in each layer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{TRAIN_IMAGES} digits to learn from, {TEST_IMAGES} to test on, batch {BATCH}")
    optimizer: torch.optim.Optimizer | None = None
    for name, method in METHODS.items():
        found = []
        for seed in range(arguments.seeds):
            result, optimizer = accuracy(method, seed, arguments.epochs)
            found.append(result)
        each = " ".join(f"{value:.1f}" for value in found)
        print(f"{name}  test accuracy {sum(found) / len(found):.2f} %  (seeds: {each})")
    if isinstance(optimizer, stochbatch.SBS):
        print("\nSBS, last seed, mean over all steps:")
        print(optimizer.layer_report())


if __name__ == "__main__":
    main()
