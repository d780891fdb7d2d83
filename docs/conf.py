"""The documentation site: Sphinx over the repository's own Markdown.

The source folder is the root, so that links between README.md, docs/ and the plugins' pages are the ones that a
reader of the repository follows. A link to a file that is no page becomes a download. Every warning is an error
(`make check`): a page in no table of contents, a link or an anchor that leads nowhere, a malformed table.
"""

import os
from fnmatch import fnmatch
from pathlib import Path

from sphinx.application import Sphinx

project = "Bowline"
author = "The Bowline authors"
copyright = author  # noqa: A001 - the name that Sphinx reads

extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/**.md",
    "charts/bowline/README.md",
    "examples/*/README.md",
]
exclude_patterns = [".*", "build", "dist", "docs/site"]

# Headings have GitHub's anchors, so that one link works in both places.
myst_heading_anchors = 3

SITE = Path(__file__).parent / "site"
# Two dashes are those of a flag.
smartquotes = False
html_theme = "furo"
html_title = "Bowline"
html_show_sphinx = False
html_copy_source = False
html_additional_pages = {"index": "redirect.html", "404": "missing.html"}
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_search_scorer = str(SITE / "scorer.js")
html_favicon = "site/static/favicon.svg"
templates_path = ["site"]
# A command is copied without its prompt and without its output.
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
# Set where the site is published: pages get a link to their source, and the page of a wrong address one to the start.
html_baseurl = os.environ.get("DOCS_URL", "")
html_context = {"docs_url": html_baseurl or "/"}
if repository := os.environ.get("DOCS_REPOSITORY"):
    html_theme_options = {"source_repository": repository, "source_branch": "main", "source_directory": ""}

# The tables of contents of the two index pages, which are plain Markdown and list the same pages as links.
CONTENTS = {
    root_doc: (SITE / "contents.txt").read_text(encoding="utf-8"),
    "docs/decisions/README": "\n```{toctree}\n:hidden:\n:glob:\n\n[0-9]*\n```\n",
}
# The search leaves out what only those who change Bowline read: a user's word would find it first.
NOT_SEARCHED = ("docs/decisions/*", "CHANGELOG", "AGENTS", "CONTRIBUTING", "docs/figures")
DESCRIPTION = "Checks GPU requests of pods at kubectl apply, and binds pods for KAI-Scheduler and other schedulers."


def setup(app: Sphinx) -> None:
    """Register the only changes to a page's text."""
    app.connect("source-read", prepare_page)


def prepare_page(_app: Sphinx, page: str, source: list[str]) -> None:
    """Append the table of contents to an index page; give a page what search engines and the search read."""
    head = f"---\nmyst:\n  html_meta:\n    description: {DESCRIPTION}\n"
    if any(fnmatch(page, pattern) for pattern in NOT_SEARCHED):
        head += "nosearch: true\n"
    source[0] = f"{head}---\n\n{source[0]}{CONTENTS.get(page, '')}"
