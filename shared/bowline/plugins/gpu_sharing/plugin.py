"""Shared GPUs: from the mutation of the pod to a bound pod that sees its device, and the release of that device.

Admission adds an environment that refers to ConfigMaps (``admission``). Binding finds the device of each group
(``group_controller``, the only writer of reservation pods), labels the pod as its user, writes the ConfigMaps
(``configmaps``) and leaves the Binding to the bind plugin. Rollback undoes all of it. Devices without users are
released (``group_controller``, triggered by the watches here).

Waiting for an agent to report its device holds neither worker nor lock: pre_bind returns WAIT and is called again.
Decision 116.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from bowline.api import names
from bowline.api.bindrequest import AllocationKind
from bowline.api.gpu_operator import OperatorMode, is_fractioned, operator_mode, transform_policy
from bowline.api.gpu_share import SHARED_DEVICES, direct_env_map, memory_limit
from bowline.api.meta import key_of, uid_of
from bowline.framework.binding.post import denied_status
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.interface.status import Transient
from bowline.kube.errors import ApiError, Conflict, NotStoredError, Unreadable
from bowline.kube.reflector import Reflector
from bowline.kube.resources import BOUND_AND_UNENDED, CLUSTERPOLICIES, ENDED, PODS, UNENDED
from bowline.plugin import (
    BindContext,
    BindRequest,
    Done,
    EventSource,
    Handle,
    Object,
    ObjectKey,
    Settings,
    Status,
)
from bowline.plugins.gpu_sharing.admission import GpuSharingAdmission
from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from bowline.plugins.gpu_sharing.configmaps import delete_configmaps, write_configmaps
from bowline.plugins.gpu_sharing.group_controller import GroupController
from bowline.plugins.gpu_sharing.labels import (
    SHARING,
    group_labels,
    is_labelled,
    is_labelled_by_other,
    label_changes,
    label_removals,
    least_portion,
)
from bowline.plugins.gpu_sharing.metrics import SharingMetrics
from bowline.plugins.gpu_sharing.reservation import DeviceRequest, Held, Pending, facts_of
from bowline.plugins.gpu_sharing.reservation_client import ReservationClient
from bowline.plugins.gpu_sharing.reservation_pod import ReservationSpec
from bowline.plugins.gpu_sharing.rules import Share, is_prepared, share_of, takes_whole_gpus
from bowline.plugins.gpu_sharing.share_maps import share_configmaps
from bowline.plugins.gpu_sharing.statuses import (
    pending_status,
    undecided_status,
    unreleased_status,
    unsharable_status,
)
from bowline.plugins.gpu_sharing.watched_groups import (
    WatchedGroups,
    group_of,
    is_same_reservation,
    transform_other,
    transform_reservation,
    transform_user,
)
from bowline.runtime.tasks import shield_write

log = logging.getLogger(__name__)

# Tries to label a pod that others write as well: its scheduler, its nomination.
LABEL_TRIES = 5


@dataclass(slots=True)
class _Progress:
    """What the attempts of a request hand on. It saves writes and names what is awaited; it is no evidence."""

    waits_since: float | None = None  # monotonic
    granted: Mapping[str, str] | None = None  # the devices of which the pod was made a user, by group


class GpuSharing(GpuSharingAdmission, BuiltinBindingPlugin[GpuSharingConfig]):
    """Mutates pods that request a share, and reserves their devices."""

    parallel = True

    def __init__(self, args: GpuSharingConfig, settings: Settings) -> None:
        super().__init__(args, settings)
        # A changed policy applies to shares that are bound from then on. The operator is often installed later.
        self._policies: Mapping[ObjectKey, Object] = {}

    @property
    def _mode(self) -> OperatorMode:
        return operator_mode(self._policies.values())

    # --- binding ---

    def supported_allocations(self, request: BindRequest) -> Collection[AllocationKind]:
        # All else goes on without new shares: those that run keep their devices, and their end releases them.
        return (AllocationKind.FRACTION,) if self._sharing.enabled else ()

    # --- lifecycle ---

    async def setup(self, handle: Handle) -> None:
        sharing = self._sharing
        spec = ReservationSpec(
            namespace=sharing.reservation_namespace,
            image=sharing.agent_image,
            releases_foreign=sharing.enabled,
            settings=self.args,
        )
        self._clock = handle.clock
        self._client = ReservationClient(handle.client, spec, self.args.scale_adjust_namespace)
        self._watched = WatchedGroups()
        metrics = SharingMetrics(handle.metrics, self._watched)
        self._controller = GroupController(handle, self._client, sharing.agent_timeout, metrics, self._watched)

    async def run(self) -> None:
        await self._controller.run()

    def sizes(self) -> Mapping[str, int]:
        return self._controller.sizes

    def event_sources(self) -> Iterable[EventSource]:
        """Watch sharing pods, whose end may free a device, and the pods that requests name in ``wake_on``."""
        yield EventSource(
            PODS.as_metadata(),
            # The kubelet gives away the device of one that has ended, so that is shown as its deletion is.
            field_selector=f"metadata.namespace={self._client.spec.namespace},{UNENDED}",
            transform=transform_reservation,
            on_change=self._reservation_changed,
        )
        yield EventSource(
            PODS.as_metadata(),
            # They hold nothing, but whoever should have deleted one may have failed or stopped.
            field_selector=f"metadata.namespace={self._client.spec.namespace},{ENDED}",
            transform=transform_reservation,
            on_change=self._watched.ended_changed,
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
            yield EventSource(PODS.as_metadata(), field_selector=namespace, transform=transform_other)

    def _attach_policies(self, reflector: Reflector) -> None:
        self._policies = reflector.store

    def _reservation_changed(self, old: Object | None, new: Object | None) -> None:
        self._watched.reservation_changed(old, new)
        if is_same_reservation(old, new):
            return
        group = group_of(new or old or {"group": ""})
        # The device may have been lost, or this reservation may recover a lost one.
        if self._watched.has_users(group):
            self._controller.enqueue([group])

    def _user_changed(self, old: Object | None, new: Object | None) -> None:
        groups, pod = self._watched.user_changed(old, new), new or old
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
            not all(map(self._watched.is_reserved, own_groups))
            if ctx.request.is_share
            else takes_whole_gpus(ctx.spec, ctx.pod)
        )
        return self._watched.on_node(ctx.spec.selected_node) - own_groups if takes_device else frozenset()

    async def _share(self, ctx: BindContext) -> Status:
        share = share_of(ctx.pod or {"metadata": {}})
        assert share is not None  # noqa: S101 - a pod without one has failed before
        try:
            progress: _Progress = ctx.state.setdefault("progress", _Progress())
            answers: list[Held | Pending] = []
            for group in ctx.spec.gpu_groups:
                answer = await self._controller.claim(_claim(ctx, group))
                if not isinstance(answer, Held | Pending):
                    return answer
                answers.append(answer)
            now = self._clock.monotonic()
            progress.waits_since = now if progress.waits_since is None else progress.waits_since
            waited = timedelta(seconds=now - progress.waits_since)
            missing = pending_status(answers, waited + self._agents_time_left(answers))
            if missing is not None:
                return missing
            progress.waits_since = None
            held = zip(ctx.spec.gpu_groups, answers, strict=True)
            devices = {group: answer.device for group, answer in held if isinstance(answer, Held)}
            return await shield_write(self._grant(ctx, share, progress, devices))
        except Conflict as error:
            return Transient((error.message,))
        except Unreadable:
            raise
        except ApiError as error:
            return denied_status(error.message)

    def _agents_time_left(self, answers: list[Held | Pending]) -> timedelta:
        """Return how long it takes until the first agent is overdue."""
        pending = [answer.reservation for answer in answers if isinstance(answer, Pending)]
        return min(map(self._controller.time_left, pending), default=self._sharing.agent_timeout)

    async def _grant(self, ctx: BindContext, share: Share, progress: _Progress, devices: Mapping[str, str]) -> Status:
        """Make the pod a user of the devices (by group).

        An attempt after the one that has written reads what it relies on, and writes what is missing. The Binding
        carries the labels, too: the bound pod is compared with it, and has them whatever has changed since.
        """
        pod = ctx.pod
        assert pod is not None  # noqa: S101 - an attempt has a pod
        is_labelled_pod = progress.granted == devices and is_labelled(pod, ctx.spec.gpu_groups, ctx.request.uid)
        if not is_labelled_pod and not await self._label(ctx, pod):
            why = f"pod {ctx.request.pod_key} was deleted, replaced or bound meanwhile, or changes too often"
            return Transient((why,))
        received_gpu = ctx.spec.received_gpu
        assert received_gpu is not None  # noqa: S101 - request_error has rejected it
        reserved = self._sharing.reserved_mebibytes
        limit = memory_limit(pod, ctx.node, received_gpu.share, reserved)[0] if ctx.node is not None else ""
        maps = share_configmaps(
            share,
            received_gpu.portion,
            devices,
            cdi=self._mode.uses_cdi,
            memory_limit=limit,
            compute_modes=ctx.spec.compute_modes,
        )
        status = await write_configmaps(ctx.client, maps, pod, ctx.request.uid)
        if not isinstance(status, Done):
            return status
        progress.granted = devices
        ctx.shared[SHARED_DEVICES] = maps.visible
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
                if await self._client.label(pod, changes, record, at_version=True) is not None:
                    return True
            except NotStoredError as error:
                # A rollback removes the labels of the request's groups only.
                await self._client.label(error.stored, dict.fromkeys(changes), dict.fromkeys(record), at_version=True)
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
            self._controller.release_claims(ctx.request.key)

    async def rollback(self, ctx: BindContext, why: Status) -> Status:
        """Remove labels and ConfigMaps, and release the groups."""
        if not self.has_side_effects(ctx.request, ctx.pod) or ctx.request.spec is None:
            return Status.ok()
        unreadable: Unreadable | None = None
        status: Status = Status.ok()
        try:
            try:
                pod = await self._client.pod(ctx.request.pod_key)
                if pod is not None and uid_of(pod) == ctx.request.pod_uid:
                    if not await self._unlabel(ctx, pod):
                        return Status.retry(f"pod {ctx.request.pod_key} has just been changed")
                    status = await self._delete_configmaps(ctx, pod)
            except Unreadable as error:
                unreadable = error  # what it has stays; the device is released
            await self._controller.release(
                ctx.request.key, ctx.request.uid, ctx.spec.gpu_groups, ctx.spec.selected_node
            )
        except Unreadable:
            raise
        except ApiError as error:
            return Status.retry(error.message)
        if unreadable is not None:
            raise unreadable
        return status

    async def _unlabel(self, ctx: BindContext, pod: Object) -> bool:
        """Remove the labels that are recorded as set for the request; returns whether they are gone."""
        if is_labelled_by_other(pod, ctx.request.uid):
            return True
        removals = label_removals(pod["metadata"].get("labels") or {}, ctx.spec.gpu_groups)
        annotations = pod["metadata"].get("annotations") or {}
        record = {key: None for key in (names.LABELLED_FOR, names.ANNOTATION_GPU_PORTION) if key in annotations}
        is_changed = bool(removals or record)
        return not is_changed or await self._client.label(pod, dict(removals), record, at_version=True) is not None

    async def _delete_configmaps(self, ctx: BindContext, pod: Object) -> Status:
        """Delete the ConfigMaps that are prepared for the request. One that somebody keeps holds no device."""
        share = share_of(pod)
        if share is None:
            return Status.ok()
        configmap_names = (share.capabilities, direct_env_map(share.capabilities))
        try:
            return await delete_configmaps(ctx.client, configmap_names, pod, ctx.request.uid)
        except Unreadable:
            raise
        except ApiError as error:
            return Status.retry(error.message)

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
