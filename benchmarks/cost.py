"""What the article's comparison costs at full scale, and what SBS adds to FSDP2: computed.

    python -m benchmarks.cost [--teraflops 10] [--gigabytes 25] [--microseconds 10]

Operations of every trial are counted, and divided by what a device is taken to do. That is
checked against one real measurement: a sample of each network on this machine.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import torch
from torch.utils.flop_counter import FlopCounterMode

from stochbatch.data import DATASETS
from stochbatch.nets import NETWORKS
from stochbatch.studies import SCALES, STUDIES
from stochbatch.studies.estimate import kind_of, measure
from stochbatch.training import Trial

Forward = dict[tuple[str, str], int]
"""Operations of an image's forward pass, by data set and network."""

CPU = torch.device("cpu")
DEVICES = (1, 8, 64)
BYTES_OF_A_LAYER = 24
"""Three doubles, see ``stochbatch/optim/shards.py``."""


def operations(dataset: str, network: str) -> int:
    """Return the floating-point operations of one image's forward pass."""
    entry = DATASETS[dataset]
    with torch.device("meta"):
        model = NETWORKS[network](classes=len(entry.classes), channels=entry.shape[0]).eval()
        counter = FlopCounterMode(display=False)
        with counter:
            model(torch.empty(1, *entry.shape))
    return int(counter.get_total_flops())


def of_trial(trial: Trial, forward: int) -> float:
    """Return the operations of a trial: a backward pass has twice those of a forward pass."""
    entry = DATASETS[trial.dataset]
    evaluations = sum(trial.evaluates(epoch) for epoch in range(trial.epochs))
    train = trial.epochs * entry.train.count * trial.share * 3
    return (train + evaluations * entry.test.count) * forward


def sharded_step(
    parameters: int, tensors: int, groups: int, devices: int, bandwidth: float, latency: float
) -> tuple[float, float, float, float]:
    """Return bytes and seconds that FSDP2 takes in a step, and those that SBS adds.

    FSDP2 gathers the weights twice and scatters the gradients once, for each group of parameters:
    as rings, in which each of ``devices - 1`` rounds costs a latency. The small all-reduce of SBS
    goes up and down a tree.
    """
    rounds = devices - 1
    moved = 3 * 4 * parameters * rounds / devices
    # One column says which tensors they are.
    added = 2 * BYTES_OF_A_LAYER * (tensors + 1)
    levels = 2 * math.ceil(math.log2(devices))
    return (
        moved,
        moved / bandwidth + 3 * groups * rounds * latency,
        added,
        levels * (added / 2 / bandwidth + latency),
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost", description=__doc__)
    parser.add_argument("--teraflops", type=float, default=10.0, help="that a GPU sustains")
    parser.add_argument("--gigabytes", type=float, default=25.0, help="a second between GPUs")
    parser.add_argument("--microseconds", type=float, default=10.0, help="of a message")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    scale, study = SCALES["paper"], STUDIES["comparison"]
    trials = study.trials(study.cells(scale), scale.repetitions)
    speed = arguments.teraflops * 1e12
    forward = {
        key: operations(*key) for key in {(trial.dataset, trial.network): None for trial in trials}
    }
    _print_trials(trials, forward, speed)
    _print_study([of_trial(one, forward[one.dataset, one.network]) / speed for one in trials])
    _print_sharded(arguments.gigabytes * 1e9, arguments.microseconds * 1e-6)


def _print_trials(trials: Sequence[Trial], forward: Forward, speed: float) -> None:
    """Print what one trial of each kind costs, measured here and computed for a GPU."""
    rows = []
    for key, once in forward.items():
        trial = next(one for one in trials if (one.dataset, one.network) == key)
        flops = of_trial(trial, once)
        here = measure(kind_of(trial, CPU), CPU).seconds(trial)
        rows.append(
            [
                *key,
                f"{once / 1e9:.2f}",
                f"{flops / 1e15:.1f}",
                f"{here / 3600:.1f}",
                f"{flops / here / 1e9:.0f}",
                f"{flops / speed / 60:.0f}",
            ]
        )
    print("One trial of 100 epochs. Measured: a sample on one core of this machine.\n")
    head = ["data", "network", "GFLOP forward", "PFLOP a trial", "hours measured, one core"]
    print(_table([*head, "GFLOP/s of that", "minutes on the GPU"], rows))


def _print_study(seconds: Sequence[float]) -> None:
    """Print how long all trials take on several numbers of devices."""
    print(f"\n{len(seconds)} trials, {sum(seconds) / 3600:.0f} GPU-hours.\n")
    # The longest first: then the devices are done at about the same time.
    spans = [(count, max(max(seconds), sum(seconds) / count) / 3600) for count in DEVICES]
    rows = [[str(count), f"{span:.1f}", f"{span / 24:.1f}"] for count, span in spans]
    print(_table(["GPUs", "hours", "days"], rows))
    print(f"\nThe longest trial takes {max(seconds) / 3600:.1f} h.\n")


def _print_sharded(bandwidth: float, latency: float) -> None:
    """Print what SBS adds to the communication of FSDP2."""
    rows = []
    for name, groups in (("vgg11", 9), ("resnet18", 10), ("resnet50", 18)):
        sizes = [parameter.numel() for parameter in NETWORKS[name]().parameters()]
        for count in (2, 8, 64):
            moved, time, added, more = sharded_step(
                sum(sizes), len(sizes), groups, count, bandwidth, latency
            )
            rows.append(
                [
                    name,
                    str(count),
                    f"{moved / 1e6:.1f}",
                    f"{1e3 * time:.2f}",
                    f"{added / 1e3:.1f}",
                    f"{1e3 * more:.3f}",
                    f"{100 * more / time:.1f}",
                ]
            )
    head = ["network", "GPUs", "FSDP2: MB", "ms", "SBS adds: kB", "ms", "% of FSDP2's time"]
    print(_table(head, rows))


if __name__ == "__main__":
    main()
