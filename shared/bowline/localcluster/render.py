"""From a rendered pod template to a local process (pure: objects and file contents in, a plan out).

Runs exactly what the chart renders: command, arguments, environment and configuration files are the object's. Only
what a pod gets from its environment is replaced:

    the image          the interpreter and the checkout
    mounted volumes    folders, and the mount paths in arguments and environment are rewritten to them
    the token          `--server` and files for the pod's ServiceAccount
    the pod's address  listening addresses on loopback

What the chart does not use (an init container, a projected volume, a variable from a Secret) is an error, never
ignored: a silent difference would make tests pass that fail on a cluster.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bowline.localcluster.errors import RenderError

SourceKind = Literal["configmap", "secret"]


class Source(NamedTuple):
    """A ConfigMap or Secret that a pod takes files from."""

    kind: SourceKind
    name: str


# The data of each source; None if it does not exist.
Contents = Mapping[Source, Mapping[str, bytes] | None]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What this machine supplies in place of the pod's environment."""

    namespace: str
    pod_name: str
    folder: Path
    interpreter: str
    flags: Mapping[str, str] = field(default_factory=dict)
    extra_args: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The files to write and the command to run."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[Path, bytes]
    folders: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mount path and the local path that replaces it."""

    path: str
    local: Path


def container_of(spec: Mapping[str, Any], name: str | None = None) -> Mapping[str, Any]:
    """The container to run: the named one, else the only one."""
    if spec.get("initContainers"):
        raise RenderError("the pod has init containers; they are not run locally")
    containers = spec.get("containers") or []
    matches = [item for item in containers if name is None or item["name"] == name]
    if len(matches) != 1:
        raise RenderError(f"the pod has {len(containers)} containers; exactly one must be named")
    container: Mapping[str, Any] = matches[0]
    return container


def wants_token(spec: Mapping[str, Any]) -> bool:
    """Whether a kubelet would mount a ServiceAccount token."""
    return spec.get("automountServiceAccountToken") is not False


def sources_of(spec: Mapping[str, Any], container: Mapping[str, Any]) -> list[Source]:
    """Every ConfigMap and Secret that the plan needs, without duplicates."""
    return list(dict.fromkeys(_source(volume)[0] for volume in _used_volumes(spec, container)))


def plan_process(
    spec: Mapping[str, Any], container: Mapping[str, Any], contents: Contents, surroundings: Surroundings
) -> Plan:
    """The command line, environment and files of the container's process."""
    volumes = {volume["name"]: volume for volume in _used_volumes(spec, container)}
    files: dict[Path, bytes] = {}
    folders = []
    for name, volume in volumes.items():
        home = surroundings.folder / "volumes" / name
        folders.append(home)
        for path, data in _volume_files(volume, contents).items():
            files[home / path] = data
    mounts = [_local_mount(mount, volumes, surroundings.folder) for mount in container.get("volumeMounts") or []]
    env = _environment(container, surroundings, spec)
    command = [*(container.get("command") or []), *(container.get("args") or [])]
    if not container.get("command"):
        raise RenderError(f"container {container['name']!r} names no command; the image's own is not known here")
    argv = [relocate(_plain(word), mounts) for word in command]
    if re.fullmatch(r"(?:.*/)?python3?(?:\.\d+)?", argv[0]):
        argv[0] = surroundings.interpreter
    for flag, value in surroundings.flags.items():
        argv = with_flag(argv, flag, value)
    argv += surroundings.extra_args
    local_env = {name: relocate(value, mounts) for name, value in env.items()}
    return Plan(tuple(argv), local_env, files, tuple(folders))


def _plain(text: str) -> str:
    """Return a text without references to variables, which Kubernetes would expand."""
    if "$(" in text:
        raise RenderError(f"{text!r} refers to a variable, which is not expanded here")
    return text


def relocate(text: str, mounts: Iterable[_Mount]) -> str:
    """Replace every mount path in the text by its local folder.

    Only complete paths match: `/etc/app` does not match in `/etc/app-tls/x` or `/var/etc/app`.
    """
    longest_first = sorted(mounts, key=lambda mount: len(mount.path), reverse=True)
    if not longest_first:
        return text
    paths = "|".join(re.escape(mount.path) for mount in longest_first)
    by_path = {mount.path: str(mount.local) for mount in longest_first}
    return re.sub(rf"(?<![^=,:;\s])({paths})(?=$|[/,:;\s])", lambda match: by_path[match[1]], text)


def flag_value(argv: Sequence[str], flag: str) -> str | None:
    """The last value of `--flag=value`; None if the flag is absent."""
    return next((word.partition("=")[2] for word in reversed(argv) if word.startswith(f"{flag}=")), None)


def with_flag(argv: Sequence[str], flag: str, value: str) -> list[str]:
    """The command line with this flag set once, at its end."""
    return [*(word for word in argv if not word.startswith(f"{flag}=")), f"{flag}={value}"]


def _used_volumes(spec: Mapping[str, Any], container: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    mount_names = {mount["name"] for mount in container.get("volumeMounts") or []}
    return [volume for volume in spec.get("volumes") or [] if volume["name"] in mount_names]


def _source(volume: Mapping[str, Any]) -> tuple[Source, Mapping[str, Any]]:
    """The source of a volume, and the volume's block about it."""
    if "configMap" in volume:
        return Source("configmap", volume["configMap"]["name"]), volume["configMap"]
    if "secret" in volume:
        return Source("secret", volume["secret"]["secretName"]), volume["secret"]
    kinds = ", ".join(key for key in volume if key != "name")
    raise RenderError(f"volume {volume['name']!r} of kind {kinds} cannot be given locally")


def _volume_files(volume: Mapping[str, Any], contents: Contents) -> dict[str, bytes]:
    source, block = _source(volume)
    data = contents.get(source)
    if data is None:
        raise RenderError(f"volume {volume['name']!r} needs the {source.kind} {source.name!r}, which is missing")
    items = block.get("items") or [{"path": key, "key": key} for key in data]
    if missing := [item["key"] for item in items if item["key"] not in data]:
        raise RenderError(f"the {source.kind} {source.name!r} has no key {missing[0]!r}")
    return {item["path"]: data[item["key"]] for item in items}


def _local_mount(mount: Mapping[str, Any], volumes: Mapping[str, Any], folder: Path) -> _Mount:
    if mount["name"] not in volumes:
        raise RenderError(f"mount {mount['mountPath']!r} names a volume that the pod does not have")
    if mount.get("subPath"):
        raise RenderError(f"mount {mount['mountPath']!r} has a subPath, which is not carried over")
    return _Mount(mount["mountPath"].rstrip("/"), folder / "volumes" / mount["name"])


def _environment(container: Mapping[str, Any], surroundings: Surroundings, spec: Mapping[str, Any]) -> dict[str, str]:
    if container.get("envFrom"):
        raise RenderError(f"container {container['name']!r} uses envFrom, which is not carried over")
    fields = {
        "metadata.name": surroundings.pod_name,
        "metadata.namespace": surroundings.namespace,
        # Processes here run beside each other in one place, so none has a UID of its own.
        "metadata.uid": "",
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "spec.nodeName": "localhost",
    }
    env: dict[str, str] = {}
    for entry in container.get("env") or []:
        name, origin = entry["name"], entry.get("valueFrom") or {}
        if not origin:
            env[name] = _plain(entry.get("value", ""))
        elif (path := origin.get("fieldRef", {}).get("fieldPath")) in fields:
            env[name] = fields[path]
        else:
            raise RenderError(f"variable {name} is from {origin}, which has no local counterpart")
    return env
