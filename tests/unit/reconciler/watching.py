"""Common parts of tests of observing: an Observation with its own clock, and a context for plugins."""

import logging
from typing import cast

from opentelemetry.trace import Tracer
from prometheus_client import CollectorRegistry

from bowline.api.bindrequest import decode_bind_request
from bowline.framework.binding.context import BindContext
from bowline.kube.client import KubeClient
from bowline.runtime.logging import with_fields
from bowline.runtime.tracing import OFF
from bowline.testing.builders import bind_request, pod, stored
from bowline.testing.clock import START, SteppedClock
from bowline_reconciler.observe.metrics import ReconcilerMetrics
from bowline_reconciler.observe.tracker import Observation

ACTING = {
    "supported_allocations": ("devices",),
    "pre_bind": ("volumes", "devices"),
    "bind": ("binder",),
    "post_bind": ("devices",),
    "rollback": ("devices",),
}


class Watched:
    """An Observation, its clock and its registry."""

    def __init__(self, tracer: Tracer = OFF) -> None:
        self.clock = SteppedClock()
        self.registry = CollectorRegistry()
        self.observation = Observation(ReconcilerMetrics(self.registry, ACTING), self.clock, tracer)

    def value(self, name: str, **labels: str) -> float | None:
        """The value of one series; None if it does not exist."""
        return self.registry.get_sample_value(name, labels)


def context(name: str = "train") -> BindContext:
    """A context of an attempt without calls of the API server."""
    request = decode_bind_request(stored(bind_request(name, uid="pod-uid"), uid="0123456789"))
    return BindContext(
        request=request,
        pod=stored(pod(name), uid="pod-uid"),
        node=None,
        attempt=1,
        attempt_id="01234567-1",
        deadline=START,
        client=cast(KubeClient, None),
        log=with_fields(logging.getLogger(__name__)),
    )
