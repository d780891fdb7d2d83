"""The configuration document: defaults, every error with its path, files."""

from datetime import timedelta
from pathlib import Path

import pytest

from bowline.framework.config import ConfigurationError, Settings, load_settings, parse_settings

HEAD = "apiVersion: config.bowline.dev/v1alpha1\nkind: BowlineConfiguration\n"


def errors(text: str) -> list[tuple[str, str]]:
    with pytest.raises(ConfigurationError) as caught:
        parse_settings(text)
    return [(fault.path, fault.message) for fault in caught.value.errors]


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", HEAD])
def test_an_empty_document_gives_the_defaults(text: str) -> None:
    assert parse_settings(text) == Settings()


def test_given_values_are_used_and_others_have_their_default() -> None:
    settings = parse_settings(
        HEAD + "schedulerNames: ['*']\ngpuSharing: {enabled: false, agentTimeout: 5s}\n"
        "binding: {backoff: {base: 500ms}, waitTimeout: 2m30s}\nadmission: {mode: Off}\n"
    )
    assert settings.schedules("any-scheduler")
    assert settings.admission.mode == "Off", "YAML reads it as false"
    assert (settings.gpu_sharing.enabled, settings.gpu_sharing.agent_timeout) == (False, timedelta(seconds=5))
    assert settings.binding.backoff.base == timedelta(milliseconds=500)
    assert settings.binding.wait_timeout == timedelta(seconds=150)
    assert settings.binding.backoff_limit == 6


def test_every_error_is_reported_with_its_path() -> None:
    details = errors(
        "kind: Wrong\nschedulerNames: []\nnope: 1\ngpuSharing: {enabled: maybe, unknown: 2}\n"
        "binding: {workers: 0, backoff: {base: soon}}\nplugins: [{name: ''}, {enabled: true}]\n"
        "featureGates: {Nope: true}\n"
    )
    assert [path for path, _ in details] == [
        "apiVersion",
        "kind",
        "schedulerNames",
        "gpuSharing.enabled",
        "gpuSharing.unknown",
        "binding.backoff.base",
        "binding.workers",
        "plugins[0].name",
        "plugins[1].name",
        "featureGates.Nope",
        "nope",
    ]
    assert ("nope", "is not a known key") in details
    assert ("plugins[1].name", "is required") in details


@pytest.mark.parametrize(
    ("text", "path"),
    [
        pytest.param("leaderElection: {leaseDuration: 10s, renewDeadline: 10s}", "leaderElection",
            id="a lease too short"),
        pytest.param("leaderElection: {retryPeriod: 10s}", "leaderElection", id="a retry period too long"),
        pytest.param("binding: {backoff: {base: 2m}}", "binding.backoff.max", id="a first wait above the longest"),
        pytest.param("binding: {waitTimeout: 0s}", "binding.waitTimeout", id="no time to wait"),
        pytest.param("binding: {waitTimeout: 99999999h}", "binding.waitTimeout", id="a wait beyond the last date"),
        pytest.param("leaderElection: {leaseDuration: 600000h}", "leaderElection.leaseDuration",
            id="more than a Lease can express"),
        pytest.param("binding: {backoffLimit: -1}", "binding.backoffLimit", id="fewer than no retries"),
    ],
)  # fmt: skip
def test_contradictory_values_are_rejected(text: str, path: str) -> None:
    assert [where for where, _ in errors(HEAD + text)] == [path]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        pytest.param("kind: [", "not a YAML document", id="broken YAML"),
        pytest.param("- a", "must be a mapping", id="a list"),
        pytest.param(HEAD + "---\n" + HEAD, "not a YAML document", id="two documents"),
        pytest.param("a: " + "[" * 1000, "nested too deeply", id="lists in lists in lists"),
    ],
)
def test_a_text_that_is_no_document_is_rejected(text: str, part: str) -> None:
    assert part in errors(text)[0][1]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        pytest.param(None, "No such file", id="a file that is missing"),
        pytest.param(b"\xff\xfe", "is not UTF-8", id="a file that is not text"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, part: str) -> None:
    file = tmp_path / "config.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        load_settings(file)
    (error,) = caught.value.errors
    assert error.rule.id == "config/file"
    assert error.message.startswith(str(file))
    assert part in error.message
