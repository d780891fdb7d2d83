"""The memory limit of a share, written into a real ConfigMap: by the plugin alone, and by the whole pair."""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from localcluster.cluster import Cluster
from localcluster.nodes import GPU_MEMORY_MIB
from shared.api import names
from shared.api.bindrequest import decode_bind_request
from shared.framework.binding.context import BindContext
from shared.framework.config import Settings
from shared.framework.plugin import PluginConfig
from shared.framework.status import Code, Status, Suggestion
from shared.kube.client import KubeClient
from shared.kube.config import load_access
from shared.kube.resources import CONFIGMAPS, PODS
from shared.plugins.gpu_sharing.rules import configmap_object
from shared.plugins.hami_core import HamiCore
from shared.testing.builders import bind_request, pod, stored
from tests.live import Live
from tests.plugins.sharing import Shares


@dataclass(frozen=True, slots=True)
class Case:
    """A share's ConfigMap in a namespace of its own, and the attempt that is to limit the share."""

    client: KubeClient
    namespace: str
    half: dict[str, Any]
    other: dict[str, Any]

    async def given(self, owner: dict[str, Any]) -> None:
        await self.client.create(
            CONFIGMAPS, self.namespace, configmap_object("p-0", self.namespace, {"A": "1"}, owner)
        )

    async def data(self) -> dict[str, str]:
        found: dict[str, str] = (await self.client.get(CONFIGMAPS, self.namespace, "p-0"))["data"]
        return found

    async def limited(self, labels: dict[str, str]) -> Status:
        fields: dict[str, Any] = {
            "receivedResourceType": "Fraction",
            "receivedGPU": {"count": 1, "portion": "0.27"},
            "selectedGPUGroups": ["g"],
        }
        request = stored(bind_request("half", "n", self.namespace, self.half["metadata"]["uid"], **fields))
        c = BindContext(
            request=decode_bind_request(request),
            pod=self.half,
            node={"metadata": {"name": "n", "labels": labels}},
            attempt=1,
            attempt_id="a",
            deadline=datetime.max.replace(tzinfo=UTC),
            client=self.client,
            log=logging.LoggerAdapter(logging.getLogger("test")),
        )
        return await HamiCore(PluginConfig(), Settings()).pre_bind(c)


@pytest.fixture
async def case(cluster: Cluster) -> AsyncIterator[Case]:
    namespace = f"hami-{uuid4().hex[:8]}"
    cluster.make_namespace(namespace)
    annotations = {"gpu-fraction": "0.27", "runai/shared-gpu-configmap": "p"}
    async with KubeClient(await load_access(cluster.kubeconfig)) as client:
        made = []
        # Real ones: the garbage collector takes what belongs to a pod that does not exist.
        for name in ("half", "other"):
            body = pod(name, namespace)
            body["metadata"]["annotations"] = annotations
            made.append(await client.create(PODS, namespace, body))
        yield Case(client, namespace, *made)


LABELS = {"nvidia.com/gpu.memory": "15360"}


async def test_the_limit_stands_beside_what_gpu_sharing_has_written(case: Case) -> None:
    await case.given(case.half)
    assert (await case.limited(LABELS)).code is Code.OK
    assert await case.data() == {"A": "1", "CUDA_DEVICE_MEMORY_LIMIT": "4147m"}
    assert (await case.limited(LABELS)).code is Code.OK


async def test_a_node_whose_memory_is_unknown_is_no_place_for_a_limited_share(case: Case) -> None:
    await case.given(case.half)
    status = await case.limited({})
    assert (status.code, status.suggestion) == (Code.FATAL, Suggestion.RESCHEDULE_ELSEWHERE)
    assert await case.data() == {"A": "1"}


async def test_fault_16_a_configmap_of_another_pod_is_not_written(case: Case) -> None:
    await case.given(case.other)
    status = await case.limited(LABELS)
    assert status.code is Code.FATAL
    assert "does not belong to the pod" in status.message
    assert await case.data() == {"A": "1"}


async def test_a_configmap_that_is_not_there_yet_is_no_failure_of_the_request(case: Case) -> None:
    assert (await case.limited(LABELS)).code is Code.INFRA


def test_a_half_on_the_whole_pair_is_held_to_half_of_the_memory(guarded: Live) -> None:
    shares = Shares(guarded)
    shares.share("half", "limited")
    guarded.phase("half", "Succeeded")
    stored = guarded.pod("half")
    name = f"{stored['metadata']['annotations'][names.SHARED_GPU_CONFIGMAP]}-0"
    assert shares.maps()[name][names.DEVICE_MEMORY_LIMIT] == f"{GPU_MEMORY_MIB // 2}m"
    env = {one["name"]: one for one in stored["spec"]["containers"][0]["env"]}
    reference = {"name": name, "key": names.DEVICE_MEMORY_LIMIT, "optional": True}
    assert env[names.DEVICE_MEMORY_LIMIT]["valueFrom"] == {"configMapKeyRef": reference}
