"""Scales: a study as published, or reduced so that it can be run on what one has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stochbatch.registry import Registry

if TYPE_CHECKING:
    from stochbatch.studies.grid import Point


@dataclass(frozen=True)
class Scale:
    """How a study's trials are reduced."""

    name: str
    summary: str
    repetitions: int
    comparable: bool = False
    """Whether accuracies may be compared with the published ones."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are set in every trial."""
    share: Callable[[float, Any], float] = lambda share, dataset: share
    """The part of the training set, from the study's own and the name of the data set."""
    instead: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By axis: the one point that stands for all of them."""
    keeps: Callable[[Mapping[str, str], Mapping[str, Any]], bool] = lambda labels, fields: True
    """Whether there is a cell with these labels and fields."""

    def points(self, axis: str, points: Sequence[Point]) -> list[Point]:
        """Return the points of an axis at this scale."""
        from stochbatch.studies.grid import Point

        if axis not in self.instead:
            return list(points)
        fields = self.instead[axis]
        return [Point(str(next(iter(fields.values()))), fields)]

    def reduced(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return a trial's fields at this scale."""
        result = {**fields, **self.fields}
        given = result.get("share", 1.0)
        if isinstance(given, bool) or not isinstance(given, int | float):
            return result  # no trial can be made of it, and says why
        share = self.share(given, result.get("dataset"))
        return result if share == given else {**result, "share": share}


SMALL_EPOCHS = 60
"""Of the scale small."""
LEAST_SHARE = 1 / 32
"""Of the scale demo, unless a study's own is smaller: 42 digits, as in the smallest cells of
partial-data."""


def _in_small(labels: Mapping[str, str], fields: Mapping[str, Any]) -> bool:
    """Return whether a cell is worth its time at the scale small."""
    network = fields.get("network", "vgg11")
    if network == "resnet50" or (network == "resnet18" and fields.get("dataset") != "cifar10"):
        return False
    return "dataset" not in labels or fields.get("batch_size") in (None, 16, 128)


_OWN = (
    Scale(
        "paper",
        "Nothing is reduced: networks, data, epochs and trials are the study's own (the "
        "article's: full networks and data, 100 epochs, 10 trials).",
        repetitions=10,
        comparable=True,
    ),
    Scale(
        "small",
        "Networks of a quarter of the width, VGG11 everywhere and ResNet18 on CIFAR-10; an eighth "
        f"of the data, of STL-10 all; {SMALL_EPOCHS} epochs; where data sets are compared, batches "
        "of 16 and 128.",
        repetitions=3,
        fields={"width": 0.25, "epochs": SMALL_EPOCHS, "evaluate_every": 10},
        share=lambda share, dataset: 0.125 if share == 1 and dataset != "stl10" else share,
        keeps=_in_small,
    ),
    Scale(
        "demo",
        "vgg_tiny on a part of the digits for 12 epochs: seconds per cell.",
        repetitions=3,
        fields={"dataset": "digits", "network": "vgg_tiny", "epochs": 12, "norm_init": "ones"},
        share=lambda share, dataset: max(share / 4, min(share, LEAST_SHARE)),
        instead={"dataset": {"dataset": "digits"}, "network": {"network": "vgg_tiny"}},
    ),
)
SCALES: Registry[Scale] = Registry("scale", own={scale.name: scale.summary for scale in _OWN})
for _scale in _OWN:
    SCALES.provide(_scale.name, _scale)
