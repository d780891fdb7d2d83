"""Helm without its command: the wheel `helm-python-sdk`, which contains Helm's own Go code as a library.

A last resort for machines that can reach neither Helm's releases nor a Go module proxy; the wheel is not a dependency
of Bowline. It takes the values as one document, so files and single values are merged here, as Helm merges them: maps
deeply, everything else replaced, later ones over earlier ones.
"""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from bowline.localcluster.chart import ChartRelease, documents
from bowline.localcluster.errors import CommandError

_MODULE = "helm_python"


def load_sdk() -> Any | None:
    """Return the wheel's module; None if it is not installed."""
    try:
        return importlib.import_module(_MODULE)
    except ImportError:
        return None


class HelmSdk:
    """Like `HelmCli`, by calls into the library."""

    name = "the Python package helm-python-sdk"

    def __init__(self, module: Any) -> None:
        self._module = module

    def upgrade_install(self, release: ChartRelease, kubeconfig: Path) -> str:
        """Install the release, or upgrade it if it exists."""
        values = merged_values(release)
        with self._config(kubeconfig, release.namespace) as config:
            if any(entry["name"] == release.name for entry in config.list(all_states=True)):
                result = config.upgrade(str(release.chart), release.name, values, namespace=release.namespace)
            else:
                result = config.install(
                    str(release.chart), release.name, values, namespace=release.namespace, create_namespace=True
                )
            return str(result.get("info", {}).get("notes", ""))

    def template(self, release: ChartRelease, kube_version: str | None = None) -> list[dict[str, Any]]:
        """Render without a cluster; the library always assumes the Kubernetes version it was built with."""
        if kube_version is not None:
            raise CommandError(f"{self.name} cannot render for another Kubernetes version")
        with self._translate_errors():
            chart = self._module.Chart.load(str(release.chart))
            try:
                manifests = chart.render(merged_values(release), name=release.name, namespace=release.namespace)
            finally:
                chart.close()
        texts = [text for path, text in manifests.items() if not path.endswith("NOTES.txt")]
        return [document for text in texts for document in documents(text)]

    def uninstall(self, name: str, namespace: str, kubeconfig: Path) -> str:
        """Remove the release."""
        with self._config(kubeconfig, namespace) as config:
            config.uninstall(name)
        return f"{name} uninstalled"

    @contextmanager
    def _config(self, kubeconfig: Path, namespace: str) -> Iterator[Any]:
        with self._translate_errors():
            config = self._module.Config(kubeconfig_path=str(kubeconfig), namespace=namespace)
            try:
                yield config
            finally:
                config.close()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except self._module.HelmError as error:
            raise CommandError(f"helm: {error}") from error


def merged_values(release: ChartRelease) -> dict[str, Any]:
    """Files in their order, then the single values by dotted name."""
    values: dict[str, Any] = {}
    for path in release.values_files:
        values = _merge(values, yaml.safe_load(path.read_text()) or {})
    for setting, value in release.set_values.items():
        tree: Any = value
        for key in reversed(setting.split(".")):
            tree = {key: tree}
        values = _merge(values, tree)
    return values


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        are_mappings = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = _merge(result[key], value) if are_mappings else value
    return result
