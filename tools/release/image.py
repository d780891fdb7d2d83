"""Builds the image as an OCI layout, by docker (buildx), podman or buildah: the first one that works here."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_NAME = "bowline-release"


class BuildError(Exception):
    """Something cannot be built; the message states the remedy."""


@dataclass(frozen=True, slots=True)
class Build:
    """What is built: the folder with the Dockerfile, its arguments, and platforms (none: this machine's).

    ``options`` are passed to the builder as they are, such as those that a build behind a proxy needs.
    """

    context: Path
    arguments: Mapping[str, str]
    platforms: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


def build_image(build: Build, layout: Path) -> str:
    """Write the OCI layout, replacing an earlier one; returns the digest of the image or of its index.

    Two calls with equal sources and arguments give equal layouts. Raises BuildError.
    """
    builder = find_builder()
    shutil.rmtree(layout, ignore_errors=True)
    layout.parent.mkdir(parents=True, exist_ok=True)
    for command in commands(builder, build, layout):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
            raise BuildError(f"`{' '.join(command[:3])}` ended with {done.returncode}:\n{tail}")
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    return str(entry["digest"])


def find_builder() -> str:
    """Return the name of a program that can build. Raises BuildError."""
    for name, probe in (("docker", ("buildx", "ls")), ("podman", ("info",)), ("buildah", ("info",))):
        if shutil.which(name) and subprocess.run([name, *probe], capture_output=True, check=False).returncode == 0:
            return name
    raise BuildError("no docker with buildx, podman or buildah works here: install one of them")


def commands(builder: str, build: Build, layout: Path) -> Sequence[Sequence[str]]:
    """Return the commands that build the layout."""
    epoch = build.arguments["SOURCE_DATE_EPOCH"]
    arguments = [f"--build-arg={name}={value}" for name, value in build.arguments.items()]
    platforms = [f"--platform={','.join(build.platforms)}"] if build.platforms else []
    if builder == "docker":
        output = f"--output=type=oci,dest={layout},tar=false,rewrite-timestamp=true"
        fixed = ["--no-cache", "--provenance=false"]
        return [
            ["docker", "buildx", "build", *fixed, *platforms, *arguments, *build.options, output, str(build.context)]
        ]
    run = ["podman", "build"] if builder == "podman" else ["buildah", "bud"]
    options = ["--format=oci", "--no-cache", f"--timestamp={epoch}", *platforms, *arguments, *build.options]
    if len(build.platforms) > 1:
        return [
            [*run, *options, f"--manifest={_NAME}", str(build.context)],
            [builder, "manifest", "push", "--all", "--rm", _NAME, f"oci:{layout}"],
        ]
    return [[*run, *options, f"--tag={_NAME}", str(build.context)], [builder, "push", _NAME, f"oci:{layout}"]]
