"""The webhook's view of the cluster, and how the rules use it."""

from collections.abc import Iterable
from typing import Any, cast

import orjson
import pytest

from shared.api.field_error import FieldError
from shared.api.meta import Object, ObjectKey
from shared.framework.admission import AdmissionChain
from shared.framework.config import Settings
from shared.framework.mutable import MutablePod
from shared.framework.plugin import AdmissionInfo, Inventory, Plugin, PluginConfig
from shared.kube.client import KubeClient
from shared.kube.reflector import EventType
from shared.runtime.clock import SystemClock
from tests.unit.webhook.chains import built_in
from tests.unit.webhook.reviews import encoded, pod, review
from webhook.cluster_info import (
    EnabledSources,
    PodsWithBindRequest,
    enabled_sources,
    inventory_of,
    transform_node,
    transform_request,
)
from webhook.hooks import Hook
from webhook.review import NO_FACTS, ClusterInfo, decode_review, encode_answer, review_object

COUNT, MEMORY = "nvidia.com/gpu.count", "nvidia.com/gpu.memory"


def node(**labels: str) -> dict[str, Any]:
    metadata = {"name": "n", "uid": "u", "resourceVersion": "1", "annotations": {"a": "b"}}
    known = {"count": COUNT, "memory": MEMORY}
    return {"metadata": metadata | {"labels": {known.get(key, key): value for key, value in labels.items()}}}


@pytest.mark.parametrize(
    ("nodes", "most", "labelled"),
    [
        pytest.param([], 0, 0, id="no nodes"),
        pytest.param([{"metadata": {}}, node(role="web")], 0, 0, id="nodes without GPUs"),
        pytest.param([node(count="8", memory="81920"), node(count="4")], 8, 1, id="the largest counts"),
        pytest.param([node(count="10"), node(count="9")], 10, 0, id="as numbers, not as words"),
        pytest.param([node(count="eight"), node(count=""), node(count="-1")], 0, 0, id="values that are not numbers"),
        pytest.param([node(count="9" * 30)], 0, 0, id="an impossible number"),
        pytest.param([node(memory="")], 0, 0, id="an empty label means nothing"),
    ],
)
def test_the_inventory_of_nodes(nodes: list[dict[str, Any]], most: int, labelled: int) -> None:
    assert inventory_of(nodes) == Inventory(most, labelled)


def test_only_a_nodes_identity_and_two_labels_are_cached() -> None:
    labels = {COUNT: "8", MEMORY: "1"}
    kept = {"name": "n", "uid": "u", "resourceVersion": "1"}
    assert transform_node(node(count="8", memory="1", role="web")) == {"metadata": kept | {"labels": labels}}
    assert transform_node({"metadata": dict(kept)}) == {"metadata": kept | {"labels": {}}}


class Validates(Plugin):
    """Validates bindings and ephemeral containers with the cluster information."""

    name = "validates"

    def validate_binding(self, pod: ObjectKey, info: AdmissionInfo) -> Iterable[FieldError]:
        if pod in info.pods_with_bindrequest:
            yield FieldError("validates/binding", "", None, f"{info.user} may not bind {pod}")

    def mutate_ephemeral_containers(self, pod: MutablePod, old: Object, info: AdmissionInfo) -> None:
        pod.set("yes", "metadata", "labels", "marked")

    def validate_ephemeral_containers(self, pod: Object, old: Object, info: AdmissionInfo) -> Iterable[FieldError]:
        yield FieldError(
            "validates/final" if info.is_validating_webhook else "validates/first",
            "",
            None,
            "is odd",
            is_warning=True,
        )


@pytest.mark.parametrize(
    ("inventory", "plugins", "wanted"),
    [
        pytest.param(False, [], EnabledSources(False, False), id="no plugin needs any"),
        pytest.param(True, [], EnabledSources(True, False), id="the options enable the inventory"),
        pytest.param(
            False, [Validates], EnabledSources(False, True), id="a plugin that validates bindings needs the requests"
        ),
    ],
)
def test_only_requested_facts_are_watched(inventory: bool, plugins: list[Any], wanted: EnabledSources) -> None:
    found = enabled_sources(inventory, [plugin(PluginConfig(), Settings()) for plugin in plugins])
    assert found == wanted
    assert bool(found) is (found != EnabledSources(False, False))


# --- requests ---


def request(name: str, pod_name: Any = "p", phase: str = "") -> dict[str, Any]:
    metadata = {"namespace": "team", "name": name, "uid": name, "resourceVersion": "1", "labels": {"a": "b"}}
    return {"metadata": metadata, "spec": {"podName": pod_name, "selectedNode": "n"}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        pytest.param(request("a"), True, id="one without a phase"),
        pytest.param(request("a", phase="Failed"), True, id="one that has failed: its pod is not bound"),
        pytest.param(request("a", phase="Succeeded"), False, id="one that has succeeded"),
        pytest.param(request("a", 7), False, id="one that names no pod"),
        pytest.param({**request("a"), "spec": None}, False, id="one without a spec"),
    ],
)
def test_which_requests_are_cached(raw: dict[str, Any], kept: bool) -> None:
    found = transform_request(raw)
    assert (found is not None) is kept
    if found is not None:
        assert found["spec"] == {"podName": "p"}
        assert sorted(found["metadata"]) == ["name", "namespace", "resourceVersion", "uid"]


class NoClient:
    """A client that is never called: only for the reflector's constructor."""

    metrics = None
    clock = SystemClock()


def test_a_pod_is_known_while_one_of_its_requests_exists() -> None:
    requested = PodsWithBindRequest(cast(KubeClient, NoClient()))
    key = ObjectKey("team", "p")
    seen = [transform_request(request(name)) for name in ("a", "b")]

    def happens(name: str, old: Object | None, new: Object | None) -> bool:
        # As the reflector calls it.
        on_event = requested.reflector.on_event
        assert on_event is not None
        on_event(EventType.MODIFIED, ObjectKey("team", name), old, new)
        return key in requested.current()

    assert not happens("a", None, seen[0]), "unknown before the first list"
    requested.reflector.last_error = None
    assert happens("b", None, seen[1])
    assert happens("a", seen[0], None)
    assert happens("b", seen[1], seen[1])
    assert not happens("b", seen[1], None)


# --- through the review ---


def answered(hook: Hook, document: Any, chain: AdmissionChain, facts: ClusterInfo = NO_FACTS) -> dict[str, Any]:
    decoded = decode_review(encoded(document))
    response: dict[str, Any] = orjson.loads(encode_answer(decoded, review_object(hook, decoded, chain, facts)))[
        "response"
    ]
    return response


def validating_chain() -> AdmissionChain:
    return AdmissionChain([Validates(PluginConfig(), Settings())], Settings())


BINDING = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
KNOWN = ClusterInfo(requested={ObjectKey("team", "p")})


@pytest.mark.parametrize(
    ("document", "facts", "allowed"),
    [
        pytest.param(review(BINDING, kind="Binding", subResource="binding"), KNOWN, False, id="a pod that is known"),
        pytest.param(review(BINDING, kind="Binding", subResource="binding"), NO_FACTS, True, id="a pod that is not"),
        pytest.param(review(BINDING, kind="Binding", name=""), KNOWN, False, id="named only in the object"),
        pytest.param(review({}, kind="Binding", name=""), KNOWN, True, id="named nowhere"),
        pytest.param(review({"metadata": {"name": 7}}, kind="Binding", name=""), KNOWN, True, id="named by a number"),
    ],
)
def test_a_binding_is_validated_with_the_cluster_information(
    document: Any, facts: ClusterInfo, allowed: bool
) -> None:
    response = answered(Hook.VALIDATE_BINDINGS, document, validating_chain(), facts)
    assert response["allowed"] is allowed
    if not allowed:
        assert response["status"]["message"] == "alice may not bind team/p"


@pytest.mark.parametrize(
    ("hook", "subresource", "rule"),
    [
        pytest.param(Hook.MUTATE_EPHEMERAL_CONTAINERS, "ephemeralcontainers", "validates/first", id="mutating"),
        pytest.param(Hook.VALIDATE_EPHEMERAL_CONTAINERS, "ephemeralcontainers", "validates/final", id="validating"),
        pytest.param(Hook.MUTATE_EPHEMERAL_CONTAINERS, "status", None, id="another subresource"),
        pytest.param(Hook.MUTATE_EPHEMERAL_CONTAINERS, "", "review/kind", id="the pod itself"),
        pytest.param(Hook.VALIDATE_PODS, "ephemeralcontainers", None, id="at the hook of pods"),
    ],
)
def test_ephemeral_containers_have_hooks_of_their_own(hook: Hook, subresource: str, rule: str | None) -> None:
    response = answered(hook, review(pod(), pod(), subResource=subresource), validating_chain())
    assert response["allowed"]
    assert (response.get("auditAnnotations") or {}).get("rules") == rule
    assert ("patch" in response) is (rule == "validates/first")


class Fails(Plugin):
    """Has a bug at each of its points, the first one within a change."""

    name = "fails"

    def mutate_ephemeral_containers(self, pod: MutablePod, old: Object, info: AdmissionInfo) -> None:
        pod.set("half", "metadata", "labels", "done")
        raise RuntimeError

    def validate_binding(self, pod: ObjectKey, info: AdmissionInfo) -> Iterable[FieldError]:
        raise RuntimeError


def test_a_plugins_bug_leaves_no_change_and_denies() -> None:
    errors: list[tuple[str, str]] = []
    settings = Settings()
    fails = Fails(PluginConfig(), settings)
    chain = AdmissionChain([fails], settings, on_error=lambda plugin, point, _: errors.append((plugin, point)))
    debugged = review(pod(), pod(), subResource="ephemeralcontainers")
    response = answered(Hook.MUTATE_EPHEMERAL_CONTAINERS, debugged, chain)
    assert response["allowed"]
    assert "patch" not in response
    assert not answered(Hook.VALIDATE_BINDINGS, review(BINDING, kind="Binding"), chain)["allowed"]
    assert errors == [("fails", "mutate_ephemeral_containers"), ("fails", "validate_binding")]


class Reads(Plugin):
    """Reads fields of the old pod that every stored pod has."""

    name = "reads"

    def validate_ephemeral_containers(self, pod: Object, old: Object, info: AdmissionInfo) -> Iterable[FieldError]:
        known = (old["spec"].get("ephemeralContainers") or [{}])[0].get("name", "none")
        yield FieldError("reads/known", known, None, "is known", is_warning=True)


@pytest.mark.parametrize(
    ("old", "known"),
    [
        pytest.param({"metadata": {}, "spec": {"ephemeralContainers": [{"name": "one"}]}}, "one", id="a stored pod"),
        pytest.param({"metadata": {}, "spec": [1]}, "none", id="a spec that is a list"),
        pytest.param(
            {"metadata": {}, "spec": {"ephemeralContainers": ["one"]}}, "none", id="containers that are strings"
        ),
        pytest.param({}, "none", id="nothing at all"),
    ],
)
def test_plugins_never_get_a_malformed_old_pod(old: dict[str, Any], known: str) -> None:
    bugs: list[Exception] = []
    chain = AdmissionChain(
        [Reads(PluginConfig(), Settings())], Settings(), on_error=lambda *error: bugs.append(error[2])
    )
    debugged = review(pod(), old, subResource="ephemeralcontainers")
    (warning,) = answered(Hook.VALIDATE_EPHEMERAL_CONTAINERS, debugged, chain)["warnings"]
    assert known in warning
    assert bugs == []


def test_a_request_that_no_node_can_serve_gets_a_warning() -> None:
    limits = {"limits": {"nvidia.com/gpu": "9"}}
    asked = pod(containers=[{"name": "main", "image": "x", "resources": limits}])
    document = review(asked)
    known = answered(Hook.VALIDATE_PODS, document, built_in(), ClusterInfo(Inventory(8, 0)))
    assert known["allowed"]
    assert known["auditAnnotations"]["rules"] == "gpu_request/whole-inventory"
    assert "warnings" not in answered(Hook.VALIDATE_PODS, document, built_in())
