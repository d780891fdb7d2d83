"""One run of a scenario: its identity, differences of final states, the executed writes, the leftovers."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from bowline.api import names
from bowline.plugins.gpu_sharing.reservation import reservation_name
from bowline.testing.fault_proxy.faults import FaultGate
from tests.faults.endstate import Deeds, State, made_by_us
from tests.faults.lab import Reconciler
from tests.faults.plugin_objects import GROUPS, read_objects
from tests.faults.plugin_scenarios import HOLDER, group_name
from tests.faults.points import RESERVATIONS, Point
from tests.faults.scenarios import NODE, Scenario
from tests.live import LiveCluster
from tests.plugins.sharing import group_of


@dataclass(slots=True)
class Run:
    """One run of a scenario. ``struck``: its point was met; without a point it is the undisturbed one."""

    scenario: Scenario
    live: LiveCluster
    point: Point | None = None
    expected: State = field(default_factory=dict)
    fault_met: threading.Event = field(default_factory=threading.Event)
    gate: FaultGate = field(default_factory=FaultGate)

    def __str__(self) -> str:
        return f"{self.scenario.name} in {self.live.namespace}, {self.point or 'undisturbed'}"


def differences(expected: State, actual: State) -> str:
    """Return the differences, kind by kind."""
    return "; ".join(
        f"{kind}: {expected[kind]} became {actual[kind]}" for kind in expected if expected[kind] != actual[kind]
    )


def miscounts(run: Run, deeds_by_namespace: Mapping[str, Deeds]) -> list[str]:
    """Return where the executed writes of a run do not match the existing objects."""
    objects, did, elsewhere = (
        read_objects(run.live),
        deeds_by_namespace[run.live.namespace],
        deeds_by_namespace.get(RESERVATIONS, Deeds()),
    )
    groups = [group_name(run.live, group) for group in GROUPS]
    bound = [pod for pod in objects.pods if pod["spec"].get("nodeName") and pod["metadata"]["name"] != HOLDER]
    extended_claims = [
        obj for obj in objects.claims if names.EXTENDED_RESOURCE_CLAIM in (obj["metadata"].get("annotations") or {})
    ]
    reservations = [obj for obj in objects.reservations if group_of(obj) in groups]
    counts = (
        ("effective Bindings and bound pods", did.bindings, len(bound)),
        ("ConfigMaps made less removed and left", did.remaining("configmaps"), made_by_us(objects.maps)),
        ("effects made less removed and left", did.remaining("secrets"), len(objects.effects)),
        ("claims made less removed and left", did.remaining("resourceclaims"), len(extended_claims)),
        (
            "reservations made less removed and left",
            sum(elsewhere.remaining("pods", reservation_name(NODE, group)) for group in groups),
            made_by_us(reservations),
        ),
    )
    return [
        f"{description}: {carried_out} and {remaining}"
        for description, carried_out, remaining in counts
        if carried_out != remaining
    ]


def left_behind(live: LiveCluster) -> list[str]:
    """Return the existing objects that belong to pods; after these are deleted, all of them must be deleted."""
    objects = read_objects(live)
    mine = [obj for obj in objects.maps if obj["metadata"].get("ownerReferences")]
    return [obj["metadata"]["name"] for obj in (*objects.pods, *objects.claims, *objects.reservations, *mine)]


def answered_late(overtaken: Reconciler) -> int:
    """Return how many delayed writes the API server has answered."""
    held_exchanges = [e for e in overtaken.proxy.exchanges() if e.fault == "Hold" and e.call.resource != "leases"]
    return sum(e.code is not None for e in held_exchanges)
