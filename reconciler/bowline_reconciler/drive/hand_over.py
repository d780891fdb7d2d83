"""Hands over what a process with a blocked event loop leaves: sets the request aside, then releases the Lease.

Runs in an event loop of its own, beside the blocked one: with its own client, and without the process's components.
Decision 172.
"""

from contextlib import suppress

from bowline.api.bindrequest import decode_bind_request
from bowline.api.meta import ObjectKey
from bowline.framework.binding.calls import PluginCall
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ClusterAccess
from bowline.kube.errors import ApiError
from bowline.kube.lease import holder_of, spec_without_holder
from bowline.kube.resources import BINDREQUESTS, LEASES
from bowline_reconciler.decide.report import set_aside_status
from bowline_reconciler.drive.pod_conditions import PodConditions
from bowline_reconciler.drive.writer import Writer


async def hand_over(
    access: ClusterAccess,
    options: ClientOptions,
    lease: ObjectKey,
    call: PluginCall,
    why: str,
    identity: str,
) -> None:
    """Set the request aside that ``call`` is for, and release the Lease, if ``identity`` holds it. Raises KubeError.

    The next leader would end as this one. Both writes have the resourceVersion of what was read.
    """
    async with KubeClient(access, options) as client:
        lease_object = await client.get(LEASES, lease.namespace, lease.name)
        if not identity or holder_of(lease_object) != identity:
            return
        if call.key is not None:
            with suppress(ApiError):  # it is gone or has changed: the Lease is released all the same
                await _set_aside(client, call, call.key, why)
        body = {**lease_object, "spec": spec_without_holder(lease_object["spec"], client.clock.now())}
        await client.update(LEASES, lease.namespace, lease.name, body)


async def _set_aside(client: KubeClient, call: PluginCall, key: ObjectKey, why: str) -> None:
    request = decode_bind_request(await client.get(BINDREQUESTS, key.namespace, key.name))
    if request.uid != call.uid:
        return
    status = set_aside_status(request, call.point, f"plugin {call.plugin}: {why}", client.clock.now())
    writer = Writer(client, lambda _: None, lambda _: None, PodConditions(client))
    await writer.patch_status(request, status)
