"""Numbers, intervals and labels as a reader sees them."""

from __future__ import annotations

import re

from stochbatch.studies.statistics import CellStatistics
from stochbatch.studies.verdicts import Interval

NONE = "\N{EN DASH}"
NOT_COMPARABLE = "not comparable"


def number(value: float | None, digits: int = 2) -> str:
    """Return a number; a dash for none, and never a negative zero."""
    if value is None:
        return NONE
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def signed(value: float | None) -> str:
    """Return a difference with its sign."""
    text = number(value)
    return f"+{text}" if value is not None and float(text) > 0 else text


def between(interval: Interval | None) -> str:
    """Return both ends of an interval of differences."""
    return NONE if interval is None else f"{signed(interval.low)} to {signed(interval.high)}"


def p_value(value: float | None) -> str:
    """Return a p value."""
    return "< 0.001" if value is not None and value < 0.001 else number(value, 3)


def mean(found: CellStatistics) -> str:
    """Return a cell's mean and half the width of its interval."""
    half = f" ± {number(found.interval.half_width)}" if found.interval else ""
    return f"{number(found.mean)}{half}"


def published_mean(found: CellStatistics) -> str:
    """Return the mean in the article."""
    return number(found.cell.published.mean if found.cell.published else None)


def verdict(found: CellStatistics) -> str:
    """Return a cell's verdict."""
    return found.verdict or NOT_COMPARABLE


def minus(text: str) -> str:
    """Return a text whose negative numbers have a true minus sign.

    Example:
        >>> from stochbatch.report.formatting import minus
        >>> minus("-1.5 to +2, not sgd-2")
        '\N{MINUS SIGN}1.5 to +2, not sgd-2'
    """
    return re.sub(r"(?<![\w.-])-(?=[\d.])", "\N{MINUS SIGN}", text)
