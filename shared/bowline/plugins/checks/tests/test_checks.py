"""Which checks a pod needs, what its objects ask, and what an answer means."""

from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from pydantic import ValidationError

from bowline.api import names
from bowline.api.bindrequest import decode_bind_request
from bowline.framework.binding.calls import PluginCaller
from bowline.framework.binding.runner import Runner
from bowline.framework.config import Settings
from bowline.framework.interface.status import Done, Fatal, Status, Transient, Waiting
from bowline.framework.reason import Suggestion
from bowline.kube.client import KubeClient
from bowline.kube.errors import AlreadyExists, ApiStatus, Forbidden, NotFound
from bowline.plugins.checks.config import Check, ChecksConfig
from bowline.plugins.checks.plugin import Checks
from bowline.plugins.checks.rules import (
    CHANGED,
    MAX_ANNOTATION,
    UNKNOWN,
    annotation_errors,
    answer_status,
    bind_check,
    required_checks,
)
from bowline.testing import builders
from bowline.testing.handles import context_for

CHECKS = (Check(name="network"), Check(name="audit", namespaces=("payments",)), Check(name="all", namespaces=("*",)))


def pod(text: str | None, namespace: str = "work") -> dict[str, Any]:
    body = builders.stored(builders.pod(namespace=namespace))
    if text is not None:
        body["metadata"]["annotations"] = {names.CHECKS: text}
    return body


@pytest.mark.parametrize(
    ("text", "namespace", "required"),
    [
        pytest.param(None, "work", ("all",), id="of every namespace"),
        pytest.param(" network ,,network", "work", ("all", "network"), id="named, with spaces and twice"),
        pytest.param("network,audit", "payments", ("audit", "all", "network"), id="named and of its namespace"),
        pytest.param("other", "work", ("all", "other"), id="not configured: not skipped"),
    ],
)
def test_a_pod_needs_the_checks_of_its_namespace_and_those_it_names(
    text: str | None, namespace: str, required: tuple[str, ...]
) -> None:
    assert required_checks(pod(text, namespace), CHECKS) == required


@pytest.mark.parametrize(
    ("text", "before", "rules"),
    [
        pytest.param("network", None, [], id="configured"),
        pytest.param("network,other", None, [UNKNOWN], id="not configured"),
        pytest.param("network," * MAX_ANNOTATION, None, [UNKNOWN], id="too long"),
        pytest.param("other", pod("other"), [], id="stays, although it is not configured any more"),
        pytest.param("network", pod("network,audit"), [CHANGED], id="changed"),
        pytest.param(None, pod("network"), [CHANGED], id="removed"),
        pytest.param("network", pod(None), [CHANGED], id="added"),
    ],
)
def test_the_annotation_names_configured_checks_and_stays(
    text: str | None, before: dict[str, Any] | None, rules: list[Any]
) -> None:
    errors = annotation_errors(pod(text), before, ("network", "audit"))
    assert [error.rule for error in errors] == rules


def asked() -> dict[str, Any]:
    request = decode_bind_request(builders.stored(builders.bind_request("pod", uid="pod-uid")))
    return bind_check("network", pod("network"), request, "node")


def with_metadata(stored: dict[str, Any], **fields: str) -> dict[str, Any]:
    return {**stored, "metadata": {**stored["metadata"], **fields}}


def answered(status: str | None, **fields: str) -> dict[str, Any]:
    others = [{"type": "Other", "status": "True"}]
    ready = [] if status is None else [{"type": "Ready", "status": status, **fields}]
    return {**asked(), "status": {"conditions": [*others, *ready]}}


@pytest.mark.parametrize(
    ("stored", "expected", "text"),
    [
        pytest.param(asked(), Waiting, "condition Ready", id="no status"),
        pytest.param(answered("Unknown", message="queued"), Waiting, "queued", id="unknown"),
        pytest.param(answered("True", message="yes"), Done, "", id="consent"),
        pytest.param(answered("False", reason="NoAddress", message="none is free"), "NoAddress", "none is free",
            id="denial with a word of its own"),
        pytest.param(answered("False", reason="NodeGone"), "Denied", "NodeGone", id="a word of Bowline's"),
        pytest.param(answered("False", reason="no address"), "Denied", "no address", id="no word"),
        pytest.param(answered("False"), "Denied", "gives no reason", id="no reason"),
        pytest.param(with_metadata(answered("True"), deletionTimestamp="2026-01-01T00:00:00Z"), Waiting,
            "is being deleted", id="an object that ends"),
        pytest.param({**answered("True"), "spec": {"node": "other"}}, Waiting, "asks something else",
            id="an object that asks something else"),
    ],
)  # fmt: skip
def test_the_condition_ready_is_the_answer(stored: dict[str, Any], expected: type[Status] | str, text: str) -> None:
    status = answer_status(Check(name="network", denial_suggestion=Suggestion.DELETE_POD), stored, asked())
    assert expected in (type(status), getattr(status, "word", ""))
    assert text in status.message
    assert not isinstance(status, Fatal) or status.suggestion is Suggestion.DELETE_POD


def test_the_configuration_names_each_check_once_and_has_durations() -> None:
    config = ChecksConfig.model_validate({"checks": [{"name": "network", "timeout": "90s"}]})
    assert config.checks[0].timeout == timedelta(seconds=90)
    invalid: list[list[dict[str, str]]] = [
        [{"name": "a"}, {"name": "a"}],
        [{"name": "A"}],
        [{"name": "a", "timeout": "0s"}],
        [{}],
    ]
    for checks in invalid:
        with pytest.raises(ValidationError):
            ChecksConfig.model_validate({"checks": checks})


class Deleted(KubeClient):
    """Another process has created the object, and another client has deleted it since."""

    def __init__(self) -> None:
        pass

    async def get(self, *args: Any, **options: Any) -> dict[str, Any]:
        raise NotFound(ApiStatus(404, "NotFound", "it does not exist"))

    async def create(self, *args: Any, **options: Any) -> dict[str, Any]:
        raise AlreadyExists(ApiStatus(409, "AlreadyExists", "it exists"))


async def test_an_object_that_is_deleted_while_it_is_asked_ends_no_decision() -> None:
    plugin, request = Checks(ChecksConfig(checks=CHECKS), Settings()), builders.stored(builders.bind_request("train"))
    ctx = context_for(request, pod("network"), client=Deleted())
    assert isinstance(await Runner((plugin,), PluginCaller(Mock())).run_pre_bind(ctx), Transient)


async def test_a_deletion_that_is_denied_stops_no_other_and_all_denials_are_reported() -> None:
    deleted: list[str] = []

    class Guarded(Deleted):
        async def list_all(self, *args: Any, **options: Any) -> list[dict[str, Any]]:
            return [{"metadata": {"namespace": "work", "name": name, "uid": name}} for name in ("a", "b", "c")]

        async def delete(self, *args: Any, **options: Any) -> dict[str, Any]:
            name = args[2]
            if name != "c":
                raise Forbidden(ApiStatus(403, "Forbidden", f"{name} is kept"))
            deleted.append(name)
            return {}

    request = builders.stored(builders.bind_request("train"))
    ctx = context_for(request, pod("network"), client=Guarded())
    with pytest.raises(Forbidden, match=r"a is kept.*b is kept"):
        await Checks(ChecksConfig(checks=CHECKS), Settings()).release(ctx)
    assert deleted == ["c"]
