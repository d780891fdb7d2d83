"""From the admission of the request by the webhook to the reconciler's Binding: one trace, started by the webhook."""

from collections.abc import Iterator
from typing import Any

import pytest

from bowline.api import names
from bowline.localcluster.workload import WorkloadOptions
from tests.live import Live
from tests.otlp import Receiver, receiving


@pytest.fixture
def receiver(pair: Live) -> Iterator[Receiver]:
    """Collects the traces of both processes, which are restarted for it and after it."""
    assert pair.pair.webhook is not None
    with receiving() as server:
        _restart(pair, WorkloadOptions(env=server.environment))
        yield server
    _restart(pair, WorkloadOptions())


def _restart(pair: Live, options: WorkloadOptions) -> None:
    pair.pair.stop()
    webhook, reconciler = pair.pair.launch_webhook(options), pair.pair.launch_reconciler(options)
    webhook.wait_ready()
    reconciler.wait_ready()


def test_admission_and_bind_are_one_trace(pair: Live, receiver: Receiver) -> None:
    pair.create_pod()
    pair.request_bind()
    pair.phase("pod", "Succeeded")
    traceparent = pair.request()["metadata"]["annotations"][names.TRACEPARENT]
    _, trace, admission, _ = traceparent.split("-")

    def spans() -> dict[str, Any] | None:
        spans_by_name = {span.name: span for span in receiver.spans() if span.trace_id.hex() == trace}
        return spans_by_name if "attempt" in spans_by_name else None

    def mutation() -> Any | None:
        return next((span for span in receiver.spans() if span.span_id.hex() == admission), None)

    spans_by_name = pair.until("the reconciler's spans are sent", spans)
    webhook_span = pair.until("the webhook's span is sent", mutation)
    assert (webhook_span.name, webhook_span.parent_span_id) == ("admission", b"")
    assert spans_by_name["attempt"].parent_span_id.hex() == admission
    assert spans_by_name["default_binder.bind"].parent_span_id == spans_by_name["attempt"].span_id
