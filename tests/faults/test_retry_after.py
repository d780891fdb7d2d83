"""429 with Retry-After for a call of a bind: the call is not repeated earlier, at no cost to the request.

When the proxy replies 429, the same call must not be repeated before that time; that it is repeated at all follows
from the end. How much later depends on the machine.
"""

from dataclasses import replace

import pytest

from bowline.testing.fault_proxy.faults import FaultAnswer
from bowline.testing.fault_proxy.record import Exchange
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from tests.faults.lab import Lab
from tests.faults.plugin_scenarios import DEVICE

# Longer than any first backoff of the reconciler.
ASKED_S = 3


@pytest.mark.parametrize(
    "first_match",
    [
        pytest.param(CallMatch(("create",), "pods", "binding"), id="the Binding"),
        pytest.param(CallMatch(("update",), "resourceclaims", "status"), id="a plugin's write"),
    ],
)
def test_retry_after_is_honoured(lab: Lab, first_match: CallMatch) -> None:
    live = lab.namespace("busy")
    with lab.reconciler("busy") as reconciler:
        # Requests of other tests are processed as well.
        here = replace(first_match, namespace=live.namespace)
        reconciler.proxy.add(FaultRule(FaultAnswer(429, retry_after_s=ASKED_S), here, nth=1))

        def exchanges() -> list[Exchange]:
            return [e for e in reconciler.proxy.exchanges() if here.covers(e.call)]

        DEVICE.play(live)
        live.until("it has ended", lambda: DEVICE.ended(live))
        # The proxy records an exchange after the API server has stored the write.
        live.until("both are recorded", lambda: len(exchanges()) >= 2)
        calls = exchanges()
    assert [e.outcome for e in calls][:2] in (
        ["not forwarded (FaultAnswer)", "200"],
        ["not forwarded (FaultAnswer)", "201"],
    )
    assert calls[1].arrived - calls[0].arrived >= ASKED_S
    assert "failedAttempts" not in live.request()["status"]
    assert "BindingRetry" not in dict(live.events("pod"))
