"""The API server's replies to a Binding POST and the outcomes derived from them."""

from collections.abc import Awaitable, Callable

import pytest

from bowline.api.meta import Object, ObjectKey, ObjectUID, uid_of
from bowline.kube.binding import BindingResult, BindOutcome, post_binding
from bowline.kube.client import KubeClient
from bowline.kube.resources import PODS
from tests.kube.objects import pod

Prepare = Callable[[KubeClient, str, ObjectUID], Awaitable[object]]


async def bind(client: KubeClient, namespace: str, uid: str, node: str = "n1") -> BindingResult:
    return await post_binding(client, ObjectKey(namespace, "a"), ObjectUID(uid), node, {"x": "1"})


@pytest.fixture
async def made(client: KubeClient, namespace: str) -> Object:
    """The pod ``a``, unbound."""
    return await client.create(PODS, namespace, pod("a"))


async def test_annotations_are_written_by_the_bind_and_others_are_kept(client: KubeClient, namespace: str) -> None:
    made = pod("a")
    made["metadata"]["annotations"] = {"kept": "yes", "x": "0"}
    uid = uid_of(await client.create(PODS, namespace, made))
    result = await bind(client, namespace, uid)
    assert result == BindingResult(BindOutcome.BOUND, code=201)
    bound = await client.get(PODS, namespace, "a")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"kept": "yes", "x": "1"}


async def already_bound(client: KubeClient, namespace: str, uid: ObjectUID) -> None:
    assert (await bind(client, namespace, uid)).outcome is BindOutcome.BOUND


async def deleting(client: KubeClient, namespace: str, _: ObjectUID) -> None:
    await client.patch(PODS, namespace, "a", {"metadata": {"finalizers": ["example.com/hold"]}})
    await client.delete(PODS, namespace, "a", grace_period_s=0)


async def deleted(client: KubeClient, namespace: str, _: ObjectUID) -> None:
    await client.delete(PODS, namespace, "a", grace_period_s=0)


async def replaced(client: KubeClient, namespace: str, uid: ObjectUID) -> None:
    await deleted(client, namespace, uid)
    await client.create(PODS, namespace, pod("a"))


async def untouched(client: KubeClient, namespace: str, uid: ObjectUID) -> None:
    pass


@pytest.mark.parametrize(
    ("prepare", "node", "outcome", "code", "message"),
    [
        pytest.param(
            already_bound, "n1", BindOutcome.CONFLICT, 409, "already assigned", id="bound, to the same node"
        ),
        pytest.param(deleting, "n1", BindOutcome.CONFLICT, 409, "is being deleted", id="deleting"),
        pytest.param(replaced, "n1", BindOutcome.CONFLICT, 409, "UID in precondition", id="another pod of the name"),
        pytest.param(deleted, "n1", BindOutcome.NOT_FOUND, 404, "not found", id="deleted"),
        pytest.param(untouched, "no-such-node", BindOutcome.BOUND, 201, "", id="a node that does not exist"),
        pytest.param(untouched, "", BindOutcome.REFUSED, 0, "name a node", id="no node: no request is sent"),
    ],
)
async def test_a_reply_to_a_binding_has_this_outcome(
    client: KubeClient,
    namespace: str,
    made: Object,
    *,
    prepare: Prepare,
    node: str,
    outcome: BindOutcome,
    code: int,
    message: str,
) -> None:
    await prepare(client, namespace, uid_of(made))
    result = await bind(client, namespace, uid_of(made), node)
    assert (result.outcome, result.code) == (outcome, code)
    assert message in result.message
