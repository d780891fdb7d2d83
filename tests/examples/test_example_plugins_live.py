"""The example plugins on a cluster, with every policy of the chart and what `bowline plugin access` prints."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import CommandError, LocalApiError
from bowline.localcluster.pair import Pair
from bowline.testing.builders import pod
from bowline_cli.main import main
from tests.live import Live
from tests.pairs import installed_pair, own_namespace

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "plugins" / "bowline_example_plugins"
CENTRE, RACK, LICENCE = "example.com/cost-centre", "example.com/rack", "example.com/licence"
NETWORK, ADDRESS = "example.com/network", "example.com/address"
# A killed leader is followed soon.
LEASE = {"config.leaderElection": {"leaseDuration": "15s", "renewDeadline": "10s"}}


@dataclass(slots=True)
class LicenceServer:
    """A licence server: its answer to PUT by product, and the calls that it has received."""

    answers: dict[str, int] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self._answer(server.answers.get(self.path.rpartition("=")[2], 200))

            def do_DELETE(self) -> None:
                self._answer(204)

            def _answer(self, code: int) -> None:
                server.calls.append((self.command, self.path.partition("?")[0].rpartition("/")[2]))
                self.send_response(code)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        return Handler


@pytest.fixture(scope="module")
def licences() -> Iterator[tuple[LicenceServer, str]]:
    licences = LicenceServer()
    with ThreadingHTTPServer(("127.0.0.1", 0), licences.handler()) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield licences, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def running(
    example_cluster: Cluster, licences: tuple[LicenceServer, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, Pair]]:
    plugins = [
        {"name": "example_licence", "args": {"server": licences[1]}},
        {"name": "example_network"},
        {"name": "example_policy", "args": {"registries": ["registry.example/"]}},
        {"name": "example_late_check"},
    ]
    config = tmp_path_factory.mktemp("config") / "config.yaml"
    head = {"apiVersion": "config.bowline.dev/v1alpha1", "kind": "BowlineConfiguration"}
    config.write_text(yaml.safe_dump({**head, "plugins": plugins}))
    capture = pytest.MonkeyPatch()
    output_parts: list[str] = []
    with capture.context() as patch:
        patch.setattr("sys.stdout.write", output_parts.append)
        assert main(["plugin", "access", "--config", str(config)]) == 0
    access = yaml.safe_load("".join(output_parts))
    values = {"config.plugins": plugins, "config.binding.inFlightTimeout": "2s", **LEASE, **access}
    pair = installed_pair(example_cluster, values)
    example_cluster.kubectl("label", "node", "gpu-node-0", f"{RACK}=r1")
    example_cluster.kubectl("cordon", "gpu-node-1")
    yield example_cluster, pair
    pair.stop()
    example_cluster.kubectl("uncordon", "gpu-node-1")


@pytest.fixture
def live(running: tuple[Cluster, Pair]) -> Iterator[Live]:
    with own_namespace(*running) as live:
        yield live


def create(live: Live, name: str = "pod", **annotations: str) -> str:
    body = pod(name)
    body["metadata"] |= {"labels": {CENTRE: "42"}, "annotations": annotations}
    live.create(body)
    return str(live.pod(name)["metadata"]["uid"])


def configmaps(live: Live) -> list[Any]:
    config_maps = live.cluster.api.get(f"/api/v1/namespaces/{live.namespace}/configmaps")["items"]
    return [item for item in config_maps if item["metadata"]["name"] != "kube-root-ca.crt"]


def test_the_network_waits_until_the_address_is_there_and_passes_it_on(live: Live) -> None:
    uid = create(live, **{NETWORK: "blue"})
    live.request_bind()
    (configmap,) = live.until("the ConfigMap exists", lambda: configmaps(live) or None)
    assert configmap["metadata"]["name"] == f"network-{uid}"
    waits = "network blue has assigned no address yet"
    live.until("the request waits", lambda: waits in (live.request().get("status") or {}).get("reason", "") or None)
    patch = json.dumps({"data": {"address": "10.0.0.7"}})
    live.kubectl("patch", "configmap", f"network-{uid}", "--type=merge", f"--patch={patch}")
    live.phase("pod", "Succeeded")
    assert live.pod()["metadata"]["annotations"][ADDRESS] == "10.0.0.7"


def test_the_policy_denies_new_pods_and_changes_of_pods(live: Live) -> None:
    with pytest.raises(LocalApiError, match="name the cost centre"):
        live.create(pod("none"))
    create(live)
    for change in (f"{CENTRE}=43", f"{CENTRE}-"):
        with pytest.raises(CommandError, match="must stay '42'; create another pod"):
            live.kubectl("label", "--overwrite", "pod", "pod", change)
    with pytest.raises(CommandError, match=r"must begin with one of registry\.example/"):
        live.kubectl("set", "image", "pod/pod", "main=elsewhere.example/app:1")
    # What no plugin reviews costs no call and is not denied.
    live.kubectl("label", "pod", "pod", "other=1")
    assert live.pod()["metadata"]["labels"] == {CENTRE: "42", "other": "1"}


def test_the_bind_of_its_own_labels_the_pod(live: Live) -> None:
    create(live)
    live.request_bind()
    assert live.phase("pod", "Succeeded")["spec"]["backoffLimit"] == 2
    assert live.pod()["metadata"]["labels"][RACK] == "r1"


def test_an_abandoned_bind_returns_the_licence_and_deletes_the_configmap(
    live: Live, licences: tuple[LicenceServer, str]
) -> None:
    uid = create(live, **{LICENCE: "solver"})
    live.request_bind(node="gpu-node-1")
    status = live.phase("pod", "Failed")["status"]
    assert status["reason"].startswith("example_late_check/NodeCordoned: ")
    assert status["suggestion"] == "RescheduleElsewhere"
    assert [method for method, seat in licences[0].calls if seat == uid] == ["PUT", "DELETE"]
    assert "finalizers" not in live.request()["metadata"]


def test_what_ends_while_no_reconciler_runs_is_returned_by_the_next(
    live: Live, licences: tuple[LicenceServer, str]
) -> None:
    uid = create(live, **{LICENCE: "solver", NETWORK: "blue"})
    live.request_bind()
    live.until("the ConfigMap exists", lambda: configmaps(live) or None)
    patch = json.dumps({"data": {"address": "10.0.0.7"}})
    live.kubectl("patch", "configmap", f"network-{uid}", "--type=merge", f"--patch={patch}")
    live.phase("pod", "Succeeded")
    (reconciler,) = live.pair.reconcilers
    reconciler.kill()
    live.kubectl("delete", "pod", "pod", "--grace-period=0", "--force")
    live.kubectl("delete", "bindrequest", "pod", "--wait=false")
    assert configmaps(live)
    assert ("DELETE", uid) not in licences[0].calls
    live.pair.launch_reconciler()
    live.until("the address is returned", lambda: not configmaps(live) or None)
    live.until("the licence is returned", lambda: ("DELETE", uid) in licences[0].calls or None)


def test_a_missing_licence_is_reported_with_the_plugins_own_reason(
    live: Live, licences: tuple[LicenceServer, str]
) -> None:
    licences[0].answers["unknown"] = 404
    create(live, **{LICENCE: "unknown"})
    live.request_bind()
    status = live.phase("pod", "Failed")["status"]
    assert status["reason"].startswith("example_licence/NoLicence: ")
    (condition,) = (condition for condition in status["conditions"] if condition["type"] == "Bound")
    assert condition["reason"] == "example_licence:NoLicence"
    assert "NoLicence" in live.event("pod", "BindingFailed")


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in sorted(EXAMPLES.glob("[a-z]*.py"))])
def test_each_example_has_at_most_sixty_lines_and_imports_only_the_public_interface(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert re.search(r"bowline\.(?!errors\b|resources\b)\w+ import|import bowline\.", text) is None
