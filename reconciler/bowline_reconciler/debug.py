"""What the debug page of the reconciler shows: its queue, waits, watches, memory, and what is in progress.

Only the content: serving is in ``bowline.runtime.probes``. It is bounded: lists contain the first SHOWN entries
and the total number. It has no secrets: of objects only names, and Bowline's own messages.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from bowline.api.meta import ObjectKey
from bowline.framework.binding.calls import PluginCall
from bowline.kube.reflector import Reflector
from bowline_reconciler.drive.state import Awaiting, Progress
from bowline_reconciler.observe import OWN
from bowline_reconciler.term.wiring import Components

# Enough entries of a list for one page.
SHOWN = 100


def debug_content(parts: Components, leader: str) -> dict[str, Any]:
    """Return the page. ``leader``: the identity of the Lease's holder, which begins with its pod's name."""
    now, calls, states = parts.client.clock.monotonic(), parts.calls.in_progress, parts.memory.states
    stages = [(key, state.stage) for key, state in states.items()]
    running = [(key, stage) for key, stage in stages if isinstance(stage, Progress) and stage.since is not None]
    longest = sorted(running, key=lambda entry: entry[1].since or now)
    queue, view = parts.queue, parts.queue.snapshot(SHOWN)
    return {
        "leading": queue.is_open,
        "leader": leader,
        "inProgress": _first({str(key): _reconcile(key, progress, calls, now) for key, progress in longest}),
        "waiting": _first({str(key): stage.plugin or OWN for key, stage in stages if isinstance(stage, Awaiting)}),
        "queue": {
            "ready": {"count": queue.depth, "firstByAge_s": _ages(view.ready)},
            "processing": {"count": queue.processing, "first": [str(key) for key in view.processing]},
            "delayed": {"count": queue.delayed, "nextDue_s": _ages(view.delayed)},
        },
        "watches": {name: _reflector(reflector) for name, reflector in parts.reflectors.items()},
        "remembered": {**parts.memory.sizes, "queuedEvents": len(parts.recorder)},
        "plugins": parts.plugins.sizes,
    }


def _reconcile(key: ObjectKey, progress: Progress, calls: Iterable[PluginCall], now: float) -> dict[str, Any]:
    return {
        "attempt": progress.attempt,
        "decision": progress.decision,
        "began": progress.began,
        "seconds": round(now - (progress.since or now), 3),
        "at": [
            {"plugin": call.plugin, "point": call.point, "seconds": round(now - call.since, 3)}
            for call in calls
            if call.key == key
        ],
    }


def _reflector(reflector: Reflector) -> dict[str, Any]:
    return {
        "selection": str(reflector.selection),
        "objects": len(reflector.store),
        "synced": reflector.synced.is_set(),
        "problem": reflector.last_error,
        "lastContact": reflector.last_contact,
        "contactSeconds": reflector.in_contact().total_seconds(),
        "resourceVersion": reflector.version,
    }


def _ages(keys: Iterable[tuple[ObjectKey, float]]) -> dict[str, float]:
    return {str(key): round(seconds, 3) for key, seconds in keys}


def _first(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {"count": len(entries), "first": dict(list(entries.items())[:SHOWN])}
