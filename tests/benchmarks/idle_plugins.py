"""What plugins cost an attempt whose methods they do not override: the runner with ten such plugins, beside none.

CPU time of an attempt in the runner (pre_bind, bind, post_bind) with a bind plugin that does nothing, in this
process and without a network. Both chains alternate, so that their ratio holds on a busy machine, too.
"""

import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from bowline.api.bindrequest import decode_bind_request
from bowline.framework.binding.calls import PluginCaller
from bowline.framework.binding.context import BindContext
from bowline.framework.binding.plugin import BindingPlugin
from bowline.framework.binding.runner import Runner
from bowline.framework.config import Settings
from bowline.framework.plugin import PluginConfig
from bowline.framework.plugin_status import Code, Status
from bowline.kube.client import KubeClient
from bowline.testing.builders import bind_request, pod, stored
from bowline.testing.lab import Calls
from tests.benchmarks.report import Figure, Report

IDLE = 10
NONE, TEN = "an attempt without other plugins", f"an attempt with {IDLE} plugins that override nothing"


@dataclass(frozen=True, slots=True)
class IdleSizes:
    """How often both chains take a turn, and the attempts of a turn."""

    turns: int = 60
    attempts: int = 2000


class Binds(BindingPlugin):
    """The only plugin that has something to do."""

    name = "binds"

    async def bind(self, ctx: BindContext) -> Status:
        return Status.ok()


async def bench_idle_plugins(sizes: IdleSizes) -> Report:
    """Measure; takes half a minute."""
    report = Report("Plugins that override nothing, in one process")
    binds = Binds(PluginConfig(), Settings())
    kinds = [type(f"Idle{number}", (BindingPlugin,), {"name": f"idle_{number}"}) for number in range(IDLE)]
    idle = [kind(PluginConfig(), Settings()) for kind in kinds]
    runners = {NONE: Runner([binds], PluginCaller(Calls())), TEN: Runner([*idle, binds], PluginCaller(Calls()))}
    values: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(sizes.turns):
        for name in (NONE, TEN) if turn % 2 == 0 else (TEN, NONE):
            values[name].append(await _microseconds(runners[name], sizes.attempts))
    report.add(Figure(NONE, "us", tuple(values[NONE])))
    report.add(Figure(TEN, "us", tuple(values[TEN]), NONE, "<= 1.05"))
    return report


async def _microseconds(runner: Runner, attempts: int) -> float:
    ctx = _context()
    start = time.process_time()
    for _ in range(attempts):
        await runner.run_pre_bind(ctx)
        status = await runner.run_bind(ctx)
        await runner.run_post_bind(ctx)
    seconds = time.process_time() - start
    if status.code is not Code.OK:
        raise RuntimeError(status.message)
    return seconds / attempts * 1e6


def _context() -> BindContext:
    request = decode_bind_request(stored(bind_request()))
    node: dict[str, Any] = {"metadata": {"name": "node-0"}}
    deadline = datetime(2036, 1, 1, tzinfo=UTC)
    log = logging.LoggerAdapter(logging.getLogger("bench"), {})
    # No method of these plugins uses the client.
    return BindContext(request, stored(pod()), node, 1, "attempt", deadline, cast("KubeClient", None), log)
