"""Verb, resource and name of an HTTP request, from the API's path conventions. Pure."""

from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

import orjson

WRITE_VERBS = ("create", "update", "patch", "delete", "deletecollection")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "GET": "get", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class ProxiedCall:
    """One request. ``resource`` is empty for paths without one, such as /version; ``verb`` is then the method."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def writes(self) -> bool:
        """Whether the verb may change objects."""
        return self.verb in WRITE_VERBS

    @property
    def kind(self) -> str:
        """Verb and resource, such as ``create pods/binding``."""
        return f"{self.verb} {'/'.join(filter(None, (self.resource, self.subresource)))}"


def parse_call(method: str, target: str, body: bytes = b"") -> ProxiedCall:
    """Return the call of a request. The name of a created object is taken from its body."""
    url = urlsplit(target)
    parts = [unquote(part) for part in url.path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) >= 3:
        group, rest = "", parts[2:]
    elif parts[:1] == ["apis"] and len(parts) >= 4:
        group, rest = parts[1], parts[3:]
    else:
        return ProxiedCall(method.lower(), name=url.path)
    namespace = ""
    # /namespaces/x alone is the object x; a longer path is in that namespace.
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    resource, name, *more = [*rest, ""] if len(rest) == 1 else rest
    verb = _VERBS.get(method, method.lower())
    if not name and verb == "get":
        verb = "watch" if parse_qs(url.query).get("watch", ["0"])[0] in ("1", "true") else "list"
    elif not name and verb == "delete":
        verb = "deletecollection"
    elif not name and verb == "create":
        name = _name_in(body)
    return ProxiedCall(verb, group, resource, "/".join(more), namespace, name)


def _name_in(body: bytes) -> str:
    try:
        metadata = orjson.loads(body)["metadata"]
        return str(metadata.get("name") or metadata.get("generateName") or "")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return ""
