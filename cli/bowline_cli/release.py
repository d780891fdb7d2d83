"""What an installed release lacks, decided from what was read of the cluster. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from bowline.api import names
from bowline.api.gpu_operator import (
    GpuRuntime,
    operator_mode,
    runtime_problem,
    transform_policy,
)
from bowline.api.meta import Object, ObjectKey, key_of, parse_time
from bowline.framework.config import Settings
from bowline.kube.denial import Denial
from bowline_cli.reader import COMPONENT, Unread, acquired_at, component_of, readable
from bowline_cli.rule import admission_rules
from bowline_webhook.tls.bundle import bundle_of, entries
from bowline_webhook.tls.ca import from_pem, is_valid_at

CRD = f"{names.PLURAL}.{names.GROUP}"
CHECKS_CRD = f"bindchecks.{names.DOMAIN}"
# The name of the hook that reviews new pods.
POD_HOOK = f"pods.{names.DOMAIN}"
# Those that only Bowline's CRD defines: with another project's the API server drops them. A test compares.
STATUS_FIELDS = frozenset(
    {"completionTime", "conditions", "lastAttemptTime", "nextAttemptTime"}
    | {"failure", "nodeName", "observedGeneration", "startTime", "suggestion", "wait"}
)


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to an object that is created as a dry run: the object, or the message of its denial.

    ``rules``: ids of those by which a webhook of Bowline has denied it.
    """

    stored: Object | None
    message: str = ""
    rules: frozenset[str] = frozenset()

    @property
    def denial(self) -> Denial:
        """What the message states of the denial."""
        return Denial.of(self.message)

    def is_denied_by_another(self, webhook: str) -> bool:
        """Return whether a policy or a hook that is not the release's has denied the object, or a plugin's own rule.

        ``webhook``: the name of the release's webhook, from which the names of its policies are known.
        """
        denial = self.denial
        if denial.policy:
            return not denial.policy.startswith(webhook.removesuffix("webhook"))
        if denial.webhook.endswith(f".{names.DOMAIN}"):
            return bool(self.rules) and self.rules.isdisjoint(rule.id for rule in admission_rules())
        return bool(denial.webhook)


@dataclass(frozen=True, slots=True)
class ReleaseFinding:
    """One line of the report. ``remedy``: what to do next; empty if the line states what was not checked."""

    text: str
    remedy: str = ""

    def __str__(self) -> str:
        text = " ".join(self.text.split())  # a message may have several lines
        return f"missing: {text}; next: {self.remedy}" if self.remedy else f"not checked: {text}"


@dataclass(frozen=True, slots=True)
class InstalledRelease:
    """What was read. None is an object that does not exist, or a reply to an object that was not sent.

    ``crd``, ``checks_crd``: the definitions of BindRequests, and of plugin checks' objects.
    ``not_read``: events about objects that a reconciler does not read. ``now``: the API server's time. ``requests``:
    some BindRequests of the cluster. ``agent``: the ServiceAccount of reservation pods. ``runtime_classes``,
    ``policies``: RuntimeClasses, and ClusterPolicies of NVIDIA's GPU operator. ``mutating``, ``validating``: the
    webhook configurations. ``guards``, ``guard_bindings``: the release's ValidatingAdmissionPolicies, and what puts
    them in force.
    """

    namespace: str
    now: datetime
    deployments: Sequence[Object] | Unread = ()
    leases: Sequence[Object] | Unread = ()
    requests: Sequence[Object] | Unread = ()
    not_read: Sequence[Object] | Unread = ()
    crd: Object | Unread | None = None
    settings: Settings | Unread = field(default_factory=Settings)
    checks_crd: Object | Unread | None = None
    agent: Object | Unread | None = None
    runtime_classes: Sequence[Object] | Unread | None = None
    policies: Sequence[Object] | Unread = ()
    mutating: Object | Unread | None = None
    validating: Object | Unread | None = None
    guards: Sequence[Object] | Unread = ()
    guard_bindings: Sequence[Object] | Unread = ()
    valid: Reply | Unread | None = None
    invalid: Reply | Unread | None = None
    request: Reply | Unread | None = None

    def components(self, name: str) -> list[Object]:
        """Return the Deployments of the webhook or of the reconciler; none if they could not be read."""
        return [deployment for deployment in readable(self.deployments) if component_of(deployment) == name]

    @property
    def images(self) -> list[tuple[str, str]]:
        """Each Deployment and the image of its pods, whose tag is the version."""
        deployments = (*self.components("webhook"), *self.components("reconciler"))
        containers = [(d["metadata"]["name"], d["spec"]["template"]["spec"]["containers"][0]) for d in deployments]
        return [(name, container["image"]) for name, container in containers]

    @property
    def webhook(self) -> Object | None:
        """The Deployment of the webhook; None if the release has none."""
        return next(iter(self.components("webhook")), None)

    @property
    def shares_gpus(self) -> bool:
        """Whether pods may have a share of a GPU; False if the configuration could not be read."""
        if isinstance(self.settings, Unread) or not self.settings.gpu_sharing.enabled:
            return False
        return all(plugin.enabled for plugin in self.settings.plugins if plugin.name == "gpu_sharing")

    @property
    def asks_checks(self) -> bool:
        """Whether plugin checks is enabled; False if the configuration could not be read."""
        plugins = self.settings.plugins if isinstance(self.settings, Settings) else ()
        return any(plugin.name == "checks" and plugin.enabled for plugin in plugins)

    @property
    def agent_account(self) -> ObjectKey:
        """The ServiceAccount of reservation pods."""
        settings = self.settings if isinstance(self.settings, Settings) else Settings()
        return ObjectKey(settings.gpu_sharing.reservation_namespace, names.RESERVATION_SERVICE_ACCOUNT)

    @property
    def instance(self) -> str:
        """The name of the Helm release; empty if it is not known."""
        labels: Object = next((d["metadata"].get("labels") or {} for d in self.components("reconciler")), {})
        return str(labels.get("app.kubernetes.io/instance", ""))

    @property
    def upgrade(self) -> str:
        """The beginning of the command that renders the release's objects again."""
        return f"helm upgrade {self.instance or 'RELEASE'} CHART -n {self.namespace} --reset-then-reuse-values"


def findings(release: InstalledRelease) -> list[ReleaseFinding]:
    """Return what the release lacks and what was not checked; empty if all is well."""
    if not release.deployments:
        remedy = "helm list --all-namespaces, then bowline check --namespace NAME"
        return [ReleaseFinding(f"Deployments of Bowline in namespace {release.namespace}", remedy)]
    checks = (
        _rollouts,
        _leaders,
        _admission,
        _policies,
        _runtime,
        _schema,
        _checks,
        _agent,
        _other_binders,
        _not_read,
    )
    values = [getattr(release, entry.name) for entry in fields(release)]
    reasons = dict.fromkeys(value.reason for value in values if isinstance(value, Unread))
    return [*(finding for check in checks for finding in check(release)), *map(ReleaseFinding, reasons)]


def _rollouts(release: InstalledRelease) -> Iterator[ReleaseFinding]:
    """Yield each Deployment that has fewer ready replicas of its present version than it should have."""
    for deployment in (*release.components("webhook"), *release.components("reconciler")):
        metadata, status = deployment["metadata"], deployment.get("status") or {}
        replicas = deployment["spec"].get("replicas", 1)
        is_current = status.get("observedGeneration", 0) >= metadata.get("generation", 0)
        ready = min(status.get("updatedReplicas", 0), status.get("availableReplicas", 0)) if is_current else 0
        if ready < replicas:
            text = f"ready replicas of Deployment {metadata['name']}: {ready} of {replicas}"
            yield ReleaseFinding(text, f"kubectl -n {release.namespace} rollout status deployment/{metadata['name']}")


def _leaders(release: InstalledRelease) -> Iterator[ReleaseFinding]:
    """Yield each Deployment of reconcilers whose Lease is not held and renewed, by a pod or a process elsewhere."""
    if isinstance(release.leases, Unread):
        return
    for deployment in release.components("reconciler"):
        name = deployment["metadata"]["name"]
        leases = [lease for lease in release.leases if lease["metadata"]["name"] == name]
        if not any(acquired_at(lease, release.now) for lease in leases):
            is_stopped = deployment["spec"].get("replicas") == 0
            logs = f"kubectl -n {release.namespace} logs deployment/{name}"
            remedy = f"{release.upgrade} --set reconciler.replicas=2" if is_stopped else logs
            renewed = max((str(_spec(lease).get("renewTime")) for lease in leases), default="never")
            yield ReleaseFinding(f"a reconciler that holds Lease {name} (last renewed: {renewed})", remedy)


def _spec(lease: Object) -> Any:
    return lease.get("spec") or {}


def _admission(release: InstalledRelease) -> Iterator[ReleaseFinding]:
    """Yield what admission lacks: an answer, a verdict, a webhook configuration, a valid CA."""
    settings, webhook = release.settings, release.webhook
    if isinstance(settings, Unread) or isinstance(release.deployments, Unread):
        return
    if webhook is None or settings.admission.mode == "Off":
        yield ReleaseFinding(f"admission: {'this release has no webhook' if webhook is None else 'its mode is Off'}")
        return
    name, valid, invalid = webhook["metadata"]["name"], release.valid, release.invalid
    logs = f"kubectl -n {release.namespace} logs deployment/{name}"
    if isinstance(valid, Reply):
        yield from _valid_pod(release, valid, name, logs)
    if isinstance(invalid, Reply) and invalid.stored is not None and settings.admission.mode == "Enforce":
        yield ReleaseFinding(f"the denial of a pod with {names.GPU_FRACTION}: 2", logs)
    if isinstance(release.request, Reply) and release.request.stored is None and release.crd is not None:
        yield _denial("a BindRequest", release.request, name, logs)
    # Hooks that mutate are called before policies and hooks that validate.
    is_called = isinstance(valid, Reply) and (valid.stored is not None or valid.is_denied_by_another(name))
    for kind, configuration in (("mutating", release.mutating), ("validating", release.validating)):
        where = f"{kind}webhookconfiguration/{name}"
        if configuration is None:
            yield ReleaseFinding(where, release.upgrade)
        elif not isinstance(configuration, Unread):
            for text in _untrusted(configuration, release.now, is_called=is_called):
                yield ReleaseFinding(f"{text} in {where}", logs)


def _policies(release: InstalledRelease) -> Iterator[ReleaseFinding]:
    """Yield each policy of the release that nothing puts in force, as after the command of an emergency."""
    if isinstance(release.guards, Unread) or isinstance(release.guard_bindings, Unread):
        return
    bound = {binding["spec"].get("policyName") for binding in release.guard_bindings}
    for name in (policy["metadata"]["name"] for policy in release.guards):
        if name not in bound:
            yield ReleaseFinding(
                f"a binding of ValidatingAdmissionPolicy {name}, which denies nothing", release.upgrade
            )


def _denial(what: str, reply: Reply, webhook: str, logs: str) -> ReleaseFinding:
    """Return the finding of an object that is not admitted: what another's policy denies says nothing of Bowline."""
    text = f"the admission of {what} ({reply.message})"
    if reply.is_denied_by_another(webhook):
        return ReleaseFinding(text)
    return ReleaseFinding(text, f"remove the cause, or read {logs}")


def _valid_pod(release: InstalledRelease, reply: Reply, webhook: str, logs: str) -> Iterator[ReleaseFinding]:
    """Yield why a valid pod is not admitted, or not mutated."""
    if reply.denial.has_no_dry_run:
        yield ReleaseFinding(f"admission: {reply.message}")
    elif reply.denial.failed_webhook == POD_HOOK:
        remedy = f"kubectl -n {release.namespace} get pods,endpointslices -l {COMPONENT}=webhook"
        yield ReleaseFinding(f"an answer of the webhook ({reply.message})", remedy)
    elif reply.stored is None:
        yield _denial("a valid pod", reply, webhook, logs)
    elif release.shares_gpus and names.SHARED_GPU_CONFIGMAP not in (
        reply.stored["metadata"].get("annotations") or {}
    ):
        yield ReleaseFinding("the mutation of a pod with a GPU share: the webhook was not called", logs)


def _untrusted(configuration: Object, now: datetime, *, is_called: bool) -> Iterator[str]:
    """Yield what of its CAs a webhook configuration lacks. Without any the API server trusts those of its system."""
    bundles = [bundle_of(client) for client in entries([configuration])]
    empty = bundles.count(b"")
    if empty and (empty < len(bundles) or not is_called):
        yield f"caBundle of {empty} of {len(bundles)} webhooks"
    if any(not any(is_valid_at(ca, now) for ca in from_pem(bundle)) for bundle in set(bundles) - {b""}):
        yield "a CA that is valid now"


def _runtime(release: InstalledRelease) -> Iterator[ReleaseFinding]:
    """Yield why GPU shares do not work with the cluster's RuntimeClasses and NVIDIA's operator."""
    settings, classes, policies = release.settings, release.runtime_classes, release.policies
    if isinstance(settings, Unread) or isinstance(classes, Unread) or classes is None or not release.shares_gpus:
        return
    class_names = frozenset(entry["metadata"]["name"] for entry in classes)
    mode = operator_mode([transform_policy(dict(policy)) for policy in readable(policies)])
    runtime = GpuRuntime(mode, class_names)
    runtime_class, are_fractioned = settings.gpu_sharing.runtime_class_name, bool(settings.nv_fractions)
    problem = runtime_problem(runtime, runtime_class, are_fractioned=are_fractioned)
    if problem is not None:
        yield ReleaseFinding(f"a container runtime for GPU shares: {problem.text}", problem.remedy)


def _schema(release: InstalledRelease) -> Iterator[ReleaseFinding]:
    """Yield the lack of Bowline's CRD, or of what another project's does not define."""
    if release.crd is None:
        yield ReleaseFinding(f"CustomResourceDefinition {CRD}", f"{release.upgrade} --set crds.enabled=true")
    elif not isinstance(release.crd, Unread):
        served = [v for v in release.crd["spec"]["versions"] if v["name"] == names.VERSION and v["served"]]
        properties = served[0]["schema"]["openAPIV3Schema"].get("properties", {}) if served else {}
        undefined = STATUS_FIELDS - properties.get("status", {}).get("properties", {}).keys()
        if undefined:
            text = f"{', '.join(sorted(undefined))} in the status of {CRD}, whose CRD is another project's"
            yield ReleaseFinding(text, f"{release.upgrade} --force-conflicts")


def _checks(release: InstalledRelease) -> Iterator[ReleaseFinding]:
    """Yield the lack of the CRD of plugin checks, where it is enabled."""
    if release.checks_crd is None and release.asks_checks:
        remedy = f"{release.upgrade} --set crds.enabled=true"
        yield ReleaseFinding(f"CustomResourceDefinition {CHECKS_CRD} of plugin checks", remedy)


def _agent(release: InstalledRelease) -> Iterator[ReleaseFinding]:
    """Yield the lack of the agents' ServiceAccount."""
    if release.agent is None and release.shares_gpus:
        yield ReleaseFinding(f"ServiceAccount {release.agent_account} of the GPU agents", release.upgrade)


def _other_binders(release: InstalledRelease) -> Iterator[ReleaseFinding]:
    """Yield each other writer of a status since the present reconcilers lead: a second binder."""
    if isinstance(release.requests, Unread) or isinstance(release.leases, Unread):
        return
    terms = [term for lease in release.leases if (term := acquired_at(lease, release.now)) is not None]
    # The API server rounds the time of a write down to a second.
    since = max(terms, default=release.now).replace(microsecond=0)
    writers = {
        entry.get("manager"): key_of(request)
        for request in release.requests
        for entry in request["metadata"].get("managedFields") or ()
        if entry.get("subresource") == "status" and (parse_time(entry.get("time")) or since) >= since
    }
    for manager, key in writers.items():
        if manager != names.FIELD_MANAGER_RECONCILER:
            text = f"an end of the second binder {manager}, which has written the status of BindRequest {key}"
            yield ReleaseFinding(text, "stop it: KAI-Scheduler's by its value binder.enabled=false")


def _not_read(release: InstalledRelease) -> Iterator[ReleaseFinding]:
    """Yield each object that a reconciler does not read; it works on all others."""
    for event in readable(release.not_read):
        about = event["involvedObject"]
        name, namespace = f"{about.get('kind')} {about.get('name')}", about.get("namespace", "")
        where = f"-n {namespace} " if namespace else ""
        text = f"a reading of {name}{f' in namespace {namespace}' if namespace else ''}: {event.get('message')}"
        yield ReleaseFinding(text, f"kubectl {where}delete {about.get('kind')} {about.get('name')}")
