"""What a plugin declares of its needs: mistakes are errors of its class, the rest becomes values of the chart."""

import pytest

from bowline.framework.interface.access import Access, AccessRule, access_errors, is_declared
from bowline.framework.interface.plugin import AdmissionPlugin, PluginConfig, access_value

RBAC = "rbac.authorization.k8s.io"
READ = ("get", "list", "watch")
SEATS = Access(
    rules=(
        AccessRule(
            "configmaps", (*READ, "create"), namespace="{namespace}", name_prefix="seat-", label="seats.example/pod"
        ),
        AccessRule("networks", ("get", "create"), "net.example.com"),
    ),
    reviewed_annotations=("seats.example/count",),
    reviewed_fields=("spec.tolerations",),
)


class SeatsConfig(PluginConfig):
    namespace: str = "seats"


@pytest.mark.parametrize(
    ("access", "parts"),
    [
        pytest.param(Access(rules=[AccessRule("pods", READ)]), ["a tuple of AccessRule"], id="a list of rules"),  # type: ignore[arg-type]
        pytest.param(Access(pod_labels="x"), ["pod_labels must be a tuple of str"], id="a name in place of names"),  # type: ignore[arg-type]
        pytest.param(Access(binding_labels=("a b",)), ["'a b'", "a qualified name"], id="no label"),
        pytest.param(Access(reviewed_fields=("spec.a.b",)), ["'spec.a.b'", "spec.FIELD"], id="a deep field"),
        pytest.param(Access(rules=(AccessRule("*", READ),)), ["rules[0]", "'*'", "plural"], id="all resources"),
        pytest.param(Access(rules=(AccessRule("pods", READ, "*"),)), ["'*'", "one API group"], id="all groups"),
        pytest.param(Access(rules=(AccessRule("pods", ("*",)),)), ["verbs *", "get, list"], id="all verbs"),
        pytest.param(Access(rules=(AccessRule("pods", ()),)), ["verbs none"], id="no verb"),
        pytest.param(Access(rules=(AccessRule("leases", ("create",), "coordination.k8s.io", names=("a",)),)),
            ["limits create", "RBAC cannot"], id="create by name"),
        pytest.param(Access(rules=(AccessRule("leases", ("list",), "coordination.k8s.io", names=("a",)),)),
            ["or watch to names"], id="a list by name"),
        pytest.param(Access(rules=(AccessRule("leases", ("update",), "coordination.k8s.io"),)), ["any of the leases"],
            id="any Lease"),
        pytest.param(Access(rules=(AccessRule("secrets", ("get",)),)), ["any Secret", "`names`"], id="any Secret"),
        pytest.param(Access(rules=(AccessRule("configmaps", ("create",)),)), ["any of the configmaps", "stolen"],
            id="any ConfigMap"),
        pytest.param(Access(rules=(AccessRule("configmaps", ("create",), name_prefix="A'"),)), ["name_prefix"],
            id="no prefix of names"),
        pytest.param(Access(rules=(AccessRule("configmaps", ("create",), namespace="{where}"),)), ["'{where}'",
            "no argument 'where'"], id="an unknown argument"),
        pytest.param(Access(rules=(AccessRule("pods", ("delete",), label="app"),)), ["'app'", "own domain"],
            id="a label of users"),
        pytest.param(Access(rules=(AccessRule("pods", ("patch",), label="app.kubernetes.io/name"),)), ["own domain"],
            id="a label of Kubernetes"),
        pytest.param(Access(rules=(AccessRule("pods/exec", ("create",), label="seats.example/pod"),)),
            ["pods/exec", "rights"], id="processes of pods"),
        pytest.param(Access(rules=(AccessRule("clusterroles", ("patch",), RBAC, names=("x",)),)),
            ["clusterroles", "rights"], id="roles"),
        pytest.param(Access(rules=(AccessRule("clusterroles", ("get",), RBAC),)), [],
            id="roles are read"),
        pytest.param(Access(pod_conditions=("Ready",)), ["'Ready'", "own domain"], id="a condition of Kubernetes"),
        pytest.param(Access(binding_annotations=("gpu-fraction",)), ["own domain"], id="an annotation of users"),
        pytest.param(SEATS, [], id="no mistake"),
    ],
)  # fmt: skip
def test_mistakes_are_named(access: Access, parts: list[str]) -> None:
    errors = list(access_errors(access, SeatsConfig.model_fields))
    assert len(errors) == (1 if parts else 0)
    assert all(part in errors[0] for part in parts)


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        pytest.param(("create", "", "configmaps", "theirs", "seat-1"), True, id="declared"),
        pytest.param(("create", "", "configmaps", "theirs", ""), True, id="declared, with a generated name"),
        pytest.param(("create", "", "configmaps", "other", "seat-1"), False, id="another namespace"),
        pytest.param(("create", "", "configmaps", "theirs", "mine"), False, id="another name"),
        pytest.param(("delete", "", "configmaps", "theirs", "seat-1"), False, id="another verb"),
        pytest.param(("create", "net.example.com", "networks", "any", "n"), True, id="declared everywhere"),
        pytest.param(("create", "", "networks", "any", "n"), False, id="another group"),
        pytest.param(("delete", "", "pods", "theirs", "p"), False, id="a pod"),
        pytest.param(("patch", "", "pods", "theirs", "p"), False, id="metadata of a pod"),
        pytest.param(("create", "", "pods/binding", "any", "p"), True, id="the bind"),
    ],
)
def test_a_write_is_declared_by_a_rule_of_its_plugin(write: tuple[str, str, str, str, str], expected: bool) -> None:
    assert is_declared(SEATS, {"namespace": "theirs"}, *write) is expected
    assert is_declared(Access(), {}, *write) is (write[2] == "pods/binding")


def test_labels_and_conditions_are_patches_of_pods() -> None:
    patch, status = ("patch", "", "pods", "any", "p"), ("patch", "", "pods/status", "any", "p")
    assert is_declared(Access(pod_labels=("seats.example/x",)), {}, *patch)
    assert is_declared(Access(pod_conditions=("seats.example/x",)), {}, *status)
    assert not is_declared(Access(pod_conditions=("seats.example/x",)), {}, *patch)


def test_the_values_have_the_charts_keys_the_arguments_and_nothing_empty() -> None:
    members = {"name": "seats", "access": SEATS, "validate_pod": lambda self, pod, old, info: ()}
    kind = type("Seats", (AdmissionPlugin,), members)
    assert access_value(kind, SeatsConfig(namespace="theirs").model_dump()) == {
        "plugin": "seats",
        "hooks": ["pods"],
        "rules": [
            {
                "resource": "configmaps",
                "verbs": ["get", "list", "watch", "create"],
                "namespace": "theirs",
                "namePrefix": "seat-",
                "label": "seats.example/pod",
            },
            {"resource": "networks", "verbs": ["get", "create"], "group": "net.example.com"},
        ],
        "reviewedAnnotations": ["seats.example/count"],
        "reviewedFields": ["spec.tolerations"],
    }
