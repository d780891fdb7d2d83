"""The rights of Bowline's ServiceAccounts beside the calls in the audit logs of a run.

    BOWLINE_AUDIT_FOLDER=audit pytest tests/pair tests/plugins tests/chart tests/node
    python -m tests.rights audit

Every call of Bowline's programs must be allowed by a rule of the chart, and every rule must allow one. Exit status 1
if a rule is neither used nor an exception with a reason.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bowline.framework.gates import GANG_BINDING
from bowline.localcluster.helm import find_helm
from bowline.plugins.gpu_sharing.agent.app import PROGRAM as AGENT
from tests.chart.rendering import Chart

# With every feature that adds rights.
VALUES: Mapping[str, Any] = MappingProxyType({"config": {"featureGates": {GANG_BINDING: True}}})
_REASON = re.compile(r'RBAC: allowed by \w+ "[^"]*" of (Cluster)?Role "([^"]*)"')
_DENIED = "forbid"
# How the user agents of Bowline's programs begin.
_PROGRAMS = ("bowline", AGENT)
# Of the chart's roles those for users, which aggregate, are bound to no account of the release.
BINDINGS = ("RoleBinding", "ClusterRoleBinding")
_HASH = re.compile("-config-[0-9a-f]+$")


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource in a role; ``name`` is empty for all objects."""

    role: str
    resource: str
    name: str
    verb: str

    def __str__(self) -> str:
        return f"{self.role}: {self.verb} {self.resource}" + (f" {self.name}" if self.name else "")


# Rights that a run of the suite does not use, and why the chart grants them.
EXCEPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "ClusterRole bowline-reconciler: update resource.k8s.io/resourceclaims/binding": (
            "no call has this path; since Kubernetes 1.36 it is checked for writes of resourceclaims/status"
        ),
        "Role bowline-reconciler: delete coordination.k8s.io/leases bowline-reconciler": (
            "checked where OwnerReferencesPermissionEnforcement guards the owner of the Lease"
        ),
        "ClusterRole bowline-reconciler: watch resource.k8s.io/devicetaintrules": (
            "TaintWatch.sources: served in v1 from Kubernetes 1.37 on, as test_device_taints.py runs there"
        ),
        "ClusterRole bowline-reconciler: get resource.k8s.io/devicetaintrules": (
            "TaintWatch._read: served in v1 from Kubernetes 1.37 on, as test_device_taints.py runs there"
        ),
        "ClusterRole bowline-reconciler: get scheduling.k8s.io/podgroups": (
            "ClaimReserver._pod_group: only Kubernetes 1.37 keeps a pod's schedulingGroup, with a gate that is off "
            "by default; test_pod_group_claims.py runs it there, as the administrator"
        ),
    }
)


def rights_of(roles: Iterable[Mapping[str, Any]]) -> set[Right]:
    """Return every right of these roles."""
    return {
        Right(f"{role['kind']} {role['metadata']['name']}", f"{group}/{resource}".lstrip("/"), name, verb)
        for role in roles
        for rule in role.get("rules") or ()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in map(_stable, rule.get("resourceNames", [""]))
        for verb in rule["verbs"]
    }


def calls_of(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the completed calls of Bowline's programs, by user agent: a test with a stolen token uses kubectl."""
    for line in lines:
        if not any(f'"{program}' in line for program in _PROGRAMS):
            continue
        event = json.loads(line)
        if event.get("userAgent", "").startswith(_PROGRAMS) and event["stage"] == "ResponseComplete":
            yield event


def used_right(event: Mapping[str, Any], rights: set[Right]) -> Right | None:
    """Return the right by which the call was allowed; None if it was by none of these."""
    match = _REASON.search((event.get("annotations") or {}).get("authorization.k8s.io/reason", ""))
    reference = event.get("objectRef") or {}
    if match is None or "resource" not in reference:
        return None
    role = f"{match[1] or ''}Role {match[2]}"
    resource = "/".join(
        filter(None, (reference.get("apiGroup"), reference["resource"], reference.get("subresource")))
    )
    for name in (_stable(reference.get("name", "")), ""):
        right = Right(role, resource, name, event["verb"])
        if right in rights:
            return right
    return None


def is_denied(event: Mapping[str, Any]) -> bool:
    """Return whether the authorizer refused the call."""
    return bool((event.get("annotations") or {}).get("authorization.k8s.io/decision") == _DENIED)


def denied_call(event: Mapping[str, Any]) -> str:
    """Return user, verb and path of a call, without the names of objects."""
    reference = event.get("objectRef") or {}
    path = "/".join(filter(None, (reference.get("resource"), reference.get("subresource")))) or event["requestURI"]
    return f"{event['user']['username'].rpartition(':')[2]}: {event['verb']} {path}"


def _stable(name: str) -> str:
    """Return an object's name without the hash of the configuration."""
    return _HASH.sub("-config", name)


def main() -> int:
    """Compare, and print what differs."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.rights", description="Rights of the chart beside their use."
    )
    parser.add_argument("folder", type=Path, help="with audit logs (BOWLINE_AUDIT_FOLDER)")
    folder = parser.parse_args().folder
    rendered = Chart(find_helm()).render(VALUES)
    bound = {(ref["kind"], ref["name"]) for ref in (o["roleRef"] for o in rendered.of_kind(*BINDINGS))}
    rights = rights_of(rendered.by_kind[key] for key in bound)
    used: Counter[Right] = Counter()
    denials: Counter[str] = Counter()
    total = 0
    for path in sorted(folder.glob("*.log")):
        with path.open(encoding="utf-8") as lines:
            for event in calls_of(lines):
                total += 1
                if is_denied(event):
                    denials[denied_call(event)] += 1
                elif (right := used_right(event, rights)) is not None:
                    used[right] += 1
    unused = sorted(right for right in rights if not used[right])
    missing = [right for right in unused if str(right) not in EXCEPTIONS]
    out = sys.stdout.write
    out(f"{total} calls of Bowline's programs, {denials.total()} denied\n{len(used)} of {len(rights)} rights used\n")
    for call, count in sorted(denials.items()):
        out(f"denied {count} times: {call}\n")
    for right in unused:
        out(f"unused: {right} ({EXCEPTIONS.get(str(right), 'NO REASON')})\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
