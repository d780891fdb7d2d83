"""Whether shares work with the mode of NVIDIA's GPU operator and the cluster's RuntimeClasses."""

from typing import Any

import pytest

from bowline.api.gpu_operator import GpuRuntime, OperatorMode, operator_mode, runtime_problem, transform_policy

Json = dict[str, Any]


def policy(cdi: Any = None, version: str = "v26.7.1", name: str = "cluster-policy", toolkit: str = "") -> Json:
    metadata = {"name": name, "uid": "u", "resourceVersion": "1", "labels": {"app.kubernetes.io/version": version}}
    spec = {"toolkit": {"version": toolkit} if toolkit else "on"}
    return {"metadata": metadata, "spec": spec | ({"cdi": cdi} if cdi is not None else {})}


@pytest.mark.parametrize(
    ("policies", "mode"),
    [
        pytest.param([], OperatorMode.UNKNOWN, id="no operator"),
        pytest.param([policy({"enabled": False})], OperatorMode.LEGACY, id="without CDI"),
        pytest.param([policy({"enabled": True})], OperatorMode.CDI, id="CDI"),
        pytest.param([policy({"enabled": True}, "v25.3.0")], OperatorMode.LEGACY, id="CDI that is no default"),
        pytest.param([policy({"enabled": True, "default": True}, "v25.3.4")], OperatorMode.CDI, id="CDI by setting"),
        pytest.param([policy({"enabled": True}, "v25.10.0-rc.1")], OperatorMode.LEGACY, id="a pre-release of 25.10"),
        pytest.param([policy({"enabled": True}, "v25.11.0-rc1")], OperatorMode.CDI, id="a pre-release of 25.11"),
        pytest.param([policy({"enabled": True}, "latest")], OperatorMode.LEGACY, id="a version that is none"),
        pytest.param([policy({"enabled": True, "default": False}, "v25.10.1")], OperatorMode.CDI, id="CDI anyway"),
        pytest.param([policy({"enabled": True, "nriPluginEnabled": True})], OperatorMode.NRI, id="NRI"),
        pytest.param([policy({"enabled": True, "nriPluginEnabled": True}, toolkit="v1.19.0-ubi9")],
            OperatorMode.OLD_NRI, id="NRI for its own namespace"),
        pytest.param([policy({"enabled": True, "nriPluginEnabled": True}, toolkit="sha256:ab")], OperatorMode.NRI,
            id="a toolkit whose version is not known"),
        pytest.param([policy({"enabled": True, "nriPluginEnabled": False})], OperatorMode.CDI, id="NRI is off"),
        pytest.param([policy({"enabled": False, "nriPluginEnabled": True})], OperatorMode.LEGACY, id="NRI needs CDI"),
        pytest.param([policy({"nriPluginEnabled": "true", "enabled": True})], OperatorMode.CDI, id="a text"),
        pytest.param([policy("on")], OperatorMode.LEGACY, id="another shape"),
        pytest.param([policy({"enabled": True}, name="b"), policy({"enabled": True, "nriPluginEnabled": True},
            name="a")], OperatorMode.NRI, id="the first by name"),
    ],
)  # fmt: skip
def test_the_mode_follows_from_the_cluster_policy(policies: list[Json], mode: OperatorMode) -> None:
    assert operator_mode([transform_policy(entry) for entry in policies]) is mode


NONE: frozenset[str] = frozenset()
OLD = OperatorMode.OLD_NRI.value
CASES = [
    pytest.param("unknown", None, "nvidia", False, "", id="nothing is known"),
    pytest.param("cdi", frozenset({"nvidia"}), "nvidia", False, "", id="the class exists"),
    pytest.param("nri", NONE, "nvidia", False, "", id="NRI gives devices by an annotation"),
    pytest.param(OLD, frozenset({"nvidia"}), "nvidia", False, "", id="a class of the nodes' own"),
    pytest.param(OLD, NONE, "nvidia", False, "before 1.20", id="an old NRI plugin, no class"),
    pytest.param(OLD, NONE, "nvidia", True, "", id="an old NRI plugin and GPU fractioning"),
    pytest.param(OLD, None, "", False, "before 1.20", id="an old NRI plugin, no class is configured"),
    pytest.param(OLD, None, "nvidia", False, "", id="an old NRI plugin, classes not known"),
    pytest.param("cdi", frozenset({"other"}), "nvidia", False, "CDI mode", id="CDI, the class is missing"),
    pytest.param("legacy", NONE, "nvidia", False, "legacy runtime", id="legacy, the class is missing"),
    pytest.param("cdi", NONE, "nvidia", True, "CDI mode", id="GPU fractioning needs the class in CDI mode"),
    pytest.param("unknown", NONE, "nvidia", False, "no ClusterPolicy", id="no operator, no class"),
    pytest.param("cdi", NONE, "", False, "", id="the default runtime"),
]


@pytest.mark.parametrize(("mode", "classes", "name", "are_fractioned", "text"), CASES)
def test_why_shares_do_not_work(
    mode: str, classes: frozenset[str] | None, name: str, are_fractioned: bool, text: str
) -> None:
    problem = runtime_problem(GpuRuntime(OperatorMode(mode), classes), name, are_fractioned=are_fractioned)
    assert (problem is not None) is bool(text)
    if problem is not None:
        assert "gpuSharing.runtimeClassName" in problem.text
        assert text in problem.text
        assert problem.denies is bool(name)
        assert ("gpuSharing.nvFractions" in problem.remedy) is (mode == OLD)
