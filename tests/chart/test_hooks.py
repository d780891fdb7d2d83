"""The webhook configurations, compared with the table of hooks and the names in the code."""

import re
from typing import Any

import pytest

from bowline.api import names
from bowline.framework.config import SYSTEM_NAMESPACES
from bowline.framework.workload_kinds import BUILT_IN, READY
from bowline.localcluster.errors import CommandError
from bowline_webhook.hooks import Hook
from tests.chart.presets import EVERYTHING, PRESETS
from tests.chart.rendering import NAMESPACE, Chart, Rendered, merged

# (hook, entry): path, failurePolicy, timeout, reinvocationPolicy, {group: (resources, operations)}
BOTH = ("CREATE", "UPDATE")
BIND_REQUESTS = {names.GROUP: ((names.PLURAL,), BOTH)}
DEBUGGED = {"": (("pods/ephemeralcontainers",), ("UPDATE",))}
TABLE: dict[tuple[str, str], tuple[str, str, int, str | None, Any]] = {
    ("mutating", "pods"): ("/mutate/pods", "Ignore", 2, "IfNeeded", {"": (("pods",), ("CREATE",))}),
    ("mutating", "bindrequests"): ("/mutate/bindrequests", "Ignore", 1, "Never", BIND_REQUESTS),
    ("mutating", "ephemeralcontainers"): ("/mutate/ephemeralcontainers", "Ignore", 2, "IfNeeded", DEBUGGED),
    ("validating", "ephemeralcontainers"): ("/validate/ephemeralcontainers", "Fail", 5, None, DEBUGGED),
    ("validating", "pods"): ("/validate/pods", "Fail", 5, None, {"": (("pods",), BOTH)}),
    ("validating", "workloads"): ("/validate/workloads", "Ignore", 3, None, {
        "apps": (("deployments", "statefulsets", "daemonsets", "replicasets"), BOTH),
        "batch": (("jobs", "cronjobs"), BOTH),
        "": (("replicationcontrollers",), BOTH)}),
}  # fmt: skip


TRUSTED_BINDER = {"policy": {"trusted": {"users": ["system:serviceaccount:kai-scheduler:binder"]}}}


def table(manifests: Rendered) -> dict[tuple[str, str], tuple[str, str, int, str | None, Any]]:
    """The hooks as in the table above."""
    rows = {}
    for word, hook in manifests.hooks():
        rules = {
            rule["apiGroups"][0]: (tuple(rule["resources"]), tuple(rule["operations"]))
            for rule in hook.get("rules", ())
        }
        rows[word, hook["name"].removesuffix(".bowline.dev")] = (
            hook["clientConfig"]["service"]["path"],
            hook["failurePolicy"],
            hook["timeoutSeconds"],
            hook.get("reinvocationPolicy"),
            rules,
        )
    return rows


def test_hooks_are_those_of_the_table_and_no_others(manifests: Rendered) -> None:
    assert table(manifests) == TABLE
    assert sorted(path for path, *_ in TABLE.values()) == sorted(Hook), "each is answered"


def test_beside_another_binder_no_finalizer_is_added_that_nobody_removes(chart: Chart) -> None:
    """While Bowline is installed beside KAI-Scheduler's binder, its own reconciler does not run yet."""
    # Of a local cluster, which runs the reconciler beside it: the trusted user is no account.
    without_reconciler = {"reconciler": {"replicas": 0}, "policy": {"trusted": {"users": ["bowline-local-kwok"]}}}
    assert table(chart.render(without_reconciler)) == TABLE
    paths = {row[0] for row in table(chart.render(merged(without_reconciler, TRUSTED_BINDER))).values()}
    assert paths == {row[0] for row in TABLE.values()} - {"/mutate/bindrequests"}


@pytest.mark.parametrize("values", PRESETS)
def test_every_hook_meets_the_invariants_under_every_preset(chart: Chart, values: dict[str, Any]) -> None:
    for _, hook in chart.render(values).hooks():
        assert hook["sideEffects"] == "None"
        assert hook["matchPolicy"] == "Equivalent"
        assert hook["admissionReviewVersions"] == ["v1"]
        assert "caBundle" not in hook["clientConfig"]
        assert "objectSelector" not in hook, "a label on the object would let its author skip the hook"
        assert all(len(rule["apiGroups"]) == 1 for rule in hook.get("rules", ()))
        # Some kinds of other projects have objects without a namespace.
        is_foreign = hook["name"].endswith(".workloads.bowline.dev")
        assert {rule["scope"] for rule in hook.get("rules", ())} <= ({"*"} if is_foreign else {"Namespaced"})
        subresources = {r for rule in hook.get("rules", ()) for r in rule["resources"] if "/" in r}
        assert subresources <= {"pods/ephemeralcontainers"}
        exclusion = hook["namespaceSelector"]["matchExpressions"][0]
        assert (exclusion["key"], exclusion["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
        assert {*SYSTEM_NAMESPACES, NAMESPACE} <= set(exclusion["values"])


def test_values_can_only_leave_out_more_namespaces(chart: Chart) -> None:
    for _, hook in chart.render(EVERYTHING).hooks():
        assert hook["namespaceSelector"] == {
            "matchLabels": {"gpu": "yes"},
            "matchExpressions": [
                {
                    "key": "kubernetes.io/metadata.name",
                    "operator": "NotIn",
                    "values": ["kube-system", NAMESPACE, "monitoring"],
                },
                {"key": "tier", "operator": "NotIn", "values": ["infra"]},
            ],
        }


def test_hooks_outside_the_cluster_are_called_by_url_without_a_double_slash(chart: Chart) -> None:
    for _, hook in chart.render(EVERYTHING).hooks():
        assert set(hook["clientConfig"]) == {"url"}
        assert re.fullmatch(r"https://webhook\.example:9443/bowline(/[a-z]+){2}", hook["clientConfig"]["url"])


def test_the_service_that_is_called_is_the_charts_own(manifests: Rendered) -> None:
    service = manifests.get("Service", "bowline-webhook")
    (port,) = service["spec"]["ports"]
    for _, hook in manifests.hooks():
        reference = hook["clientConfig"]["service"]
        assert (reference["name"], reference["namespace"], reference["port"]) == (
            "bowline-webhook",
            NAMESPACE,
            port["port"],
        )
    (only,) = manifests.get("Deployment", "bowline-webhook")["spec"]["template"]["spec"]["containers"]
    listens = {p["name"]: p["containerPort"] for p in only["ports"]}
    assert f"--listen=:{listens[port['targetPort']]}" in only["args"]


# --- the constants in the expressions are those of the code ---


def expressions(manifests: Rendered) -> dict[tuple[str, str, str], str]:
    return {
        (word, hook["name"].removesuffix(".bowline.dev"), condition["name"]): condition["expression"]
        for word, hook in manifests.hooks()
        for condition in hook.get("matchConditions", ())
    }


def lists_in(expression: str) -> list[list[str]]:
    return [re.findall(r"['\"]([^'\"]+)['\"]", text) for text in re.findall(r"\[((?:['\"][^]]*))\]", expression)]


# --- kinds of other projects ---


def test_every_ready_kind_gets_a_hook_of_its_own(chart: Chart) -> None:
    entries = [{"kind": ready.kind, "group": ready.group, "action": "Warn"} for ready in READY]
    manifests = chart.render({"config": {"workloads": entries}})
    rows: Any = {
        ("validating", f"{ready.resource}.{ready.group}.workloads"): (
            *("/validate/workloads", "Ignore", 3, None),
            {ready.group: ((ready.resource,), BOTH)},
        )
        for ready in READY
    }
    assert table(manifests) == TABLE | rows
    own_rules = [hook["rules"] for _, hook in manifests.hooks() if hook["name"].endswith(".workloads.bowline.dev")]
    assert [rule["apiVersions"] for rules in own_rules for rule in rules] == [["*"]] * len(READY)


OWN = {"group": "a.b", "kind": "Own", "resource": "owns", "templates": ["spec.x[*].t"]}


def test_an_own_kind_gets_a_hook(chart: Chart) -> None:
    manifests = chart.render({"config": {"workloads": [OWN]}})
    row = ("/validate/workloads", "Ignore", 3, None, {"a.b": (("owns",), BOTH)})
    assert table(manifests) == TABLE | {("validating", "owns.a.b.workloads"): row}


def test_a_built_in_kind_needs_no_further_hook(chart: Chart) -> None:
    entries = [{"kind": kind.kind, "action": "Warn"} for kind in BUILT_IN]
    assert table(chart.render({"config": {"workloads": entries}})) == TABLE


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        pytest.param({"kind": "Jobset"}, "Jobset is not known by its name", id="a misspelt name"),
        pytest.param({**OWN, "templates": []}, "Own is not known by its name", id="one's own without templates"),
        pytest.param({**OWN, "resource": ""}, "Own is not known by its name", id="one's own without a resource"),
        pytest.param({"kind": "Job", "group": "a.b"}, "Job is not known", id="a known name in another group"),
        pytest.param({**OWN, "group": "", "kind": "Job"}, "Job is known: leave out", id="more of a known kind"),
    ],
)
def test_a_kind_that_the_processes_reject_is_not_rendered(chart: Chart, entry: Any, message: str) -> None:
    with pytest.raises(CommandError, match=rf"config\.workloads\[1\]: {message}"):
        chart.render({"config": {"workloads": [{"kind": "JobSet"}, entry]}})


def test_the_listed_schedulers_are_those_of_the_configuration(chart: Chart) -> None:
    cel_expressions = expressions(chart.render({"config": {"schedulerNames": ["a.b", "c"]}}))
    for condition in (("mutating", "pods", "ours-or-annotated"), ("validating", "pods", "ours")):
        assert ["a.b", "c"] in lists_in(cel_expressions[condition])


def test_a_star_serves_every_scheduler(chart: Chart) -> None:
    cel_expressions = expressions(
        chart.render({"config": {"schedulerNames": ["a", "*"], "namespaces": {"exclude": ["infra"]}}})
    )
    assert cel_expressions["validating", "pods", "ours"] == "true"
    assert "schedulerName" not in "".join(cel_expressions.values())


# --- hooks that come with their plugin ---


@pytest.mark.parametrize(
    ("config", "conditions"),
    [
        pytest.param({}, {"ours", "shares"}, id="gpu_sharing: those of shares"),
        pytest.param({"plugins": [{"name": "device_access"}]}, {"ours"}, id="device_access: all of ours"),
        pytest.param({"plugins": [{"name": "gpu_sharing", "enabled": False}]}, set(), id="none"),
    ],
)
def test_ephemeral_containers_are_reviewed_where_a_plugin_hides_devices(
    chart: Chart, config: Any, conditions: set[str]
) -> None:
    for word in ("mutating", "validating"):
        cel_expressions = expressions(chart.render({"config": config}))
        assert {
            name for at, hook, name in cel_expressions if (at, hook) == (word, "ephemeralcontainers")
        } == conditions
