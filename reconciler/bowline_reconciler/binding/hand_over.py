"""Hands over what a process with a blocked event loop leaves: counts the attempt, then releases the Lease.

Runs in an event loop of its own, beside the blocked one: with its own client, and without the process's components.
Decision 172.
"""

from bowline.api.bindrequest import Phase, decode_bind_request
from bowline.api.meta import ObjectKey
from bowline.framework.binding.calls import PluginCall
from bowline.framework.plugin_status import Status
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ClusterAccess
from bowline.kube.lease import holder_of, spec_without_holder
from bowline.kube.resources import BINDREQUESTS, LEASES
from bowline_reconciler.binding.writer import Writer
from bowline_reconciler.decide.outcome import handed_over_status

# The points of an attempt before the pod is bound.
_COUNTED = ("applies", "pre_bind", "binding_annotations", "binding_labels", "bind", "on_failure")


async def hand_over(
    access: ClusterAccess,
    options: ClientOptions,
    lease: ObjectKey,
    call: PluginCall,
    why: str,
    identity: str,
) -> None:
    """Count the attempt that made ``call``, and release the Lease, if ``identity`` holds it. Raises KubeError.

    The next leader ends the request as Failed, after the rollback. Both writes have the resourceVersion of what was
    read.
    """
    async with KubeClient(access, options) as client:
        lease_object = await client.get(LEASES, lease.namespace, lease.name)
        if not identity or holder_of(lease_object) != identity:
            return
        if call.key is not None and call.point in _COUNTED:
            await _count(client, call, call.key, why)
        body = {**lease_object, "spec": spec_without_holder(lease_object["spec"], client.clock.now())}
        await client.update(LEASES, lease.namespace, lease.name, body)


async def _count(client: KubeClient, call: PluginCall, key: ObjectKey, why: str) -> None:
    request = decode_bind_request(await client.get(BINDREQUESTS, key.namespace, key.name))
    if request.uid != call.uid or request.deleting or request.phase is not Phase.PENDING:
        return
    failure = Status.retry(why).from_plugin(call.plugin)
    status = handed_over_status(request, failure, client.clock.now())
    await Writer(client, lambda _: None, lambda *_: None).patch_status(request, status)
