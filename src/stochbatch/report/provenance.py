"""What stands behind the trials of a report, where that is not as a reader would expect."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from stochbatch.studies.results import Outcome
from stochbatch.training import Result

MADE_WITH = {"revision": "source revision", "torch": "PyTorch", "ranks": "processes a trial"}
"""Of a trial's environment, what should be the same in all that are compared."""


def cautions(outcomes: Sequence[Outcome]) -> list[str]:
    """Return sentences on what is not as expected; an empty list if all is well.

    That is: data that are not the published ones, or not the same; revisions of the source,
    versions of torch and numbers of processes that differ.

    Args:
        outcomes: the distinct trials of a study; those that are not over do not count.
    """
    results = [(outcome, outcome.result) for outcome in outcomes if outcome.result is not None]
    found = []
    others = [outcome for outcome, result in results if not result.data.official]
    if others:
        names = ", ".join(sorted({outcome.trial.dataset for outcome in others}))
        found.append(
            f"{len(others)} of {len(results)} trials were trained and tested on files that are "
            f"not the published ones ({names})."
        )
    hashes: dict[str, set[tuple[str, str]]] = {}
    for outcome, result in results:
        data = result.data
        hashes.setdefault(outcome.trial.dataset, set()).add((data.train_sha256, data.test_sha256))
    found += [
        f"Not all trials on {name} were trained and tested on the same images: a difference "
        "between them is not one of methods alone."
        for name, several in sorted(hashes.items())
        if len(several) > 1
    ]
    over = [result for _, result in results]
    differing = [text for name in MADE_WITH if (text := _differing(name, over))]
    differing += _plugins(over)
    if differing:
        found.append(f"Not all trials were made with the same: {'; '.join(differing)}.")
    return found


def _differing(name: str, results: Sequence[Result]) -> str:
    """Return how many trials have which values, if not all have the same one from first to last."""
    counted = Counter(_values(name, result) for result in results)
    if len({value for values in counted for value in values}) < 2:
        return ""
    found = (
        f"{' then '.join(map(_short, values))} ({counted[values]})" for values in sorted(counted)
    )
    return f"{MADE_WITH[name]} {', '.join(found)}"


def _plugins(results: Sequence[Result]) -> list[str]:
    """Return plugins of which trials had several versions; those without it do not count."""
    versions: dict[str, Counter[str]] = {}
    for result in results:
        environments = (*result.earlier_environments, result.environment)
        labels = {label for one in environments for label in one.get("plugins", ())}
        for name, _, version in (label.rpartition(" ") for label in labels):
            versions.setdefault(name, Counter())[version] += 1
    return [
        f"plugin {name} " + ", ".join(f"{one} ({found[one]})" for one in sorted(found))
        for name, found in sorted(versions.items())
        if len(found) > 1
    ]


def _values(name: str, result: Result) -> tuple[str, ...]:
    """Return the values of a trial, of which it has several if it was resumed with another."""
    environments = (*result.earlier_environments, result.environment)
    values = (str(one.get(name) or "unknown") for one in environments)
    return tuple(value for value, _ in groupby(values))


def _short(value: str) -> str:
    """Return a value, a hash of 40 digits by its first ones, but with what is said after it."""
    return re.sub(r"^([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", value)
