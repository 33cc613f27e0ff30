"""A reader of the little LaTeX that a report writes; it refuses what LaTeX would stumble over."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field

from stochbatch.report.latex import FITTED

TOKEN = re.compile(r"\\[A-Za-z]+ ?|\\.|%[^\n]*\n|.", re.DOTALL)
PLAIN = {
    r"\textbackslash": "\\",
    r"\textasciitilde": "~",
    r"\textasciicircum": "^",
    r"\textbar": "|",
    r"\textquotedblright": '"',
    **{f"\\{letter}": letter for letter in "{}&%$#_"},
}


def _unicode(name: str) -> str:
    return {"lambda": "LAMDA", "varsigma": "FINAL SIGMA"}.get(name, name.upper())


GREEK = re.findall(
    r"\w+",
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho varsigma "
    "sigma tau upsilon phi chi psi omega",
)
MATH = {
    r"\pm": "±",
    r"\times": "\N{MULTIPLICATION SIGN}",
    r"\leq": "≤",
    r"\geq": "≥",
    r"\uparrow": "↑",
    r"\dagger": "†",
    r"\downarrow": "↓",
    **{f"\\{name}": unicodedata.lookup(f"GREEK SMALL LETTER {_unicode(name)}") for name in GREEK},
}


class LatexError(AssertionError):
    """What LaTeX would not accept, or not print as it is meant."""


@dataclass
class Table:
    """A table: its columns as declared, its captions, its rows as they would be printed."""

    columns: str
    caption: str
    short_caption: str
    label: str
    rows: list[list[str]] = field(default_factory=list)


class Reader:
    """Reads tables, one after the other, and nothing else."""

    def __init__(self, text: str) -> None:
        self.tokens = [token.strip(" ") or " " for token in TOKEN.findall(text)]
        self.place = 0

    def refuse(self, why: str) -> None:
        around = "".join(self.tokens[max(0, self.place - 20) : self.place + 5])
        raise LatexError(f"{why} near {around!r}")

    def next(self) -> str:
        if self.place >= len(self.tokens):
            self.refuse("the text ends too early")
        self.place += 1
        return self.tokens[self.place - 1]

    def skip(self) -> None:
        """Go over spaces and comments."""
        while self.place < len(self.tokens) and (
            self.tokens[self.place].isspace() or self.tokens[self.place].startswith("%")
        ):
            self.place += 1

    def expect(self, *wanted: str) -> None:
        for token in wanted:
            self.skip()
            if (got := self.next()) != token:
                self.refuse(f"{token!r} expected, got {got!r}")

    def name(self, word: str) -> None:
        self.expect("{", *word, "}")

    def until(self, *ends: str) -> tuple[str, str]:
        """Return the text before one of the tokens at this level, as it would be printed."""
        text, math, level = "", False, 0
        while True:
            token = self.next()
            if token in ends and not math and level == 0:
                return " ".join(text.split()), token
            if token == "$":
                math = not math
            elif token == "{":
                level += 1
            elif token == "}":
                level -= 1
                if level < 0:
                    self.refuse("a brace too many")
            else:
                text += self.letter(token, math)

    def letter(self, token: str, math: bool) -> str:
        if token.startswith("\\"):
            known = MATH if math else PLAIN
            if token not in known:
                self.refuse(f"{token} is not known {'in' if math else 'outside of'} mathematics")
            return known[token]
        if token in "&#~%" or token.startswith("%") or (token in '^_<>|"[*' and not math):
            bare = token in "[*" and self.tokens[self.place - 2] == "{"
            if not bare:
                self.refuse(f"{token!r} is not escaped")
        if ord(token[0]) > 127 and "LATIN" not in unicodedata.name(token, ""):
            self.refuse(f"{token!r} is not set up")
        return "" if math and token == "^" else token

    def tables(self) -> list[Table]:
        found = []
        self.skip()
        while self.place < len(self.tokens):
            found.append(self.table())
            self.skip()
        return found

    def table(self) -> Table:
        self.expect(r"\begin")
        self.name("table")
        self.expect(r"\centering", r"\caption", "[")
        short, _ = self.until("]")
        self.expect("{")
        caption, _ = self.until("}")
        self.expect(r"\label", "{")
        label, _ = self.until("}")
        self.expect(r"\smallskip", *TOKEN.findall(FITTED), "{", r"\begin")
        self.name("tabular")
        self.expect("{")
        columns, _ = self.until("}")
        table = Table(columns, caption, short, label)
        self.expect(r"\toprule")
        table.rows.append(self.row())
        self.expect(r"\midrule")
        self.skip()
        while self.tokens[self.place] != r"\bottomrule":
            table.rows.append(self.row())
            self.skip()
        self.expect(r"\bottomrule", r"\end")
        self.name("tabular")
        self.expect("}", r"\end")
        self.name("table")
        return table

    def row(self) -> list[str]:
        cells = []
        end = ""
        while end != r"\\":
            cell, end = self.until("&", r"\\")
            cells.append(cell)
        self.skip()
        if self.tokens[self.place] in "[*":
            self.refuse("an option of a new line")
        return cells


def read_tables(text: str) -> list[Table]:
    """Return the tables, each with rows as long as its columns."""
    tables = Reader(text).tables()
    for table in tables:
        for row in table.rows:
            if len(row) != len(table.columns):
                raise LatexError(f"{len(row)} cells in {len(table.columns)} columns: {row}")
    return tables


def read_text(text: str) -> str:
    """Return a text as it would be printed."""
    return Reader(text + "}").until("}")[0]
