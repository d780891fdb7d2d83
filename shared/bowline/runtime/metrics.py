"""Metrics of one process: its registry, the buckets, and series that exist before the first event.

There is no default registry: components receive the process's own.
"""

import itertools
from collections.abc import Iterable
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

from bowline.runtime.version import bowline_version

# A bind takes 3 ms without waits and minutes with a volume provisioner: doubling from 1 ms to about 17 minutes.
BIND_BUCKETS: tuple[float, ...] = tuple(0.001 * 2**k for k in range(21))
# Admission takes 1 to 6 ms; the API server's timeout is 5 s at most.
ADMISSION_BUCKETS: tuple[float, ...] = (
    *(0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.006, 0.008),
    *(0.0125, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0),
)


def new_registry() -> CollectorRegistry:
    """Return a registry with Bowline's version and the standard process metrics: memory, CPU, open files.

    Counters and histograms have no series ``_created``: a quarter of all series, which nothing queries.
    """
    # The library's only switch is for the process.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    build = Gauge("bowline_build_info", "1; the label is the version of Bowline.", ["version"], registry=registry)
    build.labels(bowline_version()).set(1)
    return registry


def init_series(metric: Any, **values: Iterable[str]) -> None:
    """Create every combination of the label values, so that a rate() over the first event is not lost."""
    for combination in itertools.product(*values.values()):
        metric.labels(**dict(zip(values, combination, strict=True)))


class Durations:
    """A histogram that keeps its series: ``labels()`` costs more than counting, and the same combinations recur."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._series: dict[tuple[str, ...], Histogram] = {}

    def observe(self, seconds: float, *labels: str) -> None:
        """Add a duration to the series of these labels."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = self._histogram.labels(*labels)
        series.observe(seconds)
