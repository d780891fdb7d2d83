"""One attempt to bind the pod of one BindRequest, as its plugins see it."""

import asyncio
import logging
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import orjson

from shared.api.bindrequest import BindRequest, BindRequestSpec
from shared.api.meta import Object
from shared.kube.client import KubeClient


def copied(raw: Object) -> Object:
    """Return a copy of a raw object down to its leaves, by far faster than copy.deepcopy."""
    found: Object = orjson.loads(orjson.dumps(raw))
    return found


@dataclass(slots=True)
class BindingPosts:
    """What is known of the attempt's POSTs of a Binding; kept up by ``bind_by_post``."""

    last_unknown: datetime | None = None  # when one without an answer was given up: it may still take effect
    stopping: asyncio.Event = field(default_factory=asyncio.Event)  # set when no further one may be sent
    acknowledged: bool = False  # the API server has answered 201


@dataclass(frozen=True, slots=True)
class BindContext:
    """One attempt, from preflight to post_bind; a rollback and a completion after a restart have one of their own.

    ``pod``, ``node`` and ``request.raw`` are copies for this attempt, shared by its plugins. Writing into them
    changes neither the caches nor the API server: what the pod is to carry is returned by ``before_bind``.
    ``pod`` is whole but for its managed fields. ``node`` is the node's metadata alone, with no labels but those
    of GPUs (``nvidia.com/gpu`` with a suffix): for anything else GET the node with ``client``. ``pod`` is None
    only in a rollback whose pod does not exist any more, ``node`` only where the node does not.

    ``annotations`` are those of the Binding, so far: in bind and post_bind, of all plugins; empty of them in a
    completion after a restart. ``state`` is the plugin's own, kept until ``forget``. ``cancelled`` is set when the
    request is withdrawn before the point of no return; a plugin that takes long checks it.
    """

    request: BindRequest
    pod: Object | None
    node: Object | None
    attempt: int  # 1 for the first
    attempt_id: str  # on every log line
    deadline: datetime  # when the present wait expires, or one that began now
    client: KubeClient
    log: logging.LoggerAdapter[logging.Logger]
    state: dict[str, Any] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    posts: BindingPosts = field(default_factory=BindingPosts)

    def with_state(self, state: dict[str, Any]) -> "BindContext":
        """Return the same attempt as the owner of this state sees it."""
        # Several times a bind, and dataclasses.replace() takes three times as long.
        return BindContext(
            self.request,
            self.pod,
            self.node,
            self.attempt,
            self.attempt_id,
            self.deadline,
            self.client,
            self.log,
            state,
            self.annotations,
            self.cancelled,
            self.posts,
        )

    def with_request(self, request: BindRequest) -> "BindContext":
        """Return the same attempt with its request as it is now."""
        return replace(self, request=request)

    @property
    def spec(self) -> BindRequestSpec:
        """The request's spec; an attempt is only made of a valid one."""
        assert self.request.spec is not None  # noqa: S101 - decide() has refused an invalid spec
        return self.request.spec
