"""What the webhook counts. Every series exists from the start, so that a rate sees the first event."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from shared.runtime.metrics import ADMISSION_BUCKETS, preset
from webhook.review import Hook

# Extension points whose exceptions the admission chain catches.
POINTS = ("mutate_pod", "validate_pod", "mutate_bind_request", "validate_bind_request", "leaves_effects")


class WebhookMetrics:
    """The webhook's series in the process's registry."""

    def __init__(self, registry: CollectorRegistry, plugins: Iterable[str]) -> None:
        self.requests = Counter(
            "bowline_admission_requests", "Reviews answered, by verdict.", ["hook", "allowed"], registry=registry
        )
        self.duration = Histogram(
            "bowline_admission_duration_seconds",
            "Time from a review's body to its answer, without the network.",
            ["hook"],
            registry=registry,
            buckets=ADMISSION_BUCKETS,
        )
        self.bad_requests = Counter(
            "bowline_admission_bad_requests", "Requests that were no review to answer.", ["code"], registry=registry
        )
        self.plugin_errors = Counter(
            "bowline_admission_plugin_errors",
            "Exceptions of plugins: bugs of theirs, not of the object.",
            ["plugin", "point"],
            registry=registry,
        )
        self.crashes = Counter(
            "bowline_admission_crashes", "Reviews refused because Bowline itself failed.", ["hook"], registry=registry
        )
        self.under_way = Gauge(
            "bowline_admission_under_way", "Requests that have begun and are not answered.", registry=registry
        )
        preset(self.requests, hook=Hook, allowed=("true", "false"))
        preset(self.duration, hook=Hook)
        preset(self.bad_requests, code=("400", "404", "405", "408", "413", "415"))
        preset(self.plugin_errors, plugin=plugins, point=POINTS)
        preset(self.crashes, hook=Hook)
