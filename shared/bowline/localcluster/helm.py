"""Helm 4, as needed by the local cluster and the chart's tests.

The `helm` on PATH is preferred; else the chain of `assets` supplies the pinned one. Values are given as JSON
(`--set-json`), which needs no escaping and keeps types.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bowline.localcluster.assets.progress import Progress
from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.assets.supply import ensure_assets
from bowline.localcluster.errors import CommandError

_TIMEOUT_S = 180
# libyaml where PyYAML has it, eight times as fast.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class ChartRelease:
    """A chart under a release name, with its values."""

    name: str
    chart: Path
    namespace: str
    values_files: Sequence[Path] = ()
    set_values: Mapping[str, object] = field(default_factory=dict)


class Helm:
    """The helm command."""

    def __init__(self, binary: Path) -> None:
        self.binary = binary
        self.name = str(binary)

    def upgrade_install(self, release: ChartRelease, kubeconfig: Path) -> str:
        """`helm upgrade --install`, creating the namespace."""
        args = ["upgrade", "--install", release.name, str(release.chart), "--create-namespace"]
        # Helm does not read the API server's schemas, half of its CPU time: it sends every object with strict field
        # validation also without them, and the API server rejects unknown fields.
        args.append("--disable-openapi-validation")
        return self.run([*args, *_common(release)], kubeconfig)

    def template(self, release: ChartRelease, kube_version: str | None = None) -> list[dict[str, Any]]:
        """`helm template`."""
        args = ["template", release.name, str(release.chart), *_common(release)]
        if kube_version:
            args.append(f"--kube-version={kube_version}")
        return _documents(self.run(args))

    def uninstall(self, name: str, namespace: str, kubeconfig: Path) -> str:
        """`helm uninstall`, waiting until the deleted objects no longer exist."""
        return self.run(["uninstall", name, f"--namespace={namespace}", "--wait"], kubeconfig)

    def run(self, args: Sequence[str], kubeconfig: Path | None = None) -> str:
        """Run a helm command; return its standard output. Raises CommandError with its error output."""
        # The user's environment must not select a cluster: only the given one is used, or none.
        foreign = ("HELM_KUBE", "KUBECONFIG")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        command = [str(self.binary), *args]
        if kubeconfig is not None:
            command.append(f"--kubeconfig={kubeconfig}")
        try:
            result = subprocess.run(
                command,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            why = f"has not ended after {_TIMEOUT_S} s: {error.stderr!r}"
            raise CommandError(f"helm {' '.join(args)} {why}") from None
        if result.returncode != 0:
            raise CommandError(f"helm {' '.join(args)} ended with {result.returncode}: {result.stderr.strip()}")
        return result.stdout


def helm_to_supply() -> tuple[Tool, ...]:
    """Helm, if it is not on PATH: to be supplied together with other tools."""
    return () if shutil.which("helm") else (Tool.HELM,)


def find_helm(progress: Progress | None = None) -> Helm:
    """The `helm` on PATH, else the supplied one."""
    on_path = shutil.which("helm")
    return Helm(Path(on_path) if on_path else ensure_assets([Tool.HELM], progress=progress).path(Tool.HELM))


def _documents(text: str) -> list[dict[str, Any]]:
    """The objects in a rendered text, split as Helm splits: `---# comment` also separates."""
    parts = re.split(r"(?m)^---", text)
    documents = [yaml.load(part, _Loader) for part in parts if part.strip()]  # noqa: S506 - a safe one
    return [document for document in documents if document]


def _common(release: ChartRelease) -> list[str]:
    args = [f"--namespace={release.namespace}"]
    args += [f"--values={path}" for path in release.values_files]
    args += [f"--set-json={key}={json.dumps(value)}" for key, value in release.set_values.items()]
    return args
