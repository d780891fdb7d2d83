"""Helm's notes after an install: next steps, excluded namespaces, and the emergency procedure."""

import json
from typing import Any

import pytest

from bowline.api import names
from bowline.localcluster.helm import Helm
from tests.chart.rendering import CHART, NAMESPACE, RELEASE, REQUIRED, merged

GIVEN = {"webhook": {"tls": {"mode": "secret", "secretName": "serving-cert"}}}
ONE = "The webhook has one replica"
LOST = "Namespace default is Bowline's own now"
EMERGENCY = (
    "kubectl delete validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicybindings "
    "-l app.kubernetes.io/name=bowline,app.kubernetes.io/instance=bowline"
)
CASES = [
    pytest.param(
        {},
        NAMESPACE,
        {"bowline check -n bowline-system", "helm test bowline -n bowline-system", "bowline explain -A"},
        set(),
        id="what to do next",
    ),
    pytest.param({"hooks": {"test": False}}, NAMESPACE, {"bowline check"}, {"helm test"}, id="without helm test"),
    pytest.param(
        {}, NAMESPACE, {"reviews nothing in: kube-system, bowline-system."}, {ONE, LOST}, id="the default values"
    ),
    pytest.param(
        {},
        NAMESPACE,
        {EMERGENCY, "No webhook and no policy can", "mode: Off there"},
        set(),
        id="an emergency",
    ),
    pytest.param(
        {},
        NAMESPACE,
        {"patch secret bowline-ca", "rollout restart deployment/bowline-webhook", "delete secret bowline-ca"},
        {"caBundle"},
        id="a certificate of its own",
    ),
    pytest.param(
        {"hooks": {"uninstall": True}}, NAMESPACE, {"Job bowline-uninstall"}, {names.FINALIZER}, id="an uninstall"
    ),
    pytest.param(
        {"hooks": {"uninstall": False}},
        NAMESPACE,
        {f"finalizer {names.FINALIZER}", "hooks.uninstall=true"},
        {"Job bowline-uninstall"},
        id="an uninstall without its Job",
    ),
    pytest.param(
        GIVEN,
        NAMESPACE,
        {"Secret serving-cert", "clientConfig.caBundle"},
        {"delete secret"},
        id="a given one",
    ),
    pytest.param(
        {"webhook": {"tls": {"mode": "cert-manager"}}},
        NAMESPACE,
        {"describe certificate bowline-webhook"},
        {"caBundle", "delete secret"},
        id="one from cert-manager",
    ),
    pytest.param({"webhook": {"replicas": 1}}, NAMESPACE, {ONE}, set(), id="one webhook is a risk"),
    pytest.param(
        {"admission": {"mode": "Warn"}},
        NAMESPACE,
        {"no user's object is denied", "--set admission.mode=Enforce", EMERGENCY},
        {ONE, "nothing is denied"},
        id="warn",
    ),
    pytest.param(
        {"admission": {"mode": "Off"}}, NAMESPACE, {"--set admission.mode=Warn"}, {ONE, EMERGENCY}, id="switched off"
    ),
    pytest.param(
        {"config": {"schedulerNames": ["*"], "namespaces": {"exclude": ["cni"]}}},
        NAMESPACE,
        {"Every pod outside the namespaces above depends on the webhook"},
        set(),
        id="every scheduler",
    ),
    pytest.param({}, NAMESPACE, {"--set reconciler.replicas=0"}, set(), id="to stop binding"),
    pytest.param({}, "default", {LOST, "reviews nothing in: kube-system, default."}, set(), id="among users"),
    pytest.param(
        {"config": {"schedulerNames": ["a"], "namespaces": {"exclude": ["b"]}}},
        NAMESPACE,
        {"admits and binds the pods of: a.", "reviews nothing in: kube-system, bowline-system, b."},
        set(),
        id="the configuration",
    ),
]


@pytest.mark.parametrize(("values", "namespace", "present", "absent"), CASES)
def test_notes(
    helm_command: Helm, values: dict[str, Any], namespace: str, present: set[str], absent: set[str]
) -> None:
    options = [f"--set-json={key}={json.dumps(value)}" for key, value in merged(REQUIRED, values).items()]
    command = ["install", RELEASE, str(CHART), "--dry-run=client", f"--namespace={namespace}", *options]
    notes = helm_command.run(command).partition("\nNOTES:\n")[2]
    assert {words for words in present if words not in notes} == set()
    assert {words for words in absent if words in notes} == set()
