"""A Binding without a reply: a transient failure, and recorded, because it may still take effect."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bowline.api.meta import ObjectKey, ObjectRef
from bowline.framework.binding.calls import PluginCaller
from bowline.framework.binding.post import bind_by_post, denied_status
from bowline.framework.binding.runner import Runner
from bowline.framework.config import Settings
from bowline.framework.interface.binding_plugin import Budgets
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.plugin import Plugin, PluginConfig
from bowline.framework.interface.status import Fatal, Retriable, Status, Transient, Waiting
from bowline.framework.reason import Reason
from bowline.kube.accounting import api_time
from bowline.kube.client import KubeClient
from bowline.plugins.default_binder import DefaultBinder
from bowline.testing.builders import bind_request, pod, stored
from bowline.testing.clock import SteppedClock
from bowline.testing.handles import context_for
from tests.unit.framework.test_runner import RecordingObserver

pytestmark = pytest.mark.looptime


class Unanswered(KubeClient):
    """Sends the request; there is no reply."""

    def __init__(self) -> None:
        self.clock = SteppedClock()

    async def create(self, *args: Any, **options: Any) -> dict[str, Any]:
        with api_time():
            await asyncio.Event().wait()
        raise AssertionError("cancelled before that")


class SlowBinder(DefaultBinder):
    """Uses most of its own budget before the POST."""

    name = "slow_binder"

    async def bind(self, ctx: BindContext) -> Status:
        await asyncio.sleep(Budgets().call_s - 1)
        return await bind_by_post(ctx)


@pytest.mark.parametrize("binder", [DefaultBinder, SlowBinder])
async def test_a_binding_without_a_reply_is_transient(binder: Callable[..., Plugin]) -> None:
    c = context_for(stored(bind_request()), stored(pod()), client=Unanswered())
    status = await Runner([binder(PluginConfig(), Settings())], PluginCaller(RecordingObserver())).run_bind(c)
    assert isinstance(status, Transient)


DENIED = "pods \"p\" is forbidden: ValidatingAdmissionPolicy '{}' with binding 'b' denied request: no"


@pytest.mark.parametrize(
    ("message", "kind", "reason"),
    [
        pytest.param('pods "p" is forbidden: exceeded quota: q, requested: pods=1', Retriable, None, id="quota"),
        pytest.param('pods "p" is forbidden: denied by policy x', Fatal, Reason.REJECTED, id="policy"),
        pytest.param(DENIED.format("bowline-reconciler-pods"), Waiting, None, id="a policy of the release"),
        pytest.param(DENIED.format("team-b-devices"), Waiting, None, id="a guard of shared devices"),
        pytest.param(DENIED.format("own-pods"), Fatal, Reason.REJECTED, id="a policy of the cluster"),
        pytest.param(DENIED.format("reconciler-pods-x"), Fatal, Reason.REJECTED, id="a similar name"),
        pytest.param('User "u" cannot create resource "pods" in API group ""', Fatal, Reason.RBAC_MISSING,
            id="right"),
    ],
)  # fmt: skip
def test_a_rejected_write_is_terminal_unless_a_quota_or_an_own_policy_rejects_it(
    message: str, kind: type[Status], reason: Reason | None
) -> None:
    status = denied_status(message)
    assert (type(status), status.reason if isinstance(status, Fatal) else None) == (kind, reason)


def test_a_missing_right_is_about_its_namespace_which_may_have_been_deleted() -> None:
    status = denied_status('User "u" cannot create resource "pods" in API group "" in the namespace "reservations"')
    assert isinstance(status, Fatal)
    assert status.objects == (ObjectRef("v1", "Namespace", ObjectKey("", "reservations")),)
