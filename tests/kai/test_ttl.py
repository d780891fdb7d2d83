"""Succeeded requests are deleted after a second: KAI-Scheduler must still know which devices running pods occupy."""

from collections.abc import Iterator

import pytest

from bowline.api import names
from tests.kai.conftest import CONFIG
from tests.kai.team import Team, needs_kai, running_kai
from tests.kai.test_churn import Snapshot, faults
from tests.pairs import own_namespace, running_pair
from tests.plugins.leftovers import clean_up

pytestmark = needs_kai

# A node has eight devices.
_MULTI_DEVICE_PODS = 3
_SHARE_OF_TWO = {names.GPU_FRACTION: "0.6", names.GPU_FRACTION_NUM_DEVICES: "2"}


@pytest.fixture
def team() -> Iterator[Team]:
    """One node; a TTL of a second."""
    with (
        running_pair(1, {**CONFIG, "config.binding": {"ttlAfterSucceeded": "1s"}}) as (cluster, pair),
        running_kai(cluster),
        own_namespace(cluster, pair) as live,
    ):
        yield Team(live)
        clean_up(live)


def test_scheduler_loses_no_device_of_long_running_shares_after_the_ttl(team: Team) -> None:
    shares = [f"multi-{number}" for number in range(_MULTI_DEVICE_PODS)]
    for name in shares:
        team.submit(name, annotations=_SHARE_OF_TWO)
        runs(team, name)
    team.submit("whole", gpus=1)
    runs(team, "whole")
    for turn in range(3):
        # The last free device. The pod ends, and the scheduler decides again after the TTL has deleted its request.
        last = f"last-{turn}"
        team.submit(last, gpus=1)
        runs(team, last)
        for name in ("whole", last):
            is_removed(team, name)
        team.submit("two", annotations=_SHARE_OF_TWO)
        team.submit("most", annotations={names.GPU_FRACTION: "0.5"})
        for name in ("two", "most"):
            team.does_not_fit(name)
            team.delete(name)
        assert list(faults(Snapshot.of(team))) == []
        team.delete(last)
    # The free shares of the devices are known as well.
    team.submit("rest", annotations={names.GPU_FRACTION: "0.4", names.GPU_FRACTION_NUM_DEVICES: "2"})
    runs(team, "rest")
    assert list(faults(Snapshot.of(team))) == []
    phases = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in team.pods()}
    assert {name: phases.get(name) for name in shares} == dict.fromkeys(shares, "Running")


def runs(team: Team, name: str) -> None:
    """Wait until the pod runs. Its request may have been deleted by then."""
    team.live.until(f"pod {name} runs", lambda: team.live.pod(name).get("status", {}).get("phase") == "Running")


def is_removed(team: Team, name: str) -> None:
    """Wait until the TTL has deleted the request of a pod that runs."""
    team.live.until(f"the request of {name} is removed", lambda: not team.requests(name))
