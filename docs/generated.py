"""Pages that are made from the code: help of all commands, tables of names, formulas as MathML.

A ``<picture>`` in a page, as a code host shows it, becomes two images of which the theme shows one.

``.. command-help::`` prints the ``--help`` of every command, ``.. registry:: METHODS`` the names of
a registry with a line about each. Formulas become MathML by docutils, which browsers draw without
a script and without a network.
"""

from __future__ import annotations

import importlib
import os
import re
from typing import Any

import typer
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.transforms import Transform
from docutils.utils.math.latex2mathml import tex2mathml
from typer.testing import CliRunner

from stochbatch.cli.app import app as command_line

REGISTRIES = {
    "METHODS": "training",
    "SCHEDULES": "training",
    "NETWORKS": "nets",
    "DATASETS": "data",
    "STUDIES": "studies",
}


def paths(command: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the words of all commands, each before those below it."""
    found = [path]
    for name, one in getattr(command, "commands", {}).items():
        found += paths(one, (*path, name))
    return found


def help_of(words: tuple[str, ...]) -> str:
    """Return what ``stochbatch WORDS --help`` prints in 80 columns."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        done = CliRunner().invoke(command_line, [*words, "--help"], prog_name="stochbatch")
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    if done.exit_code:
        raise ValueError(f"stochbatch {' '.join(words)} --help: {done.output}")
    return done.output.strip("\n")


class CommandHelp(Directive):
    """A section per command, with its help."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        sections = []
        for words in paths(typer.main.get_command(command_line)):
            title = " ".join(("stochbatch", *words))
            section = nodes.section(ids=[nodes.make_id(title)], names=[title])
            section += [nodes.title(text=title), nodes.literal_block(text=help_of(words))]
            section[-1]["language"] = "text"
            sections.append(section)
        return sections


class RegistryTable(Directive):
    """Names of a registry, each with the line that ``stochbatch list`` prints, and its files."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        (name,) = self.arguments
        registry = getattr(importlib.import_module(f"stochbatch.{REGISTRIES[name]}"), name)
        body = nodes.tbody()
        for one in registry:
            row = nodes.row()
            contents = [nodes.literal(text=one), nodes.Text(registry.summary(one))]
            if name == "DATASETS":
                files = (f"{file.name} ({file.size:,} bytes)" for file in registry[one].files)
                contents.append(nodes.Text("; ".join(files) or "none: part of the package"))
            for content in contents:
                row += nodes.entry("", nodes.paragraph("", "", content))
            body += row
        widths = (2, 5, 5) if name == "DATASETS" else (2, 7)
        columns = [nodes.colspec(colwidth=width) for width in widths]
        group = nodes.tgroup("", *columns, body, cols=len(columns))
        return [nodes.table("", group)]


class Pictures(Transform):
    """Show the picture that suits the theme, where Markdown has both for a code host."""

    default_priority = 200

    def apply(self) -> None:
        """Replace every ``<picture>`` by its images."""
        for raw in list(self.document.findall(nodes.raw)):
            text = raw.astext()
            dark = re.search(r'srcset="([^"]+)"', text)
            light = re.search(r' src="([^"]+)"', text)
            about = re.search(r'alt="([^"]+)"', text)
            if text.startswith("<picture>") and dark and light and about:
                for theme, uri in (("dark", dark[1]), ("light", light[1])):
                    classes = [f"only-{theme}"]
                    image = nodes.image(uri=uri, alt=about[1], classes=classes, width="800px")
                    raw.parent.insert(raw.parent.index(raw), image)
                raw.parent.remove(raw)


def mathml(formula: str, as_block: bool = False) -> str:
    """Return a formula as MathML: bars in pairs, and subscripts beside a tilde, not below it."""
    formula = re.sub(r"\|([^|]+)\|", r"\\lvert \1 \\rvert ", formula)
    found = str(tex2mathml(formula, as_block=as_block))
    found = found.replace("<mo>|</mo>", '<mo form="postfix">|</mo>')  # no space within a pair
    tilde = r'<mo stretchy="false">~</mo>'
    return re.sub(
        rf"<munderover>\s*(<mi>\w</mi>)\s*(<mi>\w</mi>)\s*({tilde})\s*</munderover>",
        r'<msub><mover accent="true">\1\3</mover>\2</msub>',
        found,
    )


def visit_math(translator: Any, node: nodes.math) -> None:
    """Write a formula within a line."""
    translator.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def visit_displaymath(translator: Any, node: nodes.math_block) -> None:
    """Write a formula on a line of its own."""
    translator.body.append(f'<div class="math">{mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Register directives, pictures and the renderer."""
    app.add_directive("command-help", CommandHelp)
    app.add_directive("registry", RegistryTable)
    app.add_transform(Pictures)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
