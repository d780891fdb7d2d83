"""Archives, SBOM and commands of a release (decision 187). No image is built: it needs a builder and a base image."""

import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bowline.localcluster.chart import ChartRelease, documents
from bowline.localcluster.helm import HelmCli
from tests.chart.rendering import CHART
from tools.release import chart as packaging
from tools.release import sbom
from tools.release.__main__ import sign
from tools.release.image import Build, BuildError, commands

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


def test_the_packaged_chart_names_its_sources_and_its_image(helm_command: HelmCli, tmp_path: Path) -> None:
    archive, source = tmp_path / "bowline.tgz", "https://git.example/team/bowline"
    packaging.package(ROOT, archive, 1, "ghcr.example/team", DIGEST, source)
    published = yaml.safe_load(helm_command.run(["show", "chart", str(archive)]))
    assert (published["home"], published["sources"], published["maintainers"][0]["url"]) == (source, [source], source)
    (image,) = yaml.safe_load(published["annotations"]["artifacthub.io/images"])
    assert image == {"name": "bowline", "image": f"ghcr.example/team/bowline@{DIGEST}"}
    unpublished = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert published["annotations"].items() >= unpublished["annotations"].items()


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
    assert names == {**locked, "bowline-binder": "0.1.0", "docker.io/library/python:3.13-slim": DIGEST}
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


@pytest.fixture
def keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A keyring with the key of a release, without a passphrase."""
    if shutil.which("gpg") is None:
        pytest.skip("needs gpg")
    # The path of the agent's socket must be short.
    with tempfile.TemporaryDirectory(prefix="gpg-", dir="/tmp") as home:
        monkeypatch.setenv("GNUPGHOME", home)
        create = ["gpg", "--batch", "--passphrase", "", "--quick-generate-key", "release@example.com", "ed25519"]
        subprocess.run(create, check=True, capture_output=True)
        yield tmp_path
        subprocess.run(["gpgconf", "--kill", "all"], check=False)


def test_the_checksums_are_signed_by_the_key(keyring: Path) -> None:
    sums = keyring / "SHA256SUMS"
    sums.write_text("0  bowline-0.1.0.tgz\n")
    verify = ["gpg", "--verify", f"{sums}.asc", str(sums)]
    sign(sums, "release@example.com")
    assert subprocess.run(verify, check=False, capture_output=True).returncode == 0
    sums.write_text("1  bowline-0.1.0.tgz\n")
    assert subprocess.run(verify, check=False, capture_output=True).returncode == 1


def test_a_key_that_gpg_does_not_have_is_named(keyring: Path) -> None:
    (keyring / "SHA256SUMS").write_text("")
    with pytest.raises(BuildError, match=r"KEY=nobody@example\.com: .*No secret key"):
        sign(keyring / "SHA256SUMS", "nobody@example.com")
