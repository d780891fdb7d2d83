"""What a run contains and what may go wrong in it: drawn from the seed, or directed at one kind of trouble.

Swarm testing: most runs have few kinds of pods and few kinds of trouble, so that each is also met without the others.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.network import Fault, Weather
from tests.simulation.world import DEEDS, KINDS_OF_PODS, Profile


@dataclass(slots=True)
class Plan:
    """The parameters of a run, drawn from its seed; a caller may replace them."""

    profile: Profile
    weather: Weather
    reconcilers: int
    kill_every_s: float  # 0: never
    pause_every_s: float
    skew: bool
    compact_every_s: float
    restore_every_s: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)


def plan_of(seed: int) -> Plan:
    """Swarm: each run has a random subset of pods, deeds and faults."""
    chance = random.Random(f"plan/{seed}")
    kinds = tuple(chance.sample(KINDS_OF_PODS, chance.choice((1, 1, 2, 3, 6))))
    deeds = tuple(chance.sample(DEEDS, chance.choice((0, 1, 2, 3, 5, 8))))
    faults = chance.sample(list(Fault), chance.choice((0, 1, 2, 3, 4, 7)))
    intensity = chance.choice((0.02, 0.06, 0.15))
    rates = {
        fault: intensity * chance.uniform(0.3, 1) / (5 if "kill" in fault or fault is Fault.PAUSE else 1)
        for fault in faults
    }
    profile = Profile(
        kinds=kinds,
        deeds=deeds,
        pods=chance.choice((1, 2, 3, 5, 8)),
        nodes=chance.choice((1, 2, 3)),
        devices=chance.choice((1, 2, 3)),
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
        lag_s=chance.choice((0.002, 0.05, 1.0)),
        stall=chance.choice((0.0, 0.0, 0.05)),
        cut=chance.choice((0.0, 0.0, 0.05)),
        hang=chance.choice((0.0, 0.0, 0.02)),
        pause_s=chance.choice((3.0, 12.0, 40.0)),
    )
    options = {
        "backoff_limit": chance.choice((0, 1, 3)),
        "wait_timeout": chance.choice((30, 90)),
        "workers": chance.choice((1, 3, 8)),
    }
    return Plan(
        profile,
        weather,
        reconcilers=chance.choice((1, 1, 2, 3)),
        kill_every_s=chance.choice((0.0, 0.0, 20.0, 60.0)),
        pause_every_s=chance.choice((0.0, 0.0, 30.0)),
        skew=chance.random() < 0.4,
        compact_every_s=chance.choice((0.0, 0.0, 15.0)),
        options=options,
    )


def _general(plan: Plan, chance: random.Random) -> None:
    """Whatever the seed has drawn."""


def _share_pause(plan: Plan, chance: random.Random) -> None:
    """Leaders that stop in the middle of releasing or granting a device, and continue when another one leads."""
    plan.profile = replace(
        plan.profile,
        kinds=("share", "share", "whole"),
        pods=6,
        nodes=1,
        devices=2,
        unwise=0.0,
        silent=0.0,
        stale=0.0,
        deeds=("end pod", "delete pod", "delete request", "remake pod"),
        deed_every_s=1.5,
        chaos_s=120.0,
    )
    plan.weather = Weather({Fault.PAUSE: 0.04}, latency_s=0.01, pause_s=40.0)
    plan.reconcilers, plan.kill_every_s, plan.pause_every_s, plan.compact_every_s = 2, 0.0, 0.0, 0.0
    plan.skew = False


def _kill(plan: Plan, chance: random.Random) -> None:
    """Processes that die before, at and after a request, whose writes may be executed much later."""
    deeds = ("delete request", "remake request", "remake pod")
    plan.profile = replace(plan.profile, pods=4, deed_every_s=3.0, chaos_s=60.0, deeds=deeds)
    rates = {
        Fault.KILL_BEFORE: 0.005,
        Fault.KILL_SENT: 0.01,
        Fault.KILL_LATE: 0.02,
        Fault.KILL_AFTER: 0.02,
        Fault.LATE: 0.02,
    }
    plan.weather = Weather(rates, latency_s=0.01)
    plan.reconcilers = chance.choice((1, 2))


def _late(plan: Plan, chance: random.Random) -> None:
    """Writes without a reply that are executed later, also after what followed them."""
    kinds = chance.choice((("share",), ("shares", "share"), ("claim", "extended"), ("shared claim", "claim")))
    plan.profile = replace(
        plan.profile,
        kinds=kinds,
        pods=4,
        nodes=1,
        devices=3,
        deed_every_s=4.0,
        chaos_s=90.0,
        silent=0.0,
        unwise=0.1,
        deeds=("delete request", "remake request", "rival request", "claim touched"),
    )
    plan.weather = Weather({Fault.LATE: 0.05, Fault.UNANSWERED: 0.03}, latency_s=0.01)
    plan.reconcilers, plan.kill_every_s, plan.pause_every_s = 1, 0.0, 0.0


def _overlap(plan: Plan, chance: random.Random) -> None:
    """Leaders that stop at any request, and continue when another one leads."""
    kinds = chance.choice((("share",), ("claim", "extended"), ("shared claim",), ("plain", "gang"), ("volume",)))
    plan.profile = replace(
        plan.profile,
        kinds=kinds,
        pods=5,
        nodes=2,
        devices=3,
        deed_every_s=4.0,
        chaos_s=150.0,
        silent=0.0,
        unwise=0.0,
        stale=0.0,
        deeds=("delete request", "remake request", "remake pod", "end pod"),
    )
    plan.weather = Weather({Fault.PAUSE: 0.03}, latency_s=0.01, pause_s=35.0)
    plan.reconcilers, plan.kill_every_s, plan.pause_every_s, plan.compact_every_s = 2, 0.0, 0.0, 0.0


def _lag(plan: Plan, chance: random.Random) -> None:
    """A stale view: watches that stall, break, expire."""
    deeds = ("remake request", "remake pod", "rival request", "delete request")
    plan.profile = replace(plan.profile, pods=4, deed_every_s=1.0, chaos_s=90.0, deeds=deeds)
    plan.weather = Weather({}, latency_s=0.01, lag_s=chance.choice((0.05, 2.0)), stall=0.1, cut=0.1, hang=0.03)
    plan.reconcilers, plan.compact_every_s = 1, chance.choice((0.0, 10.0))


def _rivals(plan: Plan, chance: random.Random) -> None:
    """Several requests for one pod at a time, made and withdrawn in quick succession, with replies that take long."""
    kinds = chance.choice((("extended",), ("share",), ("claim",), ("share", "extended"), ("volume",)))
    plan.profile = replace(
        plan.profile,
        kinds=kinds,
        pods=3,
        nodes=2,
        devices=3,
        deed_every_s=0.7,
        chaos_s=60.0,
        silent=0.0,
        unwise=0.3,
        deeds=("rival request", "rival request", "delete request", "remake request"),
    )
    plan.weather = Weather({Fault.UNANSWERED: 0.02}, latency_s=0.02, slow=0.3, lag_s=chance.choice((0.01, 1.0)))
    plan.reconcilers, plan.kill_every_s, plan.pause_every_s, plan.compact_every_s = 1, 0.0, 0.0, 0.0


def _releases(plan: Plan, chance: random.Random) -> None:
    """Pods that share devices come and go: devices are granted, released and granted again."""
    plan.profile = replace(
        plan.profile,
        kinds=("share", "share", "shares"),
        pods=8,
        nodes=1,
        devices=2,
        deed_every_s=1.0,
        chaos_s=100.0,
        silent=0.0,
        unwise=0.1,
        deeds=("end pod", "delete pod", "delete request", "remake pod", "remake request", "rival request"),
    )
    plan.weather = Weather({Fault.UNANSWERED: 0.02}, latency_s=0.05, slow=0.1, lag_s=0.2)
    plan.reconcilers, plan.kill_every_s, plan.pause_every_s, plan.compact_every_s = 1, 0.0, 0.0, 0.0


def _volumes(plan: Plan, chance: random.Random) -> None:
    """More pods that need a volume of a node than it has, decided at the same time."""
    plan.profile = replace(
        plan.profile,
        kinds=("volume", "volume", "provision"),
        pods=8,
        nodes=1,
        deed_every_s=3.0,
        chaos_s=60.0,
        unwise=0.3,
        stale=0.0,
        deeds=("delete request", "remake request", "claim touched"),
    )
    plan.weather = Weather({Fault.UNANSWERED: 0.02}, latency_s=0.02, slow=0.2, lag_s=0.2)
    plan.reconcilers, plan.kill_every_s, plan.pause_every_s, plan.compact_every_s = 1, 0.0, 0.0, 0.0


def _gangs(plan: Plan, chance: random.Random) -> None:
    """Pods that are bound together or not at all."""
    plan.profile = replace(
        plan.profile,
        kinds=chance.choice((("gang",), ("gang", "plain"))),
        pods=4,
        nodes=2,
        deed_every_s=2.0,
        chaos_s=60.0,
        unwise=0.0,
        stale=0.5,
        deeds=("delete request", "remake request", "remake pod", "delete pod"),
    )
    plan.weather = Weather({Fault.UNANSWERED: 0.03}, latency_s=0.02, slow=0.1)
    plan.reconcilers = chance.choice((1, 2))


def _restores(plan: Plan, chance: random.Random) -> None:
    """Etcd is restored from a backup of a minute ago: what was reported since then has never been."""
    kinds = chance.choice((("share",), ("shares", "share"), ("claim", "extended"), ("volume",), ("plain", "gang")))
    plan.profile = replace(
        plan.profile,
        kinds=kinds,
        pods=6,
        nodes=2,
        devices=3,
        deed_every_s=4.0,
        chaos_s=150.0,
        silent=0.0,
        unwise=0.1,
        stale=0.0,
        deeds=("delete request", "remake request", "remake pod", "end pod", "delete pod"),
    )
    plan.weather = Weather({}, latency_s=0.01)
    plan.reconcilers, plan.kill_every_s, plan.pause_every_s, plan.compact_every_s = (
        chance.choice((1, 2)),
        0.0,
        0.0,
        0.0,
    )
    plan.skew, plan.restore_every_s = False, 40.0


_DIRECTIONS: Mapping[str, Callable[[Plan, random.Random], None]] = {
    "general": _general,
    "late": _late,
    "kill": _kill,
    "overlap": _overlap,
    "lag": _lag,
    "rivals": _rivals,
    "share-pause": _share_pause,
    "releases": _releases,
    "volumes": _volumes,
    "gangs": _gangs,
    "restores": _restores,
}
FOCUSES = tuple(_DIRECTIONS)


def focused(seed: int, focus: str) -> Plan:
    """Return the seed's plan, directed at one kind of trouble."""
    plan = plan_of(seed)
    _DIRECTIONS[focus](plan, random.Random(f"focus/{seed}"))
    return plan
