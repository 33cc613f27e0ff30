"""Sphinx: pages in Markdown, docstrings in Google style, examples run as tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import stochbatch

project = "stochbatch"
author = "The stochbatch authors"
copyright = "The stochbatch authors"
version = release = stochbatch.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "article_map",
]
myst_enable_extensions = ["dollarmath", "colon_fence"]
autodoc_typehints = "none"
html_theme = "furo"
html_title = "stochbatch"
exclude_patterns = ["_build", "reports"]
# Reports of studies are pages of their own, copied as they are.
html_extra_path = ["reports"]
