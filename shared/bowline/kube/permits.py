"""Which writes the caller of a client may send. A context variable: tasks that the caller creates inherit it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from bowline.kube.calls import Call

# Raises UndeclaredWriteError.
Permit = Callable[[Call], None]

_CURRENT: ContextVar[Permit | None] = ContextVar("permit", default=None)


@contextmanager
def limited_to(permit: Permit | None) -> Iterator[None]:
    """Send only the writes of a block that ``permit`` accepts; None: all of them."""
    token = _CURRENT.set(permit)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def require_permit(call: Call) -> None:
    """Raise UndeclaredWriteError for a write that this context may not send."""
    permit = _CURRENT.get()
    if permit is not None and call.write:
        permit(call)
