"""What a plugin needs of the cluster, as data on its class: rights, reviewed fields, written objects.

The chart renders it: RBAC of the reconciler, the conditions under which the API server calls the webhook, and the
exceptions of the policies that limit the reconciler's account. Nothing here grants anything. Pure. Decision 195.
"""

import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from bowline.api import names

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete")
WRITES = frozenset({"create", "update", "patch", "delete"})

_KEY = re.compile(rf"({names.DNS_SUBDOMAIN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9][-a-z0-9.]*")
_RESOURCE = re.compile(r"[a-z][a-z0-9]*(/[a-z]+)?")
# A label or condition of one's own has a domain; those without belong to users and to Kubernetes.
_OWN_KEY = re.compile(
    r"(?!([-a-z0-9.]*\.)?(kubernetes|k8s)\.io/)[a-z0-9][-a-z0-9]*\.[-a-z0-9.]+/[A-Za-z0-9][-A-Za-z0-9_.]*"
)
# Whoever may use these has rights of others: of a pod's or node's processes, of a ServiceAccount, of a role.
_RIGHTS = re.compile(
    r"(pods|nodes|services)/(exec|attach|portforward|proxy)|pods/ephemeralcontainers|serviceaccounts/token"
)
_WRITES_OF_RIGHTS = ("rbac.authorization.k8s.io", "admissionregistration.k8s.io", "certificates.k8s.io")
_FIELD = re.compile(r"spec\.[A-Za-z]+")


@dataclass(frozen=True, slots=True)
class AccessRule:
    """Rights of the reconciler on one resource.

    - ``resource``: its plural, with a subresource after a slash: ``configmaps``, ``pods/status``.
    - ``namespace``: where they end; empty for the whole cluster. ``{argument}`` stands for the plugin's argument of
      that name.
    - ``names``: the only objects; not for create, list and watch, which RBAC cannot limit to a name.
    - ``name_prefix``, ``label``: how the name of a written object begins, and the label that it has before and after
      the write. RBAC knows neither: a policy of the chart enforces them.
    """

    resource: str
    verbs: tuple[str, ...]
    group: str = ""
    namespace: str = ""
    names: tuple[str, ...] = ()
    name_prefix: str = ""
    label: str = ""

    @property
    def writes(self) -> bool:
        """Whether one of the verbs writes."""
        return bool(WRITES & set(self.verbs))


@dataclass(frozen=True, slots=True)
class Access:
    """Everything a plugin needs besides what every plugin has: its own BindRequest, pod and node, and events.

    - ``rules``: rights of the reconciler, and the objects it writes with them.
    - ``reviewed_annotations``, ``reviewed_labels``, ``reviewed_fields``: of pods; a change of one calls
      ``validate_pod`` with the stored pod. Fields are paths of two words, such as ``spec.tolerations``.
    - ``binding_annotations``, ``binding_labels``: those that the plugin sets on pods by the Binding.
    - ``pod_annotations``, ``pod_labels``, ``pod_conditions``: those that it patches on any pod.
    """

    rules: tuple[AccessRule, ...] = ()
    reviewed_annotations: tuple[str, ...] = ()
    reviewed_labels: tuple[str, ...] = ()
    reviewed_fields: tuple[str, ...] = ()
    binding_annotations: tuple[str, ...] = ()
    binding_labels: tuple[str, ...] = ()
    pod_annotations: tuple[str, ...] = ()
    pod_labels: tuple[str, ...] = ()
    pod_conditions: tuple[str, ...] = ()


def access_errors(access: Access, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the access of a plugin that has arguments of these names."""
    for field in fields(Access):
        values = getattr(access, field.name)
        kind = get_args(field.type)[0]
        if not isinstance(values, tuple) or not all(isinstance(value, kind) for value in values):
            yield f"{field.name} must be a tuple of {kind.__name__}, not {values!r}"
        elif kind is str:
            is_written = not field.name.startswith("reviewed_")
            pattern = _FIELD if field.name == "reviewed_fields" else _OWN_KEY if is_written else _KEY
            for value in values:
                if not pattern.fullmatch(value):
                    expected = "spec.FIELD" if pattern is _FIELD else "a qualified name"
                    expected += " of the plugin's own domain, such as seats.example.com/seat" if is_written else ""
                    yield f"{field.name} has {value!r}; each must be {expected}"
        else:
            for index, rule in enumerate(values):
                yield from (f"rules[{index}] {error}" for error in _rule_errors(rule, arguments))


def _rule_errors(rule: AccessRule, arguments: Mapping[str, Any]) -> Iterator[str]:
    if not _RESOURCE.fullmatch(rule.resource):
        yield f"has the resource {rule.resource!r}; name its plural, such as configmaps or pods/status"
    if rule.group and not re.fullmatch(names.DNS_SUBDOMAIN, rule.group):
        yield f"has the group {rule.group!r}; name one API group, or none for core"
    if not rule.verbs or not set(rule.verbs) <= set(VERBS):
        yield f"has the verbs {', '.join(rule.verbs) or 'none'}; they must be of {', '.join(VERBS)}"
    if rule.names and {"create", "list", "watch"} & set(rule.verbs):
        yield "limits create, list or watch to names, which RBAC cannot; use a rule of its own for them"
    if rule.resource == "secrets" and not rule.group and not rule.names:
        yield "is about any Secret; name those that the plugin needs in `names`"
    if rule.name_prefix and not _PREFIX.fullmatch(rule.name_prefix):
        yield f"has the name_prefix {rule.name_prefix!r}, with which no name begins"
    if rule.label and not _OWN_KEY.fullmatch(rule.label):
        yield f"has the label {rule.label!r}; it must be of the plugin's own domain: others set it on what is theirs"
    gives_rights = not rule.group and _RIGHTS.fullmatch(rule.resource)
    if gives_rights or (rule.writes and rule.group in _WRITES_OF_RIGHTS):
        yield f"is about {rule.resource}, which give rights that nobody has granted; no plugin may use them"
    is_builtin = "." not in rule.group or rule.group.endswith(".k8s.io")
    if rule.writes and is_builtin and not (rule.namespace or rule.names or rule.name_prefix or rule.label):
        yield (
            f"writes any of the {rule.resource}; limit it by namespace, names, name_prefix or label, so that a "
            "stolen token is worth no more"
        )
    for argument in _placeholders(rule.namespace):
        if argument not in arguments:
            yield f"has the namespace {rule.namespace!r}, and the plugin has no argument {argument!r}"


# The bind, and what every plugin may write.
_OF_EVERY_PLUGIN = (("create", "", "pods/binding"), ("create", "", "events"), ("patch", "", "events"))


def is_declared(
    access: Access, arguments: Mapping[str, Any], verb: str, group: str, resource: str, namespace: str, name: str
) -> bool:
    """Return whether the access of a plugin with these arguments has the write. Labels are the policies' concern.

    ``name`` is empty where the API server generates it.
    """
    own = {"pods": access.pod_annotations + access.pod_labels, "pods/status": access.pod_conditions}
    if (verb, group, resource) in _OF_EVERY_PLUGIN or (verb == "patch" and not group and own.get(resource)):
        return True
    return any(
        verb in rule.verbs
        and (rule.group, rule.resource) == (group, resource)
        and rule.namespace.format_map(arguments) in ("", namespace)
        and (not rule.names or name in rule.names)
        and (not name or name.startswith(rule.name_prefix))
        for rule in access.rules
    )


def _placeholders(text: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]


def as_value(value: Any, arguments: Mapping[str, Any]) -> Any:
    """Return a part of an access as JSON, with keys as the chart's values have them, without what is empty."""
    if isinstance(value, tuple):
        return [as_value(item, arguments) for item in value]
    if isinstance(value, str):
        return value
    content = {}
    for field in fields(value):
        part = getattr(value, field.name)
        if field.name == "namespace":
            part = part.format_map(arguments)
        if part:
            words = field.name.split("_")
            content["".join([words[0], *map(str.capitalize, words[1:])])] = as_value(part, arguments)
    return content
