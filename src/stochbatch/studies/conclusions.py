"""The answer of a study in sentences: what was decided, and at which settings."""

from __future__ import annotations

from collections.abc import Iterator

from stochbatch.studies.results import StudyResults
from stochbatch.studies.statistics import ClaimStatistics, statistics
from stochbatch.studies.tuning import Tuned, Tuning
from stochbatch.studies.verdicts import BETTER, SAME, UNDECIDED, WORSE

VERBS = {
    BETTER: "is better than",
    WORSE: "is worse than",
    SAME: "makes no practical difference to",
    UNDECIDED: "cannot be told from",
}
NO_VERDICT = "has no verdict yet against"


def conclusions(results: StudyResults) -> list[str]:
    """Return one paragraph per claim that a verdict was planned for, of a tuned study."""
    return [_conclusion(results, found) for found in statistics(results).claims]


def _conclusion(results: StudyResults, found: ClaimStatistics) -> str:
    ours, theirs = found.claim.better, found.claim.than[0]
    where = ", ".join(f"{axis} {label}" for axis, label in found.place.items())
    sentence = (
        f"{ours} {VERBS.get(found.verdict, NO_VERDICT)} {theirs}{f' ({where})' if where else ''}"
    )
    if found.difference is not None:
        sentence += f": {found.difference:+.2f} points"
    if found.interval is not None:
        sentence += f" ({found.interval.low:+.2f} to {found.interval.high:+.2f})"
    count = f"{found.pairs} fresh seed{'s' if found.pairs != 1 else ''}"
    if found.pairs < found.planned:
        count = f"{found.pairs} of {found.planned} fresh seeds so far"
    sentence += f", {count}."
    if found.verdict == UNDECIDED and found.detectable is not None:
        sentence += (
            f" A difference of {found.detectable:.1f} points would be found with probability 0.8."
        )
    if found.collapsed:
        sentence += f" With {found.collapsed} of the seeds a training collapsed."
    tuning = results.study.tuning
    if tuning is None:
        return sentence
    sides = [{**found.place, tuning.axis: label} for label in (ours, theirs)]
    known = [one for side in sides for one in results.tuned if one.cell.coordinates == side]
    pair = [one for one in known if one.tried[0].settings]
    if not pair:
        return sentence
    return " ".join([f"{_chosen(pair)} {sentence}", *_doubts(tuning, pair)])


def _chosen(pair: list[Tuned]) -> str:
    tried = max(len(one.tried) for one in pair)
    chosen = [f"{one.label} {one.winner}" for one in pair if one.winner and one.winner.settings]
    return (
        f"At the settings chosen ({tried} tried, on validation images; "
        f"{', '.join(chosen) or 'none yet'})"
    )


def _doubts(tuning: Tuning, pair: list[Tuned]) -> Iterator[str]:
    """Yield what to keep in mind about the choice of settings."""
    if often := max(one.fickle or 0.0 for one in pair):
        yield (
            "With other tuning seeds another setting would be chosen in "
            f"{100 * often:.0f} % of cases."
        )
    for one in pair:
        for name in one.at_edge(tuning):
            yield (
                f"The best {name} of {one.label} lies at the edge of what was tried: "
                "a wider range may be better."
            )
