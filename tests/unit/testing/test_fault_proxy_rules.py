"""How the fault proxy handles requests, rules and watch lines: pure functions over data."""

import textwrap
from pathlib import Path

import orjson
import pytest
import yaml

from bowline.localcluster.kubeconfig import redirect
from bowline.testing import fault_proxy
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
from bowline.testing.fault_proxy.record import Exchange, Record
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule, RuleBook
from bowline.testing.fault_proxy.watches import Next, WatchScript, WatchStep

BINDING = ProxiedCall("create", "", "pods", "binding", "ns", "p")


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        pytest.param("POST", "/api/v1/namespaces/ns/pods/p/binding", BINDING, id="a Binding is a create"),
        pytest.param(
            "GET", "/api/v1/pods?limit=5", ProxiedCall("list", resource="pods"), id="a list of all namespaces"
        ),
        pytest.param(
            "GET",
            "/api/v1/nodes?watch=1&resourceVersion=7",
            ProxiedCall("watch", resource="nodes"),
            id="a watch is no list",
        ),
        pytest.param(
            "GET",
            "/apis/scheduling.run.ai/v1alpha2/namespaces/ns/bindrequests/r",
            ProxiedCall("get", "scheduling.run.ai", "bindrequests", "", "ns", "r"),
            id="a get in a group",
        ),
        pytest.param(
            "PATCH",
            "/apis/scheduling.run.ai/v1alpha2/namespaces/ns/bindrequests/r/status?fieldManager=x",
            ProxiedCall("patch", "scheduling.run.ai", "bindrequests", "status", "ns", "r"),
            id="a patch of a subresource",
        ),
        pytest.param(
            "DELETE",
            "/api/v1/namespaces/ns",
            ProxiedCall("delete", resource="namespaces", name="ns"),
            id="a namespace itself",
        ),
        pytest.param(
            "PUT",
            "/api/v1/namespaces/ns/finalize",
            ProxiedCall("update", resource="namespaces", subresource="finalize", name="ns"),
            id="a namespace's subresource",
        ),
        pytest.param(
            "DELETE",
            "/api/v1/namespaces/ns/pods",
            ProxiedCall("deletecollection", resource="pods", namespace="ns"),
            id="a delete without a name empties the collection",
        ),
        pytest.param(
            "GET",
            "/api/v1/nodes/a%2Eb",
            ProxiedCall("get", resource="nodes", name="a.b"),
            id="a quoted name is unquoted",
        ),
        pytest.param("GET", "/readyz?verbose", ProxiedCall("get", name="/readyz"), id="a path without a resource"),
        pytest.param("GET", "/api", ProxiedCall("get", name="/api"), id="discovery"),
    ],
)
def test_a_request_is_parsed(method: str, target: str, expected: ProxiedCall) -> None:
    assert parse_call(method, target) == expected


@pytest.mark.parametrize(
    ("body", "name"),
    [
        pytest.param(b'{"metadata":{"name":"x"}}', "x", id="named"),
        pytest.param(b'{"metadata":{"generateName":"x-"}}', "x-", id="named by the API server"),
        pytest.param(b"[]", "", id="not an object"),
        pytest.param(b"\x00", "", id="not JSON"),
        pytest.param(b"", "", id="nothing"),
    ],
)
def test_the_name_of_what_is_created_is_in_its_body(body: bytes, name: str) -> None:
    assert parse_call("POST", "/api/v1/namespaces/ns/pods", body).name == name


def test_verbs_that_write() -> None:
    assert BINDING.writes
    assert not ProxiedCall("list").writes
    assert BINDING.kind == "create pods/binding"


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
            pytest.param(
                [FaultRule(LoseReply(), nth=1), FaultRule(DropBefore())], "LDDDDD", id="the first rule has priority"
            ),
            pytest.param(
                [FaultRule(LoseReply(), nth=1), FaultRule(DropBefore(), nth=1)],
                "L.....",
                id="a rule counts requests of another rule",
            ),
        ],
    )
    def test_rules_are_due(self, rules: list[FaultRule], faults: str) -> None:
        book = RuleBook()
        book.add(*rules)
        assert self.choose(book, 6) == faults

    def test_only_what_matches_counts(self) -> None:
        book = RuleBook()
        book.add(FaultRule(DropBefore(), CallMatch(("create",)), nth=2))
        assert self.choose(book, 3, ProxiedCall("get")) == "..."
        assert self.choose(book, 3) == ".D."

    def test_the_same_seed_gives_the_same_faults(self) -> None:
        fault_series = []
        for seed in (1, 1, 2):
            book = RuleBook(seed)
            book.add(FaultRule(DropBefore(), chance=0.5))
            fault_series.append(self.choose(book, 64))
        assert fault_series[0] == fault_series[1] != fault_series[2]
        assert {"D", "."} == set(fault_series[0])

    def test_clearing_ends_it(self) -> None:
        book = RuleBook()
        book.add(FaultRule(DropBefore()))
        book.clear()
        assert self.choose(book, 1) == "."

    @pytest.mark.parametrize(
        ("turn", "word"),
        [
            pytest.param({"nth": -1}, "nth", id="a negative number"),
            pytest.param({"every": 0}, "every", id="every none"),
            pytest.param({"chance": 1.5}, "chance", id="more than certain"),
        ],
    )
    def test_an_invalid_rule_is_rejected(self, turn: dict[str, float], word: str) -> None:
        with pytest.raises(ValueError, match=word):
            FaultRule(DropBefore(), **turn)  # type: ignore[arg-type]  # what a caller without a type checker writes

    def test_a_watch_fault_on_other_requests_is_rejected(self) -> None:
        with pytest.raises(ValueError, match="match the verb watch alone"):
            FaultRule(CutWatch())


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


class TestExchange:
    @pytest.mark.parametrize(
        ("exchange", "outcome", "applied"),
        [
            pytest.param(Exchange(1, BINDING, 201, replied=True), "201", True, id="executed and answered"),
            pytest.param(
                Exchange(1, BINDING, 201, replied=False, fault="LoseReply"), "201, reply lost", True, id="reply lost"
            ),
            pytest.param(Exchange(1, BINDING, 409, replied=True), "409", False, id="rejected"),
            pytest.param(
                Exchange(1, BINDING, None, replied=False, fault="DropBefore"),
                "not forwarded (DropBefore)",
                False,
                id="never arrived",
            ),
            pytest.param(
                Exchange(1, BINDING, None, replied=False), "not answered", False, id="the API server was unavailable"
            ),
        ],
    )
    def test_outcome(self, exchange: Exchange, outcome: str, applied: bool) -> None:
        assert exchange.outcome == outcome
        assert exchange.applied is applied

    def test_the_record_is_in_the_order_of_arrival(self) -> None:
        record = Record()
        first, second = record.begin(), record.begin()
        for number in (second, first):
            record.end(Exchange(number, BINDING, 201, replied=True))
        assert [exchange.number for exchange in record.exchanges()] == [first, second]


class TestKubeconfig:
    def document(self, **user: str) -> str:
        cluster = {"server": "https://real:6443", "certificate-authority": "ca.crt", "tls-server-name": "real"}
        return yaml.safe_dump(
            {"clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": user}]}
        )

    def test_the_kubeconfig_has_the_proxys_address_and_the_same_credentials(self) -> None:
        text = self.document(tokenFile="token")
        kubeconfig = yaml.safe_load(
            redirect(text, Path("/somewhere/kubeconfig"), "https://proxy:1", Path("/somewhere/ca.crt"))
        )
        assert kubeconfig["clusters"][0]["cluster"] == {
            "server": "https://proxy:1",
            "certificate-authority": "/somewhere/ca.crt",
        }
        assert kubeconfig["users"][0]["user"] == {"tokenFile": "/somewhere/token"}

    def test_a_client_certificate_is_rejected_with_the_remedy(self) -> None:
        text = self.document(**{"client-certificate": "crt", "client-key": "key"})
        with pytest.raises(ValueError, match="give it a ServiceAccount's token"):
            redirect(text, Path("/somewhere/kubeconfig"), "https://proxy:1", Path("/somewhere/ca.crt"))


def test_the_example_of_the_package_can_be_run_up_to_its_cluster() -> None:
    """With Python's own names of the kit; what follows needs a cluster."""
    example = textwrap.dedent("    from " + (fault_proxy.__doc__ or "").partition("    from ")[2])
    module = compile(example, "example", "exec")
    with pytest.raises(NameError, match="cluster"):
        exec(module, {})  # noqa: S102 - a docstring of this repository
