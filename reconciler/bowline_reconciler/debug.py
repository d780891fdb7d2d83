"""The reconciler's debug pages: its current work, its history, its configuration.

Only the content: serving is in ``bowline.runtime.debugpages``. Every page is bounded: lists contain the first
SHOWN entries and the total number. The pages contain no secrets: Bowline's configuration holds no credentials, and of
objects only names and Bowline's own messages are shown.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from bowline.api.meta import ObjectKey
from bowline.framework.binding.points import order_by_point
from bowline.framework.config import Settings
from bowline.framework.plugin import Plugin
from bowline.kube.reflector import Reflector
from bowline.runtime.clock import Clock
from bowline.runtime.debugpages import DebugPage, Misdirected
from bowline_reconciler.binding.state import RequestState
from bowline_reconciler.options import Options
from bowline_reconciler.wiring import Components

# Enough entries of a list for one page.
SHOWN = 100


def configuration_pages(settings: Settings, options: Options, plugins: Iterable[Plugin]) -> tuple[DebugPage, ...]:
    """Return the pages that need no connection to the API server."""
    plugins_in_order = tuple(plugins)
    return (
        DebugPage(
            "config",
            "the effective configuration: file, defaults and flags together",
            lambda: {
                "settings": settings.model_dump(mode="json", by_alias=True),
                "options": asdict(options),
            },
        ),
        DebugPage(
            "plugins",
            "enabled plugins: their order at each point, their effective arguments",
            lambda: {
                "order": order_by_point(plugins_in_order),
                "plugins": [_plugin(plugin) for plugin in plugins_in_order],
            },
        ),
    )


class WorkPages:
    """Pages about the components of a running process."""

    def __init__(self, parts: Components, clock: Clock, leader: Callable[[], str]) -> None:
        self._caches = partial(caches, parts)
        self._leader = leader
        self._observation = parts.observation
        self._calls = parts.calls
        self._history = parts.observation.history
        self._queue = parts.queue
        self._states = parts.states
        self._clock = clock

    def pages(self) -> tuple[DebugPage, ...]:
        """Return the pages."""
        return (
            DebugPage("requests", "reconciles in progress, waiting requests, last reconciled ones", self.requests),
            DebugPage("requests/{namespace}/{name}", "results of the last reconciles of a request", self.request),
            DebugPage("queue", "keys that are ready, in progress and delayed", self.queue),
            DebugPage("caches", "what is kept in memory, how much of it, and how fresh it is", self._caches),
        )

    def requests(self) -> dict[str, Any]:
        """Return the reconciles in progress, the waiting requests and the latest results."""
        observation, now, calls = self._observation, self._clock.monotonic(), self._calls.in_progress
        longest = sorted(observation.reconciles.values(), key=lambda current: current.since)
        latest = self._history.latest(SHOWN)
        return {
            "inProgress": _first({str(current.key): current.view(calls, now) for current in longest}),
            "waiting": _first({str(key): plugin for key, plugin in observation.waiting.items()}),
            "latest": {
                str(key): {"at": entry.at, "decision": entry.decision, "outcome": entry.outcome, "why": entry.why}
                for key, entry in latest
            },
        }

    def request(self, namespace: str, name: str) -> dict[str, Any] | Misdirected | None:
        """Return the known state of one request; None if there is none. A standby names the leader, which has it."""
        key = ObjectKey(namespace, name)
        observation = self._observation
        in_progress, state = observation.reconciles.get(key), self._states.get(key)
        queue = self._queue
        content = {
            "request": str(key),
            "inProgress": in_progress and in_progress.view(self._calls.in_progress, self._clock.monotonic()),
            "waitingFor": observation.waiting.get(key),
            "queue": queue.describe(key),
            "remembered": _remembered(state) if state is not None else None,
            "reconciles": [asdict(entry) for entry in self._history.of(key)],
        }
        if any(value for label, value in content.items() if label != "request"):
            return content
        return None if queue.is_open else Misdirected(standby_text(self._leader()))

    def queue(self) -> dict[str, Any]:
        """Return the leader's work queue; a standby has none."""
        queue = self._queue
        if not queue.is_open:
            return {"leading": False, "leader": self._leader()}
        view = queue.snapshot(SHOWN)
        return {
            "leading": True,
            "ready": {"count": queue.depth, "firstByAge_s": _ages(view.ready)},
            "processing": {"count": queue.processing, "first": [str(key) for key in view.processing]},
            "delayed": {"count": queue.delayed, "nextDue_s": _ages(view.delayed)},
        }


def caches(parts: Components) -> dict[str, Any]:
    """Return the sizes of everything that can grow."""
    return {
        "watches": {name: _reflector(reflector) for name, reflector in parts.reflectors.items()},
        "remembered": {
            **parts.sizes,
            "history": len(parts.observation.history),
            "inProgress": len(parts.observation.reconciles),
            "queuedEvents": len(parts.recorder),
        },
        "plugins": parts.plugins.sizes,
    }


def standby_text(leader: str) -> str:
    """Return why a standby has no request. ``leader``: identity of the leader, which begins with its pod's name."""
    if not leader:
        return "this reconciler is a standby, and none leads"
    return f"this reconciler is a standby: read this page from the leader, {leader}"


def _remembered(state: RequestState) -> dict[str, Any]:
    attempt = state.attempt
    return {
        "uid": state.uid,
        "done": state.is_finished,
        "bindStarted": attempt.running is not None and attempt.past_point,
        "unpersistedOutcome": attempt.pending_outcome is not None,
        "waitCause": state.wait.cause or None,
        "reportedWait": state.wait.last_report or None,
        "unacknowledgedBinding": attempt.unacknowledged_at is not None,
        "needsLiveRead": state.overlay.needs_live_read,
    }


def _plugin(plugin: Plugin) -> dict[str, Any]:
    kind = type(plugin)
    return {
        "name": plugin.name,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "args": plugin.args.model_dump(mode="json", by_alias=True),
    }


def _reflector(reflector: Reflector) -> dict[str, Any]:
    return {
        "selection": str(reflector.selection),
        "objects": len(reflector.store),
        "synced": reflector.synced.is_set(),
        "problem": reflector.last_error,
        "lastContact": reflector.last_contact,
        "contactSince": reflector.connected_since,
        "resourceVersion": reflector.version,
    }


def _ages(keys: Iterable[tuple[ObjectKey, float]]) -> dict[str, float]:
    return {str(key): round(seconds, 3) for key, seconds in keys}


def _first(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {"count": len(entries), "first": dict(list(entries.items())[:SHOWN])}
