"""Shared GPUs: from the mutation of the pod to a bound pod that sees its device, and the release of that device.

Admission adds an environment that refers to ConfigMaps (``admission``). Binding finds the device of each group
(``group_controller``, the only writer of reservation pods), labels the pod as its user, writes the ConfigMaps
(``configmaps``) and leaves the Binding to the bind plugin. Rollback undoes all of it. Devices without users are
released (``group_controller``, triggered by the watches here).

Waiting for an agent to report its device holds neither worker nor lock: pre_bind returns WAIT and is called again.
Decision 116.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from decimal import Decimal

from bowline.api import names
from bowline.api.bindrequest import AllocationKind, ResourceType
from bowline.api.gpu_operator import OperatorMode, is_fractioned, operator_mode, transform_policy
from bowline.api.gpu_share import SHARED_DEVICES, memory_limit
from bowline.api.meta import key_of, uid_of
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.interface.status import UNLIMITED, Fatal, Transient
from bowline.framework.reason import Reason
from bowline.kube.errors import NotStoredError, Unreadable
from bowline.kube.reflector import Reflector
from bowline.kube.resources import BOUND_AND_UNENDED, CLUSTERPOLICIES, PODS
from bowline.plugin import (
    BindContext,
    BindRequest,
    Done,
    EventSource,
    Handle,
    Object,
    ObjectKey,
    ObjectRef,
    Settings,
    Status,
    Suggestion,
)
from bowline.plugins.gpu_sharing.admission import GpuSharingAdmission, nri_error
from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from bowline.plugins.gpu_sharing.configmaps import (
    delete_configmaps,
    share_configmaps,
    visible_devices,
    write_configmaps,
)
from bowline.plugins.gpu_sharing.group import Groups, transform_reservation, transform_user
from bowline.plugins.gpu_sharing.group_controller import GroupController
from bowline.plugins.gpu_sharing.labels import (
    SHARING,
    group_labels,
    is_labelled,
    label_changes,
    label_removals,
    least_portion,
)
from bowline.plugins.gpu_sharing.reservation import (
    ELSEWHERE,
    RELEASE_RETRY,
    DeviceRequest,
    Held,
    Pending,
    Unreleased,
    facts_of,
)
from bowline.plugins.gpu_sharing.reservation_client import ReservationClient
from bowline.plugins.gpu_sharing.rules import is_prepared, request_error, share_of, takes_whole_gpus
from bowline.runtime.tasks import shield_write

# Tries to label a pod that others write as well: its scheduler, its nomination.
LABEL_TRIES = 5
_COUNT = re.compile(r"[0-9]{1,4}")


class GpuSharing(GpuSharingAdmission, BuiltinBindingPlugin[GpuSharingConfig]):
    """Mutates pods that request a share, and reserves their devices."""

    parallel = True

    def __init__(self, args: GpuSharingConfig, settings: Settings) -> None:
        super().__init__(args, settings)
        # All else goes on without new shares: those that run keep their devices, and their end releases them.
        self.allocations = (AllocationKind.FRACTION,) if self._sharing.enabled else ()
        # A changed policy applies to shares that are bound from then on. The operator is often installed later.
        self._policies: Mapping[ObjectKey, Object] = {}

    @property
    def _mode(self) -> OperatorMode:
        return operator_mode(self._policies.values())

    # --- lifecycle ---

    async def setup(self, handle: Handle) -> None:
        self._client = ReservationClient(handle.client, self._sharing, self.args)
        self._groups = Groups()
        in_flight_timeout = self.settings.binding.in_flight_timeout
        self._controller = GroupController(handle, self._client, self._groups, in_flight_timeout)

    async def run(self) -> None:
        await self._controller.run()

    def sizes(self) -> Mapping[str, int]:
        return self._controller.sizes

    def event_sources(self) -> Iterable[EventSource]:
        """Watch sharing pods, whose end may free a device, and the pods that requests name in ``wake_on``."""
        yield EventSource(
            PODS,
            field_selector=f"metadata.namespace={self._client.namespace}",
            transform=transform_reservation,
            on_change=self._reservation_changed,
        )
        yield EventSource(
            PODS.as_metadata(),
            label_selector=SHARING,
            # Only bound pods use a device; before that a claim or an unfinished request keeps it.
            field_selector=BOUND_AND_UNENDED,
            transform=transform_user,
            on_change=self._user_changed,
        )
        yield EventSource(CLUSTERPOLICIES, transform=transform_policy, attach=self._attach_policies, optional=True)
        if self.args.scale_adjust_namespace:
            namespace = f"metadata.namespace={self.args.scale_adjust_namespace}"
            yield EventSource(PODS.as_metadata(), field_selector=namespace, transform=transform_user)

    def _attach_policies(self, reflector: Reflector) -> None:
        self._policies = reflector.store

    def _reservation_changed(self, old: Object | None, new: Object | None) -> None:
        self._controller.enqueue(self._groups.reservation_changed(old, new))

    def _user_changed(self, old: Object | None, new: Object | None) -> None:
        groups, pod = self._groups.user_changed(old, new), new or old
        if pod is not None:
            self._controller.enqueue(groups, key_of(pod).namespace)

    # --- binding ---

    def applies(self, pod: Object, request: BindRequest) -> bool:
        """A pod that takes whole GPUs may need a device that is reserved and unused; one with a share needs one."""
        if request.is_share or request.spec is None:
            return request.is_share
        return takes_whole_gpus(request.spec, pod) or is_prepared(pod)

    async def pre_bind(self, ctx: BindContext) -> Status:
        """Release unused devices of the node; for a share find its devices, label the pod, write the ConfigMaps."""
        release_failures = await self._controller.release_unused(
            self._idle_groups(ctx), ctx.spec.selected_node, ctx.request.key.namespace
        )
        if release_failures:
            return unreleased_status(release_failures)
        if not ctx.request.is_share:
            return undecided_status(ctx) or Status.ok()
        return unsharable_status(ctx, self._mode, self.settings) or await self._share(ctx)

    def _idle_groups(self, ctx: BindContext) -> frozenset[str]:
        """Return the other groups whose unused device on the node the pod may need: none if it takes no device."""
        own_groups = frozenset(ctx.spec.gpu_groups)
        takes_device = (
            any(not self._groups[name].is_reserved for name in own_groups)
            if ctx.request.is_share
            else takes_whole_gpus(ctx.spec, ctx.pod)
        )
        return self._groups.on_node(ctx.spec.selected_node) - own_groups if takes_device else frozenset()

    async def _share(self, ctx: BindContext) -> Status:
        answers: dict[str, Held | Pending] = {}
        for group in ctx.spec.gpu_groups:
            answer = await self._controller.claim(_claim(ctx, group))
            if not isinstance(answer, Held | Pending):
                return answer
            answers[group] = answer
        missing = pending_status(answers.values(), self._sharing.agent_timeout)
        if missing is not None:
            return missing
        devices = {group: answer.device for group, answer in answers.items() if isinstance(answer, Held)}
        return await shield_write(self._grant(ctx, devices))

    async def _grant(self, ctx: BindContext, devices: Mapping[str, str]) -> Status:
        """Make the pod a user of the devices (by group).

        An attempt after the one that has written reads what it relies on, and writes what is missing. The Binding
        carries the labels, too: the bound pod is compared with it, and has them whatever has changed since.
        """
        pod = ctx.pod or {"metadata": {}}
        share = share_of(pod)
        assert share is not None  # noqa: S101 - a pod without one has failed before
        is_labelled_pod = is_labelled(pod, ctx.spec.gpu_groups, ctx.request.uid)
        if not is_labelled_pod and not await self._label(ctx, pod):
            why = f"pod {ctx.request.pod_key} was deleted, replaced or bound meanwhile, or changes too often"
            return Transient((why,))
        received_gpu, reserved = ctx.spec.received_gpu, self._sharing.reserved_mebibytes
        assert received_gpu is not None  # noqa: S101 - request_error has rejected it
        limit = memory_limit(pod, ctx.node, received_gpu.share, reserved)[0] if ctx.node is not None else ""
        visible = visible_devices(devices.values(), cdi=self._mode.uses_cdi)
        configmaps = share_configmaps(share, pod, ctx.spec, ctx.request.uid, visible, limit)
        status = await write_configmaps(ctx.client, configmaps, pod)
        if not isinstance(status, Done):
            return status
        ctx.shared[SHARED_DEVICES] = visible
        return Status.ok(labels=group_labels(ctx.spec.gpu_groups))

    async def _label(self, ctx: BindContext, pod: Object) -> bool:
        """Label the pod as a user of the groups; False if it is deleted, replaced or bound, or changes too often.

        In the version that was read: neither a write that is executed late nor a stale cache may replace the labels
        of another decision.
        """
        for _ in range(LABEL_TRIES):
            changes = label_changes(pod["metadata"].get("labels") or {}, tuple(ctx.spec.gpu_groups))
            record = {names.LABELLED_FOR: ctx.request.uid, names.ANNOTATION_GPU_PORTION: f"{_portion(ctx):f}"}
            try:
                if await self._client.label(pod, changes, record) is not None:
                    return True
            except NotStoredError as error:
                # A rollback removes the labels of the request's groups only.
                await self._client.label(error.stored, dict.fromkeys(changes), dict.fromkeys(record))
                raise
            if ctx.cancelled.is_set():
                return False
            live_pod = await self._client.pod(key_of(pod))
            if live_pod is None or uid_of(live_pod) != uid_of(pod) or live_pod["spec"].get("nodeName"):
                return False
            pod = live_pod
        return False

    def binding_annotations(self, ctx: BindContext) -> Mapping[str, str]:
        """In NRI mode the container gets the devices that an annotation names."""
        share = share_of(ctx.pod) if ctx.pod is not None else None
        is_nri = self._mode is OperatorMode.NRI and not is_fractioned(self.settings.nv_fractions, ctx.node)
        if share is None or SHARED_DEVICES not in ctx.shared or not is_nri:
            return {}
        return {f"{names.NRI_CONTAINER}{share.target.container['name']}": ctx.shared[SHARED_DEVICES]}

    async def post_bind(self, ctx: BindContext) -> None:
        """Drop the claims: the pod's label keeps the device from now on."""
        if ctx.request.is_share:
            self._controller.forget(ctx.request.key)

    async def rollback(self, ctx: BindContext, why: Status) -> Status:
        """Remove the labels, release the groups, delete the ConfigMaps: one that somebody keeps holds no device."""
        if not self.has_side_effects(ctx.request, ctx.pod) or ctx.request.spec is None:
            return Status.ok()
        pod, unreadable = None, None
        try:
            pod = await self._client.pod(ctx.request.pod_key)
        except Unreadable as error:
            unreadable = error  # what it has stays; the device is released
        if pod is not None and uid_of(pod) != ctx.request.pod_uid:
            pod = None
        if pod is not None and not await self._unlabel(ctx, pod):
            return Status.retry(f"pod {ctx.request.pod_key} has just been changed")
        await self._controller.release(ctx.request.key, ctx.request.uid, ctx.spec.gpu_groups)
        share = share_of(pod) if pod is not None else None
        if pod is not None and share is not None:
            return await delete_configmaps(ctx.client, share, pod, ctx.request.uid)
        if unreadable is not None:
            raise unreadable
        return Status.ok()

    async def _unlabel(self, ctx: BindContext, pod: Object) -> bool:
        """Remove the labels that are recorded as set for the request; returns whether they are gone."""
        annotations = pod["metadata"].get("annotations") or {}
        if annotations.get(names.LABELLED_FOR) not in (None, ctx.request.uid):
            return True
        removals = label_removals(pod["metadata"].get("labels") or {}, ctx.spec.gpu_groups)
        record = {key: None for key in (names.LABELLED_FOR, names.ANNOTATION_GPU_PORTION) if key in annotations}
        is_changed = bool(removals or record)
        return not is_changed or await self._client.label(pod, dict(removals), record) is not None

    async def forget(self, key: ObjectKey) -> None:
        self._controller.forget(key)


def _portion(ctx: BindContext) -> Decimal:
    received_gpu = ctx.spec.received_gpu
    assert received_gpu is not None  # noqa: S101 - request_error has rejected it
    return least_portion(ctx.pod or {"metadata": {}}, received_gpu.share, facts_of(ctx.node).device_memory)


def _claim(ctx: BindContext, group: str) -> DeviceRequest:
    spec = (ctx.pod or {}).get("spec") or {}
    return DeviceRequest(
        request=ctx.request.key,
        pod=ctx.request.pod_key,
        node=ctx.spec.selected_node,
        group=group,
        tolerations=tuple(spec.get("tolerations") or ()),
        compute_mode=ctx.spec.compute_modes.get(group, ""),
        portion=_portion(ctx),
        node_facts=facts_of(ctx.node),
    )


# --- the Status of an attempt: what its pod lacks, and what the answers of its groups mean ---


def unreleased_status(release_failures: list[Unreleased]) -> Status:
    """Return the WAIT of a pod that needs a device whose reservation cannot be deleted: not its own failure."""
    refs = [ObjectRef("v1", "Pod", entry.reservation.key, entry.reservation.uid) for entry in release_failures]
    problems = "; ".join(f"reservation pod {entry.reservation.key}: {entry.why}" for entry in release_failures)
    remedy = "" if all(entry.reservation.deleting for entry in release_failures) else "; delete that pod"
    why = f"a GPU of the node is still reserved without a user, and cannot be released: {problems}{remedy}"
    return Status.wait(why, *refs, retry_after=RELEASE_RETRY, timeout=UNLIMITED, suggestion=ELSEWHERE)


def unsharable_status(ctx: BindContext, mode: OperatorMode, settings: Settings) -> Fatal | None:
    """Return the failure of a share that no device can help; None if there is none.

    A pod that the webhook has not reviewed lacks its class too: created again, it gets all.
    """
    invalid, pod = request_error(ctx.spec), ctx.pod or {"metadata": {}, "spec": {}}
    if invalid is not None:
        return Status.fatal(invalid, Reason.INVALID)
    if share_of(pod) is None:
        why = (
            f"pod {ctx.request.pod_key} has no annotation {names.SHARED_GPU_CONFIGMAP} or no container for its "
            "share: it was created while the webhook was unavailable; create it again"
        )
        return Status.fatal(why, Reason.REJECTED, Suggestion.DELETE_POD)
    namespace = ctx.request.pod_key.namespace
    if namespace in settings.namespaces.exclude:
        # The pod is older than the setting, and the policies of the reconciler's account deny its labels for ever.
        why = f"namespace {namespace} is excluded (namespaces.exclude): its pods get no share; ask for a whole GPU"
        return Status.fatal(why, Reason.REJECTED, Suggestion.DELETE_POD)
    asked = (pod["metadata"].get("annotations") or {}).get(names.GPU_FRACTION_NUM_DEVICES, "")
    decided = len(ctx.spec.gpu_groups)
    if _COUNT.fullmatch(asked) and int(asked) != decided:
        why = (
            f"spec.receivedGPU.count: {decided} must be {int(asked)}, the {names.GPU_FRACTION_NUM_DEVICES} of pod "
            f"{ctx.request.pod_key}; have the scheduler name one group for each device"
        )
        return Status.fatal(why, Reason.INVALID)
    return undelivered_status(pod, ctx.node, mode, settings)


def undecided_status(ctx: BindContext) -> Status | None:
    """Return the failure of a pod with a share for which none was decided; None for any other pod."""
    if ctx.pod is None or not is_prepared(ctx.pod):
        return None
    why = (
        f"spec.receivedResourceType: {ctx.spec.received_resource_type or ResourceType.REGULAR} must be "
        f"{ResourceType.FRACTION}, with a group for each device: pod {ctx.request.pod_key} requests a share of a "
        "GPU, without which its containers do not start; have the scheduler decide one"
    )
    return Status.fatal(why, Reason.INVALID)


def undelivered_status(pod: Object, node: Object | None, mode: OperatorMode, settings: Settings) -> Fatal | None:
    """Return the failure of a share whose container would see no device on the node; None if it may see its devices.

    A pod without a class was admitted because agents of GPU fractioning, or an annotation, give it its devices.
    """
    if is_fractioned(settings.nv_fractions, node):
        return None
    if mode is OperatorMode.NRI:
        error = nri_error(pod)
        return Status.fatal(error, Reason.REJECTED, Suggestion.DELETE_POD) if error else None
    runtime_class = settings.gpu_sharing.runtime_class_name
    if not runtime_class or pod["spec"].get("runtimeClassName"):
        return None
    why = (
        f"without spec.runtimeClassName, such as {runtime_class}, a share sees no GPU: NVIDIA's GPU operator is not "
        f"in NRI mode, and node {node['metadata']['name'] if node else ''} does not report the condition "
        f"{names.NODE_FRACTIONING_READY} (gpuSharing.nvFractions); create the pod again"
    )
    return Status.fatal(why, Reason.REJECTED, ELSEWHERE)


def pending_status(answers: Collection[Held | Pending], timeout: timedelta) -> Status | None:
    """Return what a request waits for, for agents ``timeout`` at most; None if it has all its devices."""
    pending = [answer.reservation for answer in answers if isinstance(answer, Pending)]
    if pending:
        refs = [reservation.ref for reservation in pending]
        causes = dict.fromkeys(filter(None, (reservation.status_reason for reservation in pending)))
        why = ": ".join(["the agent has not reported the device yet", *causes])
        return Status.wait(why, *refs, timeout=timeout, suggestion=ELSEWHERE)
    devices = [answer.device for answer in answers if isinstance(answer, Held)]
    if len(set(devices)) != len(devices):
        return Status.retry(f"several groups have the same device ({', '.join(devices)}); their agents check again")
    return None
