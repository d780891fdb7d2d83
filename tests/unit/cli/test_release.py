"""What a release lacks: one row for each thing that can be missing, on an otherwise healthy release."""

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bowline.api import names
from bowline.framework.config import Admission, GpuSharingSettings, PluginEntry, Settings
from bowline_cli.reader import Unread
from bowline_cli.release import CHECKS_CRD, STATUS_FIELDS, InstalledRelease, Reply, findings
from bowline_webhook.tls.ca import make_authority, to_pem
from tools.generate.crd import custom_resource_definition
from tools.generate.status import BindRequestStatus

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LOGS = "kubectl -n bowline-system logs deployment/bowline-webhook"
UPGRADE = "helm upgrade shop CHART -n bowline-system --reset-then-reuse-values"


NOT_READ = {
    "involvedObject": {"kind": "Pod", "namespace": "team", "name": "train"},
    "message": "Bowline does not read this object",
}


def deployment(component: str, replicas: int = 2, ready: int = 2, **status: int) -> Any:
    labels = {"app.kubernetes.io/component": component, "app.kubernetes.io/instance": "shop"}
    return {
        "metadata": {"name": f"bowline-{component}", "labels": labels, "generation": 3},
        "spec": {"replicas": replicas},
        "status": {"observedGeneration": 3, "updatedReplicas": ready, "availableReplicas": ready, **status},
    }


def lease(holder: str = "a", renewed_s: float = 5, name: str = "bowline-reconciler", acquired_s: float = 60) -> Any:
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": 15,
        "renewTime": (NOW - timedelta(seconds=renewed_s)).isoformat(),
        "acquireTime": (NOW - timedelta(seconds=acquired_s)).isoformat(),
    }
    return {"metadata": {"name": name}, "spec": spec}


def bundle(*ages_of_days: int) -> str:
    authorities = [make_authority(NOW - timedelta(days=age), timedelta(days=365)) for age in ages_of_days]
    return base64.b64encode(to_pem([authority.certificate for authority in authorities])).decode()


VALID_CA, EXPIRED_CA, BOTH_CAS = bundle(1), bundle(366), bundle(366, 1)


def configuration(*bundles: str) -> Any:
    clients = [{"url": "https://a/b"} | ({"caBundle": bundle} if bundle else {}) for bundle in bundles]
    return {"webhooks": [{"name": f"{index}.bowline.dev", "clientConfig": c} for index, c in enumerate(clients)]}


def both(*bundles: str) -> dict[str, Any]:
    return {"mutating": configuration(*bundles), "validating": configuration(*bundles)}


def request(*writers: tuple[str, str, float]) -> Any:
    entries = [
        {"manager": manager, "subresource": part, "time": (NOW - timedelta(seconds=age)).isoformat()}
        for manager, part, age in writers
    ]
    return {"metadata": {"namespace": "a", "name": "train", "managedFields": entries}}


NRI = {
    "metadata": {"name": "policy", "uid": "u", "resourceVersion": "1"},
    "spec": {"cdi": {"enabled": True, "nriPluginEnabled": True}, "toolkit": {"version": "v1.19.0"}},
}
PREPARED = {"metadata": {"annotations": {names.SHARED_GPU_CONFIGMAP: "a"}}}
CREATED = Reply(PREPARED)
DENIED = Reply(None, 'metadata.annotations[gpu-fraction]: "2": must be less than 1')
DOWN = Reply(None, '500 InternalError: failed calling webhook "pods.bowline.dev": connection refused')
LABELS = Reply(None, "ValidatingAdmissionPolicy 'teams' with binding 'teams' denied request: label team is missing")
KYVERNO = Reply(None, 'admission webhook "validate.kyverno.svc-fail" denied the request: no label')
OWN_POLICY = Reply(None, "ValidatingAdmissionPolicy 'bowline-pods' with binding 'bowline-pods' denied request: no")
OWN_HOOK, PLUGIN = (
    Reply(None, 'admission webhook "pods.bowline.dev" denied the request: no (a/b)', frozenset({rule}))
    for rule in ("gpu_request/fraction-range", "cost_centre/label")
)
HEALTHY = InstalledRelease(
    "bowline-system",
    NOW,
    [deployment("webhook"), deployment("reconciler")],
    leases=[lease()],
    requests=[request(("bowline-reconciler", "status", 1), ("bowline-webhook", "", 1))],
    crd=custom_resource_definition(),
    mutating=configuration(VALID_CA, VALID_CA),
    validating=configuration(VALID_CA, VALID_CA),
    agent={},
    valid=CREATED,
    invalid=DENIED,
    request=Reply({}),
)
NO_SHARES = Settings(gpu_sharing=GpuSharingSettings(enabled=False))
KAI_CRD = custom_resource_definition()
for field in ("conditions", "suggestion"):
    del KAI_CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"][field]
OLD_CRD = custom_resource_definition()
OLD_CRD["spec"]["versions"][0]["name"] = "v1alpha1"


def test_nothing_is_missing_from_a_healthy_release() -> None:
    assert findings(HEALTHY) == []


@pytest.mark.parametrize(
    ("changes", "text", "remedy"),
    [
        pytest.param({"deployments": []}, "Deployments of Bowline in namespace bowline-system", "helm list",
            id="not installed"),
        pytest.param({"deployments": [deployment("webhook", ready=1), deployment("reconciler")]},
            "ready replicas of Deployment bowline-webhook: 1 of 2",
            "kubectl -n bowline-system rollout status deployment/bowline-webhook", id="a replica that is not ready"),
        pytest.param({"deployments": [deployment("webhook"), deployment("reconciler", updatedReplicas=1)]},
            "ready replicas of Deployment bowline-reconciler: 1 of 2", "rollout status",
            id="a rollout that is not complete"),
        pytest.param({"leases": []}, "holds Lease bowline-reconciler (last renewed: never)", "logs", id="no Lease"),
        pytest.param({"leases": [lease(renewed_s=16)]}, "holds Lease", "logs", id="a Lease that is not renewed"),
        pytest.param({"leases": [lease(name="bowline-reconcilers")]}, "holds Lease", "logs",
            id="the Lease of another release"),
        pytest.param({"leases": [], "deployments": [deployment("webhook"), deployment("reconciler", 0, 0)]},
            "holds Lease bowline-reconciler", f"{UPGRADE} --set reconciler.replicas=2",
            id="a reconciler that is scaled to zero"),
        pytest.param({"valid": DOWN, "invalid": DOWN},
            "an answer of the webhook (500 InternalError: failed calling webhook",
            "kubectl -n bowline-system get pods,endpointslices -l app.kubernetes.io/component=webhook",
            id="a webhook that does not answer"),
        pytest.param({"request": Reply(None, "spec.selectedNode: must not be empty")},
            "the admission of a BindRequest (spec.selectedNode: must not be empty)",
            f"remove the cause, or read {LOGS}", id="a BindRequest is denied"),
        pytest.param({"runtime_classes": [], "policies": [NRI]},
            "a container runtime for GPU shares: gpuSharing.runtimeClassName: RuntimeClass nvidia does not exist for "
            "GPU shares: NVIDIA's GPU operator is in NRI mode", "upgrade the toolkit to 1.20",
            id="NVIDIA's operator is in NRI mode with an old toolkit"),
        pytest.param({"runtime_classes": []},
            "a container runtime for GPU shares: gpuSharing.runtimeClassName: RuntimeClass nvidia, which a GPU share",
            "install NVIDIA's GPU operator", id="no RuntimeClass"),
        pytest.param({"valid": Reply(None, 'RuntimeClass "nvidia" not found')},
            'the admission of a valid pod (RuntimeClass "nvidia" not found)', f"remove the cause, or read {LOGS}",
            id="a valid pod is denied"),
        pytest.param({"valid": OWN_POLICY}, f"a valid pod ({OWN_POLICY.message})", "remove the cause",
            id="own policy"),
        pytest.param({"valid": Reply(None, '500 InternalError: failed calling webhook "a.example.com": EOF')},
            'the admission of a valid pod (500 InternalError: failed calling webhook "a.example.com": EOF)',
            "remove the cause", id="a neighbour's webhook does not answer"),
        pytest.param({"valid": replace(CREATED, stored={"metadata": {}})}, "the mutation of a pod with a GPU share",
            LOGS, id="a mutating webhook that is not called"),
        pytest.param({"invalid": CREATED}, "the denial of a pod with gpu-fraction: 2", LOGS, id="no denial"),
        pytest.param({"validating": None}, "validatingwebhookconfiguration/bowline-webhook", UPGRADE,
            id="no validating webhook configuration"),
        pytest.param({"mutating": configuration(VALID_CA, "")},
            "caBundle of 1 of 2 webhooks in mutatingwebhookconfiguration/bowline-webhook", LOGS,
            id="a caBundle that is missing"),
        pytest.param({"mutating": configuration(EXPIRED_CA)},
            "a CA that is valid now in mutatingwebhookconfiguration/bowline-webhook", LOGS,
            id="a CA that has expired"),
        pytest.param({"mutating": configuration("YQ==")},
            "a CA that is valid now in mutatingwebhookconfiguration/bowline-webhook", LOGS,
            id="a CA that is no certificate"),
        pytest.param({"guards": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}],
            "guard_bindings": [{"spec": {"policyName": "a"}}]},
            "a binding of ValidatingAdmissionPolicy b, which denies nothing", UPGRADE, id="a policy without effect"),
        pytest.param({"crd": None}, "CustomResourceDefinition bindrequests.scheduling.run.ai",
            f"{UPGRADE} --set crds.enabled=true", id="no CRD"),
        pytest.param({"crd": KAI_CRD}, "conditions, suggestion in the status of bindrequests.scheduling.run.ai",
            f"{UPGRADE} --force-conflicts", id="the CRD of another project"),
        pytest.param({"crd": OLD_CRD}, "nextAttemptTime", "--force-conflicts", id="a CRD without the version"),
        pytest.param({"settings": Settings(plugins=(PluginEntry(name="checks"),)), "checks_crd": None},
            f"CustomResourceDefinition {CHECKS_CRD} of plugin checks", f"{UPGRADE} --set crds.enabled=true",
            id="no CRD of plugin checks"),
        pytest.param({"agent": None}, "ServiceAccount kai-resource-reservation/bowline-gpu-agent of the GPU agents",
            UPGRADE, id="no ServiceAccount of agents"),
        pytest.param({"requests": [request(("binder", "status", 30))]},
            "an end of the second binder binder, which has written the status of BindRequest a/train",
            "binder.enabled=false", id="a second binder"),
        pytest.param({"requests": [request(("binder", "status", 60))], "leases": [lease(acquired_s=59.2)]},
            "an end of the second binder binder", "binder.enabled=false",
            id="a second binder, in the second in which the leader began"),
        pytest.param({"not_read": [NOT_READ]},
            "a reading of Pod train in namespace team: Bowline does not read this object",
            "kubectl -n team delete Pod train", id="an object that is not decoded"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_with_the_next_command(changes: dict[str, Any], text: str, remedy: str) -> None:
    finding, *further = findings(replace(HEALTHY, **changes))
    assert further == []
    assert text in finding.text
    assert remedy in finding.remedy
    assert str(finding) == f"missing: {finding.text}; next: {finding.remedy}"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"deployments": [deployment("webhook", 0, 0), deployment("reconciler", 0, 0)]},
            id="run elsewhere"),
        pytest.param(both("", ""), id="the CAs of the API server's system"),
        pytest.param(both(BOTH_CAS), id="a CA that has expired beside a valid one"),
        pytest.param({"requests": [request(("binder", "status", 90))]}, id="a binder before the present leader"),
        pytest.param({"requests": [request(("kubectl-edit", "", 1))]}, id="another writer of metadata"),
        pytest.param({"deployments": [deployment("webhook"), deployment("reconciler"), deployment("check", 1, 0)]},
            id="a Deployment of another component"),
        pytest.param({"settings": NO_SHARES, "agent": None, "valid": Reply({"metadata": {}})}, id="no shares"),
        pytest.param({"settings": Settings(admission=Admission(mode="Warn")), "invalid": CREATED}, id="mode Warn"),
    ],
)  # fmt: skip
def test_what_is_not_required_is_not_missing(changes: dict[str, Any]) -> None:
    assert findings(replace(HEALTHY, **changes)) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param({"leases": Unread("missing permission: a\nb")}, "missing permission: a b", id="Leases"),
        pytest.param({"deployments": Unread("no Deployments")}, "no Deployments", id="Deployments"),
        pytest.param({"crd": Unread("no CRD")}, "no CRD", id="the CRD"),
        pytest.param({"agent": Unread("no account")}, "no account", id="the ServiceAccount"),
        pytest.param({"requests": Unread("no requests")}, "no requests", id="BindRequests"),
        pytest.param({"settings": Unread("no configuration")}, "no configuration", id="the configuration"),
        pytest.param({"valid": Unread("no pods"), "invalid": Unread("no pods")}, "no pods", id="pods"),
        pytest.param({"mutating": Unread("no hooks")}, "no hooks", id="configurations"),
        pytest.param({"guards": Unread("no policies")}, "no policies", id="policies"),
        pytest.param({"valid": LABELS}, f"the admission of a valid pod ({LABELS.message})", id="a policy of labels"),
        pytest.param({"request": LABELS}, f"the admission of a BindRequest ({LABELS.message})", id="of every object"),
        pytest.param({"valid": KYVERNO}, f"the admission of a valid pod ({KYVERNO.message})", id="another's hook"),
        pytest.param({"valid": PLUGIN}, f"the admission of a valid pod ({PLUGIN.message})", id="a rule of a plugin"),
        pytest.param({"valid": Reply(None, "400 BadRequest: webhook a does not support dry run")},
            "admission: 400 BadRequest: webhook a does not support dry run", id="a neighbour's webhook"),
        pytest.param({"deployments": [deployment("reconciler")]}, "admission: this release has no webhook",
            id="no webhook"),
        pytest.param({"settings": Settings(admission=Admission(mode="Off")), "valid": None, "invalid": None,
            "mutating": None, "validating": None}, "admission: its mode is Off", id="mode Off"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_not_checked_and_nothing_is_missing(changes: dict[str, Any], text: str) -> None:
    assert [str(finding) for finding in findings(replace(HEALTHY, **changes))] == [f"not checked: {text}"]


def test_the_fields_of_the_status_are_those_that_kai_s_crd_lacks() -> None:
    aliases = {field.alias for field in BindRequestStatus.model_fields.values()}
    assert aliases - {"phase", "reason", "failedAttempts"} == STATUS_FIELDS
