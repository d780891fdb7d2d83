"""Pods with ResourceClaims, from the request through the binding to the deletion, by the running pair.

kube-controller-manager creates claims from templates and frees those of ended pods; this file acts as the scheduler,
the driver and the user.
"""

from collections import Counter
from typing import Any

import pytest

from bowline.testing.builders import bind_request
from tests.audit import count_calls, writes_about
from tests.live import Live
from tests.plugins.claims import (
    NODE,
    claim,
    claim_decisions,
    claims,
    extended_decision,
    get_claim,
    is_free,
    is_protected,
    publish,
    reserved_by,
    template,
)

RECONCILER = "bowline-reconciler"
NAMED: dict[str, Any] = {"resourceClaims": [{"name": "dev", "resourceClaimName": "one"}]}
MADE: dict[str, Any] = {"resourceClaims": [{"name": "dev", "resourceClaimTemplateName": "tpl"}]}


@pytest.fixture
def dra(pair: Live) -> Live:
    """The pair with devices published."""
    publish(pair.cluster)
    return pair


def free(live: Live, name: str) -> Any:
    """Wait until the claim is not reserved."""

    def free_claim() -> Any:
        claim = get_claim(live, name)
        return claim if is_free(claim) else None

    return live.until(f"claim {name} is free", free_claim)


def test_a_pod_with_a_claim_costs_five_writes_one_read_and_one_event(dra: Live) -> None:
    dra.create(claim("one"))
    dra.create_pod(**NAMED)
    dra.request_bind(**claim_decisions("d0"))
    dra.phase("pod", "Succeeded")
    dra.event("pod", "Bound")
    writes = [
        ("patch", "resourceclaims"),
        ("update", "resourceclaims/status"),
        ("create", "pods/binding"),
        ("patch", "bindrequests"),
        ("patch", "bindrequests/status"),
        ("create", "events"),
    ]
    assert writes_about(dra, RECONCILER, writes) == writes
    # After another bind, late watch events of the first are processed: they caused no request.
    dra.create(claim("two"))
    dra.create_pod("other", resourceClaims=[{"name": "dev", "resourceClaimName": "two"}])
    dra.request_bind("other", **claim_decisions("d1"))
    dra.phase("other", "Succeeded")
    dra.event("other", "Bound")
    expectation = Counter([*writes, ("get", "resourceclaims")] * 2)
    assert count_calls(dra, RECONCILER, expectation) == expectation


def test_a_template_claim_is_awaited_reserved_and_deleted_with_its_pod(dra: Live) -> None:
    # The template is created last: until then kube-controller-manager cannot create the claim, nor the pod name it.
    dra.create_pod(**MADE)
    dra.request_bind(**claim_decisions("d0"))
    dra.create(template("tpl"))
    dra.phase("pod", "Succeeded")
    (stored_claim,) = claims(dra)
    assert reserved_by(stored_claim) == {dra.pod()["metadata"]["uid"]}
    dra.kubectl("delete", "pod", "pod", "--grace-period=0", "--force")
    dra.until("the claim is deleted with its pod", lambda: not claims(dra) or None)


def test_a_shared_claim_is_freed_after_its_last_user(dra: Live) -> None:
    dra.create(claim("one"))
    pods = [f"pod-{index}" for index in range(8)]
    uids = {dra.create_pod(pod, **NAMED) for pod in pods}
    dra.create(
        *[bind_request(pod, NODE, uid=dra.pod(pod)["metadata"]["uid"], **claim_decisions("d0")) for pod in pods]
    )
    for pod in pods:
        dra.phase(pod, "Succeeded")
    assert reserved_by(get_claim(dra, "one")) == uids
    dra.kubectl("delete", "pods", *pods[1:], "--grace-period=0", "--force")
    dra.until("the other pods have left the claim", lambda: len(reserved_by(get_claim(dra, "one"))) == 1 or None)
    assert get_claim(dra, "one")["status"]["allocation"]
    dra.kubectl("delete", "pod", pods[0], "--grace-period=0", "--force")
    free(dra, "one")


EXTENDED = "gpu.example.com/gpu"
LIMITED: dict[str, Any] = {
    "containers": [{"name": "main", "image": "registry.example/app:1", "resources": {"limits": {EXTENDED: "1"}}}]
}


def test_extended_resources_get_a_claim_that_is_deleted_with_the_pod(dra: Live) -> None:
    name = "p" * 60 + ".dotted"
    uid = dra.create_pod(name, **LIMITED)
    dra.request_bind(name, **extended_decision(EXTENDED))
    dra.phase(name, "Succeeded")
    (stored_claim,) = claims(dra)
    assert stored_claim["metadata"]["generateName"] == f"{name}-extended-resources-"
    assert stored_claim["metadata"]["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
    (owner,) = stored_claim["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": True}
    assert reserved_by(stored_claim) == {uid}
    assert is_protected(stored_claim)
    status = dra.pod(name)["status"]["extendedResourceClaimStatus"]
    assert status["resourceClaimName"] == stored_claim["metadata"]["name"]
    assert (
        status["requestMappings"]
        == extended_decision(EXTENDED)["extendedResourceClaimAllocation"]["containerMappings"]
    )
    dra.event(name, "Bound")
    writes = [
        ("create", "resourceclaims"),
        ("update", "resourceclaims/status"),
        ("patch", "pods/status"),
        ("create", "pods/binding"),
        ("patch", "bindrequests"),
        ("patch", "bindrequests/status"),
        ("create", "events"),
    ]
    assert writes_about(dra, RECONCILER, writes) == writes
    dra.kubectl("delete", "pod", name, "--grace-period=0", "--force")
    dra.until("the claim is deleted with its pod", lambda: not claims(dra) or None)
