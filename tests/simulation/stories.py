"""Short stories: one or two pods and their requests in one order of events, undisturbed or with a fault at one call.

The systematic counterpart of random seeds: a story is played once undisturbed, then once for each of its calls and
each fault at that call. A call may be held until others have committed so much: two pods, or two processes, meet
in every order of a pair of their writes. Beside the checks, the end must be one that an undisturbed run may have.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from bowline.kube.calls import Request
from tests.simulation.loop import Process
from tests.simulation.network import Fault, Trouble, Weather
from tests.simulation.objects import Object
from tests.simulation.plans import Plan
from tests.simulation.simulation import Simulation
from tests.simulation.world import NAMESPACE, REQUESTS, Profile

KINDS = ("plain", "gated", "share", "shares", "claim", "shared claim", "extended", "volume", "provision", "mixed")
BIND, WITHDRAW, AGAIN, REMADE = "bind", "withdraw", "decide again", "pod made again"
# Another pod takes a device of the node while the withdrawn request waits for the end of writes in flight.
BESIDE = "withdraw beside another"
# The request waits, and is made again twice under its name while no watch shows that.
SILENT = "made again in silence"
# Two pods at once, for the same node.
TOGETHER = "two pods"
STORIES = (BIND, WITHDRAW, AGAIN, REMADE, BESIDE, SILENT, TOGETHER)
# Of these stories every pair of a call and a commit is played.
_OF_PAIRS = (TOGETHER, AGAIN, BESIDE)
# In these a user does something meanwhile: at each call, and in the middle when something else goes wrong.
_DEEDS = (WITHDRAW, AGAIN, REMADE)
# Until so many commits of others a call is held, or its process is stopped.
_COMMITS = (1, 2, 4)
_WRITES_ONLY = (Fault.APPLIED, Fault.REPLY_HELD)
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
# The deed of a story is done at this call, in the middle of an attempt, or at this time if the attempt waits.
_MIDDLE_CALLS = 5
_MIDDLE_S: Mapping[str, float] = {"share": 3.6, "shares": 3.6, "volume": 1.6, "provision": 1.6, "mixed": 3.6}
# Undisturbed, the request has ended by then.
_ENDED_S = 9.0
_REQUEST = f"{REQUESTS}/namespaces/{NAMESPACE}/bindrequests/p"
# The count of a story's requests to the API server.
CALLS = "calls of the story"
# Requests at which nothing of a story is decided.
_ASIDE = ("/leases", "/events", "selfsubject", "clusterpol", "devicetaint", "/apis/nvidia")
# What the API server serves is asked for again and again while an optional resource is not.
_DISCOVERY = re.compile(r"/apis(/[^/]+/[^/]+)?")


@dataclass(frozen=True, slots=True)
class Scene:
    """A story, and the fault at its ``number``-th call; without a fault its deed is done at that call, if it has one.

    ``commits``: of others, until the fault is over.
    """

    kind: str
    story: str
    fault: Fault | None = None
    number: int = 0
    commits: int = 0

    def __str__(self) -> str:
        commits = f":{self.commits}" if self.commits else ""
        return f"{self.kind}/{self.story}/{self.fault or ''}/{self.number}{commits}"

    @staticmethod
    def parse(text: str) -> "Scene":
        """Return the scene of its text."""
        kind, story, fault, number = text.split("/")
        number, _, commits = number.partition(":")
        return Scene(kind, story, Fault(fault) if fault else None, int(number), int(commits or 0))


class Story(Simulation):
    """The run of a scene."""

    def __init__(self, scene: Scene, *, trace: bool = False) -> None:
        self.scene = scene
        profile = Profile(
            kinds=(scene.kind,), deeds=(), pods=0, nodes=1, devices=3, silent=0.0, reject=0.0, unwise=0.0
        )
        reconcilers = 2 if scene.fault is Fault.PAUSE else 1
        super().__init__(1, Plan(profile, Weather(latency_s=0.005), reconcilers), trace=trace)
        self._has_begun = False
        self._middle = scene.number if scene.fault is None and scene.number else _MIDDLE_CALLS
        self._is_middle = asyncio.Event()
        self.network.choose = self._choose

    def _choose(self, process: Process, request: Request, chance: Random) -> Trouble:
        path = request.path
        is_aside = any(word in path for word in _ASIDE) or _DISCOVERY.fullmatch(path)
        if not self._has_begun or "watch=1" in path or is_aside:
            return Trouble()
        self.happened.append(f"{request.method} {path}")
        if len(self.happened) == self._middle:
            self._is_middle.set()
        if not self.scene.fault or len(self.happened) != self.scene.number or process is not self.slots[0]:
            return Trouble()
        self.note("fault", f"{self.scene.fault} {request.method} {path}")
        seconds = PAUSE_S if self.scene.fault is Fault.PAUSE else LATE_S
        return Trouble(self.scene.fault, seconds, self.scene.commits)

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
            world.request_bind("q", 0.3)
            await asyncio.sleep(4)
        world.make_pod("p", scene.kind)
        await asyncio.sleep(2)
        if scene.story == TOGETHER:
            world.make_pod("other", scene.kind)
            await asyncio.sleep(1)
        self._has_begun = True
        world.request_bind("p", 0.1)
        if scene.story == TOGETHER:
            await asyncio.sleep(0.01)
            world.request_bind("other", 0.9)
        if scene.story == SILENT:
            await self._make_again_in_silence()
        await self._until_middle()
        # The other pod needs another group: the same one would get the same device again.
        request = server.find("bindrequests", "p", NAMESPACE)
        groups = ["n0-g1" if _has_group(request, "n0-g0") else "n0-g0"]
        if scene.story in (WITHDRAW, AGAIN, BESIDE):
            server.call("user", "DELETE", _REQUEST)
        if scene.story == REMADE:
            server.call("user", "DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/p", {"gracePeriodSeconds": 0})
            world.make_pod("p", scene.kind)
        if scene.story in (AGAIN, REMADE):
            await self._decide_again(request)
        if scene.story == BESIDE:
            await asyncio.sleep(20)
            world.make_pod("other", scene.kind)
            world.request_bind("other", 0.9, groups=groups)
        await asyncio.sleep(130)
        self._check_end()
        await asyncio.sleep(20)

    async def _until_middle(self) -> None:
        """Wait for the call, or the time, at which the story's deed is done."""
        scene = self.scene
        if scene.story == BESIDE or (scene.kind in _MIDDLE_S and self._middle != scene.number):
            await asyncio.sleep(_ENDED_S if scene.story == BESIDE else _MIDDLE_S[scene.kind])
        elif scene.story in _DEEDS:
            with suppress(TimeoutError):
                async with asyncio.timeout(_ENDED_S):
                    await self._is_middle.wait()

    async def _decide_again(self, first_request: Object | None) -> None:
        """Create a request with another decision as soon as the first one is gone, which is deleted if it stays."""
        for _ in range(400):  # two leaders may await writes in flight, one after the other
            request = self.server.find("bindrequests", "p", NAMESPACE)
            if request is None:
                self.world.request_bind("p", 0.9)
            elif first_request is None or request["metadata"]["uid"] != first_request["metadata"]["uid"]:
                return
            elif not request["metadata"].get("deletionTimestamp"):
                self.server.call("user", "DELETE", _REQUEST)
            await asyncio.sleep(0.5)

    async def _make_again_in_silence(self) -> None:
        pod = f"/api/v1/namespaces/{NAMESPACE}/pods/p"
        await asyncio.sleep(0.5)
        self.network.silence("bindrequests", SILENT_S)
        changes = ({"spec": {"schedulingGates": None}}, {"metadata": {"annotations": {"touched": "yes"}}})
        for number, change in enumerate(changes):
            self.server.call("user", "DELETE", _REQUEST)
            await asyncio.sleep(3 * number)
            self.world.request_bind("p", 0.9)
            self.server.call("user", "PATCH", pod, change)
            await asyncio.sleep(1)
        await asyncio.sleep(SILENT_S)

    def _check_end(self) -> None:
        self.note("checks", "the end")
        self.checks.counts[CALLS] += len(self.happened)
        ends: dict[str, Any] = {
            request["metadata"]["name"]: request.get("status") or {}
            for request in self.server.objects("bindrequests")
        }
        phases = {name: status.get("phase") for name, status in ends.items()}
        if self.scene.story in (WITHDRAW, BESIDE) and phases.get("p") not in (None, "Succeeded"):
            self.checks.fail("withdrawn request remains", str(phases))
        binding = {TOGETHER: ("p", "other"), WITHDRAW: (), BESIDE: ("other",)}.get(self.scene.story, ("p",))
        reasons = {name: status.get("reason") for name, status in ends.items()}
        for name in binding:
            if phases.get(name) != "Succeeded":
                self.checks.fail(f"{name} is not Succeeded", str(reasons)[:300])
        self.checks.is_undisturbed = self.scene.fault is None
        self.checks.at_rest(self.slots)


def _has_group(request: Object | None, group: str) -> bool:
    return request is not None and group in (request["spec"].get("selectedGPUGroups") or ())


def is_played(kind: str, story: str) -> bool:
    """Return whether a story is about that kind of pods."""
    if kind == "gated" or story == SILENT:
        return kind == "gated" and story == SILENT
    return story != BESIDE or kind == "share"


def scenes(kind: str, story: str, requests: int, calls: Sequence[str] = ()) -> Iterator[Scene]:
    """Yield every fault at every call of a story. ``calls``: those of the undisturbed one, as far as known."""
    for number in range(1, requests + 1):
        if story in _DEEDS:
            yield Scene(kind, story, None, number)
        is_read = bool(calls) and calls[number - 1].startswith("GET")
        for fault in FAULTS:
            if not is_read or fault not in _WRITES_ONLY:
                yield Scene(kind, story, fault, number)
        for fault in (Fault.HELD, Fault.REPLY_HELD, Fault.PAUSE) if story in _OF_PAIRS else ():
            if not is_read or fault not in _WRITES_ONLY:
                yield from (Scene(kind, story, fault, number, commits) for commits in _COMMITS)
