"""The local cluster as `make up` starts it: each example manifest ends as its README states."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from bowline.localcluster.checkout import EXAMPLES
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.scheduler import SCHEDULER, start_scheduler
from bowline.testing.builders import pod
from tests.examples.manifests import FOLDER, Example, examples
from tests.live import Live
from tests.pairs import installed_pair
from tests.plugins.claims import require_api

PAGE = (FOLDER / "README.md").read_text()
ENDS = {
    name: end or "Running" for name, end in re.findall(r"\[([a-z0-9-]+)\]\(good/[^)]+\)(?: \((\w[\w ]*)\))?", PAGE)
}


@pytest.fixture(scope="module")
def local_cluster(example_cluster: Cluster) -> Live:
    """What `make up` starts, with a view of the namespace `default`."""
    pair = installed_pair(example_cluster, {})
    start_scheduler(example_cluster)
    return Live(example_cluster, "default", pair)


@pytest.fixture
def live(local_cluster: Live) -> Iterator[Live]:
    """The cluster, cleared of the test's objects at the end."""
    live = local_cluster
    assert live.cluster.process(SCHEDULER).alive, live.cluster.log_tails()
    yield live
    live.kubectl("delete", "deployment,statefulset,daemonset,cronjob,job,pod", "--all", "--wait=false")
    live.kubectl("delete", "service", "--wait=false", "--field-selector=metadata.name!=kubernetes")
    live.until("no pod is left", lambda: not pods(live))


def pods(live: Live) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = live.cluster.api.get("/api/v1/namespaces/default/pods")["items"]
    return items


def node_of(live: Live, name: str) -> str:
    """Wait until the pod is bound; the request may be absent before, between two decisions."""
    return live.until(f"{name} is bound", lambda: str(live.pod(name)["spec"].get("nodeName") or "") or None)


def phases(live: Live) -> set[str]:
    return {str(pod["status"].get("phase")) for pod in pods(live)}


@pytest.mark.parametrize("example", examples("good"))
def test_a_valid_example_ends_as_its_readme_states(live: Live, example: Example) -> None:
    end = ENDS[example.path.stem]
    if "resource.k8s.io/v1" in example.path.read_text():
        require_api(live.cluster)
    result = live.kubectl("create", "-f", str(example.path), check=False)
    if end == "no such kind":
        assert example.is_foreign
        assert "no matches for kind" in result.stderr
        return
    assert result.returncode == 0, result.stderr
    if example.path.stem == "nightly-eval-cronjob":
        live.kubectl("create", "job", "now", "--from=cronjob/nightly-eval")
    if end == "Pending":
        # Its neighbour is bound, so the scheduler has seen both.
        live.create(pod("neighbour", "default"))
        node_of(live, "neighbour")
        unbound = {p["metadata"]["name"] for p in pods(live) if "nodeName" not in p["spec"]} - {"neighbour"}
        assert len(unbound) == 1
        return
    live.until(f"the pods of {example.path.stem} are {end}", lambda: phases(live) == {end})


def test_the_readme_states_an_end_for_each_valid_example() -> None:
    assert sorted(ENDS) == sorted(param.values[0].path.stem for param in examples("good"))
    assert set(ENDS.values()) == {"Running", "Succeeded", "Pending", "no such kind"}


def test_the_scheduler_spreads_pods(live: Live) -> None:
    resources = {"requests": {"nvidia.com/gpu": "4"}, "limits": {"nvidia.com/gpu": "4"}}
    container = {"name": "main", "image": "registry.example/train:1", "resources": resources}
    for index in range(4):
        live.create_pod(f"whole-{index}", containers=[container])
    live.until("all run", lambda: phases(live) == {"Running"})
    assert len({p["spec"]["nodeName"] for p in pods(live)}) == 4


def test_the_scheduler_is_short() -> None:
    lines = (EXAMPLES / "scheduler" / "scheduler.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 150
