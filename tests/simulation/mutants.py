"""Defects put into the product: each must be found by the runs that are named for it.

A mutation that survives is a missing check. Violations that the unchanged product shows in the same run do not count.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from bowline.api.bindrequest import BindRequest
from bowline.framework.plugin_status import Status
from bowline.kube.client import KubeClient
from bowline.kube.lease import LeaseVersions
from bowline.kube.reflector import Reflector
from bowline.plugins.dynamic_resources.reserver import ClaimReserver
from bowline.plugins.gpu_sharing import plugin as gpu_sharing_plugin
from bowline.plugins.gpu_sharing import reservation_client
from bowline.plugins.gpu_sharing.group_controller import GroupController
from bowline.plugins.node_fit import assumed_pods
from bowline.plugins.volume_binding import assume_cache
from bowline_reconciler.binding import complete, gangs, overlay, state, writer
from bowline_reconciler.informers import Informers
from tests.simulation.children import run_in_child
from tests.simulation.network import Fault
from tests.simulation.plans import focused
from tests.simulation.simulation import Simulation
from tests.simulation.stories import Scene, Story, scenes

# The first seed of the runs for a mutant.
_FIRST = 20_000


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect. ``runs``: a focus of random seeds, or ``KIND/STORY/FAULT`` of which every scene is played.

    Without a fault those of every fault are.
    """

    name: str
    runs: str
    mutate: Callable[[], None]


def is_found(mutant: Mutant, limit: int) -> tuple[set[str], int]:
    """Return the kinds of violation by which the defect is found, and after how many runs."""
    number = 0
    for new_simulation in islice(_simulations(mutant), limit):
        number += 1
        mutated = run_in_child(partial(_mutated, mutant, new_simulation)).kinds
        # Only a run that shows something is worth a second one without the defect.
        kinds = mutated - run_in_child(new_simulation).kinds if mutated else set()
        if kinds:
            return kinds, number
    return set(), number


def _simulations(mutant: Mutant) -> Iterator[Callable[[], Simulation]]:
    if "/" in mutant.runs:
        kind, story, *fault = mutant.runs.split("/")
        undisturbed = Scene(kind, story)
        yield partial(Story, undisturbed)
        requests = len(run_in_child(partial(Story, undisturbed)).happened)
        played = (scene for scene in scenes(kind, story, requests) if not fault or scene.fault == Fault(*fault))
        yield from (partial(Story, scene) for scene in played)
    else:
        seed = _FIRST
        while True:
            yield partial(Simulation, seed, focused(seed, mutant.runs))
            seed += 1


def _mutated(mutant: Mutant, new_simulation: Callable[[], Simulation]) -> Simulation:
    """Put the defect into this process, which is a child's, and return the simulation."""
    mutant.mutate()
    return new_simulation()


def _set(owner: Any, name: str, value: Any) -> Callable[[], None]:
    if not hasattr(owner, name):
        raise AttributeError(f"{owner!r} has no {name}: the mutant is out of date")
    return lambda: setattr(owner, name, value)


def _unnoticed_restores() -> Callable[[], None]:
    """A term that lasts through a restore is ended by the Lease's version; the caches of others are listed again."""
    defects = (_set(LeaseVersions, "check", lambda *_: None), _set(Reflector, "may_be_restored", False))

    def mutate() -> None:
        for defect in defects:
            defect()

    return mutate


def _forgotten_names() -> Callable[[], None]:
    known_version: property = vars(overlay.CacheOverlay)["known_version"]

    def only_of_present(present: overlay.CacheOverlay) -> Any:
        return "" if present.final_version else known_version.__get__(present)

    return _set(overlay.CacheOverlay, "known_version", property(only_of_present))


async def _nothing(*_: Any, **__: Any) -> None:
    return None


async def _no_users(*_: Any, **__: Any) -> list[Any]:
    return []


async def _no_nodes(*_: Any, **__: Any) -> set[str]:
    return set()


async def _request_as_it_is(_: Any, request: BindRequest, *__: object) -> BindRequest:
    return request


_patch: Any = KubeClient.patch


async def _patch_unconditionally(client: KubeClient, *path: Any, **options: Any) -> dict[str, Any]:
    *target, body = path
    if isinstance(body, dict):
        guards = ("uid", "resourceVersion")
        metadata = {name: value for name, value in body.get("metadata", {}).items() if name not in guards}
        body = {**body, "metadata": metadata}
    patched: dict[str, Any] = await _patch(client, *target, body, **options)
    return patched


async def _ok(*_: Any, **__: Any) -> Status:
    return Status.ok()


MUTANTS = (
    Mutant("a rollback does nothing", "late", _set(complete.Completer, "_roll_back", _nothing)),
    Mutant(
        "a finalizer is never added",
        "shared claim/withdraw/kill after",
        _set(writer.Writer, "add_finalizer", _request_as_it_is),
    ),
    Mutant("patches have no precondition", "general", _set(KubeClient, "patch", _patch_unconditionally)),
    Mutant("no request holds its pod", "lag", _set(state.RequestStates, "acquire_pod", lambda *_: True)),
    Mutant(
        "devices are released whoever uses them",
        "releases",
        _set(reservation_client.ReservationClient, "users", _no_users),
    ),
    Mutant(
        "devices are released whoever has asked for them",
        "share/withdraw beside another/kill late",
        _set(reservation_client.ReservationClient, "requested_nodes", _no_nodes),
    ),
    Mutant("two pods choose one volume", "volumes", _set(assume_cache.AssumeCache, "is_taken", lambda *_: False)),
    Mutant("withdrawn attempts go on", "rivals", _set(Informers, "still_wanted", lambda *_: True)),
    Mutant("a gang is always complete", "gangs", _set(gangs, "is_complete", lambda *_: True)),
    Mutant("assumed pods are kept", "general", _set(assumed_pods.AssumedPods, "drop", lambda *_: None)),
    Mutant("claims of devices are kept", "releases", _set(GroupController, "release_claims", lambda *_: None)),
    Mutant("a restored etcd is not noticed", "restores", _unnoticed_restores()),
    Mutant("what is known of a name ends with its request", "gated/made again in silence", _forgotten_names()),
    Mutant("ConfigMaps are kept", "share/withdraw", _set(gpu_sharing_plugin, "delete_configmaps", _ok)),
    Mutant("reservations of claims are kept", "shared claim/withdraw", _set(ClaimReserver, "unreserve", _ok)),
)
