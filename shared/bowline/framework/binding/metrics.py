"""A plugin's own metrics, beside those that the framework records for every plugin's calls.

A plugin creates its series with the Handle in ``setup``, once per process. Their names begin with
``bowline_<plugin>_``, so that plugins do not collide; a name that exists already is rejected. A label is declared
with all its values: series exist from the start, and no label can hold the name of an object.
"""

import re
from collections.abc import Collection, Mapping
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
        if not name.endswith("_total"):
            raise self._refusal(name, "a counter's name ends with _total")
        return self._register(
            Counter(self._full(name), meaning, self._words(name, labels), registry=None), name, labels
        )

    def gauge(self, name: str, meaning: str, **labels: Collection[str]) -> Gauge:
        """Return a gauge, which the plugin sets, or evaluates with ``set_function``."""
        return self._register(
            Gauge(self._full(name), meaning, self._words(name, labels), registry=None), name, labels
        )

    def histogram(self, name: str, meaning: str, **labels: Collection[str]) -> Histogram:
        """Return a histogram of seconds, from a millisecond to 15 minutes; its name must end with ``_seconds``."""
        if not name.endswith("_seconds"):
            raise self._refusal(name, "a histogram's name ends with _seconds")
        words = self._words(name, labels)
        return self._register(
            Histogram(self._full(name), meaning, words, registry=None, buckets=BIND_BUCKETS), name, labels
        )

    def _full(self, name: str) -> str:
        if not _WORD.fullmatch(name):
            raise self._refusal(name, "a name consists of small letters, digits and _")
        return f"bowline_{self._plugin.replace('-', '_')}_{name}"

    def _words(self, name: str, labels: Mapping[str, Collection[str]]) -> tuple[str, ...]:
        for label, values in labels.items():
            if isinstance(values, str) or not values:
                raise self._refusal(name, f"label {label} is declared with all the values it may have")
        return tuple(labels)

    def _register(self, metric: M, name: str, labels: Mapping[str, Collection[str]]) -> M:
        try:
            self._registry.register(metric)
        except ValueError as error:
            raise self._refusal(
                name, f"{self._full(name)} is registered already; each name is, once a process"
            ) from error
        if labels:
            init_series(metric, **labels)
        return metric

    def _refusal(self, name: str, rule: str) -> ValueError:
        return ValueError(f"plugin {self._plugin}: metric {name!r} cannot be registered: {rule}")
