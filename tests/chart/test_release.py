"""Archives, SBOM and commands of a release. No image is built: it needs a builder and a base image."""

import json
import re
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bowline.localcluster.helm import ChartRelease, Helm
from tests.chart.rendering import CHART
from tests.documents import blocks
from tools.release import chart as packaging
from tools.release import sbom

ROOT = CHART.parents[1]
DIGEST = "sha256:" + "a" * 64
LOCK = (ROOT / "requirements" / "runtime.txt").read_text(encoding="utf-8")


SOURCE = "https://git.example/team/bowline"
RELEASED = packaging.Publication("0.1.0", "ghcr.example/team", DIGEST, SOURCE)
INSTALL = ROOT / "docs" / "install.md"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The released chart."""
    path = tmp_path_factory.mktemp("release") / "bowline-0.1.0.tgz"
    packaging.package(ROOT, path, 1, RELEASED)
    return path


def images(helm: Helm, archive: Path, values: Mapping[str, Any]) -> set[str]:
    """The images of both processes and of the agent, as the archive renders them with the values."""
    objects = helm.template(ChartRelease("bowline", archive, "bowline-system", set_values=values))
    pods = [obj["spec"]["template"]["spec"] for obj in objects if obj["kind"] == "Deployment"]
    (config,) = (obj for obj in objects if obj["kind"] == "ConfigMap" and "-config-" in obj["metadata"]["name"])
    agent = yaml.safe_load(config["data"]["config.yaml"])["gpuSharing"]["agentImage"]
    return {*(pod["containers"][0]["image"] for pod in pods), agent}


OTHER = "sha256:" + "b" * 64


@pytest.mark.parametrize(
    ("values", "image"),
    [
        pytest.param({}, f"ghcr.example/team/bowline@{DIGEST}", id="the released one"),
        pytest.param({"image.registry": "ghcr.example/team"}, f"ghcr.example/team/bowline@{DIGEST}",
            id="named again"),
        pytest.param({"image.registry": "mirror.example"}, "mirror.example/bowline:0.1.0", id="a mirror"),
        pytest.param({"global.imageRegistry": "mirror.example"}, "mirror.example/bowline:0.1.0",
            id="a parent's mirror"),
        pytest.param({"image.repository": "derived"}, "ghcr.example/team/derived:0.1.0", id="another repository"),
        pytest.param({"image.tag": "plugins"}, "ghcr.example/team/bowline:plugins", id="another tag"),
        pytest.param({"image.digest": OTHER}, f"ghcr.example/team/bowline@{OTHER}", id="another digest"),
        pytest.param({"image.registry": "mirror.example", "image.digest": OTHER}, f"mirror.example/bowline@{OTHER}",
            id="a mirror's digest"),
    ],
)  # fmt: skip
def test_the_released_digest_is_that_of_the_untouched_image(
    helm_command: Helm, archive: Path, values: dict[str, Any], image: str
) -> None:
    assert images(helm_command, archive, values) == {image}


def test_the_values_of_the_install_page_name_the_image_that_it_builds(helm_command: Helm, archive: Path) -> None:
    (page_values,) = [yaml.safe_load(block.text) for block in blocks(INSTALL) if block.info == "yaml"]
    pushed = re.findall(r"(?m)^ *docker push (\S+)$", INSTALL.read_text(encoding="utf-8"))
    assert list(images(helm_command, archive, page_values)) == pushed
    assert list(images(helm_command, CHART, page_values)) == pushed


def test_readme_and_presets_work_from_the_package(helm_command: Helm, archive: Path, tmp_path: Path) -> None:
    readme = helm_command.run(["show", "readme", str(archive)])
    assert "helm install bowline oci://ghcr.example/team/charts/bowline --version 0.1.0 " in readme
    assert "image.registry=REGISTRY" not in readme
    assert "helm pull oci://ghcr.example/team/charts/bowline --version 0.1.0 --untar" in readme
    assert "charts/bowline/presets" not in readme
    assert "](../" not in readme
    linked = re.findall(rf"\]\({re.escape(SOURCE)}/blob/v0\.1\.0/(docs/[^)#]+)", readme)
    assert linked
    assert all((ROOT / page).is_file() for page in linked)
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    assert {path.name for path in (tmp_path / "bowline").iterdir()} - {".helmignore"} == {
        *("Chart.yaml", "README.md", "values.yaml", "values.schema.json"),
        *("files", "presets", "templates"),
    }
    presets = sorted((tmp_path / "bowline" / "presets").glob("*.yaml"))
    assert len(presets) == len(list((CHART / "presets").glob("*.yaml")))
    for preset in presets:
        release = ChartRelease("bowline", tmp_path / "bowline", "bowline-system", values_files=[preset])
        assert helm_command.template(release)
    # Of a package that is published nowhere.
    local = tmp_path / "bowline-0.1.0.tgz"
    packaging.package(ROOT, local, 1, packaging.Publication("0.1.0"))
    assert "helm install bowline bowline-0.1.0.tgz " in helm_command.run(["show", "readme", str(local)])


def test_the_packaged_chart_is_the_chart(helm_command: Helm, tmp_path: Path) -> None:
    archives = [tmp_path / name for name in ("one.tgz", "two.tgz")]
    for archive in archives:
        packaging.package(ROOT, archive, 1, packaging.Publication("0.1.0"))
    assert archives[0].read_bytes() == archives[1].read_bytes()
    values = {"image.registry": "r.example"}
    manifests = [
        helm_command.template(ChartRelease("bowline", path, "a", set_values=values)) for path in (CHART, archives[0])
    ]
    assert manifests[0] == manifests[1]
    with tarfile.open(archives[0]) as tar:
        assert {entry.mtime for entry in tar} == {1}


def test_the_sbom_lists_the_lock_file_and_the_base_image() -> None:
    document = sbom.as_spdx("0.1.0", 0, LOCK, base="docker.io/library/python:3.13-slim@" + DIGEST, image=DIGEST)
    names = {package["name"]: package["versionInfo"] for package in document["packages"]}
    locked = dict(re.findall(r"^(\S+)==(\S+)", LOCK, re.MULTILINE))
    assert len(locked) > 20
    assert names == {**locked, "bowline-binder": "0.1.0", "docker.io/library/python:3.13-slim": DIGEST}
    ids = [package["SPDXID"] for package in document["packages"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", identifier) for identifier in ids)
    related = {entry["relatedSpdxElement"] for entry in document["relationships"]}
    assert related == set(ids)
    assert document["creationInfo"]["created"] == "1970-01-01T00:00:00Z"
    json.dumps(document)


def test_the_constraints_of_the_image_are_the_locked_versions() -> None:
    program = re.search(r"sed -n '(.*)' /runtime.txt", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert program
    result = subprocess.run(["sed", "-n", program[1]], input=LOCK, capture_output=True, text=True, check=True)
    names = re.findall(r"^[a-z].*?==\S+", LOCK, re.MULTILINE)
    assert result.stdout.splitlines() == names
    assert len(names) > 5
