"""One run: a cluster, reconcilers, chaos, then calm, then the checks. Everything follows from the seed.

Decision 270.
"""

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

from bowline.kube.calls import Request
from tests.simulation.checks import GUARDS, Checks, Violation
from tests.simulation.dice import Dice
from tests.simulation.loop import PROCESS, Process, State, VirtualLoop
from tests.simulation.network import Fault, Network, Weather
from tests.simulation.plans import Plan, plan_of
from tests.simulation.reconciler import ReconcilerProcess, settings_of
from tests.simulation.server import Answer, Server
from tests.simulation.world import NAMESPACE, World, path_of

# A pod whose bind needs more than its own objects, or an object that others may have for another node.
_NOT_PROBED = ("gated", "gang", "shared claim")
REST_S = 400.0  # longest time until everything has come to rest
QUIET_S = 120.0
STEP_LIMIT = 3_000_000
_RESTORE_S = (16.0, 60.0)
_OUTAGE_S = (1.0, 90.0)
# Fields of log lines that a trace shows.
_FIELDS = (
    *("bindRequest", "plugin", "point", "why", "error", "group"),
    *("reason", "lease", "problem", "abandoned", "pod"),
)


@dataclass(frozen=True, slots=True)
class Report:
    violations: Sequence[Violation]
    steps: int
    requests: int
    seconds: float
    counts: dict[str, int]
    happened: Sequence[str]


class Simulation:
    def __init__(self, seed: int, plan: Plan | None = None, *, trace: bool = False) -> None:
        self.seed = seed
        self.plan = plan or plan_of(seed)
        self.loop = VirtualLoop()
        self.dice = Dice(seed)
        self.server = Server(self.loop.time)
        self.network = Network(self.loop, self.server, self.dice, self.plan.weather)
        self.world = World(self.loop, self.server, self.dice, self.plan.profile)
        self.checks = Checks(self.server, self.world, self.loop.time)
        self.trace: list[str] | None = [] if trace else None
        self.processes: list[ReconcilerProcess] = []
        self.slots: list[ReconcilerProcess] = []
        self.settings = self.checks.ends.settings = settings_of(self.plan.options)
        self.checks.ends.is_time_true = not self.plan.skew
        self.checks.ends.holds = bool(self.plan.options.get("checks"))
        self.checks.is_late = lambda: self.network.is_late
        self._chance = self.dice.stream("processes")
        self.has_calmed = False
        # What has gone wrong, or of a story the calls, in order.
        self.happened: list[str] = []
        self.server.page_limit = self.plan.page_limit
        self.server.strips_bindings = self.plan.strips_bindings
        self.network.resume = self._resume
        self.network.crash = self._crash
        self.network.pause = self._pause
        self.network.observers.append(self.checks.on_request)
        self.network.on_send = self.checks.on_send
        if trace:
            self.network.observers.append(self._trace_request)
            self.network.on_stream = lambda process, path, what: self.note(process, f"WATCH {what} {path}")
            self.world.notes = lambda note: self.note("world", note)
            self.server.observers.append(self._trace_change)

    # --- trace ---

    def note(self, who: Any, what: str) -> None:
        if self.trace is not None:
            self.trace.append(f"[{self.loop.time():9.3f}] {who!s:<14} {what}")

    def _trace_request(self, process: Process, request: Request, answer: Answer | None, fault: str) -> None:
        path = request.path.partition("?")[0]
        if "/leases" in path or "/events" in path or "selfsubject" in path:
            return
        short = path.replace("/apis/scheduling.run.ai/v1alpha2/namespaces/work", "").replace(
            "/api/v1/namespaces/work", ""
        )
        code = answer.code if answer is not None else "-"
        what = request.path.partition("?")[2] if request.method == "GET" else (request.body or b"").decode()
        body = unquote(what)[:300]
        self.note(process, f"{request.method} {short} {code} {fault and '!' + fault} {body}")

    def _trace_change(self, change: Any) -> None:
        if not change.user.startswith("reconciler") and change.kind.plural not in ("leases", "events"):
            what = "gone" if change.new is None else "made" if change.old is None else "changed"
            self.note(
                change.user,
                f"{change.kind.plural}/{change.key[1]} {what} {str(change.body)[:160] if change.old else ''}",
            )

    def _trace_log(self, record: logging.LogRecord) -> bool:
        fields = {k: v for k, v in vars(record).items() if k in _FIELDS}
        self.note(PROCESS.get() or "log", f"{record.levelname} {record.getMessage()} {fields or ''}")
        return True

    # --- processes ---

    def start(self, slot: int, container_uid: str) -> None:
        number = len(self.processes)
        skew = (
            timedelta(seconds=self._chance.uniform(-600, 600))
            if self.plan.skew and not self.has_calmed
            else timedelta()
        )
        process = ReconcilerProcess(
            f"r{slot}.{number}",
            f"r{slot}_{container_uid}",
            self.network,
            self.settings,
            skew,
            self.dice.stream("process", number),
        )
        self.processes.append(process)
        if slot < len(self.slots):
            self.slots[slot] = process
        else:
            self.slots.append(process)
        self.note(process, "starts")

    def _crash(self, process: Process, why: str) -> None:
        if process.state is State.DEAD or not isinstance(process, ReconcilerProcess) or process not in self.slots:
            return
        self.note(process, f"dies ({why})")
        self.loop.kill(process)
        slot = self.slots.index(process)
        # The container is restarted in its pod, or the pod is replaced.
        in_place = self._chance.random() < 0.5
        uid = process.identity.partition("_")[2] if in_place else f"pod-{len(self.processes)}"
        self.loop.later(self._chance.uniform(0.2, 10), self.start, slot, uid)

    def _pause(self, process: Process, seconds: float) -> None:
        if process.state is State.RUNNING:
            self.note(process, f"stops for {seconds:.1f} s")
            self.loop.pause(process)
            self.loop.later(seconds, self._resume, process)

    def _resume(self, process: Process) -> None:
        if process.state is State.PAUSED:
            self.note(process, "continues")
            self.loop.resume(process)

    async def _incidents_of(self, kind: str, every_s: float) -> None:
        chance = self.dice.stream("incidents", kind)
        while not self.has_calmed:
            await asyncio.sleep(chance.expovariate(1 / every_s))
            if self.has_calmed:
                return
            victims = [process for process in self.slots if process.is_alive]
            if kind in _OF_SERVER:
                await _OF_SERVER[kind](self, chance)
            elif victims:
                process = victims[int(chance.random() * len(victims))]
                if kind == "kill":
                    self._crash(process, "kill -9")
                elif kind == "pause":
                    self._pause(process, chance.uniform(1, self.plan.weather.pause_s))
                elif kind == "clock":
                    process.clock.skew = timedelta(seconds=chance.uniform(-600, 600))
                elif kind == "partition":
                    self.note(process, "is cut off")
                    self.network.partition(process)
                    await asyncio.sleep(chance.uniform(2, 60))
                    self.note(process, "is reached again")
                    self.network.partitioned.discard(process)

    async def _delete_lease(self, _: random.Random) -> None:
        """Delete the Lease, as an administrator or the garbage collector after its ServiceAccount was replaced."""
        lease = self.server.find("leases", "bowline-reconciler", "bowline")
        if lease is not None and not self.server.is_down:
            self.note("administrator", "deletes the Lease")
            self.server.call("administrator", "DELETE", path_of(lease))

    async def _compact(self, _: random.Random) -> None:
        self.note("etcd", "compacts")
        self.server.compact()

    async def _stop(self, chance: random.Random) -> None:
        """Stop the API server, and start it again."""
        seconds = chance.uniform(*_OUTAGE_S)
        self.note("server", f"is down for {seconds:.1f} s")
        self.network.stop_server()
        await asyncio.sleep(seconds)
        self.network.start_server()

    async def _deny(self, chance: random.Random) -> None:
        """Let every write of one kind fail for long, as by a webhook that is down, a policy or a quota."""
        method, resource = chance.choice(sorted(guarded for guarded in GUARDS if guarded[1] != "reservation pods"))
        fault = chance.choice((Fault.WEBHOOK, Fault.WEBHOOK, Fault.FORBIDDEN, Fault.INVALID))
        self.note("server", f"denies {method} {resource}: {fault}")
        self.network.denial = method, resource, fault
        await asyncio.sleep(chance.uniform(10, 120))
        self.network.denial = None

    async def _restore(self, chance: random.Random) -> None:
        """Restore etcd from a backup, with the API server stopped for longer than a Lease lasts."""
        storage, assigned, past = self.server.backup(), self.world.backup(), self.checks.backup()
        await asyncio.sleep(chance.uniform(1, 40))
        seconds = chance.uniform(*_RESTORE_S)
        if self.has_calmed:
            return
        self.note("etcd", f"is down for {seconds:.1f} s, and restored to version {storage.version}")
        self.network.stop_server()
        await asyncio.sleep(seconds)
        self.server.restore(storage)
        self.world.restore(assigned)
        self.checks.restore(past)
        self.network.start_server()

    # --- the run ---

    async def script(self) -> None:
        plan = self.plan
        self.world.furnish()
        for slot in range(plan.reconcilers):
            self.start(slot, f"pod-{slot}")
        self.world.start()
        for kind, every_s in plan.incidents.items():
            if every_s:
                self.loop.create_task(self._incidents_of(kind, every_s), name=kind)
        await asyncio.sleep(plan.profile.chaos_s)
        self._calm()
        began = self.loop.time()
        while self.loop.time() < began + REST_S:
            await asyncio.sleep(10)
            if self.loop.steps > STEP_LIMIT:
                self.checks.fail("too many steps", f"{self.loop.steps} steps")
                return
            if self.loop.time() > began + 60:
                self.world.schedules = False
            if self.loop.time() > began + 130 and self._is_at_rest():
                break
        # Memory of a request ends with the reconcile after its last event; idle devices are checked by then as well.
        await asyncio.sleep(40)
        self.note("checks", "at rest")
        self.checks.is_undisturbed = not plan.weather.rates and not any(plan.incidents.values())
        self.checks.at_rest(self.slots)
        before = dict(self.checks.counts)
        await asyncio.sleep(QUIET_S)
        self.checks.check_quiet(before, QUIET_S / 60)
        self.checks.check_total(200)
        await self._probe()

    async def _probe(self) -> None:
        """At rest nothing prevents a bind: a request whose pod, node and devices are there has to succeed."""
        kind = next((kind for kind in self.plan.profile.kinds if kind not in _NOT_PROBED), "plain")
        self.world.is_slow = False
        self.world.make_pod("probe", kind)
        await asyncio.sleep(2)
        self.world.request_bind("probe", 0.5)
        await asyncio.sleep(90)
        request = self.server.find("bindrequests", "probe", NAMESPACE)
        status = (request or {}).get("status") or {}
        if request is not None and status.get("phase") != "Succeeded":
            self.checks.fail("probe is not Succeeded", f"{kind}: {status}")

    def _calm(self) -> None:
        """No faults, no users any more; what is absent for good is provided."""
        self.note("weather", "calms")
        self.has_calmed = self.world.is_calm = self.world.is_slow = True
        self.network.weather = Weather()
        self.network.denial = None
        self.network.partitioned.clear()
        for process in self.slots:
            self._resume(process)

    def _is_at_rest(self) -> bool:
        # What was read or written ahead of the watch is forgotten with its next bookmark.
        is_caught_up = not any(process.sizes().get("ahead") for process in self.slots if process.is_alive)
        return is_caught_up and all(
            (request.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            and (self.checks.ends.holds or not request["metadata"].get("finalizers"))
            for request in self.server.objects("bindrequests")
        )

    def run(self) -> Report:
        untouched = random.getstate()
        logging.getLogger().addHandler(self.checks)
        if self.trace is not None:
            logging.getLogger().setLevel(logging.INFO)
            tracer = logging.Handler()
            tracer.emit = self._trace_log  # type: ignore[method-assign,assignment]
            logging.getLogger().addHandler(tracer)
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        self.loop.set_exception_handler(self._on_exception)
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self.script())
        logging.getLogger().removeHandler(self.checks)
        if random.getstate() != untouched:
            self.checks.fail(
                "global randomness", "something has drawn from the random module, whose seed no run sets"
            )
        violations = sorted(self.checks.violations.values(), key=lambda v: v.at)
        return Report(
            violations, self.loop.steps, self.network.requests, self.loop.time(), dict(self.checks.counts),
            tuple(self.happened),
        )  # fmt: skip

    def _on_exception(self, _: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = f"{context['message']} {error!r} {context.get('task') or context.get('future') or ''}"
        self.checks.fail(f"unhandled {type(error).__name__}", text[:500])


# Incidents that are not of one process.
_OF_SERVER = {
    "lease": Simulation._delete_lease,
    "compact": Simulation._compact,
    "outage": Simulation._stop,
    "denial": Simulation._deny,
    "restore": Simulation._restore,
}
