"""The documentation site: Sphinx over the repository's own Markdown.

The source folder is the root, so that links between README.md, docs/ and the plugins' pages are the ones that a
reader of the repository follows. A link to a file that is no page becomes a download. Every warning is an error
(`make check`): a page in no table of contents, a link or an anchor that leads nowhere, a malformed table.
"""

from pathlib import Path

from sphinx.application import Sphinx

project = "Bowline"
author = "The Bowline authors"
copyright = author  # noqa: A001 - the name that Sphinx reads

extensions = ["myst_parser"]
root_doc = "docs/README"
include_patterns = [
    "*.md",
    "docs/**.md",
    "charts/bowline/README.md",
    "shared/bowline/plugins/*/README.md",
    "examples/*/README.md",
]
exclude_patterns = [".*", "build", "dist", "docs/site"]

# Headings have GitHub's anchors, so that one link works in both places.
myst_heading_anchors = 3

html_theme = "furo"
html_title = "Bowline"
html_show_sphinx = False
html_copy_source = False
html_additional_pages = {"index": "redirect.html"}
templates_path = ["site"]

# The tables of contents of the two index pages, which are plain Markdown and list the same pages as links.
CONTENTS = {
    root_doc: (Path(__file__).parent / "site" / "contents.txt").read_text(encoding="utf-8"),
    "docs/decisions/README": "\n```{toctree}\n:hidden:\n:glob:\n\n[0-9]*\n```\n",
}


def setup(app: Sphinx) -> None:
    """Register the only change to a page's text."""
    app.connect("source-read", add_contents)


def add_contents(_app: Sphinx, page: str, source: list[str]) -> None:
    """Append the table of contents to an index page."""
    source[0] += CONTENTS.get(page, "")
