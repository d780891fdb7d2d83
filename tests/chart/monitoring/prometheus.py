"""A real Prometheus beside the pair: it scrapes the processes and evaluates the alerts that the chart renders.

Only times are shortened, so that a fault of seconds makes an alert fire; the expressions are the chart's.
"""

import json
import re
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.controlplane import ADMIN
from bowline.localcluster.pair import Pair
from bowline.localcluster.ports import free_port
from bowline.localcluster.process import Launch
from tests.chart.rendering import NAMESPACE
from tests.waiting import wait_until

JOB = f"{NAMESPACE}/bowline"
WINDOW_S, DELAY_S, SCRAPE_S = 40, 15, 5
# Limits of alerts in seconds: the age of a request, the duration of a review. On a machine that other tests load, a
# healthy review may take a second.
LIMITS_S = {"1800": "20", "0.25": "2"}


@dataclass(frozen=True, slots=True)
class Prometheus:
    """The running server."""

    address: str

    def get(self, path: str, **query: str) -> Any:
        """Return the data of an API call."""
        with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{urlencode(query)}", timeout=30) as reply:
            return json.loads(reply.read())["data"]

    def result(self, query: str) -> list[dict[str, Any]]:
        """Return the series of an instant query."""
        series: list[dict[str, Any]] = self.get("query", query=query)["result"]
        return series

    def value(self, query: str) -> float:
        """Return the value of a query with one result; 0 without one."""
        result = self.result(query)
        return float(result[0]["value"][1]) if result else 0.0

    def now(self) -> float:
        """Return the server's time."""
        return float(self.get("query", query="time()")["result"][1])

    def fired_since(self, start: float) -> list[dict[str, str]]:
        """Return the labels of the alerts that have fired at any time since, also if they no longer do."""
        window = f"{int(self.now() - start) + 1}s"
        fired = self.result(f'last_over_time(ALERTS{{alertstate="firing"}}[{window}])')
        return [series["metric"] for series in fired]


def targets_of(pair: Pair) -> dict[str, str]:
    """Return the metrics addresses of the pair's processes, by the names of their pods."""
    assert pair.webhook is not None
    return {process.name: process.metrics for process in (pair.webhook, *pair.reconcilers)}


def start_prometheus(
    binary: Path, cluster: Cluster, targets: Mapping[str, str], rules: Mapping[str, Any]
) -> Prometheus:
    """Start it with these rules; returns when it has scraped every target. It ends with the cluster."""
    folder = cluster.layout.root / "prometheus"
    folder.mkdir()
    (folder / "alerts.yaml").write_text(yaml.safe_dump(rules))
    static = [
        {"targets": [address], "labels": {"namespace": NAMESPACE, "pod": pod}} for pod, address in targets.items()
    ]
    apiserver = {
        "job_name": "apiserver",
        "scheme": "https",
        "tls_config": {**client_files(cluster), "insecure_skip_verify": True},
        "static_configs": [{"targets": [cluster.server.removeprefix("https://")]}],
    }
    configuration = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": f"{SCRAPE_S}s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yaml"],
        "scrape_configs": [{"job_name": JOB, "static_configs": static}, apiserver],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    address = f"127.0.0.1:{free_port()}"
    arguments = (f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data")
    argv = (str(binary), *arguments, f"--web.listen-address={address}")
    cluster.run_process(Launch("prometheus", argv, cluster.layout.logs / "prometheus.log", folder, {}))
    prometheus = Prometheus(address)

    def scrapes() -> bool:
        try:
            return prometheus.value("sum(up)") == len(targets) + 1
        except OSError:
            return False

    wait_until(scrapes, "every process is scraped")
    return prometheus


def client_files(cluster: Cluster) -> dict[str, str]:
    """Return the paths of the administrator's certificate, which may read the API server's metrics."""
    pki = cluster.layout.pki
    return {"cert_file": str(pki / f"{ADMIN}.crt"), "key_file": str(pki / f"{ADMIN}.key")}


def shortened(rules: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rules with a delay and windows of seconds, and limits of seconds for ages and durations."""
    text = re.sub(r"\[\d+m\]", f"[{WINDOW_S}s]", yaml.safe_dump(dict(rules)))
    text = re.sub(r"offset \d+m", f"offset {WINDOW_S}s", text)
    text = re.sub(r"(?m)^( *)for: .*$", rf"\g<1>for: {DELAY_S}s", text)
    for limit, short in LIMITS_S.items():
        text, count = re.subn(rf"> {re.escape(limit)}\b", f"> {short}", text)
        assert count == 1, f"one alert has the limit {limit}"
    document: dict[str, Any] = yaml.safe_load(text)
    return document
