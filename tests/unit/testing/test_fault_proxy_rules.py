"""How the fault proxy handles requests, rules and watch lines: pure functions over data."""

import pytest

from bowline.testing.fault_proxy.calls import ProxiedCall, parse_call
from bowline.testing.fault_proxy.faults import DropBefore, LoseReply
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule, RuleBook

BINDING = ProxiedCall("create", "", "pods", "binding", "ns", "p")


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        pytest.param("POST", "/api/v1/namespaces/ns/pods/p/binding", BINDING, id="a Binding is a create"),
        pytest.param("GET", "/api/v1/nodes?watch=1&resourceVersion=7", ProxiedCall("watch", resource="nodes"),
            id="a watch is no list"),
        pytest.param("GET", "/apis/scheduling.run.ai/v1alpha2/namespaces/ns/bindrequests/r", ProxiedCall("get",
            "scheduling.run.ai", "bindrequests", "", "ns", "r"), id="a get in a group"),
        pytest.param("PATCH", "/apis/scheduling.run.ai/v1alpha2/namespaces/ns/bindrequests/r/status?fieldManager=x",
            ProxiedCall("patch", "scheduling.run.ai", "bindrequests", "status", "ns", "r"),
            id="a patch of a subresource"),
        pytest.param("DELETE", "/api/v1/namespaces/ns/pods", ProxiedCall("deletecollection", resource="pods",
            namespace="ns"), id="a delete without a name empties the collection"),
        pytest.param("GET", "/readyz?verbose", ProxiedCall("get", name="/readyz"), id="a path without a resource"),
    ],
)  # fmt: skip
def test_a_request_is_parsed(method: str, target: str, expected: ProxiedCall) -> None:
    assert parse_call(method, target) == expected


class TestMatch:
    @pytest.mark.parametrize(
        ("match", "is_covered"),
        [
            pytest.param(CallMatch(), True, id="an empty match covers all"),
            pytest.param(CallMatch(("create", "patch")), True, id="one of several verbs"),
            pytest.param(CallMatch(("patch",)), False, id="another verb"),
            pytest.param(CallMatch((), "pods"), True, id="the resource with any subresource"),
            pytest.param(CallMatch((), "pods", ""), False, id="the object itself"),
            pytest.param(CallMatch((), "pods", "binding", "ns", "p"), True, id="all of it"),
            pytest.param(CallMatch(namespace="other"), False, id="another namespace"),
            pytest.param(CallMatch(name="other"), False, id="another name"),
        ],
    )
    def test_covers(self, match: CallMatch, is_covered: bool) -> None:
        assert match.covers(BINDING) is is_covered


class TestRuleBook:
    def choose(self, book: RuleBook, count: int, call: ProxiedCall = BINDING) -> str:
        faults = [book.choose(call) for _ in range(count)]
        return "".join(type(fault).__name__[0] if fault is not None else "." for fault in faults)

    @pytest.mark.parametrize(
        ("rules", "faults"),
        [
            pytest.param([FaultRule(DropBefore())], "DDDDDD", id="always"),
            pytest.param([FaultRule(DropBefore(), nth=2)], ".D....", id="the second only"),
            pytest.param([FaultRule(LoseReply(), nth=1), FaultRule(DropBefore())], "LDDDDD",
                id="the first rule has priority"),
            pytest.param([FaultRule(LoseReply(), nth=1), FaultRule(DropBefore(), nth=1)], "L.....",
                id="a rule counts requests of another rule"),
        ],
    )  # fmt: skip
    def test_rules_are_due(self, rules: list[FaultRule], faults: str) -> None:
        book = RuleBook()
        book.add(*rules)
        assert self.choose(book, 6) == faults

    def test_only_what_matches_counts(self) -> None:
        book = RuleBook()
        book.add(FaultRule(DropBefore(), CallMatch(("create",)), nth=2))
        assert self.choose(book, 3, ProxiedCall("get")) == "..."
        assert self.choose(book, 3) == ".D."
