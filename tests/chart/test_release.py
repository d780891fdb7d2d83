"""Archives, SBOM and commands of a release (decision 187). No image is built: it needs a builder and a base image."""

import json
import re
import tarfile
from pathlib import Path

import pytest
import yaml

from bowline.localcluster.chart import ChartRelease, documents
from bowline.localcluster.helm import HelmCli
from charts.release import chart as packaging
from charts.release import sbom
from charts.release.image import Build, BuildError, commands
from tests.chart.rendering import CHART

ROOT = CHART.parents[1]
DIGEST = "sha256:" + "a" * 64
LOCK = (ROOT / "requirements" / "image.txt").read_text(encoding="utf-8")


def test_the_packaged_chart_installs_the_published_image_without_values(
    helm_command: HelmCli, tmp_path: Path
) -> None:
    archive = tmp_path / "bowline.tgz"
    packaging.package(ROOT, archive, 1, "ghcr.example/team", DIGEST)
    text = helm_command.run(["template", "bowline", str(archive)])
    pods = [obj["spec"]["template"]["spec"] for obj in documents(text) if obj["kind"] == "Deployment"]
    assert {pod["containers"][0]["image"] for pod in pods} == {f"ghcr.example/team/bowline@{DIGEST}"}


def test_the_packaged_chart_is_the_chart(helm_command: HelmCli, tmp_path: Path) -> None:
    archives = [tmp_path / name for name in ("one.tgz", "two.tgz")]
    for archive in archives:
        packaging.package(ROOT, archive, 1, "", "")
    assert archives[0].read_bytes() == archives[1].read_bytes()
    values = {"image.registry": "r.example"}
    rendered = [
        helm_command.template(ChartRelease("bowline", path, "a", set_values=values)) for path in (CHART, archives[0])
    ]
    assert rendered[0] == rendered[1]
    with tarfile.open(archives[0]) as tar:
        assert {entry.mtime for entry in tar} == {1}


def test_values_without_the_default_are_an_error() -> None:
    with pytest.raises(BuildError, match="has no line"):
        packaging.with_image("image: {}\n", "r.example", DIGEST)


def test_the_sbom_lists_the_lock_file_and_the_base_image() -> None:
    document = sbom.as_spdx("0.1.0", 0, LOCK, base="docker.io/library/python:3.13-slim@" + DIGEST, image=DIGEST)
    names = {package["name"]: package["versionInfo"] for package in document["packages"]}
    locked = dict(re.findall(r"^(\S+)==(\S+)", LOCK, re.MULTILINE))
    assert len(locked) > 20
    assert names == {**locked, "bowline": "0.1.0", "docker.io/library/python:3.13-slim": DIGEST}
    ids = [package["SPDXID"] for package in document["packages"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", identifier) for identifier in ids)
    related = {entry["relatedSpdxElement"] for entry in document["relationships"]}
    assert related == set(ids)
    assert document["creationInfo"]["created"] == "1970-01-01T00:00:00Z"
    json.dumps(document)


@pytest.mark.parametrize("builder", ["docker", "podman", "buildah"])
def test_an_image_for_two_platforms_is_one_layout(builder: str, tmp_path: Path) -> None:
    build = Build(tmp_path, {"SOURCE_DATE_EPOCH": "7", "VERSION": "0.1.0"}, ("linux/amd64", "linux/arm64"))
    words = [word for command in commands(builder, build, tmp_path / "image") for word in command]
    assert "--platform=linux/amd64,linux/arm64" in words
    assert "--build-arg=VERSION=0.1.0" in words
    assert str(tmp_path / "image") in " ".join(words)
    assert "--timestamp=7" in words or "rewrite-timestamp=true" in " ".join(words)


def test_workflows_are_yaml_and_name_existing_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for file in (ROOT / ".github" / "workflows").glob("*.yaml"):
        workflow = yaml.safe_load(file.read_text(encoding="utf-8"))
        steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
        used = set(
            re.findall(r"^\s*(?:- run: )?make ([a-z-]+)", "\n".join(s.get("run", "") for s in steps), re.MULTILINE)
        )
        assert used <= targets, file.name
        pinned = [step["uses"] for step in steps if "uses" in step]
        assert all(re.search(r"@v\d+", name) for name in pinned), file.name
