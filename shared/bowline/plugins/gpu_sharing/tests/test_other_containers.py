"""Containers of a sharing pod without a part of the share see no device, whatever plugins are on."""

from typing import Any

import pytest

from bowline.api import names
from bowline.framework.admission import AdmissionChain
from bowline.framework.config import PluginEntry, Settings
from bowline.framework.interface.plugin import AdmissionInfo
from bowline.framework.registry import Registry
from bowline.plugins.catalog import BUILTINS
from bowline.plugins.gpu_sharing.tests.pods import HALF, Json, sharing_pod

NAME = names.VISIBLE_DEVICES
VOID = {"name": NAME, "value": "void"}
ALL = {"name": NAME, "value": "all"}
FROM_MAP = {"name": NAME, "valueFrom": {"configMapKeyRef": {"name": "mine", "key": NAME}}}
RULE = "gpu_sharing/other-container"


def chain(*plugins: str, **settings: Any) -> AdmissionChain:
    configuration = Settings(plugins=tuple(PluginEntry(name=name) for name in plugins), **settings)
    return AdmissionChain(Registry(BUILTINS).build(configuration), configuration)


def review(raw: Json, *plugins: str, **settings: Any) -> list[tuple[str, str]]:
    """Return the errors of both hooks; the pod is mutated in place."""
    reviewers = chain(*plugins, **settings)
    first = reviewers.admit_pod(raw, AdmissionInfo(namespace="team", request_uid="s"))
    final = AdmissionInfo(namespace="team", is_validating_webhook=True)
    errors = first.errors or reviewers.validate_pod(raw, None, final).errors
    return [(error.rule.id, error.path) for error in errors]


def beside(container: Json, annotations: Json | None = None, field: str = "containers") -> Json:
    """Return a sharing pod with a second container."""
    main = {"name": "main", "image": "x"}
    others = [{"name": "side", "image": "x", **container}]
    spec: Json = {"containers": [main, *others]} if field == "containers" else {"containers": [main], field: others}
    return sharing_pod({**HALF, **(annotations or {})}, **spec)


@pytest.mark.parametrize("field", ["containers", "initContainers"])
@pytest.mark.parametrize(
    ("container", "env"),
    [
        pytest.param({}, [VOID], id="nothing of its own, so the image decides"),
        pytest.param({"resources": {"claims": [{"name": "nic"}]}}, [VOID],
            id="a claim, whose driver needs no variable"),
        pytest.param({"resources": {"limits": {"deviceclass.resource.kubernetes.io/nic": "1"}}}, [VOID],
            id="a device class"),
        pytest.param({"resources": {"limits": {"rdma/hca": "1"}}}, [VOID], id="another device"),
    ],
)  # fmt: skip
def test_a_container_without_a_part_of_the_share_sees_no_device(container: Json, env: list[Json], field: str) -> None:
    raw = beside(container, field=field)
    assert not [error for error in review(raw) if error[0].startswith("gpu_sharing/")]
    assert raw["spec"][field][-1]["env"] == env


@pytest.mark.parametrize("field", ["containers", "initContainers"])
@pytest.mark.parametrize(
    ("env", "path"),
    [
        pytest.param([ALL], "env[0].value", id="all"),
        pytest.param([FROM_MAP], "env[0].valueFrom", id="a ConfigMap"),
        pytest.param([VOID, ALL], "env[1].value", id="the last one takes effect"),
    ],
)
def test_another_value_is_denied(env: list[Json], path: str, field: str) -> None:
    index = 1 if field == "containers" else 0
    assert review(beside({"env": env}, field=field)) == [(RULE, f"spec.{field}[{index}].{path}")]


def test_the_share_may_be_of_any_container() -> None:
    raw = beside({"env": [ALL]}, {names.GPU_FRACTION_CONTAINER: "side"})
    assert review(raw) == []
    main, side = raw["spec"]["containers"]
    assert main["env"] == [VOID]
    assert [e["valueFrom"]["configMapKeyRef"]["key"] for e in side["env"] if e["name"] == NAME] == [NAME]


def test_a_pod_that_was_not_mutated_is_denied_at_the_last_hook() -> None:
    final = AdmissionInfo(namespace="team", is_validating_webhook=True)
    errors = chain().validate_pod(beside({}), None, final).errors
    assert (RULE, "spec.containers[1].env") in [(error.rule.id, error.path) for error in errors]


@pytest.mark.parametrize(
    ("env", "rules"),
    [
        pytest.param([ALL], [RULE], id="all"),
        pytest.param([], [RULE], id="the image decides, without mutation"),
        pytest.param([VOID], [], id="void"),
    ],
)
def test_a_container_for_debugging_sees_no_device_either(env: list[Json], rules: list[str]) -> None:
    debugger = {"name": "debug", "image": "x", "env": env}
    raw, old = sharing_pod(ephemeralContainers=[debugger]), sharing_pod()
    info = AdmissionInfo("UPDATE", is_validating_webhook=True)
    assert [error.rule.id for error in chain().validate_ephemeral_containers(raw, old, info).errors] == rules
    if not env:
        chain().admit_ephemeral_containers(raw, old, AdmissionInfo("UPDATE"))
        assert raw["spec"]["ephemeralContainers"][0]["env"] == [VOID]
