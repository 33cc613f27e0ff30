"""The article's equations and algorithms, each with the line of code that implements it.

A place is a file and a piece of its text; the line number is looked up when the pages are
built, and a place that is no longer there is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from docutils import nodes
from docutils.parsers.rst import Directive

SOURCE = Path(__file__).parent.parent / "src" / "stochbatch" / "optim"

ALGORITHM_1, ALGORITHM_2 = "article/algorithm1.py", "article/algorithm2.py"


class Entry(NamedTuple):
    """One equation or algorithm: what it says, and where it is."""

    where: str
    says: str
    file: str = ""
    text: str = ""


MAP = [
    Entry("Eq. 1, 2", "the objective, a mean of losses over samples: the user's loss"),
    Entry("Eq. 3, 4", "gradient descent: `torch.optim.SGD`, or SBS at probability 1"),
    Entry(
        "Eq. 5 to 8",
        "alternating minimisation",
        "baselines/alternating.py",
        "move.mul_(rate_of(member.group)).masked_fill_(heads == second, 0)",
    ),
    Entry("Eq. 9", "a coin with probability p", "update.py", "uniforms < p"),
    Entry(
        "Eq. 10",
        "only drawn scalars move",
        "update.py",
        "_plus(weight, _only(drawn, direction), rates.lr, -1)",
    ),
    Entry("Eq. 11", "gradient over a stochastic batch", ALGORITHM_1, "def _gradient("),
    Entry("Eq. 12", "the stochastic batch", ALGORITHM_1, "# Eq. 12"),
    Entry("Eq. 13", "rate times number of batches", "update.py", "direction = direction * batches"),
    Entry("Eq. 14", "cumulative moving average", "update.py", "mean = (grad - grad_mean)"),
    Entry("Eq. 15", "the move", "update.py", "return torch.add(value, other, alpha=sign * factor)"),
    Entry("Eq. 16", "the sigmoid", "probability.py", "def _sigmoid_of_bits("),
    Entry("Eq. 17", "size within the layer", "probability.py", "return _sigmoid_of_bits(grad.abs"),
    Entry("Eq. 18", "local scheme: its slope", "probability.py", "slope = _by_spread(layers.alpha"),
    Entry("Eq. 19", "score across layers", "probability.py", "def _cross_layer_scores("),
    Entry("Eq. 20", "global scheme: its shift", "probability.py", "layers.lambd * score"),
    Entry("Eq. 21", "both schemes together", "probability.py", "def probability(grad"),
    Entry("Algorithm 1", "exact form", ALGORITHM_1, "class ExactSBS("),
    Entry("Algorithm 2", "as printed", ALGORITHM_2, "class Algorithm2("),
    Entry("Algorithm 2", "its inner loop, for tensors", "update.py", "def update("),
    Entry("Algorithm 2", "start of an epoch", "sbs.py", "def new_epoch("),
]


def line_of(entry: Entry) -> tuple[int, str]:
    """Return number and text of the one line that an entry names."""
    lines = (SOURCE / entry.file).read_text(encoding="utf-8").splitlines()
    found = [(number, line.strip()) for number, line in enumerate(lines, 1) if entry.text in line]
    if len(found) != 1:
        raise ValueError(f"{entry.where}: {entry.text!r} is in {len(found)} lines of {entry.file}")
    return found[0]


class ArticleMap(Directive):
    """The table itself."""

    def run(self) -> list[nodes.Node]:
        """Return the table, built from ``MAP``."""
        table = nodes.table()
        group = nodes.tgroup(cols=3)
        table += group
        for width in (2, 4, 6):
            group += nodes.colspec(colwidth=width)
        head, body = nodes.thead(), nodes.tbody()
        head += self._row("article", "what it says", nodes.Text("line of code"))
        for entry in MAP:
            if entry.file:
                number, line = line_of(entry)
                place = nodes.literal(text=f"optim/{entry.file}:{number}  {line}")
            else:
                place = nodes.Text("")
            body += self._row(entry.where, entry.says, place)
        group += [head, body]
        return [table]

    @staticmethod
    def _row(where: str, says: str, place: nodes.Node) -> nodes.row:
        row = nodes.row()
        for content in (nodes.Text(where), nodes.Text(says.replace("`", "")), place):
            paragraph = nodes.paragraph()
            paragraph += content
            cell = nodes.entry()
            cell += paragraph
            row += cell
        return row


def setup(app: object) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("article-map", ArticleMap)  # type: ignore[attr-defined]
    return {"parallel_read_safe": True, "parallel_write_safe": True}
