"""Asks other controllers before a bind: one BindCheck for each request and check, in the pod's namespace.

The plugin creates the objects and reads the condition Ready; it never writes an answer. A check that has no answer is
a wait, woken by the object. The objects of a request are deleted when it is rolled back and when its bound pod has
ended: their deletion is the other controller's signal, and its finalizer holds them until it has returned what it
has. Nothing waits for that finalizer: the name of an object belongs to one request. Decision 298.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final

from bowline.api import names
from bowline.api.field_error import FieldError
from bowline.api.meta import Object, key_of, uid_of
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.interface.status import UNLIMITED, merge_statuses
from bowline.kube.errors import Conflict, KubeError, NotFound, UnrecognizedReply, with_failure
from bowline.kube.resources import BINDCHECKS
from bowline.plugin import (
    Access,
    AccessRule,
    AdmissionInfo,
    AdmissionPlugin,
    BindContext,
    BindRequest,
    EventSource,
    ObjectClient,
    Status,
)
from bowline.plugins.checks.config import Check, ChecksConfig
from bowline.plugins.checks.rules import (
    RULES,
    annotation_errors,
    answer_status,
    bind_check,
    required_checks,
)

# While the CustomResourceDefinition is missing nothing is watched.
_POLL: Final = timedelta(seconds=10)


class Checks(AdmissionPlugin[ChecksConfig], BuiltinBindingPlugin[ChecksConfig]):
    """Lets a pod be bound when every check that it needs has consented."""

    name = "checks"
    rules = RULES
    access = Access(
        rules=(
            AccessRule(
                BINDCHECKS.plural,
                ("get", "list", "watch", "create", "delete"),
                BINDCHECKS.group,
                label=names.LABEL_CHECK_REQUEST,
            ),
        ),
        reviewed_annotations=(names.CHECKS,),
    )

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        return annotation_errors(pod, old, self.args.names)

    def applies(self, pod: Object, request: BindRequest) -> bool:
        return bool(required_checks(pod, self.args.checks))

    def event_sources(self) -> Iterable[EventSource]:
        return (EventSource(BINDCHECKS, label_selector=names.LABEL_CHECK_REQUEST, optional=True),)

    async def pre_bind(self, ctx: BindContext) -> Status:
        """Ask every check that has not been asked; consent is needed of all."""
        assert ctx.pod is not None  # noqa: S101 - of an attempt
        required = required_checks(ctx.pod, self.args.checks)
        unknown = [name for name in required if name not in self.args.names]
        if unknown:
            why = (
                f"annotation {names.CHECKS} names {', '.join(unknown)}; configure it in args.checks of plugin checks"
            )
            return Status.wait(why, timeout=UNLIMITED)
        results = [
            await self._ask(ctx, ctx.pod, check) for name in required if (check := self.args.named(name)) is not None
        ]
        return merge_statuses(results)

    async def _ask(self, ctx: BindContext, pod: Object, check: Check) -> Status:
        question = bind_check(check.name, pod, ctx.request, ctx.spec.selected_node)
        try:
            stored = await self._stored(ctx.client, question)
        except UnrecognizedReply as error:
            if await _is_installed(ctx.client, error):
                raise
            why = (
                f"check {check.name} cannot be asked: CustomResourceDefinition {BINDCHECKS} is not installed; "
                "the chart installs it with crds.enabled"
            )
            return Status.wait(why, retry_after=_POLL, timeout=UNLIMITED)
        return answer_status(check, stored, question)

    async def _stored(self, client: ObjectClient, question: Mapping[str, Any]) -> Object:
        """Return the object that asks, which is created if there is none. Raises AlreadyExists after a late write."""
        namespace, name = question["metadata"]["namespace"], question["metadata"]["name"]
        try:
            return await client.get(BINDCHECKS, namespace, name)
        except NotFound:
            return await client.create(BINDCHECKS, namespace, question, essential=question)

    async def rollback(self, ctx: BindContext, why: Status) -> Status:
        return await self.release(ctx)

    async def release(self, ctx: BindContext) -> Status:
        """Delete the objects of the request, also those of a check that is not configured any more.

        Raises the client's errors; of one deletion, once the others are tried.
        """
        namespace = ctx.request.key.namespace
        selector = f"{names.LABEL_CHECK_REQUEST}={ctx.request.uid}"
        try:
            bind_checks = await ctx.client.list_all(BINDCHECKS, namespace, label_selector=selector)
        except UnrecognizedReply as error:
            if await _is_installed(ctx.client, error):
                raise
            return Status.ok()
        failure: KubeError | None = None
        for stored in bind_checks:
            try:
                await ctx.client.delete(BINDCHECKS, namespace, key_of(stored).name, uid=uid_of(stored))
            except (NotFound, Conflict):
                continue
            except KubeError as error:
                failure = with_failure(failure, error)
        if failure is not None:
            raise failure
        return Status.ok()


async def _is_installed(client: ObjectClient, error: UnrecognizedReply) -> bool:
    """Return whether the kind is served, after a reply that may say the opposite."""
    return error.code != HTTPStatus.NOT_FOUND or await client.serves(BINDCHECKS)
