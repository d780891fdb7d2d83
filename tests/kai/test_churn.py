"""Pods are created and deleted at random, KAI-Scheduler places, moves and evicts them: no device is used twice.

Checked during the run and at its end.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from bowline.api import names
from bowline.api.gpu_share import gpu_groups
from bowline.localcluster.errors import LocalApiError
from tests.kai.team import Team, needs_kai
from tests.plugins.sharing import Shares, device_of, group_of

pytestmark = needs_kai

PODS = 120
REQUEUE = 30
GPUS = 8


def test_no_device_is_assigned_twice_during_churn(team: Team) -> None:
    rng = random.Random(1)  # noqa: S311 - no secret
    here: list[str] = []
    for number in range(PODS):
        name = f"pod-{number}"
        _submit(team, name, rng)
        here.append(name)
        if len(here) > REQUEUE:
            _delete(team, here.pop(rng.randrange(len(here))))
        if number % 10 == 0:
            assert list(faults(Snapshot.of(team))) == []
    team.live.until("the state is stable", lambda: _is_stable(team) or None)
    snapshot = Snapshot.of(team)
    assert list(faults(snapshot)) == []
    assert any("nodeName" in pod["spec"] for pod in snapshot.pods)


def _submit(team: Team, name: str, rng: random.Random) -> None:
    draw = rng.random()
    if draw < 0.2:
        team.submit(name, gpus=rng.randint(1, 3))
        return
    share = {names.GPU_FRACTION: rng.choice(["0.25", "0.3", "0.5", "0.75"])}
    if draw < 0.4:
        share[names.GPU_FRACTION_NUM_DEVICES] = str(rng.randint(2, 3))
    team.submit(name, annotations=share)


def _delete(team: Team, name: str) -> None:
    try:
        team.delete(name)
    except LocalApiError as error:
        if error.status != 404:  # evicted for another pod
            raise


def _is_stable(team: Team) -> bool:
    """Whether every request has ended, every unbound pod is unschedulable, and no unused device is reserved."""
    if any((request.get("status") or {}).get("phase") != "Succeeded" for request in team.requests()):
        return False
    snapshot = Snapshot.of(team)
    if not snapshot.reservations.keys() <= snapshot.used_groups():
        return False
    return all(team.is_unschedulable(pod) for pod in snapshot.pods if "nodeName" not in pod["spec"])


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Pods, and by group the reservation pods that existed at the same time."""

    pods: list[dict[str, Any]]
    reservations: dict[str, dict[str, Any]]

    @classmethod
    def of(cls, team: Team) -> "Snapshot":
        shares = Shares(team.live)
        before = {group_of(reservation) for reservation in shares.reservations()}
        pods = team.pods()
        return cls(
            pods,
            {
                group_of(reservation): reservation
                for reservation in shares.reservations()
                if group_of(reservation) in before
            },
        )

    def used_groups(self) -> set[str]:
        """The groups that pods use."""
        return {group for pod in self.pods for group in gpu_groups(pod["metadata"].get("labels") or {})}


def faults(snapshot: Snapshot) -> Iterator[str]:
    """Yield violations of the invariants, for bound pods.

    A device that no pod uses any more does not count: where the reconciler's watch lags behind the scheduler's, it is
    released only after the next pod is bound (a limit of the plugin). At the end there is none.
    """
    bound_pods = [p for p in snapshot.pods if "nodeName" in p["spec"] and "deletionTimestamp" not in p["metadata"]]
    shares_of_device: dict[str, Fraction] = defaultdict(Fraction)
    whole_gpus: Counter[str] = Counter()
    for pod in bound_pods:
        name, node, annotations = pod["metadata"]["name"], pod["spec"]["nodeName"], pod["metadata"]["annotations"]
        groups = gpu_groups(pod["metadata"].get("labels") or {})
        if names.GPU_FRACTION not in annotations:
            limits = pod["spec"]["containers"][0]["resources"].get("limits") or {}
            whole_gpus[node] += int(limits.get(names.RESOURCE_GPU, 0))
            continue
        device_count = int(annotations.get(names.GPU_FRACTION_NUM_DEVICES, "1"))
        if len(groups) != device_count:
            yield f"{name} asks for {device_count} devices and has {sorted(groups)}"
        for group in groups:
            shares_of_device[group] += Fraction(annotations[names.GPU_FRACTION])
            reservation = snapshot.reservations.get(group)
            if reservation is not None and reservation["spec"]["nodeName"] != node:
                yield f"{name} is on {node}, its device {group} is not"
    yield from (f"{share} of device {group} are given out" for group, share in shares_of_device.items() if share > 1)
    devices: dict[str, list[str]] = defaultdict(list)
    used_groups = snapshot.used_groups()
    for group, reservation in snapshot.reservations.items():
        if group in used_groups:
            devices[reservation["spec"]["nodeName"]].append(device_of(reservation))
    for node in {*devices, *whole_gpus}:
        uuids = [device for device in devices[node] if device]
        if len(set(uuids)) < len(uuids):
            yield f"two groups on {node} have one device: {sorted(uuids)}"
        if len(devices[node]) + whole_gpus[node] > GPUS:
            yield f"{len(devices[node])} shared and {whole_gpus[node]} whole devices are in use on {node}"
