"""What a run contains and what may go wrong in it: drawn from the seed, or directed at one kind of trouble.

Swarm testing: most runs have few kinds of pods and few kinds of trouble, so that each is also met without the others.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.network import SLOW_S, Fault, Weather
from tests.simulation.world import DEEDS, KINDS_OF_PODS, Profile

# Nothing else in the API server's way takes longer.
_VERY_SLOW_S = 17.0
_WRITE_FAULTS = tuple(fault for fault in Fault if fault not in (Fault.HELD, Fault.REPLY_HELD))


@dataclass(slots=True)
class Plan:
    """The parameters of a run, drawn from its seed. ``incidents``: seconds between two, by kind."""

    profile: Profile
    weather: Weather
    reconcilers: int = 1
    skew: bool = False
    incidents: Mapping[str, float] = field(default_factory=dict)
    page_limit: int = 500
    strips_bindings: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OneOf:
    """A value that is drawn."""

    values: tuple[Any, ...]


def one_of(*values: Any) -> OneOf:
    return OneOf(values)


@dataclass(frozen=True, slots=True)
class Focus:
    """One kind of trouble: what it replaces of a drawn plan."""

    profile: Mapping[str, Any] = field(default_factory=dict)
    weather: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, plan: Plan, chance: random.Random) -> Plan:
        """Return the plan, directed."""
        profile = replace(plan.profile, **_drawn(self.profile, chance))
        weather = (
            plan.weather if self.weather is None else Weather(**_drawn({"latency_s": 0.01, **self.weather}, chance))
        )
        return replace(plan, profile=profile, weather=weather, **_drawn(self.plan, chance))


def _drawn(fields: Mapping[str, Any], chance: random.Random) -> dict[str, Any]:
    return {name: chance.choice(v.values) if isinstance(v, OneOf) else v for name, v in fields.items()}


def plan_of(seed: int) -> Plan:
    """Swarm: each run has a random subset of pods, deeds and faults."""
    chance = random.Random(f"plan/{seed}")
    kinds = tuple(chance.sample(KINDS_OF_PODS, chance.choice((1, 1, 2, 3, 6))))
    deeds = tuple(chance.sample(DEEDS, chance.choice((0, 1, 2, 3, 5, 8))))
    faults = chance.sample(_WRITE_FAULTS, chance.choice((0, 1, 2, 3, 4, 7)))
    intensity = chance.choice((0.02, 0.06, 0.15))
    rates: dict[Fault, float] = {
        fault: intensity * chance.uniform(0.3, 1) / (5 if "kill" in fault or fault is Fault.PAUSE else 1)
        for fault in faults
    }
    profile = Profile(
        kinds=kinds,
        deeds=deeds,
        pods=chance.choice((1, 2, 3, 5, 8)),
        nodes=chance.choice((1, 2, 3)),
        devices=chance.choice((1, 2, 3)),
        cpus=chance.choice((2, 6)),
        deed_every_s=chance.choice((1.0, 2.5, 6.0)),
        chaos_s=chance.choice((40.0, 80.0, 150.0)),
        owner_share=chance.choice((0.0, 0.5, 1.0)),
        unwise=chance.choice((0.0, 0.1, 0.4)),
        silent=chance.choice((0.0, 0.3)),
        reject=chance.choice((0.0, 0.3)),
        stale=chance.choice((0.0, 0.4)),
    )
    weather = Weather(
        rates,
        latency_s=chance.choice((0.002, 0.02, 0.2)),
        slow=chance.choice((0.0, 0.05, 0.2)),
        slow_s=chance.choice((SLOW_S, SLOW_S, _VERY_SLOW_S)),
        lag_s=chance.choice((0.002, 0.05, 1.0)),
        stall=chance.choice((0.0, 0.0, 0.05)),
        cut=chance.choice((0.0, 0.0, 0.05)),
        hang=chance.choice((0.0, 0.0, 0.02)),
        expire=chance.choice((0.0, 0.0, 0.05)),
        pause_s=chance.choice((3.0, 12.0, 40.0)),
    )
    skew = chance.random() < 0.4
    incidents = {
        "kill": chance.choice((0.0, 0.0, 20.0, 60.0)),
        "pause": chance.choice((0.0, 0.0, 30.0)),
        "clock": 25.0 if skew else 0.0,
        "compact": chance.choice((0.0, 0.0, 15.0)),
        "partition": chance.choice((0.0, 0.0, 0.0, 40.0)),
        "outage": chance.choice((0.0, 0.0, 0.0, 60.0)),
        "denial": chance.choice((0.0, 0.0, 0.0, 30.0)),
    }
    options = {
        "backoff_limit": chance.choice((0, 1, 3)),
        "wait_timeout": chance.choice((30, 90)),
        "workers": chance.choice((1, 3, 8)),
        "checks": chance.random() < 0.2,
    }
    page_limit, strips_bindings = chance.choice((500, 500, 2)), chance.random() < 0.1
    return Plan(profile, weather, chance.choice((1, 1, 2, 3)), skew, incidents, page_limit, strips_bindings, options)


_WISE = {"unwise": 0.0, "silent": 0.0, "stale": 0.0}
_DEVICES = one_of(("share",), ("shares", "share"), ("claim", "extended"), ("mixed",), ("volume",), ("plain", "gang"))
_REMADE = ("delete request", "remake request", "remake pod", "end pod")
_ALONE: Mapping[str, Any] = {"reconcilers": 1, "incidents": {}}
_UNANSWERED = {"rates": {Fault.UNANSWERED: 0.02}, "latency_s": 0.02}

_FOCUSES: Mapping[str, Focus] = {
    # Whatever the seed has drawn.
    "general": Focus(),
    # Writes without a reply that are executed later, also after what followed them.
    "late": Focus(
        {
            "kinds": one_of(
                ("share",), ("shares", "share"), ("claim", "extended"), ("shared claim", "claim"), ("mixed",)
            ),
            **{
                "pods": 4,
                "nodes": 1,
                "devices": 3,
                "deed_every_s": 4.0,
                "chaos_s": 90.0,
                "silent": 0.0,
                "unwise": 0.1,
            },
            "deeds": ("delete request", "remake request", "claim touched"),
        },
        {"rates": {Fault.LATE: 0.05, Fault.UNANSWERED: 0.03}},
        _ALONE,
    ),
    # Processes that die before, at and after a request, whose writes may be executed much later.
    "kill": Focus(
        {
            "pods": 4,
            "deed_every_s": 3.0,
            "chaos_s": 60.0,
            "deeds": ("delete request", "remake request", "remake pod", "redecide"),
        },
        {
            "rates": {
                **{Fault.KILL_BEFORE: 0.005, Fault.KILL_SENT: 0.01, Fault.KILL_LATE: 0.02, Fault.KILL_AFTER: 0.02},
                Fault.LATE: 0.02,
            }
        },
        {"reconcilers": one_of(1, 2)},
    ),
    # Leaders that stop at any request, are cut off or lose their Lease, and continue when another one leads.
    "overlap": Focus(
        {
            **{"kinds": _DEVICES, "deeds": _REMADE, **_WISE},
            **{"pods": 5, "nodes": 2, "devices": 3, "deed_every_s": 4.0, "chaos_s": 120.0},
        },
        {"rates": one_of({Fault.PAUSE: 0.03}, {}), "pause_s": 40.0},
        {"reconcilers": 2, "skew": False, "incidents": one_of({}, {"partition": 25.0}, {"lease": 20.0})},
    ),
    # A stale view: watches that stall, break, expire; lists of many pages.
    "lag": Focus(
        {
            **{"pods": 4, "deed_every_s": 1.0, "chaos_s": 90.0},
            "deeds": ("remake request", "remake pod", "delete request"),
        },
        {"lag_s": one_of(0.05, 2.0), "stall": 0.1, "cut": 0.1, "hang": 0.03, "expire": 0.05},
        {"reconcilers": 1, "page_limit": one_of(1, 500), "incidents": one_of({}, {"compact": 10.0})},
    ),
    # Requests that are withdrawn and made again in quick succession, with replies that take long.
    "again": Focus(
        {
            "kinds": one_of(("extended",), ("share",), ("claim",), ("share", "extended"), ("volume",), ("mixed",)),
            **{
                "pods": 3,
                "nodes": 2,
                "devices": 3,
                "deed_every_s": 0.7,
                "chaos_s": 60.0,
                "silent": 0.0,
                "unwise": 0.3,
            },
            "deeds": ("delete request", "remake request"),
        },
        {**_UNANSWERED, "slow": 0.3, "slow_s": one_of(SLOW_S, _VERY_SLOW_S), "lag_s": one_of(0.01, 1.0)},
        _ALONE,
    ),
    # Pods that share devices come and go, and reservation pods end: devices are granted, released and granted again.
    "releases": Focus(
        {
            "kinds": one_of(("share", "share", "shares"), ("share", "whole")),
            **{
                "pods": 8,
                "nodes": 1,
                "devices": 2,
                "deed_every_s": 1.5,
                "chaos_s": 100.0,
                "silent": 0.0,
                "unwise": 0.1,
            },
            "deeds": one_of(
                ("end pod", "delete pod", "delete request", "remake pod", "remake request"),
                ("end pod", "delete pod", "delete request", "reservation ends", "reservation goes"),
            ),
        },
        {**_UNANSWERED, "slow": 0.1, "lag_s": 0.2},
        _ALONE,
    ),
    # More pods that need a volume of a node than it has, decided at the same time.
    "volumes": Focus(
        {
            "kinds": one_of(("volume", "volume", "provision"), ("mixed", "volume")),
            **{"pods": 8, "nodes": 1, "deed_every_s": 3.0, "chaos_s": 60.0, "unwise": 0.3, "stale": 0.0},
            "deeds": ("delete request", "remake request", "claim touched"),
        },
        {**_UNANSWERED, "slow": 0.2, "lag_s": 0.2},
        _ALONE,
    ),
    # Pods that are bound together or not at all.
    "gangs": Focus(
        {
            "kinds": one_of(("gang",), ("gang", "plain")),
            **{"pods": 4, "nodes": 2, "deed_every_s": 2.0, "chaos_s": 60.0, "unwise": 0.0, "stale": 0.5},
            "deeds": ("delete request", "remake request", "remake pod", "delete pod"),
        },
        {"rates": {Fault.UNANSWERED: 0.03}, "latency_s": 0.02, "slow": 0.1},
        {"reconcilers": one_of(1, 2)},
    ),
    # Etcd is restored from a backup of a minute ago: what was reported since then has never been.
    "restores": Focus(
        {
            **{"kinds": _DEVICES, "deeds": (*_REMADE, "delete pod"), **_WISE, "unwise": 0.1},
            **{"pods": 6, "nodes": 2, "devices": 3, "deed_every_s": 4.0, "chaos_s": 150.0},
        },
        {},
        {"reconcilers": one_of(1, 2), "skew": False, "incidents": {"restore": 40.0}},
    ),
    # Long trouble: no API server, one process cut off, every write of a kind fails, nodes and namespaces go.
    "outages": Focus(
        {
            **{
                "kinds": _DEVICES,
                **_WISE,
                "pods": 5,
                "nodes": 2,
                "devices": 3,
                "deed_every_s": 8.0,
                "chaos_s": 150.0,
            },
            "deeds": ("ill node", "node goes", "namespace goes", "delete request", "delete pod"),
        },
        {"slow": 0.1, "slow_s": _VERY_SLOW_S},
        {
            "reconcilers": one_of(1, 2),
            "incidents": one_of({"outage": 40.0}, {"partition": 30.0}, {"denial": 20.0}, {"denial": 10.0}),
        },
    ),
}
FOCUSES = tuple(_FOCUSES)


def focused(seed: int, focus: str) -> Plan:
    """Return the seed's plan, directed at one kind of trouble."""
    return _FOCUSES[focus].applied(plan_of(seed), random.Random(f"focus/{seed}"))
