"""The plugins' own metrics, as the running reconciler exports them."""

from prometheus_client.parser import text_string_to_metric_families

from tests.live import Live

# Name and labels of a sample; plugins' labels have closed sets of values, so there are few series.
Sample = tuple[str, frozenset[tuple[str, str]]]


class Series:
    """Samples of the reconciler, and their increase since this object was created."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._before = self._read()

    def value(self, name: str, **labels: str) -> float:
        """The current value; the series exists from the process's start."""
        return self._read()["bowline_" + name, frozenset(labels.items())]

    def increase(self, name: str, **labels: str) -> float:
        """The increase of the sample."""
        return self.value(name, **labels) - self._before["bowline_" + name, frozenset(labels.items())]

    def until(self, expected: float, name: str, **labels: str) -> None:
        """Wait until the sample has this value."""
        self._live.until(f"{name} {labels} is {expected:g}", lambda: self.value(name, **labels) == expected)

    def _read(self) -> dict[Sample, float]:
        status, text = self._live.pair.reconcilers[0].get("/metrics")
        assert status == 200
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for metric in text_string_to_metric_families(text)
            for sample in metric.samples
        }
