"""Writes a release into a folder, or only the image: ``python -m tools.release image|release``. See the Makefile."""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tools.release import chart, sbom
from tools.release.image import Build, BuildError, build_image

ROOT: Final = Path(__file__).resolve().parents[2]
SUMS: Final = "SHA256SUMS"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status, 1 with a message on standard error for what cannot be built."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("image", "the image as an OCI layout"), ("release", "everything that is published")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--base", required=True, help="the base image: NAME@sha256:DIGEST")
        command.add_argument("--out", type=Path, required=True, help="the folder")
        command.add_argument("--platforms", default="", help="linux/amd64,linux/arm64; default: this machine's")
        help_text = (
            "passed to the builder: --option=--build-arg=HTTPS_PROXY=..., --option=--secret=id=pip,src=/etc/pip.conf"
        )
        command.add_argument("--option", action="append", default=[], help=help_text)
    command.add_argument("--version", required=True, help="that of pyproject.toml")
    command.add_argument("--registry", default="", help="where the image will be; the chart's default then")
    options = parser.parse_args(arguments)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        if options.command == "image":
            sys.stdout.write(build_image(_build(options), options.out / "image") + "\n")
        else:
            release(options)
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def release(options: argparse.Namespace) -> None:
    """Write every part, the checksums last. Raises BuildError."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if options.version != version:
        places = "pyproject.toml, charts/bowline/Chart.yaml and the heading of CHANGELOG.md"
        raise BuildError(f"VERSION is {options.version!r} and the sources are {version}: change {places}")
    out, epoch = options.out, source_date_epoch()
    name = f"bowline-{version}"
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(out.resolve())]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env=environment)
    layout = out / "image"
    digest = build_image(_build(options), layout)
    chart.write_archive(layout, out / f"{name}-image.tar", epoch)
    published = chart.Publication(version, source=os.environ.get("SOURCE_URL", ""))
    if options.registry:
        published = replace(published, registry=options.registry, digest=digest)
    chart.package(ROOT, out / f"{name}.tgz", epoch, published)
    requirements = (ROOT / "requirements" / "runtime.txt").read_text()
    document = sbom.as_spdx(version, epoch, requirements, base=options.base, image=digest)
    (out / f"{name}.spdx.json").write_text(json.dumps(document, indent=2) + "\n")
    files = sorted(path for path in out.iterdir() if path.is_file() and not path.name.startswith(SUMS))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (out / SUMS).write_text("".join(lines))
    sys.stdout.write("".join(lines))


def source_date_epoch() -> int:
    """Return SOURCE_DATE_EPOCH, else the time of the last commit, in seconds."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or _git("log", "-1", "--format=%ct"))


def _build(options: argparse.Namespace) -> Build:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    arguments = {
        "PYTHON_IMAGE": options.base,
        "SOURCE_DATE_EPOCH": str(source_date_epoch()),
        "VERSION": version,
        "REVISION": _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"),
        "SOURCE": os.environ.get("SOURCE_URL", ""),
    }
    platforms = tuple(filter(None, options.platforms.split(",")))
    return Build(ROOT, arguments, platforms, tuple(options.option))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
