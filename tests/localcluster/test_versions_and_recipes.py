"""Which versions belong together, and the official source of each binary."""

from urllib.parse import urlsplit

import pytest

from bowline.localcluster.assets.recipes import KAI_PEERS, KAI_TOOLS, Platform, Tool, recipe_for
from bowline.localcluster.assets.versions import DEFAULT_MINOR, KUBERNETES, MINOR_SETTING, release_for
from bowline.localcluster.errors import AssetsError

OFFICIAL_HOSTS = {"dl.k8s.io", "github.com", "api.github.com", "get.helm.sh"}
LINUX = Platform("linux", "amd64")


@pytest.mark.parametrize(
    ("argument", "environ", "minor"),
    [
        pytest.param(None, {}, DEFAULT_MINOR, id="the default"),
        pytest.param(None, {MINOR_SETTING: "1.34"}, "1.34", id="the setting"),
        pytest.param("1.33", {MINOR_SETTING: "1.34"}, "1.33", id="the argument has priority over the setting"),
        pytest.param("v1.35", {}, "1.35", id="a leading v is ignored"),
        pytest.param("1.35.9", {}, "1.35", id="a patch is read as its minor"),
        pytest.param(None, {MINOR_SETTING: ""}, DEFAULT_MINOR, id="an empty setting is none"),
    ],
)
def test_the_minor_is_from_argument_setting_or_default(
    argument: str | None, environ: dict[str, str], minor: str
) -> None:
    release = release_for(argument, environ)
    assert (release.minor, release.kubernetes) == (minor, KUBERNETES[minor])


@pytest.mark.parametrize("version", ["1.20", "latest", "2", "1.3"])
def test_an_unsupported_minor_is_rejected_with_the_supported_ones(version: str) -> None:
    with pytest.raises(AssetsError) as caught:
        release_for(version, {})
    assert version in str(caught.value)
    assert all(minor in str(caught.value) for minor in KUBERNETES)


@pytest.mark.parametrize("tool", [tool for tool in Tool if tool not in (*KAI_TOOLS, *KAI_PEERS)])
@pytest.mark.parametrize("platform", [LINUX, Platform("linux", "arm64"), Platform("darwin", "arm64")])
def test_downloads_name_official_hosts_and_always_a_checksum(tool: Tool, platform: Platform) -> None:
    download = recipe_for(tool, release_for(None, {}), platform).download
    if download is None:
        assert platform.system == "darwin", "on Linux everything is published"
        return
    for url in (download.url, download.checksum_url):
        assert urlsplit(url).scheme == "https"
        assert urlsplit(url).netloc in OFFICIAL_HOSTS


def test_nothing_is_downloaded_for_a_platform_without_binaries() -> None:
    release = release_for(None, {})
    assert [recipe_for(tool, release, Platform("freebsd", "riscv64")).download for tool in Tool] == [None] * len(Tool)


def test_golden_urls_of_the_default_release() -> None:
    release = release_for("1.36", {})
    urls = {tool: download.url for tool in Tool if (download := recipe_for(tool, release, LINUX).download)}
    assert urls[Tool.APISERVER] == "https://dl.k8s.io/release/v1.36.3/bin/linux/amd64/kube-apiserver"
    assert urls[Tool.ETCD] == (
        "https://github.com/etcd-io/etcd/releases/download/v3.6.8/etcd-v3.6.8-linux-amd64.tar.gz"
    )
    assert urls[Tool.KWOK] == "https://github.com/kubernetes-sigs/kwok/releases/download/v0.8.0/kwok-linux-amd64"
    assert urls[Tool.HELM] == "https://get.helm.sh/helm-v4.3.1-linux-amd64.tar.gz"
