"""The plugin interface: one class, two hosts.

The webhook process calls only the synchronous admission methods (mutate, validate): pure, bounded, no I/O. The
reconciler calls the rest. Every method except the constructor is optional; one that is not overridden costs nothing,
because extension points are lists of the plugins that override them. A plugin implements one concern; retries,
timeouts, status, events and metrics are the framework's.

Every binding method may be called again after a crash, with only the API objects as state, and must first check
whether its effect already exists.

Exceptions are counted and logged with the plugin's name. In admission, the changes of a mutate method that raises are
undone and the object continues; a validate method that raises denies the object. In binding, an exception is a RETRY,
an ``InfrastructureError`` of shared.kube a TRANSIENT, a result of the wrong type a FATAL; a call that exceeds its
budget is a RETRY, or a TRANSIENT if the API server took the time.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from shared.api.bindrequest import AllocationKind, BindRequest
from shared.api.field_error import FieldError
from shared.api.meta import Object, ObjectKey
from shared.framework.gates import Gate
from shared.framework.mutable import MutableObject, MutablePod
from shared.framework.status import Status

if TYPE_CHECKING:
    from shared.framework.binding.context import BindContext
    from shared.framework.binding.handle import EventSource, Handle, Route
    from shared.framework.config import Settings


class PluginConfig(BaseModel):
    """Base of every plugin's ``args``: unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Inventory:
    """Cluster facts about the nodes, known to the webhook; warnings may use it, denials must not."""

    max_gpus_per_node: int
    nodes_with_memory_label: int


@dataclass(frozen=True, slots=True)
class AdmissionInfo:
    """The admission request that the object is part of.

    - ``is_validating_webhook``: true in the validating hook of live objects, after all mutation, where a plugin also
      reports that its own mutation is missing; false for templates, offline lint and the mutating hook.
    - ``kind``: the submitted object's kind, which for a template is not Pod.
    - ``inventory``: None where it is not known.
    - ``request_uid``: unique per request; generated values are derived from it, so that the chain stays pure. Empty
      offline.
    - ``user``: the requesting user. Empty offline.
    - ``traceparent``: the W3C trace context that a new BindRequest propagates. Empty without tracing.
    """

    operation: Literal["CREATE", "UPDATE"] = "CREATE"
    namespace: str = ""
    kind: str = "Pod"
    is_validating_webhook: bool = False
    inventory: Inventory | None = None
    request_uid: str = ""
    user: str = ""
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Preflight:
    """A plugin's cheap decision whether its pre_bind must run, and whether ``parallel`` to its neighbours.

    A plugin that is not parallel separates the groups before and after it even when it is skipped: plugins after it
    rely on that order.
    """

    run: bool
    parallel: bool = False


SKIP = Preflight(run=False)
SKIP_PARALLEL = Preflight(run=False, parallel=True)
RUN = Preflight(run=True)
RUN_PARALLEL = Preflight(run=True, parallel=True)


@dataclass(frozen=True, slots=True)
class Budgets:
    """Maximum duration of one plugin's calls, in seconds. A plugin overrides them with a value of its own."""

    call_s: float = 60.0  # one pre_bind or bind; a plugin that needs longer returns WAIT
    post_bind_s: float = 5.0  # one post_bind: it delays the report of the bind
    rollback_s: float = 10.0  # one rollback, which is retried until it returns OK; one forget
    setup_s: float = 60.0  # each of setup, start, stop and teardown


class Plugin:
    """Base class of every plugin. Subclass it, set ``name``, override the methods you need.

    Admission methods yield or return FieldErrors; one with ``is_warning`` does not deny. ``info`` describes the
    admission request. They must not modify their arguments except the Mutable ones.
    """

    name: ClassVar[str]
    config_model: ClassVar[type[PluginConfig]] = PluginConfig
    # Plugins that must be enabled for this one; they also precede it in the order.
    requires: ClassVar[tuple[str, ...]] = ()
    # Plugins that, if enabled, must precede this one.
    after: ClassVar[tuple[str, ...]] = ()
    # Plugins that, if enabled, must follow this one.
    before: ClassVar[tuple[str, ...]] = ()
    # Feature gates that this plugin declares; their values are in ``handle.gates``.
    gates: ClassVar[tuple[Gate, ...]] = ()
    # The feature gate, if any, without which the plugin as a whole is not available.
    gate: ClassVar[str | None] = None
    # The time budgets of its calls.
    budgets: ClassVar[Budgets] = Budgets()

    def __init__(self, args: Any, settings: "Settings") -> None:
        """Keep ``args`` (a validated ``config_model``) and the settings shared by several plugins.

        Called in both processes and by `bowline lint`. An exception is reported as a configuration error.
        """
        self.args = args
        self.settings = settings

    # --- admission (webhook, lint): sync, pure, bounded ---

    def mutate_pod(self, pod: MutablePod, info: AdmissionInfo) -> None:
        """Mutate a pod on CREATE, before it is stored. May be called again with its own result: be idempotent."""

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        """Return all errors, with paths relative to the pod.

        ``old`` is the stored pod on UPDATE, else None. Validate only the changes then: a pod that violates a rule
        added since must stay updatable.
        """
        return ()

    def mutate_ephemeral_containers(self, pod: MutablePod, old: Object, info: AdmissionInfo) -> None:
        """Mutate the ephemeral containers that are not in ``old``; the others are running. Must be idempotent."""

    def validate_ephemeral_containers(self, pod: Object, old: Object, info: AdmissionInfo) -> Iterable[FieldError]:
        """Return all errors of the ephemeral containers that are not in ``old``, paths relative to the pod."""
        return ()

    def mutate_bind_request(self, request: MutableObject, info: AdmissionInfo) -> None:
        """Mutate a BindRequest before it is stored; must be idempotent."""

    def validate_bind_request(self, request: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        """Return all errors that the CRD's schema cannot express."""
        return ()

    # --- properties of a request: pure, called by both processes ---

    def supported_allocations(self, request: BindRequest) -> Collection[AllocationKind]:
        """Return the allocation kinds of the request that this plugin provides.

        A request with a kind that no enabled plugin supports ends Failed/NoPlugin. Called in every reconcile; a
        plugin that raises here supports nothing.
        """
        return ()

    def has_side_effects(self, request: BindRequest) -> bool:
        """Return whether pre_bind may write anything that only rollback removes.

        If any plugin returns True, or raises, the request gets Bowline's finalizer before the first attempt.
        """
        return False

    # --- lifecycle (reconciler) ---

    async def setup(self, handle: "Handle") -> None:
        """Prepare, without writes to the API server. Once per process, before the plugin's watches begin.

        An exception prevents the process from starting. Not called in the webhook, nor for disabled plugins.
        """

    async def teardown(self) -> None:
        """Release the resources of setup, without writes. Once, when the process ends, also after a failed setup."""

    async def start(self) -> None:
        """Start working: this process is the leader and all caches are synced. Once per leadership term.

        An exception ends the process.
        """

    async def stop(self) -> None:
        """Release the resources of start, and drop state that another leader may change.

        Called once for each start, also for one that failed or was cancelled; a later term calls start again. After
        a crash it is not called.
        """

    # --- binding (reconciler) ---

    def preflight(self, ctx: "BindContext") -> Preflight:
        """Return whether pre_bind has anything to do for this request, and whether it may run in parallel. No I/O."""
        return RUN

    async def pre_bind(self, ctx: "BindContext") -> Status:
        """Prepare what the pod needs on its node. Called in every attempt, and again after a crash.

        - OK, SKIP: continue with the next plugin.
        - WAIT: the attempt ends without being counted; the next begins when an object of ``wake_on`` changes.
        - RETRY: the attempt ends and counts; the next begins after a backoff.
        - FATAL: the side effects are rolled back, then the request ends Failed.

        Of parallel plugins the first failure cancels the others; a WAIT lets them finish.
        """
        return Status.ok()

    def binding_annotations(self, ctx: "BindContext") -> Mapping[str, str]:
        """Return annotations for the pod; the Binding carries them in the same transaction. After all pre_bind."""
        return {}

    async def bind(self, ctx: "BindContext") -> Status:
        """Bind the pod, or return SKIP to leave it to the next plugin.

        From its first write on the request cannot be withdrawn. OK is believed only if the API server shows the pod
        on its node. After a crash the pod is read first, and bind is called again only if it is not bound. If every
        plugin returns SKIP, the request ends Failed/NoPlugin.
        """
        return Status.skip()

    async def post_bind(self, ctx: "BindContext") -> None:
        """Clean up after a bind; cannot change the outcome, an exception is only counted.

        Called once for each completion: again after a crash before Succeeded is written, not again after its own
        error or timeout. Mandatory work belongs in pre_bind or bind.
        """

    async def rollback(self, ctx: "BindContext", why: Status) -> Status:
        """Undo pre_bind of an abandoned request; ``why`` is the failure that ends it.

        OK and SKIP release the request; after anything else, or an exception, it is called again with a backoff, also
        by the next leader. ``ctx.state`` is empty after a restart: derive what to undo from the API objects.
        """
        return Status.ok()

    async def forget(self, key: ObjectKey) -> None:
        """Drop in-memory data about a request that no longer exists. No I/O; may be called for unknown requests."""

    # --- operations (reconciler) ---

    def on_failure(self, ctx: "BindContext", status: Status) -> Status | None:
        """Return another failure in place of a RETRY or FATAL of any plugin, or None to keep it.

        Accepted are RETRY, FATAL, WAIT and TRANSIENT; anything else is counted as an error and the failure is kept.
        """
        return None

    def event_sources(self) -> Iterable["EventSource"]:
        """Return the watches that wake waiting requests. Once per process, after setup."""
        return ()

    def routes(self) -> Iterable["Route"]:
        """Return read-only debug pages. Once per process, after setup."""
        return ()


def overrides(plugin: Plugin, method: str) -> bool:
    """Return whether the plugin's class overrides the method of ``Plugin``."""
    return getattr(type(plugin), method) is not getattr(Plugin, method)
