"""docs/suggestions.md lists the suggestion of every terminal failure in the code, and no other failure."""

import ast
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bowline.api.bindrequest import AllocationKind, decode_bind_request
from bowline.framework.binding.post import binding_status
from bowline.framework.config import Binding, Settings
from bowline.framework.plugin_status import Code, Reason, Status, Suggestion
from bowline.kube.binding import BindingResult, BindOutcome
from bowline.testing.builders import bind_request, pod, stored
from bowline_reconciler.decide.actions import Fail
from bowline_reconciler.decide.decide import decide
from bowline_reconciler.decide.outcome import classify_outcome
from bowline_reconciler.decide.report import failure_report
from bowline_reconciler.decide.snapshot import NodeView, Observed, Outcome, Target, Times, pod_view

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "suggestions.md"
NONE = "none"
# How calls that end a request take their reason and their suggestion: name, places, the reason without one.
ENDS = {"Fail": (0, 2, ""), "fatal": (1, 2, Reason.REJECTED.value)}
# Calls that return a wait; its suggestion is reported if the wait expires.
WAITS = ("wait", "waits")

Pair = tuple[str, str]


def documented_pairs() -> list[Pair]:
    rows = re.findall(r"^\| `(\w+)` \| `?(\w+)`? \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    return [(reason, suggestion) for reason, suggestion in rows if reason in {r.value for r in Reason}]


def sources() -> Iterator[Path]:
    for package in ("reconciler", "shared"):
        yield from (p for p in sorted((ROOT / package).rglob("*.py")) if "tests" not in p.relative_to(ROOT).parts)


def word(node: ast.expr | None, enum: type[Reason] | type[Suggestion], without: str) -> str | None:
    """The constant of an argument; ``without`` if there is none, None if it cannot be derived here."""
    if node is None:
        return without
    if isinstance(node, ast.BoolOp):  # "the plugin's value, or this"
        node = node.values[-1]
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == enum.__name__:
        return enum[node.attr].value
    return None


def pairs(source: Path) -> Iterator[tuple[Pair, str]]:
    """Every pair of reason and suggestion that a module spells out, with its place."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        function_name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        if function_name in WAITS and "suggestion" in keywords:
            wait_suggestion = word(keywords["suggestion"], Suggestion, NONE)
            if wait_suggestion:
                yield (Reason.WAIT_TIMEOUT.value, wait_suggestion), f"{source.relative_to(ROOT)}:{node.lineno}"
        if function_name not in ENDS or not (node.args or node.keywords):
            continue
        reason_at, suggestion_at, default = ENDS[function_name]
        positional = dict(enumerate(node.args))
        reason = word(positional.get(reason_at, keywords.get("reason")), Reason, default)
        suggestion = word(positional.get(suggestion_at, keywords.get("suggestion")), Suggestion, NONE)
        if reason and suggestion:
            yield (reason, suggestion), f"{source.relative_to(ROOT)}:{node.lineno}"


# Superseded is passed to the plugins of a withdrawn request; no request ends with it.
SUPERSEDED = (Reason.SUPERSEDED.value, NONE)
FOUND = [(pair, place) for source in sources() for pair, place in pairs(source) if pair != SUPERSEDED]
# Both are from one function of dynamic_resources with the suggestion as an argument; its own tests check them.
NOT_SPELT_OUT = {
    (Reason.DEVICE_CONFLICT.value, NONE),
    (Reason.DEVICE_CONFLICT.value, Suggestion.RESCHEDULE_ELSEWHERE.value),
}


@pytest.mark.parametrize(("pair", "place"), FOUND, ids=[place for _, place in FOUND])
def test_a_terminal_failure_has_the_documented_suggestion(pair: Pair, place: str) -> None:
    assert pair in documented_pairs(), f"{place}: suggests {pair[1]} for {pair[0]}; decide, and write it down"


def test_every_documented_suggestion_is_in_the_code() -> None:
    assert set(documented_pairs()) - {pair for pair, _ in FOUND} <= NOT_SPELT_OUT


def test_every_reason_and_suggestion_is_documented_once() -> None:
    table = documented_pairs()
    assert len(table) == len(set(table))
    assert {reason for reason, _ in table} == {reason.value for reason in Reason} - {Reason.SUPERSEDED.value}
    assert {suggestion for _, suggestion in table} == {suggestion.value for suggestion in Suggestion} | {NONE}


# --- suggestions where several failures meet ---

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = Binding(backoff_limit=0, wait_timeout=timedelta(seconds=1))
WAITED = Times(wait_time=timedelta(seconds=1))
ELSEWHERE, SAME, DELETE = Suggestion.RESCHEDULE_ELSEWHERE, Suggestion.RETRY_SAME_NODE, Suggestion.DELETE_POD


@pytest.mark.parametrize(
    ("status", "reason", "suggestion"),
    [
        pytest.param(
            Status.retry("x"), Reason.BACKOFF_LIMIT_EXCEEDED, ELSEWHERE, id="a failure that was repeated too often"
        ),
        pytest.param(
            Status(Code.RETRY, ("x",), suggestion=DELETE),
            Reason.BACKOFF_LIMIT_EXCEEDED,
            DELETE,
            id="a given suggestion has priority",
        ),
        pytest.param(Status.wait("x"), Reason.WAIT_TIMEOUT, SAME, id="an expired wait"),
        pytest.param(
            Status(Code.WAIT, ("x",), suggestion=ELSEWHERE),
            Reason.WAIT_TIMEOUT,
            ELSEWHERE,
            id="also after a wait",
        ),
        pytest.param(
            Status.fatal("x", Reason.VOLUME_CONFLICT, DELETE), Reason.VOLUME_CONFLICT, DELETE, id="as given"
        ),
        pytest.param(Status.fatal("x"), Reason.REJECTED, None, id="no default for a rejection"),
    ],
)
def test_the_suggestion_of_an_attempts_end(status: Status, reason: Reason, suggestion: Suggestion | None) -> None:
    req = decode_bind_request(stored(bind_request(uid="u")))
    end = classify_outcome(req, Outcome(status, NOW), LIMITS, 0.5, WAITED, NOW)
    assert isinstance(end, Fail)
    assert (end.reason, end.suggestion) == (reason, suggestion)
    event = failure_report(req, end, False, None, NOW).event
    assert event is not None
    assert suggestion is None or event.note.endswith(f"(suggestion: {suggestion.value})")


@pytest.mark.parametrize(
    ("result", "reason", "suggestion"),
    [
        pytest.param(
            BindingResult(BindOutcome.REFUSED, message="denied by policy"), Reason.REJECTED, ELSEWHERE, id="a policy"
        ),
        pytest.param(
            BindingResult(
                BindOutcome.REFUSED,
                message='User "x" cannot create resource "pods/binding" in API group "" in the namespace "a"',
            ),
            Reason.RBAC_MISSING,
            None,
            id="a missing right",
        ),
        pytest.param(
            BindingResult(BindOutcome.NOT_FOUND, message="not found"), Reason.POD_GONE, None, id="the pod is deleted"
        ),
    ],
)
def test_the_suggestion_of_a_bindings_outcome(
    result: BindingResult, reason: Reason, suggestion: Suggestion | None
) -> None:
    status = binding_status(result)
    assert (status.code, status.reason, status.suggestion) == (Code.FATAL, reason, suggestion)


def test_a_pod_that_remains_gated_suggests_a_new_decision() -> None:
    gated_pod = pod_view(stored(pod(schedulingGates=[{"name": "hold"}]), uid="u"))
    request = decode_bind_request(stored(bind_request(uid="u")))
    observation = Observed(
        request,
        gated_pod,
        NodeView(deleting=False),
        provided=frozenset({AllocationKind.REGULAR}),
        times=Times(wait_time=timedelta(hours=1)),
        live=frozenset(Target),
    )
    end = decide(observation, Settings(scheduler_names=("bowline",), binding=LIMITS))
    assert isinstance(end, Fail)
    assert (end.reason, end.suggestion) == (Reason.WAIT_TIMEOUT, SAME)
