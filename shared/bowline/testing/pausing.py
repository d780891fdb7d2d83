"""Stops a plugin's method at one of its awaits, so that something else happens there.

The method runs as before; its coroutine is driven step by step, and where it is suspended is the line of the plugin's
own code. So a check tries what happens between any two lines that an await separates.
"""

import asyncio
import types
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

from bowline.framework.binding.runner import at_point
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.testing.purity import line_of

_END = "the end of "


class Pause:
    """The awaits of pre_bind and bind of one process, the first time that each method is called.

    ``places``: those that were passed, in order, and how often: a call of the API server suspends several times.
    ``at``: the one at which it stops until ``resume`` is called, and at which time. With ``on_suspended`` it does not
    stop: that is called when it is suspended there.
    """

    def __init__(
        self,
        plugin: BindingPlugin,
        files: frozenset[str],
        at: tuple[str, int] = ("", 1),
        on_suspended: Callable[[], object] | None = None,
    ) -> None:
        self._files = files
        self._at = at
        self._on_suspended = on_suspended
        self._resumed = asyncio.Event()
        self._called: set[str] = set()
        self.places: Counter[str] = Counter()
        self.is_reached = False
        for point in (BindingPlugin.pre_bind, BindingPlugin.bind):
            if at_point([plugin], point):
                name = point.__name__
                setattr(plugin, name, partial(self._run, name, getattr(plugin, name)))

    def resume(self) -> None:
        """Let the method continue."""
        self._resumed.set()

    async def _run(self, point: str, method: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
        if point in self._called:
            return await method(*arguments)
        self._called.add(point)
        result = await self._stepped(method(*arguments))
        if self._is_due(f"{_END}{point}") and self._on_suspended is None:
            await self._resumed.wait()
        return result

    @property
    def stops(self) -> list[tuple[str, int]]:
        """The first and the last time at each place."""
        return [(place, time) for place, count in self.places.items() for time in sorted({1, count})]

    def _is_due(self, place: str) -> bool:
        self.places[place] += 1
        is_due = not self.is_reached and (place, self.places[place]) == self._at
        self.is_reached = self.is_reached or is_due
        return is_due

    @types.coroutine
    def _stepped(self, coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Drive a coroutine of the plugin to its end, with the pause in it."""
        step = partial(coroutine.send, None)
        while True:
            try:
                awaited = step()
            except StopIteration as end:
                return end.value
            is_due = self._is_due(self._place(coroutine))
            try:
                if is_due and self._on_suspended is not None:
                    self._on_suspended()
                value = yield awaited
                if is_due and self._on_suspended is None:
                    yield from self._resumed.wait().__await__()
                step = partial(coroutine.send, value)
            except BaseException as error:  # noqa: BLE001 - raised in the coroutine
                step = partial(coroutine.throw, error)

    def _place(self, coroutine: Any) -> str:
        """Return the innermost line of the plugin's files that awaits."""
        place = ""
        while coroutine is not None:
            frame = getattr(coroutine, "cr_frame", None)
            if frame is not None and frame.f_code.co_filename in self._files:
                place = line_of(frame)
            coroutine = getattr(coroutine, "cr_await", None)
        return place


def is_end(stop: tuple[str, int]) -> bool:
    """Return whether a stop is the end of a method, where nothing is suspended."""
    return stop[0].startswith(_END)
