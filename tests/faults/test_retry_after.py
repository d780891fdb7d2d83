"""429 with Retry-After under a bind: the API server is left alone for as long as it asks, at no cost to the request.

When the proxy answers 429, the same request must not come again before its time; that it then comes at all is seen in
the end. How late it comes is the machine's affair.
"""

from dataclasses import replace

import pytest

from tests.fault_proxy.faults import Answer
from tests.fault_proxy.record import Exchange
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
        # Requests that other tests have left behind are processed as well.
        here = replace(turned_away, namespace=live.namespace)
        reconciler.proxy.add(Rule(Answer(429, retry_after_s=ASKED_S), here, nth=1))

        def exchanges() -> list[Exchange]:
            return [e for e in reconciler.proxy.exchanges() if here.covers(e.call)]

        scenario.play(live)
        live.until("it has ended", lambda: scenario.ended(live))
        # The proxy records an exchange after the API server has stored the write.
        live.until("both are recorded", lambda: len(exchanges()) >= 2)
        sent = exchanges()
    assert [e.outcome for e in sent][:2] in (["not forwarded (Answer)", "200"], ["not forwarded (Answer)", "201"])
    assert sent[1].arrived - sent[0].arrived >= ASKED_S
    assert "failedAttempts" not in live.request()["status"]
    assert "BindingRetry" not in dict(live.events("pod"))
