"""Which of the commands that `bowline explain` names their reader may run: the API server is asked. No guess.

A SelfSubjectAccessReview stores nothing, and every authenticated user may create one. The right that a command needs
follows from its words: `kubectl [-n NAMESPACE] VERB RESOURCE[,RESOURCE] [NAME]`, or `kubectl logs`.
"""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from bowline.api import names
from bowline.kube.errors import KubeError
from bowline_cli.cluster import Api, call
from bowline_cli.kubeconfig import ClusterError

_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
# API groups of the resources that commands name; of the others the core group.
_GROUPS: Final[Mapping[str, str]] = {
    "bindrequests": names.GROUP,
    "clusterroles": "rbac.authorization.k8s.io",
    "roles": "rbac.authorization.k8s.io",
    "podgroups": names.GROUP,
    "deployments": "apps",
    "statefulsets": "apps",
    "daemonsets": "apps",
    "replicasets": "apps",
    "jobs": "batch",
    "cronjobs": "batch",
    "storageclasses": "storage.k8s.io",
    "resourceclaims": "resource.k8s.io",
    "leases": "coordination.k8s.io",
    "endpointslices": "discovery.k8s.io",
}


@dataclass(frozen=True, slots=True)
class Right:
    """A right on a ``resource[.group]``; ``namespace`` empty: of the cluster, or of all namespaces."""

    verb: str
    resource: str
    namespace: str

    def as_attributes(self) -> dict[str, str]:
        """Return the attributes of a review."""
        resource, _, subresource = self.resource.partition("/")
        resource, _, group = resource.partition(".")
        group = group or _GROUPS.get(resource, "")
        place = {"namespace": self.namespace, "subresource": subresource}
        return {"verb": self.verb, "group": group, "resource": resource} | {k: v for k, v in place.items() if v}


@dataclass(frozen=True, slots=True)
class Rights:
    """What the user may do, each right asked once."""

    api: Api
    answers: dict[Right, bool] = field(default_factory=dict)

    def allow(self, command: str) -> bool:
        """Return whether the user may run a command; True if the API server does not answer the question."""
        try:
            return all(self._has(right) for right in rights_of(command))
        except ValueError:  # no shell reads the command
            return True

    def _has(self, right: Right) -> bool:
        if right not in self.answers:
            body = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": right.as_attributes()},
            }
            try:
                answer = call(self.api, "POST", _REVIEWS, body)
                self.answers[right] = bool(answer["status"]["allowed"])
            except (KubeError, ClusterError, LookupError, TypeError):
                self.answers[right] = True
        return self.answers[right]


def rights_of(command: str) -> Iterator[Right]:
    """Yield the rights that a kubectl command needs."""
    words = shlex.split(command)[1:]
    namespace = ""
    if words[0] == "-n":
        namespace, words = words[1], words[2:]
    if words[0] == "logs":
        yield from (Right("get", "pods/log", namespace), Right("list", "pods", namespace))
        return
    has_name = len(words) > 2 and not words[2].startswith("-")
    verb = words[0] if words[0] == "delete" else ("get" if has_name else "list")
    for resource in words[1].split(","):
        yield Right(verb, plural_of(resource), namespace)


def plural_of(resource: str) -> str:
    """Return a resource of a command, ``kind`` or ``kind.group`` in lower case, with its plural as the API has it."""
    kind, dot, group = resource.partition(".")
    if kind.endswith("class"):
        kind += "es"
    return f"{kind if kind.endswith('s') else f'{kind}s'}{dot}{group}"
