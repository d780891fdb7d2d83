"""``bowline bind``: a decision by hand, as a scheduler makes it: a BindRequest for a pending pod.

For pods without GPUs and with whole GPUs: which device a share gets, or what a resource claim is allocated, only a
scheduler can decide that counts all of them. Nothing else is written, so an interrupted command leaves a request that
the reconciler executes, or none.
"""

import argparse
import sys
import time
from datetime import timedelta
from typing import Any

from bowline.api import names
from bowline.api.bindrequest import Phase
from bowline.api.duration import parse_duration
from bowline.api.meta import Object, is_deleting, pod_owner, status_of
from bowline.framework.options import argument_type
from bowline.framework.reason import Suggestion
from bowline.plugins.gpu_request.pod import view_pod
from bowline_cli.api import Api, ApiException
from bowline_cli.cluster import add_cluster_options, call, message_of, namespace_of, run_connected
from bowline_cli.terminal import printable

EXIT_DONE, EXIT_NOT_BOUND = 0, 1
POLL_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Create the BindRequest of a pending pod, as its scheduler would. Only for pods without GPUs or with whole "
        "GPUs. Exit status: 0 the request is created (with --wait: the pod is bound), 1 it is refused or has failed, "
        "2 the cluster cannot be reached, or bad usage."
    )
    parser.add_argument("pod", metavar="POD", help="name of a pending pod")
    parser.add_argument("--node", required=True, metavar="NAME", help="where the pod is to run")
    parser.add_argument("--wait", action="store_true", help="until the pod is bound or the request has failed")
    parser.add_argument(
        "--timeout",
        type=argument_type(parse_duration),
        default=timedelta(seconds=60),
        metavar="DURATION",
        help="of --wait, then exit status 1 with what the request waits for (60s)",
    )
    add_cluster_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    return run_connected(options, lambda api: bind(api, namespace_of(api, options), options))


def bind(api: Api, namespace: str, options: argparse.Namespace) -> int:
    """Create the request, and wait for its end if wanted; returns the exit status. Raises ClusterError."""
    path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"
    try:
        pod = call(api, "GET", f"/api/v1/namespaces/{namespace}/pods/{options.pod}")
        why = refusal(pod)
        if not why:
            call(api, "POST", path, bind_request(pod, options.node))
            print(f"BindRequest {namespace}/{options.pod}: created, node {options.node}")
    except ApiException as error:
        if error.status not in (400, 403, 404, 409, 422):
            raise
        why = message_of(error)
        if error.status == 409:
            why += f"; {_existing_remedy(api, f'{path}/{options.pod}', pod)}"
    if why:
        print(printable(f"Pod {namespace}/{options.pod}: no BindRequest is created: {why}"), file=sys.stderr)
        return EXIT_NOT_BOUND
    return _await_end(api, f"{path}/{options.pod}", options.timeout) if options.wait else EXIT_DONE


def refusal(pod: Object) -> str:
    """Return why no request can be made for the pod by hand; empty if one can."""
    gpus, spec = view_pod(pod), pod["spec"]
    amounts = [amount.resource for container in gpus.containers for amount in container.effective_requests]
    others = sorted({resource for resource in amounts if resource != names.RESOURCE_GPU})
    if spec.get("nodeName"):
        return f"it is bound to node {spec['nodeName']} already"
    if is_deleting(pod) or status_of(pod).get("phase") in ("Succeeded", "Failed"):
        return "it has ended, or is being deleted"
    if gpus.share:
        return f"it requests a share ({gpus.share}): its scheduler must choose the device"
    if spec.get("resourceClaims"):
        return "it has resourceClaims: its scheduler must allocate their devices"
    if others:
        return f"it requests {', '.join(others)}: its scheduler must choose the devices"
    return ""


def remedy(existing: Object, pod: Object) -> str:
    """Return what to do about the request that has the name already."""
    metadata, spec, phase = existing["metadata"], existing["spec"], status_of(existing).get("phase")
    command = f"kubectl -n {metadata['namespace']} delete bindrequest {metadata['name']}"
    if is_deleting(existing):
        return "it is being deleted, and what it has prepared is rolled back first: repeat this command later"
    if spec.get("podUID") not in (None, "", pod["metadata"]["uid"]):
        return f"it is that of a former pod of this name; {command}, then repeat this command"
    if phase == Phase.FAILED:
        return f"it has failed; {command}, then repeat this command"
    node = spec.get("selectedNode")
    return f"it is for node {node} and may still bind the pod; bowline explain says what it waits for"


def _existing_remedy(api: Api, path: str, pod: Object) -> str:
    try:
        return remedy(call(api, "GET", path), pod)
    except ApiException as error:
        return f"and it cannot be read: {message_of(error)}"


def bind_request(pod: Object, node: str) -> dict[str, Any]:
    """Return the request that places the pod on the node, owned by the pod."""
    name, uid, count = pod["metadata"]["name"], pod["metadata"]["uid"], view_pod(pod).whole_gpus
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "ownerReferences": [pod_owner(name, uid)]},
        "spec": {
            "podName": name,
            "podUID": uid,
            "selectedNode": node,
            "receivedResourceType": "Regular",
            "receivedGPU": {"count": count, "portion": "1.00" if count else "0.00"},
        },
    }


def _await_end(api: Api, path: str, timeout: timedelta) -> int:
    """Wait until the request has ended; print how, and each change of what it waits for. Returns the exit status."""
    last, deadline = "", time.monotonic() + timeout.total_seconds()
    while True:
        try:
            status = status_of(call(api, "GET", path))
        except ApiException as error:
            if error.status != 404:
                raise
            print("the BindRequest was deleted, so the pod is not bound by it", file=sys.stderr)
            return EXIT_NOT_BOUND
        phase, reason = status.get("phase"), status.get("reason", "")
        if phase == Phase.SUCCEEDED:
            print(f"{phase}: the pod is bound")
            return EXIT_DONE
        if phase == Phase.FAILED:
            text = status.get("suggestion")
            meanings = (f"{suggestion}, {suggestion.meaning}" for suggestion in Suggestion if suggestion == text)
            suggestion = next(meanings, text or "none")
            print(printable(f"{phase}: {reason} (suggestion: {suggestion})"))
            return EXIT_NOT_BOUND
        # Before the first report the reason is the CRD's default, which every quick bind passes.
        if phase and reason != last:
            print(printable(f"waiting: {reason}"), file=sys.stderr)
        if time.monotonic() >= deadline:
            advice = f"bowline explain says why; the BindRequest remains, and may bind the pod later: {reason}"
            print(printable(f"not bound within {timeout.total_seconds():g} s; {advice}"), file=sys.stderr)
            return EXIT_NOT_BOUND
        last = reason
        time.sleep(POLL_S)
