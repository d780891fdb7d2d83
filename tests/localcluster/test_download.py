"""Downloads: verified or rejected, and an unavailable host is requested only once."""

import hashlib
import io
import json
import tarfile
import urllib.error
import zipfile
from email.message import Message
from pathlib import Path
from typing import IO

import pytest

from bowline.localcluster.assets.download import Downloader, open_url, published_digest
from bowline.localcluster.assets.progress import Progress
from bowline.localcluster.assets.recipes import Download, GoBuild, Platform, Recipe, Tool, recipe_for
from bowline.localcluster.assets.versions import release_for

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


class Breaking(io.BytesIO):
    """A stream that breaks off after its bytes."""

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if not data:
            raise ConnectionResetError("reset by peer")
        return data


def recipe(download: Download | None, tool: Tool = Tool.ETCD) -> Recipe:
    return Recipe(tool, "v1", "v1", download, BUILD)


def fetch(table: Table, work: Path, *recipes: Recipe) -> list[tuple[Path | None, str]]:
    downloader = Downloader(Progress(quiet=True), table)
    return [(answer.path, answer.reason) for answer in downloader.fetch(recipes, work)]


def tar_of(name: str, data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def zip_of(name: str, data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as bundle:
        bundle.writestr(name, data)
    return out.getvalue()


def test_a_verified_binary_is_returned(tmp_path: Path) -> None:
    table = Table({SUM_URL: DIGEST.encode(), URL: BINARY})
    [(path, reason)] = fetch(table, tmp_path, recipe(PLAIN))
    assert path is not None, reason
    assert path.read_bytes() == BINARY


def test_a_checksum_mismatch_is_rejected_with_both_digests(tmp_path: Path) -> None:
    table = Table({SUM_URL: DIGEST.encode(), URL: b"something else"})
    [(path, reason)] = fetch(table, tmp_path, recipe(PLAIN))
    assert path is None
    assert "checksum mismatch" in reason
    assert DIGEST in reason
    assert hashlib.sha256(b"something else").hexdigest() in reason


def test_an_incomplete_download_is_rejected(tmp_path: Path) -> None:
    class Table2(Table):
        def __call__(self, url: str) -> IO[bytes]:
            return Breaking(BINARY) if url == URL else super().__call__(url)

    [(path, reason)] = fetch(Table2({SUM_URL: DIGEST.encode()}), tmp_path, recipe(PLAIN))
    assert path is None
    assert "broke off" in reason
    assert "reset by peer" in reason


@pytest.mark.parametrize(
    ("download", "digest_text"),
    [
        pytest.param(PLAIN, b"not a digest", id="not a digest"),
        pytest.param(PLAIN, b"", id="an empty file"),
        pytest.param(GITHUB, b'{"assets": [{"name": "tool", "digest": null}]}', id="an old release without digests"),
        pytest.param(GITHUB, b"<html>", id="not JSON"),
    ],
)
def test_without_a_published_checksum_nothing_is_downloaded(
    tmp_path: Path, download: Download, digest_text: bytes
) -> None:
    table = Table({SUM_URL: digest_text, URL: BINARY})
    [(path, reason)] = fetch(table, tmp_path, recipe(download))
    assert path is None
    assert "no checksum is published" in reason
    assert table.urls == [SUM_URL]


def test_an_unreachable_host_is_requested_once_for_all_tools(tmp_path: Path) -> None:
    table = Table({})
    answers = fetch(table, tmp_path, *(recipe(PLAIN, tool) for tool in (Tool.ETCD, Tool.KWOK, Tool.HELM)))
    assert [path for path, _ in answers] == [None, None, None]
    assert all("example.invalid is not reachable (no route to host)" in reason for _, reason in answers)
    assert table.urls == [SUM_URL]


def test_a_missing_file_does_not_make_the_host_unavailable(tmp_path: Path) -> None:
    missing = urllib.error.HTTPError(SUM_URL, 404, "Not Found", Message(), io.BytesIO())
    second_download = Download(f"{URL}2", f"{URL}2.sha256", "sha256-file")
    table = Table({SUM_URL: missing, second_download.checksum_url: DIGEST.encode(), second_download.url: BINARY})
    [(first, reason), (second, _)] = fetch(table, tmp_path, recipe(PLAIN), recipe(second_download, Tool.KWOK))
    assert first is None
    assert "HTTP 404" in reason
    assert second is not None


@pytest.mark.parametrize(
    ("suffix", "archive"),
    [
        pytest.param("tar.gz", tar_of("inner/etcd", BINARY), id="tar"),
        pytest.param("zip", zip_of("inner/etcd", BINARY), id="zip"),
    ],
)
def test_the_requested_member_is_extracted_from_an_archive(tmp_path: Path, suffix: str, archive: bytes) -> None:
    url = f"https://example.invalid/etcd.{suffix}"
    download = Download(url, SUM_URL, "sha256-file", "inner/etcd")
    sums = f"{'0' * 64}  other.{suffix}\n{hashlib.sha256(archive).hexdigest()}  etcd.{suffix}\n"
    [(path, reason)] = fetch(Table({SUM_URL: sums.encode(), url: archive}), tmp_path, recipe(download))
    assert path is not None, reason
    assert path.read_bytes() == BINARY


def test_an_archive_without_the_member_is_rejected(tmp_path: Path) -> None:
    archive = tar_of("inner/other", BINARY)
    url = "https://example.invalid/etcd.tar.gz"
    download = Download(url, SUM_URL, "sha256-file", "inner/etcd")
    digest = hashlib.sha256(archive).hexdigest().encode()
    [(path, reason)] = fetch(Table({SUM_URL: digest, url: archive}), tmp_path, recipe(download))
    assert path is None
    assert "does not hold inner/etcd" in reason


@pytest.mark.parametrize(
    ("download", "text", "expected"),
    [
        pytest.param(PLAIN, DIGEST, DIGEST, id="a bare digest"),
        pytest.param(PLAIN, f"{DIGEST}\n", DIGEST, id="with a line end"),
        pytest.param(PLAIN, DIGEST.upper(), DIGEST, id="in capitals"),
        pytest.param(PLAIN, f"{'0' * 64}  other\n{DIGEST}  tool\n", DIGEST, id="one line of many"),
        pytest.param(PLAIN, f"{DIGEST} *tool\n", DIGEST, id="marked as binary"),
        pytest.param(PLAIN, f"{DIGEST}  other\n", None, id="only another file"),
        pytest.param(PLAIN, DIGEST[:-1], None, id="a digit is missing"),
        pytest.param(
            GITHUB,
            json.dumps({"assets": [{"name": "x"}, {"name": "tool", "digest": f"sha256:{DIGEST}"}]}),
            DIGEST,
            id="GitHub's digest of the asset",
        ),
        pytest.param(
            GITHUB,
            json.dumps({"assets": [{"name": "tool", "digest": f"md5:{DIGEST}"}]}),
            None,
            id="another algorithm",
        ),
        pytest.param(GITHUB, json.dumps({"message": "rate limited"}), None, id="GitHub's error"),
        pytest.param(GITHUB, json.dumps({"assets": []}), None, id="no such asset"),
        pytest.param(GITHUB, json.dumps([1]), None, id="another shape"),
    ],
)
def test_published_digest(download: Download, text: str, expected: str | None) -> None:
    assert published_digest(download, "tool", text) == expected


def test_only_https_is_opened() -> None:
    with pytest.raises(OSError, match="not https"):
        open_url("http://example.invalid/tool")


def test_a_platform_without_published_binaries_is_reported(tmp_path: Path) -> None:
    server_recipe = recipe_for(Tool.APISERVER, release_for(None, {}), Platform("darwin", "arm64"))
    [(path, reason)] = fetch(Table({}), tmp_path, server_recipe)
    assert (path, reason) == (None, "no binary is published for this platform")
