"""Official release binaries over HTTPS, each verified against its published SHA-256.

Unreachable hosts are remembered for the life of the downloader, so that a machine without access pays the connect
timeout once per host and quickly continues with the next provider. A file whose checksum is unknown or differs is
never used.
"""

import hashlib
import json
import re
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from bowline.localcluster.assets.progress import Progress
from bowline.localcluster.assets.providers import ProviderAnswer
from bowline.localcluster.assets.recipes import Download, Recipe

# Enough for a slow TLS handshake; paid in full for an unreachable host.
CONNECT_TIMEOUT_S = 6.0
_CHUNK = 1 << 20
# Checksum files are a few kilobytes, the JSON of a GitHub release below one megabyte.
_SMALL_LIMIT = 4 << 20


class _RefusedError(Exception):
    """Why this download is not used; becomes the answer's reason."""


# Opens a URL as a readable stream, or raises OSError or HTTPException; tests substitute a table.
Opener = Callable[[str], IO[bytes]]


def open_url(url: str) -> IO[bytes]:
    """Open an https URL; proxies of the environment apply. The timeout also bounds each read."""
    if not url.startswith("https://"):
        raise OSError(f"{url} is not https")
    request = urllib.request.Request(url, headers={"User-Agent": "bowline-localcluster"})  # noqa: S310 - https only
    stream: IO[bytes] = urllib.request.urlopen(request, timeout=CONNECT_TIMEOUT_S)  # noqa: S310 - as above
    return stream


class Downloader:
    """The provider `download`."""

    name = "download"

    def __init__(self, progress: Progress, opener: Opener = open_url) -> None:
        self._progress = progress
        self._open = opener
        self._away: dict[str, str] = {}

    def fetch(self, recipes: Sequence[Recipe], work: Path) -> Iterator[ProviderAnswer]:
        """Download, verify and unpack one recipe after the other."""
        for recipe in recipes:
            try:
                yield ProviderAnswer(recipe, self._fetch_one(recipe, work))
            except _RefusedError as refusal:
                yield ProviderAnswer(recipe, None, str(refusal))

    def _fetch_one(self, recipe: Recipe, work: Path) -> Path:
        source = recipe.download
        if source is None:
            raise _RefusedError("no binary is published for this platform")
        file_name = source.url.rsplit("/", 1)[-1]
        # The checksum first: it is small, so an unreachable host is detected before anything is written.
        expected_digest = published_digest(source, file_name, self._read_small(source.checksum_url))
        if expected_digest is None:
            raise _RefusedError(f"no checksum is published for {file_name}, and an unverified binary is not used")
        self._progress.report(f"{recipe.tool} {recipe.version}: downloading {source.url}")
        archive = work / file_name
        actual = self._save(source.url, archive)
        if actual != expected_digest:
            raise _RefusedError(f"checksum mismatch for {source.url}: published {expected_digest}, received {actual}")
        return unpack(archive, source, work / f"{recipe.tool}.download")

    def _read_small(self, url: str) -> str:
        with self._open_stream(url) as stream:
            try:
                return stream.read(_SMALL_LIMIT).decode("utf-8", "replace")
            except (OSError, HTTPException) as error:
                raise _RefusedError(f"{url}: {_words(error)}") from error

    def _save(self, url: str, target: Path) -> str:
        digest = hashlib.sha256()
        received_bytes = 0
        with self._open_stream(url) as stream, target.open("wb") as out:
            try:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
                    received_bytes += len(chunk)
            except (OSError, HTTPException) as error:
                raise _RefusedError(f"{url} broke off after {received_bytes >> 20} MiB: {_words(error)}") from error
        return digest.hexdigest()

    def _open_stream(self, url: str) -> IO[bytes]:
        host = urlsplit(url).netloc
        if host in self._away:
            raise _RefusedError(f"{host} is not reachable ({self._away[host]})")
        try:
            return self._open(url)
        except urllib.error.HTTPError as error:
            # The host is reachable; only this file is not available.
            error.close()
            raise _RefusedError(f"{url}: HTTP {error.code}") from error
        except (OSError, HTTPException) as error:
            self._away[host] = _words(error)
            raise _RefusedError(f"{host} is not reachable ({self._away[host]})") from error


def published_digest(source: Download, file_name: str, text: str) -> str | None:
    """Return the SHA-256 that `text` publishes for a file; None if it does not."""
    if source.checksum_kind == "github-digest":
        return _github_digest(file_name, text)
    for line in text.splitlines():
        words = line.split()
        bare = len(words) == 1
        if words and (bare or words[-1].lstrip("*") == file_name):
            return _as_digest(words[0])
    return None


def _github_digest(file_name: str, text: str) -> str | None:
    try:
        release: Any = json.loads(text)
        assets = release["assets"]
        digests = [asset.get("digest") for asset in assets if asset.get("name") == file_name]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    algorithm, _, value = str(digests[0] if digests else "").partition(":")
    return _as_digest(value) if algorithm == "sha256" else None


def _as_digest(word: str) -> str | None:
    digest = word.lower()
    return digest if re.fullmatch(r"[0-9a-f]{64}", digest) else None


def unpack(archive: Path, source: Download, target: Path) -> Path:
    """Return the binary: the file itself, or the requested member of a tar archive."""
    if source.member is None:
        return archive.rename(target)
    try:
        # Only the bytes of one named member are read, so no path of the archive is ever followed.
        with tarfile.open(archive) as tar:
            member = tar.extractfile(source.member)
            if member is None:
                raise _RefusedError(f"{source.member} in {source.url} is not a file")
            target.write_bytes(member.read())
    except (KeyError, tarfile.TarError) as error:
        raise _RefusedError(f"{source.url} does not hold {source.member}: {error}") from error
    archive.unlink()
    return target


def _words(error: Exception) -> str:
    """The error's message; URLError hides the useful part in `reason`."""
    reason = getattr(error, "reason", None)
    return str(reason or error) or type(error).__name__
