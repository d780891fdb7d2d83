"""What the reconciler counts. Series exist from the start; no label ever holds an object's name."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from shared.framework.status import Code, Reason
from shared.runtime.metrics import BIND_BUCKETS, preset

OUTCOMES = (*(code.value for code in Code if code is not Code.SKIP),)


class ReconcilerMetrics:
    """The reconciler's own series in a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.attempts = Counter("bowline_attempts_total", "Attempts by outcome.", ["outcome"], registry=registry)
        self.finished = Counter(
            "bowline_requests_finished_total",
            "Requests that ended, by final reason; Succeeded for those that worked.",
            ["reason"],
            registry=registry,
        )
        self.bind_seconds = Histogram(
            "bowline_bind_duration_seconds",
            "From the request's creation to Succeeded.",
            registry=registry,
            buckets=BIND_BUCKETS,
        )
        self.plugin_seconds = Histogram(
            "bowline_plugin_duration_seconds",
            "Calls of plugins.",
            ["plugin", "point", "code"],
            registry=registry,
            buckets=BIND_BUCKETS,
        )
        self.plugin_errors = Counter(
            "bowline_plugin_errors_total", "Exceptions out of plugins.", ["plugin", "point"], registry=registry
        )
        self.pass_errors = Counter(
            "bowline_pass_errors_total", "Passes ended by a fault of the reconciler itself.", registry=registry
        )
        self.queue_depth = Gauge("bowline_queue_depth", "Keys that could be taken now.", registry=registry)
        self.queue_age = Gauge("bowline_queue_oldest_seconds", "Age of the first in line.", registry=registry)
        self.leader = Gauge("bowline_leader", "1 while this process leads.", registry=registry)
        preset(self.attempts, outcome=OUTCOMES)
        preset(self.finished, reason=("Succeeded", *(reason.value for reason in Reason)))
