"""The answer of a study in sentences: what was decided, and at which settings."""

from __future__ import annotations

from stochbatch.studies.results import StudyResults
from stochbatch.studies.statistics import ClaimStatistics, statistics
from stochbatch.studies.tuning import Tuned
from stochbatch.studies.verdicts import BETTER, SAME, UNDECIDED, WORSE


def conclusions(results: StudyResults) -> list[str]:
    """Return one paragraph per claim that a verdict was planned for, of a tuned study."""
    by_label = {one.label: one for one in results.tuned}
    return [_conclusion(results, found, by_label) for found in statistics(results).claims]


def _conclusion(results: StudyResults, found: ClaimStatistics, tuned: dict[str, Tuned]) -> str:
    ours, theirs = found.claim.better[0], found.claim.than[0]
    where = ", ".join(f"{axis} {label}" for axis, label in found.place.items())
    sentence = f"{ours} {_verb(found.verdict)} {theirs}{f' ({where})' if where else ''}"
    if found.difference is not None:
        sentence += f": {found.difference:+.2f} points"
    if found.interval is not None:
        sentence += f" ({found.interval.low:+.2f} to {found.interval.high:+.2f})"
    count = f"{found.pairs} fresh seed{'s' if found.pairs != 1 else ''}"
    if found.pairs < found.planned:
        count = f"{found.pairs} of {found.planned} fresh seeds so far"
    sentence += f", {count}."
    if found.verdict == UNDECIDED and found.detectable is not None:
        sentence += f" A difference of {found.detectable:.1f} points would be found with 80 %."
    if found.collapsed:
        sentence += f" With {found.collapsed} of the seeds a training collapsed."
    pair = [tuned[label] for label in (ours, theirs) if label in tuned]
    pair = [one for one in pair if one.tried[0].settings]
    settings = f"At the settings chosen ({_chosen(results, pair)}) " if pair else ""
    return " ".join([settings + sentence, *_doubts(results, pair)])


def _verb(verdict: str) -> str:
    known = {
        BETTER: "is better than",
        WORSE: "is worse than",
        SAME: "makes no practical difference to",
        UNDECIDED: "cannot be told from",
    }
    return known.get(verdict, "has no verdict yet against")


def _chosen(results: StudyResults, pair: list[Tuned]) -> str:
    tuning = results.study.tuning
    assert tuning is not None
    tried = max(len(one.tried) for one in pair)
    chosen = [f"{one.label} {one.winner}" for one in pair if one.winner and one.winner.settings]
    return "; ".join([f"{tried} tried, on validation images", ", ".join(chosen) or "none yet"])


def _doubts(results: StudyResults, pair: list[Tuned]) -> list[str]:
    """Return what to keep in mind about the choice of settings."""
    tuning = results.study.tuning
    if tuning is None:
        return []
    found = []
    fickle = [one.fickle for one in pair if one.fickle]
    if fickle:
        often = max(value for value in fickle if value is not None)
        found.append(
            "With other tuning seeds another setting would be chosen in "
            f"{100 * often:.0f} % of cases."
        )
    for one in pair:
        for name in one.at_edge(tuning):
            found.append(
                f"The best {name} of {one.label} lies at the edge of what was tried: "
                "a wider range may be better."
            )
    return found
