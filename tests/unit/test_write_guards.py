"""What each write requires of the stored object: one that is executed late must change no other object or version."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from bowline.api import names
from bowline.api.bindrequest import BindRequest, decode_bind_request
from bowline.api.meta import Object, ObjectKey, ObjectUID, pod_owner
from bowline.framework.config import GpuSharingSettings, Settings
from bowline.kube.calls import Answer, Request
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ApiServer, load_access
from bowline.kube.errors import NotFound, NotStoredError
from bowline.kube.resources import PERSISTENTVOLUMES
from bowline.plugins.checks.config import ChecksConfig
from bowline.plugins.checks.plugin import Checks
from bowline.plugins.checks.rules import bind_check
from bowline.plugins.dynamic_resources.claim_client import ClaimClient
from bowline.plugins.dynamic_resources.reserver import ClaimReserver
from bowline.plugins.dynamic_resources.rules import ClaimStatus, Delete, Finalizers, Write
from bowline.plugins.dynamic_resources.taint_watch import TaintWatch
from bowline.plugins.gpu_sharing.agent.app import Agent, parse_options
from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from bowline.plugins.gpu_sharing.configmaps import _replace_own
from bowline.plugins.gpu_sharing.plugin import GpuSharing
from bowline.plugins.gpu_sharing.reservation import view_reservation
from bowline.plugins.gpu_sharing.reservation_client import ReservationClient
from bowline.plugins.gpu_sharing.tests.pods import claim as device_request
from bowline.plugins.volume_binding.binder import VolumeBinder
from bowline.plugins.volume_binding.storage import Storage
from bowline.testing.builders import bind_request, pod, resource_claim, stored
from bowline.testing.clock import START, SteppedClock
from bowline.testing.handles import handle_for
from bowline_reconciler.decide.actions import Nomination, PodBound
from bowline_reconciler.drive.pod_conditions import PodConditions
from bowline_reconciler.drive.writer import Writer
from bowline_reconciler.term.ttl import TTLController
from tests.unit.framework.test_runner import context

UID, VERSION = "its-uid", "7"
NOT_FOUND = b'{"apiVersion": "v1", "kind": "Status", "code": 404, "reason": "NotFound", "details": {"name": "pod"}}'
Call = Callable[[KubeClient], Awaitable[object]]

POD: Object = stored(pod(), UID, VERSION)
CLAIM = stored(resource_claim(namespace="default"), UID, VERSION) | {"status": {}}
RESERVATION = view_reservation(POD)
FAILURE, SUCCESS = PodBound("False", "BindingFailed", "why"), PodBound("True", "Bound", "")


class NoObjects:
    """Records the bodies of requests, and answers each with one reply: by default that the object does not exist."""

    answers = 0

    def __init__(self, code: int = 404, reply: bytes = NOT_FOUND) -> None:
        self.code, self.reply = code, reply
        self.bodies: list[dict[str, Any]] = []

    async def close(self) -> None:
        """Do nothing."""

    async def send(self, request: Request) -> Answer:
        self.bodies += [json.loads(request.body)] if request.body is not None else []
        return Answer(self.code, CIMultiDictProxy(CIMultiDict()), self.reply)

    def stream(self, path: str, *, accept: str, total_s: float, silence_s: float) -> AsyncGenerator[bytes, None]:
        raise NotImplementedError


def client_of(transport: NoObjects) -> KubeClient:
    access = load_access(ApiServer("http://none"))
    return KubeClient(access, ClientOptions(clock=SteppedClock(), transport=lambda *_: cast(Any, transport)))


def request(**metadata: Any) -> BindRequest:
    return decode_bind_request(stored(bind_request(), UID, VERSION, **metadata))


def writer(client: KubeClient) -> Writer:
    return Writer(client, lambda note: None, lambda after: None, PodConditions(client))


def written_claim(write: Write) -> Call:
    return lambda client: ClaimClient(client, timedelta())._write(CLAIM, write)


def reservations(client: KubeClient) -> ReservationClient:
    return ReservationClient(client, GpuSharingSettings(reservation_namespace="default"), GpuSharingConfig())


async def labelled_share(client: KubeClient) -> None:
    plugin = GpuSharing(GpuSharingConfig(), Settings())
    await plugin.setup(handle_for(plugin.name, client))
    received_gpu = {"count": 1, "portion": "0.5"}
    body = bind_request(receivedResourceType="Fraction", receivedGPU=received_gpu, selectedGPUGroups=["group"])
    await plugin._label(replace(context(), request=decode_bind_request(stored(body)), client=client), POD)


def condition(condition: PodBound | None, nomination: Nomination | None = None) -> Call:
    return lambda client: PodConditions(client).patch(POD, condition, nomination, START)


@pytest.mark.parametrize(
    ("write", "guards"),
    [
        pytest.param(lambda client: writer(client).patch_status(request(), {"phase": "Pending"}),
            {"resourceVersion"}, id="status"),
        pytest.param(lambda client: writer(client).add_finalizer(request(), ["a"]), {"resourceVersion"},
            id="finalizer"),
        pytest.param(lambda client: writer(client).drop_finalizer(request(finalizers=[names.FINALIZER])),
            {"resourceVersion"}, id="its removal"),
        pytest.param(lambda client: writer(client).set_owner(request(), ObjectUID("a")), {"resourceVersion"},
            id="owner of a request"),
        pytest.param(lambda client: TTLController(client, timedelta(), SteppedClock()).remove(request().raw), {"uid",
            "resourceVersion"}, id="delete of a finished request"),
        pytest.param(condition(FAILURE), {"uid", "resourceVersion"}, id="condition False"),
        pytest.param(condition(SUCCESS), {"uid"}, id="condition True: the pod is bound for ever"),
        pytest.param(condition(None, Nomination("node-0")), {"uid", "resourceVersion"}, id="nomination"),
        pytest.param(written_claim(Finalizers(())), {"resourceVersion"}, id="finalizers of a claim"),
        pytest.param(written_claim(ClaimStatus({})), {"uid", "resourceVersion"}, id="status of a claim"),
        pytest.param(written_claim(Delete()), {"uid", "resourceVersion"}, id="delete of a claim"),
        pytest.param(lambda client: reservations(client).remove(RESERVATION), {"uid", "resourceVersion"},
            id="delete of a reservation, which may be joined meanwhile"),
        pytest.param(lambda client: reservations(client).touch(RESERVATION), {"uid"}, id="joining a reservation"),
        pytest.param(labelled_share, {"uid", "resourceVersion"}, id="labels of a share's pod"),
    ],
)  # fmt: skip
async def test_a_write_requires_what_it_was_decided_on(write: Call, guards: set[str]) -> None:
    transport = NoObjects()
    async with client_of(transport) as client:
        with suppress(NotFound):
            await write(client)
    body = transport.bodies[0]
    metadata = body.get("preconditions") or body["metadata"]
    values = {"uid": UID, "resourceVersion": VERSION}
    assert {name: metadata.get(name) for name in guards} == {name: values[name] for name in guards}


CONFIGMAP = {"metadata": {"name": "map", "namespace": "default"}, "data": {names.VISIBLE_DEVICES: "1"}}
STORED = stored(pod(), UID, VERSION, ownerReferences=[pod_owner(POD["metadata"]["name"], ObjectUID(UID))])


AGENT = Agent(parse_options([], {"POD_NAMESPACE": "default", "POD_NAME": "pod"}), lambda: "GPU-1")


def reserver(client: KubeClient) -> ClaimReserver:
    return ClaimReserver(client, timedelta(), TaintWatch())


def volumes(client: KubeClient) -> VolumeBinder:
    return VolumeBinder(client, Storage(client, client.clock), None)


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda client: writer(client).set_owner(request(), ObjectUID("a")), id="owner of a request"),
        pytest.param(lambda client: ClaimClient(client, timedelta()).create(CLAIM), id="a claim"),
        pytest.param(lambda client: reserver(client)._patch_pod_status(POD, {"resourceClaimName": "a"}),
            id="claim of a pod"),
        pytest.param(lambda client: reservations(client).label(POD, {"a": "b"}), id="labels"),
        pytest.param(lambda client: reservations(client).create(device_request(), "new"), id="a reservation pod"),
        pytest.param(lambda client: _replace_own(client, CONFIGMAP, POD), id="a ConfigMap in place of another"),
        pytest.param(AGENT._report, id="the device of a reservation pod"),
        pytest.param(lambda client: volumes(client)._patch(PERSISTENTVOLUMES, ObjectKey("", "v"),
            {"spec": {"claimRef": {"uid": "a"}}}), id="the claim of a volume"),
    ],
)  # fmt: skip
async def test_what_is_not_stored_is_an_error_of_the_write(write: Call) -> None:
    async with client_of(NoObjects(200, json.dumps(STORED).encode())) as client:
        with pytest.raises(NotStoredError):
            await write(client)


async def test_an_agent_writes_to_the_pod_that_it_has_read() -> None:
    transport = NoObjects(200, json.dumps(STORED).encode())
    async with client_of(transport) as client:
        with suppress(NotStoredError):
            await AGENT._report(client)
    assert transport.bodies[0]["metadata"]["uid"] == UID


class Created(NoObjects):
    """The object does not exist before it is written."""

    async def send(self, request: Request) -> Answer:
        answer = await super().send(request)
        return replace(answer, code=404, body=NOT_FOUND) if request.method == "GET" else answer


async def test_a_check_that_is_stored_otherwise_is_not_asked() -> None:
    question = bind_check("network", POD, request(), "node-0")
    other = stored(question | {"spec": {**question["spec"], "node": "other"}}, UID)
    async with client_of(Created(201, json.dumps(other).encode())) as client:
        with pytest.raises(NotStoredError, match="node"):
            await Checks(ChecksConfig(), Settings())._stored(client, question)
