"""Invariant: a schedule gives the article's rates, its end points exactly, and resumes."""

import io
import itertools
import math
import re
from collections import Counter

import pytest
import torch
from torch import nn

from stochbatch import SBS
from stochbatch.optim import SigmoidLR
from stochbatch.training import SCHEDULES


def optimizer(lr: float = 0.1, groups: int = 1) -> torch.optim.Optimizer:
    params = [{"params": [nn.Parameter(torch.zeros(1))]} for _ in range(groups)]
    return torch.optim.SGD(params, lr)


def rates(scheduler: torch.optim.lr_scheduler.LRScheduler, count: int) -> list[float]:
    found = []
    for _ in range(count):
        found.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return found


def test_the_article_s_sigmoid() -> None:
    found = rates(SigmoidLR(optimizer(), 100, 0.001), 100)
    # Computed by hand from the formula, seven places.
    for epoch, rate in {25: 0.0993078, 49: 0.0529981, 50: 0.0480019, 75: 0.0015655}.items():
        assert abs(found[epoch] - rate) < 5e-8
    assert all(one > other for one, other in itertools.pairwise(found))


@pytest.mark.parametrize("steepness", [1e-17, 1e-3, 1.0, 10.0, 1e4])
@pytest.mark.parametrize("total", [2, 3, 7, 100])
@pytest.mark.parametrize(("start", "end"), [(0.1, 0.001), (0.3, 0.7), (0.1, 0.0), (1e-4, 1e-4)])
def test_end_points_are_hit_exactly(start: float, end: float, total: int, steepness: float) -> None:
    found = rates(SigmoidLR(optimizer(start), total, end, steepness), total + 3)
    assert found[0] == start
    assert found[total - 1 :] == [end] * 4
    low, high = sorted((start, end))
    assert all(low <= rate <= high for rate in found)


def test_a_training_of_one_epoch_has_the_first_rate() -> None:
    assert rates(SigmoidLR(optimizer(), 1), 1) == [0.1]


def test_groups_keep_their_own_ends() -> None:
    groups = optimizer(groups=2)
    groups.param_groups[1]["lr"] = 1.0
    scheduler = SigmoidLR(groups, 3, [0.01, 0.2])
    for _ in range(2):
        groups.step()
        scheduler.step()
    assert scheduler.get_last_lr() == [0.01, 0.2]


def test_a_rate_that_is_a_tensor_is_moved_in_place() -> None:
    rate = torch.tensor(0.1)
    sbs = SBS([nn.Parameter(torch.zeros(1))], rate)
    scheduler = SigmoidLR(sbs, 3, 0.001)
    seen = []
    for _ in range(3):
        seen.append(rate.item())
        sbs.step()
        scheduler.step()
    torch.testing.assert_close(seen, [0.1, 0.0505, 0.001])
    assert sbs.param_groups[0]["lr"] is rate


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("stop", [0, 1, 5, 11])
def test_a_resumed_schedule_goes_on(name: str, stop: int) -> None:
    whole = rates(SCHEDULES[name](optimizer(), 12), 12)
    first = SCHEDULES[name](optimizer(), 12)
    begun = rates(first, stop)
    buffer = io.BytesIO()
    torch.save((first.state_dict(), first.optimizer.state_dict()), buffer)
    buffer.seek(0)
    # torch's own MultiStepLR keeps a Counter, which is no tensor or number.
    with torch.serialization.safe_globals([Counter]):
        of_schedule, of_optimizer = torch.load(buffer, weights_only=True)
    second = SCHEDULES[name](optimizer(), 12)
    second.load_state_dict(of_schedule)
    second.optimizer.load_state_dict(of_optimizer)
    assert begun + rates(second, 12 - stop) == whole


EXPECTED = {
    "exponential": lambda e: 0.1 * math.exp(-0.05 * e),
    "staircase": lambda e: 0.1 if e < 50 else 0.01 if e < 75 else 0.001,
    "constant": lambda e: 0.1,
    "cosine": lambda e: 0.05 * (1 + math.cos(math.pi * e / 100)),
    "warmup-cosine": lambda e: (
        0.01 + 0.018 * e if e < 5 else 0.05 * (1 + math.cos(math.pi * (e - 5) / 95))
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_other_schedules(name: str) -> None:
    found = rates(SCHEDULES[name](optimizer(), 100), 100)
    torch.testing.assert_close(found, [EXPECTED[name](e) for e in range(100)], rtol=1e-12, atol=0)


@pytest.mark.parametrize("share", [0.07, 0.29, 0.55, 0.57, 0.58])
def test_a_staircase_falls_at_the_epoch_that_is_meant(share: float) -> None:
    found = rates(SCHEDULES["staircase"](optimizer(), 100, milestones=[share]), 100)
    assert found.index(pytest.approx(0.01)) == round(100 * share)


def test_every_schedule_has_expectations_here() -> None:
    assert set(SCHEDULES) == {"sigmoid", *EXPECTED}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: SigmoidLR(optimizer(), 0), ValueError, "total must be 1 or more, got 0"),
        (lambda: SigmoidLR(optimizer(), 2.5), TypeError, "total must be an int, got float: 2.5"),
        (lambda: SigmoidLR(optimizer(), 9, -1), ValueError, "end_lr must be 0 or more, got -1"),
        (lambda: SigmoidLR(optimizer(), 9, "0"), TypeError, "end_lr must be a number, got str"),
        (
            lambda: SigmoidLR(optimizer(), 9, [0.1, 0.2]),
            ValueError,
            "end_lr must be one number, or one a parameter group (1), got 2",
        ),
        (
            lambda: SigmoidLR(optimizer(), 9, steepness=0),
            ValueError,
            "steepness must be above 0, got 0",
        ),
        (lambda: SigmoidLR("sgd", 9), TypeError, "optimizer must be an optimizer, got str"),
        (
            lambda: SCHEDULES["exponential"](optimizer(), 9, decay=-1),
            ValueError,
            "decay must be 0 or more, got -1",
        ),
        (
            lambda: SCHEDULES["staircase"](optimizer(), 9, milestones=[2]),
            ValueError,
            "a milestone must be a share of the training in [0, 1], got 2",
        ),
        (
            lambda: SCHEDULES["staircase"](optimizer(), 9, factor=0),
            ValueError,
            "factor must be above 0, got 0",
        ),
        (
            lambda: SCHEDULES["constant"](optimizer(), 0),
            ValueError,
            "total must be 1 or more, got 0",
        ),
    ],
)
def test_bad_input(make, error: type, message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        make()
