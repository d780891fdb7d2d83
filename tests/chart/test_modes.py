"""What the chart renders in each admission mode."""

from typing import Any

import pytest

from bowline.framework.config import parse_settings
from bowline.localcluster.errors import CommandError
from tests.chart.presets import EVERYTHING
from tests.chart.rendering import Chart, Rendered, merged

HOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
WITH_FAIL = {"config": {"plugins": [{"name": "device_access"}]}}
# Policies of Bowline's own accounts deny nothing to users.
OF_USERS = ("bowline-pods", "bowline-devices", "bowline-share-configmaps")


def settings(manifests: Rendered) -> Any:
    return parse_settings(manifests.config_text())


def test_enforce_is_the_default_and_fails_closed_for_pods(chart: Chart) -> None:
    manifests = chart.render(WITH_FAIL)
    closed = {hook["name"] for _, hook in manifests.hooks() if hook["failurePolicy"] == "Fail"}
    assert closed == {"pods.bowline.dev", "ephemeralcontainers.bowline.dev"}
    assert settings(manifests).admission.mode == "Enforce"


@pytest.mark.parametrize("values", [EVERYTHING, WITH_FAIL])
def test_warn_denies_nothing_to_users_whether_or_not_the_webhook_answers(
    chart: Chart, values: dict[str, Any]
) -> None:
    manifests = chart.render(merged(values, {"admission": {"mode": "Warn"}}))
    assert {hook["failurePolicy"] for _, hook in manifests.hooks()} == {"Ignore"}
    for name in OF_USERS:
        assert manifests.get(BINDING, name)["spec"]["validationActions"] == ["Warn", "Audit"]
    assert settings(manifests).admission.mode == "Warn"
    # A stolen token gives no additional rights.
    assert manifests.get(BINDING, "bowline-reconciler-pods")["spec"]["validationActions"] == ["Deny"]


@pytest.mark.parametrize(("values", "word"), [({}, "Off"), (EVERYTHING, "Off"), (WITH_FAIL, False)])
def test_off_renders_nothing_that_can_deny(chart: Chart, values: dict[str, Any], word: Any) -> None:
    """YAML reads an Off without quotes as false."""
    manifests = chart.render(merged(values, {"admission": {"mode": word}}))
    assert manifests.of_kind(*HOOKS, POLICY, BINDING) == []
    assert settings(manifests).admission.mode == "Off"
    assert len(manifests.of_kind("Deployment")) == 2


def test_the_mode_is_given_in_one_place(chart: Chart) -> None:
    same = {"admission": {"mode": "Warn"}, "config": {"admission": {"mode": "Warn"}}}
    assert settings(chart.render(same)).admission.mode == "Warn"
    with pytest.raises(CommandError, match=r"config\.admission\.mode is Warn .* set admission\.mode alone"):
        chart.render({"config": {"admission": {"mode": "Warn"}}})


def test_every_object_that_can_deny_is_found_by_the_labels_of_the_release(chart: Chart) -> None:
    """With these one command deletes them all."""
    manifests = chart.render(merged(EVERYTHING, WITH_FAIL))
    for obj in manifests.of_kind(*HOOKS, POLICY, BINDING):
        labels = obj["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "bowline"
        assert labels["app.kubernetes.io/instance"] == "bowline"
