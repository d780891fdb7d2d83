"""``bowline plugin new``: a distribution with a plugin that passes its own tests and types."""

import argparse
import keyword
import re
import sys
from pathlib import Path

from bowline.plugins.catalog import BUILTINS
from bowline.runtime.version import DISTRIBUTION, bowline_version

EXIT_USAGE = 2
_NAME = re.compile(r"[a-z][a-z0-9_]*")

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{distribution}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["{bowline}>={version}"]

[project.optional-dependencies]
dev = ["{bowline}[testing]", "mypy"]

[project.entry-points."bowline.plugins"]
{name} = "{module}:{class_name}"

[project.entry-points."bowline.conformance"]
{name} = "{module}.samples:SAMPLES"

[tool.hatch.build.targets.wheel]
packages = ["{module}"]

[tool.mypy]
strict = true

[tool.pytest.ini_options]
asyncio_mode = "auto"
asyncio_default_fixture_loop_scope = "function"
"""
MODULE = '''\
"""The plugin {name}: say here what it guarantees."""

from collections.abc import Iterable, Mapping

from bowline import (
    AdmissionInfo,
    AdmissionPlugin,
    BindContext,
    BindingPlugin,
    BindRequest,
    FieldError,
    Object,
    Rule,
    Status,
)

TEAM = "{domain}.example.com/team"
NO_TEAM = Rule("{name}/team", "a pod names an empty team")


class {class_name}(AdmissionPlugin, BindingPlugin):
    """Replace the example: a pod may name its team, and the name must not be empty."""

    name = "{name}"
    rules = (NO_TEAM,)

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        annotations: Mapping[str, str] = pod["metadata"].get("annotations") or {{}}
        if TEAM in annotations and not annotations[TEAM]:
            yield FieldError(NO_TEAM, "metadata.annotations", "", f"{{TEAM}} must name a team")

    def applies(self, pod: Object, request: BindRequest) -> bool:
        return TEAM in (pod["metadata"].get("annotations") or {{}})

    async def pre_bind(self, ctx: BindContext) -> Status:
        ctx.log.info("prepared")
        return Status.ok()
'''
SAMPLES = '''\
"""What the plugin is checked with, here and by `bowline plugin check {name}`: pods that concern it."""

from typing import Any

from {module} import TEAM

POD: dict[str, Any] = {{
    "metadata": {{"name": "pod", "annotations": {{TEAM: "blue"}}}},
    "spec": {{"schedulerName": "bowline", "containers": [{{"name": "main", "image": "registry.example/app:1"}}]}},
}}
SAMPLES: dict[str, Any] = {{"pods": [POD]}}
'''
TESTS = '''\
"""The plugin conforms: one test for each check of bowline.testing.conformance. Then tests of what it does."""

from bowline import Code
from bowline.testing import conformance
from bowline.testing.attempts import Attempts
from {module} import {class_name}
from {module}.samples import SAMPLES

Test{class_name} = conformance.suite({class_name}, **SAMPLES)


async def test_a_pod_of_a_team_is_bound(run_attempt: Attempts) -> None:
    async with run_attempt({class_name}, **SAMPLES) as attempt:
        assert (attempt.status.code, attempt.errors) == (Code.OK, ())
        assert attempt.pod["spec"]["nodeName"] == attempt.request["spec"]["selectedNode"]
'''
DOCKERFILE = """\
# Bowline's image with this distribution, under the versions that the image is locked to. By digest: a tag is not the
# same image tomorrow.
#
#   docker build --build-arg=BOWLINE_IMAGE=registry.example/bowline@sha256:<digest> --tag=registry.example/mine .
ARG BOWLINE_IMAGE
FROM ${{BOWLINE_IMAGE}}
USER 0
COPY . /src
RUN pip install --no-cache-dir --no-compile --constraint=/usr/local/etc/bowline/constraints.txt /src && rm -r /src
USER 10000:10000
"""
README = """\
# {name}

    pip install --editable '.[dev]'
    python -m pytest && python -m mypy {module} tests
    bowline plugin check {name}
    bowline plugin run {name}
    bowline plugin access > access.yaml   # values of the chart, beside those that enable the plugin

The image is built from Dockerfile.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Write a distribution with a plugin. Exit status: 0 written, 2 a name or folder is not usable."
    )
    parser.add_argument("name", help="the plugin's name in the configuration, such as licence or network_setup")
    parser.add_argument(
        "--folder", metavar="FOLDER", type=Path, help="where; a folder that does not exist (default: the name)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the files; return the exit status."""
    name, folder = options.name, options.folder or Path(options.name)
    if error := _error(name, folder):
        sys.stderr.write(f"bowline plugin new: {error}\n")
        return EXIT_USAGE
    for path, text in files(name).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{folder} has the plugin {name}; its README.md lists the next commands\n")
    return 0


def files(name: str) -> dict[str, str]:
    """Return the distribution's files, by path."""
    words = {
        "name": name,
        "module": f"bowline_{name}",
        "domain": name.replace("_", "-"),  # an annotation's prefix is a DNS name
        "distribution": f"bowline-{name.replace('_', '-')}",
        "class_name": "".join(part.capitalize() for part in name.split("_")),
        "bowline": DISTRIBUTION,
        "version": bowline_version(),
    }
    texts = {
        "pyproject.toml": PYPROJECT,
        f"{words['module']}/__init__.py": MODULE,
        f"{words['module']}/samples.py": SAMPLES,
        "tests/test_conformance.py": TESTS,
        "README.md": README,
        "Dockerfile": DOCKERFILE,
    }
    return {path: text.format_map(words) for path, text in texts.items()} | {f"{words['module']}/py.typed": ""}


def _error(name: str, folder: Path) -> str:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or len(name) > 40:
        return f"the name {name!r} must have lower-case letters, digits and _ only, at most 40, a letter first"
    if any(builtin.plugin.name == name for builtin in BUILTINS):
        return f"{name} is a built-in plugin; choose another name"
    if folder.exists():
        return f"{folder} exists; name a new folder with --folder"
    return ""
