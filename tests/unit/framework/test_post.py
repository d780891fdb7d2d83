"""The Status of a Binding: without a reply, rejected, denied."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from bowline.api.failed_decision import Decision, FailedDecision, print_of
from bowline.api.meta import ObjectKey, ObjectRef
from bowline.framework.binding.calls import PluginCaller
from bowline.framework.binding.post import bind_by_post, binding_status, denied_on, denied_status
from bowline.framework.binding.runner import Runner
from bowline.framework.config import Settings
from bowline.framework.interface.binding_plugin import Budgets
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.plugin import Plugin, PluginConfig
from bowline.framework.interface.status import Fatal, Retriable, Status, Transient, Waiting
from bowline.framework.reason import Reason, Suggestion
from bowline.kube.accounting import api_time
from bowline.kube.binding import BindingResult, BindOutcome
from bowline.kube.client import KubeClient
from bowline.plugins.default_binder import DefaultBinder
from bowline.testing.builders import bind_request, pod, stored
from bowline.testing.clock import SteppedClock
from bowline.testing.handles import context_for
from tests.unit.framework.test_runner import RecordingObserver

pytestmark = pytest.mark.looptime

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ELSEWHERE = Suggestion.RESCHEDULE_ELSEWHERE


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


@pytest.mark.parametrize(
    ("result", "reason", "suggestion"),
    [
        pytest.param(BindingResult(BindOutcome.REFUSED, message="denied by policy"), Reason.REJECTED, ELSEWHERE,
            id="a policy"),
        pytest.param(BindingResult(BindOutcome.REFUSED,
            message='User "x" cannot create resource "pods/binding" in API group "" in the namespace "a"'),
            Reason.RBAC_MISSING, None, id="a missing right"),
        pytest.param(BindingResult(BindOutcome.NOT_FOUND, message="not found"), Reason.POD_GONE, None,
            id="the pod is deleted"),
    ],
)  # fmt: skip
def test_the_suggestion_of_a_bindings_outcome(
    result: BindingResult, reason: Reason, suggestion: Suggestion | None
) -> None:
    status = binding_status(result)
    assert isinstance(status, Fatal)
    assert (status.reason, status.suggestion) == (reason, suggestion)


@pytest.mark.parametrize(
    ("node", "message", "suggestion"),
    [
        pytest.param("b", "denied by policy", None, id="the same answer for another node"),
        pytest.param("a", "denied by policy", ELSEWHERE, id="the same node"),
        pytest.param("b", "denied by policy 2", ELSEWHERE, id="another answer"),
        pytest.param("b", "policy", ELSEWHERE, id="an answer that is a part of the other one"),
    ],
)
def test_a_denial_that_another_node_has_met_suggests_no_other(
    node: str, message: str, suggestion: Suggestion | None
) -> None:
    denial = print_of("denied by policy")
    failure = FailedDecision(Decision("a", "digest"), Reason.REJECTED.value, NOW, NOW, denial=denial)
    bound = {"type": "PodBound", "status": "False", "message": "default_binder: denied by policy"}
    refused_pod = {**stored(pod(), uid="u"), "status": {"conditions": [failure.as_condition(), bound]}}
    status = binding_status(
        BindingResult(BindOutcome.REFUSED, message=message), denied_on(refused_pod, node, message)
    )
    assert isinstance(status, Fatal)
    assert (status.reason, status.suggestion) == (Reason.REJECTED, suggestion)
