"""Sphinx: pages in Markdown, docstrings in Google style, examples run as tests."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

# All of it before autodoc, which imports modules with TYPE_CHECKING set: pydantic cannot do that.
import stochbatch
import stochbatch.report
import stochbatch.studies
import stochbatch.training.runner
from stochbatch.training import Trial

project = "stochbatch"
author = "The stochbatch authors"
copyright = "The stochbatch authors"
version = release = stochbatch.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "article_map",
    "generated",
]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
html_math_renderer = "mathml"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 90
html_theme = "furo"
html_title = "stochbatch"
html_static_path = ["pages.css"]
html_css_files = ["pages.css"]
exclude_patterns = ["_build", "reports"]
# Reports of studies are pages of their own, copied as they are.
html_extra_path = ["reports"]


def _add_fields(
    app: Any, what: str, name: str, thing: object, options: Any, lines: list[str]
) -> None:
    """Add the fields of a trial to its description, as they are declared."""
    if thing is Trial:
        for field, about in Trial.model_fields.items():
            lines.append(f":param {field}: {about.description}".replace("`", "``"))


def setup(app: Any) -> None:
    """Let Sphinx call what is above."""
    app.connect("autodoc-process-docstring", _add_fields)
