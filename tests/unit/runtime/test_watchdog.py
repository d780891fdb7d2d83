"""The watchdog beside calls that hold Python's lock, in a process of its own."""

import subprocess
import sys

LOCKS = """
import asyncio, re
from bowline.runtime.metrics import new_registry
from prometheus_client import Counter
from bowline.runtime import watchdog

watchdog.LOCKED_S = 1.0


async def end(*_):
    raise AssertionError("no plugin is called")


async def main():
    errors = Counter("errors", "Errors.", ["plugin", "point"], registry=new_registry())
    watching = asyncio.create_task(watchdog.EventLoopWatchdog(lambda _: None, errors, end).run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    {call}
    watching.cancel()


asyncio.run(main())
"""


def run(call: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LOCKS.format(call=call)], capture_output=True, text=True, check=False
    )


def test_a_call_that_holds_the_lock_ends_the_process_with_its_stack() -> None:
    completion = run('re.match("(a+)+$", "a" * 60 + "b")')
    assert completion.returncode == 1
    assert "Timeout" in completion.stderr
    assert "in match" in completion.stderr
