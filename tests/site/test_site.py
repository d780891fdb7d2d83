"""The documentation site in a real browser: nothing is cut off on a desktop and on a phone, no link leads nowhere.

Needs Debian's package ``chromium``, and the packages of the site, which ``make docs`` installs.
"""

import functools
import http.server
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT

CHROMIUM = shutil.which("chromium")
NEEDED = "Debian's package chromium and `make docs`, which installs Sphinx"
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("sphinx") is None, reason=f"this suite needs {NEEDED}"
)
PAGES = (
    "index",
    "README",
    "reference",
    "rules",
    "tutorial",
    "install",
    "lint",
    "security",
    "metrics",
    "stuck-pods",
    "half-a-gpu",
)
WIDTHS = (1280, 768, 390)
# Loads each page in a frame of each width, and writes what is wider than the place that it has into its title.
MEASURE = """<!doctype html><title>loading</title><body><script>
(async () => {
  const wide = [];
  for (const width of WIDTHS) for (const page of PAGES) {
    const frame = document.createElement('iframe');
    frame.style.cssText = `width:${width}px;height:900px;border:0`;
    frame.src = `docs/${page}.html`;
    document.body.append(frame);
    await new Promise(done => frame.onload = done);
    const root = frame.contentDocument.documentElement;
    if (root.scrollWidth > root.clientWidth) wide.push(`${page} at ${width}: the page`);
    for (const block of root.querySelectorAll('article pre, article table, article img')) {
      const box = block.getBoundingClientRect(), place = block.closest('article').getBoundingClientRect();
      const text = block.textContent.trim().split('\\n')[0].slice(0, 40);
      if (box.right > place.right + 4 || (block.tagName == 'PRE' && block.scrollWidth > block.clientWidth + 2))
        wide.push(`${page} at ${width}: ${block.tagName} ${text} ${Math.round(box.right - place.right)}`);
    }
    for (const word of root.querySelectorAll('article td code.word'))
      if (word.getClientRects().length > 1) wide.push(`${page} at ${width}: ${word.textContent} is broken`);
    frame.remove();
  }
  document.title = 'measured'; document.body.textContent = 'RESULT' + JSON.stringify(wide) + 'END';
})()</script></body>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as ``make docs`` builds it."""
    folder = tmp_path_factory.mktemp("site")
    build = ("-c", "docs", "-d", str(folder / "doctrees"), "--fail-on-warning", "--quiet", "-b", "html", ".")
    subprocess.run([sys.executable, "-m", "sphinx", *build, str(folder / "html")], cwd=ROOT, check=True)
    return folder / "html"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """A server of the site on the loopback address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """The browser's requests are no concern of the test's output."""

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def dom_of(url: str, profile: Path) -> str:
    """A page's content when its scripts have run."""
    assert CHROMIUM is not None
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
    silent = ("--disable-component-update", "--disable-sync", f"--user-data-dir={profile}", "--timeout=120000")
    command = [CHROMIUM, *flags, *silent, "--virtual-time-budget=120000", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.mark.parametrize(
    ("words", "page"),
    [
        pytest.param("gpu-fraction", "docs/workload-", id="an annotation"),
        pytest.param("schedulerName", "docs/workload-", id="a field"),
        pytest.param("pod+pending", "docs/stuck-pods", id="a symptom"),
        pytest.param("WaitTimeout", "docs/stuck-pods", id="a reason"),
        pytest.param("install", "docs/install", id="a task"),
    ],
)
def test_the_search_has_a_page_for_users_first(address: str, tmp_path: Path, words: str, page: str) -> None:
    results = re.findall(
        r'<li class="kind-[^>]*><a href="([^"]*)"', dom_of(f"{address}/search.html?q={words}", tmp_path)
    )
    assert results[0].startswith(page)
    assert [result for result in results[:5] if "decisions" in result or "architecture" in result] == []


def test_on_a_phone_a_cell_of_a_table_has_the_name_of_its_column(address: str, tmp_path: Path) -> None:
    assert 'data-column="alert when"' in dom_of(f"{address}/docs/metrics.html", tmp_path)


def test_nothing_is_wider_than_its_place(site: Path, address: str, tmp_path: Path) -> None:
    page = MEASURE.replace("WIDTHS", json.dumps(WIDTHS)).replace("PAGES", json.dumps(PAGES))
    (site / "measure.html").write_text(page, encoding="utf-8")
    dom = dom_of(f"{address}/measure.html", tmp_path)
    result = re.search("<body[^>]*>RESULT(.*?)END<", dom, re.DOTALL)
    assert result, dom[-2000:]
    wide = json.loads(result[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert wide == [], "\n".join(wide)


def test_the_search_leaves_out_pages_for_those_who_change_bowline(site: Path) -> None:
    index = json.loads((site / "searchindex.js").read_text(encoding="utf-8").removeprefix("Search.setIndex(")[:-1])
    numbers = [
        number for places in index["terms"].values() for number in (places if isinstance(places, list) else [places])
    ]
    pages = {index["docnames"][number] for number in numbers}
    assert "docs/half-a-gpu" in pages
    assert [page for page in pages if page.startswith("docs/decisions/") or page == "CHANGELOG"] == []


def test_a_wrong_address_has_a_page_that_leads_back(site: Path) -> None:
    assert 'href="/docs/index.html"' in (site / "404.html").read_text(encoding="utf-8")
