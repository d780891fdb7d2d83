"""429 with Retry-After under a bind: the API server is left alone for as long as it asks, at no cost to the request.

When the proxy answers 429, the same request must not come again before its time; that it then comes at all is seen in
the end. How late it comes is the machine's affair.
"""

import pytest

from tests.fault_proxy.faults import Answer
from tests.fault_proxy.rules import Match, Rule
from tests.faults.lab import Lab
from tests.faults.plugin_scenarios import DEVICE
from tests.faults.scenarios import PLAIN, Scenario
from tests.faults.truth import TruthObserver

# Longer than any first wait of the reconciler's own.
ASKED_S = 3


@pytest.mark.parametrize(
    ("scenario", "turned_away"),
    [
        pytest.param(PLAIN, Match(("create",), "pods", "binding"), id="the Binding"),
        pytest.param(PLAIN, Match(("patch",), "bindrequests", "status"), id="the verdict"),
        pytest.param(DEVICE, Match(("update",), "resourceclaims", "status"), id="a plugin's write"),
    ],
)
def test_retry_after_is_honoured(lab: Lab, truth: TruthObserver, scenario: Scenario, turned_away: Match) -> None:
    live = lab.namespace("busy")
    with lab.reconciler("busy") as reconciler:
        reconciler.proxy.add(Rule(Answer(429, retry_after_s=ASKED_S), turned_away, nth=1))
        scenario.play(live)
        live.until("it has ended", lambda: scenario.ended(live))
        sent = [e for e in reconciler.proxy.exchanges() if turned_away.covers(e.call)]
    assert [e.outcome for e in sent][:2] in (["not forwarded (Answer)", "200"], ["not forwarded (Answer)", "201"])
    assert sent[1].arrived - sent[0].arrived >= ASKED_S
    assert "failedAttempts" not in live.request()["status"]
    assert "BindingRetry" not in dict(live.events("pod"))
