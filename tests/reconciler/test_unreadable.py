"""An object that is not decoded stops nothing: others are bound, its own request ends Invalid, and it is named."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from bowline.api import names
from bowline.api.meta import ObjectKey
from bowline.framework.config import Settings
from bowline.framework.interface.plugin import Plugin
from bowline.framework.interface.waiting import BindTimeoutConfig
from bowline.kube.errors import NotFound, Unreadable
from bowline.kube.resources import BINDREQUESTS, EVENTS, NODES, PODS, RESOURCECLAIMS, Resource
from bowline.plugins.dynamic_resources.plugin import DynamicResources
from bowline.plugins.volume_binding import VolumeBinding
from bowline.testing.builders import bind_request, node, pod, resource_claim
from tests import hostile
from tests.reconciler.stage import Stage
from tests.waiting import until_awaited

LEVELS = hostile.MANAGED_FIELDS["levels"]
NAME = "hostile"


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of object, its body, and the part of a pod's spec that names it."""

    resource: Resource
    body: Callable[[str], dict[str, Any]]
    pod_spec: Mapping[str, Any] = field(default_factory=dict)

    def encoded(self, namespace: str) -> bytes:
        body = self.body(NAME)
        return hostile.with_managed_fields({**body, "metadata": {**body["metadata"], "namespace": namespace}}, LEVELS)


NAMES_CLAIM = {"resourceClaims": [{"name": "dev", "resourceClaimName": NAME}]}
CASES = {
    "pod": Case(PODS, pod),
    "node": Case(NODES, node),
    "claim": Case(RESOURCECLAIMS, resource_claim, pod_spec=NAMES_CLAIM),
    "request": Case(BINDREQUESTS, bind_request),
}


def plugins() -> list[Plugin]:
    return [kind(BindTimeoutConfig(), Settings()) for kind in (DynamicResources, VolumeBinding)]


@pytest.fixture
async def stage(stage: Stage) -> AsyncIterator[Stage]:
    """The stage; the hostile objects are gone before it is cleared."""
    yield stage
    for resource in (BINDREQUESTS, NODES):
        with suppress(NotFound, Unreadable):
            body: dict[str, Any] = {"metadata": {"finalizers": None, "managedFields": [{}]}}
            await stage.client.patch(resource.as_metadata(), stage.namespace, NAME, body)
            await stage.client.delete(resource, stage.namespace, NAME)


async def make_hostile(stage: Stage, case: Case) -> None:
    """Store the object, and a pod with a request that needs it."""
    if case.resource is not PODS:
        await stage.create_pod(NAME, **case.pod_spec)
    await hostile.store(stage.client, case.resource, stage.namespace, case.encoded(stage.namespace))
    if case.resource is not BINDREQUESTS:
        uid = (await stage.client.get(PODS.as_metadata(), stage.namespace, NAME))["metadata"]["uid"]
        on_node = NAME if case.resource is NODES else "gpu-node-0"
        body = bind_request(NAME, on_node, stage.namespace, uid)
        await stage.client.create(BINDREQUESTS, stage.namespace, body)


async def bind_another(stage: Stage, name: str) -> None:
    await stage.create_pod(name)
    await stage.request_bind(name)
    await stage.phase(name, "Succeeded")


async def failed(stage: Stage) -> dict[str, Any]:
    """The status of the hostile request, once it has ended."""
    key = ObjectKey(stage.namespace, NAME)

    async def status() -> dict[str, Any]:
        return dict((await hostile.read(stage.client, BINDREQUESTS, key)).get("status") or {})

    return await until_awaited(status, lambda status: status.get("phase") == "Failed")


async def is_named(stage: Stage, case: Case) -> bool:
    namespace = "default" if case.resource is NODES else stage.namespace
    events = await stage.client.list_all(EVENTS, namespace)
    return (case.resource.kind, NAME, names.EVENT_NOT_READ) in {
        (event["regarding"]["kind"], event["regarding"].get("name"), event["reason"]) for event in events
    }


@pytest.mark.parametrize(("name", "moment"), [*((name, "watch") for name in CASES), ("node", "start")])
async def test_others_are_bound_and_its_request_ends_invalid(stage: Stage, name: str, moment: str) -> None:
    case = CASES[name]
    if moment == "start":
        await make_hostile(stage, case)
    async with stage.working(*plugins()) as working:
        if moment == "watch":
            await bind_another(stage, "first")
            await make_hostile(stage, case)
        await bind_another(stage, "beside")
        status = await failed(stage)
        assert status["reason"].startswith("Invalid"), status
        await until_awaited(lambda: is_named(stage, case), bool)
        with suppress(Unreadable):
            await stage.client.delete(case.resource, stage.namespace, NAME)
        await bind_another(stage, "after")
        errors = {name: watch.last_error for name, watch in working.parts.reflectors.items()}
        assert not any(errors.values()), errors
