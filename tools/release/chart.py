"""Archives that are equal for equal files: the packaged chart, and the OCI layout of the image."""

import gzip
import io
import re
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.generate.readme import as_markdown
from tools.release.image import BuildError

_FOLDER = "charts/bowline/"


@dataclass(frozen=True, slots=True)
class Publication:
    """What only a release knows; empty if it is not published.

    - ``registry``, ``digest``: where the image is, and its digest.
    - ``source``: the address of the sources.
    """

    version: str
    registry: str = ""
    digest: str = ""
    source: str = ""

    @property
    def image(self) -> str:
        """The image without tag and digest."""
        return f"{self.registry}/bowline"

    @property
    def pages(self) -> str:
        """Where the documents of this version are."""
        return f"{self.source}/blob/v{self.version}/docs" if self.source else "docs"

    @property
    def reference(self) -> str:
        """How Helm finds the packaged chart."""
        archive = f"bowline-{self.version}.tgz"
        return f"oci://{self.registry}/charts/bowline --version {self.version}" if self.registry else archive


def package(root: Path, target: Path, epoch: int, publication: Publication) -> None:
    """Write the chart as Helm reads it: the files that git tracks, with what only a release knows.

    The registry becomes the default of values.yaml; the digest, which is that of one image, is in a file of its own.
    Raises BuildError.
    """
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", _FOLDER],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    names = [name for name in listed.stdout.split("\0") if name and not name.endswith(".helmignore")]
    files = {f"bowline/{name.removeprefix(_FOLDER)}": (root / name).read_bytes() for name in names}
    registry, digest, source = publication.registry, publication.digest, publication.source
    values = files["bowline/values.yaml"].decode()
    if registry:
        values = with_default(values, '  registry: ""', f'  registry: "{registry}"')
        files["bowline/files/release.yaml"] = f"image: {publication.image}\ndigest: {digest}\n".encode()
    if source:
        image = f"{publication.image}@{digest}" if registry else ""
        files["bowline/Chart.yaml"] = with_source(files["bowline/Chart.yaml"].decode(), source, image).encode()
        page = re.search(r"(?m)^    runbookURL: .*$", values)
        values = with_default(
            values, page[0] if page else "    runbookURL: ", f"    runbookURL: {publication.pages}/alerts.md"
        )
    files["bowline/values.yaml"] = values.encode()
    files["bowline/README.md"] = as_markdown(publication.reference, publication.pages, values).encode()
    target.write_bytes(gzip.compress(_tar(files, epoch), mtime=epoch))


def with_default(values: str, line: str, changed: str) -> str:
    """Return values.yaml with another line for the one that has a default. Raises BuildError."""
    if values.count(f"\n{line}\n") != 1:
        raise BuildError(f"values.yaml does not have the line `{line}` once")
    return values.replace(f"\n{line}\n", f"\n{changed}\n")


def with_source(chart: str, source: str, image: str) -> str:
    """Return Chart.yaml with the address of the sources and, for Artifact Hub, the image. Raises BuildError."""
    head, annotations, rest = chart.partition("annotations:\n")
    if not annotations:
        raise BuildError("Chart.yaml has no line `annotations:`")
    address = (
        f"home: {source}\nsources: [{source}]\nmaintainers:\n  - name: Bowline's maintainers\n    url: {source}\n"
    )
    images = f"  artifacthub.io/images: |\n    - name: bowline\n      image: {image}\n" if image else ""
    return f"{head}{address}{annotations}{images}{rest}"


def write_archive(folder: Path, target: Path, epoch: int) -> None:
    """Write a folder as a tar archive."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    target.write_bytes(_tar(files, epoch))


def _tar(files: Mapping[str, bytes], epoch: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(files[name]), epoch, 0o644
            archive.addfile(entry, io.BytesIO(files[name]))
    return buffer.getvalue()
