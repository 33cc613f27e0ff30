"""The network and the optimizer of a trial."""

from __future__ import annotations

import json
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from stochbatch.nets import uniform_norm_scales
from stochbatch.registry import DATASETS, METHODS, NETWORKS, SCHEDULES

if TYPE_CHECKING:
    from stochbatch.training.trial import Trial


def build_network(trial: Trial, **options: Any) -> nn.Module:
    """Return the network, with weights from torch's generator; options override the trial's."""
    options = {**METHODS[trial.method].network_options(trial.settings), **options}
    network = _network(trial.dataset, trial.network, trial.width, **options)
    if trial.norm_init == "uniform":
        uniform_norm_scales(network)
    return network


def build_optimizer(trial: Trial, network: nn.Module) -> Optimizer:
    """Return the optimizer of ``network``."""
    return METHODS[trial.method].optimizer(
        network,
        lr=trial.lr,
        momentum=trial.momentum,
        weight_decay=trial.weight_decay,
        seed=trial.seed,
        **trial.settings,
    )


def try_out(trial: Trial) -> None:
    """Build everything once without memory, so that errors come before a training starts."""
    # A study has thousands of trials, and few that differ in what matters here.
    options = METHODS[trial.method].network_options(trial.settings)
    _try_network(trial.dataset, trial.network, trial.width, tuple(sorted(options.items())))
    _try_optimizer(trial.model_copy(update={"seed": 0, "share": 1.0, "width": 1.0}).to_json())


def _network(dataset: str, network: str, width: float, **options: Any) -> nn.Module:
    entry = DATASETS[dataset]
    return NETWORKS[network](
        classes=len(entry.classes), channels=entry.shape[0], width=width, **options
    )


@lru_cache(maxsize=4096)
def _try_network(
    dataset: str, network: str, width: float, options: tuple[tuple[str, Any], ...]
) -> None:
    with torch.device("meta"):
        built = _network(dataset, network, width, **dict(options))
        built.eval()(torch.empty(2, *DATASETS[dataset].shape))


@lru_cache(maxsize=4096)
def _try_optimizer(trial_json: str) -> None:
    trial: Any = SimpleNamespace(**json.loads(trial_json))
    with torch.device("meta"):
        optimizer = build_optimizer(trial, nn.Linear(1, 1))
    SCHEDULES[trial.schedule](optimizer, trial.epochs, **trial.schedule_settings)
