"""A GitOps tool applies the rendered chart again and again: nothing changes, and what the webhook writes stays.

Such a tool applies on the server's side, with a field manager of its own. No such tool runs here: `kubectl` sends the
same requests. What a rendered text must not do is in `test_rendered_text_live.py`.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from bowline.api.meta import Object
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.ports import free_port
from bowline.localcluster.spec import ClusterSpec
from bowline.localcluster.workload import WorkloadOptions, start_workload
from tests.chart.presets import EVERYTHING, LOCAL
from tests.chart.rendering import NAMESPACE, Chart, merged

pytestmark = pytest.mark.long

APPLY = ("apply", "--server-side", "--force-conflicts", "--field-manager=argocd-controller", "--filename=-")
DIFF = ("diff", *APPLY[1:])
AUTO = {"check": "Auto", "uninstall": "Auto", "test": "Auto"}
CONFIGURATIONS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A control plane on which nothing is installed."""
    with Cluster.start(ClusterSpec(kwok=False, controllers=("clusterrole-aggregation-controller",))) as local_cluster:
        local_cluster.make_namespace(NAMESPACE)
        yield local_cluster


def manifest(chart: Chart, values: Mapping[str, Any]) -> list[str]:
    """Everything that `helm template` prints, in JSON, an object a line."""
    return [json.dumps(obj) for obj in chart.render(merged({"hooks": AUTO}, values)).objects]


def apply(cluster: Cluster, text: str) -> None:
    """Apply the manifest; afterwards only clients change its objects."""
    cluster.kubectl(*APPLY, input=text)
    if '"kind": "CustomResourceDefinition"' in text:
        cluster.wait_established("bindrequests.scheduling.run.ai")


def differences(cluster: Cluster, text: str) -> str:
    """What an apply would change, as text; kubectl ends with 1 if there is a difference."""
    result = cluster.kubectl(*DIFF, input=text, check=False)
    assert result.returncode == (1 if result.stdout else 0), result.stderr
    return result.stdout


def stored(cluster: Cluster, text: str) -> dict[tuple[str, str], Object]:
    """The objects of the manifest as the API server stores them."""
    read = json.loads(cluster.kubectl("get", "--output=json", "--filename=-", input=text).stdout)
    items = read["items"] if read["kind"] == "List" else [read]
    return {(item["kind"], item["metadata"]["name"]): item for item in items}


def bundles(objects: Mapping[tuple[str, str], Object]) -> list[str]:
    return [
        hook["clientConfig"].get("caBundle", "")
        for kind in CONFIGURATIONS
        for hook in objects[kind, "bowline-webhook"]["webhooks"]
    ]


def test_the_ca_of_a_running_webhook_survives_every_apply(chart: Chart, cluster: Cluster) -> None:
    address = f"127.0.0.1:{free_port()}"
    text = "\n".join(manifest(chart, merged(LOCAL, {"webhook": {"url": f"https://{address}"}})))
    apply(cluster, text)
    webhook = start_workload(cluster, NAMESPACE, "bowline-webhook", WorkloadOptions().with_listen(address))
    try:
        webhook.wait_ready()
        before = stored(cluster, text)
        assert all(bundles(before))
        assert before["Secret", "bowline-ca"]["data"]
        assert differences(cluster, text) == ""
        apply(cluster, text)
        assert stored(cluster, text) == before
        # A change of something else is applied, and only that.
        changed_text = text.replace("--log-level=info", "--log-level=debug")
        apply(cluster, changed_text)
        after = stored(cluster, changed_text)
        assert {key for key in after if after[key] != before[key]} == {
            ("Deployment", "bowline-webhook"),
            ("Deployment", "bowline-reconciler"),
        }
        assert webhook.get("/readyz")[0] == 200
    finally:
        webhook.stop()


@pytest.mark.parametrize("values", [EVERYTHING, {"podSecurityContext": None, "containerSecurityContext": None}])
def test_a_second_apply_changes_nothing(chart: Chart, cluster: Cluster, values: dict[str, Any]) -> None:
    text = "\n".join(manifest(chart, values))
    apply(cluster, text)
    first = stored(cluster, text)
    assert len(first) == len(text.splitlines())
    assert differences(cluster, text) == ""
    apply(cluster, text)
    assert stored(cluster, text) == first
