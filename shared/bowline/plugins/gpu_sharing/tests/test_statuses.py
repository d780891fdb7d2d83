"""Whether a share gets its devices by the mode of the GPU operator; more: tests/unit/api/test_gpu_operator.py."""

from typing import Any

import pytest

from bowline.api import names
from bowline.api.gpu_operator import OperatorMode
from bowline.framework.config import GpuSharingSettings, Namespaces, Settings
from bowline.framework.reason import Reason, Suggestion
from bowline.plugins.gpu_sharing.plugin import undelivered_status, unsharable_status
from bowline.plugins.gpu_sharing.tests.pods import HALF, sharing_pod
from bowline.testing import builders
from bowline.testing.handles import context_for

Json = dict[str, Any]


READY = {"status": {"conditions": [{"type": names.NODE_FRACTIONING_READY, "status": "True"}]}}
NO_AGENTS: Json = {}
ELSEWHERE, DELETE = Suggestion.RESCHEDULE_ELSEWHERE, Suggestion.DELETE_POD
LONGEST = "c" * 53
NRI, LEGACY, UNKNOWN = OperatorMode.NRI, OperatorMode.LEGACY, OperatorMode.UNKNOWN


def setting(nv_fractions: Any = False, runtime_class: str = "nvidia") -> Settings:
    return Settings(gpu_sharing=GpuSharingSettings(nv_fractions=nv_fractions, runtime_class_name=runtime_class))


@pytest.mark.parametrize(
    ("spec", "node", "mode", "settings", "suggestion"),
    [
        pytest.param({}, NO_AGENTS, NRI, setting(), None, id="NRI mode"),
        pytest.param({}, NO_AGENTS, LEGACY, setting(), ELSEWHERE, id="NRI mode switched off since the admission"),
        pytest.param({"runtimeClassName": "nvidia"}, NO_AGENTS, LEGACY, setting(), None, id="a class"),
        pytest.param({}, NO_AGENTS, LEGACY, setting(runtime_class=""), None, id="no class configured"),
        pytest.param({}, READY, LEGACY, setting("Auto"), None, id="agents on the node"),
        pytest.param({}, NO_AGENTS, LEGACY, setting("Auto"), ELSEWHERE, id="no agents on the node"),
        pytest.param({}, NO_AGENTS, LEGACY, setting(True), None, id="agents everywhere"),
        pytest.param({"containers": [{"name": LONGEST}]}, NO_AGENTS, NRI, setting(), None, id="the longest name"),
        pytest.param({"containers": [{"name": LONGEST + "c"}]}, NO_AGENTS, NRI, setting(), DELETE,
            id="a name that does not fit the annotation"),
        pytest.param({"containers": [{"name": LONGEST + "c"}]}, READY, NRI, setting("Auto"), None,
            id="a long name, and agents on the node"),
    ],
)  # fmt: skip
def test_a_share_that_would_see_no_device_is_not_bound(
    spec: Json, node: Json, mode: OperatorMode, settings: Settings, suggestion: Suggestion | None
) -> None:
    status = undelivered_status(sharing_pod(**spec), {"metadata": {"name": "n"}, **node}, mode, settings)
    assert (status and status.suggestion) == suggestion
    if suggestion is DELETE:
        assert status is not None
        assert status.message.startswith(f'spec.containers[0].name: "{LONGEST}c": must have at most 53 characters')
        assert "shorten it" in status.message


@pytest.mark.parametrize(("excluded", "reason"), [(("team-b", "team-a"), Reason.REJECTED), (("team-b",), None)])
def test_a_share_in_a_namespace_that_was_excluded_since_ends(
    excluded: tuple[str, ...], reason: Reason | None
) -> None:
    """A policy denies its labels, and a denial by one is awaited without a limit."""
    gpu: Json = {"receivedGPU": {"count": 1, "portion": "0.5"}, "selectedGPUGroups": ["g1"]}
    request = builders.bind_request("half", namespace="team-a", receivedResourceType="Fraction", **gpu)
    pod = sharing_pod({**HALF, names.SHARED_GPU_CONFIGMAP: "half-gpu"}, runtimeClassName="nvidia")
    settings = Settings(namespaces=Namespaces(exclude=excluded))
    status = unsharable_status(context_for(builders.stored(request), pod), UNKNOWN, settings)
    assert (status and (status.reason, status.suggestion)) == (reason and (reason, DELETE))
