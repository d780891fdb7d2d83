"""The context of one binding attempt, as passed to plugins."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from bowline.api.bindrequest import BindRequest, BindRequestSpec
from bowline.api.meta import Object
from bowline.framework.interface.status import Answers, Done
from bowline.kube.object_client import ObjectClient


@dataclass(slots=True)
class BindingPosts:
    """State of the attempt's Binding POSTs; kept up to date by ``bind_by_post``."""

    acknowledged: bool = False  # the API server has answered 201
    rejected: bool = False  # none of the POSTs can have been applied


@dataclass(frozen=True, slots=True)
class BindContext:
    """One attempt, from pre_bind to post_bind. A rollback, and a completion after a restart, have a context of their
    own.

    - ``pod``, ``node``, ``request.raw``, ``annotations`` and ``labels`` are copies for this plugin in this attempt.
      Writing into them is seen by no other plugin, cache or API server: annotations for the pod are part of the
      result of pre_bind.
    - ``pod`` is complete except for its managed fields; None only in a rollback or a release whose pod
      no longer exists.
    - ``node`` is the node's metadata only, without labels except those of GPUs (``nvidia.com/gpu`` with a suffix,
      ``run.ai/fake.gpu``): for anything else GET the node with ``client``. None only if the node does not exist.
    - ``annotations`` are those collected for the Binding: in bind and post_bind those of all plugins; empty in a
      completion after a restart.
    - ``labels``: the same for labels.
    - ``state`` is the plugin's own, in memory, kept from attempt to attempt until a rollback begins. It saves writes
      and is no evidence: an attempt that relies on what an earlier one has written reads it. Empty in a rollback and
      in a release.
    - ``shared`` is what pre_bind of one plugin leaves for the others in this attempt, by the key ``<plugin>/<name>``
      that the writer documents. Empty in a rollback and in a completion after a restart.
    - ``cancelled`` is set when the request is withdrawn before the point of no return; a long-running plugin checks
      it.
    """

    request: BindRequest
    pod: Object | None
    node: Object | None
    attempt: int  # number of the attempt, from 1
    client: ObjectClient
    state: dict[str, Any] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    posts: BindingPosts = field(default_factory=BindingPosts)
    answers: Answers | None = None  # of the framework; None: the plugins have not been asked
    prepared: dict[str, Done] = field(default_factory=dict)  # of the framework: what pre_bind adds, by plugin
    views: dict[str, "BindContext"] = field(default_factory=dict)  # of the framework: that of each plugin
    states: dict[str, dict[str, Any]] = field(default_factory=dict)  # of the framework: the request's, by plugin

    @property
    def spec(self) -> BindRequestSpec:
        """The request's spec; an attempt exists only for a valid one."""
        assert self.request.spec is not None  # noqa: S101 - decide() has refused an invalid spec
        return self.request.spec
