"""A plugin in attempts on a real API server, with the rights of its access, behind a proxy that disturbs requests.

``Lab`` is the cluster with the proxy; ``Trial`` one namespace with a pod and its BindRequest; ``Process`` what one
process of the reconciler has of the plugin: a new instance without memory, as after a restart. The plugin's methods
are called by the framework's own Runner, then Bowline's default binder binds.
"""

import asyncio
import copy
import json
import re
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from yarl import URL

from bowline.api import names
from bowline.api.bindrequest import decode_bind_request, effects_record
from bowline.api.meta import ObjectKey, ObjectRef
from bowline.framework.binding.calls import PluginCaller
from bowline.framework.binding.runner import Runner
from bowline.framework.config import Settings
from bowline.framework.interface.access import AccessRule
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.plugin import Plugin, PluginConfig
from bowline.framework.interface.status import Done, Fatal, Status, Waiting
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ClusterAccess, load_access
from bowline.kube.errors import NotFound
from bowline.kube.metrics import KubeMetrics
from bowline.kube.resources import BINDREQUESTS, NAMESPACES, NODES, PODS
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.plugins.default_binder import DefaultBinder
from bowline.testing import builders
from bowline.testing.account import account_of, chart_values
from bowline.testing.admission import create_reviewed
from bowline.testing.expected import Expected
from bowline.testing.fault_proxy.calls import ProxiedCall
from bowline.testing.fault_proxy.record import Exchange
from bowline.testing.fault_proxy.server import FaultProxy
from bowline.testing.plugin_process import running_plugins
from bowline.testing.subject import Subject

# Between two calls while a plugin waits.
_WAKE_S = 0.05
# For the other party to end.
_WORLD_END_S = 5.0
ATTEMPTS = 4  # after which an undisturbed attempt must have succeeded
# Of metadata, what the API server sets.
VOLATILE = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "selfLink")
# What differs between trials beside the identity of the trial's own objects.
_NEUTRAL = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "UUID"),  # of another object of the trial
    (re.compile(r"(?<![0-9a-z])([0-9a-f]{16,}|\d{10,})(?![0-9a-z])"), "DIGEST"),  # of a name or UID; a time
    (re.compile(r'"resourceVersion": "\d+"'), '"resourceVersion": "VERSION"'),  # in a reference
)
# Of a UID in a name: fewer characters occur by chance.
_SHORTEST_PART = 6
# Called often, and never the plugin's: events of a recorder.
_IGNORED = ("events",)


class Calls(PluginCaller):
    """Calls the plugins and keeps their errors and results, and the keys of what the Binding is to set."""

    def __init__(self, keys: set[str]) -> None:
        super().__init__(self)
        self._keys = keys
        self.errors: list[str] = []
        self.results: list[tuple[str, Status]] = []  # plugin, result of each call of an attempt

    async def run(
        self,
        plugin: Plugin,
        point: str,
        check: Callable[[Any], Status | None],
        budget_s: float,
        ctx: BindContext | None,
        call: Callable[[], Awaitable[Any]],
    ) -> Status:
        """Call a method; see ``PluginCaller``."""
        status = await super().run(plugin, point, check, budget_s, ctx, call)
        if isinstance(status, Done):
            self._keys.update(status.annotations or (), status.labels or ())
        if ctx is not None:
            self.results.append((plugin.name, status))
        return status

    def plugin_raised(self, plugin: str, point: str, context: BindContext | None, error: Exception) -> None:
        """Keep the error."""
        self.errors.append(f"{point}: {type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class Lab:
    """A cluster, the proxy in front of it, and the clients' accesses: the test's own, with every right, and those of
    plugins through the proxy.
    """

    cluster: Cluster
    proxy: FaultProxy
    access: ClusterAccess
    # Of the accounts, by the chart's values that they are rendered with.
    accounts: dict[str, ClusterAccess] = field(default_factory=dict)
    # Of each subject, what its undisturbed attempt does.
    expected: dict[Subject, Expected] = field(default_factory=dict)
    # Subjects whose undisturbed attempt fails: what repeats it says nothing, and takes the limit each time.
    unbound: set[Subject] = field(default_factory=set)
    # The checks of each subject that were run, and after which exchange the first one began.
    checks: defaultdict[Subject, set[str]] = field(default_factory=lambda: defaultdict(set))
    began: dict[Subject, int] = field(default_factory=dict)
    # Annotations, labels and conditions that its pods had, and that a Binding was to set.
    keys: defaultdict[Subject, set[str]] = field(default_factory=lambda: defaultdict(set))

    async def account(self, plugins: Sequence[Plugin]) -> ClusterAccess:
        """Return the access of an account with the rights of these plugins."""
        values = chart_values(plugins)
        key = json.dumps(values)
        if key not in self.accounts:
            kubeconfig = await asyncio.to_thread(account_of, self.cluster, values)
            proxied = self.proxy.kubeconfig(kubeconfig, kubeconfig.with_suffix(f".{URL(self.proxy.url).port}"))
            self.accounts[key] = load_access(api_server(proxied))
        return self.accounts[key]

    def denials(self, plugin: Plugin, since: int = 0) -> list[str]:
        """Return a sentence for each kind of call that the API server has denied after exchange number ``since``."""
        denials = {exchange.call.kind: exchange for exchange in self.proxy.exchanges(since) if exchange.code == 403}
        return [_denial(plugin, exchange) for exchange in denials.values()]

    def writes(self, since: int = 0) -> list[ProxiedCall]:
        """Return the writes through the proxy after exchange number ``since``."""
        calls = (exchange.call for exchange in self.proxy.exchanges(since))
        return [call for call in calls if call.writes and call.resource not in _IGNORED]


@contextmanager
def lab_on(cluster: Cluster) -> Iterator[Lab]:
    """Put a proxy in front of the cluster."""
    with FaultProxy(cluster.server, cluster.ca_pem) as proxy:
        yield Lab(cluster, proxy, load_access(api_server(cluster.kubeconfig)))


def _denial(plugin: Plugin, exchange: Exchange) -> str:
    call = exchange.call
    resource = "/".join(filter(None, (call.resource, call.subresource)))
    rules = [rule for rule in plugin.access.rules if (rule.group, rule.resource) == (call.group, resource)]
    declared = "; ".join(f"its access declares {_words(rule)}" for rule in rules) or "its access does not declare it"
    where = f" in namespace {call.namespace}" if call.namespace else ""
    return f"{plugin.name} may not {call.kind}{where}; {declared}: {exchange.message or 'no such right'}"


def _words(rule: AccessRule) -> str:
    """Return the rule without what is empty."""
    values = ((field.name, getattr(rule, field.name)) for field in fields(rule))
    return ", ".join(f"{name}={value!r}" for name, value in values if value)


@dataclass(slots=True)
class LabProcess:
    """One process with the plugin: attempts and rollbacks of a trial's request."""

    trial: "Trial"
    plugin: BindingPlugin
    chain: Sequence[Plugin]  # with the others
    client: KubeClient
    calls: Calls
    runner: Runner
    metrics: CollectorRegistry
    denials: Callable[[], Sequence[str]]  # of this process's calls
    ends_wait: Callable[[ObjectKey, Sequence[ObjectRef]], bool]  # whether an event has
    attempts: int = 0
    is_calling: bool = False  # after the reads that precede the first call of a plugin
    wait: Waiting | None = None  # the last one
    states: dict[str, dict[str, Any]] = field(default_factory=dict)  # what the plugins remember of the request

    async def attempt(self, is_last: Callable[[], bool] = lambda: False) -> Status:
        """Run one attempt: pre_bind and bind, unless the pod is already bound; then post_bind.

        A WAIT uses no attempt: the methods are called again, as when what they wait for changes. The wait for the
        repair of a defective plugin is returned, and so is one for a right, or any once ``is_last`` holds.
        """
        status = await self._once()
        while isinstance(status, Waiting) and not is_last() and not self.calls.errors and not self.denials():
            self.wait = status
            await asyncio.sleep(_WAKE_S)
            status = await self._once()
        return status

    async def _once(self) -> Status:
        ctx = await self.trial.context(self)
        assert ctx.pod is not None  # noqa: S101 - the trial's own pod
        if not ctx.pod["spec"].get("nodeName"):
            answers = self.runner.answers(ctx.request, ctx.pod)
            ctx = replace(await self.trial.hold(ctx, answers.effects), answers=answers)
            self.is_calling = True
            status = await self.runner.run_pre_bind(ctx)
            if isinstance(status, Done):
                status = await self.runner.run_bind(ctx)
            if not isinstance(status, Done):
                return status
        await self.runner.run_post_bind(ctx)
        return Status.ok()

    async def succeed(self) -> Status:
        """Attempt until it succeeds, at most ATTEMPTS times; return the last status."""
        status = await self.attempt()
        for _ in range(ATTEMPTS - 1):
            if isinstance(status, Done | Fatal):
                break
            status = await self.attempt()
        return status

    async def roll_back(self) -> Status:
        """Roll back until it succeeds, at most ATTEMPTS times; return the last status.

        As in the reconciler, nothing is called for a request that no plugin had side effects for.
        """
        why = Status.fatal("the request is abandoned by a test")
        return await self._repeated(lambda ctx: self.runner.run_rollback(ctx, why))

    async def release(self) -> Status:
        """Release what the pod holds until it succeeds, at most ATTEMPTS times; return the last status."""
        return await self._repeated(self.runner.run_release)

    async def _repeated(self, undo: Callable[[BindContext], Awaitable[Status]]) -> Status:
        status: Status = Status.ok()
        for _ in range(ATTEMPTS):
            ctx = await self.trial.context(self)
            if not ctx.request.has_finalizer:
                break
            status = await undo(ctx)
            if isinstance(status, Done):
                break
        return status


@dataclass(slots=True)
class Trial:
    """A namespace with a pod and its BindRequest, and the plugin that binds it."""

    lab: Lab
    subject: Subject
    admin: KubeClient
    namespace: str
    pod_uid: str = ""
    request_uid: str = ""
    node: str = ""
    before: Mapping[str, str] = field(default_factory=dict)
    others: "list[Trial]" = field(default_factory=list)  # with other pods in the namespace

    async def prepare(self) -> None:
        """Create the namespace, the objects, and what is bound. Raises NotAdmittedError."""
        await self.admin.create(NAMESPACES, "", {"metadata": {"name": self.namespace}})
        self.node = min(node["metadata"]["name"] for node in await self.admin.list_all(NODES, ""))
        for resource, body in self.subject.objects_in(self.namespace):
            await self.admin.create(resource, body["metadata"].get("namespace", ""), body)
        await self.submit()

    async def submit(self) -> None:
        """Create pod and request; the plugins' admission reviews them. Raises NotAdmittedError."""
        pod = copy.deepcopy(self.subject.samples()[0])
        pod["metadata"]["namespace"] = self.namespace
        plugins = self.subject.chain()[1]
        created = await create_reviewed(self.admin, plugins, PODS, self.namespace, pod)
        self.pod_uid = created["metadata"]["uid"]
        name = created["metadata"]["name"]
        spec = {"podUID": self.pod_uid, **self.subject.request_in(self.namespace)}
        request = builders.bind_request(name, self.node, self.namespace, self.pod_uid, **spec)
        stored = await create_reviewed(self.admin, plugins, BINDREQUESTS, self.namespace, request)
        self.request_uid = stored["metadata"]["uid"]

    @asynccontextmanager
    async def process(self) -> AsyncIterator[LabProcess]:
        """Start the plugins as a process does, and end them so. Requests go through the proxy."""
        plugin, chain = self.subject.chain()
        assert isinstance(plugin, BindingPlugin)  # noqa: S101 - the caller has chosen a binding plugin
        if not isinstance(plugin, DefaultBinder):
            chain = [*chain, DefaultBinder(PluginConfig(), Settings())]
        calls = Calls(self.lab.keys[self.subject])
        account = await self.lab.account(chain)
        denials = partial(self.lab.denials, plugin, self.lab.proxy.latest())
        metrics = CollectorRegistry()
        async with (
            KubeClient(account, ClientOptions("bowline-plugin-test", metrics=KubeMetrics(metrics))) as client,
            running_plugins(chain, client, metrics, denials) as ends_wait,
            self._played_world(),
        ):
            runner = Runner(chain, calls)
            yield LabProcess(self, plugin, chain, client, calls, runner, metrics, denials, ends_wait)

    @asynccontextmanager
    async def _played_world(self) -> AsyncIterator[None]:
        if self.subject.world is None:
            yield
            return
        playing = asyncio.ensure_future(self.subject.world(self.admin, self.namespace))
        try:
            yield
        finally:
            playing.cancel()
            await asyncio.wait([playing], timeout=_WORLD_END_S)
            if playing.done() and not playing.cancelled():
                playing.result()

    async def stored(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the pod and the request, as stored."""
        name = self.subject.samples()[0]["metadata"]["name"]
        return (
            await self.admin.get(PODS, self.namespace, name),
            await self.admin.get(BINDREQUESTS, self.namespace, name),
        )

    async def beside(self) -> "Trial":
        """Return the same with another pod in the namespace, without objects of its own; it ends with this one."""
        pod = copy.deepcopy(self.subject.samples()[0])
        pod["metadata"]["name"] += "-beside"
        other = replace(self, subject=replace(self.subject, pods=[pod]), others=[])
        await other.submit()
        self.others.append(other)
        return other

    async def end_pod(self) -> None:
        """Delete the pod, as when it has ended."""
        name = self.subject.samples()[0]["metadata"]["name"]
        with suppress(NotFound):
            await self.admin.delete(PODS, self.namespace, name, grace_period_s=0)

    async def context(self, process: LabProcess) -> BindContext:
        """Return the context of the next attempt, from the stored objects."""
        name = self.subject.samples()[0]["metadata"]["name"]
        raw = await self.admin.get(BINDREQUESTS, self.namespace, name)
        try:
            pod = await self.admin.get(PODS, self.namespace, name)
        except NotFound:
            pod = None
        node = await self.admin.get(NODES.as_metadata(), "", self.node)
        process.attempts += 1
        request = decode_bind_request(raw)
        return BindContext(request, pod, node, process.attempts, process.client, states=process.states)

    async def hold(self, ctx: BindContext, effects: frozenset[str]) -> BindContext:
        """Record the plugins that may have side effects, as the reconciler does before an attempt."""
        request = ctx.request
        if effects <= (request.effects or frozenset()):
            return ctx
        record = effects_record(effects | (request.effects or frozenset()))
        metadata = {"finalizers": [names.FINALIZER], "annotations": {names.EFFECTS: record}}
        key = request.key
        raw = await self.admin.patch(BINDREQUESTS, key.namespace, key.name, {"metadata": metadata})
        return replace(ctx, request=decode_bind_request(raw))

    def prefix(self, group: str) -> str:
        """Return the path of an API group, in the version that the API server prefers."""
        return f"/apis/{group}/{_version(self.lab.cluster, group)}" if group else "/api/v1"

    def footprint(self, collections: frozenset[tuple[str, str]]) -> dict[str, str]:
        """Return the objects of the written collections, without what differs between trials."""
        objects: dict[str, str] = {}
        for group, plural in sorted(collections):
            for item in self.lab.cluster.api.get(f"{self.prefix(group)}/{plural}").get("items") or []:
                if item["metadata"].get("namespace", self.namespace) != self.namespace and not _mentions(item, self):
                    continue
                _add(objects, self.neutral(f"{plural} {_name(item)}"), self.neutral(_text(item)))
        for effect in self.subject.effects():
            _add(objects, self.neutral(f"outside: {effect}"), "{}")
        return {key: text for key, text in objects.items() if self.before.get(key) != text}

    def neutral(self, text: str) -> str:
        """Return the text without what differs between trials; this pod's identity differs from another one's."""
        for prefix, owner in (("", self), *(("OTHER-", other) for other in self.others)):
            for value, kind in ((owner.request_uid, "REQUEST-UID"), (owner.pod_uid, "POD-UID")):
                for part in _parts(value):
                    text = text.replace(part, prefix + kind)
        text = text.replace(self.namespace, "NAMESPACE")
        for pattern, word in _NEUTRAL:
            text = pattern.sub(word, text)
        return text


@asynccontextmanager
async def trial(lab: Lab, subject: Subject) -> AsyncIterator[Trial]:
    """Prepare a trial. Its pods, which occupy the node, end with it; other objects stay until the cluster ends."""
    async with KubeClient(lab.access, ClientOptions(name="bowline-conformance")) as admin:
        made = Trial(lab, subject, admin, f"test-{uuid.uuid4().hex[:8]}")
        await made.prepare()
        try:
            yield made
        finally:
            for pod in await admin.list_all(PODS, ""):
                if _mentions(pod, made):
                    lab.keys[subject].update(_keys_of(pod))
                    with suppress(NotFound):
                        await admin.delete(
                            PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], grace_period_s=0
                        )


def _keys_of(pod: Mapping[str, Any]) -> Iterator[str]:
    for entries in (pod["metadata"].get("annotations"), pod["metadata"].get("labels")):
        yield from entries or ()
    yield from (condition["type"] for condition in pod["status"].get("conditions") or ())


def _add(objects: dict[str, str], name: str, text: str) -> None:
    """Add an object; several of one name are numbered."""
    key, number = name, 1
    while key in objects:
        key, number = f"{name} ({number + 1})", number + 1
    objects[key] = text


def _parts(uid: str) -> list[str]:
    """Return what names are made of a UID: all of it, its first or its last characters; the longest first."""
    lengths = range(len(uid), _SHORTEST_PART - 1, -1)
    return [part for length in lengths for part in (uid[:length], uid[-length:])] if uid else []


def _version(cluster: Cluster, group: str) -> str:
    return str(cluster.api.get(f"/apis/{group}")["preferredVersion"]["version"])


def _mentions(item: Mapping[str, Any], made: Trial) -> bool:
    text = json.dumps(item)
    return made.pod_uid in text or made.request_uid in text or made.namespace in text


def _name(item: Mapping[str, Any]) -> str:
    """Return the object's name, without what the API server has generated of it."""
    metadata = item["metadata"]
    return f"{metadata['generateName']}*" if "generateName" in metadata else str(metadata["name"])


def _text(item: Mapping[str, Any]) -> str:
    metadata = {key: value for key, value in item["metadata"].items() if key not in VOLATILE}
    metadata["name"] = _name(item)
    return json.dumps({**item, "metadata": metadata, "status": item.get("status")}, sort_keys=True)
