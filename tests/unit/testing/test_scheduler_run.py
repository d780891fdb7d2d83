"""The run of a scheduler's cases: what an environment or a scheduler does wrong is a result of one case."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import MagicMock

import pytest

from bowline.conformance.case import QUOTA, Case
from bowline.conformance.report import run_case
from bowline.conformance.scheduler import BrokenRuleError, Scheduler, SchedulerStage
from bowline.conformance.scheduler_cases import SCHEDULER_CASES
from bowline.localcluster.errors import LocalApiError


@pytest.mark.parametrize("place", ["case", "clean-up"])
def test_a_wait_that_times_out_is_a_result_of_its_case(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    @contextmanager
    def started(*_: Any) -> Iterator[Any]:
        yield MagicMock(log=lambda: "")

    def wait(stage: Any, *_: Any) -> None:
        raise TimeoutError("waited 1 s")

    monkeypatch.setattr(Scheduler, "started", started)
    monkeypatch.setattr(SchedulerStage, "_check_pods", lambda stage: None)
    monkeypatch.setattr(SchedulerStage, "_entries", lambda stage, *kind: ())
    monkeypatch.setattr(SchedulerStage, "clean_up", wait if place == "clean-up" else lambda stage: None)
    case: Case[Any] = Case("example", "a promise", wait if place == "case" else lambda stage: None)
    assert "waited 1 s" in run_case(case, MagicMock(), (), "example", 1).why


def test_a_request_without_an_owner_breaks_a_rule() -> None:
    case = next(case for case in SCHEDULER_CASES if case.name == "successor")
    stage = MagicMock(requests=lambda name: [{"metadata": {}}])
    stage.require.side_effect = lambda rule, condition, why: SchedulerStage.require(stage, rule, condition, why)
    with pytest.raises(BrokenRuleError, match="owner"):
        case.run(stage)


@pytest.mark.parametrize(
    ("error", "is_denied"),
    [
        (LocalApiError(403, f"denied request: {QUOTA}"), True),
        (LocalApiError(503, "etcdserver: request timed out"), False),
        (LocalApiError(404, "pods not found"), False),
    ],
)
def test_only_the_denial_of_a_policy_shows_that_it_is_in_force(error: LocalApiError, is_denied: bool) -> None:
    cluster = MagicMock()
    cluster.api.post.side_effect = error
    stage = SchedulerStage(cluster, MagicMock(), MagicMock(), 1)
    assert stage._is_denied("/path", {}, QUOTA) is is_denied
