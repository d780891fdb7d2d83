"""A plugin's own metrics, beside those that the framework records for every plugin's calls.

A plugin creates its series with the Handle in ``setup``, once per process. Their names begin with
``bowline_<plugin>_``, so that plugins do not collide; a name that exists already is rejected. A label is declared
with all its values: series exist from the start, and no label can hold the name of an object.
"""

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from bowline.runtime.metrics import BIND_BUCKETS, init_series

M = TypeVar("M", Counter, Gauge, Histogram)

_WORD = re.compile(r"[a-z][a-z0-9_]*")


class PluginMetrics:
    """Creates the series of one plugin. Every method raises ValueError for an invalid or existing name."""

    def __init__(self, plugin: str, registry: CollectorRegistry) -> None:
        self._plugin = plugin
        self._registry = registry

    def counter(self, name: str, meaning: str, **labels: Collection[str]) -> Counter:
        """Return a counter; its name must end with ``_total``."""
        return self._series(Counter, "_total", name, meaning, labels)

    def gauge(self, name: str, meaning: str, **labels: Collection[str]) -> Gauge:
        """Return a gauge, which the plugin sets, or evaluates with ``set_function``."""
        return self._series(Gauge, "", name, meaning, labels)

    def histogram(self, name: str, meaning: str, **labels: Collection[str]) -> Histogram:
        """Return a histogram of seconds, from a millisecond to 15 minutes; its name must end with ``_seconds``."""
        return self._series(partial(Histogram, buckets=BIND_BUCKETS), "_seconds", name, meaning, labels)

    def _series(
        self, make: Callable[..., M], ending: str, name: str, meaning: str, labels: Mapping[str, Collection[str]]
    ) -> M:
        if not _WORD.fullmatch(name) or not name.endswith(ending):
            must_end = f" and ends with {ending}" if ending else ""
            raise self._refusal(name, f"its name consists of small letters, digits and _{must_end}")
        for label, values in labels.items():
            if isinstance(values, str) or not values:
                raise self._refusal(name, f"label {label} is declared with all the values it may have")
        full_name = f"bowline_{self._plugin.replace('-', '_')}_{name}"
        metric = make(full_name, meaning, tuple(labels), registry=None)
        try:
            self._registry.register(metric)
        except ValueError as error:
            raise self._refusal(name, f"{full_name} is registered already; each name is, once a process") from error
        if labels:
            init_series(metric, **labels)
        return metric

    def _refusal(self, name: str, rule: str) -> ValueError:
        return ValueError(f"plugin {self._plugin}: metric {name!r} cannot be registered: {rule}")
