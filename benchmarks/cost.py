"""What the article's comparison costs at full scale, and what SBS adds to FSDP2: computed.

Operations of every trial are counted, and divided by what a GPU is taken to do. Beside it, one real
measurement: a sample of each network on one core of this machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.result import Result
from stochbatch.data import DATASETS
from stochbatch.nets import NETWORKS
from stochbatch.studies import SCALES, STUDIES
from stochbatch.studies.estimate import kind_of, measure
from stochbatch.training import Trial

TERAFLOPS, GIGABYTES, MICROSECONDS = 10.0, 25.0, 10.0
"""What a GPU sustains; bytes per second between GPUs; how long a message takes at least."""

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


def run(quick: bool) -> Result:
    """Compute what one trial of each kind takes, and all of them; measure a sample of each."""
    scale, study = SCALES["paper"], STUDIES["comparison"]
    trials = study.trials(study.cells(scale), scale.repetitions)
    result = Result(
        f"a trial of the article's comparison: computed for a GPU that sustains {TERAFLOPS:g} "
        "TFLOP/s, and from a sample measured on one core",
        ["data", "network", "GFLOP forward", "PFLOP per trial", "minutes, GPU", "hours, core"],
    )
    examples = {(trial.dataset, trial.network): trial for trial in trials}
    forward = {key: operations(*key) for key in examples}
    for key, trial in examples.items():
        flops = of_trial(trial, forward[key])
        here = measure(kind_of(trial, CPU), CPU).seconds(trial) / 3600
        seconds = flops / (TERAFLOPS * 1e12)
        result.rows.append([*key, forward[key] / 1e9, flops / 1e15, seconds / 60, here])
    whole = [of_trial(one, forward[one.dataset, one.network]) for one in trials]
    result.notes = [
        _of_study([flops / (TERAFLOPS * 1e12) for flops in whole]),
        _of_shards(GIGABYTES * 1e9, MICROSECONDS * 1e-6),
    ]
    return result


def _of_study(seconds: Sequence[float]) -> str:
    """Return how long all trials take on several numbers of devices."""
    # The longest first: then the devices are done at about the same time.
    spans = [max(max(seconds), sum(seconds) / count) / 86400 for count in DEVICES]
    days = ", ".join(f"{span:.1f} on {count}" for count, span in zip(DEVICES, spans, strict=True))
    return (
        f"All {len(seconds):,} trials take {sum(seconds) / 3600:,.0f} GPU-hours. "
        f"Days by the number of GPUs: {days}."
    )


def _of_shards(bandwidth: float, latency: float) -> str:
    """Return what SBS adds to the communication of FSDP2."""
    added, shares = [], []
    for name, groups in (("vgg11", 9), ("resnet18", 10), ("resnet50", 18)):
        sizes = [parameter.numel() for parameter in NETWORKS[name]().parameters()]
        for count in (2, 8, 64):
            _, time, _, more = sharded_step(
                sum(sizes), len(sizes), groups, count, bandwidth, latency
            )
            added.append(1e3 * more)
            shares.append(100 * more / time)
    return (
        f"Under FSDP2 on 2 to 64 GPUs ({bandwidth / 1e9:g} GB/s, {latency * 1e6:g} µs per message) "
        f"SBS adds {min(added):.2f} to {max(added):.2f} ms to a step, {min(shares):.1f} to "
        f"{max(shares):.1f} % of the time of FSDP2's own messages."
    )
