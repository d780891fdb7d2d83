"""The Grafana dashboard of a release, from a table of panels."""

import json
from typing import Any, Final, NamedTuple

_NS: Final = 'namespace="$namespace"'


class Panel(NamedTuple):
    """A time series panel: its unit in Grafana's names, and the queries with their legends, for one namespace."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def _p(metric: str, by: str = "") -> tuple[tuple[str, str], ...]:
    """Return the median and the 99th percentile of a histogram."""
    labels = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    rate = f"sum by ({labels}) (rate({metric}_bucket{{{_NS}}}[5m]))"
    return tuple((f"histogram_quantile({q}, {rate})", f"p{round(q * 100)}{legend}") for q in (0.5, 0.99))


PANELS: Final = (
    Panel("Leader", "none", ((f"sum by (pod) (bowline_leader{{{_NS}}})", "{{pod}}"),)),
    Panel("Ready processes", "none", ((f"sum by (pod) (bowline_ready{{{_NS}}})", "{{pod}}"),)),
    Panel(
        "Requests finished",
        "reqps",
        (
            (
                f"sum by (reason, plugin) (rate(bowline_requests_finished_total{{{_NS}}}[5m])) > 0",
                "{{reason}} {{plugin}}",
            ),
        ),
    ),
    # A request's creation has whole seconds: a quantile of the time since then says nothing of milliseconds.
    Panel("Duration of attempts", "s", _p("bowline_attempt_duration_seconds", "outcome")),
    Panel("Age of the oldest request", "s", ((f"max(bowline_requests_oldest_seconds{{{_NS}}})", "age"),)),
    Panel(
        "Requests in progress, ready, waiting",
        "none",
        (
            (f"sum(bowline_attempts_in_flight{{{_NS}}})", "in progress"),
            (f"sum(bowline_queue_depth{{{_NS}}})", "ready"),
            (f"sum by (plugin) (bowline_requests_waiting{{{_NS}}}) > 0", "waiting for {{plugin}}"),
        ),
    ),
    Panel(
        "Attempts",
        "reqps",
        ((f"sum by (outcome) (rate(bowline_attempts_total{{{_NS}}}[5m])) > 0", "{{outcome}}"),),
    ),
    Panel(
        "Reviews",
        "reqps",
        (
            (
                f"sum by (hook, allowed) (rate(bowline_admission_requests_total{{{_NS}}}[5m])) > 0",
                "{{hook}}, allowed {{allowed}}",
            ),
        ),
    ),
    Panel("Duration of reviews", "s", _p("bowline_admission_duration_seconds")),
    Panel(
        "Failed calls of the API server",
        "reqps",
        (
            (
                f'sum by (verb, resource, code) (rate(bowline_kube_requests_total{{{_NS}, code!~"2..|404"}}[5m]))'
                " > 0",
                "{{verb}} {{resource}}: {{code}}",
            ),
        ),
    ),
    Panel(
        "Shared devices",
        "none",
        ((f"max by (state) (bowline_gpu_sharing_reservations{{{_NS}}})", "reservation pods {{state}}"),),
    ),
    Panel("Memory", "bytes", ((f"sum by (pod) (process_resident_memory_bytes{{{_NS}}})", "{{pod}}"),)),
)


def as_json() -> str:
    """Return the dashboard as Grafana imports it."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        {
            "name": "namespace",
            "type": "query",
            "label": "Namespace of the release",
            "datasource": source,
            "query": {"query": "label_values(bowline_build_info, namespace)", "refId": "namespace"},
            "refresh": 2,
        },
    ]
    document = {
        "uid": "bowline",
        "title": "Bowline",
        "tags": ["bowline"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_panel(number, panel, source) for number, panel in enumerate(PANELS)],
    }
    return json.dumps(document, indent=1) + "\n"


def _panel(number: int, panel: Panel, source: dict[str, str]) -> dict[str, Any]:
    return {
        "id": number + 1,
        "title": panel.title,
        "type": "timeseries",
        "datasource": source,
        "gridPos": {"x": number % 2 * 12, "y": number // 2 * 8, "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend, "datasource": source}
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }
