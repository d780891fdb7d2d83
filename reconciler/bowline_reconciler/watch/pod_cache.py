"""The unbound pods of the cluster, at most 1 KB each, and 32 KB while a request names them.

A batch queue holds tens of thousands of unscheduled pods, and a decoded pod takes 18 KB. So a pod is kept decoded
only while a request names it. Any other pod is packed: compressed with a pod of its namespace as the dictionary,
because pods of a queue resemble each other. A pod that is still too large, or larger than MAX_DECODED while a request
names it, or of which only the identity was read, is kept without its content: it is absent from this cache, which
proves nothing, so it is read live. So is a pod that is known to be bound, while the watch still shows it as unbound.

A pod that ended without a node is not kept, unless a request names it. To keep only what decisions need would cost a
GET for each bind.
"""

import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

import orjson

from bowline.api.meta import (
    Object,
    ObjectKey,
    ObjectUID,
    ResourceVersion,
    has_ended,
    is_reduced,
    key_of,
    uid_of,
    version_of,
)
from bowline.kube.store import Store

# With its key, its identity and the dict entry, a packed pod stays below 1 KB.
MAX_PACKED = 480
# JSON bytes of a pod that is kept decoded: the largest pods have few kilobytes that are not a tenant's annotations.
MAX_DECODED = 32 * 1024
# JSON bytes of a pod that is packed: one that is larger would hardly fit, and the attempt would block the event loop.
MAX_PLAIN = 16 * 1024
# Dictionaries: the first pod of each of MAX_NAMESPACES namespaces, if it is small enough; other namespaces use the
# first dictionary.
MAX_NAMESPACES, MAX_DICTIONARY = 64, 4096
# A window and tables sized for a pod: setting up zlib's defaults would take longer than compressing a pod.
_WINDOW, _MEMORY, _LEVEL = -13, 5, 6


@dataclass(slots=True)
class _Packed:
    """A pod. ``content`` is empty while the pod is kept decoded, or if it is too large or outdated."""

    uid: ObjectUID
    version: ResourceVersion
    content: bytes = b""
    dictionary: bytes = b""
    is_outdated: bool = False  # the pod is bound: what the watch shows until it drops the pod is older

    @property
    def identity(self) -> Object:
        """The identity of a pod, without unpacking it."""
        return {"metadata": {"uid": self.uid, "resourceVersion": self.version}}


class PodCache(Store):
    """Unbound pods by key; ``get`` returns None for a pod kept without content.

    ``is_named``: whether a request names the pod, that is, whether its content may be needed.
    """

    def __init__(self, is_named: Callable[[ObjectKey], bool]) -> None:
        super().__init__(keeps_identities=True)
        self._is_named = is_named
        self._entries: dict[ObjectKey, _Packed] = {}
        # The named pods that are decoded.
        self._pods: dict[ObjectKey, Object] = {}
        self._dictionaries: dict[str, bytes] = {}

    def pack(self, key: ObjectKey) -> None:
        """Pack the pod, if no request names it any more."""
        pod = self._pods.pop(key, None) if not self._is_named(key) else None
        if pod is None:
            return
        if has_ended(pod):
            del self._entries[key]
        else:
            self._entries[key] = self._pack(key, pod)

    def offer(self, pod: Object) -> None:
        """Cache a named pod that was read live, if the watch has reported that version and its content is missing.

        If it is bound, the cached pod of that UID is absent from now on: no binding is ever taken back, and the next
        request for it must not be attempted because the watch still shows it.
        """
        key = key_of(pod)
        if pod["spec"].get("nodeName"):
            # One that is not cached is not marked: most have left the watch already, and nothing would drop the mark.
            # One that the watch has yet to show is read live until then. Should the watch stop between its creation
            # and its bind, another decision begins an attempt: a plugin's write for an unbound pod requires its
            # version, and the rollback reads the pod live.
            if self.uid(key) == uid_of(pod):
                self._pods.pop(key, None)
                self._entries[key] = _Packed(uid_of(pod), version_of(pod), is_outdated=True)
            return
        is_shown = self.version(key) == version_of(pod) and self.uid(key) == uid_of(pod)
        if is_shown and key not in self._pods and self._is_named(key):
            self._keep(key, pod, len(orjson.dumps(pod)))

    def __getitem__(self, key: ObjectKey) -> Object:
        cached_pod = self._pods.get(key)
        if cached_pod is not None:
            return cached_pod
        entry = self._entries[key]
        if not entry.content:
            raise KeyError(key)
        content = zlib.decompressobj(_WINDOW, entry.dictionary).decompress(entry.content)
        pod: Object = orjson.loads(content)
        if self._is_named(key):
            self._keep(key, pod, len(content))
        return pod

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[ObjectKey]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> NoReturn:
        """Raise TypeError: this cache exists to avoid unpacking every pod."""
        raise TypeError("pods are unpacked one by one, by key")

    def version(self, key: ObjectKey) -> ResourceVersion | None:
        """Return a pod's resourceVersion; None if it is not cached."""
        entry = self._entries.get(key)
        return entry.version if entry is not None else None

    def uid(self, key: ObjectKey) -> ObjectUID | None:
        """Return a pod's UID; None if it is not cached."""
        entry = self._entries.get(key)
        return entry.uid if entry is not None else None

    def put(self, key: ObjectKey, pod: Object) -> Object | None:
        """Store a pod; returns the previous one's identity. For the reflector only."""
        before = self._entries.get(key)
        self._pods.pop(key, None)
        if before is not None and before.is_outdated and before.uid == uid_of(pod):
            self._entries[key] = _Packed(uid_of(pod), version_of(pod), is_outdated=True)
        elif self._is_named(key):
            self._entries[key] = _Packed(uid_of(pod), version_of(pod))
            if not is_reduced(pod):
                self._keep(key, pod, len(orjson.dumps(pod)))
        else:
            self._entries[key] = self._pack(key, pod)
        return before.identity if before is not None else None

    def drop(self, key: ObjectKey) -> Object | None:
        """Remove a pod; returns its identity. For the reflector only."""
        self._pods.pop(key, None)
        before = self._entries.pop(key, None)
        return before.identity if before is not None else None

    def _keep(self, key: ObjectKey, pod: Object, size: int) -> None:
        """Keep a named pod decoded, unless its JSON is larger than MAX_DECODED bytes."""
        if size <= MAX_DECODED:
            self._pods[key] = pod

    def _pack(self, key: ObjectKey, pod: Object) -> _Packed:
        plain = b"" if is_reduced(pod) else orjson.dumps(pod)
        if not 0 < len(plain) <= MAX_PLAIN:
            return _Packed(uid_of(pod), version_of(pod))
        dictionary = self._dictionary(key.namespace, plain)
        packing = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY, zlib.Z_DEFAULT_STRATEGY, dictionary)
        content = packing.compress(plain) + packing.flush()
        if len(content) > MAX_PACKED:
            content = b""
        return _Packed(uid_of(pod), version_of(pod), content, dictionary)

    def _dictionary(self, namespace: str, plain: bytes) -> bytes:
        """Return the compression dictionary of the namespace; the first pod of a namespace becomes its dictionary."""
        dictionary = self._dictionaries.get(namespace)
        if dictionary is not None:
            return dictionary
        if len(self._dictionaries) < MAX_NAMESPACES and len(plain) <= MAX_DICTIONARY:
            return self._dictionaries.setdefault(sys.intern(namespace), plain)
        return next(iter(self._dictionaries.values()), b"")
