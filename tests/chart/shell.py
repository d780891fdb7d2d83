"""A user's shell, in which the commands of pages are run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.helm import Helm
from tests.chart.rendering import CHART
from tests.documents import run


@dataclass(frozen=True, slots=True)
class Shell:
    """A shell in a folder with the chart and a file of values."""

    cluster: Cluster
    helm: Helm
    folder: Path

    @classmethod
    def at(cls, folder: Path, cluster: Cluster, helm: Helm, values: Mapping[str, Any]) -> Self:
        """Return the shell in a folder, which gets the chart and the values."""
        (folder / "charts").mkdir()
        # kustomize reads no file outside its folder.
        (folder / "charts" / "bowline").symlink_to(CHART)
        (folder / "values.yaml").write_text(yaml.safe_dump(dict(values)))
        return cls(cluster, helm, folder)

    def run(self, command: str) -> str:
        """Run a command as a user would. Fails with its output."""
        tools = (self.helm.binary.parent, self.cluster.assets.path(Tool.KUBECTL).parent)
        return run(command, self.cluster.kubeconfig, *tools, folder=self.folder)
