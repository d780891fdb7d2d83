"""Another project's CRD: no selectable fields, a status of three fields, no validation of ours."""

from collections.abc import AsyncIterator, Iterator

import pytest
from prometheus_client import CollectorRegistry

from bowline.api import names
from bowline.api.request_facts import FailureFact, failure_of, reported_status
from bowline.framework.binding.post import bind_by_post
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Status
from bowline.framework.reason import Reason, Suggestion
from bowline.kube.client import ClientOptions
from bowline.kube.metrics import KubeMetrics
from bowline.kube.resources import BINDREQUESTS
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.spec import ClusterSpec
from tests.reconciler.conftest import stage_on
from tests.reconciler.stage import Hold, Scripted, Stage
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


async def test_a_field_that_is_not_stored_causes_no_second_write(stage: Stage) -> None:
    """A pending rollback repeats its status write; here no second write is needed."""
    rounds: list[str] = []
    registry = CollectorRegistry()
    options = ClientOptions(name=names.FIELD_MANAGER_RECONCILER, clock=stage.clock, metrics=KubeMetrics(registry))

    async def undo(ctx: BindContext) -> Status:
        rounds.append(ctx.request.key.name)
        return Status.ok() if len(rounds) == 4 else Status.retry("not yet")

    async def fails(ctx: BindContext) -> Status:
        return Status.fatal("never")

    async with stage.working(Scripted(effects=True, pre_bind=fails, rollback=undo), options=options):
        await stage.create_pod()
        await stage.request_bind()
        status = await stage.phase("pod", "Failed")
    assert len(rounds) == 4
    assert status["reason"].startswith("Rejected: ")
    assert set(status) == {"phase", "reason", "failedAttempts"}
    # RolledBack is False, and Failed; the first write showed which fields are stored.
    writes = {"verb": "patch", "resource": f"{names.PLURAL}/status", "code": "200"}
    assert registry.get_sample_value("bowline_kube_requests_total", writes) == 2


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


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_nothing_is_undone_below_a_pod_that_was_bound_before_its_decision_was_changed(
    stage: Stage, is_deleted: bool
) -> None:
    """The leader that has bound it is gone: only the pod knows that its request has."""
    hold = Hold()

    async def binds(ctx: BindContext) -> Status:
        await bind_by_post(ctx)
        return await hold(ctx)

    async with stage.working(Scripted(effects=True, bind=binds)) as working:
        await stage.create_pod()
        await stage.request_bind(node="gpu-node-0")
        await hold.reached.wait()
        await working.crash()
    change = {"spec": {"selectedNode": "gpu-node-1"}}
    await stage.client.patch(BINDREQUESTS, stage.namespace, "pod", change)
    heir = Scripted(effects=True)
    if is_deleted:
        await stage.withdraw()
    async with stage.working(heir, lease="heir"):
        if is_deleted:
            await stage.request_deleted()
        else:
            await stage.phase("pod", "Succeeded", "Failed")
    assert heir.points("pod") == ([] if is_deleted else ["post_bind"])
