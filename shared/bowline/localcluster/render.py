"""From a rendered pod template to a local process (pure: objects and file contents in, a plan out).

Runs exactly what the chart renders: command, arguments, environment and configuration files are the object's. Only
what a pod gets from its environment is replaced:

    the image          the interpreter and the checkout
    mounted volumes    folders, and the mount paths in arguments and environment are rewritten to them
    the token          `--server` and files for the pod's ServiceAccount
    the pod's address  listening addresses on loopback

What is not supported (an init container, a value from a resource field) is an error, never ignored: a silent
difference would make tests pass that fail on a cluster.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bowline.localcluster.errors import RenderError

SourceKind = Literal["configmap", "secret"]


class Source(NamedTuple):
    """A ConfigMap or Secret that a pod takes files or environment from."""

    kind: SourceKind
    name: str


# The data of each source; None if it does not exist, which is valid only for optional references.
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
    sources = [source for volume in _used_volumes(spec, container) for source, *_ in _volume_parts(volume)]
    for entry in container.get("env") or []:
        reference = _key_reference(entry.get("valueFrom") or {})
        if reference is not None:
            sources.append(reference[0])
    return list(dict.fromkeys(sources))


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
    env = _environment(container, contents, surroundings, spec)
    command = [*(container.get("command") or []), *(container.get("args") or [])]
    if not container.get("command"):
        raise RenderError(f"container {container['name']!r} names no command; the image's own is not known here")
    argv = [relocate(expand(word, env), mounts) for word in command]
    if re.fullmatch(r"(?:.*/)?python3?(?:\.\d+)?", argv[0]):
        argv[0] = surroundings.interpreter
    for flag, value in surroundings.flags.items():
        argv = with_flag(argv, flag, value)
    argv += surroundings.extra_args
    local_env = {name: relocate(value, mounts) for name, value in env.items()}
    return Plan(tuple(argv), local_env, files, tuple(folders))


def expand(text: str, env: Mapping[str, str]) -> str:
    """Expand `$(NAME)` as Kubernetes does: unknown names are unchanged, `$$` is a dollar sign."""

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return env.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^()\s]+)\)", replace, text)


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
    """The last value of `--flag=value` or `--flag value`; None if the flag is absent."""
    value = None
    for index, word in enumerate(argv):
        if word.startswith(f"{flag}="):
            value = word.partition("=")[2]
        elif word == flag and index + 1 < len(argv):
            value = argv[index + 1]
    return value


def with_flag(argv: Sequence[str], flag: str, value: str) -> list[str]:
    """The command line with this flag set once, at its first occurrence or at the end."""
    result: list[str] = []
    is_set = skip = False
    for word in argv:
        if skip:
            skip = False
            continue
        if word != flag and not word.startswith(f"{flag}="):
            result.append(word)
            continue
        skip = word == flag
        if not is_set:
            result.append(f"{flag}={value}")
        is_set = True
    return result if is_set else [*result, f"{flag}={value}"]


def _used_volumes(spec: Mapping[str, Any], container: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    mount_names = {mount["name"] for mount in container.get("volumeMounts") or []}
    return [volume for volume in spec.get("volumes") or [] if volume["name"] in mount_names]


def _volume_parts(volume: Mapping[str, Any]) -> list[tuple[Source, list[Mapping[str, str]] | None, bool]]:
    """(source, items, optional) of a volume; none for an emptyDir."""
    if "emptyDir" in volume:
        return []
    if "projected" in volume:
        return [part for source in volume["projected"].get("sources") or [] for part in _volume_parts(source)]
    if "configMap" in volume:
        block = volume["configMap"]
        return [(Source("configmap", block["name"]), block.get("items"), bool(block.get("optional")))]
    if "secret" in volume:
        block = volume["secret"]
        # A projected source has `name` where a volume has `secretName`.
        name = block.get("secretName") or block["name"]
        return [(Source("secret", name), block.get("items"), bool(block.get("optional")))]
    kinds = ", ".join(key for key in volume if key != "name")
    raise RenderError(f"volume {volume.get('name', '(projected)')!r} of kind {kinds} cannot be given locally")


def _volume_files(volume: Mapping[str, Any], contents: Contents) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for source, items, is_optional in _volume_parts(volume):
        data = contents.get(source)
        if data is None:
            if is_optional:
                continue
            raise RenderError(
                f"volume {volume.get('name')!r} needs the {source.kind} {source.name!r}, which is missing"
            )
        key_of_path = {item["path"]: item["key"] for item in items} if items else {key: key for key in data}
        for path, key in key_of_path.items():
            if key not in data:
                raise RenderError(f"the {source.kind} {source.name!r} has no key {key!r}")
            if path.startswith("/") or ".." in path.split("/"):
                raise RenderError(f"volume {volume.get('name')!r} puts a file outside itself: {path!r}")
            files[path] = data[key]
    return files


def _local_mount(mount: Mapping[str, Any], volumes: Mapping[str, Any], folder: Path) -> _Mount:
    if mount["name"] not in volumes:
        raise RenderError(f"mount {mount['mountPath']!r} names a volume that the pod does not have")
    home = folder / "volumes" / mount["name"]
    local = home / mount["subPath"] if mount.get("subPath") else home
    return _Mount(mount["mountPath"].rstrip("/"), local)


def _environment(
    container: Mapping[str, Any], contents: Contents, surroundings: Surroundings, spec: Mapping[str, Any]
) -> dict[str, str]:
    if container.get("envFrom"):
        raise RenderError(f"container {container['name']!r} uses envFrom, which is not carried over")
    fields = {
        "metadata.name": surroundings.pod_name,
        "metadata.namespace": surroundings.namespace,
        # Processes here run beside each other in one place, so none has a UID of its own.
        "metadata.uid": "",
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "spec.nodeName": "localhost",
        "status.podIP": "127.0.0.1",
        "status.hostIP": "127.0.0.1",
    }
    env: dict[str, str] = {}
    for entry in container.get("env") or []:
        name, origin = entry["name"], entry.get("valueFrom") or {}
        reference = _key_reference(origin)
        if not origin:
            env[name] = expand(entry.get("value", ""), env)
        elif reference is not None:
            source, key, is_optional = reference
            data = (contents.get(source) or {}).get(key)
            if data is not None:
                env[name] = data.decode()
            elif not is_optional:
                raise RenderError(f"variable {name} needs key {key!r} of the {source.kind} {source.name!r}")
        elif (path := origin.get("fieldRef", {}).get("fieldPath")) in fields:
            env[name] = fields[path]
        else:
            raise RenderError(f"variable {name} is from {origin}, which has no local counterpart")
    return env


def _key_reference(origin: Mapping[str, Any]) -> tuple[Source, str, bool] | None:
    kinds: tuple[tuple[str, SourceKind], ...] = (("configMapKeyRef", "configmap"), ("secretKeyRef", "secret"))
    for field_name, kind in kinds:
        if block := origin.get(field_name):
            return Source(kind, block["name"]), block["key"], bool(block.get("optional"))
    return None
