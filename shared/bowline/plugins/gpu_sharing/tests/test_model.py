"""Sixteen halves on eight devices, in the orders of hundreds of seeds: ``BOWLINE_EXAMPLES`` states how many.

A model of the rules' environment: requests are created and deleted, agents report at any time, the leading process is
replaced and loses its memory. The rules decide; the model only executes their decisions and checks after every step
that no running pod loses its device and none is reserved twice.
"""

import os
import random
from dataclasses import dataclass, field, replace

import pytest

from bowline.api.meta import ObjectKey, ObjectUID
from bowline.plugins.gpu_sharing.recovery import running_users
from bowline.plugins.gpu_sharing.reservation import (
    Create,
    DeviceRequest,
    Held,
    Lost,
    Pending,
    Reservation,
    User,
    check_reservations,
    requested_node,
    unused_reservations,
)
from bowline.plugins.gpu_sharing.tests.pods import Json, claim, reservation

GROUPS, SHARERS, NODE = 8, 2, "n1"
BATCHES = 10
BATCH = int(os.environ.get("BOWLINE_EXAMPLES", "50")) // 4


@dataclass
class Pod:
    """One half: its request needs the group until it is done."""

    name: str
    group: str
    awaited_uid: str = ""
    device: str = ""
    is_labelled: bool = False
    bound: bool = False
    over: bool = False  # deleted or completed
    withdrawn: bool = False  # its request is rolled back


@dataclass
class World:
    """The state of the API server, and the memory of the leading process."""

    rng: random.Random
    pods: list[Pod]
    reservations: dict[str, Reservation] = field(default_factory=dict)  # by group
    claims: dict[str, DeviceRequest] = field(default_factory=dict)  # by request; memory
    creations: int = 0

    def users(self, group: str) -> list[User]:
        return [
            User(ObjectKey("ns", p.name), ObjectUID(p.name), NODE, has_ended=p.over, deleting=False)
            for p in self.pods
            if p.group == group and p.bound
        ]

    def reservations_of(self, group: str) -> list[Reservation]:
        return [self.reservations[group]] if group in self.reservations else []

    def request(self, pod: Pod) -> Json:
        phase = "Succeeded" if pod.bound else "Pending"
        metadata = {"name": pod.name, "uid": pod.name}
        return {
            "metadata": metadata,
            "spec": {"selectedNode": NODE, "selectedGPUGroups": [pod.group]},
            "status": {"phase": phase},
        }

    # --- events ---

    def attempt(self, pod: Pod) -> None:
        """One pass of the request, interrupted wherever the next step is another component's."""
        if pod.device and not pod.is_labelled:
            pod.is_labelled = True
        elif pod.is_labelled:
            pod.bound = True
            self.claims.pop(pod.name, None)
        else:
            self.ask(pod)

    def ask(self, pod: Pod) -> None:
        device_request = self.claims[pod.name] = claim(pod.name, NODE, pod.group, pod.awaited_uid)
        verdict = check_reservations(device_request, self.reservations_of(pod.group), {})
        match verdict:
            case Held():
                pod.device, pod.awaited_uid = verdict.device, ""
            case Pending():
                pod.awaited_uid = verdict.reservation.uid
            case Lost():
                pod.awaited_uid = ""
            case Create():
                assert not running_users(self.users(pod.group)), "a running pod lost its reservation"
                for dead in verdict.instead_of:
                    assert not dead.lives
                self.creations += 1
                uid = f"r{self.creations}"
                self.reservations[pod.group] = reservation(NODE, pod.group, uid=ObjectUID(uid))
                pod.awaited_uid = uid

    def speak(self) -> None:
        silent = [holder for holder in self.reservations.values() if not holder.device]
        if silent:
            holder = self.rng.choice(silent)
            self.reservations[holder.group] = replace(holder, device=f"GPU-{holder.uid}")

    def clean(self, group: str) -> None:
        """The controller's pass, after any event, a release or a resync."""
        claimed_nodes = {NODE for device_request in self.claims.values() if device_request.group == group}
        asking = {
            requested_node(self.request(p), group, [ObjectUID(q.name) for q in self.pods if q.withdrawn])
            for p in self.pods
        }
        asking |= {None}
        for holder in unused_reservations(
            self.reservations_of(group), self.users(group), claimed_nodes, {node for node in asking if node}
        ):
            running = [p.name for p in self.pods if p.group == group and p.bound and not p.over]
            assert not running, f"the device of {running} was released"
            del self.reservations[holder.group]

    def end(self, pod: Pod) -> None:
        """The pod is deleted, or completes; a request that is not done is rolled back."""
        pod.over = True
        if not pod.bound:
            pod.withdrawn, pod.is_labelled = True, False
            self.claims.pop(pod.name, None)

    def restart(self) -> None:
        self.claims.clear()
        for pod in self.pods:
            pod.awaited_uid = ""
            if not pod.is_labelled:
                pod.device = ""


def world(seed: int) -> World:
    rng = random.Random(seed)  # noqa: S311 - no secret
    pods = [Pod(f"p{g}-{n}", f"g{g}") for g in range(GROUPS) for n in range(SHARERS)]
    rng.shuffle(pods)
    return World(rng, pods)


def step(model: World, open_: list[Pod]) -> None:
    """One random event."""
    match model.rng.randrange(8):
        case 0:
            model.speak()
        case 1 | 2:
            model.clean(model.rng.choice(model.pods).group)
        case 3 if model.rng.random() < 0.2:
            model.restart()
        case _:
            model.attempt(model.rng.choice(open_))


@pytest.mark.parametrize("batch", range(BATCHES))
def test_sixteen_halves_end_as_exactly_eight_groups(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        model = world(seed)
        while open_ := [p for p in model.pods if not p.bound]:
            step(model, open_)
        assert len(model.reservations) == GROUPS, seed
        assert model.creations == GROUPS, f"seed {seed}: a reservation was made twice"
        for group, holder in model.reservations.items():
            sharing = [p for p in model.pods if p.group == group]
            assert [p.device for p in sharing] == [holder.device] * SHARERS, seed


@pytest.mark.parametrize("batch", range(BATCHES))
def test_pods_deleted_at_any_moment_leave_no_reservation(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        model = world(seed)
        while left := [p for p in model.pods if not p.over]:
            open_ = [p for p in left if not p.bound]
            if open_ and model.rng.random() < 0.85:
                step(model, open_)
                continue
            target = model.rng.choice(left)
            model.end(target)
            if model.rng.random() < 0.5:
                model.clean(target.group)
        model.restart()
        for group in list(model.reservations):
            model.clean(group)
        assert model.reservations == {}, seed
