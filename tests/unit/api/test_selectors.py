"""Selectors over labels: what selects what, and what selects nothing."""

from typing import Any

import pytest

from bowline.api.selectors import (
    Node,
    node_selector_admits,
    reads_labels,
    required_value,
    selector_admits,
    topologies_admit,
)

NODE = Node("node-0", {"kubernetes.io/hostname": "node-0", "zone": "a", "rank": "5"})


def expression(operator: str, *values: str, key: str = "zone") -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


EXPRESSIONS = [
    pytest.param(expression("In", "a", "b"), True, id="one of the values"),
    pytest.param(expression("In", "b"), False, id="none of the values"),
    pytest.param(expression("In", "a", key="absent"), False, id="an absent label is in no list"),
    pytest.param(expression("NotIn", "b"), True, id="not among the values"),
    pytest.param(expression("NotIn", "a"), False, id="among those it must not be"),
    pytest.param(expression("NotIn", "a", key="absent"), True, id="an absent label is not in a list"),
    pytest.param(expression("Exists"), True, id="present"),
    pytest.param(expression("Exists", key="absent"), False, id="absent label"),
    pytest.param(expression("DoesNotExist", key="absent"), True, id="absent, as required"),
    pytest.param(expression("DoesNotExist"), False, id="present, against the expression"),
    pytest.param(expression("Gt", "4", key="rank"), True, id="greater"),
    pytest.param(expression("Gt", "5", key="rank"), False, id="equal is not greater"),
    pytest.param(expression("Lt", "10", key="rank"), True, id="compared as numbers, not as text"),
    pytest.param(expression("Lt", "5", key="rank"), False, id="equal is not less"),
    pytest.param(expression("Gt", "4"), False, id="a label that is no number"),
    pytest.param(expression("Gt", "x", key="rank"), False, id="a bound that is no number"),
    pytest.param(expression("Gt", "1", "2", key="rank"), False, id="two bounds"),
    pytest.param(expression("Gt", "0_1", key="rank"), False, id="a number for Python only"),
    pytest.param(expression("Lt", str(2**63), key="rank"), False, id="a bound that is no int64"),
    pytest.param(expression("Gt", "4", key="absent"), False, id="nothing to compare"),
    pytest.param(expression("Like", "a"), False, id="an unknown operator"),
]


@pytest.mark.parametrize(("part", "is_admitted"), EXPRESSIONS)
def test_expression(part: dict[str, Any], is_admitted: bool) -> None:
    assert node_selector_admits({"nodeSelectorTerms": [{"matchExpressions": [part]}]}, NODE) is is_admitted


IS_A, IS_B = expression("In", "a"), expression("In", "b")


@pytest.mark.parametrize(
    ("selector", "is_admitted"),
    [
        pytest.param(None, True, id="no affinity: every node"),
        pytest.param({"nodeSelectorTerms": []}, False, id="no term: no node"),
        pytest.param({"nodeSelectorTerms": [{}]}, False, id="an empty term: no node"),
        pytest.param({"nodeSelectorTerms": [{"matchExpressions": [IS_A, IS_B]}]}, False, id="all of a term"),
        pytest.param({"nodeSelectorTerms": [{"matchExpressions": [IS_B]}, {"matchExpressions": [IS_A]}]}, True,
            id="any term"),
        pytest.param({"nodeSelectorTerms": [{"matchFields": [expression("In", "node-0", key="metadata.name")]}]},
            True, id="the node by its name"),
        pytest.param({"nodeSelectorTerms": [{"matchFields": [expression("In", "node-0", key="spec.x")]}]}, False,
            id="another field"),
    ],
)  # fmt: skip
def test_affinity(selector: Any, is_admitted: bool) -> None:
    assert node_selector_admits(selector, NODE) is is_admitted


@pytest.mark.parametrize(
    ("selector", "is_admitted"),
    [
        pytest.param(None, True, id="no selector"),
        pytest.param({"matchLabels": {"zone": "a"}}, True, id="equal"),
        pytest.param({"matchLabels": {"zone": "a", "absent": "x"}}, False, id="one label missing"),
        pytest.param({"matchLabels": {"zone": "a"}, "matchExpressions": [IS_B]}, False, id="both parts must fit"),
        pytest.param({"matchExpressions": [IS_A, IS_B]}, False, id="two values of one label"),
        pytest.param({"matchExpressions": [expression("NotIn", "b"), expression("NotIn", "a")]}, False,
            id="one of two lists"),
        pytest.param({"matchExpressions": [expression("Gt", "4", key="rank")]}, False, id="an operator of nodes"),
    ],
)  # fmt: skip
def test_label_selector(selector: Any, is_admitted: bool) -> None:
    assert selector_admits(selector, NODE.labels) is is_admitted


@pytest.mark.parametrize(("part", "is_admitted"), EXPRESSIONS)
def test_expression_of_a_label_selector(part: dict[str, Any], is_admitted: bool) -> None:
    assert selector_admits({"matchExpressions": [part]}, NODE.labels) is (
        is_admitted and part["operator"] not in ("Gt", "Lt")
    )


def term(*values: str, key: str = "zone") -> dict[str, Any]:
    return {"matchLabelExpressions": [{"key": key, "values": list(values)}]}


@pytest.mark.parametrize(
    ("terms", "is_admitted"),
    [
        pytest.param([], True, id="none: everywhere"),
        pytest.param([{}], False, id="an empty one: nowhere"),
        pytest.param([term("b"), term("a")], True, id="any of them"),
        pytest.param([term("a", key="absent")], False, id="a label that the node does not have"),
    ],
)
def test_allowed_topologies(terms: Any, is_admitted: bool) -> None:
    assert topologies_admit(terms, NODE.labels) is is_admitted


@pytest.mark.parametrize(
    ("selector", "read"),
    [
        pytest.param(None, False, id="none"),
        pytest.param({"nodeSelectorTerms": [{"matchFields": [expression("In", "n", key="metadata.name")]}]}, False,
            id="a name"),
        pytest.param({"nodeSelectorTerms": [{"matchFields": []}, {"matchExpressions": [IS_A]}]}, True,
            id="a label in one term"),
    ],
)  # fmt: skip
def test_only_labels_in_a_selector_are_read(selector: Any, read: bool) -> None:
    assert reads_labels(selector) is read


@pytest.mark.parametrize(
    ("selector", "value"),
    [
        pytest.param(None, None, id="none"),
        pytest.param({"nodeSelectorTerms": []}, None, id="no term"),
        pytest.param({"nodeSelectorTerms": [{"matchExpressions": [IS_A]}]}, "a", id="one value"),
        pytest.param({"nodeSelectorTerms": [{"matchExpressions": [expression("Exists", key="rank"), IS_A]}]}, "a",
            id="among other conditions"),
        pytest.param({"nodeSelectorTerms": [{"matchExpressions": [IS_A]}, {"matchExpressions": [IS_B]}]}, None,
            id="either"),
        pytest.param({"nodeSelectorTerms": [{"matchExpressions": [expression("In", "a", "b")]}]}, None,
            id="two values"),
        pytest.param({"nodeSelectorTerms": [{"matchExpressions": [expression("NotIn", "a")]}]}, None,
            id="all but one"),
        pytest.param({"nodeSelectorTerms": [{"matchFields": [expression("In", "a", key="zone")]}]}, None,
            id="a field"),
    ],
)  # fmt: skip
def test_the_one_value_that_a_label_must_have(selector: Any, value: str | None) -> None:
    assert required_value(selector, "zone") == value
