"""What is read of the API server's sentences: its own texts, as real API servers write them."""

import pytest

from bowline.api.rule import rules_in
from bowline.kube.denial import Denial, MissingRight


@pytest.mark.parametrize(
    ("message", "denial"),
    [
        pytest.param("ValidatingAdmissionPolicy 'r-devices' with binding 'b' denied request: no",
            Denial(policy="r-devices"), id="a policy"),
        pytest.param('admission webhook "pods.bowline.dev" denied the request: no',
            Denial(webhook="pods.bowline.dev"), id="a hook"),
        pytest.param('Internal error occurred: failed calling webhook "a.b": failed to call webhook: EOF',
            Denial(failed_webhook="a.b"), id="a webhook that is down"),
        pytest.param(
            'pods "p" is forbidden: exceeded quota: team-a, requested: pods=1, used: pods=1, limited: pods=1',
            Denial(quota="team-a"), id="a quota"),
        pytest.param(
            'pods is forbidden: User "u" cannot create resource "pods/binding" in API group "" in the namespace "n"',
            Denial(right=MissingRight("create", "pods/binding", "", "n")), id="a missing right"),
        pytest.param('nodes is forbidden: User "u" cannot list resource "nodes" in API group "" at the cluster scope',
            Denial(right=MissingRight("list", "nodes", "", "")), id="a missing right of the cluster"),
        pytest.param('admission webhook "a.b" does not support dry run', Denial(has_no_dry_run=True),
            id="no dry run"),
        pytest.param("field label not supported: spec.x", Denial(has_no_such_field=True), id="no such field"),
        pytest.param("", Denial(), id="no text"),
    ],
)  # fmt: skip
def test_a_denial_of_a_message(message: str, denial: Denial) -> None:
    assert Denial.of(message) == denial


@pytest.mark.parametrize(
    ("causes", "rules"),
    [
        pytest.param([("spec", "FieldValueInvalid"), ("bowline", "a/b,c/d")], {"a/b", "c/d"}, id="the last cause"),
        pytest.param([("bowline", "InternalError")], set(), id="a cause without a field"),
        pytest.param([("spec.x", "a/b")], set(), id="another's denial"),
    ],
)
def test_the_rules_of_a_denial_are_in_its_causes(causes: list[tuple[str, str]], rules: set[str]) -> None:
    assert rules_in(causes) == rules
