"""One colour per method, the same in every figure, on a light ground and on a dark one."""

from __future__ import annotations

from collections.abc import Mapping

COLOURS = {
    "sgd": ("#28303a", "#dbe4ee"),
    "sbs": ("#2459d9", "#6f9dff"),
    "coin": ("#8a6410", "#d9a742"),
    "entropy": ("#14625e", "#9fe592"),
    "acc": ("#52108c", "#cdbdff"),
    "adaptive": ("#bd1a8b", "#fb64c2"),
    "dropout": ("#673206", "#c28368"),
    "other": ("#57606a", "#a7afb8"),
}
"""By name: on light and on dark ground. All have a contrast of 4.5 or more with it, and any two
differ for people with the three common kinds of colour blindness; ``other`` is for the rest."""
METHODS = {
    **{"sgd": "sgd", "sbs": "sbs", "dropout": "dropout", "sbs-fixed-half": "coin"},
    **{"entropy-sgd": "entropy", "acc-sgd": "acc", "accelerated-sgd": "acc"},
    **{"adaptive-dropout": "adaptive", "adaptive dropout": "adaptive"},
}
"""Colours that methods have by name or by title."""
FREE = ("coin", "entropy", "acc", "adaptive", "dropout", "sbs", "sgd")
"""For all others, in this order."""


def colours(methods: Mapping[str, str]) -> dict[str, str]:
    """Return the name of a colour by label.

    Where there are more labels than colours, those of one method share its colour.

    Args:
        methods: the method of each label.

    Example:
        >>> from stochbatch.report.palette import colours
        >>> colours({"SGD": "sgd", "mine": "adamw", "half": "sbs-fixed-half"})
        {'SGD': 'sgd', 'mine': 'entropy', 'half': 'coin'}
    """
    if len(methods) > len(FREE) and len(set(methods.values())) > 1:
        of_method = colours({method: method for method in methods.values()})
        return {label: of_method[method] for label, method in methods.items()}
    found: dict[str, str] = {}
    names = list(methods.values())
    for label, method in methods.items():
        name = METHODS.get(label.lower()) or (names.count(method) == 1 and METHODS.get(method))
        if name and name not in found.values():
            found[label] = name
    free = iter([name for name in FREE if name not in found.values()])
    return {label: found.get(label) or next(free, "other") for label in methods}
