"""A real Prometheus beside the pair: it scrapes both processes every five seconds and evaluates the chart's alerts."""

import json
import re
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from bowline.localcluster.ports import free_port
from bowline.localcluster.process import Launch
from tests.chart.rendering import CHART, NAMESPACE
from tests.waiting import wait_until

WINDOW_S = 30


@dataclass(frozen=True, slots=True)
class Prometheus:
    """The running server."""

    address: str

    def get(self, path: str, **query: str) -> Any:
        """Return the data of an API call."""
        url = f"http://{self.address}/api/v1/{path}?{urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as reply:
            return json.loads(reply.read())["data"]

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        alerts = self.get("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def value(self, query: str) -> float:
        """Return the value of a query with one result; 0 without one."""
        result = self.get("query", query=query)["result"]
        return float(result[0]["value"][1]) if result else 0.0


def start_prometheus(binary: Path, cluster: Cluster, pair: Pair) -> Prometheus:
    """Start it; returns when it has scraped both processes. It ends with the cluster."""
    folder = cluster.layout.root / "prometheus"
    folder.mkdir()
    (folder / "alerts.yaml").write_text(shortened((CHART / "files" / "alerts.yaml").read_text()))
    assert pair.webhook is not None
    targets = {"bowline-webhook-local": pair.webhook.metrics, "bowline-reconciler-local": pair.reconcilers[0].metrics}
    labels = {"namespace": NAMESPACE}
    static = [{"targets": [at], "labels": {**labels, "pod": pod}} for pod, at in targets.items()]
    configuration = {
        "global": {"scrape_interval": "5s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yaml"],
        "scrape_configs": [{"job_name": "bowline", "static_configs": static}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    address = f"127.0.0.1:{free_port()}"
    arguments = (f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data")
    argv = (str(binary), *arguments, f"--web.listen-address={address}")
    cluster.run_process(Launch("prometheus", argv, cluster.layout.logs / "prometheus.log", folder, {}))
    prometheus = Prometheus(address)

    def scrapes() -> bool:
        try:
            return prometheus.value("sum(up)") == len(targets)
        except OSError:
            return False

    wait_until(scrapes, "both processes are scraped")
    return prometheus


def shortened(alerts: str) -> str:
    """Return the alerts without delays and with windows of seconds, so that a fault of seconds makes them fire."""
    text = alerts.replace("RELEASE_NAMESPACE", NAMESPACE)
    return re.sub(r"(?m)^ *for: .*\n", "", re.sub(r"\[\d+m\]", f"[{WINDOW_S}s]", text))
