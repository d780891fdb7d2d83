"""The panels of the dashboard, drawn from a run of the pair with a real Prometheus.

    python -m tests.chart.monitoring.pictures --minutes 5 --out docs/plots/dashboard.svg

The queries are the dashboard's; only their windows of five minutes are one minute, because the run is short. The
load: plain pods, shares and denied pods; in the middle a burst, requests for a node that does not exist, and the end
of the leader.
"""

import argparse
import contextlib
import math
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.pair import Pair
from bowline.localcluster.workload import WorkloadOptions
from bowline.testing.builders import bind_request, pod
from tests.chart.monitoring.binaries import find_binary
from tests.chart.monitoring.prometheus import SCRAPE_S, Prometheus, start_prometheus, targets_of
from tests.chart.rendering import NAMESPACE
from tests.live import Live
from tests.pairs import own_namespace, running_pair
from tests.plugins.sharing import Shares
from tools.generate.dashboard import PANELS, Panel

NODES = 4
_MIB = 1 << 20


def main() -> int:
    """Run the load and draw the panels."""
    parser = argparse.ArgumentParser(prog="python -m tests.chart.monitoring.pictures", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5, help="duration of the load (%(default)g)")
    parser.add_argument("--out", type=Path, default=Path("docs/plots/dashboard.svg"), help="(%(default)s)")
    options = parser.parse_args()
    binary = find_binary("prometheus")
    if binary is None:
        parser.error("there is no prometheus: install Debian's package of that name")
    with running_pair(NODES, {}) as (cluster, pair), own_namespace(cluster, pair) as live:
        pair.launch_reconciler(WorkloadOptions(name="bowline-reconciler-standby")).wait_ready()
        prometheus = start_prometheus(binary, cluster, targets_of(pair), {})
        start = prometheus.now()
        load(live, pair, options.minutes * 60)
        draw(prometheus, start, prometheus.now(), options.out)
    sys.stdout.write(f"{options.out}\n")
    return 0


def load(live: Live, pair: Pair, duration_s: float) -> None:
    """Create pods and requests for so long."""
    shares, number = Shares(live), 0
    start = time.monotonic()
    leader = pair.reconcilers[0]
    while (part := (time.monotonic() - start) / duration_s) < 1:
        number += 1
        is_burst = 0.4 < part < 0.5
        if part > 0.6 and leader.process.alive:
            leader.stop()
        request_plain(live, f"plain-{number}", "absent" if is_burst and number % 4 == 0 else "gpu-node-0")
        if number % 10 == 0:
            shares.share(f"share-{number}", f"group-{number // 10 % 4}")
        if number % 16 == 0:
            with contextlib.suppress(LocalApiError):
                shares.make(f"denied-{number}", {"gpu-fraction": "2"})
        time.sleep(0.02 if is_burst else 0.25)


def request_plain(live: Live, name: str, node: str) -> None:
    """Create a pod and its request."""
    path = f"/api/v1/namespaces/{live.namespace}/pods"
    uid = live.cluster.api.post(path, pod(name, live.namespace))["metadata"]["uid"]
    live.cluster.api.post(live.request_path("").rstrip("/"), bind_request(name, node, live.namespace, uid))


def draw(prometheus: Prometheus, start: float, end: float, out: Path) -> None:
    """Draw every panel as Grafana places it, two in a row."""
    mpl.rcParams["svg.hashsalt"] = "bowline"
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["font.size"] = 8
    figure = Figure(figsize=(12, 2.4 * len(PANELS) / 2), layout="constrained")
    for axes, panel in zip(figure.subplots(len(PANELS) // 2, 2).flat, PANELS, strict=True):
        for query, legend in panel.queries:
            text = query.replace("$namespace", NAMESPACE).replace("[5m]", "[1m]")
            for series in prometheus.series(text, start, end, SCRAPE_S):
                draw_series(axes, series, legend, start, 1 / _MIB if panel.unit == "bytes" else 1)
        finish(axes, panel, end - start)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def draw_series(axes: Axes, series: Mapping[str, Any], legend: str, start: float, scale: float) -> None:
    """Draw one series, unless it has no values; the legend's labels are replaced by their values."""
    if all(math.isnan(float(value)) for _, value in series["values"]):
        return
    label = re.sub(r"\{\{(\w+)\}\}", lambda match: series["metric"].get(match[1], ""), legend)
    axes.plot(
        [(float(at) - start) / 60 for at, _ in series["values"]],
        [float(value) * scale for _, value in series["values"]],
        label=label,
        linewidth=1.2,
    )


def finish(axes: Axes, panel: Panel, duration_s: float) -> None:
    """Title, axes and legend of a panel."""
    axes.set_title(panel.title, loc="left")
    axes.set_xlim(0, duration_s / 60)
    # Above the lines there is space for the legend.
    axes.set_ylim(0, axes.get_ylim()[1] * 1.35)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} min"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: with_unit(value, panel.unit)))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        axes.legend(frameon=False, fontsize=6.5, loc="upper left", ncols=2)
    else:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center")


def with_unit(value: float, unit: str) -> str:
    """Return the value as Grafana writes the unit."""
    if unit == "s":
        return f"{value * 1000:g} ms" if value < 1 else f"{value:g} s"
    return f"{value:g}" + {"reqps": "/s", "bytes": " MiB"}.get(unit, "")


if __name__ == "__main__":
    sys.exit(main())
