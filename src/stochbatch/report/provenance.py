"""What is behind the trials of a report, where that is not as a reader would expect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stochbatch.studies.outcome import Outcome
from stochbatch.studies.results import StudyResults

FACTS = {
    "stochbatch": "stochbatch",
    "revision": "source revision",
    "torch": "PyTorch",
    "python": "Python",
    "platform": "platform",
    "processor": "processor",
    "instruction_set": "instruction set",
    "cores": "cores",
    "threads": "threads",
    "ranks": "processes a trial",
    "device": "device",
}
"""Of a trial's environment, with the words for them."""
MADE_WITH = ("revision", "torch", "ranks")
"""What of it should be the same in all trials that are compared."""


def cautions(results: StudyResults) -> list[str]:
    """Return sentences on what is not as expected; an empty list if all is well.

    That is: data that are not the published ones, or not the same; revisions of the source,
    versions of torch and of plugins, and numbers of processes that differ; instruction sets that
    differ within a cell.
    """
    over = [(one.trial, one.result) for one in results.trials if one.result]
    found = []
    if others := [trial for trial, result in over if not result.data.official]:
        names = ", ".join(sorted({trial.dataset for trial in others}))
        found.append(
            f"{len(others)} of {len(over)} trials were trained and tested on files that are "
            f"not the published ones ({names})."
        )
    hashes: dict[str, set[tuple[str, str]]] = {}
    for trial, result in over:
        both = result.data.train_sha256, result.data.test_sha256
        hashes.setdefault(trial.dataset, set()).add(both)
    found += [
        f"Not all trials on {name} were trained and tested on the same images: a difference "
        "between them is not one of methods alone."
        for name, several in sorted(hashes.items())
        if len(several) > 1
    ]
    if differing := _differing(results.trials):
        found.append(f"Not all trials were made with the same: {'; '.join(differing)}.")
    return found + _instruction_sets(results)


def _differing(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the facts of which the trials have several values, with these."""
    values: dict[str, set[str]] = {}
    for one in environments(outcomes):
        for name in MADE_WITH:
            values.setdefault(FACTS[name], set()).add(str(one.get(name) or "unknown"))
        for label in one.get("plugins", ()):
            name, _, version = label.rpartition(" ")
            values.setdefault(f"plugin {name}", set()).add(version)
    return [
        f"{fact} {', '.join(sorted(several))}"
        for fact, several in values.items()
        if len(several) > 1
    ]


def _instruction_sets(results: StudyResults) -> list[str]:
    """Return a sentence if a cell's trials ran on processors that round differently."""
    cells = [
        {str(one.get("instruction_set") or "") for one in environments(cell.done)} - {""}
        for cell in results.cells
    ]
    if not (mixed := [found for found in cells if len(found) > 1]):
        return []
    return [
        f"In {len(mixed)} of {len(cells)} cells the trials ran on processors with different "
        f"instruction sets ({', '.join(sorted(set().union(*mixed)))}): their last digits may "
        "differ."
    ]


def facts(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    """Return versions and hardware; several where the trials were not run on the same."""
    found = {
        title: sorted({str(one[name]) for one in environments(outcomes) if one.get(name)})
        for name, title in FACTS.items()
    }
    return [(title, ", ".join(values)) for title, values in found.items() if values]


def environments(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return where trials were run, from first to last."""
    results = (outcome.result for outcome in outcomes if outcome.result)
    return [facts for one in results for facts in (*one.earlier_environments, one.environment)]
