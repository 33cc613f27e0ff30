"""Many trials: the article's tables as grids, the engines that run them, statistics over them."""

from stochbatch.registry import STUDIES
from stochbatch.studies.cell import Cell, StudyError
from stochbatch.studies.claim import Claim
from stochbatch.studies.comparing import compare, comparison
from stochbatch.studies.grid import Axis, Study
from stochbatch.studies.outcome import Outcome
from stochbatch.studies.published import Published
from stochbatch.studies.results import CellOutcomes, StudyResults, collect
from stochbatch.studies.scales import SCALES, Scale

__all__ = [
    "SCALES",
    "STUDIES",
    "Axis",
    "Cell",
    "CellOutcomes",
    "Claim",
    "Outcome",
    "Published",
    "Scale",
    "Study",
    "StudyError",
    "StudyResults",
    "collect",
    "compare",
    "comparison",
]
