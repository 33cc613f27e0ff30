"""The answer of a study in words: a headline, the numbers that carry it, a card per claim."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal

from stochbatch.report.formatting import minus, number, signed
from stochbatch.report.layout import Layout
from stochbatch.studies.claim import Claim
from stochbatch.studies.conclusions import conclusions
from stochbatch.studies.statistics import ClaimStatistics
from stochbatch.studies.verdicts import BEST, BETTER, NOT_BEST, SAME, UNDECIDED, WORSE

Kind = Literal["better", "worse", "same", "undecided", "none"]
Rows = Sequence[ClaimStatistics]

LONGEST = 140
"""Letters of a headline that names its claims; a longer one counts them."""
KINDS: dict[str, Kind] = {
    **{BETTER: "better", BEST: "better", WORSE: "worse", NOT_BEST: "worse"},
    **{SAME: "same", UNDECIDED: "undecided"},
}
COUNTED: dict[Kind, str] = {
    "better": "in favour",
    "worse": "against",
    "same": "as no practical difference",
}
PLACES: dict[Kind, str] = {
    **{"better": "better", "worse": "worse", "same": "no practical difference"},
    **{"undecided": "undecided", "none": "no verdict"},
}


@dataclass(frozen=True)
class Card:
    """What was found on a claim."""

    kind: Kind
    title: str
    texts: list[str]
    tally: list[tuple[Kind, str]]
    """Verdicts with how often each was reached."""
    row: ClaimStatistics | None
    """The one comparison that it is about, if it is one."""


def kind(row: ClaimStatistics) -> Kind:
    """Return of which kind a verdict is; all reasons for having none are of one kind."""
    return KINDS.get(row.verdict, "none")


def main_rows(layout: Layout, claim: Claim | None = None) -> list[ClaimStatistics]:
    """Return what a headline is about, of one claim or of the study.

    Of a study those are the primary comparisons, if it has any; of a claim the one over all
    places, or else all its places.
    """
    if claim is None:
        primary = [row for row in layout.claims if row.family == "primary"]
        claims = layout.results.study.claims
        return primary or [row for one in claims for row in main_rows(layout, one)]
    rows = [row for row in layout.claims if row.claim == claim]
    return [row for row in rows if row.ahead] or rows


def headline(layout: Layout) -> str:
    """Return the answer in one sentence; the study's title if it claims nothing."""
    rows = main_rows(layout)
    if not rows:
        return layout.results.study.title
    by_claim: dict[Claim, list[ClaimStatistics]] = {}
    for row in rows:
        by_claim.setdefault(row.claim, []).append(row)
    text = "; ".join(map(clause, by_claim.values()))
    if len(text) > LONGEST:
        text = counted(rows)
    part = "cells" in layout.results.narrowed
    return f"In this part of the study: {text}" if part else text


def facts(layout: Layout) -> list[tuple[int, str]]:
    """Return what is counted under the headline: comparisons, verdicts and trials."""
    verdicts = Counter(row.verdict for row in layout.claims)
    over = sum(1 for one in layout.trials if one.result)
    return [
        *([(len(layout.claims), "comparisons")] if layout.claims else []),
        *((count, counted_as(one)) for one, count in verdicts.items()),
        (over, f"of {len(layout.trials)} trials done"),
        *((layout.counts[one], one) for one in ("diverged", "failed") if layout.counts[one]),
    ]


def decided(layout: Layout) -> str:
    """Return a title for all comparisons, which counts those that are decided."""
    any_decided = any(kind(row) in COUNTED for row in layout.claims)
    return counted(layout.claims) if any_decided else "All comparisons"


def counted(rows: Rows) -> str:
    """Return in a sentence how many comparisons were decided, and how."""
    kinds = Counter(map(kind, rows))
    parts = [(kinds[one], words) for one, words in COUNTED.items() if kinds[one]]
    several = f"the {len(rows)} comparisons" if len(rows) > 1 else "the comparison"
    if not parts:
        if kinds["undecided"]:
            return f"None of {several} is decided" if len(rows) > 1 else "Nothing is decided"
        return f"No verdict{_yet(rows)} on {'any of ' if len(rows) > 1 else ''}{several}"
    (count, words), *more = parts
    first = f"{count} {'is' if count == 1 else 'are'} decided {words}"
    return f"Of {several}, {', '.join([first, *(f'{n} {text}' for n, text in more)])}"


def clause(rows: Rows) -> str:
    """Return what was found on one claim, in one place or in several."""
    first, kinds = rows[0], Counter(map(kind, rows))
    claim, places = first.claim, len(rows)
    subject, rest = _sides(claim)
    best = f"the best of {len(claim.than) + 1}"
    if len(kinds) > 1:
        what = f"{subject} as {best}" if claim.best else f"{subject} against {rest}"
        words = {**PLACES, "better": "shown", "worse": "refuted"} if claim.best else PLACES
        parts = [f"{words[one]} in {kinds[one]}" for one in PLACES if kinds[one]]
        return f"{what}: {', '.join([f'{parts[0]} of {places} places', *parts[1:]])}"
    yet = _yet(rows)
    only = kind(first)
    if claim.best:
        text = {
            "better": f"{subject} is shown to be {best}",
            "worse": f"{subject} is shown not to be {best}",
            "undecided": f"{subject} is not shown to be {best}",
        }.get(only, f"No verdict{yet} on {subject} as {best}")
    else:
        text = _sentence(only, subject, rest, yet, gain=bool(claim.grows))
        text = text[0].upper() + text[1:] if claim.grows else text
    if only == "none":
        text += " in any place" if places > 1 else f": {_reason(first)}"
        return text
    return f"{text} in all {places} places" if places > 1 else text


def _sentence(one: Kind, subject: str, rest: str, yet: str, gain: bool) -> str:
    better, worse = ("be larger than", "be smaller than") if gain else ("beat", "lose to")
    return {
        "better": f"{subject} is shown to {better} {rest}",
        "worse": f"{subject} is shown to {worse} {rest}",
        "same": f"No practical difference between {subject} and {rest}",
        "undecided": f"{subject} is not shown to differ from {rest}",
        "none": f"No verdict{yet} on {subject} against {rest}",
    }[one]


def _yet(rows: Rows) -> str:
    """Return " yet" if more trials of the plan give a verdict."""
    return " yet" if all(re.fullmatch(r"\d+ of \d+ pairs", row.verdict) for row in rows) else ""


def _reason(row: ClaimStatistics) -> str:
    if not _yet([row]):
        return "not the planned number of trials"
    return f"{row.pairs} of {row.planned} pairs of trials are done"


def _sides(claim: Claim) -> tuple[str, str]:
    """Return both sides of a claim; a bare number with its axis."""
    if claim.grows:
        return claim.sides
    others = f"one of {len(claim.than)}" if claim.best else _one(claim.axis, claim.than[0])
    return _one(claim.axis, claim.better), others


def _one(axis: str, label: str) -> str:
    return f"{axis} {label}" if re.match(r"[-\d.]", label) else label


def sentences(layout: Layout) -> list[str]:
    """Return the numbers behind the headline in two or three sentences."""
    rows = main_rows(layout)
    known = [(row.difference, row) for row in rows if row.difference is not None]
    if len(rows) <= 2:
        found = [numbers(row) for row in rows]
    elif known:
        ends = [end(known, key=itemgetter(0)) for end in (min, max)]
        low, high = (f"{signed(size)} ({named(layout, row)})" for size, row in ends)
        found = [f"The differences are from {low} to {high} points, paired by seed."]
    else:
        found = ["No pair of trials is done yet."]
    if len(rows) == 1:
        found += _around(layout, rows[0])
    return [minus(text) for text in found if text]


def named(layout: Layout, row: ClaimStatistics, under_claim: bool = False) -> str:
    """Return a few words for a comparison: its claim, if there are several, and its place."""
    several = len(layout.results.study.claims) > 1 and not under_claim
    claim = row.claim
    pair = " against ".join(_sides(claim))
    where = layout.told_apart(row.place)
    if row.ahead:
        where = [f"all {row.ahead[1]} places" if row.ahead[1] > 1 else "the whole table"]
    return ", ".join(([claim.name or pair] if several or not where else []) + where)


def numbers(row: ClaimStatistics) -> str:
    """Return a comparison's difference in a sentence."""
    claim = row.claim
    subject, rest = _sides(claim)
    if claim.best and row.baseline:
        subject, rest = claim.better, row.baseline.coordinates[claim.axis]
    if row.difference is None:
        if row.ahead and row.ahead[1] > 1:
            return f"No seed of {subject} and {rest} is done in all {row.ahead[1]} places yet."
        return f"No pair of trials of {subject} and {rest} is done yet."
    size = number(abs(row.difference))
    ahead, behind = ("above", "below") if claim.grows else ("ahead of", "behind")
    how = ahead if row.difference > 0 else behind
    how = f"is {size} points {how}" if float(size) else "is level with"
    where = f"Averaged over {row.ahead[1]} places, " if row.ahead and row.ahead[1] > 1 else ""
    count = f"{row.pairs} paired seeds" if row.pairs > 1 else "one paired seed"
    mean = "in the mean of" if row.pairs > 1 else "with"
    text = f"{where}{subject} {how} {rest} {mean} {count}"
    if claim.grows:
        text = text[0].upper() + text[1:]
    if row.interval:
        low, high = signed(row.interval.low), signed(row.interval.high)
        text += f" (95 % interval {low} to {high})"
    return f"{text}."


def _around(layout: Layout, row: ClaimStatistics) -> list[str]:
    """Return what else a reader must know about a comparison."""
    study, found = layout.results.study, []
    if row.ahead and row.ahead[1] > 1:
        differences = [one.difference for one in layout.under(row)]
        there = [one for one in differences if one is not None]
        if there and len(there) < row.ahead[1]:
            ends = [signed(end) for end in dict.fromkeys((min(there), max(there)))]
            which = f"{len(there)} {'place' if len(there) == 1 else 'places'} of {row.ahead[1]}"
            found.append(f"In the {which} run so far the difference is {' to '.join(ends)} points.")
        elif there:
            found.append(
                f"It is ahead in {row.ahead[0] or 'none'} of {row.ahead[1]} places; "
                f"by place from {signed(min(there))} to {signed(max(there))} points."
            )
    if kind(row) == "undecided" and row.detectable is not None:
        found.append(
            f"A true difference of {row.detectable:.1f} points would be found with probability 0.8."
        )
    elif kind(row) == "same":
        found.append(f"Differences within {study.margin:g} points count as none.")
    elif kind(row) == "none":
        found.append(f"A verdict needs exactly the {row.planned} planned trials per cell.")
    if row.collapsed:
        found.append(f"With {row.collapsed} of the seeds a training diverged or ended at chance.")
    return found


def cards(layout: Layout) -> list[Card]:
    """Return a card per claim."""
    claims = layout.results.study.claims
    tuned = bool(layout.results.tuned)
    told = conclusions(layout.results) if tuned else map(numbers, layout.claims)
    text_of = dict(zip(map(id, layout.claims), told, strict=True))
    found = []
    for claim in claims:
        rows = [row for row in layout.claims if row.claim == claim]
        if not rows:
            continue
        main = main_rows(layout, claim)
        texts = [text_of[id(row)] for row in main[:3]]
        if len(main) > 3:
            texts[2:] = [f"{len(main) - 2} more places are listed below."]
        if not tuned and len(main) == 1 < len(claims):
            texts += _around(layout, main[0])
        kinds = {kind(row) for row in main}
        only = main[0] if len(main) == 1 else None
        shade: Kind = kinds.pop() if len(kinds) == 1 else "none"
        found.append(Card(shade, clause(main), list(map(minus, texts)), _tally(rows), only))
    return found


def _tally(rows: Rows) -> list[tuple[Kind, str]]:
    counts = Counter((kind(row), row.verdict) for row in rows)
    ordered = sorted(counts.items(), key=lambda one: list(PLACES).index(one[0][0]))
    return [
        (one, verdict if len(rows) == 1 else f"{count} {counted_as(verdict)}")
        for (one, verdict), count in ordered
    ]


def counted_as(verdict: str) -> str:
    """Return a verdict as it stands after a number."""
    return f"with {verdict}" if verdict[0].isdigit() else verdict
