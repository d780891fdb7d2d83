"""Downloads: rejected unless they are what was published, and an unavailable host is requested only once."""

import hashlib
import io
import json
from pathlib import Path
from typing import IO

import pytest

from bowline.localcluster.assets.download import Downloader, open_url, published_digest
from bowline.localcluster.assets.progress import Progress
from bowline.localcluster.assets.recipes import Download, GoBuild, Recipe, Tool

BINARY = b"the binary"
DIGEST = hashlib.sha256(BINARY).hexdigest()
URL = "https://example.invalid/v1/tool"
SUM_URL = f"{URL}.sha256"
BUILD = GoBuild("example.invalid/tool", "v1", "example.invalid/tool")
PLAIN = Download(URL, SUM_URL, "sha256-file")
GITHUB = Download(URL, SUM_URL, "github-digest")


class Table:
    """An opener with fixed replies that counts the requests of each URL."""

    def __init__(self, answers: dict[str, bytes | Exception]) -> None:
        self._answers = answers
        self.urls: list[str] = []

    def __call__(self, url: str) -> IO[bytes]:
        self.urls.append(url)
        answer = self._answers.get(url, OSError("no route to host"))
        if isinstance(answer, Exception):
            raise answer
        return io.BytesIO(answer)


def recipe(download: Download | None, tool: Tool = Tool.ETCD) -> Recipe:
    return Recipe(tool, "v1", "v1", download, BUILD)


def fetch(table: Table, work: Path, *recipes: Recipe) -> list[tuple[Path | None, str]]:
    downloader = Downloader(Progress(quiet=True), table)
    return [(answer.path, answer.reason) for answer in downloader.fetch(recipes, work)]


def test_a_checksum_mismatch_is_rejected_with_both_digests(tmp_path: Path) -> None:
    table = Table({SUM_URL: DIGEST.encode(), URL: b"something else"})
    [(path, reason)] = fetch(table, tmp_path, recipe(PLAIN))
    assert path is None
    assert "checksum mismatch" in reason
    assert DIGEST in reason
    assert hashlib.sha256(b"something else").hexdigest() in reason


def test_a_host_that_does_not_answer_is_asked_once(tmp_path: Path) -> None:
    table = Table({})
    [(_, first), (_, second)] = fetch(table, tmp_path, recipe(PLAIN), recipe(PLAIN, Tool.KWOK))
    assert first == second == "example.invalid is not reachable (no route to host)"
    assert table.urls == [SUM_URL]


@pytest.mark.parametrize(
    ("download", "text", "expected"),
    [
        pytest.param(PLAIN, DIGEST, DIGEST, id="a bare digest"),
        pytest.param(PLAIN, f"{'0' * 64}  other\n{DIGEST}  tool\n", DIGEST, id="one line of many"),
        pytest.param(PLAIN, f"{DIGEST} *tool\n", DIGEST, id="marked as binary"),
        pytest.param(PLAIN, f"{DIGEST}  other\n", None, id="only another file"),
        pytest.param(GITHUB, json.dumps({"assets": [{"name": "x"}, {"name": "tool", "digest": f"sha256:{DIGEST}"}]}),
            DIGEST, id="GitHub's digest of the asset"),
        pytest.param(GITHUB, json.dumps({"assets": [{"name": "tool", "digest": f"md5:{DIGEST}"}]}), None,
            id="another algorithm"),
        pytest.param(GITHUB, json.dumps({"message": "rate limited"}), None, id="GitHub's error"),
    ],
)  # fmt: skip
def test_published_digest(download: Download, text: str, expected: str | None) -> None:
    assert published_digest(download, "tool", text) == expected


def test_only_https_is_opened() -> None:
    with pytest.raises(OSError, match="not https"):
        open_url("http://example.invalid/tool")
