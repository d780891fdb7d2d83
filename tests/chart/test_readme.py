"""What users see before they install: a description of every value, the metadata, one version for all parts."""

import re
import tomllib

import yaml

from bowline.localcluster.helm import Helm
from tests.chart.rendering import CHART
from tools.generate.readme import value_rows

ROOT = CHART.parents[1]
METADATA = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
VALUES = (CHART / "values.yaml").read_text(encoding="utf-8")
# Kubernetes' own fields, and those whose name and section say everything.
KUBERNETES = {
    *("pullPolicy", "repository", "tolerations", "podAnnotations", "extraEnv", "extraArgs", "extraVolumeMounts"),
    *("labels", "enabled", "users", "groups", "metricsPort", "containerSecurityContext", "resources"),
    "preferredDuringSchedulingIgnoredDuringExecution",
}


def test_every_value_of_bowline_has_a_description() -> None:
    bare = {path for path, _, comment in value_rows(VALUES) if not comment}
    assert {path for path in bare if path.rpartition(".")[2] not in KUBERNETES} == set()


def test_an_operator_can_read_all_values_and_presets() -> None:
    """A hundred values and three presets: what nobody sets is a constant."""
    assert len([path for path, default, _ in value_rows(VALUES) if default]) <= 100
    assert len(list((CHART / "presets").glob("*.yaml"))) == 3


def test_wheel_chart_and_changelog_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(r"^## (\S+)", changelog, re.MULTILINE)
    assert heading
    assert {METADATA["version"], METADATA["appVersion"], heading[1]} == {project}


def test_the_metadata_names_the_crd_and_the_license() -> None:
    annotations = METADATA["annotations"]
    (crd,) = yaml.safe_load(annotations["artifacthub.io/crds"])
    definition = yaml.safe_load((CHART / "files" / "bindrequests.yaml").read_text(encoding="utf-8"))
    assert (crd["name"], crd["kind"]) == (definition["metadata"]["name"], definition["spec"]["names"]["kind"])
    assert crd["version"] in [version["name"] for version in definition["spec"]["versions"]]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert annotations["artifacthub.io/license"] == project["license"]


def test_helm_lint_has_nothing_to_recommend(helm_command: Helm) -> None:
    text = helm_command.run(["lint", "--strict", str(CHART), "--set=image.registry=r.example"])
    assert "[INFO]" not in text
    assert "[WARNING]" not in text
