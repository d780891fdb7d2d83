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
CASES: list[tuple[dict[str, Any], str, set[str], set[str]]] = [
    (
        {},
        NAMESPACE,
        {
            *("bowline check -n bowline-system", "helm test bowline -n bowline-system", "bowline explain -A"),
            *("reviews nothing in: kube-system, bowline-system.", EMERGENCY, "No webhook and no policy can"),
            *("mode: Off there", "patch secret bowline-ca", "delete secret bowline-ca", "Job bowline-uninstall"),
            "--set reconciler.replicas=0",
        },
        {ONE, LOST, "caBundle", names.FINALIZER},
    ),
    (
        {"hooks": {"test": False, "uninstall": False}, "webhook": {"replicas": 1}},
        NAMESPACE,
        {"bowline check", f"finalizer {names.FINALIZER}", "hooks.uninstall=true", ONE},
        {"helm test", "Job bowline-uninstall"},
    ),
    (GIVEN, NAMESPACE, {"Secret serving-cert", "clientConfig.caBundle"}, {"delete secret"}),
    (
        {"webhook": {"tls": {"mode": "cert-manager"}}},
        NAMESPACE,
        {"describe certificate bowline-webhook"},
        {"caBundle", "delete secret"},
    ),
    (
        {"admission": {"mode": "Warn"}},
        NAMESPACE,
        {"no user's object is denied", "--set admission.mode=Enforce", EMERGENCY},
        {ONE, "nothing is denied"},
    ),
    ({"admission": {"mode": "Off"}}, NAMESPACE, {"--set admission.mode=Warn"}, {ONE, EMERGENCY}),
    (
        {"config": {"schedulerNames": ["a", "*"], "namespaces": {"exclude": ["b"]}}},
        "default",
        {
            *("Every pod outside the namespaces above depends on the webhook", LOST),
            *("admits and binds the pods of: a, *.", "reviews nothing in: kube-system, default, b."),
        },
        set(),
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
