"""The account that the plugins of an attempt run as: the reconciler's, as the chart renders it for them.

Its roles have the reconciler's own rights and those that the plugins' access declares; the chart's policies limit
what it writes. The other built-in plugins are disabled: their rights would cover what a plugin does not declare.
Nothing is rendered here but by the chart.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bowline.framework.interface.plugin import Plugin
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError, StartError
from bowline.localcluster.helm import ChartRelease, find_helm
from bowline.localcluster.pair import CHART
from bowline.plugins.catalog import BUILTINS, plugin_access

_NAMESPACE = "bowline-lab"
_POLICY = "ValidatingAdmissionPolicy"
# Of the rendered objects, what the account consists of, in the order of creation.
_KINDS = (
    "Namespace",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    _POLICY,
    f"{_POLICY}Binding",
)
# Present for any plugins; created last, so that all policies are in force when it is.
_LAST = "reconciler-bindings"
_POLL_S = 0.05
_LIMIT_S = 60.0


def account_of(cluster: Cluster, values: Mapping[str, object]) -> Path:
    """Return the kubeconfig of the account for ``chart_values`` of plugins; its policies are in force.

    Raises a LocalClusterError without Helm, or if the chart refuses the plugins' access.
    """
    name = f"lab-{hashlib.sha256(json.dumps(values).encode()).hexdigest()[:10]}"
    last = f"{name}-{_LAST}"
    if not _exists(cluster, f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/{last}"):
        objects = find_helm().template(ChartRelease(name, CHART, _NAMESPACE, set_values=values))
        cluster.make_namespace(_NAMESPACE)
        parts = [body for body in objects if body["kind"] in _KINDS]
        for body in sorted(parts, key=lambda body: (_KINDS.index(body["kind"]), body["metadata"]["name"] == last)):
            if body["kind"] == "Role":
                cluster.make_namespace(body["metadata"]["namespace"])
            cluster.create_missing(_collection_of(body), body)  # several releases have the reservation namespace's
    account = f"{name}-reconciler"
    _wait_in_force(cluster, f"system:serviceaccount:{_NAMESPACE}:{account}", last)
    return cluster.service_account_kubeconfig(_NAMESPACE, account)


def _collection_of(body: Mapping[str, Any]) -> str:
    """Return the path under which an object of the chart is created."""
    version, metadata = body["apiVersion"], body["metadata"]
    plural = f"{body['kind'].lower()}s".replace("ys", "ies")
    namespace = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    return f"/{'apis' if '/' in version else 'api'}/{version}{namespace}/{plural}"


def chart_values(plugins: Sequence[Plugin]) -> dict[str, object]:
    """Return the chart's values, by dotted name: only these plugins enabled, and their access granted."""
    args = {plugin.name: plugin.args.model_dump(mode="json", exclude_unset=True) for plugin in plugins}
    return {
        "config.plugins": [
            {"name": name, "enabled": name in args, "args": args.get(name, {})}
            for name in (builtin.plugin.name for builtin in BUILTINS)
        ],
        # By number: plugins of equal access share an account, and their policies are evaluated once for each write.
        "pluginAccess": [
            entry | {"plugin": f"plugin_{number}"} for number, entry in enumerate(plugin_access(plugins))
        ],
        # Policies on users' objects; those on the account stay.
        "policy.enabled": False,
        "policy.devices": False,
        "image.pullPolicy": "Never",
    }


def _wait_in_force(cluster: Cluster, user: str, policy: str) -> None:
    """Return when the last policy denies its probe, a Binding with a label that no plugin declares."""
    target = {"apiVersion": "v1", "kind": "Node", "name": "probe"}
    binding = {"metadata": {"name": "probe", "labels": {"bowline.dev/probe": ""}}, "target": target}
    client = cluster.api_as(user)
    deadline = time.monotonic() + _LIMIT_S
    answer = ""
    while time.monotonic() < deadline:
        try:
            client.post("/api/v1/namespaces/default/pods/probe/binding?dryRun=All", binding)
        except LocalApiError as error:
            answer = str(error)
        if policy in answer:
            client.close()
            return
        time.sleep(_POLL_S)
    raise StartError(f"policy {policy} is not in force after {_LIMIT_S:.0f} s: {answer}")


def _exists(cluster: Cluster, path: str) -> bool:
    try:
        cluster.api.get(path)
    except LocalApiError as error:
        if error.status != 404:
            raise
        return False
    return True
