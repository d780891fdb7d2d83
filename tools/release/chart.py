"""Archives that are equal for equal files: the packaged chart, and the OCI layout of the image."""

import gzip
import io
import re
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

from tools.release.image import BuildError

_FOLDER = "charts/bowline/"


def package(root: Path, target: Path, epoch: int, registry: str, digest: str, source: str = "") -> None:
    """Write the chart as Helm reads it: the files that git tracks, with what only a release knows.

    ``registry`` and ``digest`` become the image's defaults in values.yaml, ``source`` the address of the sources in
    Chart.yaml; if empty, the file stays as it is. Raises BuildError.
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
    if registry:
        values = files["bowline/values.yaml"].decode()
        files["bowline/values.yaml"] = with_image(values, registry, digest).encode()
    if source:
        image = f"{registry}/bowline@{digest}" if registry else ""
        files["bowline/Chart.yaml"] = with_source(files["bowline/Chart.yaml"].decode(), source, image).encode()
    target.write_bytes(gzip.compress(_tar(files, epoch), mtime=epoch))


def with_image(values: str, registry: str, digest: str) -> str:
    """Return values.yaml with another default of ``image.registry`` and ``image.digest``. Raises BuildError."""
    for key, value in (("registry", registry), ("digest", digest)):
        values, number = re.subn(rf'(?m)^  {key}: ""$', f'  {key}: "{value}"', values, count=1)
        if number != 1:
            raise BuildError(f'values.yaml has no line `  {key}: ""` in section image')
    return values


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
