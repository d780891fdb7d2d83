"""Another project's CRD: no selectable fields, a status of three fields, no validation of ours."""

from collections.abc import AsyncIterator, Iterator

import pytest

from bowline.api import names
from bowline.api.request_facts import FailureFact, failure_of, reported_status
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Status
from bowline.framework.reason import Reason, Suggestion
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.spec import ClusterSpec
from tests.reconciler.conftest import stage_on
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import until, until_awaited

PRESERVE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
THEIRS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
    "spec": {
        "group": names.GROUP,
        "names": {"kind": names.KIND, "plural": names.PLURAL, "singular": names.SINGULAR},
        "scope": "Namespaced",
        "versions": [
            {
                "name": names.VERSION,
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": PRESERVE,
                            "status": {
                                "type": "object",
                                "properties": {
                                    "phase": {"type": "string"},
                                    "reason": {"type": "string"},
                                    "failedAttempts": {"type": "integer", "format": "int32"},
                                },
                            },
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def their_cluster() -> Iterator[Cluster]:
    """A control plane with that CRD."""
    with Cluster.start(ClusterSpec(kwok=False, controllers=())) as cluster:
        cluster.make_nodes(3)
        cluster.api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", THEIRS)
        cluster.wait_established(f"{names.PLURAL}.{names.GROUP}")
        yield cluster


@pytest.fixture
async def stage(their_cluster: Cluster) -> AsyncIterator[Stage]:
    """A stage on that control plane."""
    async for made in stage_on(their_cluster):
        yield made


async def test_requests_are_executed_and_completed_ones_use_no_memory(stage: Stage) -> None:
    async with stage.working() as working:
        for name in ("one", "two"):
            await stage.create_pod(name)
            await stage.request_bind(name)
            status = await stage.phase(name, "Succeeded")
            assert status == {"phase": "Succeeded"}
        await until(lambda: not any(working.sizes.values()))
        assert len(working.parts.informers.requests.store) == 0
    async with stage.working() as working:
        await until(working.parts.informers.requests.synced.is_set)
        assert len(working.parts.informers.requests.store) == 0, "also not after a list"


async def test_a_new_leader_knows_the_failure_that_the_status_cannot_store(stage: Stage) -> None:
    async def fails(ctx: BindContext) -> Status:
        return Status.fatal("taken", Reason.DEVICE_CONFLICT, Suggestion.RESCHEDULE_ELSEWHERE)

    async def refuses(ctx: BindContext) -> Status:
        return Status.retry("it is still in use")

    async with stage.working(Scripted(effects=True, pre_bind=fails, rollback=refuses)) as working:
        await stage.create_pod()
        await stage.request_bind()
        await until_awaited(stage.request, lambda request: failure_of(reported_status(request)) is not None)
        await working.crash()
    heir = Scripted(effects=True)
    async with stage.working(heir, lease="heir"):
        status = await stage.phase("pod", "Failed", "Succeeded")
        await until_awaited(stage.request, lambda request: "completionTime" in reported_status(request))
    assert heir.points("pod") == ["rollback"], "a failed request is rolled back and not attempted again"
    assert status["reason"].startswith("DeviceConflict: ")
    final_status = reported_status(await stage.request())
    assert failure_of(final_status) == FailureFact(Reason.DEVICE_CONFLICT.value, "scripted")
    assert final_status["suggestion"] == Suggestion.RESCHEDULE_ELSEWHERE.value
