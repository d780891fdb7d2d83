"""Helm's notes after an install: five lines, and one for each thing that the operator must do."""

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
LINES = 5  # of an installation with the defaults
CASES: list[tuple[dict[str, Any], str, set[str], set[str], int]] = [
    ({}, NAMESPACE, {*("bowline check -n bowline-system", "bowline explain -A", EMERGENCY, "docs/index.md"),
        "reviews nothing in kube-system, bowline-system."}, {ONE, LOST, "caBundle", names.FINALIZER}, LINES),
    (GIVEN, NAMESPACE, {"Secret serving-cert", "clientConfig.caBundle"}, set(), LINES + 1),
    ({"admission": {"mode": "Warn"}}, NAMESPACE, {"no user's object is denied", EMERGENCY}, {ONE,
        "nothing is denied"}, LINES + 1),
    ({"config": {"schedulerNames": ["a", "*"], "namespaces": {"exclude": ["b"]}}}, "default",
        {*("Every pod outside these namespaces depends on the webhook", LOST),
        *("admits and binds the pods of a, *;", "reviews nothing in kube-system, default, b.")}, set(), LINES + 2),
]  # fmt: skip


@pytest.mark.parametrize(("values", "namespace", "present", "absent", "lines"), CASES)
def test_notes(
    helm_command: Helm, values: dict[str, Any], namespace: str, present: set[str], absent: set[str], lines: int
) -> None:
    options = [f"--set-json={key}={json.dumps(value)}" for key, value in merged(REQUIRED, values).items()]
    command = ["install", RELEASE, str(CHART), "--dry-run=client", f"--namespace={namespace}", *options]
    notes = helm_command.run(command).partition("\nNOTES:\n")[2]
    assert {words for words in present if words not in notes} == set()
    assert {words for words in absent if words in notes} == set()
    assert len(notes.strip().splitlines()) == lines
