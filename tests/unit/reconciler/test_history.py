"""The history of passes: bounded twice, and a wait that is read a hundred times is one entry."""

from datetime import timedelta

import pytest

from bowline.api.meta import ObjectKey
from bowline.testing.clock import START
from bowline_reconciler.observe.history import History
from bowline_reconciler.observe.reconciles import MAX_WHY, ReconcileInProgress, Step

KEY = ObjectKey("team-a", "train")


def over(name: str = "train", at_s: float = 0, steps: tuple[Step, ...] = (), **fields: str) -> ReconcileInProgress:
    began = START + timedelta(seconds=at_s)
    reconcile = ReconcileInProgress(ObjectKey("team-a", name), began, at_s, attempt="uid-1", **fields)  # type: ignore[arg-type]
    reconcile.steps.extend(steps)
    return reconcile


def waited(at_s: float, ms: float) -> ReconcileInProgress:
    step = Step("volume_binding", "pre_bind", "WAIT", "claim is pending", 0.1, ms)
    return over(at_s=at_s, steps=(step,), decision="Attempt", outcome="WAIT", why="claim is pending")


def test_the_passes_of_a_request_are_kept_in_order_with_their_steps() -> None:
    history = History()
    history.reconcile_ended(waited(0, 3), 0.004)
    history.reconcile_ended(over(at_s=5, decision="Fail", why="NodeGone: node n does not exist"), 0.01)
    first, second = history.of(KEY)
    assert (first.decision, first.outcome, first.ms, first.steps[0].ms) == ("Attempt", "WAIT", 4.0, 3)
    assert (second.decision, second.why, second.steps) == ("Fail", "NodeGone: node n does not exist", ())
    assert history.of(ObjectKey("team-a", "other")) == ()


def test_a_pass_that_repeats_the_one_before_is_counted() -> None:
    history = History()
    for number in range(100):
        history.reconcile_ended(waited(number, ms=number), 0.001)
    (only,) = history.of(KEY)
    assert only.times == 100
    assert only.at == START + timedelta(seconds=99)


@pytest.mark.parametrize(
    ("fields"),
    [
        pytest.param({"why": "another claim is pending"}, id="another reason"),
        pytest.param({"decision": "Finish"}, id="another decision"),
        pytest.param({"outcome": "RETRY"}, id="another outcome"),
        pytest.param({"attempt": "uid-2"}, id="another attempt"),
    ],
)
def test_a_different_pass_is_a_separate_entry(fields: dict[str, str]) -> None:
    history = History()
    history.reconcile_ended(waited(0, 1), 0.001)
    later_reconcile = waited(1, 1)
    for name, value in fields.items():
        setattr(later_reconcile, name, value)
    history.reconcile_ended(later_reconcile, 0.001)
    assert len(history.of(KEY)) == 2


def test_the_history_is_bounded_and_drops_the_oldest_first() -> None:
    history = History(requests=2, entries=3)
    for number in range(5):
        history.reconcile_ended(over(at_s=number, decision="Fail", why=f"reason {number}" + "x" * 2 * MAX_WHY), 0.001)
    assert [entry.why[:8] for entry in history.of(KEY)] == ["reason 2", "reason 3", "reason 4"]
    assert all(len(entry.why) == MAX_WHY for entry in history.of(KEY))
    history.reconcile_ended(over("second", decision="Finish"), 0.001)
    history.reconcile_ended(over(decision="Finish"), 0.001)  # repeated: not the oldest entry
    history.reconcile_ended(over("third", decision="Finish"), 0.001)
    assert [key.name for key, _ in history.latest(10)] == ["third", "train"]
    assert [key.name for key, _ in history.latest(1)] == ["third"]
    assert len(history) == 2
