"""What an operator sees of a running reconciler: metrics, debug page, log lines, and the state of blocked requests.

The process is the real one, with a plugin that waits or raises as a pod's annotations request.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.workload import LocalProcess
from tests.live import LiveCluster
from tests.pair.conftest import BareReconcilers

PREPARE = "slow.example/pre-bind"
CONFIG = """
apiVersion: config.bowline.dev/v1alpha1
kind: BowlineConfiguration
binding: {backoff: {base: 100ms, max: 100ms}, backoffLimit: 1}
# A leader that gets no CPU for seconds keeps its Lease: tests count terms and what they cause.
leaderElection: {leaseDuration: 60s, renewDeadline: 50s}
plugins: [{name: pair_slow}]
"""


@dataclass(frozen=True, slots=True)
class Watched(LiveCluster):
    """A cluster with a reconciler, and its metrics, debug page and log."""

    process: LocalProcess

    def page(self) -> Any:
        """The content of the debug page."""
        status, body = self.process.get_debug()
        assert status == 200
        return json.loads(body)

    def metrics(self) -> list[Metric]:
        """The exported metrics."""
        status, text = self.process.get("/metrics")
        assert status == 200
        return list(text_string_to_metric_families(text))

    def value(self, name: str, **labels: str) -> float | None:
        """One sample; None if it does not exist."""
        samples = (sample for metric in self.metrics() for sample in metric.samples)
        return next((s.value for s in samples if s.name == name and labels.items() <= s.labels.items()), None)

    def log(self) -> list[dict[str, Any]]:
        """The lines of the process's log so far, parsed."""
        text = self.process.log.read_text()
        complete_lines = text[: text.rfind("\n") + 1]
        # The local cluster writes the command into the log's first line.
        return [json.loads(line) for line in complete_lines.splitlines() if not line.startswith("$")]

    def bind(self, name: str, annotations: Mapping[str, str] | None = None, node: str = "gpu-node-0") -> None:
        """Create a pod and its request."""
        self.create_pod(name, annotations)
        self.request_bind(name, node)


@pytest.fixture(scope="module")
def live(bare_cluster: Cluster, bare_reconcilers: BareReconcilers) -> Iterator[Watched]:
    """A reconciler, started from the checkout with the slow plugin."""
    process = bare_reconcilers.start("watched", CONFIG, "--log-level=debug")
    live = Watched(bare_cluster, "default", process)
    live.until("it leads", lambda: live.value("bowline_leader") == 1 or None)
    yield live
    assert process.stop()


def test_a_bind_is_visible_in_the_metrics(live: Watched) -> None:
    before = live.value("bowline_attempts_total", outcome="OK") or 0
    live.bind("counted")
    live.phase("counted", "Succeeded")
    binder = {"plugin": "default_binder", "point": "bind", "code": "OK"}
    # Counted when the pass ends, after the reply to the write that is seen here.
    live.until("it is counted", lambda: live.value("bowline_attempts_total", outcome="OK") == before + 1)
    assert (live.value("bowline_plugin_duration_seconds_count", **binder) or 0) == before + 1
    bindings = {"verb": "create", "resource": "pods/binding"}
    assert live.value("bowline_kube_requests_total", **bindings, code="201") == before + 1
    assert live.value("bowline_kube_requests_total", **bindings, code="429") == 0
    assert live.value("bowline_kube_request_seconds_count", **bindings) == before + 1
    live.until("the event is counted", lambda: live.value("bowline_events_total", outcome="written") or None)
    assert live.value("bowline_leadership_total", change="acquired") == 1
    assert (live.value("bowline_reflector_relists_total", resource="bindrequests") or 0) >= 1
    assert live.value("bowline_reflector_objects", resource="nodes") == 3
    # The watch may report the request's completion before its own reply does.
    live.until("nothing is queued", lambda: live.value("bowline_queue_depth") == 0)


def test_metrics_name_no_object(live: Watched) -> None:
    live.bind("nameless")
    live.phase("nameless", "Succeeded")
    ours = [metric for metric in live.metrics() if metric.name.startswith("bowline_")]
    values = {value for metric in ours for sample in metric.samples for value in sample.labels.values()}
    assert values
    assert not values & {"nameless", "default", "default/nameless", "gpu-node-0"}


def test_a_waiting_request_is_shown_with_its_object_and_plugin(live: Watched) -> None:
    live.bind("patient", {PREPARE: "wait"})
    live.until("it waits", lambda: live.value("bowline_requests_waiting", plugin="pair_slow") == 1 or None)

    def is_delayed() -> bool:
        return "default/patient" in live.page()["queue"]["delayed"]["nextDue_s"]

    live.until("it is delayed, not just being reconciled", is_delayed)
    page = live.page()
    assert page["leading"] is True
    assert page["waiting"]["first"]["default/patient"] == "pair_slow"
    assert page["inProgress"]["count"] == 0
    assert page["watches"]["bindrequests"]["synced"] is True
    assert page["remembered"]["waitIndex"] == 1
    live.until("its age is exported", lambda: live.value("bowline_requests_oldest_seconds"))
    assert page["plugins"]["volume_binding"] == {"assumedVolumes": 0, "boundClaims": 0}
    live.kubectl("delete", "bindrequest", "patient")
    live.until("it waits no more", lambda: live.value("bowline_requests_waiting", plugin="pair_slow") == 0 or None)


def test_the_page_has_an_address_of_its_own_and_names_the_leader(
    live: Watched, bare_reconcilers: BareReconcilers
) -> None:
    assert live.process.get("/debug")[0] == 404
    leases = live.cluster.api.get("/apis/coordination.k8s.io/v1/namespaces/default/leases")["items"]
    own_leases = [lease for lease in leases if names.LEASE_LABEL in (lease["metadata"].get("labels") or ())]
    (holder,) = [lease["spec"]["holderIdentity"] for lease in own_leases]
    standby = Watched(live.cluster, "default", bare_reconcilers.start("standby", CONFIG))
    try:
        standby.until("it knows the leader", lambda: standby.page()["leader"] == holder or None)
        assert standby.page()["leading"] is False
    finally:
        assert standby.process.stop()


def test_every_log_line_of_an_attempt_names_it_and_no_message_has_a_value(live: Watched) -> None:
    live.bind("erroneous", {PREPARE: "fail"})
    live.bind("fine")
    live.bind("lost", node="no-such-node")
    for name, phase in (("erroneous", "Failed"), ("fine", "Succeeded"), ("lost", "Failed")):
        live.phase(name, phase)
    uid = live.request("erroneous")["metadata"]["uid"]
    live.until("its last line", lambda: last_words(live, "default/erroneous"))
    lines = live.log()
    about = [line for line in lines if line.get("bindRequest") == "default/erroneous"]
    messages = {line["message"] for line in about}
    assert {"slow plugin was asked", "attempt ended", "request has failed"} <= messages
    # The plugin logs without knowledge of the attempt.
    of_attempt = [line for line in about if line["message"] == "slow plugin was asked"]
    assert {line["attempt"] for line in of_attempt} == {f"{uid[:8]}-1", f"{uid[:8]}-2"}
    assert all(line["attempt"].startswith(uid[:8]) and line["pod"] == "default/erroneous" for line in about)
    for line in lines:
        assert line.keys() >= {"time", "level", "logger", "message"}
        # Words and punctuation; a name, a number or a UID belongs into a field.
        assert re.fullmatch(r"[A-Za-z ,;:'-]+", line["message"]), line
        assert not re.search(
            r"default|erroneous|fine|lost|gpu-node", line["message"].replace("leadership lost", "")
        ), line


def last_words(live: Watched, request: str) -> bool | None:
    message = [line["message"] for line in live.log() if line.get("bindRequest") == request]
    return "request has failed" in message or None
