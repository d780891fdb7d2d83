"""Disturbances of the webhook while pods are created through it. Each ends with as many replicas as it began."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.availability.load import Load
from tests.availability.probe import Probe
from tests.availability.rig import RENEWALS, SWITCHES, TIMED_OUT, WEBHOOK, Rig

RATE = 100.0
JUNK = base64.b64encode(b"junk").decode()
# Before and after a disturbance: for connections to be in use, and for its effects to be observed.
LEAD_S, TAIL_S = 1.5, 3.0
NOTIFIED_S = 0.05


@dataclass(frozen=True, slots=True)
class Outcome:
    """The cost of a scenario. ``allowed`` failures are those that could not be prevented."""

    scenario: str
    replicas: int
    pods: int
    rate: float
    failures: int
    lost_calls: tuple[str, ...]
    handshakes: int
    refusals: tuple[str, ...]
    allowed: int
    switches: int
    renewals: int
    p50_ms: float
    p99_ms: float
    reasons: tuple[str, ...]

    @property
    def timed_out(self) -> tuple[str, ...]:
        """Return the lost calls that timed out: on a slow machine they prove nothing."""
        return tuple(why for why in self.lost_calls if TIMED_OUT in why)

    @property
    def is_good(self) -> bool:
        """Return whether it has cost no more than allowed."""
        return (
            self.pods > 0
            and self.failures <= self.allowed
            and len(self.lost_calls) <= self.allowed
            and not self.refusals
        )


# Runs the disturbance, and returns how many failures are allowed.
Disturbance = Callable[[Rig, Load], Awaitable[int]]


async def nothing(rig: Rig, load: Load) -> int:
    """No disturbance: any lost call is the machine's."""
    await asyncio.sleep(10.0)
    return 0


async def rotation(rig: Rig, load: Load, switches: int = 3) -> int:
    """Serving certificates are renewed and the CA is rotated, in real time."""
    before = rig.total(SWITCHES)
    while rig.total(SWITCHES) < before + switches:  # noqa: ASYNC110 - other processes have no event
        await asyncio.sleep(1.0)
    # It includes the removal of the former CA.
    await asyncio.sleep(22.0)
    return 0


async def drain_replica(rig: Rig, load: Load) -> int:
    """A replica is stopped, and another replaces it afterwards."""
    await rig.stop(rig.replicas[0])
    await rig.add()
    await rig.ready()
    return 0


async def kill_replica(rig: Rig, load: Load) -> int:
    """A replica is killed; the calls that were in flight to it are lost."""
    allowed, begun_count = load.in_flight, load.begun_count
    await rig.kill(rig.replicas[0])
    # So are those sent on closed connections before the API server is notified, through balancer and kernels.
    await asyncio.sleep(NOTIFIED_S)
    allowed += load.begun_count - begun_count
    await rig.add()
    await rig.ready()
    return allowed


async def roll_replicas(rig: Rig, load: Load) -> int:
    """Every replica is replaced, one ready before the next stops, as the chart's Deployment requires.

    A Deployment does not wait until a stopped pod has drained.
    """
    async with asyncio.TaskGroup() as draining:
        for old in list(rig.replicas):
            await rig.add()
            await rig.ready()
            draining.create_task(rig.stop(old))
    return 0


async def secret_emptied(rig: Rig, load: Load) -> int:
    """The data of the CA's Secret are removed; the replicas serve on, and their restart makes a new CA."""
    await asyncio.to_thread(rig.mangle, None)
    await asyncio.sleep(1.0)  # they serve on
    return await roll_replicas(rig, load)


async def secret_mangled(rig: Rig, load: Load) -> int:
    """The Secret is overwritten: the key, the bundle, the certificate, everything. Then all are restarted."""
    for data in ({"tls.key": JUNK}, {"ca.crt": JUNK}, {"tls.crt": JUNK, "ca.crt": ""}, dict.fromkeys(KEYS, JUNK)):
        await asyncio.to_thread(rig.mangle, data)
        await asyncio.sleep(4.0)  # for every replica to notice it
    return await roll_replicas(rig, load)


KEYS = ("tls.crt", "tls.key", "ca.crt")
SCENARIOS: dict[str, Disturbance] = {
    "nothing": nothing,
    "leaves renewed, CA rotated": rotation,
    "a replica drained": drain_replica,
    "a replica killed (-9)": kill_replica,
    "all replicas rolled": roll_replicas,
    "CA Secret emptied, rolled": secret_emptied,
    "CA Secret mangled, rolled": secret_mangled,
}


async def play(rig: Rig, name: str, deed: Disturbance, rate: float = RATE) -> Outcome:
    """Create pods during the disturbance; return the cost."""
    replicas, lost_calls = len(rig.replicas), len(rig.lost_calls())
    switches, renewals = rig.total(SWITCHES), rig.total(RENEWALS)
    load = Load(rig.client, rate)
    probe = Probe(rig.client, rig.balancer, WEBHOOK, rig.grace_s)
    async with load.running(), probe.running():
        await asyncio.sleep(LEAD_S)
        allowed = await deed(rig, load)
        await asyncio.sleep(TAIL_S)
    return Outcome(
        name,
        replicas,
        load.ended_count,
        load.begun_count / load.elapsed_s,
        sum(load.failures.values()),
        tuple(rig.lost_calls()[lost_calls:]),
        probe.handshakes,
        tuple(probe.refusals),
        allowed,
        round(rig.total(SWITCHES) - switches),
        round(rig.total(RENEWALS) - renewals),
        load.percentile(0.50),
        load.percentile(0.99),
        tuple(load.failures),
    )
