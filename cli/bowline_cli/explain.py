"""``bowline explain POD``: why a pod is not bound, since when, until when, and the command that helps.

Reads only: the pod and its BindRequest, their events, the reconcilers' Leases, the release's Deployments and its
configuration. What the user may not read is named, and the rest is explained without it. ``diagnosis`` decides.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from bowline.api import names
from bowline.api.meta import Object, ObjectKey, format_time, parse_time
from bowline.framework.config import ConfigurationError, parse_settings
from bowline_cli.api import Api, ApiException, ClusterError
from bowline_cli.cluster import add_cluster_options, call, message_of, namespace_of, run_connected
from bowline_cli.diagnosis import Explanation, Facts, awaited_keys, explain
from bowline_cli.terminal import printable

EXIT_EXPLAINED, EXIT_NOT_FOUND = 0, 1
SELECTOR = "app.kubernetes.io/name=bowline"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Explain why a pod is not bound: what happens, since when, until when, and what helps. Exit status: 0 "
        "explained, 1 no such pod, 2 the cluster cannot be reached, or bad usage."
    )
    parser.add_argument("pod", metavar="POD", help="name of the pod; of one that is not created, its owner's")
    parser.add_argument(
        "--system-namespace", default="bowline-system", metavar="NAMESPACE", help="of the release (%(default)s)"
    )
    add_cluster_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    return run_connected(options, lambda client: _explain(client, options))


def _explain(client: Api, options: argparse.Namespace) -> int:
    key = ObjectKey(namespace_of(options), options.pod)
    facts = read_facts(Reader(client), key, options.system_namespace)
    explanation = explain(facts)
    if explanation is None:
        print(f"there is no pod {facts.key}, and no controller has failed to create it", file=sys.stderr)
        return EXIT_NOT_FOUND
    print(as_text(facts, explanation))
    return EXIT_EXPLAINED


class ForbiddenError(ClusterError):
    """The user may not read this."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads raw objects by path. Methods raise ForbiddenError, and ApiException."""

    client: Api

    def get(self, path: str) -> Object | None:
        """Return the object at a path; None if it does not exist, or the API server does not serve its kind."""
        return self._read(path)

    def list(self, path: str, **selectors: str) -> Sequence[Object]:
        """Return the objects of a list; none if the API server does not serve it.

        ``selectors``: ``labelSelector`` and ``fieldSelector``.
        """
        items: Sequence[Object] = (self._read(path, **selectors) or {}).get("items") or ()
        return items

    def _read(self, path: str, **selectors: str) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = call(self.client, "GET", path, **selectors)
        except ApiException as error:
            if error.status == 404:
                return None
            if error.status == 403:
                raise ForbiddenError(message_of(error)) from error
            raise
        return content


def read_facts(reader: Reader, key: ObjectKey, system: str) -> Facts:
    """Read what explains the state of a pod. Raises ForbiddenError for the pod itself."""
    pod = reader.get(f"/api/v1/namespaces/{key.namespace}/pods/{key.name}")
    facts = Facts(key, datetime.now(UTC), pod, system=system)
    unreadable: list[str] = []

    def read_list(what: str, path: str, **selectors: str) -> Sequence[Object]:
        try:
            return reader.list(path, **selectors)
        except ForbiddenError as error:
            unreadable.append(f"{what}: {error}")
            return ()

    try:
        request = reader.get(f"/apis/{names.API_VERSION}/namespaces/{key.namespace}/{names.PLURAL}/{key.name}")
    except ForbiddenError as error:
        request = None
        unreadable.append(f"bindrequests: {error}")
    awaited_pods: list[Object] = []
    for awaited in awaited_keys(request) if request is not None else ():
        field = f"metadata.name={awaited.name}"
        awaited_pods += read_list("pods", f"/api/v1/namespaces/{awaited.namespace}/pods", fieldSelector=field)
    field = f"involvedObject.name={key.name}" if pod is not None else "reason=FailedCreate"
    events = read_list("events", f"/api/v1/namespaces/{key.namespace}/events", fieldSelector=field)
    configurations = read_list("configmaps", f"/api/v1/namespaces/{system}/configmaps", labelSelector=SELECTOR)
    return replace(
        facts,
        request=request,
        awaited_pods=awaited_pods,
        events=sorted(events, key=_time_of),
        leases=read_list("leases", "/apis/coordination.k8s.io/v1/leases", labelSelector=names.SHARD_LABEL),
        deployments=read_list(
            "deployments", f"/apis/apps/v1/namespaces/{system}/deployments", labelSelector=SELECTOR
        ),
        scheduler_names=scheduler_names(configurations),
        unreadable=unreadable,
    )


def scheduler_names(configurations: Sequence[Object]) -> tuple[str, ...]:
    """Return the scheduler names of the release's configurations; empty if there is none that can be read."""
    scheduler_names: list[str] = []
    for configuration in configurations:
        text = (configuration.get("data") or {}).get("config.yaml")
        try:
            scheduler_names += parse_settings(text).scheduler_names if text else ()
        except ConfigurationError:
            continue  # of a newer version
    return tuple(dict.fromkeys(scheduler_names))


def as_text(facts: Facts, explanation: Explanation) -> str:
    """Return the explanation as text."""
    lines = [f"Pod {facts.key}: {explanation.cause}"]
    if explanation.since is not None:
        lines.append(f"  since  {format_time(explanation.since)} ({duration(facts.now - explanation.since)})")
    lines += [f"  until  {explanation.until}"] if explanation.until else []
    lines += [f"  next   {command}" for command in explanation.commands]
    lines += [f"  also   {detail}" for detail in explanation.details]
    lines += [f"  not read: {text}" for text in facts.unreadable]
    return "\n".join(map(printable, lines))


def duration(time: timedelta) -> str:
    """Return a duration in its two largest units, such as ``4m12s``."""
    seconds = max(0, round(time.total_seconds()))
    units = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    while len(units) > 1 and not units[0][0]:
        del units[0]
    return "".join(f"{number}{unit}" for number, unit in units[:2])


def _time_of(event: Object) -> datetime:
    moment = parse_time(event.get("lastTimestamp") or event.get("eventTime"))
    return moment if moment is not None else datetime.min.replace(tzinfo=UTC)
