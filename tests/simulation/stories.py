"""Short stories: one pod and its requests in one order of events, undisturbed or with one fault at one request.

The systematic counterpart of random seeds: a story is played once undisturbed, then once for each of its requests and
each fault at that request. Beside the checks, the end must be one that an undisturbed run may have.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from bowline.kube.messages import Request
from tests.simulation.loop import Process
from tests.simulation.network import Fault, Weather
from tests.simulation.objects import Object
from tests.simulation.plans import Plan
from tests.simulation.simulation import Simulation
from tests.simulation.world import NAMESPACE, REQUESTS, Profile

KINDS = ("plain", "gated", "share", "shares", "claim", "shared claim", "extended", "volume", "provision")
BIND, WITHDRAW, AGAIN, REMADE = "bind", "withdraw", "decide again", "pod made again"
# Another pod takes a device of the node while the withdrawn request waits for the end of writes in flight.
BESIDE = "withdraw beside another"
# The request waits, and is made again twice under its name while no watch shows that.
SILENT = "made again in silence"
STORIES = (BIND, WITHDRAW, AGAIN, REMADE, BESIDE, SILENT)
FAULTS = (
    Fault.LOST,
    Fault.UNANSWERED,
    Fault.LATE,
    Fault.BUSY,
    Fault.ERROR,
    Fault.APPLIED,
    Fault.KILL_BEFORE,
    Fault.KILL_SENT,
    Fault.KILL_LATE,
    Fault.KILL_AFTER,
    Fault.PAUSE,
)
LATE_S = 45.0
SILENT_S = 20.0
PAUSE_S = 30.0
# In the middle of the first attempt; undisturbed, a share is bound by then.
_MIDDLE_S: Mapping[str, float] = {"share": 3.6, "shares": 3.6, "volume": 1.6, "provision": 1.6}
# Undisturbed, the request has ended by then.
_ENDED_S = 9.0
# The count of a story's requests to the API server.
CALLS = "calls of the story"
# Requests at which nothing of a story is decided.
_ASIDE = ("/leases", "/events", "selfsubject", "clusterpol", "devicetaint", "/apis/nvidia")
# What the API server serves is asked for again and again while an optional resource is not.
_DISCOVERY = re.compile(r"/apis(/[^/]+/[^/]+)?")


@dataclass(frozen=True, slots=True)
class Scene:
    """A story, and the fault at its ``number``-th request, if any."""

    kind: str
    story: str
    fault: Fault | None = None
    number: int = 0

    def __str__(self) -> str:
        return f"{self.kind}/{self.story}/{self.fault or ''}/{self.number}"

    @staticmethod
    def parse(text: str) -> "Scene":
        """Return the scene of its text."""
        kind, story, fault, number = text.split("/")
        return Scene(kind, story, Fault(fault) if fault else None, int(number))


class Story(Simulation):
    """The run of a scene."""

    def __init__(self, scene: Scene, *, trace: bool = False) -> None:
        self.scene = scene
        profile = Profile(
            kinds=(scene.kind,), deeds=(), pods=0, nodes=1, devices=3, silent=0.0, reject=0.0, unwise=0.0
        )
        reconcilers = 2 if scene.fault is Fault.PAUSE else 1
        plan = Plan(profile, Weather(latency_s=0.005, pause_s=PAUSE_S), reconcilers, 0, 0, False, 0)
        super().__init__(1, plan, trace=trace)
        self._has_begun = False
        self.network.choose = self._choose

    def _choose(self, process: Process, request: Request, chance: Random) -> tuple[Fault | None, float | None]:
        path = request.path
        is_aside = any(word in path for word in _ASIDE) or _DISCOVERY.fullmatch(path)
        if not self._has_begun or "watch=1" in path or is_aside:
            return None, None
        self.dice.happened.append(f"{request.method} {path}")
        if len(self.dice.happened) != self.scene.number or process is not self.slots[0]:
            return None, None
        self.note("fault", f"{self.scene.fault} {request.method} {path}")
        return self.scene.fault, PAUSE_S if self.scene.fault is Fault.PAUSE else LATE_S

    async def script(self) -> None:
        world, server, scene = self.world, self.server, self.scene
        self.has_calmed = True  # reconcilers that are started again have right clocks
        world.furnish()
        for slot in range(self.plan.reconcilers):
            self.start(slot, f"pod-{slot}")
            await asyncio.sleep(4)
        world.start_controllers()
        if scene.kind == "shared claim":
            world.make_pod("q", scene.kind)
            world.request_bind("q", "rq", 0.3)
            await asyncio.sleep(4)
        world.make_pod("p", scene.kind)
        await asyncio.sleep(2)
        self._has_begun = True
        world.request_bind("p", "r1", 0.1)
        if scene.story == SILENT:
            await self._make_again_in_silence()
        await asyncio.sleep(_ENDED_S if scene.story == BESIDE else _MIDDLE_S.get(scene.kind, 0.045))
        # The other pod needs another group: the same one would get the same device again.
        groups = ["n0-g1" if _has_group(server.find("bindrequests", "r1", NAMESPACE), "n0-g0") else "n0-g0"]
        if scene.story in (WITHDRAW, AGAIN, BESIDE):
            server.call("user", "DELETE", f"{REQUESTS}/namespaces/{NAMESPACE}/bindrequests/r1")
        if scene.story == REMADE:
            server.call("user", "DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/p", {"gracePeriodSeconds": 0})
            world.make_pod("p", scene.kind)
        if scene.story in (AGAIN, REMADE):
            # As soon as the first one is gone, and also before: under another name, with another decision.
            await asyncio.sleep(1)
            world.request_bind("p", "r2", 0.9)
        if scene.story == BESIDE:
            await asyncio.sleep(20)
            world.make_pod("other", scene.kind)
            world.request_bind("other", "r2", 0.9, groups=groups)
        await asyncio.sleep(130)
        self._check_end()
        await asyncio.sleep(20)

    async def _make_again_in_silence(self) -> None:
        pod, request = f"/api/v1/namespaces/{NAMESPACE}/pods/p", f"{REQUESTS}/namespaces/{NAMESPACE}/bindrequests/r1"
        await asyncio.sleep(0.5)
        self.network.silence("bindrequests", SILENT_S)
        changes = ({"spec": {"schedulingGates": None}}, {"metadata": {"annotations": {"touched": "yes"}}})
        for number, change in enumerate(changes):
            self.server.call("user", "DELETE", request)
            await asyncio.sleep(3 * number)
            self.world.request_bind("p", "r1", 0.9)
            self.server.call("user", "PATCH", pod, change)
            await asyncio.sleep(1)
        await asyncio.sleep(SILENT_S)

    def _check_end(self) -> None:
        self.note("checks", "the end")
        self.checks.counts[CALLS] += len(self.dice.happened)
        ends: dict[str, Any] = {
            request["metadata"]["name"]: request.get("status") or {}
            for request in self.server.objects("bindrequests")
        }
        phases = {name: status.get("phase") for name, status in ends.items()}
        if self.scene.story in (WITHDRAW, BESIDE) and "r1" in phases and phases["r1"] != "Succeeded":
            self.checks.fail("withdrawn request remains", str(phases))
        last = "r1" if self.scene.story in (BIND, SILENT) else "r2"
        if self.scene.story != WITHDRAW and phases.get(last) != "Succeeded":
            reasons = {name: status.get("reason") for name, status in ends.items()}
            self.checks.fail(f"{last} is not Succeeded", str(reasons)[:300])
        self.checks.at_rest(self.slots)


def _has_group(request: Object | None, group: str) -> bool:
    return request is not None and group in (request["spec"].get("selectedGPUGroups") or ())


def is_played(kind: str, story: str) -> bool:
    """Return whether a story is about that kind of pods."""
    return (story != BESIDE or kind == "share") and (story == SILENT) is (kind == "gated")


def scenes(kind: str, story: str, requests: int) -> Iterator[Scene]:
    """Yield every fault at every request of a story."""
    for number in range(1, requests + 1):
        for fault in FAULTS:
            yield Scene(kind, story, fault, number)
