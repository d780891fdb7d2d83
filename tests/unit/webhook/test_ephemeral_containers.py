"""Ephemeral containers: their hooks, and plugins that fail."""

from collections.abc import Iterable
from typing import Any

import pytest

from bowline.api.field_error import FieldError
from bowline.api.meta import Object
from bowline.api.rule import Rule, Severity
from bowline.framework.admission import AdmissionChain
from bowline.framework.config import Settings
from bowline.framework.interface.mutable import MutablePod
from bowline.framework.interface.plugin import AdmissionInfo, AdmissionPlugin, PluginConfig
from bowline_webhook.hooks import Hook
from bowline_webhook.review import decode_review, review_object
from tests.unit.webhook.reviews import encode, pod, response_of, review


class Validates(AdmissionPlugin):
    """Mutates and validates ephemeral containers."""

    name = "validates"

    def mutate_ephemeral_containers(self, pod: MutablePod, old: Object, info: AdmissionInfo) -> None:
        pod.set("yes", "metadata", "labels", "marked")

    def validate_ephemeral_containers(self, pod: Object, old: Object, info: AdmissionInfo) -> Iterable[FieldError]:
        point = "final" if info.is_validating_webhook else "first"
        known = (old["spec"].get("ephemeralContainers") or [{}])[0].get("name", "none")  # as every stored pod has it
        yield FieldError(Rule(f"validates/{point}", "a test's", Severity.WARNS), known, info.user, "is known")


CHAIN = AdmissionChain([Validates(PluginConfig(), Settings())], Settings())


@pytest.mark.parametrize(
    ("hook", "subresource", "rule"),
    [
        pytest.param(Hook.MUTATE_EPHEMERAL_CONTAINERS, "ephemeralcontainers", "validates/first", id="mutating"),
        pytest.param(Hook.VALIDATE_EPHEMERAL_CONTAINERS, "ephemeralcontainers", "validates/final", id="validating"),
        pytest.param(Hook.MUTATE_EPHEMERAL_CONTAINERS, "status", None, id="another subresource"),
        pytest.param(Hook.MUTATE_EPHEMERAL_CONTAINERS, "", "review/kind", id="the pod itself"),
        pytest.param(Hook.VALIDATE_PODS, "ephemeralcontainers", None, id="at the hook of pods"),
    ],
)
def test_ephemeral_containers_have_hooks_of_their_own(hook: Hook, subresource: str, rule: str | None) -> None:
    response = response_of(hook, review(pod(), pod(), subResource=subresource), CHAIN)
    assert response["allowed"]
    assert (response.get("auditAnnotations") or {}).get("rules") == rule
    assert ("patch" in response) is (rule == "validates/first")


@pytest.mark.parametrize(
    ("old", "name"),
    [
        pytest.param({"metadata": {}, "spec": {"ephemeralContainers": [{"name": "one"}]}}, "one", id="a stored pod"),
        pytest.param({"metadata": {}, "spec": [1]}, "none", id="a spec that is a list"),
        pytest.param({"metadata": {}, "spec": {"ephemeralContainers": ["one"]}}, "none",
            id="containers that are strings"),
        pytest.param({}, "none", id="nothing at all"),
    ],
)  # fmt: skip
def test_plugins_never_get_a_malformed_old_pod(old: dict[str, Any], name: str) -> None:
    document = review(pod(), old, subResource="ephemeralcontainers")
    verdict = review_object(Hook.VALIDATE_EPHEMERAL_CONTAINERS, decode_review(encode(document)), CHAIN)
    assert ([(warning.path, warning.value) for warning in verdict.warnings], verdict.errors) == (
        [(name, "alice")],
        (),
    )
