"""Which clients may bind a pod whose bind is being prepared."""

import pytest

from shared.api.meta import ObjectKey
from shared.framework.admission import AdmissionChain
from shared.framework.config import ConfigurationError, PluginEntry, Settings
from shared.framework.gates import GATES
from shared.framework.plugin import AdmissionInfo
from shared.framework.registry import Registry
from shared.plugins.binding_guard import BindingGuard, BindingGuardConfig
from shared.plugins.catalog import BUILTINS

POD = ObjectKey("team", "pod")
BINDER = "system:serviceaccount:kai-scheduler:binder"


def chain(*users: str) -> AdmissionChain:
    guard = BindingGuard(BindingGuardConfig.model_validate({"allowedUsers": users}), Settings())
    return AdmissionChain([guard], Settings(), own_namespace="bowline-system")


def asked(user: str = "alice", namespace: str = "team", *requested: ObjectKey) -> AdmissionInfo:
    return AdmissionInfo(namespace=namespace, user=user, pods_with_bindrequest=frozenset(requested))


@pytest.mark.parametrize(
    ("pod", "info", "allowed"),
    [
        pytest.param(POD, asked("alice", "team", POD), False, id="another user, a pod with a request"),
        pytest.param(POD, asked(BINDER, "team", POD), True, id="who is listed"),
        pytest.param(POD, asked(f"{BINDER}2", "team", POD), False, id="a longer name is another one"),
        pytest.param(POD, asked("", "team", POD), False, id="no user name"),
        pytest.param(POD, asked("alice", "team"), True, id="a pod without a request"),
        pytest.param(
            POD,
            asked("alice", "team", ObjectKey("other", "pod")),
            True,
            id="a namesake's request in another namespace",
        ),
        pytest.param(
            ObjectKey("kube-system", "pod"),
            asked("alice", "kube-system", ObjectKey("kube-system", "pod")),
            True,
            id="kube-system is never guarded",
        ),
        pytest.param(
            ObjectKey("bowline-system", "pod"),
            asked("alice", "bowline-system", ObjectKey("bowline-system", "pod")),
            True,
            id="our own namespace",
        ),
    ],
)
def test_clients_that_may_bind(pod: ObjectKey, info: AdmissionInfo, allowed: bool) -> None:
    assert chain(BINDER).validate_binding(pod, info).allowed is allowed


def test_the_denial_names_pod_user_and_remedy() -> None:
    (fault,) = chain().validate_binding(POD, asked("eve", "team", POD)).errors
    assert fault.rule == "binding_guard/user"
    assert str(fault) == (
        'metadata.name: "pod": pod team/pod has a BindRequest and is bound by Bowline\'s reconciler, not by user '
        '"eve"; leave it to the BindRequest, delete that one first, or list the user in allowedUsers of plugin '
        "binding_guard"
    )


@pytest.mark.parametrize(
    ("settings", "on"),
    [
        pytest.param(Settings(), False, id="off by default"),
        pytest.param(Settings(feature_gates={"BindingGuard": True}), False, id="the gate alone switches nothing on"),
        pytest.param(
            Settings(plugins=(PluginEntry(name="binding_guard"),), feature_gates={"BindingGuard": True}),
            True,
            id="both together do",
        ),
    ],
)
def test_the_plugin_is_alpha(settings: Settings, on: bool) -> None:
    names = [plugin.name for plugin in Registry(BUILTINS, GATES).build(settings)]
    assert ("binding_guard" in names) is on


def test_enabling_it_without_its_gate_is_an_error_that_names_the_gate() -> None:
    with pytest.raises(ConfigurationError, match="its feature gate BindingGuard is off"):
        Registry(BUILTINS, GATES).build(Settings(plugins=(PluginEntry(name="binding_guard"),)))
