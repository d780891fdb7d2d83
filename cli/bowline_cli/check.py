"""``bowline check``: whether an installed release works, and what it lacks.

It changes nothing: pods and a BindRequest are created as dry runs. What the user may not read or do is reported as
not checked.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

from bowline.api import names
from bowline.api.duration import parse_duration
from bowline.api.meta import Object
from bowline.api.rule import rules_in
from bowline.api.selectors import selector_admits
from bowline.framework.config import ConfigurationError, Settings, parse_settings
from bowline.framework.options import argument_type
from bowline.kube import resources
from bowline.kube.denial import Denial
from bowline.kube.resources import Resource
from bowline_cli.cluster import ERROR_REPLIES, Api, add_cluster_options, call, reported_errors, run_connected
from bowline_cli.kubeconfig import ClusterError
from bowline_cli.reader import Reader, Unread, leases_path, readable
from bowline_cli.release import CHECKS_CRD, CRD, POD_HOOK, InstalledRelease, ReleaseFinding, Reply, findings
from bowline_cli.terminal import printable

EXIT_WELL, EXIT_MISSING = 0, 1
# Of the JSON output; a change of its keys increases it.
FORMAT_VERSION = 1
POLL_S = 2.0
# The BindRequests in which another writer is looked for.
SAMPLE = 500
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Check an installed release: processes, Lease, admission (by pods and a BindRequest created as dry runs), "
        "CAs, policies, CRD, the agents' ServiceAccount, and other binders. Exit status: 0 all is well, 1 something "
        "is missing, 2 the cluster cannot be reached, or bad usage."
    )
    add_cluster_options(parser, is_namespaced=False)
    parser.add_argument(
        *("-n", "--system-namespace", "--namespace"),
        dest="namespace",
        default="bowline-system",
        metavar="NAME",
        help="of the release (%(default)s)",
    )
    what = "repeat until all is well, at most this long, such as 2m"
    duration = argument_type(parse_duration)
    parser.add_argument("--wait", type=duration, default=timedelta(), metavar="DURATION", help=what)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="(%(default)s)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    is_json = options.output == "json"
    return run_connected(options, lambda api: check(api, options.namespace, options.wait, is_json=is_json))


def check(api: Api, namespace: str, limit: timedelta, *, is_json: bool = False) -> int:
    """Print the findings as soon as nothing is missing, or after ``limit``; returns the exit status.

    Raises ClusterError if the API server does not answer at the end.
    """
    deadline, last = time.monotonic() + limit.total_seconds(), ""
    while True:
        report: list[ReleaseFinding] = []
        release = None
        try:
            with reported_errors(api):
                release = read_release(api, namespace)
            report = findings(release)
            missing = next((str(finding) for finding in report if finding.remedy), "")
        except ClusterError as error:
            missing = str(error)
            if time.monotonic() >= deadline:
                raise
        if not missing or time.monotonic() >= deadline:
            break
        if sys.stderr.isatty() and missing != last:
            print(f"waiting: {printable(missing)}", file=sys.stderr)
        last = missing
        time.sleep(POLL_S)
    is_well = not missing and release is not None
    images = release.images if is_well and release is not None else ()
    if is_json:
        print(as_json(namespace, report, images, is_well=is_well))
        return EXIT_WELL if is_well else EXIT_MISSING
    for finding in report:
        print(printable(str(finding)))
    if not is_well:
        return EXIT_MISSING
    for component, image in images:
        print(printable(f"{component}: {image}"))
    print(f"Bowline in namespace {namespace}: all is well{', as far as it was checked' if report else ''}")
    return EXIT_WELL


def as_json(
    namespace: str, report: Sequence[ReleaseFinding], images: Iterable[tuple[str, str]], *, is_well: bool
) -> str:
    """Return the findings as JSON; its keys are a stable interface, see FORMAT_VERSION."""
    document = {
        "version": FORMAT_VERSION,
        "namespace": namespace,
        "well": is_well,
        "missing": [{"text": f.text, "next": f.remedy} for f in report if f.remedy],
        "notChecked": [f.text for f in report if not f.remedy],
        "images": dict(images),
    }
    return json.dumps(document, indent=2)


def read_release(api: Api, namespace: str) -> InstalledRelease:
    """Read what ``findings`` decides on. Raises one of ERROR_REPLIES, but for what is absent or not permitted."""
    reader = Reader(api)
    leases = leases_path(namespace)
    release = InstalledRelease(
        namespace,
        api.now,
        reader.deployments(namespace),
        leases=reader.list(leases, labelSelector=names.LEASE_LABEL),
        requests=reader.list(f"/apis/{names.API_VERSION}/{names.PLURAL}", limit=SAMPLE),
        not_read=_not_read(reader),
        crd=reader.get(f"{_CRDS}/{CRD}"),
    )
    settings = _settings(reader, release)
    if isinstance(settings, Unread):
        return replace(release, settings=settings)
    release = replace(
        release,
        settings=settings,
        runtime_classes=reader.list("/apis/node.k8s.io/v1/runtimeclasses"),
        policies=reader.list("/apis/nvidia.com/v1/clusterpolicies"),
    )
    if release.asks_checks:
        release = replace(release, checks_crd=reader.get(f"{_CRDS}/{CHECKS_CRD}"))
    account, hooks = release.agent_account, "/apis/admissionregistration.k8s.io/v1"
    agent = reader.get(f"/api/v1/namespaces/{account.namespace}/serviceaccounts/{account.name}")
    if release.webhook is None or settings.admission.mode == "Off":
        return replace(release, agent=agent)
    name = release.webhook["metadata"]["name"]
    own = f"app.kubernetes.io/name=bowline,app.kubernetes.io/instance={release.instance}"
    validating = reader.get(f"{hooks}/validatingwebhookconfigurations/{name}")
    scope = _namespace_in_scope(reader, validating)
    return replace(
        release,
        agent=agent,
        mutating=reader.get(f"{hooks}/mutatingwebhookconfigurations/{name}"),
        validating=validating,
        guards=reader.list(f"{hooks}/validatingadmissionpolicies", labelSelector=own),
        guard_bindings=reader.list(f"{hooks}/validatingadmissionpolicybindings", labelSelector=own),
        valid=_reply(api, f"/api/v1/namespaces/{scope}/pods", _pod(settings, "0.5" if release.shares_gpus else "")),
        invalid=_reply(api, f"/api/v1/namespaces/{scope}/pods", _pod(settings, "2")),
        request=_reply(api, f"/apis/{names.API_VERSION}/namespaces/{scope}/{names.PLURAL}", _request()),
    )


def _not_read(reader: Reader) -> Sequence[Object] | Unread:
    """Return the events about objects that a reconciler does not read, for those that cannot be read here either."""
    events = reader.list("/api/v1/events", fieldSelector=f"reason={names.EVENT_NOT_READ}")
    if isinstance(events, Unread):
        return events
    paths = {resource.kind: resource.path for resource in vars(resources).values() if isinstance(resource, Resource)}
    last = {event["involvedObject"].get("uid"): event for event in events}
    return [
        event
        for event in last.values()
        if (path := paths.get((about := event["involvedObject"]).get("kind", ""))) is not None
        and isinstance(reader.get(path(about.get("namespace", ""), about.get("name", ""))), Unread)
    ]


def _settings(reader: Reader, release: InstalledRelease) -> Settings | Unread:
    """Return the configuration that the Deployments mount."""
    if isinstance(release.deployments, Unread):
        return release.deployments
    pods = [deployment["spec"]["template"]["spec"] for deployment in release.deployments]
    volumes = [volume for pod in pods for volume in pod.get("volumes") or () if volume["name"] == "config"]
    name = volumes[0]["configMap"]["name"] if volumes else ""
    stored = reader.get(f"/api/v1/namespaces/{release.namespace}/configmaps/{name}") if name else None
    if isinstance(stored, Unread):
        return stored
    try:
        return parse_settings(((stored or {}).get("data") or {}).get("config.yaml", ""))
    except ConfigurationError as error:
        return Unread(f"ConfigMap {name}, which is of another version of Bowline: {error}")


def _namespace_in_scope(reader: Reader, configuration: Object | Unread | None) -> str:
    """Return a namespace whose pods the webhook reviews: default, unless that is excluded."""
    hooks = configuration["webhooks"] if configuration and not isinstance(configuration, Unread) else ()
    selector = next((hook.get("namespaceSelector") for hook in hooks if hook["name"] == POD_HOOK), None)
    namespaces = [item["metadata"] for item in readable(reader.list("/api/v1/namespaces"))]
    active = [each for each in namespaces if "deletionTimestamp" not in each]
    scope = [each["name"] for each in active if selector_admits(selector, each.get("labels") or {})]
    return "default" if "default" in scope or not scope else scope[0]


def _reply(api: Api, path: str, body: Object) -> Reply | Unread:
    """Return the reply to an object that is created as a dry run."""
    try:
        return Reply(call(api, "POST", path, body, dryRun="All"))
    except ERROR_REPLIES as error:
        message, causes = str(error), error.status.causes if error.status is not None else ()
    right = Denial.of(message).right
    if right is not None and (right.verb, right.resource) == ("create", path.rpartition("/")[2]):
        return Unread(f"missing permission: {message}")
    return Reply(None, message, rules_in((cause.field, cause.reason) for cause in causes))


def _request() -> Object:
    """Return a BindRequest; its pod and its node need not exist."""
    spec = {
        "podName": "bowline-check",
        "selectedNode": "bowline-check",
        "receivedResourceType": "Regular",
        "receivedGPU": {"count": 0, "portion": "0.00"},
    }
    metadata = {"name": "bowline-check"}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}


def _pod(settings: Settings, fraction: str) -> Object:
    """Return a pod that the restricted Pod Security Standard and quotas of CPU and memory admit."""
    amounts = {"cpu": "10m", "memory": "16Mi"}
    container = {
        "name": "check",
        "image": settings.gpu_sharing.agent_image,
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "schedulerName": next((name for name in settings.scheduler_names if name != "*"), names.DEFAULT_SCHEDULER),
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    annotations = {names.GPU_FRACTION: fraction} if fraction else {}
    metadata = {"generateName": "bowline-check-", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
