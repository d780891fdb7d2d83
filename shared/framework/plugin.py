"""What a plugin is: one class, two hosts.

The webhook process calls only the synchronous methods (mutate, validate): pure, bounded, no I/O. The reconciler calls
the rest. Every method but the constructor is optional; one that is not overridden costs nothing, because extension
points are lists of the plugins that override them. A plugin owns meaning; retries, timeouts, status, events and
metrics are the framework's. Every binding method may be called again after a crash with only the API objects to go
by, and must first look whether its effect is already there.
"""

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from shared.api.bindrequest import BindRequest, Demand
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
    """Base of every plugin's ``args``: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the webhook knows of the nodes; warnings may use it, denials may not."""

    max_gpus_per_node: int
    nodes_with_memory_label: int


@dataclass(frozen=True, slots=True)
class AdmissionInfo:
    """What surrounds the object under judgement.

    ``final`` is true in the validating hook of live objects, after all mutation, when a plugin also reports that its
    own mutation is missing; false for templates, offline lint and the mutating hook. ``kind`` is the submitted
    object's kind, which for a template is not Pod. ``seed`` differs from request to request: what a plugin generates
    is derived from it, so that the chain stays pure; offline it is empty.

    ``user`` is who asks the API server, ``requested`` the pods that an unfinished BindRequest is known for; both are
    empty offline.
    """

    operation: Literal["CREATE", "UPDATE"] = "CREATE"
    namespace: str = ""
    kind: str = "Pod"
    final: bool = False
    inventory: Inventory | None = None
    seed: str = ""
    user: str = ""
    requested: Container[ObjectKey] = frozenset()


@dataclass(frozen=True, slots=True)
class Preflight:
    """A plugin's cheap answer before pre_bind: run me (beside my neighbours, if ``parallel``) or leave me out.

    A plugin that is not parallel separates the groups before and after it even when it is left out: what comes after
    it was written to rely on that.
    """

    run: bool
    parallel: bool = False


SKIP = Preflight(run=False)
SKIP_PARALLEL = Preflight(run=False, parallel=True)
RUN = Preflight(run=True)
RUN_PARALLEL = Preflight(run=True, parallel=True)


@dataclass(frozen=True, slots=True)
class Budgets:
    """How long calls of one plugin may take, in seconds. A plugin overrides them with a value of its own."""

    call_s: float = 60.0  # one pre_bind or bind; a plugin that needs longer answers WAIT
    post_bind_s: float = 5.0  # one post_bind: it delays the report of the bind
    rollback_s: float = 10.0  # one rollback, which is repeated until it answers OK; one forget
    setup_s: float = 60.0  # each of setup, start, stop and teardown


class Plugin:
    """Base class of every plugin. Subclass, name it, override what you need."""

    name: ClassVar[str]
    config_model: ClassVar[type[PluginConfig]] = PluginConfig
    # Enabled plugins without which this one makes no sense; they also come before it in the order.
    requires: ClassVar[tuple[str, ...]] = ()
    # Plugins that, if enabled, must come before this one.
    after: ClassVar[tuple[str, ...]] = ()
    # Plugins that, if enabled, must come after this one.
    before: ClassVar[tuple[str, ...]] = ()
    # Feature gates of this plugin's own: switches of alpha or beta behaviour, read from ``handle.gates``.
    gates: ClassVar[tuple[Gate, ...]] = ()
    # The name of the feature gate, if any, without which this plugin as a whole does not exist.
    gate: ClassVar[str | None] = None
    # How long its calls may take.
    budgets: ClassVar[Budgets] = Budgets()

    def __init__(self, args: Any, settings: "Settings") -> None:
        """Keep ``args`` (an instance of ``config_model``) and the settings shared by several plugins."""
        self.args = args
        self.settings = settings

    # --- admission (webhook, lint): sync, pure, bounded ---

    def mutate_pod(self, pod: MutablePod, info: AdmissionInfo) -> None:
        """Change the pod before it is stored; must be idempotent."""

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        """Return every fault, paths relative to the pod. ``old`` is set on UPDATE: judge only what changed."""
        return ()

    def mutate_ephemeral_containers(self, pod: MutablePod, old: Object, info: AdmissionInfo) -> None:
        """Change ephemeral containers that ``old`` has not; those it has are running. Must be idempotent."""

    def validate_ephemeral_containers(self, pod: Object, old: Object, info: AdmissionInfo) -> Iterable[FieldError]:
        """Return every fault of ephemeral containers that ``old`` has not, paths relative to the pod."""
        return ()

    def validate_binding(self, pod: ObjectKey, info: AdmissionInfo) -> Iterable[FieldError]:
        """Return why ``info.user`` may not bind the pod; paths relative to the Binding."""
        return ()

    def mutate_bind_request(self, request: MutableObject, info: AdmissionInfo) -> None:
        """Change a BindRequest before it is stored; must be idempotent."""

    def validate_bind_request(self, request: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        """Return every fault that the CRD's schema cannot see."""
        return ()

    # --- facts about a request: pure, called by both processes ---

    def serves(self, request: BindRequest) -> Collection[Demand]:
        """Return which demands of the request this plugin fulfils. Unserved demands end it Failed/NoPlugin."""
        return ()

    def leaves_effects(self, request: BindRequest) -> bool:
        """Return whether pre_bind may leave something in the API that only rollback would remove."""
        return False

    # --- lifecycle (reconciler) ---

    async def setup(self, handle: "Handle") -> None:
        """Prepare; no writes. Once a process, before its watches; not called for disabled plugins."""

    async def teardown(self) -> None:
        """Release what setup took. Once, when the process ends, also after a setup that failed; no writes."""

    async def start(self) -> None:
        """Begin to work: this process leads and all caches are synced. Once each term of leadership."""

    async def stop(self) -> None:
        """Release what start took, and forget what another leader may change.

        Called once for each start, also for one that failed or was cancelled; a later term has another start.
        """

    # --- binding (reconciler) ---

    def preflight(self, c: "BindContext") -> Preflight:
        """Say whether pre_bind has anything to do for this request; cheap, no I/O."""
        return RUN

    async def pre_bind(self, c: "BindContext") -> Status:
        """Prepare what the pod needs on its node."""
        return Status.ok()

    def before_bind(self, c: "BindContext") -> Mapping[str, str]:
        """Return annotations that the Binding carries to the pod, in the same transaction."""
        return {}

    async def bind(self, c: "BindContext") -> Status:
        """Bind the pod, or SKIP for the next plugin to do it."""
        return Status.skip()

    async def post_bind(self, c: "BindContext") -> None:
        """Tidy up after a bind; cannot change the outcome.

        Called once for each completion: again after a crash before Succeeded is written, not again after an error or
        a timeout of its own. What must happen belongs into pre_bind or bind.
        """

    async def rollback(self, c: "BindContext", why: Status) -> Status:
        """Undo pre_bind, from ``c.state`` or from what is visible; repeated until OK."""
        return Status.ok()

    async def forget(self, key: ObjectKey) -> None:
        """Drop what is remembered in memory about a request that has left the system."""

    # --- operations (reconciler) ---

    def on_failure(self, c: "BindContext", status: Status) -> Status | None:
        """Reclassify a failure or add a suggestion; None leaves it as it is."""
        return None

    def event_sources(self) -> Iterable["EventSource"]:
        """Return the watches that wake waiting requests."""
        return ()

    def routes(self) -> Iterable["Route"]:
        """Return read-only debug pages."""
        return ()


def overrides(plugin: Plugin, method: str) -> bool:
    """Return whether the plugin's class overrides the method of ``Plugin``."""
    return getattr(type(plugin), method) is not getattr(Plugin, method)
