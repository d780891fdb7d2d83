"""How the fault proxy handles requests, rules and watch lines: pure functions over data."""

import orjson
import pytest

from bowline.testing.fault_proxy.calls import ProxiedCall, parse_call
from bowline.testing.fault_proxy.faults import (
    CutWatch,
    DropBefore,
    ExpireWatch,
    LoseReply,
    RepeatEvents,
    StallWatch,
    SwapEvents,
    WatchFault,
)
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule, RuleBook
from bowline.testing.fault_proxy.watches import Next, WatchScript, WatchStep

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
            pytest.param([FaultRule(DropBefore(), every=3)], "..D..D", id="every third"),
            pytest.param([FaultRule(DropBefore(), chance=0)], "......", id="no chance"),
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


@pytest.mark.parametrize(
    ("fault", "output", "then"),
    [
        pytest.param(None, b"aa\nbb\ncc\n", Next.GO_ON, id="undisturbed"),
        pytest.param(CutWatch(1), b"aa\nb", Next.BREAK, id="broken off in the middle of a line"),
        pytest.param(StallWatch(2), b"aa\nbb\n", Next.STALL, id="stalled"),
        pytest.param(RepeatEvents(2), b"aa\nbb\nbb\ncc\n", Next.GO_ON, id="the second twice"),
        pytest.param(SwapEvents(2), b"aa\ncc\nbb\n", Next.GO_ON, id="the second after the third"),
    ],
)
def test_a_watch_is_disturbed(fault: WatchFault | None, output: bytes, then: Next) -> None:
    script = WatchScript(fault)
    data, last = b"", Next.GO_ON
    for line in (b"aa", b"bb", b"cc"):
        step = script.feed(line)
        data, last = data + step.data, step.then
        if last is not Next.GO_ON:
            break
    assert (data, last) == (output, then)
    assert not script.holds


def test_a_swapped_event_that_none_follows_is_sent_in_the_end() -> None:
    script = WatchScript(SwapEvents(1))
    assert script.feed(b"aa") == WatchStep(b"")
    assert script.holds
    assert script.flush() == WatchStep(b"aa\n")
    assert not script.holds


def test_an_expired_watch_is_reported_as_by_the_api_server() -> None:
    step = WatchScript(ExpireWatch()).feed(b"aa")
    event = orjson.loads(step.data)
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert step.then is Next.CLOSE
